//! Waits until an environment is ready for the agent.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    calls::bounded_after,
    context::TrialContext,
    failure::{Failure, in_seconds},
};
use crate::config::{Env, HealthcheckConfig};
use rollout_core::{event::Phase, result::ErrorType};
use rollout_env::{
    CommandRole, Environment, EnvironmentError, Exec, ImageHealthcheck, Outcome, log::LogWriter,
};

/// How much of the output of a failed check an error quotes.
const QUOTED_BYTES: usize = 2 << 10;

/// How often the check of an image is repeated until its first success.
const START_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time between two checks, whatever an image asks for.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// A command that is repeated until it succeeds.
#[derive(Debug, Clone, PartialEq)]
struct Check<'a> {
    argv: Vec<&'a str>,
    interval: Duration,
    timeout: Duration,
    start_period: Duration,
    start_interval: Duration,
    retries: u64,
}

impl<'a> Check<'a> {
    /// The engine runs the first check after one interval, so earlier failures do not count.
    fn of_image(image: &'a ImageHealthcheck) -> Self {
        let interval = image.interval.max(MIN_INTERVAL);
        Self {
            argv: image.argv.iter().map(String::as_str).collect(),
            interval,
            timeout: image.timeout,
            start_period: image.start_period.max(interval),
            start_interval: interval.min(START_INTERVAL),
            retries: image.retries,
        }
    }

    fn of_task(config: &'a HealthcheckConfig) -> Self {
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Self {
            argv: vec!["bash", "-c", &config.command],
            interval: seconds(config.interval_sec),
            timeout: seconds(config.timeout_sec),
            start_period: seconds(config.start_period_sec),
            start_interval: seconds(config.start_interval_sec),
            retries: config.retries,
        }
    }
}

/// What follows a failed check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Wait(Duration),
    GiveUp,
}

/// Decides what follows a check that failed `since` the start, with this many counted failures before.
fn next(check: &Check<'_>, since: Duration, failures: &mut u64) -> Next {
    if since < check.start_period {
        return Next::Wait(check.start_interval);
    }
    *failures += 1;
    if *failures >= check.retries { Next::GiveUp } else { Next::Wait(check.interval) }
}

/// Waits until the check of a task or a step succeeds. The phase is that of the agent if it has worked in the environment
/// before.
pub(super) async fn wait(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    config: Option<&HealthcheckConfig>,
    phase: Phase,
) -> Result<(), Failure> {
    let Some(config) = config else { return Ok(()) };
    let env = context.with_environment(&Env::new());
    repeat(context, environment, &Check::of_task(config), &env).await.map_err(|why| match why {
        Unready::Environment(error) => Failure::environment(phase, &error),
        Unready::Unhealthy(how) => Failure::new(
            match phase {
                Phase::Execute => ErrorType::AgentExecutionFailed,
                _ => ErrorType::EnvironmentStartFailed,
            },
            format!("the health check of the environment failed: `{}` {how}", config.command),
        ),
    })
}

/// Waits until the image's own check succeeds.
pub(super) async fn wait_for_image(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    image: &ImageHealthcheck,
    env: &[(String, String)],
) -> Result<(), Failure> {
    repeat_in_time(context, environment, image, env).await.map_err(|why| match why {
        Unready::Environment(error) => Failure::environment(Phase::Start, &error),
        Unready::Unhealthy(how) => Failure::new(
            ErrorType::EnvironmentStartFailed,
            format!("the environment is unhealthy: its health check {how}"),
        ),
    })
}

/// The check of a service of a compose file.
#[derive(Clone, Copy)]
pub(super) struct ServiceCheck<'a> {
    pub(super) name: &'a str,
    pub(super) check: &'a ImageHealthcheck,
    pub(super) env: &'a [(String, String)],
}

/// Waits until the check of a service succeeds.
pub(super) async fn wait_for_service(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    service: ServiceCheck<'_>,
) -> Result<(), Failure> {
    repeat_in_time(context, environment, service.check, service.env).await.map_err(|why| match why {
        Unready::Environment(error) => Failure::environment(Phase::Start, &error),
        Unready::Unhealthy(how) => Failure::new(
            ErrorType::EnvironmentStartFailed,
            format!("the service {} is unhealthy: its health check {how}", service.name),
        ),
    })
}

enum Unready {
    Environment(EnvironmentError),
    Unhealthy(String),
}

/// Repeats the check of an image, which may ask for any number of checks, until the timeout of the image is over.
async fn repeat_in_time(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    image: &ImageHealthcheck,
    env: &[(String, String)],
) -> Result<(), Unready> {
    let limit = context.timeouts.build;
    let check = Check::of_image(image);
    let repeated = tokio::time::timeout(limit, repeat(context, environment, &check, env));
    repeated.await.unwrap_or_else(|_| {
        Err(Unready::Unhealthy(format!(
            "did not succeed within {}. Correct the check, or raise environment.build_timeout_sec in task.toml or \
             timeout_multiplier in the job",
            in_seconds(limit)
        )))
    })
}

async fn repeat(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    check: &Check<'_>,
    env: &[(String, String)],
) -> Result<(), Unready> {
    let (began, mut failures) = (Instant::now(), 0);
    loop {
        let (stdout, printed) = LogWriter::excerpt(QUOTED_BYTES);
        let (stderr, complained) = LogWriter::excerpt(QUOTED_BYTES);
        let command = Exec {
            role: CommandRole::Agent,
            argv: &check.argv,
            env,
            deadline: Some(check.timeout),
            stdout,
            stderr,
        };
        let exit =
            bounded_after(check.timeout, environment.exec(command)).await.map_err(Unready::Environment)?;
        let how = match exit.outcome {
            Outcome::Code(0) => return Ok(()),
            Outcome::Code(code) => format!("exited with code {code}"),
            Outcome::Signal(signal) => format!("was killed by signal {signal}"),
            Outcome::TimedOut => format!("timed out after {}", in_seconds(check.timeout)),
        };
        match next(check, began.elapsed(), &mut failures) {
            Next::Wait(time) => tokio::time::sleep(time).await,
            Next::GiveUp => {
                let output = format!("{}{}", complained.text().0, printed.text().0);
                let output = context.trial.redactor.text(output.trim()).into_owned();
                let quoted = if output.is_empty() { output } else { format!("\n{output}") };
                let times =
                    if failures == 1 { "once".to_owned() } else { format!("{failures} times in a row") };
                return Err(Unready::Unhealthy(format!("{how}, {times}{quoted}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_cannot_ask_for_checks_without_a_pause() {
        let image = ImageHealthcheck {
            argv: vec!["true".to_owned()],
            interval: Duration::from_nanos(1),
            timeout: Duration::from_secs(1),
            start_period: Duration::ZERO,
            retries: u64::MAX,
        };
        let check = Check::of_image(&image);
        assert_eq!((check.interval, check.start_interval), (MIN_INTERVAL, MIN_INTERVAL));
    }

    #[test]
    fn failures_count_only_after_the_start_period() {
        let seconds = Duration::from_secs;
        let check = Check {
            argv: Vec::new(),
            interval: seconds(5),
            timeout: seconds(30),
            start_period: seconds(10),
            start_interval: seconds(1),
            retries: 2,
        };
        let mut failures = 0;
        for (since, expected) in [
            (0, Next::Wait(seconds(1))),
            (9, Next::Wait(seconds(1))),
            (10, Next::Wait(seconds(5))),
            (15, Next::GiveUp),
        ] {
            assert_eq!(next(&check, seconds(since), &mut failures), expected, "{since}");
        }
    }
}
