//! A separate environment for the verifier: the tests see only the artifacts that the task declares.

use std::path::Path;

use super::{
    artifacts::{self, Artifact},
    calls::required,
    context::TrialContext,
    failure::Failure,
    teardown,
};
use crate::config::NetworkMode;
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{CopyMode, CopyOut, Environment, EnvironmentSpec, ImageRequest, Origin, PreparedImage};

/// Starts an environment for the tests, with the agent's artifacts in it, and stores it in `slot`.
///
/// No process of the agent runs meanwhile, unless the task needs to reach it by name.
pub(super) async fn open<'s>(
    context: &TrialContext<'_>,
    agent: &dyn Environment,
    task_image: &PreparedImage,
    slot: &'s mut Option<Box<dyn Environment>>,
    notes: &mut Vec<String>,
) -> Result<&'s dyn Environment, Failure> {
    let phase = Phase::Verify;
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
    let artifacts = artifacts::collect(context, agent, notes).await?;
    let image = image(context, task_image).await?;
    let environment: &'s dyn Environment = &**slot.insert(create(context, &image, &hosts).await?);
    for Artifact { source, copy } in artifacts {
        required(phase, environment.copy_to(&copy, &source, CopyMode::Replace)).await?;
    }
    let set = environment.set_users(context.step.users.clone());
    set.map_err(|error| Failure::environment(phase, &error))?;
    Ok(environment)
}

/// Copies the logs of the tests out of their environment and removes it.
pub(super) async fn close(
    context: &TrialContext<'_>,
    environment: Box<dyn Environment>,
    notes: &mut Vec<String>,
) {
    let logs = context.step.dir.verifier();
    let redactor = &context.trial.redactor;
    let copy = CopyOut { source: "/logs/verifier", target: &logs, first: None, redactor };
    match super::calls::bounded(environment.copy_from(copy)).await {
        Ok(report) => notes
            .extend(report.skipped.into_iter().map(|what| format!("not copied from /logs/verifier: {what}"))),
        Err(error) => notes.push(format!("cannot copy /logs/verifier: {error}")),
    }
    notes.extend(teardown::remove(environment).await.err());
}

/// Where the image of a separate environment comes from.
enum TestImage<'a> {
    /// The task's own.
    Task,
    /// An image by name.
    Named(&'a str),
    /// tests/Dockerfile.
    Built(&'a Path),
}

/// Whether the image of the separate environment has the tests in it.
pub(super) fn has_tests(context: &TrialContext<'_>) -> bool {
    let is_own =
        context.trial.config.verifier.image.is_none() && context.task.config.verifier_image.is_none();
    let has_image = context.task.config.tests_image().is_some() || context.task.files.tests_dockerfile;
    context.step.is_separate && context.task.is_harbor && is_own && has_image
}

/// The image of the tests: the job's, the task's for them, or the task's.
async fn image(context: &TrialContext<'_>, task_image: &PreparedImage) -> Result<PreparedImage, Failure> {
    let TrialContext { trial, task, timeouts, .. } = *context;
    let tests = task.dir.join("tests");
    let named = trial.config.verifier.image.as_deref().or(task.config.verifier_image.as_deref());
    let source = match named.or(task.config.tests_image()) {
        Some(named) => TestImage::Named(named),
        None if task.is_harbor && task.files.tests_dockerfile => TestImage::Built(&tests),
        None => TestImage::Task,
    };
    let (directory, docker_image) = match source {
        TestImage::Task => return Ok(task_image.clone()),
        TestImage::Named(named) => (task.context.as_path(), Some(named)),
        TestImage::Built(directory) => (directory, None),
    };
    let (id, log) = (trial.id.to_string(), trial.dir.build_log());
    let request = ImageRequest {
        origin: Origin { job: &trial.job_name, trial: &id },
        context: directory,
        docker_image,
        force_build: false,
        log: &log,
    };
    tokio::time::timeout(timeouts.build, trial.provider.prepare(request))
        .await
        .map_err(|_| Failure::build_timeout(timeouts.build))?
        .map_err(|error| Failure::environment(Phase::Image, &error))
}

async fn create(
    context: &TrialContext<'_>,
    image: &PreparedImage,
    hosts: &[(String, String)],
) -> Result<Box<dyn Environment>, Failure> {
    let id = context.trial.id.to_string();
    let name = context.environment_name() + "-verifier";
    let spec = EnvironmentSpec {
        image,
        name: &name,
        hosts,
        private_dirs: &[],
        no_network: context.step.verifier_network.or(context.task.config.network)
            == Some(NetworkMode::NoNetwork),
        ..context.environment_spec(&id, image)
    };
    let created = context.trial.provider.create(spec).await;
    created.map_err(|error| Failure::environment(Phase::Start, &error))
}
