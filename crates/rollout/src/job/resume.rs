//! Resumes a job where it stopped.

use std::{
    cell::OnceCell,
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::future::BoxFuture;
use serde_json::Value;

use super::{
    AddedTrials, ConfigDifference, EarlierRows, History, Job, JobError, NoProvider, Plan, Store, difference,
    earlier_rows::JournaledParts,
    growth::{changes, other_than_provider},
    header,
    journaled::Journaled,
    known_tasks::{Before, Growth, Places, is_of},
    moved_rows,
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
    result::TrialSummary,
};
use rollout_env::Provider;
use rollout_record::{
    atomic,
    identity::EXPANDED,
    journal::{Header, Journal, JournalEntry, JournalError, PlanHeader, PlannedTask},
    layout::{JobDir, TrialDir},
    tasks,
};

/// Which finished trials a resume repeats. Missing ones always run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rerun {
    /// Only those without a result.
    Missing,
    /// Those with an error and no reward. Rollouts are scored even if they fail, so of those: all with an error.
    Error,
    /// Those with a reward below the `pass_threshold` of their dataset, or without one. For a benchmark: those that
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
                // The correct answer is unknown, or scoring is off.
                (None, JobKind::Benchmark) => row.error.is_some(),
            },
        }
    }
}

/// Why a job cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The directory is not a job.
    #[error("{} is not a job directory: it has no journal.jsonl", .0.display())]
    NotAJob(PathBuf),
    /// Another program ran the job.
    #[error("the job in {} was imported from {program}, so it cannot be run here", directory.display())]
    Imported {
        /// The job's directory.
        directory: PathBuf,
        /// The program.
        program: String,
    },
    /// The journal cannot be read.
    #[error("cannot read the job")]
    Journal(#[source] JournalError),
    /// A secret was given in addition to the job file, and is not saved.
    #[error("{0} was set to a secret on the command line, and secrets are not recorded")]
    SecretOverride(String),
    /// The configuration has changed since the job was started.
    #[error("the configuration has changed since the job was started:\n{}", lines(.0))]
    ConfigChanged(Vec<ConfigDifference>),
    /// The configuration has more than the job was started with.
    #[error("the configuration has additions since the job was started:\n{}", lines(.differences))]
    Grown {
        /// The job's directory.
        directory: PathBuf,
        /// Its job file.
        file: PathBuf,
        /// The additions.
        differences: Vec<ConfigDifference>,
    },
    /// The job ran on another provider.
    #[error("the job ran on {recorded} and cannot continue on {given}")]
    OtherProvider {
        /// The provider that it ran on.
        recorded: String,
        /// The provider to continue on.
        given: String,
    },
    /// The tasks have changed since the job was started.
    #[error("the tasks have changed since the job was started:\n{}", lines(.0))]
    TasksChanged(Vec<String>),
    /// Rows without a description of their run.
    #[error("{} has rows but no metadata.json, so the run they belong to is unknown", .0.display())]
    NoMetadata(PathBuf),
    /// The job cannot be opened.
    #[error(transparent)]
    Job(#[from] JobError),
}

impl ResumeError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::ConfigChanged(_) | Self::TasksChanged(_) => {
                Some("undo the change to continue this job, or start a new one under another name".to_owned())
            }
            Self::Grown { directory, file, .. } => Some(format!(
                "`rollout resume {} --with {}` keeps the results and runs the additions",
                directory.display(),
                file.display()
            )),
            Self::OtherProvider { recorded, .. } => Some(format!("connect to {recorded}")),
            Self::Job(error) => error.hint(),
            Self::SecretOverride(_) => Some(
                "start a new job that takes the secret from a variable: `${NAME}` in the job file is expanded again when it is resumed"
                    .to_owned(),
            ),
            Self::Imported { .. } => {
                Some("start a new job with the same tasks; `rollout compare` compares both".to_owned())
            }
            Self::NoMetadata(_) => Some("use another directory, or move the rows".to_owned()),
            Self::NotAJob(_) => Some("pass the directory that the run printed, <jobs_dir>/<name>".to_owned()),
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
    header: PlanHeader,
}

impl Resumable {
    /// Reads the description of a job.
    pub fn open(dir: &Path) -> Result<Self, ResumeError> {
        let dir = JobDir::new(dir);
        if !dir.journal().is_file() {
            return Err(ResumeError::NotAJob(dir.path().to_owned()));
        }
        let header = PlanHeader::read(&dir.journal()).map_err(ResumeError::Journal)?;
        if let Some(imported) = &header.header().imported {
            let (directory, program) = (dir.path().to_owned(), imported.program.clone());
            return Err(ResumeError::Imported { directory, program });
        }
        if let Some(masked) = header.header().overrides.iter().find(|text| text.contains(redact::MASK)) {
            let key = masked.split('=').next().unwrap_or_default();
            return Err(ResumeError::SecretOverride(key.to_owned()));
        }
        Ok(Self { dir, header })
    }

    /// The job when it was started. Its tasks are only the container tasks.
    pub fn header(&self) -> &Header {
        self.header.header()
    }

    /// The directory of its results.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// The copy of the configuration in the job's directory.
    pub fn config_copy(&self) -> PathBuf {
        self.dir.config()
    }

    /// The configuration of the job from its journal, or from config.json for jobs of older versions.
    pub fn config(&self) -> Result<Value, JobError> {
        if let Some(config) = &self.header().config {
            return Ok(config.clone());
        }
        let path = self.dir.config();
        let read = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
        read.map_err(|source| JobError::Config { path, source })
    }

    /// The known data of the job's datasets. Registries are read only if the job may grow.
    pub fn resolved(&self, grows: bool) -> Resolved {
        Resolved::of(self.header(), grows)
    }

    /// Rejects a configuration that would change results, and lists the differences.
    pub fn check_config(&self, loaded: &LoadedJob) -> Result<(), ResumeError> {
        if loaded.hash == self.header().config_hash {
            return self.check_expanded(loaded);
        }
        let (before, after) = (hashed(&self.config().unwrap_or_default()), hashed(&loaded.record));
        let differences = difference::differences(&before, &after);
        let differences: Vec<_> = other_than_provider(differences, &self.header().provider).collect();
        if differences.is_empty() {
            return Ok(());
        }
        if changes(&before, &after, &self.header().provider).is_empty() {
            let (directory, file) = (self.dir.path().to_owned(), loaded.path.clone());
            return Err(ResumeError::Grown { directory, file, differences });
        }
        Err(ResumeError::ConfigChanged(differences))
    }

    /// Rejects a variable with another value, if results depend on its value.
    fn check_expanded(&self, loaded: &LoadedJob) -> Result<(), ResumeError> {
        let before = self.config().unwrap_or_default();
        match (before.get(EXPANDED), loaded.record.get(EXPANDED)) {
            (Some(before), Some(after)) if before != after => {
                Err(ResumeError::ConfigChanged(difference::differences(before, after)))
            }
            _ => Ok(()),
        }
    }

    /// Rejects a configuration that changes finished parts. It may have more agents, datasets and attempts.
    pub fn check_growth(&self, loaded: &LoadedJob) -> Result<(), ResumeError> {
        let (before, after) = (hashed(&self.config()?), hashed(&loaded.record));
        match changes(&before, &after, &self.header().provider) {
            differences if differences.is_empty() => Ok(()),
            differences => Err(ResumeError::ConfigChanged(differences)),
        }
    }

    /// The trials of a plan whose agent or task the job does not have. Blocks while it reads the tasks of the job.
    pub fn added(&self, plan: &Plan) -> Result<AddedTrials, ResumeError> {
        AddedTrials::new(&self.header, plan).map_err(ResumeError::Journal)
    }

    /// Opens the job again, with a plan from the same configuration. The plan may have more attempts, which are added
    /// to the job.
    pub fn resume(
        self,
        plan: Plan,
        provider: Arc<dyn Provider>,
        rerun: &[Rerun],
    ) -> BoxFuture<'_, Result<Job, ResumeError>> {
        Box::pin(async move { self.open_with(plan, provider, rerun, Growth::Refused).await })
    }

    /// Opens the job again, with a plan that may have more agents, tasks and attempts, which are added to the job.
    pub fn grow(
        self,
        plan: Plan,
        provider: Arc<dyn Provider>,
        rerun: &[Rerun],
    ) -> BoxFuture<'_, Result<Job, ResumeError>> {
        Box::pin(async move { self.open_with(plan, provider, rerun, Growth::Allowed).await })
    }

    async fn open_with(
        self,
        plan: Plan,
        provider: Arc<dyn Provider>,
        rerun: &[Rerun],
        growth: Growth,
    ) -> Result<Job, ResumeError> {
        let (recorded, given) = (&self.header().provider, provider.name());
        // Container tasks can be added to a job without containers.
        if recorded != given && recorded != NoProvider.name() {
            return Err(ResumeError::OtherProvider { recorded: recorded.clone(), given: given.to_owned() });
        }
        self.reopen(plan, provider, rerun.to_vec(), growth, false).await
    }

    /// Opens the job again, after everything except its tasks was checked. `keep_rows` keeps rows in memory for the
    /// caller.
    pub(super) async fn reopen(
        self,
        plan: Plan,
        provider: Arc<dyn Provider>,
        rerun: Vec<Rerun>,
        growth: Growth,
        keep_outputs: bool,
    ) -> Result<Job, ResumeError> {
        let Self { dir, header: before } = self;
        let known = tokio::task::spawn_blocking(move || Before::new(before, plan, growth));
        let (before, plan) = known.await.map_err(JobError::panicked)??;
        let plan = Arc::new(plan);
        let journaled = Journaled::read(Arc::clone(&plan)).await.map_err(JobError::Tasks)?;
        let opened = tokio::task::spawn_blocking(move || {
            let changed = before.changed(&plan, &journaled)?;
            if !changed.is_empty() {
                return Err(ResumeError::TasksChanged(changed));
            }
            let now = match &before {
                Before::Same(_) => None,
                Before::Other(before) => grown(&plan, before, provider.name(), &journaled)?,
            };
            if let (Before::Other(before), Some(now)) = (&before, &now) {
                moved_rows::link(&dir, before, now)?;
            }
            let mut rows = Rows::new(plan.len());
            let places = OnceCell::new();
            let mut sections = Sections::new(&plan, Some(dir.path()));
            let mut saved = SavedRows::read(&plan, sections.files(), keep_outputs, |index, result| {
                rows.set(index, result);
                sections.set(&plan, index, result);
            })?;
            let mut history = History::default();
            let mut run = None;
            let mut missing = HashMap::new();
            let mut parts = HashMap::new();
            let task_hashes = journaled.hashes(&plan);
            let mut origin = Origin { run: None, task_hashes: task_hashes.clone() };
            let mut journal = Journal::open(&dir.journal(), |entry| {
                history.add(&entry, &mut run);
                let (index, result) = match entry {
                    JournalEntry::Trial { index, result } => (index, result),
                    JournalEntry::RunStarted { provenance, .. } => {
                        origin.run = provenance;
                        return;
                    }
                    JournalEntry::Job(_) | JournalEntry::RunEnded { .. } => return,
                };
                let index = match is_of(&plan, index, &result) {
                    true => index,
                    // The job has grown since then.
                    false => match places.get_or_init(|| Places::new(&plan)).of(&plan, &result) {
                        Some(index) => index,
                        None => return,
                    },
                };
                if sections.of(index).is_some() {
                    let reward = rows.get(&plan, index).and_then(|row| row.reward);
                    if saved.compare(index, &result, reward) {
                        rows.set(index, &result);
                        let journaled = JournaledParts { tries: result.tries, notes: result.notes.clone() };
                        if journaled != JournaledParts::default() {
                            parts.insert(index, journaled);
                        }
                    }
                } else if rows.set(index, &result)
                    && plan.parts(index).1.container().is_some()
                    && !is_written(&dir.trial(&plan.trial(index)))
                {
                    // A later entry replaces an earlier one here too.
                    missing.insert(index, (result, origin.clone()));
                }
            })
            .map_err(ResumeError::Journal)?;
            let has_lost = !missing.is_empty();
            for (index, (result, origin)) in missing {
                restore_trial(&dir, &plan, index, &result, &origin)?;
            }
            let config = now.as_ref().unwrap_or(before.header()).config.clone();
            let name = before.header().job_name.clone();
            drop(before);
            let has_grown = now.is_some();
            if let Some(now) = now {
                journal.push(&JournalEntry::Job(Box::new(now)));
                // First of all: from here on the job is the larger one, even after a crash.
                journal.sync().map_err(JobError::from)?;
            }
            write_derived(&dir, &plan, config.as_ref(), &journaled)?;
            moved_rows::remove_from_root(&dir, &plan)?;
            sections.prepare_directories()?;
            let mut is_whole = !has_grown && !has_lost && !sections.have_old_rows();
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
                rows.get(&plan, *index).is_none_or(again)
            };
            let todo: Vec<_> = plan.indexes().filter(wanted).collect();
            let settled_at = match is_whole && todo.is_empty() {
                true => history.settled_at(&dir, plan.len()),
                false => None,
            };
            let earlier_rows = Arc::new(EarlierRows::find(&plan, &sections, &todo, &parts)?);
            Ok::<_, ResumeError>(Job {
                plan,
                provider,
                name: name.into(),
                store: Some(Store { dir, journal, task_hashes }),
                scratch: None,
                share: None,
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
        opened.await.map_err(JobError::panicked)?
    }
}

/// Whether a trial's result is on disk. After a crash of the machine, its file may be empty.
fn is_written(trial: &TrialDir) -> bool {
    fs::metadata(trial.result()).is_ok_and(|file| file.len() > 0)
}

/// The new header for the journal of a job that has grown; none if it has not.
fn grown(
    plan: &Plan,
    before: &Header,
    provider: &str,
    journaled: &Journaled,
) -> Result<Option<Header>, JobError> {
    let tasks = plan.tasks().iter().map(|task| (task.dataset().as_str(), task.name(), task.attempts));
    let known =
        before.tasks.iter().map(|task| (task.dataset.as_str(), task.name.as_str(), before.attempts_of(task)));
    if plan.agents().map(AgentName::as_str).eq(before.agents.iter().map(String::as_str)) && tasks.eq(known) {
        return Ok(None);
    }
    let tasks: Vec<PlannedTask> =
        journaled.tasks(plan).collect::<io::Result<_>>().map_err(JobError::Tasks)?;
    let mut now = header(plan, &before.job_name, before.directory.clone(), provider.to_owned(), tasks);
    let pins = std::mem::take(&mut now.pins);
    now.pins = before.pins.clone().into_iter().chain(pins).collect();
    if now.selection.is_none() && now.tasks.len() == before.tasks.len() {
        now.selection.clone_from(&before.selection);
        now.dataset_sizes.clone_from(&before.dataset_sizes);
    }
    Ok(Some(now))
}

/// Writes files derived from the header, if a crash or an older version left them out.
fn write_derived(
    dir: &JobDir,
    plan: &Plan,
    config: Option<&Value>,
    journaled: &Journaled,
) -> Result<(), JobError> {
    if let Some(config) = config {
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

impl Job {
    /// How many of the trials that will not run now would run with this choice.
    pub fn would_rerun(&self, rerun: Rerun) -> usize {
        let again = |index: &TrialIndex| {
            let is_rollout = self.sections.of(*index).is_some();
            self.rows
                .get(&self.plan, *index)
                .is_some_and(|row| rerun.wants(row, is_rollout, self.plan.kind()))
        };
        self.plan.indexes().filter(|index| self.todo.binary_search(index).is_err()).filter(again).count()
    }
}

fn lines<T: ToString>(items: &[T]) -> String {
    const SHOWN: usize = 20;
    let mut lines: Vec<_> = items.iter().take(SHOWN).map(|item| format!("  {}", item.to_string())).collect();
    if items.len() > SHOWN {
        lines.push(format!("  and {} more", items.len() - SHOWN));
    }
    lines.join("\n")
}
