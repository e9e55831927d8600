//! Prepares a try for the agent: the image, the environment, directories and files, and the agent's install.
//!
//! A shared install runs before any file of its own trial is copied in, so that other trials do not find them. So the
//! instruction is copied before or after an install.

use tokio::time::Instant;

use super::{
    artifacts::ALWAYS_COPIED,
    calls::{bounded, required},
    clock::PhaseSpan,
    context::TrialContext,
    failure::Failure,
    healthcheck,
    install_cache::{self, InstallPlan, Turn},
    instruction, network, preset,
    rented::RentedEnvironment,
    script::{self, FIRST_STEP_SETUP, LATER_STEP_SETUP, LeftRunning},
    services::{self, ServiceSource, Services},
    startup, teardown,
};
use crate::{
    agent,
    config::{AgentKind, PresetAgentConfig},
};
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{
    CopyMode, Environment, EnvironmentError, EnvironmentSpec, Origin, PreparedImage, blocking::blocking,
};

/// A running environment without files of the trial.
pub(super) struct Started {
    pub(super) environment: RentedEnvironment,
    /// The other services of the task's compose file.
    pub(super) services: Services,
    /// The task's image.
    pub(super) image: PreparedImage,
    /// How the agent is installed.
    pub(super) plan: InstallPlan,
    /// The turn to install, if other trials wait for it.
    pub(super) turn: Option<Turn>,
}

/// Prepares the task's image.
pub(super) async fn prepare_image(context: &TrialContext<'_>) -> Result<PreparedImage, Failure> {
    let TrialContext { trial, task, timeouts, .. } = *context;
    context.enter(Phase::Image);
    let log = trial.dir.build_log();
    let id = trial.id.to_string();
    let origin = Origin { job: &trial.job_name, trial: &id };
    let request =
        task.image_request(trial.env.compose.as_deref(), origin, trial.config.environment.force_build, &log);
    tokio::time::timeout(timeouts.build, trial.provider.prepare(request))
        .await
        .map_err(|_| Failure::build_timeout(timeouts.build))?
        .map_err(|error| Failure::environment(Phase::Image, &error))
}

/// Prepares the image and starts an environment from it, or from the snapshot of the agent's install.
pub(super) async fn start(context: &TrialContext<'_>, notes: &mut Vec<String>) -> Result<Started, Failure> {
    let TrialContext { trial, task, timeouts, .. } = *context;
    let config = &trial.config.environment;
    context.enter(Phase::Image);
    let log = trial.dir.build_log();
    let id = trial.id.to_string();
    let origin = Origin { job: &trial.job_name, trial: &id };
    let request = task.image_request(trial.env.compose.as_deref(), origin, config.force_build, &log);
    let (image, service_images) = tokio::time::timeout(timeouts.build, async {
        let image = trial.provider.prepare(request).await;
        let image = image.map_err(|error| Failure::environment(Phase::Image, &error))?;
        let services = match context.compose() {
            Some(compose) => services::prepare(context, compose).await?,
            None => Vec::new(),
        };
        Ok((image, services))
    })
    .await
    .map_err(|_| Failure::build_timeout(timeouts.build))??;
    let (plan, turn) = plan_install(context, &image, notes).await;

    context.enter(Phase::Start);
    let name = context.environment_name();
    let mut services = match context.compose() {
        Some(compose) => {
            Services::create(context, compose, ServiceSource::Images(&service_images), &name).await?
        }
        None => Services::default(),
    };
    let hosts = if services.main_settings().is_some() { Vec::new() } else { context.own_hosts() };
    let spec = EnvironmentSpec {
        name: &name,
        hosts: &hosts,
        container: services.main_settings(),
        ..context.environment_spec(&id, &image)
    };
    let (plan, created) = match plan {
        InstallPlan::Restore { key, snapshot } => {
            match context.rent(EnvironmentSpec { image: &snapshot, ..spec }).await {
                Ok(environment) => (InstallPlan::Restore { key, snapshot }, Ok(environment)),
                Err(error) => {
                    notes.push(format!("cannot start the snapshot of the install: {error}"));
                    (InstallPlan::Share { key }, context.rent(spec).await)
                }
            }
        }
        plan => (plan, context.rent(spec).await),
    };
    let environment = created.map_err(|error| Failure::environment(Phase::Start, &error))?;
    let logs = trial.dir.path().join("environment/services");
    if let Err(failure) = services.start(context, &*environment, &logs).await {
        teardown::abandon(environment).await;
        notes.extend(services.remove().await);
        return Err(failure);
    }
    Ok(Started { environment, services, image, plan, turn })
}

/// Looks for a snapshot of the agent's install. If there is none, one trial of the job creates it, and the others wait
/// here.
async fn plan_install(
    context: &TrialContext<'_>,
    image: &PreparedImage,
    notes: &mut Vec<String>,
) -> (InstallPlan, Option<Turn>) {
    let trial = context.trial;
    if !trial.agent.keeps_install(&trial.config.environment) {
        return (InstallPlan::Own, None);
    }
    let script = match &trial.agent.kind {
        AgentKind::Script { install: Some(script), .. } => script.clone(),
        AgentKind::Preset(agent) => match preset::version(context, agent).await {
            Ok(version) => preset::identity(context, &agent.preset.install, &version),
            // The install fails the same way, or gets further.
            Err(_) => return (InstallPlan::Own, None),
        },
        _ => return (InstallPlan::Own, None),
    };
    let key = install_cache::key(&image.reference, &script, trial.agent.env.keys().map(String::as_str));
    let turn = trial.installs.turn(&key).await;
    match bounded(trial.provider.snapshot(&key)).await {
        Ok(Some(snapshot)) => return (InstallPlan::Restore { key, snapshot }, None),
        Ok(None) => {}
        Err(error) => notes.push(format!("cannot look for a snapshot of the install: {error}")),
    }
    (InstallPlan::Share { key }, turn)
}

/// Creates the directories of the logs, and copies the instruction unless it has to wait.
///
/// Returns the entrypoint of the image, if it was started.
pub(super) async fn before_install<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    services: &Services,
    plan: &InstallPlan,
) -> Result<Option<LeftRunning<'e>>, Failure> {
    if let InstallPlan::Restore { .. } = plan {
        // The logs are from the trial that installed.
        required(Phase::Start, environment.make_dirs(&["/logs"], true)).await?;
    }
    let dirs = ["/logs/agent", "/logs/verifier", ALWAYS_COPIED];
    let dirs = if context.task.is_harbor { &dirs[..] } else { &dirs[..2] };
    required(Phase::Start, environment.make_dirs(dirs, false)).await?;
    network::enter(context, environment, services, None).await?;
    let entrypoint = startup::start(context, environment).await?;
    upload_files(context, environment).await?;
    healthcheck::wait(context, environment, context.task.config.healthcheck.as_ref(), Phase::Start).await?;
    set_users(context, environment)?;
    match plan {
        InstallPlan::Own | InstallPlan::Restore { .. } => {
            instruction::copy(context, environment, Phase::Start).await?;
        }
        InstallPlan::Share { .. } => {}
    }
    Ok(entrypoint)
}

/// What came of the install phase.
pub(super) struct Installed {
    /// Empty if there was nothing to install.
    pub(super) span: PhaseSpan,
    pub(super) result: Result<(), Failure>,
}

/// Installs the agent, unless it has no install script or came with a snapshot.
pub(super) async fn install(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    plan: &InstallPlan,
    notes: &mut Vec<String>,
) -> Installed {
    let began = Instant::now();
    let nothing = Installed { span: PhaseSpan { began, ended: began }, result: Ok(()) };
    let kind = &context.trial.agent.kind;
    if !has_install(kind) {
        return nothing;
    }
    let env = match plan {
        InstallPlan::Own => context.agent_variables(),
        InstallPlan::Share { .. } => context.with_environment(&context.trial.agent.env),
        InstallPlan::Restore { .. } => return nothing,
    };
    context.enter(Phase::Install);
    let result = match kind {
        AgentKind::Script { install: Some(script), .. } => {
            run_script(context, environment, script, &env).await
        }
        AgentKind::Preset(agent) => install_preset(context, environment, agent, &env).await,
        AgentKind::Script { install: None, .. }
        | AgentKind::Oracle
        | AgentKind::Nop
        | AgentKind::Model(_) => Ok(()),
    };
    let span = PhaseSpan::since(began);
    if let (InstallPlan::Share { key }, Ok(())) = (plan, &result)
        && let Err(error) = bounded(take_snapshot(environment, key)).await
    {
        // Without it later trials take longer, and this one is none the worse.
        notes.push(format!("cannot store a snapshot of the installed agent for other trials: {error}"));
    }
    Installed { span, result }
}

/// Whether there is anything to install.
pub(super) fn has_install(kind: &AgentKind) -> bool {
    matches!(kind, AgentKind::Script { install: Some(_), .. } | AgentKind::Preset(_))
}

async fn install_preset(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    agent: &PresetAgentConfig,
    env: &[(String, String)],
) -> Result<(), Failure> {
    let version = preset::version(context, agent).await?;
    preset::bring_files(context, environment, agent, &version).await?;
    let script = agent::preset::install_script(&agent.preset.install, &version);
    run_script(context, environment, &script, env).await
}

async fn run_script(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    script: &str,
    env: &[(String, String)],
) -> Result<(), Failure> {
    required(Phase::Install, environment.write_file(agent::INSTALL_SCRIPT, script.as_bytes())).await?;
    script::run(context, environment, &script::INSTALL, env, context.timeouts.install).await?.check()
}

async fn take_snapshot(environment: &dyn Environment, key: &str) -> Result<(), EnvironmentError> {
    // In an environment that starts from a snapshot nothing runs, so neither does it here.
    environment.kill_all().await?;
    environment.snapshot(key).await
}

/// Copies the instruction that had to wait for a shared install, and starts the entrypoint again, which was killed for
/// the snapshot.
pub(super) async fn after_install<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    plan: &InstallPlan,
    entrypoint: Option<LeftRunning<'e>>,
) -> Result<Option<LeftRunning<'e>>, Failure> {
    match plan {
        InstallPlan::Own | InstallPlan::Restore { .. } => Ok(entrypoint),
        // Processes that the install left running may interfere, which is not a failure to start.
        InstallPlan::Share { .. } => {
            instruction::copy(context, environment, Phase::Install).await?;
            startup::start(context, environment).await
        }
    }
}

/// Prepares the environment for a step, whose number counts from 0.
pub(super) async fn before_step(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    services: &Services,
    number: usize,
) -> Result<(), Failure> {
    // What the agent left in the environment can make this fail, and must not exclude its trial.
    let (phase, setup) = match number {
        0 => (Phase::Start, &FIRST_STEP_SETUP),
        _ => (Phase::Execute, &LATER_STEP_SETUP),
    };
    let dir = context.step.dir.path().to_owned();
    blocking(move || std::fs::create_dir_all(dir)).await.map_err(|error| {
        Failure::new(ErrorType::InternalError, format!("cannot create the directory of a step: {error}"))
    })?;
    if number > 0 {
        network::enter(context, environment, services, None).await?;
        // What the tests of the step before left is not for the agent. Logs and artifacts of the agent were copied, and
        // would otherwise count for this step too.
        let dirs = ["/tests", "/logs/agent", "/logs/verifier", ALWAYS_COPIED];
        required(phase, environment.make_dirs(&dirs, true)).await?;
        instruction::copy(context, environment, phase).await?;
    }
    set_users(context, environment)?;
    if let Some(files) = &context.step.workdir {
        required(phase, environment.copy_to(files, environment.workdir(), CopyMode::Merge)).await?;
        if files.join("setup.sh").is_file() {
            let env = context.with_environment(&context.trial.agent.env);
            script::run(context, environment, setup, &env, context.timeouts.build).await?.check()?;
        }
    }
    healthcheck::wait(context, environment, context.step.healthcheck.as_ref(), phase).await
}

pub(super) fn set_users(context: &TrialContext<'_>, environment: &dyn Environment) -> Result<(), Failure> {
    let set = environment.set_users(context.step.users.clone());
    set.map_err(|error| Failure::environment(Phase::Start, &error))
}

/// Copies the files beside a Dockerfile that does not exist. Harbor does so for tasks with only an image.
async fn upload_files(context: &TrialContext<'_>, environment: &dyn Environment) -> Result<(), Failure> {
    let task = context.task;
    let applies = task.is_harbor && task.config.docker_image.is_some() && !task.files.dockerfile;
    if !applies || !task.context.is_dir() {
        return Ok(());
    }
    required(Phase::Start, environment.copy_to(&task.context, environment.workdir(), CopyMode::Merge)).await
}
