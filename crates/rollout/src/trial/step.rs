//! The steps of a trial: what one round of agent and tests needs. A task without steps is one step.

use std::path::{Path, PathBuf};

use super::{
    context::{StepEnv, TaskEnv},
    timeouts::Timeouts,
};
use crate::{
    config::{
        ArtifactConfig, CollectConfig, Env, HealthcheckConfig, JobConfig, NetworkPolicy, StepConfig,
        TestsEnvironment,
    },
    task::Task,
};
use rollout_env::CommandUsers;
use rollout_record::layout::TrialDir;

/// One round of agent and tests.
pub(super) struct Step {
    /// Its name, if the task has steps.
    pub(super) name: Option<String>,
    /// Where its files go.
    pub(super) dir: TrialDir,
    pub(super) timeouts: Timeouts,
    pub(super) instruction: PathBuf,
    /// Directories of tests; each is laid over those before.
    pub(super) tests: Vec<PathBuf>,
    pub(super) solution: PathBuf,
    /// Files for the working directory.
    pub(super) workdir: Option<PathBuf>,
    pub(super) users: CommandUsers,
    pub(super) agent_network: Option<NetworkPolicy>,
    pub(super) verifier_network: Option<NetworkPolicy>,
    /// Whether the tests run in a separate environment.
    pub(super) is_separate: bool,
    /// The settings of this environment, if the task has some for it.
    pub(super) tests_environment: Option<TestsEnvironment>,
    /// The variables in these settings, expanded.
    pub(super) tests_env: Env,
    /// The image of this environment, if the task has one for it.
    pub(super) tests_image: Option<TestsImage>,
    /// Whether this image is only for this step. The services of the task's tests do not belong to it.
    pub(super) has_own_image: bool,
    pub(super) verifier_env: Env,
    pub(super) artifacts: Vec<ArtifactConfig>,
    pub(super) collect: Vec<CollectConfig>,
    /// The health check of the step itself; that of the environment runs before the agent is installed.
    pub(super) healthcheck: Option<HealthcheckConfig>,
    /// The lowest rewards with which the next step starts.
    pub(super) min_reward: Vec<(String, f64)>,
}

/// An image for separate tests.
#[derive(Debug, Clone)]
pub(super) enum TestsImage {
    /// By its name.
    Named(String),
    /// Built from the Dockerfile in a directory of tests.
    Built(PathBuf),
}

impl Step {
    /// The settings that the separate environment of the tests has instead of those of the task's environment.
    pub(super) fn separate_settings(&self) -> Option<&TestsEnvironment> {
        self.tests_environment.as_ref().filter(|_| self.is_separate)
    }

    /// Its name for messages.
    pub(super) fn shown_name(&self) -> &str {
        self.name.as_deref().unwrap_or("this one")
    }
}

/// The steps of a trial, at least one.
pub(super) fn steps(config: &JobConfig, env: &TaskEnv, dir: &TrialDir, task: &Task) -> Vec<Step> {
    let plain = plain(config, env, dir, task);
    if task.config.steps.is_empty() {
        return vec![plain];
    }
    let envs = env.steps.iter().cloned().chain(std::iter::repeat_with(StepEnv::default));
    task.config.steps.iter().zip(envs).map(|(step, env)| of_config(config, task, step, env, &plain)).collect()
}

fn plain(job: &JobConfig, env: &TaskEnv, dir: &TrialDir, task: &Task) -> Step {
    let config = &task.config;
    let mut artifacts: Vec<_> =
        job.verifier.artifacts.iter().map(|path| ArtifactConfig::path(path)).collect();
    artifacts.extend(config.artifacts.iter().cloned());
    Step {
        name: None,
        dir: dir.clone(),
        timeouts: Timeouts::new(job, task),
        instruction: task.dir.join("instruction.md"),
        tests: vec![task.tests.clone()],
        solution: task.dir.join("solution"),
        workdir: None,
        users: CommandUsers { agent: config.agent_user.clone(), verifier: config.verifier_user.clone() },
        agent_network: config.agent_network.clone(),
        verifier_network: config.verifier_network.clone(),
        is_separate: config.is_separate_in(&job.verifier),
        tests_environment: config.verifier_own_environment.clone(),
        tests_env: env.tests.clone(),
        tests_image: tests_image(
            task,
            config.verifier_own_environment.as_ref(),
            &task.tests,
            task.files.tests_dockerfile,
        ),
        has_own_image: false,
        verifier_env: env.verifier.clone(),
        artifacts,
        collect: config.collect.clone(),
        healthcheck: None,
        min_reward: Vec::new(),
    }
}

/// The image of separate tests with these settings, in this directory.
fn tests_image(
    task: &Task,
    own: Option<&TestsEnvironment>,
    tests: &Path,
    has_dockerfile: bool,
) -> Option<TestsImage> {
    match own.and_then(|own| own.docker_image.clone()) {
        Some(name) => Some(TestsImage::Named(name)),
        None => (task.is_harbor && has_dockerfile).then(|| TestsImage::Built(tests.to_owned())),
    }
}

fn of_config(config: &JobConfig, task: &Task, step: &StepConfig, env: StepEnv, plain: &Step) -> Step {
    let dir = task.dir.join("steps").join(&step.name);
    let own = |name: &str| Some(dir.join(name)).filter(|dir| dir.is_dir());
    let has_solution = dir.join("solution/solve.sh").exists();
    let shared = plain.tests.iter().filter(|tests| tests.is_dir()).cloned();
    let own_environment = step.verifier_own_environment.as_ref();
    let tests = dir.join("tests");
    let image = tests_image(task, own_environment, &tests, tests.join("Dockerfile").is_file());
    Step {
        name: Some(step.name.clone()),
        dir: plain.dir.step(&step.name),
        timeouts: plain.timeouts.of_step(config, step),
        instruction: dir.join("instruction.md"),
        tests: shared.chain(own("tests")).collect(),
        solution: if has_solution { dir.join("solution") } else { plain.solution.clone() },
        workdir: own("workdir"),
        users: CommandUsers {
            agent: step.agent_user.clone().or_else(|| plain.users.agent.clone()),
            verifier: step.verifier_user.clone().or_else(|| plain.users.verifier.clone()),
        },
        agent_network: step.agent_network.clone().or_else(|| plain.agent_network.clone()),
        verifier_network: step.verifier_network.clone().or_else(|| plain.verifier_network.clone()),
        is_separate: task.config.is_step_separate_in(step, &config.verifier),
        tests_environment: own_environment.or(plain.tests_environment.as_ref()).cloned(),
        tests_env: if own_environment.is_some() { env.tests } else { plain.tests_env.clone() },
        has_own_image: image.is_some(),
        tests_image: image.or_else(|| plain.tests_image.clone()),
        verifier_env: env.verifier,
        artifacts: plain.artifacts.iter().chain(&step.artifacts).cloned().collect(),
        collect: plain.collect.iter().chain(&step.collect).cloned().collect(),
        healthcheck: step.healthcheck.clone(),
        min_reward: step.min_reward.clone(),
    }
}
