//! What every phase of a trial may read, and none may change.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{install_cache::Installs, timeouts::Timeouts};
use crate::{
    config::{AgentConfig, Env, JobConfig},
    task::{Task, TaskProblem},
};
use rollout_core::{event::Phase, name::TrialId, redact::Redactor, result::TrialError, text::seconds};
use rollout_env::{EnvironmentSpec, Origin, PreparedImage, Provider};
use rollout_model::{Model, Share};
use rollout_record::layout::TrialDir;

/// Everything one trial needs. What it shares with other trials is all here.
pub struct Trial {
    /// Which trial.
    pub id: TrialId,
    /// Its job's name, for the agent.
    pub job_name: Arc<str>,
    /// The whole job's configuration.
    pub config: Arc<JobConfig>,
    /// Who attempts.
    pub agent: Arc<AgentConfig>,
    /// The model that the agent is, if it is one.
    pub model: Option<Arc<Model>>,
    /// What is attempted, or why it cannot be.
    pub task: Result<Arc<Task>, TaskProblem>,
    /// Variables for test.sh: the task's and the job's.
    pub verifier_env: Arc<Env>,
    /// Where the environment comes from.
    pub provider: Arc<dyn Provider>,
    /// Whose turn it is to install, among the trials of the job.
    pub installs: Arc<Installs>,
    /// Where the evidence goes.
    pub dir: TrialDir,
    /// What must not be written.
    pub redactor: Arc<Redactor>,
    /// Reports phases and retries.
    pub progress: Box<dyn Fn(Progress) + Send + Sync>,
    /// Cuts the trial off.
    pub cancel: CancellationToken,
    /// Where it takes a place first, if other jobs take some too.
    pub share: Option<Share>,
    /// Whether the end of the trial has the conversation of a model too.
    pub keeps_state: bool,
}

/// What the agent's processes must not reach: the tests, and what they write.
const PRIVATE_DIRS: &[&str] = &["/tests", "/logs/verifier"];

/// What a trial reports while it runs.
#[derive(Debug, Clone)]
pub enum Progress {
    /// It entered a phase.
    Phase(Phase),
    /// The infrastructure failed a try; the next one follows after the delay.
    Retry {
        /// The try that failed, from 1.
        failed_try: u32,
        /// What went wrong.
        error: TrialError,
        /// The wait before the next try.
        delay: Duration,
    },
}

/// A trial whose task can be attempted: what each of its tries, and each phase of a try, reads.
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

    /// What an environment of this trial is called.
    pub(super) fn environment_name(&self) -> String {
        format!("{}-{}-{}", self.task.name, self.trial.id.agent, self.trial.id.attempt)
    }

    /// An environment for the agent, made from `image`; `id` is the trial's, as text. Its name is to be given.
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

/// Variables as a provider takes them.
pub(super) fn variables(env: &Env) -> Vec<(String, String)> {
    env.iter().map(|(key, value)| (key.clone(), value.value.clone())).collect()
}
