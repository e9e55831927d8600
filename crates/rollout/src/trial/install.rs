//! The install phase: the agent's install script, and a snapshot of what it made.

use tokio::time::Instant;

use super::{
    calls::{bounded, required},
    clock::PhaseSpan,
    context::TrialContext,
    failure::Failure,
    install_cache::InstallPlan,
    preset, script,
};
use crate::{
    agent,
    config::{AgentKind, PresetAgentConfig},
};
use rollout_core::event::Phase;
use rollout_env::{Environment, EnvironmentError};

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
