//! Prepares the image of a task, and starts an environment.

use super::{
    calls::bounded,
    context::TrialContext,
    failure::Failure,
    install_cache::{self, InstallPlan, Turn},
    preset,
    services::{self, ServiceSource, Services},
    teardown,
};
use crate::config::AgentKind;
use rollout_core::event::Phase;
use rollout_env::{Environment, EnvironmentSpec, Origin, PreparedImage};

/// A running environment without files of the trial.
pub(super) struct Started {
    pub(super) environment: Box<dyn Environment>,
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
            match trial.provider.create(EnvironmentSpec { image: &snapshot, ..spec }).await {
                Ok(environment) => (InstallPlan::Restore { key, snapshot }, Ok(environment)),
                Err(error) => {
                    notes.push(format!("cannot start the snapshot of the install: {error}"));
                    (InstallPlan::Share { key }, trial.provider.create(spec).await)
                }
            }
        }
        plan => (plan, trial.provider.create(spec).await),
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
