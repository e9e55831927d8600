//! Picking up a job where it stopped.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Difference, History, Job, JobError, Plan, difference, planned_tasks, recorder::restore_trial,
    summary::Rows,
};
use crate::{
    config::LoadedJob,
    environment::Provider,
    record::{
        journal::{self, Entry, Header, Journal, JournalError},
        layout::{JobDir, TrialDir},
        redact,
    },
    result::TrialSummary,
};

/// Which finished trials a resume does again. Missing ones are always done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rerun {
    /// None but those that have no result.
    Missing,
    /// Those with an error and no reward.
    Error,
    /// Those without a reward of 1.
    Unsolved,
}

impl Rerun {
    fn wants(self, row: TrialSummary) -> bool {
        match self {
            Self::Missing => false,
            Self::Error => row.error.is_some() && row.reward.is_none(),
            Self::Unsolved => row.reward.is_none_or(|reward| reward < 1.0),
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
    ConfigChanged(Vec<Difference>),
    /// The tasks are not those the job was started with.
    #[error("the tasks have changed since the job was started:\n{}", lines(.0))]
    TasksChanged(Vec<String>),
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
        let Self { dir, header } = self;
        if header.provider != provider.name() {
            return Err(ResumeError::ConfigChanged(vec![Difference {
                key: "environment.type".to_owned(),
                before: Some(header.provider),
                after: Some(provider.name().to_owned()),
            }]));
        }
        let plan = Arc::new(restrict(plan, &header).map_err(ResumeError::TasksChanged)?);
        let tasks = planned_tasks(Arc::clone(&plan)).await.map_err(JobError::Tasks)?;
        let changed: Vec<_> = header
            .tasks
            .iter()
            .zip(&tasks)
            // A task that could not be loaded before has no results that a repair could spoil.
            .filter(|(before, now)| before.content_hash.is_some() && before.content_hash != now.content_hash)
            .map(|(before, _)| {
                format!("the files of task {}/{} are not what they were", before.dataset, before.name)
            })
            .collect();
        if !changed.is_empty() {
            return Err(ResumeError::TasksChanged(changed));
        }
        let rerun = rerun.to_vec();
        let opened = tokio::task::spawn_blocking(move || {
            let mut rows = Rows::new(plan.len());
            let mut history = History::default();
            let mut run = None;
            let mut missing = HashMap::new();
            let (journal, _) = Journal::open(&dir.journal(), |entry| {
                history.hear(&entry, &mut run);
                if let Entry::Trial { index, result } = entry
                    && rows.set(index, &result)
                    && !is_written(&dir.trial(&plan.trial(index)))
                {
                    // A later entry takes the place of an earlier one here, too.
                    missing.insert(index, result);
                }
            })
            .map_err(ResumeError::Journal)?;
            for (index, result) in missing {
                restore_trial(&dir.trial(&plan.trial(index)), &result)?;
            }
            let todo = plan
                .indexes()
                .filter(|index| rows.get(*index).is_none_or(|row| rerun.iter().any(|rerun| rerun.wants(row))))
                .collect();
            let name = header.job_name.into();
            let warnings = Vec::new();
            Ok::<_, ResumeError>(Job { plan, provider, name, dir, journal, rows, todo, history, warnings })
        });
        opened.await.map_err(|error| JobError::Tasks(std::io::Error::other(error)))?
    }
}

/// Whether a trial's result is there. A crash of the machine can leave its file empty.
fn is_written(trial: &TrialDir) -> bool {
    fs::metadata(trial.result()).is_ok_and(|file| file.len() > 0)
}

/// Brings a plan down to the agents and tasks that the job was started with, in their order.
fn restrict(mut plan: Plan, header: &Header) -> Result<Plan, Vec<String>> {
    let mut missing = Vec::new();
    let mut agents: HashMap<String, _> =
        plan.agents.drain(..).map(|agent| (agent.name.to_string(), agent)).collect();
    for name in &header.agents {
        match agents.remove(name) {
            Some(agent) => plan.agents.push(agent),
            None => missing.push(format!("agent {name} is gone")),
        }
    }
    let mut tasks: HashMap<_, _> =
        plan.tasks.drain(..).map(|task| ((task.dataset.to_string(), task.name.to_string()), task)).collect();
    for task in &header.tasks {
        match tasks.remove(&(task.dataset.clone(), task.name.clone())) {
            Some(found) => plan.tasks.push(found),
            None => missing.push(format!("task {}/{} is gone", task.dataset, task.name)),
        }
    }
    if missing.is_empty() { Ok(plan) } else { Err(missing) }
}

fn lines<T: ToString>(items: &[T]) -> String {
    const SHOWN: usize = 20;
    let mut lines: Vec<_> = items.iter().take(SHOWN).map(|item| format!("  {}", item.to_string())).collect();
    if items.len() > SHOWN {
        lines.push(format!("  and {} more", items.len() - SHOWN));
    }
    lines.join("\n")
}
