//! The data that every phase of a trial may read and none may change.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    earlier::Regrade,
    install_cache::Installs,
    network::{self, Egress},
    rented::{RentedEnvironment, TrialCosts},
    step::Step,
    timeouts::Timeouts,
};
use crate::{
    config::{AgentConfig, Env, EnvValue, JobConfig, ResourceBounds, TaskBounds},
    packages::Packages,
    task::{Task, TaskProblem},
};
use rollout_core::{
    event::{ModelProgress, Phase},
    name::TrialId,
    redact::Redactor,
    result::TrialError,
    text::seconds,
};
use rollout_env::{
    Demand, EnvironmentError, EnvironmentSpec, Origin, PreparedImage, Provider, StartReport,
    compose::ComposeFile,
};
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
    /// The variables of the task.
    pub env: Arc<TaskEnv>,
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
    /// What it costs.
    pub costs: TrialCosts,
    /// Cancels the trial.
    pub cancel: CancellationToken,
    /// The trial waits for a permit of this share, if other jobs share a limit with it.
    pub share: Option<Share>,
    /// Whether the end of the trial includes the conversation of a model.
    pub keeps_state: bool,
    /// The finished trial whose tests run again, instead of the agent.
    pub regrade: Option<Regrade>,
}

impl StartReport for Trial {
    fn waits_for(&self, what: &str) {
        (self.progress)(Progress::Waiting(what.to_owned()));
    }

    fn failed_start_cost(&self, dollars: f64) {
        self.costs.add_environment(dollars);
    }
}

/// The variables of a task, expanded.
#[derive(Debug, Clone, Default)]
pub struct TaskEnv {
    /// For all commands in its environments.
    pub environment: Env,
    /// For the solution.
    pub solution: Env,
    /// Why those of the solution cannot be expanded.
    pub solution_problem: Option<String>,
    /// For test.sh: the task's and the job's.
    pub verifier: Env,
    /// For test.sh in a separate environment that has its own.
    pub tests: Env,
    /// For test.sh of each step.
    pub steps: Vec<StepEnv>,
    /// environment/docker-compose.yaml, with its variables expanded.
    pub compose: Option<Arc<ComposeFile>>,
    /// tests/docker-compose.yaml, with its variables expanded.
    pub tests_compose: Option<Arc<ComposeFile>>,
}

/// The variables for test.sh of a step, expanded.
#[derive(Debug, Clone, Default)]
pub struct StepEnv {
    /// The task's, the step's and the job's.
    pub verifier: Env,
    /// Those of the step's own separate environment.
    pub tests: Env,
}

impl TaskEnv {
    /// Values of compose files that must not appear in any output.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &String> {
        self.compose.iter().chain(&self.tests_compose).flat_map(|compose| &compose.secrets)
    }

    /// All values.
    pub(crate) fn values(&self) -> impl Iterator<Item = &EnvValue> {
        let all = [&self.environment, &self.solution, &self.verifier, &self.tests];
        let steps = self.steps.iter().flat_map(|step| [&step.verifier, &step.tests]);
        all.into_iter().chain(steps).flat_map(|env| env.values())
    }
}

/// Directories that the agent's processes must not access: the tests, and their output.
const PRIVATE_DIRS: &[&str] = &["/tests", "/logs/verifier"];

/// What a trial reports while it runs.
#[derive(Debug, Clone)]
pub enum Progress {
    /// It entered a phase.
    Phase(Phase),
    /// What its environment waits for before it can start.
    Waiting(String),
    /// What its agent used of a model so far in this try, or in this step of it.
    Model(ModelProgress),
    /// A step ended. What the agent uses from now on is added.
    StepEnded,
    /// What its environments that have ended cost together, in US dollars.
    EnvironmentCost(f64),
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
    /// The current step. A task without steps is one step.
    pub(super) step: &'a Step,
    /// Settings of the task that are ignored because the job allows it.
    pub(super) unsupported: &'a [String],
    /// The way out of environments with an allow-list.
    pub(super) egress: Option<&'a Egress>,
}

impl<'a> TrialContext<'a> {
    pub(super) fn new(
        trial: &'a Trial,
        task: &'a Task,
        first: &'a Step,
        unsupported: &'a [String],
        egress: Option<&'a Egress>,
    ) -> Self {
        Self { trial, task, timeouts: first.timeouts, step: first, unsupported, egress }
    }

    /// The context of a step.
    pub(super) fn at(self, step: &'a Step) -> Self {
        Self { timeouts: step.timeouts, step, ..self }
    }

    /// Starts an environment, whose cost is counted.
    pub(super) async fn rent(
        &self,
        spec: EnvironmentSpec<'_>,
    ) -> Result<RentedEnvironment, EnvironmentError> {
        RentedEnvironment::create(&*self.trial.provider, spec, &self.trial.costs).await
    }

    /// Starts an environment with the files of a preserved one, whose cost is counted.
    pub(super) async fn rent_from(
        &self,
        place: &str,
        spec: EnvironmentSpec<'_>,
    ) -> Result<RentedEnvironment, EnvironmentError> {
        RentedEnvironment::create_from(&*self.trial.provider, place, spec, &self.trial.costs).await
    }

    /// Reports that a phase starts.
    pub(super) fn enter(&self, phase: Phase) {
        (self.trial.progress)(Progress::Phase(phase));
    }

    /// Names of an environment for itself. In Harbor, the only container is the service `main`.
    pub(super) fn own_hosts(&self) -> Vec<(String, String)> {
        let main = ("main".to_owned(), "127.0.0.1".to_owned());
        self.task.is_harbor.then_some(main).into_iter().collect()
    }

    /// The compose file of the agent's environment, if the provider runs its services.
    pub(super) fn compose(&self) -> Option<&'a Arc<ComposeFile>> {
        let compose = self.trial.env.compose.as_ref()?;
        self.trial.provider.refusal(Demand::Compose).is_none().then_some(compose)
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
        let TaskBounds { cpus, memory, storage, .. } = self.task.bounds();
        let bounds = self.overridden(ResourceBounds { cpus, memory, storage });
        let task = &self.task.config;
        let origin = Origin { job: &self.trial.job_name, trial: id };
        EnvironmentSpec {
            cpus: bounds.cpus,
            memory: bounds.memory,
            storage: bounds.storage,
            // A provider without GPUs was refused, unless the job runs the task without.
            gpus: if self.trial.provider.refusal(Demand::Gpus).is_some() { 0 } else { task.gpus },
            workdir: task
                .workdir
                .as_deref()
                .or_else(|| self.trial.env.compose.as_ref()?.main()?.container.working_dir.as_deref()),
            no_network: !network::is_public(self)
                && !network::changes(self)
                && self.trial.provider.refusal(Demand::NoNetwork).is_none(),
            private_dirs: PRIVATE_DIRS,
            time: Timeouts::of_trial(&self.trial.config, self.task),
            waits: Some(self.trial),
            ..EnvironmentSpec::new(origin, image, "")
        }
    }

    /// The limits of an environment, which the job may override.
    pub(super) fn overridden(&self, bounds: ResourceBounds) -> ResourceBounds {
        let config = &self.trial.config.environment;
        ResourceBounds {
            cpus: config.override_cpus.or(bounds.cpus),
            memory: config.override_memory.or(bounds.memory),
            storage: config.override_storage.or(bounds.storage),
        }
    }

    /// Variables in addition to those of the task's environment.
    pub(super) fn with_environment(&self, env: &Env) -> Vec<(String, String)> {
        let mut all = self.egress.map(Egress::variables).unwrap_or_default();
        all.extend(variables(&self.trial.env.environment));
        all.extend(variables(env));
        all
    }

    /// Variables of the environment in which the tests run. A separate environment with its own settings does not have
    /// those of the task's environment.
    pub(super) fn tests_environment(&self) -> Vec<(String, String)> {
        let step = self.step;
        let mut all = self.egress.map(Egress::variables).unwrap_or_default();
        if step.is_separate
            && let Some(main) = self.tests_compose().and_then(|compose| compose.main())
        {
            all.extend(main.environment.iter().map(|(key, value)| (key.clone(), value.value.clone())));
        }
        all.extend(variables(match step.separate_settings() {
            Some(_) => &step.tests_env,
            None => &self.trial.env.environment,
        }));
        all
    }

    /// tests/docker-compose.yaml, if it is for this step.
    pub(super) fn tests_compose(&self) -> Option<&'a Arc<ComposeFile>> {
        self.trial.env.tests_compose.as_ref().filter(|_| !self.step.has_own_image)
    }

    /// Variables that exist only while the agent's scripts run.
    pub(super) fn agent_variables(&self) -> Vec<(String, String)> {
        let trial = self.trial;
        let mut variables = self.with_environment(&trial.agent.env);
        let limited = self.timeouts.execute < Timeouts::UNLIMITED;
        let time = limited.then(|| seconds(self.timeouts.execute).to_string());
        for (key, value) in [
            ("ROLLOUT_TASK_INSTRUCTION", Some(trial.config.instruction_path.clone())),
            ("ROLLOUT_AGENT_TIMEOUT_SEC", time),
            ("ROLLOUT_JOB", Some(trial.job_name.to_string())),
            ("ROLLOUT_TRIAL", Some(trial.id.to_string())),
            ("ROLLOUT_ATTEMPT", Some(trial.id.attempt.to_string())),
            ("ROLLOUT_STEP", self.step.name.clone()),
        ] {
            variables.extend(value.map(|value| (key.to_owned(), value)));
        }
        variables
    }
}

/// Variables in the form of providers.
pub(super) fn variables(env: &Env) -> Vec<(String, String)> {
    env.iter().map(|(key, value)| (key.clone(), value.value.clone())).collect()
}
