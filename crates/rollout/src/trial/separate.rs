//! A separate environment for the verifier: the tests see only the artifacts that the task declares.

use std::{path::Path, sync::Arc};

use super::{
    artifacts::{self, Artifact},
    calls::required,
    collectors::{CollectedFrom, run_collectors},
    context::TrialContext,
    failure::Failure,
    network,
    rented::RentedEnvironment,
    script::LeftRunning,
    services::{self, ServiceSource, Services},
    setup::prepare_image,
    startup,
    step::TestsImage,
    teardown::{self, LogCopy},
    verify::Graded,
};
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{
    CopyMode, CopyOut, Demand, Environment, EnvironmentSpec, ImageRequest, Origin, PreparedImage,
    compose::{ComposeFile, ComposeService, ContainerSettings},
};

/// The environment of the tests, with its services.
pub(super) struct SeparateEnvironment {
    environment: RentedEnvironment,
    services: Services,
}

/// A separate environment in which the tests can run.
pub(super) struct OpenTests<'s> {
    pub(super) environment: &'s dyn Environment,
    /// The entrypoint, which runs until this is dropped.
    pub(super) entrypoint: Option<LeftRunning<'s>>,
}

impl SeparateEnvironment {
    /// Removes it without a result.
    pub(super) async fn abandon(self) {
        teardown::abandon(self.environment).await;
        self.services.remove().await;
    }
}

/// Starts an environment for the tests, with the agent's artifacts in it, and stores it in `slot`.
///
/// No process of the agent runs meanwhile, unless the task needs to reach it by name.
pub(super) async fn open<'s>(
    context: &TrialContext<'_>,
    graded: Graded<'_>,
    slot: &'s mut Option<SeparateEnvironment>,
    notes: &mut Vec<String>,
) -> Result<OpenTests<'s>, Failure> {
    let phase = Phase::Verify;
    let Graded { agent, services: agent_services, image: task_image } = graded;
    let hosts = match &context.task.config.verifier_agent_hostname {
        Some(name) => {
            let address = required(phase, agent.address()).await?.ok_or_else(|| {
                let message = format!(
                    "the tests need to reach the agent's environment as {name}, but it has no network: \
                     choose another network in provider_config, or take verifier.agent_hostname out of task.toml"
                );
                Failure::new(ErrorType::VerifierFailed, message)
            })?;
            vec![(name.clone(), address)]
        }
        None => {
            required(phase, agent.kill_all()).await?;
            context.own_hosts()
        }
    };
    run_collectors(context, CollectedFrom::Services, agent, agent_services, notes).await;
    let artifacts = artifacts::collect(context, agent, agent_services, notes).await?;
    // Networks of different groups are separate, so the tests join that of the agent to reach it.
    let networks = match &context.task.config.verifier_agent_hostname {
        Some(_) => agent_services.main_networks(),
        None => Vec::new(),
    };
    open_with(context, &artifacts, Neighbours { hosts: &hosts, networks: &networks }, task_image, slot).await
}

/// What the tests reach besides their own environment.
#[derive(Clone, Copy)]
pub(super) struct Neighbours<'a> {
    /// Names with their addresses.
    pub(super) hosts: &'a [(String, String)],
    /// Networks of the agent's environment, if it is reached through them.
    pub(super) networks: &'a [String],
}

/// Starts an environment for the tests, with these artifacts in it, and stores it in `slot`.
pub(super) async fn open_with<'s>(
    context: &TrialContext<'_>,
    artifacts: &[Artifact],
    neighbours: Neighbours<'_>,
    task_image: Option<&PreparedImage>,
    slot: &'s mut Option<SeparateEnvironment>,
) -> Result<OpenTests<'s>, Failure> {
    let phase = Phase::Verify;
    let image = image(context, task_image).await?;
    let compose = compose(context);
    let created = create(context, compose, &image, neighbours).await?;
    let environment: &'s dyn Environment = &*slot.insert(created).environment;
    let entrypoint =
        startup::start_for_tests(context, environment, compose.map(|compose| &**compose)).await?;
    for Artifact { source, copy, is_empty, .. } in artifacts::in_order(artifacts) {
        if *is_empty {
            required(phase, environment.make_dirs(&[source.as_str()], true)).await?;
        } else {
            required(phase, environment.copy_to(copy, source, CopyMode::Replace)).await?;
        }
    }
    let set = environment.set_users(context.step.users.clone());
    set.map_err(|error| Failure::environment(phase, &error))?;
    Ok(OpenTests { environment, entrypoint })
}

/// Copies the logs of the tests out of their environment and removes it.
pub(super) async fn close(
    context: &TrialContext<'_>,
    separate: SeparateEnvironment,
    notes: &mut Vec<String>,
) -> LogCopy {
    let SeparateEnvironment { environment, services } = separate;
    let logs = copy_logs(context, &*environment, notes).await;
    notes.extend(teardown::remove(environment).await.err());
    notes.extend(services.remove().await);
    logs
}

/// Copies the logs of the tests out of an environment.
pub(super) async fn copy_logs(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    notes: &mut Vec<String>,
) -> LogCopy {
    let logs = context.step.dir.verifier();
    let redactor = &context.trial.redactor;
    let copy = CopyOut { source: "/logs/verifier", target: &logs, first: None, redactor };
    let missing = match super::calls::bounded(environment.copy_from(copy)).await {
        Ok(report) => {
            report.skipped.into_iter().map(|what| format!("not copied from /logs/verifier: {what}")).collect()
        }
        Err(error) => vec![format!("cannot copy /logs/verifier: {error}")],
    };
    LogCopy::with(missing, notes)
}

/// Where the image of a separate environment comes from.
enum TestImage<'a> {
    /// The task's own.
    Task,
    /// An image by name.
    Named(&'a str),
    /// tests/Dockerfile.
    Built(&'a Path),
    /// The service `main` of tests/docker-compose.yaml.
    Composed(&'a ComposeService),
}

/// Whether the image of the separate environment has the tests in it.
pub(super) fn has_tests(context: &TrialContext<'_>) -> bool {
    let is_own =
        context.trial.config.verifier.image.is_none() && context.task.config.verifier_image.is_none();
    let composed = context.tests_compose().and_then(|compose| compose.main());
    let has_image = context.step.tests_image.is_some()
        || composed.is_some_and(|main| main.build.is_some() || main.image.is_some());
    context.step.is_separate && context.task.is_harbor && is_own && has_image
}

/// The image of the tests: the job's, the task's for them, or the task's, which is prepared if it is not given.
async fn image(
    context: &TrialContext<'_>,
    task_image: Option<&PreparedImage>,
) -> Result<PreparedImage, Failure> {
    let TrialContext { trial, task, timeouts, .. } = *context;
    let tests = &task.tests;
    let (id, log) = (trial.id.to_string(), trial.dir.build_log());
    let origin = Origin { job: &trial.job_name, trial: &id };
    let composed = context.tests_compose().and_then(|compose| compose.main());
    let named = trial.config.verifier.image.as_deref().or(task.config.verifier_image.as_deref());
    let source = match (named, &context.step.tests_image) {
        (Some(named), _) => TestImage::Named(named),
        (None, Some(TestsImage::Named(named))) => TestImage::Named(named),
        (None, own) => match (composed, own) {
            (Some(main), _) if main.build.is_some() => TestImage::Composed(main),
            (_, Some(TestsImage::Built(tests))) => TestImage::Built(tests),
            (Some(main), _) => TestImage::Composed(main),
            (None, _) => TestImage::Task,
        },
    };
    let (directory, docker_image, build) = match source {
        TestImage::Named(named) => (task.context.as_path(), Some(named), None),
        TestImage::Composed(ComposeService { build: Some(build), .. }) => {
            (build.context.as_path(), None, Some(&build.options))
        }
        TestImage::Built(directory) => (directory, None, None),
        TestImage::Composed(ComposeService { image: Some(image), .. }) => {
            (tests.as_path(), Some(image.as_str()), None)
        }
        TestImage::Task | TestImage::Composed(_) => match task_image {
            Some(known) => return Ok(known.clone()),
            None => return prepare_image(context).await,
        },
    };
    let request =
        ImageRequest { origin, context: directory, docker_image, build, force_build: false, log: &log };
    tokio::time::timeout(timeouts.build, trial.provider.prepare(request))
        .await
        .map_err(|_| Failure::build_timeout(timeouts.build))?
        .map_err(|error| Failure::environment(Phase::Image, &error))
}

/// The compose file of the tests: their own, or that of the task if they run in its image.
fn compose<'a>(context: &TrialContext<'a>) -> Option<&'a Arc<ComposeFile>> {
    let TrialContext { trial, task, .. } = *context;
    let composed = context.tests_compose();
    let has_image = trial.config.verifier.image.is_some()
        || task.config.verifier_image.is_some()
        || context.step.tests_image.is_some();
    let is_allowed = trial.provider.refusal(Demand::Compose).is_none();
    composed.or_else(|| trial.env.compose.as_ref().filter(|_| !has_image)).filter(|_| is_allowed)
}

async fn create(
    context: &TrialContext<'_>,
    compose: Option<&Arc<ComposeFile>>,
    image: &PreparedImage,
    neighbours: Neighbours<'_>,
) -> Result<SeparateEnvironment, Failure> {
    let id = context.trial.id.to_string();
    let name = context.environment_name() + "-verifier";
    let own = context.step.separate_settings();
    let network = own.map_or(&context.task.config.network, |own| &own.network);
    let policy = context.step.verifier_network.as_ref().or(network.as_ref());
    let mut services = match compose {
        Some(compose) => {
            let prepared = tokio::time::timeout(context.timeouts.build, services::prepare(context, compose));
            let images = prepared.await.map_err(|_| Failure::build_timeout(context.timeouts.build))??;
            Services::create(context, compose, ServiceSource::Images(&images), &name).await?
        }
        None => Services::default(),
    };
    // Names of other services resolve in the network; only the agent's environment has to be added.
    let is_main = |(host, _): &&(String, String)| compose.is_none() || host != "main";
    let hosts: Vec<(String, String)> = neighbours.hosts.iter().filter(is_main).cloned().collect();
    services.join(neighbours.networks);
    let alone = ContainerSettings {
        networks: neighbours.networks.iter().map(|network| (network.clone(), Vec::new())).collect(),
        ..ContainerSettings::default()
    };
    let joined = (!neighbours.networks.is_empty()).then_some(&alone);
    let mut spec = EnvironmentSpec {
        image,
        name: &name,
        hosts: &hosts,
        container: services.main_settings().or(joined),
        private_dirs: &[],
        no_network: !network::is_on(policy),
        time: context.timeouts.of_tests(),
        ..context.environment_spec(&id, image)
    };
    if let Some(own) = own {
        let bounds = context.overridden(own.bounds(context.task.is_harbor));
        (spec.cpus, spec.memory, spec.storage) = (bounds.cpus, bounds.memory, bounds.storage);
        spec.gpus = 0;
        spec.workdir = own.workdir.as_deref();
    }
    let created = context.rent(spec).await;
    let environment = created.map_err(|error| Failure::environment(Phase::Start, &error))?;
    let logs = context.step.dir.verifier().join("services");
    network::allow(context, &*environment, policy, Phase::Start).await?;
    services.start(context, &*environment, &logs).await?;
    Ok(SeparateEnvironment { environment, services })
}
