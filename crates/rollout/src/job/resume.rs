//! Picking up a job where it stopped.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    ConfigDifference, History, Job, JobError, Plan, PlanAgent, Store, difference, header,
    plan::PlanTask,
    planned_tasks,
    provenance::{Origin, TaskHashes},
    recorder::restore_trial,
    saved_rows::SavedRows,
    sections::Sections,
    summary::Rows,
};
use crate::config::LoadedJob;
use rollout_core::{event::JobKind, name::TrialIndex, redact, result::TrialSummary};
use rollout_env::Provider;
use rollout_record::{
    journal::{self, Header, Journal, JournalEntry, JournalError, PlannedTask},
    layout::{JobDir, TrialDir},
};

/// Which finished trials a resume does again. Missing ones are always done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rerun {
    /// None but those that have no result.
    Missing,
    /// Those with an error and no reward. A rollout is scored whatever happened, so of those: all with an error.
    Error,
    /// Those without a reward of 1. Of a benchmark: those that failed, or whose answer is not right.
    Unsolved,
}

impl Rerun {
    fn wants(self, row: TrialSummary, is_rollout: bool, kind: JobKind) -> bool {
        match self {
            Self::Missing => false,
            Self::Error => row.error.is_some() && (is_rollout || row.reward.is_none()),
            Self::Unsolved => match (row.reward, kind) {
                (Some(reward), _) => reward < 1.0,
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
            Self::Journal(_) => None,
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

    /// Refuses a configuration that would give other results, naming the differences.
    pub fn check_config(&self, loaded: &LoadedJob) -> Result<(), ResumeError> {
        if loaded.hash == self.header.config_hash {
            return Ok(());
        }
        let before = fs::read(self.dir.config()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let before = before.unwrap_or(serde_json::Value::Null);
        Err(ResumeError::ConfigChanged(difference::differences(&before, &loaded.record)))
    }

    /// Opens the job again, with a plan made from the same configuration.
    pub async fn resume(
        self,
        plan: Plan,
        provider: Arc<dyn Provider>,
        rerun: &[Rerun],
    ) -> Result<Job, ResumeError> {
        if self.header.provider != provider.name() {
            return Err(ResumeError::ConfigChanged(vec![ConfigDifference {
                key: "environment.type".to_owned(),
                before: Some(self.header.provider),
                after: Some(provider.name().to_owned()),
            }]));
        }
        self.reopen(plan, provider, rerun.to_vec(), Growth::Refused, false).await
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
        let (tasks, _) = planned_tasks(Arc::clone(&plan)).await.map_err(JobError::Tasks)?;
        let changed = changed(&plan, &before.tasks, &tasks);
        if !changed.is_empty() {
            return Err(ResumeError::TasksChanged(changed));
        }
        let opened = tokio::task::spawn_blocking(move || {
            let mut rows = Rows::new(plan.len());
            let mut sections = Sections::new(&plan, Some(dir.path()));
            let mut saved = SavedRows::read(&plan, &sections, keep_outputs)?;
            let mut history = History::default();
            let mut run = None;
            let mut missing = HashMap::new();
            let task_hashes = TaskHashes::new(&tasks);
            let mut origin = Origin { run: None, task_hashes: task_hashes.clone() };
            let (mut journal, _) = Journal::open(&dir.journal(), |entry| {
                history.hear(&entry, &mut run);
                let (index, result) = match entry {
                    JournalEntry::Trial { index, result } => (index, result),
                    JournalEntry::RunStarted { provenance, .. } => {
                        origin.run = provenance;
                        return;
                    }
                    JournalEntry::Job(_) | JournalEntry::RunEnded { .. } => return,
                };
                if index.0 >= plan.len() {
                    return;
                }
                if sections.of(index).is_some() {
                    saved.hear(index, result);
                } else if rows.set(index, &result)
                    && plan.parts(index).1.container().is_some()
                    && !is_written(&dir.trial(&plan.trial(index)))
                {
                    // A later entry takes the place of an earlier one here, too.
                    missing.insert(index, (result, origin.clone()));
                }
            })
            .map_err(ResumeError::Journal)?;
            for (index, (result, origin)) in missing {
                restore_trial(&dir, &plan, index, &result, &origin)?;
            }
            if tasks.len() > before.tasks.len() {
                let grown = header(&plan, &before.job_name, before.directory, before.provider, tasks);
                journal.push(&JournalEntry::Job(Box::new(grown)));
            }
            saved.remove_old(&sections)?;
            sections.prepare_directories()?;
            let (trials, outputs, warnings) = saved.into_parts();
            for (index, result, in_journal) in trials {
                rows.set(index, &result);
                sections.set(&plan, index, &result);
                if !in_journal {
                    journal.push(&JournalEntry::Trial { index, result });
                }
            }
            journal.sync().map_err(JobError::from)?;
            let wanted = |index: &TrialIndex| {
                let is_rollout = sections.of(*index).is_some();
                let again = |row| rerun.iter().any(|rerun| rerun.wants(row, is_rollout, plan.kind()));
                rows.get(*index).is_none_or(again)
            };
            let todo = plan.indexes().filter(wanted).collect();
            Ok::<_, ResumeError>(Job {
                plan,
                provider,
                name: before.job_name.into(),
                store: Some(Store { dir, journal, task_hashes }),
                sections,
                rows,
                todo,
                history,
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

/// Brings a plan down to the agents and tasks that the job was started with, in their order. New tasks come last, or
/// are left out.
fn restrict(mut plan: Plan, header: &Header, growth: Growth) -> Result<Plan, Vec<String>> {
    let mut missing = Vec::new();
    let mut by_name: HashMap<String, PlanAgent> =
        plan.agents.drain(..).map(|agent| (agent.name.to_string(), agent)).collect();
    let mut agents = Vec::new();
    for name in &header.agents {
        match by_name.remove(name) {
            Some(agent) => agents.push(agent),
            None => missing.push(format!("agent {name} is gone")),
        }
    }
    let mut by_name: HashMap<_, (usize, PlanTask)> = plan
        .tasks
        .drain(..)
        .enumerate()
        .map(|(place, task)| ((task.dataset.to_string(), task.name.to_string()), (place, task)))
        .collect();
    let mut tasks = Vec::new();
    for task in &header.tasks {
        match by_name.remove(&(task.dataset.clone(), task.name.clone())) {
            Some((_, found)) => tasks.push(found),
            None => missing.push(format!("task {}/{} is gone", task.dataset, task.name)),
        }
    }
    if growth == Growth::Allowed {
        let mut new: Vec<_> = by_name.into_values().collect();
        new.sort_by_key(|(place, _)| *place);
        tasks.extend(new.into_iter().map(|(_, task)| task));
    }
    if !missing.is_empty() {
        return Err(missing);
    }
    plan.rearrange(agents, tasks);
    Ok(plan)
}

/// The tasks whose files or inputs are not what they were.
fn changed(plan: &Plan, before: &[PlannedTask], now: &[PlannedTask]) -> Vec<String> {
    let pairs = before.iter().zip(now).zip(plan.tasks());
    // A task that could not be loaded before has no results that a repair could spoil.
    let changed = pairs.filter(|((before, now), _)| {
        before.content_hash.is_some() && before.content_hash != now.content_hash
    });
    let message = |((before, _), task): ((&PlannedTask, _), &PlanTask)| match task.example_id() {
        Some(_) => format!("example {} of {} is not what it was", before.name, before.dataset),
        None => format!("the files of task {}/{} are not what they were", before.dataset, before.name),
    };
    changed.map(message).collect()
}

fn lines<T: ToString>(items: &[T]) -> String {
    const SHOWN: usize = 20;
    let mut lines: Vec<_> = items.iter().take(SHOWN).map(|item| format!("  {}", item.to_string())).collect();
    if items.len() > SHOWN {
        lines.push(format!("  and {} more", items.len() - SHOWN));
    }
    lines.join("\n")
}
