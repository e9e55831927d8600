//! The image of a task, then a running environment.

use super::{
    calls::bounded,
    context::TrialContext,
    failure::Failure,
    install_cache::{self, InstallPlan, Turn},
};
use crate::config::AgentKind;
use rollout_core::event::Phase;
use rollout_env::{Environment, EnvironmentSpec, Origin, PreparedImage};

/// An environment that runs, and in which nothing of the trial is yet.
pub(super) struct Started {
    pub(super) environment: Box<dyn Environment>,
    /// The task's image.
    pub(super) image: PreparedImage,
    /// What becomes of the agent's install.
    pub(super) plan: InstallPlan,
    /// The turn to install, where other trials wait for it.
    pub(super) turn: Option<Turn>,
}

/// Makes the image ready and starts an environment from it, or from the snapshot of the agent's install in it.
pub(super) async fn start(context: &TrialContext<'_>, notes: &mut Vec<String>) -> Result<Started, Failure> {
    let TrialContext { trial, task, timeouts } = *context;
    let config = &trial.config.environment;
    context.enter(Phase::Image);
    let log = trial.dir.build_log();
    let id = trial.id.to_string();
    let origin = Origin { job: &trial.job_name, trial: &id };
    let request = task.image_request(origin, config.force_build, &log);
    let image = tokio::time::timeout(timeouts.build, trial.provider.prepare(request))
        .await
        .map_err(|_| Failure::build_timeout(timeouts.build))?
        .map_err(|error| Failure::environment(Phase::Image, &error))?;
    let (plan, turn) = plan_install(context, &image, notes).await;

    context.enter(Phase::Start);
    let name = context.environment_name();
    let spec = EnvironmentSpec { name: &name, ..context.environment_spec(&id, &image) };
    let (plan, created) = match plan {
        InstallPlan::Restore { key, snapshot } => {
            match trial.provider.create(EnvironmentSpec { image: &snapshot, ..spec }).await {
                Ok(environment) => (InstallPlan::Restore { key, snapshot }, Ok(environment)),
                Err(error) => {
                    notes.push(format!("the snapshot of the install does not start: {error}"));
                    (InstallPlan::Share { key }, trial.provider.create(spec).await)
                }
            }
        }
        plan => (plan, trial.provider.create(spec).await),
    };
    let environment = created.map_err(|error| Failure::environment(Phase::Start, &error))?;
    Ok(Started { environment, image, plan, turn })
}

/// Looks for a snapshot of the agent's install. Where there is none yet, one trial of the job makes it, and the others
/// wait here.
async fn plan_install(
    context: &TrialContext<'_>,
    image: &PreparedImage,
    notes: &mut Vec<String>,
) -> (InstallPlan, Option<Turn>) {
    let trial = context.trial;
    let AgentKind::Script { install: Some(script), .. } = &trial.agent.kind else {
        return (InstallPlan::Own, None);
    };
    if !trial.config.environment.cache_agent_install {
        return (InstallPlan::Own, None);
    }
    let key = install_cache::key(&image.reference, script, trial.agent.env.keys().map(String::as_str));
    let turn = trial.installs.turn(&key).await;
    match bounded(trial.provider.snapshot(&key)).await {
        Ok(Some(snapshot)) => return (InstallPlan::Restore { key, snapshot }, None),
        Ok(None) => {}
        Err(error) => notes.push(format!("no snapshot of the install could be looked for: {error}")),
    }
    (InstallPlan::Share { key }, turn)
}
