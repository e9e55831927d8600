//! Starts what an image wants to be started, by the rules of Harbor: its entrypoint, and its health check.

use std::{path::PathBuf, task::Poll};

use futures_util::poll;

use super::{context::TrialContext, failure::Failure, healthcheck, script::LeftRunning};
use crate::config::Env;
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{
    CommandRole, Environment, Exec, ImageStartup,
    blocking::blocking,
    log::{LogWriter, create_log_files},
};

/// What the entrypoint is asked to run: nothing, for ever.
const COMMAND: [&str; 3] = ["sh", "-c", "sleep infinity"];

/// Starts the entrypoint, and waits until the image's health check succeeds. Returns the entrypoint, which keeps
/// running.
pub(super) async fn start<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
) -> Result<Option<LeftRunning<'e>>, Failure> {
    if !context.task.is_harbor {
        return Ok(None);
    }
    let ImageStartup { entrypoint, healthcheck } = environment.startup();
    let running = match entrypoint.is_empty() {
        true => None,
        false => Some(run(context, environment, entrypoint).await?),
    };
    if let Some(check) = &healthcheck {
        healthcheck::wait_for_image(context, environment, check).await?;
    }
    Ok(running)
}

async fn run<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    mut argv: Vec<String>,
) -> Result<LeftRunning<'e>, Failure> {
    let dir: PathBuf = context.trial.dir.path().join("environment/entrypoint");
    let [stdout, stderr] = blocking(move || create_log_files(&dir)).await.map_err(|error| {
        Failure::new(ErrorType::InternalError, format!("cannot write the output of the entrypoint: {error}"))
    })?;
    let redactor = &context.trial.redactor;
    let (stdout, stderr) = (LogWriter::new(stdout, redactor), LogWriter::new(stderr, redactor));
    let env = context.with_environment(&Env::new());
    argv.extend(COMMAND.map(str::to_owned));
    let mut running: LeftRunning<'e> = Box::pin(async move {
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let role = CommandRole::Agent;
        environment.exec(Exec { role, argv: &argv, env: &env, deadline: None, stdout, stderr }).await
    });
    // The first poll sends the command; nobody waits for its end.
    match poll!(&mut running) {
        Poll::Ready(Err(error)) => Err(Failure::environment(Phase::Start, &error)),
        _ => Ok(running),
    }
}
