//! Prepares an environment apart from the agent's install: directories for logs, and the instruction.
//!
//! A shared install runs before any file of its own trial is copied in, so that other trials do not find them. So the
//! instruction is copied before or after an install.

use super::{calls::required, context::TrialContext, failure::Failure, install_cache::InstallPlan};
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{CopyMode, Environment, blocking::blocking};

/// Creates the directories of the logs, and copies the instruction unless it has to wait.
pub(super) async fn before_install(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    plan: &InstallPlan,
) -> Result<(), Failure> {
    if let InstallPlan::Restore { .. } = plan {
        // The logs are from the trial that installed.
        required(Phase::Start, environment.make_dirs(&["/logs"], true)).await?;
    }
    required(Phase::Start, environment.make_dirs(&["/logs/agent", "/logs/verifier"], false)).await?;
    match plan {
        InstallPlan::Own | InstallPlan::Restore { .. } => {
            copy_instruction(context, environment, Phase::Start).await
        }
        InstallPlan::Share { .. } => Ok(()),
    }
}

/// Copies the instruction that had to wait for a shared install.
pub(super) async fn after_install(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    plan: &InstallPlan,
) -> Result<(), Failure> {
    match plan {
        InstallPlan::Own | InstallPlan::Restore { .. } => Ok(()),
        // Processes that the install left running may interfere, which is not a failure to start.
        InstallPlan::Share { .. } => copy_instruction(context, environment, Phase::Install).await,
    }
}

/// Copies the instruction to its path for scripts.
async fn copy_instruction(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    phase: Phase,
) -> Result<(), Failure> {
    let instruction = context.task.dir.join("instruction.md");
    // A symbolic link within the task is allowed, but environments follow none.
    let instruction = blocking(move || std::fs::canonicalize(instruction)).await.map_err(|error| {
        Failure::new(ErrorType::TaskInvalid, format!("cannot read instruction.md: {error}"))
    })?;
    let target = &context.trial.config.instruction_path;
    let copied = required(phase, environment.copy_to(&instruction, target, CopyMode::Merge)).await;
    copied.map_err(|mut failure| {
        let hint =
            format!("; `instruction_path` of the job is {target}: set a path where a file can be created");
        failure.error.message.push_str(&hint);
        failure
    })
}
