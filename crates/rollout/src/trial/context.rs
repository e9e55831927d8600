//! The data that every phase of a trial may read and none may change.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{install_cache::Installs, timeouts::Timeouts};
use crate::{
    config::{AgentConfig, Env, JobConfig},
    packages::Packages,
    task::{Task, TaskProblem},
};
use rollout_core::{event::Phase, name::TrialId, redact::Redactor, result::TrialError, text::seconds};
use rollout_env::{EnvironmentSpec, Origin, PreparedImage, Provider};
use rollout_gateway::Gateway;
use rollout_model::{Model, Share};
use rollout_record::layout::TrialDir;

/// Everything that one trial needs, including what it shares with other trials.
pub struct Trial {
    /// The trial.
    pub id: TrialId,
    /// Its job's name, for the agent.
    pub job_name: Arc<str>,
    /// The whole job's configuration.
    pub config: Arc<JobConfig>,
    /// The agent.
    pub agent: Arc<AgentConfig>,
    /// The model, if the agent is one.
    pub model: Option<Arc<Model>>,
    /// The task, or why it cannot be run.
    pub task: Result<Arc<Task>, TaskProblem>,
    /// Variables for test.sh: the task's and the job's.
    pub verifier_env: Arc<Env>,
    /// The provider of the environment.
    pub provider: Arc<dyn Provider>,
    /// Coordinates installs among the trials of the job.
    pub installs: Arc<Installs>,
    /// The packages of agents with presets, if the job has some.
    pub packages: Option<Arc<Packages>>,
    /// The gateway to the models of agents with presets, if the job has some.
    pub gateway: Option<Arc<Gateway>>,
    /// The directory of its files.
    pub dir: TrialDir,
    /// Masks secrets.
    pub redactor: Arc<Redactor>,
    /// Reports phases and retries.
    pub progress: Box<dyn Fn(Progress) + Send + Sync>,
    /// Cancels the trial.
    pub cancel: CancellationToken,
    /// The trial waits for a permit of this share, if other jobs share a limit with it.
    pub share: Option<Share>,
    /// Whether the end of the trial includes the conversation of a model.
    pub keeps_state: bool,
}

/// Directories that the agent's processes must not access: the tests, and their output.
const PRIVATE_DIRS: &[&str] = &["/tests", "/logs/verifier"];

/// What a trial reports while it runs.
#[derive(Debug, Clone)]
pub enum Progress {
    /// It entered a phase.
    Phase(Phase),
    /// A try failed because of the infrastructure; the next one follows after the delay.
    Retry {
        /// The try that failed, from 1.
        failed_try: u32,
        /// The error.
        error: TrialError,
        /// The wait before the next try.
        delay: Duration,
    },
}

/// A trial whose task can be attempted: the data that its tries and their phases read.
#[derive(Clone, Copy)]
pub(super) struct TrialContext<'a> {
    pub(super) trial: &'a Trial,
    pub(super) task: &'a Task,
    pub(super) timeouts: Timeouts,
}

impl<'a> TrialContext<'a> {
    pub(super) fn new(trial: &'a Trial, task: &'a Task) -> Self {
        Self { trial, task, timeouts: Timeouts::new(&trial.config, &task.config) }
    }

    /// Reports that a phase starts.
    pub(super) fn enter(&self, phase: Phase) {
        (self.trial.progress)(Progress::Phase(phase));
    }

    /// The name of an environment of this trial.
    pub(super) fn environment_name(&self) -> String {
        format!("{}-{}-{}", self.task.name, self.trial.id.agent, self.trial.id.attempt)
    }

    /// An environment for the agent, created from `image`; `id` is the id of the trial as text. The name must be
    /// passed.
    pub(super) fn environment_spec<'s>(
        &'s self,
        id: &'s str,
        image: &'s PreparedImage,
    ) -> EnvironmentSpec<'s> {
        let (config, task) = (&self.trial.config.environment, &self.task.config);
        EnvironmentSpec {
            origin: Origin { job: &self.trial.job_name, trial: id },
            image,
            name: "",
            cpus: config.override_cpus.unwrap_or(task.cpus),
            memory: config.override_memory.unwrap_or(task.memory),
            storage: config.override_storage.unwrap_or(task.storage),
            hosts: &[],
            private_dirs: PRIVATE_DIRS,
        }
    }

    /// Variables that exist only while the agent's scripts run.
    pub(super) fn agent_variables(&self) -> Vec<(String, String)> {
        let trial = self.trial;
        let mut variables = variables(&trial.agent.env);
        for (key, value) in [
            ("ROLLOUT_TASK_INSTRUCTION", trial.config.instruction_path.clone()),
            ("ROLLOUT_AGENT_TIMEOUT_SEC", seconds(self.timeouts.execute).to_string()),
            ("ROLLOUT_JOB", trial.job_name.to_string()),
            ("ROLLOUT_TRIAL", trial.id.to_string()),
            ("ROLLOUT_ATTEMPT", trial.id.attempt.to_string()),
        ] {
            variables.push((key.to_owned(), value));
        }
        variables
    }
}

/// Variables in the form of providers.
pub(super) fn variables(env: &Env) -> Vec<(String, String)> {
    env.iter().map(|(key, value)| (key.clone(), value.value.clone())).collect()
}
