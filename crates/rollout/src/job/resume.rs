//! Picking up a job where it stopped.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;

use super::{
    ConfigDifference, EarlierRows, History, Job, JobError, NoProvider, Plan, PlanAgent, Store, difference,
    growth::{changes, other_than_provider},
    header,
    journaled::Journaled,
    moved_rows,
    planned::PlanTask,
    provenance::Origin,
    recorder::restore_trial,
    saved_rows::SavedRows,
    sections::Sections,
    summary::Rows,
};
use crate::{
    config::{LoadedJob, hashed},
    task::Resolved,
};
use rollout_core::{
    event::JobKind,
    name::{AgentName, TrialIndex},
    redact,
    result::{TrialResult, TrialSummary},
};
use rollout_env::Provider;
use rollout_record::{
    atomic,
    identity::EXPANDED,
    journal::{self, Header, Journal, JournalEntry, JournalError, PlannedTask},
    layout::{JobDir, TrialDir},
    tasks,
};

/// Which finished trials a resume does again. Missing ones are always done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rerun {
    /// None but those that have no result.
    Missing,
    /// Those with an error and no reward. A rollout is scored whatever happened, so of those: all with an error.
    Error,
    /// Those whose reward is below the `pass_threshold` of their dataset, or that have none. Of a benchmark: those that
    /// failed, or whose score is below it.
    Unsolved,
}

impl Rerun {
    fn wants(self, row: TrialSummary, is_rollout: bool, kind: JobKind) -> bool {
        match self {
            Self::Missing => false,
            Self::Error => row.error.is_some() && (is_rollout || row.reward.is_none()),
            Self::Unsolved => match (row.reward, kind) {
                (Some(_), _) => !row.is_solved(),
                (None, JobKind::Job) => true,
                // No right answer is known, or nobody was to look.
                (None, JobKind::Benchmark) => row.error.is_some(),
            },
        }
    }
}

/// Why a job cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// There is no job there.
    #[error("{} is not a job directory: it has no journal.jsonl", .0.display())]
    NotAJob(PathBuf),
    /// The journal cannot be read.
    #[error("the job cannot be read")]
    Journal(#[source] JournalError),
    /// A secret was given beside the job file, where it is not kept.
    #[error("{0} was set to a secret on the command line, which is recorded nowhere")]
    SecretOverride(String),
    /// The configuration is not the one the job was started with.
    #[error("the configuration has changed since the job was started:\n{}", lines(.0))]
    ConfigChanged(Vec<ConfigDifference>),
    /// The configuration has more than the job was started with.
    #[error("the configuration has more than the job was started with:\n{}", lines(.differences))]
    Grown {
        /// The job's directory.
        directory: PathBuf,
        /// Its file.
        file: PathBuf,
        /// What is new.
        differences: Vec<ConfigDifference>,
    },
    /// The job ran on another provider.
    #[error("the job ran on {recorded}, and cannot go on with {given}")]
    OtherProvider {
        /// Where it ran.
        recorded: String,
        /// Where it was to go on.
        given: String,
    },
    /// The tasks are not those the job was started with.
    #[error("the tasks have changed since the job was started:\n{}", lines(.0))]
    TasksChanged(Vec<String>),
    /// Rows without a word on what they are of.
    #[error("{} has rows and no metadata.json, so nobody can say what they are of", .0.display())]
    NoMetadata(PathBuf),
    /// The job cannot go on.
    #[error(transparent)]
    Job(#[from] JobError),
}

impl ResumeError {
    /// What the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::ConfigChanged(_) | Self::TasksChanged(_) => {
                Some("undo the change to continue this job, or start a new one under another name".to_owned())
            }
            Self::Grown { directory, file, .. } => Some(format!(
                "`rollout resume {} --with {}` keeps what has run and runs what is new",
                directory.display(),
                file.display()
            )),
            Self::OtherProvider { recorded, .. } => Some(format!("connect to {recorded}")),
            Self::Job(error) => error.hint(),
            Self::SecretOverride(_) => Some(
                "start a new job that takes the secret from a variable: `${NAME}` in the job file is expanded again"
                    .to_owned(),
            ),
            Self::NoMetadata(_) => Some("give another directory, or move the rows away".to_owned()),
            Self::NotAJob(_) => Some("give the directory that the run printed, <jobs_dir>/<name>".to_owned()),
            Self::Journal(JournalError::Locked { .. }) => {
                Some("wait for the other process, or stop it".to_owned())
            }
            Self::Journal(error) => error.hint(),
        }
    }
}

/// A job that was started before, as its journal describes it.
#[derive(Debug)]
pub struct Resumable {
    dir: JobDir,
    header: Header,
}

impl Resumable {
    /// Reads the description of a job.
    pub fn open(dir: &Path) -> Result<Self, ResumeError> {
        let dir = JobDir::new(dir);
        if !dir.journal().is_file() {
            return Err(ResumeError::NotAJob(dir.path().to_owned()));
        }
        let (header, _) = journal::read(&dir.journal(), |_| ()).map_err(ResumeError::Journal)?;
        if let Some(masked) = header.overrides.iter().find(|text| text.contains(redact::MASK)) {
            let key = masked.split('=').next().unwrap_or_default();
            return Err(ResumeError::SecretOverride(key.to_owned()));
        }
        Ok(Self { dir, header })
    }

    /// What the job was when it was started.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Where its results are.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// The copy of the configuration in the job's directory.
    pub fn config_copy(&self) -> PathBuf {
        self.dir.config()
    }

    /// The configuration of the job, as its journal has it, or config.json where an older version ran it.
    pub fn config(&self) -> Result<Value, JobError> {
        if let Some(config) = &self.header.config {
            return Ok(config.clone());
        }
        let path = self.dir.config();
        let read = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
        read.map_err(|source| JobError::Config { path, source })
    }

    /// What is known of the job's datasets. Registries are asked only where the job is to grow.
    pub fn resolved(&self, grows: bool) -> Resolved {
        Resolved::of(&self.header, grows)
    }

    /// Refuses a configuration that would give other results, naming the differences.
    pub fn check_config(&self, loaded: &LoadedJob) -> Result<(), ResumeError> {
        if loaded.hash == self.header.config_hash {
            return self.check_expanded(loaded);
        }
        let (before, after) = (hashed(&self.config().unwrap_or_default()), hashed(&loaded.record));
        let differences = difference::differences(&before, &after);
        let differences: Vec<_> = other_than_provider(differences, &self.header.provider).collect();
        if differences.is_empty() {
            return Ok(());
        }
        if changes(&before, &after, &self.header.provider).is_empty() {
            let (directory, file) = (self.dir.path().to_owned(), loaded.path.clone());
            return Err(ResumeError::Grown { directory, file, differences });
        }
        Err(ResumeError::ConfigChanged(differences))
    }

    /// Refuses a variable that stands for something else than it did, where results are known by what it stands for.
    fn check_expanded(&self, loaded: &LoadedJob) -> Result<(), ResumeError> {
        let before = self.config().unwrap_or_default();
        match (before.get(EXPANDED), loaded.record.get(EXPANDED)) {
            (Some(before), Some(after)) if before != after => {
                Err(ResumeError::ConfigChanged(difference::differences(before, after)))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a configuration that changes what has run. It may have more agents, datasets and attempts.
    pub fn check_growth(&self, loaded: &LoadedJob) -> Result<(), ResumeError> {
        let (before, after) = (hashed(&self.config()?), hashed(&loaded.record));
        match changes(&before, &after, &self.header.provider) {
            differences if differences.is_empty() => Ok(()),
            differences => Err(ResumeError::ConfigChanged(differences)),
        }
    }

    /// Opens the job again, with a plan made from the same configuration. The plan may have more attempts, as the job
    /// has then.
    pub async fn resume(
        self,
        plan: Plan,
        provider: Arc<dyn Provider>,
        rerun: &[Rerun],
    ) -> Result<Job, ResumeError> {
        self.open_with(plan, provider, rerun, Growth::Refused).await
    }

    /// Opens the job again, with a plan that may have more of everything: agents, tasks and attempts that the job does
    /// not have yet are added to it.
    pub async fn grow(
        self,
        plan: Plan,
        provider: Arc<dyn Provider>,
        rerun: &[Rerun],
    ) -> Result<Job, ResumeError> {
        self.open_with(plan, provider, rerun, Growth::Allowed).await
    }

    async fn open_with(
        self,
        plan: Plan,
        provider: Arc<dyn Provider>,
        rerun: &[Rerun],
        growth: Growth,
    ) -> Result<Job, ResumeError> {
        let (recorded, given) = (&self.header.provider, provider.name());
        // Trials without containers can be joined by some that have them.
        if recorded != given && recorded != NoProvider.name() {
            return Err(ResumeError::OtherProvider { recorded: recorded.clone(), given: given.to_owned() });
        }
        self.reopen(plan, provider, rerun.to_vec(), growth, false).await
    }

    /// Opens the job again, with all that it may differ in checked but its tasks. Rows are kept in the job if they are
    /// to be handed to somebody.
    pub(super) async fn reopen(
        self,
        plan: Plan,
        provider: Arc<dyn Provider>,
        rerun: Vec<Rerun>,
        growth: Growth,
        keep_outputs: bool,
    ) -> Result<Job, ResumeError> {
        let Self { dir, header: before } = self;
        let plan = Arc::new(restrict(plan, &before, growth).map_err(ResumeError::TasksChanged)?);
        let journaled = Journaled::read(Arc::clone(&plan)).await.map_err(JobError::Tasks)?;
        let opened = tokio::task::spawn_blocking(move || {
            let changed = changed(&before.tasks, journaled.tasks(&plan)).map_err(JobError::Tasks)?;
            if !changed.is_empty() {
                return Err(ResumeError::TasksChanged(changed));
            }
            let now = grown(&plan, &before, provider.name(), &journaled).map_err(JobError::Tasks)?;
            let mut rows = Rows::new(plan.len());
            let places = Places::new(&plan);
            let mut sections = Sections::new(&plan, Some(dir.path()));
            moved_rows::link(&dir, &before, now.as_ref())?;
            let mut saved = SavedRows::read(&plan, sections.files(), keep_outputs, |index, result| {
                rows.set(index, result);
                sections.set(&plan, index, result);
            })?;
            let mut history = History::default();
            let mut run = None;
            let mut missing = HashMap::new();
            let mut tries = HashMap::new();
            let task_hashes = journaled.hashes(&plan);
            let mut origin = Origin { run: None, task_hashes: task_hashes.clone() };
            let mut journal = Journal::open(&dir.journal(), |entry| {
                history.hear(&entry, &mut run);
                let result = match entry {
                    JournalEntry::Trial { result, .. } => result,
                    JournalEntry::RunStarted { provenance, .. } => {
                        origin.run = provenance;
                        return;
                    }
                    JournalEntry::Job(_) | JournalEntry::RunEnded { .. } => return,
                };
                let Some(index) = places.of(&plan, &result) else { return };
                if sections.of(index).is_some() {
                    if saved.hear(index, &result) {
                        rows.set(index, &result);
                        if result.tries > 1 {
                            tries.insert(index, result.tries);
                        }
                    }
                } else if rows.set(index, &result)
                    && plan.parts(index).1.container().is_some()
                    && !is_written(&dir.trial(&plan.trial(index)))
                {
                    // A later entry takes the place of an earlier one here, too.
                    missing.insert(index, (result, origin.clone()));
                }
            })
            .map_err(ResumeError::Journal)?;
            let has_lost = !missing.is_empty();
            for (index, (result, origin)) in missing {
                restore_trial(&dir, &plan, index, &result, &origin)?;
            }
            let header = now.as_ref().unwrap_or(&before);
            if let Some(grown) = &now {
                journal.push(&JournalEntry::Job(Box::new(grown.clone())));
                // Before anything else of it: from here on the job is the larger one, whatever happens.
                journal.sync().map_err(JobError::from)?;
            }
            write_derived(&dir, &plan, header, &journaled)?;
            moved_rows::remove_from_root(&dir, header)?;
            sections.prepare_directories()?;
            let mut is_whole = now.is_none() && !has_lost && !sections.have_old_rows();
            saved.missing(&plan, |index, result| {
                is_whole = false;
                journal.push(&JournalEntry::Trial { index, result: Arc::new(result) });
            })?;
            if !is_whole {
                journal.sync().map_err(JobError::from)?;
            }
            saved.remove_old()?;
            sections.old_rows_are_gone();
            let (outputs, warnings) = saved.into_parts();
            let wanted = |index: &TrialIndex| {
                let is_rollout = sections.of(*index).is_some();
                let again = |row| rerun.iter().any(|rerun| rerun.wants(row, is_rollout, plan.kind()));
                rows.get(*index).is_none_or(again)
            };
            let todo: Vec<_> = plan.indexes().filter(wanted).collect();
            let settled_at = match is_whole && todo.is_empty() {
                true => history.settled_at(&dir, plan.len()),
                false => None,
            };
            let earlier_rows = Arc::new(EarlierRows::find(&plan, &sections, &todo, &tries)?);
            Ok::<_, ResumeError>(Job {
                plan,
                provider,
                name: before.job_name.into(),
                store: Some(Store { dir, journal, task_hashes }),
                sections,
                rows,
                earlier_rows,
                todo,
                history,
                settled_at,
                warnings,
                collector: None,
                earlier: outputs,
                command: None,
                provenance: None,
            })
        });
        opened.await.map_err(|error| JobError::Tasks(std::io::Error::other(error)))?
    }
}

/// Whether a job may have more tasks than it was started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// It has those it was started with.
    Refused,
    /// New ones come after them.
    Allowed,
}

/// Whether a trial's result is there. A crash of the machine can leave its file empty.
fn is_written(trial: &TrialDir) -> bool {
    fs::metadata(trial.result()).is_ok_and(|file| file.len() > 0)
}

/// What the journal says of a job that has more than before; none if it has not.
fn grown(plan: &Plan, before: &Header, provider: &str, journaled: &Journaled) -> io::Result<Option<Header>> {
    let tasks = plan.tasks().iter().map(|task| (task.dataset.as_str(), task.name.as_str(), task.attempts));
    let known =
        before.tasks.iter().map(|task| (task.dataset.as_str(), task.name.as_str(), before.attempts_of(task)));
    if plan.agents().map(AgentName::as_str).eq(before.agents.iter().map(String::as_str)) && tasks.eq(known) {
        return Ok(None);
    }
    let tasks: Vec<PlannedTask> = journaled.tasks(plan).collect::<io::Result<_>>()?;
    let mut now = header(plan, &before.job_name, before.directory.clone(), provider.to_owned(), tasks);
    let pins = std::mem::take(&mut now.pins);
    now.pins = before.pins.clone().into_iter().chain(pins).collect();
    if now.selection.is_none() && now.tasks.len() == before.tasks.len() {
        now.selection.clone_from(&before.selection);
        now.dataset_sizes.clone_from(&before.dataset_sizes);
    }
    Ok(Some(now))
}

/// Writes what is made of the header, where a crash or an older version left it behind.
fn write_derived(dir: &JobDir, plan: &Plan, header: &Header, journaled: &Journaled) -> Result<(), JobError> {
    if let Some(config) = &header.config {
        let there =
            fs::read(dir.config()).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        if there.as_ref() != Some(config) {
            atomic::write_json(&dir.config(), config)?;
        }
    }
    if tasks::count(&dir.tasks()) < journaled.recorded(plan) {
        tasks::write(&dir.tasks(), journaled.abouts(plan), plan.redactor())?;
    }
    Ok(())
}

/// The numbers of agents and tasks by their names: what the journal says of a trial is found by those, because a job
/// that has grown has moved the places of its trials.
struct Places<'p> {
    agents: HashMap<&'p str, usize>,
    tasks: HashMap<(&'p str, &'p str), usize>,
}

impl<'p> Places<'p> {
    fn new(plan: &'p Plan) -> Self {
        let agents = plan.agents.iter().enumerate().map(|(number, agent)| (agent.name.as_str(), number));
        let key = |task: &'p PlanTask| (task.dataset.as_str(), task.name.as_str());
        let tasks = plan.tasks.iter().enumerate().map(|(number, task)| (key(task), number));
        Self { agents: agents.collect(), tasks: tasks.collect() }
    }

    fn of(&self, plan: &Plan, result: &TrialResult) -> Option<TrialIndex> {
        let agent = *self.agents.get(result.agent_name.as_str())?;
        let task = *self.tasks.get(&(result.dataset_name.as_str(), result.task_name.as_str()))?;
        let is_planned = (1..=plan.tasks[task].attempts).contains(&result.attempt);
        is_planned.then(|| plan.index(agent, task, result.attempt))
    }
}

impl Job {
    /// How many of the trials that are not to be run now this choice would run again.
    pub fn would_rerun(&self, rerun: Rerun) -> usize {
        let todo: HashSet<_> = self.todo.iter().collect();
        let again = |index: &TrialIndex| {
            let is_rollout = self.sections.of(*index).is_some();
            self.rows.get(*index).is_some_and(|row| rerun.wants(row, is_rollout, self.plan.kind()))
        };
        self.plan.indexes().filter(|index| !todo.contains(index)).filter(again).count()
    }
}

/// Brings a plan down to the agents and tasks that the job was started with, in their order. Where the job may grow,
/// the plan stays as it is, if nothing of the job is missing.
fn restrict(mut plan: Plan, header: &Header, growth: Growth) -> Result<Plan, Vec<String>> {
    let agents = plan.agents().map(AgentName::as_str).eq(header.agents.iter().map(String::as_str));
    let planned = plan.tasks.iter().map(|task| (task.dataset.as_str(), task.name.as_str()));
    if agents && planned.eq(header.tasks.iter().map(|task| (task.dataset.as_str(), task.name.as_str()))) {
        return Ok(plan);
    }
    let mut missing = Vec::new();
    if growth == Growth::Allowed {
        let places = Places::new(&plan);
        let gone = |name: &&String| !places.agents.contains_key(name.as_str());
        missing.extend(header.agents.iter().filter(gone).map(|name| format!("agent {name} is gone")));
        for PlannedTask { dataset, name, .. } in &header.tasks {
            if !places.tasks.contains_key(&(dataset.as_str(), name.as_str())) {
                missing.push(format!("task {dataset}/{name} is gone"));
            }
        }
        return if missing.is_empty() { Ok(plan) } else { Err(missing) };
    }
    let mut by_name: HashMap<String, PlanAgent> =
        plan.agents.drain(..).map(|agent| (agent.name.to_string(), agent)).collect();
    let mut agents = Vec::new();
    for name in &header.agents {
        match by_name.remove(name) {
            Some(agent) => agents.push(agent),
            None => missing.push(format!("agent {name} is gone")),
        }
    }
    let key = |task: &PlanTask| (task.dataset.to_string(), task.name.to_string());
    let mut by_name: HashMap<_, PlanTask> = plan.tasks.drain(..).map(|task| (key(&task), task)).collect();
    let mut tasks = Vec::new();
    for task in &header.tasks {
        match by_name.remove(&(task.dataset.clone(), task.name.clone())) {
            Some(found) => tasks.push(found),
            None => missing.push(format!("task {}/{} is gone", task.dataset, task.name)),
        }
    }
    if !missing.is_empty() {
        return Err(missing);
    }
    plan.rearrange(agents, tasks);
    Ok(plan)
}

/// The tasks whose files or inputs are not what they were.
fn changed(
    before: &[PlannedTask],
    now: impl Iterator<Item = io::Result<PlannedTask>>,
) -> io::Result<Vec<String>> {
    // A task that could not be loaded before has no results that a repair could spoil.
    let hashed = before.iter().filter(|task| task.content_hash.is_some());
    let known: HashMap<_, _> = hashed.map(|task| ((&*task.dataset, &*task.name), task)).collect();
    let mut changed = Vec::new();
    for task in now {
        let task = task?;
        if let Some(known) = known.get(&(&*task.dataset, &*task.name))
            && known.content_hash != task.content_hash
        {
            changed.push(*known);
        }
    }
    let message = |task: &PlannedTask| match task.example_id {
        Some(_) => format!("example {} of {} is not what it was", task.name, task.dataset),
        None => format!("the files of task {}/{} are not what they were", task.dataset, task.name),
    };
    Ok(changed.into_iter().map(message).collect())
}

fn lines<T: ToString>(items: &[T]) -> String {
    const SHOWN: usize = 20;
    let mut lines: Vec<_> = items.iter().take(SHOWN).map(|item| format!("  {}", item.to_string())).collect();
    if items.len() > SHOWN {
        lines.push(format!("  and {} more", items.len() - SHOWN));
    }
    lines.join("\n")
}
