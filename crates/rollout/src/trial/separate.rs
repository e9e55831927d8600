//! A separate environment for the verifier: the tests see only the artifacts that the task declares.

use std::path::{Path, PathBuf};

use super::{calls::required, context::TrialContext, failure::Failure, teardown};
use crate::config::VerifierEnvironment;
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{
    CopyMode, CopyOut, Environment, EnvironmentSpec, FileRead, ImageRequest, Origin, PreparedImage,
};

/// A directory that is always copied to the tests.
const ALWAYS_COPIED: &str = "/logs/artifacts";

/// Whether the tests of a trial run in a separate environment. The job decides first, then the task; an image for the
/// tests implies one too.
pub(super) fn is_separate(context: &TrialContext<'_>) -> bool {
    let (job, task) = (&context.trial.config.verifier, &context.task.config);
    let asked = job.environment.or(task.verifier_environment);
    match asked {
        Some(asked) => asked == VerifierEnvironment::Separate,
        None => job.image.is_some() || task.verifier_image.is_some(),
    }
}

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
            Vec::new()
        }
    };
    let artifacts = take_out(context, agent, notes).await?;
    let image = image(context, task_image).await?;
    let environment: &'s dyn Environment = &**slot.insert(create(context, &image, &hosts).await?);
    for (path, copy) in artifacts {
        required(phase, environment.copy_to(&copy, &path, CopyMode::Replace)).await?;
    }
    Ok(environment)
}

/// Copies the logs of the tests out of their environment and removes it.
pub(super) async fn close(
    context: &TrialContext<'_>,
    environment: Box<dyn Environment>,
    notes: &mut Vec<String>,
) {
    let logs = context.trial.dir.verifier();
    let redactor = &context.trial.redactor;
    let copy = CopyOut { source: "/logs/verifier", target: &logs, first: None, redactor };
    match super::calls::bounded(environment.copy_from(copy)).await {
        Ok(report) => notes
            .extend(report.skipped.into_iter().map(|what| format!("not copied from /logs/verifier: {what}"))),
        Err(error) => notes.push(format!("cannot copy /logs/verifier: {error}")),
    }
    notes.extend(teardown::remove(environment).await.err());
}

/// Copies the declared artifacts to the trial's directory. Returns each path inside with its copy.
async fn take_out(
    context: &TrialContext<'_>,
    agent: &dyn Environment,
    notes: &mut Vec<String>,
) -> Result<Vec<(String, PathBuf)>, Failure> {
    let phase = Phase::Verify;
    let dir = context.trial.dir.artifacts();
    let declared = context.trial.config.verifier.artifacts.iter().chain(&context.task.config.artifacts);
    let mut paths: Vec<&str> = declared.map(String::as_str).chain([ALWAYS_COPIED]).collect();
    paths.dedup();
    let mut copies = Vec::new();
    for path in paths {
        // With a limit of 0 bytes, a regular file is either empty or too large.
        let is_file = match required(phase, agent.read_file(path, 0)).await? {
            FileRead::Content(_) | FileRead::TooLarge(_) => true,
            FileRead::NotRegular => false,
            FileRead::Missing => {
                if path != ALWAYS_COPIED {
                    notes.push(format!("the artifact {path} is missing in the agent's environment"));
                }
                continue;
            }
        };
        let copy = dir.join(path.trim_start_matches('/'));
        let target = if is_file { copy.parent().unwrap_or(&dir) } else { copy.as_path() };
        let redactor = &context.trial.redactor;
        let request = CopyOut { source: path, target, first: None, redactor };
        let report = required(phase, agent.copy_from(request)).await?;
        let left_out = |what: String| format!("not copied from the artifact {path}: {what}");
        notes.extend(report.skipped.into_iter().map(left_out));
        if exists(&copy).await {
            copies.push((path.to_owned(), copy));
        }
    }
    Ok(copies)
}

async fn exists(path: &Path) -> bool {
    tokio::fs::symlink_metadata(path).await.is_ok()
}

/// The image of the tests: their own, or the task's.
async fn image(context: &TrialContext<'_>, task_image: &PreparedImage) -> Result<PreparedImage, Failure> {
    let TrialContext { trial, task, timeouts } = *context;
    let named = trial.config.verifier.image.as_deref().or(task.config.verifier_image.as_deref());
    let Some(named) = named else { return Ok(task_image.clone()) };
    let (id, log) = (trial.id.to_string(), trial.dir.build_log());
    let request = ImageRequest {
        origin: Origin { job: &trial.job_name, trial: &id },
        context: &task.context,
        docker_image: Some(named),
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
        ..context.environment_spec(&id, image)
    };
    let created = context.trial.provider.create(spec).await;
    created.map_err(|error| Failure::environment(Phase::Start, &error))
}
