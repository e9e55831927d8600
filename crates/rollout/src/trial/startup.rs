//! Starts what an image or a compose file wants to be started: its entrypoint or command, and its health check.

use std::{path::PathBuf, time::Duration};

use super::{context::TrialContext, failure::Failure, healthcheck, script::LeftRunning, services};
use crate::config::Env;
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{
    CommandRole, Environment, Exec, ImageHealthcheck, ImageStartup,
    blocking::blocking,
    compose::{ComposeFile, ComposeService},
    log::{LogWriter, create_log_files},
};

/// What the entrypoint is asked to run: nothing, for ever.
const COMMAND: [&str; 3] = ["sh", "-c", "sleep infinity"];

/// How long the start of the entrypoint is waited for. By then it was sent, and a program that is missing is known.
const START: Duration = Duration::from_millis(100);

/// An environment, as its compose file and its task describe it.
struct Described<'a> {
    /// The service of the compose file.
    main: Option<&'a ComposeService>,
    env: Vec<(String, String)>,
    /// Where the output of the entrypoint goes.
    logs: PathBuf,
}

/// Starts the entrypoint, and waits until the image's health check succeeds. Returns the entrypoint, which keeps
/// running.
pub(super) async fn start<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
) -> Result<Option<LeftRunning<'e>>, Failure> {
    let described = Described {
        main: context.compose().and_then(|compose| compose.main()),
        env: context.with_environment(&Env::new()),
        logs: context.trial.dir.path().join("environment/entrypoint"),
    };
    start_described(context, environment, described).await
}

/// The same for a separate environment of the tests.
pub(super) async fn start_for_tests<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    compose: Option<&ComposeFile>,
) -> Result<Option<LeftRunning<'e>>, Failure> {
    let described = Described {
        main: compose.and_then(|compose| compose.main()),
        env: context.tests_environment(),
        logs: context.step.dir.verifier().join("entrypoint"),
    };
    start_described(context, environment, described).await
}

async fn start_described<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    described: Described<'_>,
) -> Result<Option<LeftRunning<'e>>, Failure> {
    let started = of_environment(context.task.is_harbor, described.main, environment.startup());
    let Some((argv, healthcheck)) = started else { return Ok(None) };
    let Described { env, logs, .. } = described;
    let running = match argv.is_empty() {
        true => None,
        false => Some(run(context, environment, argv, (env.clone(), logs)).await?),
    };
    if let Some(check) = &healthcheck {
        healthcheck::wait_for_image(context, environment, check, &env).await?;
    }
    Ok(running)
}

/// The program to start, if any, and the health check. None if the rules of Harbor do not apply, and no compose file
/// describes the environment.
fn of_environment(
    is_harbor: bool,
    main: Option<&ComposeService>,
    image: ImageStartup,
) -> Option<(Vec<String>, Option<ImageHealthcheck>)> {
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
        None if !is_harbor => return None,
        None if entrypoint.is_empty() => (Vec::new(), healthcheck),
        None => (with_sleep(entrypoint), healthcheck),
    };
    Some((argv, healthcheck))
}

async fn run<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    argv: Vec<String>,
    (env, logs): (Vec<(String, String)>, PathBuf),
) -> Result<LeftRunning<'e>, Failure> {
    let [stdout, stderr] = blocking(move || create_log_files(&logs)).await.map_err(|error| {
        Failure::new(ErrorType::InternalError, format!("cannot write the output of the entrypoint: {error}"))
    })?;
    let redactor = &context.trial.redactor;
    let (stdout, stderr) = (LogWriter::new(stdout, redactor), LogWriter::new(stderr, redactor));
    let mut running: LeftRunning<'e> = Box::pin(async move {
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let role = CommandRole::Agent;
        environment.exec(Exec { role, argv: &argv, env: &env, deadline: None, stdout, stderr }).await
    });
    // Nothing waits for its end: the environment reads its output by itself.
    match tokio::time::timeout(START, &mut running).await {
        Ok(Err(error)) => Err(Failure::environment(Phase::Start, &error)),
        Ok(Ok(_)) | Err(_) => Ok(running),
    }
}
