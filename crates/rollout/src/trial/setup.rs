//! What an environment needs beside the agent's install: directories for logs, and the instruction.
//!
//! An install that is shared with other trials runs before anything of its own trial comes in, so that they find
//! nothing of it. That is why the instruction comes before an install or after it.

use super::{calls::required, context::TrialContext, failure::Failure, install_cache::InstallPlan};
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{CopyMode, Environment, blocking::blocking};

/// Makes the directories that logs are collected from, and brings the instruction in unless it has to wait.
pub(super) async fn before_install(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    plan: &InstallPlan,
) -> Result<(), Failure> {
    if let InstallPlan::Restore { .. } = plan {
        // The logs are those of the trial that installed.
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

/// Brings the instruction in that had to wait for a shared install.
pub(super) async fn after_install(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    plan: &InstallPlan,
) -> Result<(), Failure> {
    match plan {
        InstallPlan::Own | InstallPlan::Restore { .. } => Ok(()),
        // What the install left running may get in the way, and that is no failure to start.
        InstallPlan::Share { .. } => copy_instruction(context, environment, Phase::Install).await,
    }
}

/// Puts the instruction where scripts expect it.
async fn copy_instruction(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    phase: Phase,
) -> Result<(), Failure> {
    let instruction = context.task.dir.join("instruction.md");
    // A link within the task is as good as a file, and environments follow none.
    let instruction = blocking(move || std::fs::canonicalize(instruction)).await.map_err(|error| {
        Failure::new(ErrorType::TaskInvalid, format!("instruction.md cannot be read: {error}"))
    })?;
    let target = &context.trial.config.instruction_path;
    let copied = required(phase, environment.copy_to(&instruction, target, CopyMode::Merge)).await;
    copied.map_err(|mut failure| {
        let hint =
            format!("; `instruction_path` of the job is {target}: write a path at which a file can be made");
        failure.error.message.push_str(&hint);
        failure
    })
}
