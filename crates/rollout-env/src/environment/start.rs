//! The start of an environment: the programs that its image wants to start, and what it waits for.

use std::{fmt, time::Duration};

/// The defaults of engines.
const INTERVAL: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(30);
const RETRIES: u64 = 3;

/// The programs that an image wants to be started by itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageStartup {
    /// `ENTRYPOINT`: a program and its arguments.
    pub entrypoint: Vec<String>,
    /// `CMD`: a program and its arguments, or more arguments for the entrypoint.
    pub command: Vec<String>,
    /// `HEALTHCHECK`.
    pub healthcheck: Option<ImageHealthcheck>,
}

/// The `HEALTHCHECK` of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageHealthcheck {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The time between two runs.
    pub interval: Duration,
    /// The time that a run may take.
    pub timeout: Duration,
    /// The time after the start in which failures do not count.
    pub start_period: Duration,
    /// How many failures in a row make the environment unhealthy.
    pub retries: u64,
}

impl ImageHealthcheck {
    /// Reads a check in the form of engines: `CMD` with a program and its arguments, or `CMD-SHELL` with a line for a
    /// shell. Times are in nanoseconds, and 0 stands for the default of engines.
    pub(crate) fn of_engine(
        test: &[String],
        [interval, timeout, start_period]: [i64; 3],
        retries: i64,
    ) -> Option<Self> {
        let argv = match test.split_first()? {
            (kind, rest) if kind == "CMD" && !rest.is_empty() => rest.to_vec(),
            (kind, [command]) if kind == "CMD-SHELL" => ["sh", "-c", command].map(str::to_owned).to_vec(),
            _ => return None,
        };
        let time = |nanoseconds: i64, usual: Duration| match u64::try_from(nanoseconds) {
            Ok(time) if time > 0 => Duration::from_nanos(time),
            _ => usual,
        };
        Some(Self {
            argv,
            interval: time(interval, INTERVAL),
            timeout: time(timeout, TIMEOUT),
            start_period: time(start_period, Duration::ZERO),
            retries: u64::try_from(retries).ok().filter(|retries| *retries > 0).unwrap_or(RETRIES),
        })
    }
}

/// Receives what an environment waits for while it starts, such as a free node of a cluster.
pub trait StartReport: Send + Sync {
    /// The environment waits for this, as in `waiting for a node`.
    fn waits_for(&self, what: &str);

    /// An environment that did not start has cost this, in US dollars.
    fn failed_start_cost(&self, dollars: f64) {
        let _ = dollars;
    }
}

impl fmt::Debug for dyn StartReport + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StartReport")
    }
}

/// Runs the work of a start, and reports what it waits for: each change of `reasons`.
#[cfg(any(feature = "kubernetes", feature = "remote"))]
pub(crate) async fn with_reasons<T>(
    work: impl Future<Output = T>,
    mut reasons: tokio::sync::watch::Receiver<String>,
    report: Option<&dyn StartReport>,
) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            Ok(()) = reasons.changed() => {
                if let Some(report) = report {
                    report.waits_for(&reasons.borrow_and_update().clone());
                }
            }
        }
    }
}
