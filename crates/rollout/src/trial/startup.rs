//! Starts what an image or a compose file wants to be started: its entrypoint or command, and its health check.

use std::{path::PathBuf, task::Poll};

use futures_util::poll;

use super::{context::TrialContext, failure::Failure, healthcheck, script::LeftRunning, services};
use crate::config::Env;
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{
    CommandRole, Environment, Exec, ImageHealthcheck, ImageStartup,
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
    let Some((argv, healthcheck)) = of_environment(context, environment.startup()) else { return Ok(None) };
    let running = match argv.is_empty() {
        true => None,
        false => Some(run(context, environment, argv).await?),
    };
    if let Some(check) = &healthcheck {
        healthcheck::wait_for_image(context, environment, check).await?;
    }
    Ok(running)
}

/// The program to start, if any, and the health check. None if the rules of Harbor do not apply, and no compose file
/// describes the environment.
fn of_environment(
    context: &TrialContext<'_>,
    image: ImageStartup,
) -> Option<(Vec<String>, Option<ImageHealthcheck>)> {
    let main = context.compose().and_then(|compose| compose.main());
    let (entrypoint, healthcheck) = (image.entrypoint.clone(), image.healthcheck.clone());
    let with_sleep = |mut argv: Vec<String>| {
        argv.extend(COMMAND.map(str::to_owned));
        argv
    };
    let (argv, healthcheck) = match main {
        Some(main) => {
            let check = services::check(&main.healthcheck, healthcheck);
            let argv = match (&main.entrypoint, &main.command) {
                (None, None) if entrypoint.is_empty() => Vec::new(),
                (None, None) => with_sleep(entrypoint),
                (Some(own), None) => with_sleep(own.clone()),
                _ => services::argv(main, image),
            };
            (argv, check)
        }
        None if !context.task.is_harbor => return None,
        None if entrypoint.is_empty() => (Vec::new(), healthcheck),
        None => (with_sleep(entrypoint), healthcheck),
    };
    Some((argv, healthcheck))
}

async fn run<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    argv: Vec<String>,
) -> Result<LeftRunning<'e>, Failure> {
    let dir: PathBuf = context.trial.dir.path().join("environment/entrypoint");
    let [stdout, stderr] = blocking(move || create_log_files(&dir)).await.map_err(|error| {
        Failure::new(ErrorType::InternalError, format!("cannot write the output of the entrypoint: {error}"))
    })?;
    let redactor = &context.trial.redactor;
    let (stdout, stderr) = (LogWriter::new(stdout, redactor), LogWriter::new(stderr, redactor));
    let env = context.with_environment(&Env::new());
    let mut running: LeftRunning<'e> = Box::pin(async move {
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let role = CommandRole::Agent;
        environment.exec(Exec { role, argv: &argv, env: &env, deadline: None, stdout, stderr }).await
    });
    // The first poll sends the command; nothing waits for its end.
    match poll!(&mut running) {
        Poll::Ready(Err(error)) => Err(Failure::environment(Phase::Start, &error)),
        _ => Ok(running),
    }
}
