//! Which trials a job has, in which order.

use std::{collections::HashSet, io, sync::Arc};

use globset::GlobMatcher;

use crate::{
    config::{AgentConfig, Env, JobConfig, LoadedJob, env_value},
    event::{TrialId, TrialIndex},
    name::{AgentName, DatasetName, TaskName},
    record::{journal::PlannedTask, redact::Redactor},
    task::{Dataset, Pins, Task, TaskProblem},
    text::listed,
};

/// The part of a job that is asked for. An empty list selects everything.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Agents by name.
    pub agents: Vec<GlobMatcher>,
    /// Datasets by name.
    pub datasets: Vec<GlobMatcher>,
    /// Tasks by name.
    pub tasks: Vec<GlobMatcher>,
    /// At most this many tasks of each dataset.
    pub limit: Option<usize>,
}

/// Why there is nothing to run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No agent, dataset or task matches.
    #[error("the selection leaves no task; there are: {available}")]
    Empty {
        /// What could have been selected.
        available: String,
    },
    /// One of several patterns selects nothing: most likely a slip.
    #[error("no {what} matches {pattern:?}; there are: {available}")]
    NoMatch {
        /// What it was to select.
        what: &'static str,
        /// The pattern.
        pattern: String,
        /// What could have been selected.
        available: String,
    },
    /// Two tasks of a dataset share a name, and so would share a directory.
    #[error("dataset {dataset} has two tasks named {task}; rename one of them in the registry")]
    DuplicateTask {
        /// The dataset.
        dataset: DatasetName,
        /// The name.
        task: TaskName,
    },
}

/// The trials of a job. A trial is its place in the enumeration: agents, then datasets and their
/// tasks, then attempts.
#[derive(Debug)]
pub struct Plan {
    loaded: LoadedJob,
    overrides: Vec<String>,
    config: Arc<JobConfig>,
    pub(super) agents: Vec<Arc<AgentConfig>>,
    pub(super) tasks: Vec<PlanTask>,
    pins: Pins,
    redactor: Arc<Redactor>,
}

/// A task of a plan.
#[derive(Debug)]
pub struct PlanTask {
    /// Its dataset.
    pub dataset: DatasetName,
    /// Its name.
    pub name: TaskName,
    /// The task, or why it cannot be run.
    pub task: Result<Arc<Task>, TaskProblem>,
    /// Variables for its tests.
    pub(super) verifier_env: Arc<Env>,
}

impl PlanTask {
    /// The task as the journal holds it.
    pub(super) fn journaled(&self) -> io::Result<PlannedTask> {
        let task = self.task.as_ref().ok();
        Ok(PlannedTask {
            dataset: self.dataset.to_string(),
            name: self.name.to_string(),
            content_hash: task.map(|task| task.content_hash()).transpose()?,
            git_commit_id: task.and_then(|task| task.git_commit_id.clone()),
        })
    }
}

impl Plan {
    /// Enumerates the trials of a job. `overrides` are the settings that were given beside the job
    /// file, and `vars` resolves `${VAR}` in the tasks' `[verifier.env]`.
    pub fn new(
        loaded: LoadedJob,
        overrides: Vec<String>,
        datasets: Vec<Dataset>,
        selection: &Selection,
        vars: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, PlanError> {
        let config = Arc::new(loaded.config.clone());
        let agents: Vec<_> = config
            .agents
            .iter()
            .filter(|agent| selects(&selection.agents, agent.name.as_str()))
            .map(|agent| Arc::new(agent.clone()))
            .collect();
        check("agent", &selection.agents, config.agents.iter().map(|agent| agent.name.as_str()))?;
        check("dataset", &selection.datasets, datasets.iter().map(|dataset| dataset.name.as_str()))?;
        let chosen: Vec<_> = datasets
            .into_iter()
            .filter(|dataset| selects(&selection.datasets, dataset.name.as_str()))
            .collect();
        let names = || chosen.iter().flat_map(|dataset| &dataset.tasks).map(|entry| entry.name.as_str());
        check("task", &selection.tasks, names())?;
        let available = listed(names());
        let mut tasks = Vec::new();
        let mut pins = Pins::new();
        for dataset in chosen {
            pins.extend(dataset.resolved);
            let mut seen = HashSet::new();
            let wanted =
                dataset.tasks.into_iter().filter(|entry| selects(&selection.tasks, entry.name.as_str()));
            for entry in wanted.take(selection.limit.unwrap_or(usize::MAX)) {
                if !seen.insert(entry.name.clone()) {
                    return Err(PlanError::DuplicateTask { dataset: dataset.name, task: entry.name });
                }
                let mut task = entry.task;
                let verifier_env = match task.as_ref().map(|task| verifier_env(&config, task, vars)) {
                    Ok(Ok(env)) => Arc::new(env),
                    Ok(Err(problem)) => {
                        task = Err(problem);
                        Arc::default()
                    }
                    Err(_) => Arc::default(),
                };
                tasks.push(PlanTask { dataset: dataset.name.clone(), name: entry.name, task, verifier_env });
            }
        }
        if tasks.is_empty() {
            return Err(PlanError::Empty { available });
        }
        let redactor = Arc::new(redactor(&loaded, &tasks));
        Ok(Self { loaded, overrides, config, agents, tasks, pins, redactor })
    }

    /// How many trials there are.
    pub fn len(&self) -> u64 {
        self.agents.len() as u64 * self.tasks.len() as u64 * u64::from(self.attempts())
    }

    /// Whether there are none, which a plan that could be made never has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every trial's place.
    pub fn indexes(&self) -> impl Iterator<Item = TrialIndex> + use<> {
        (0..self.len()).map(TrialIndex)
    }

    /// Which trial is at a place.
    pub fn trial(&self, index: TrialIndex) -> TrialId {
        let (agent, task, attempt) = self.parts(index);
        TrialId { agent: agent.name.clone(), dataset: task.dataset.clone(), task: task.name.clone(), attempt }
    }

    /// The parts of the trial at a place.
    pub(super) fn parts(&self, index: TrialIndex) -> (&Arc<AgentConfig>, &PlanTask, u32) {
        let attempts = u64::from(self.attempts());
        let tasks = self.tasks.len() as u64;
        let attempt = (index.0 % attempts) as u32 + 1;
        let task = &self.tasks[(index.0 / attempts % tasks) as usize];
        let agent = &self.agents[(index.0 / attempts / tasks) as usize];
        (agent, task, attempt)
    }

    /// The whole job's configuration.
    pub fn config(&self) -> &Arc<JobConfig> {
        &self.config
    }

    /// The job file.
    pub fn loaded(&self) -> &LoadedJob {
        &self.loaded
    }

    /// The settings given beside the job file.
    pub fn overrides(&self) -> &[String] {
        &self.overrides
    }

    /// The agents of the plan, in order.
    pub fn agents(&self) -> impl Iterator<Item = &AgentName> {
        self.agents.iter().map(|agent| &agent.name)
    }

    /// The tasks of the plan, in order.
    pub fn tasks(&self) -> &[PlanTask] {
        &self.tasks
    }

    /// The commits that were resolved when the datasets were loaded.
    pub(super) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Attempts for each pair of agent and task.
    pub fn attempts(&self) -> u32 {
        self.config.n_attempts.get()
    }

    /// What must not be written anywhere.
    pub fn redactor(&self) -> &Arc<Redactor> {
        &self.redactor
    }
}

/// The task's variables, with the job's on top.
fn verifier_env(
    config: &JobConfig,
    task: &Task,
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<Env, TaskProblem> {
    let mut env = Env::new();
    // What the job sets anyway, or nobody will read, needs no value here.
    let wanted = task.config.verifier_env.iter().filter(|(key, _)| !config.verifier.env.contains_key(key));
    for (key, written) in wanted.filter(|_| !config.verifier.disable) {
        let value = env_value(key, written, vars).map_err(|error| {
            TaskProblem::Invalid(format!(
                "{}: [verifier.env] {key}: {error}",
                task.dir.join("task.toml").display()
            ))
        })?;
        env.insert(key.clone(), value);
    }
    env.extend(config.verifier.env.iter().map(|(key, value)| (key.clone(), value.clone())));
    Ok(env)
}

fn redactor(loaded: &LoadedJob, tasks: &[PlanTask]) -> Redactor {
    let of_tasks = tasks.iter().flat_map(|task| task.verifier_env.values()).filter(|value| value.secret);
    Redactor::new(loaded.secrets.iter().map(String::as_str).chain(of_tasks.map(|value| value.value.as_str())))
}

/// Refuses a pattern that selects nothing, even where another one does.
fn check<'a>(
    what: &'static str,
    globs: &[GlobMatcher],
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), PlanError> {
    match globs.iter().find(|glob| !names.clone().any(|name| glob.is_match(name))) {
        None => Ok(()),
        Some(glob) => {
            Err(PlanError::NoMatch { what, pattern: glob.glob().to_string(), available: listed(names) })
        }
    }
}

fn selects(globs: &[GlobMatcher], name: &str) -> bool {
    globs.is_empty() || globs.iter().any(|glob| glob.is_match(name))
}
