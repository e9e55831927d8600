//! Prepares an environment apart from the agent's install: directories for logs, files, and the instruction.
//!
//! A shared install runs before any file of its own trial is copied in, so that other trials do not find them. So the
//! instruction is copied before or after an install.

use super::{
    artifacts::ALWAYS_COPIED,
    calls::required,
    context::TrialContext,
    failure::Failure,
    healthcheck,
    install_cache::InstallPlan,
    instruction, network,
    script::{self, LeftRunning, STEP_SETUP},
    services::Services,
    startup,
};
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{CopyMode, Environment, blocking::blocking};

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
    healthcheck::wait(context, environment, context.task.config.healthcheck.as_ref()).await?;
    set_users(context, environment)?;
    match plan {
        InstallPlan::Own | InstallPlan::Restore { .. } => {
            instruction::copy(context, environment, Phase::Start).await?;
        }
        InstallPlan::Share { .. } => {}
    }
    Ok(entrypoint)
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
    number: usize,
) -> Result<(), Failure> {
    let phase = Phase::Start;
    let dir = context.step.dir.path().to_owned();
    blocking(move || std::fs::create_dir_all(dir)).await.map_err(|error| {
        Failure::new(ErrorType::InternalError, format!("cannot create the directory of a step: {error}"))
    })?;
    if number > 0 {
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
            script::run(context, environment, &STEP_SETUP, &env, context.timeouts.build).await?.check()?;
        }
    }
    healthcheck::wait(context, environment, context.step.healthcheck.as_ref()).await
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
