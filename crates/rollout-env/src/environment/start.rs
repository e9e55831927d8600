//! The start of an environment: the programs that its image wants to start, and what it waits for.

use std::{fmt, time::Duration};

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

/// Receives what an environment waits for while it starts, such as a free node of a cluster.
pub trait StartReport: Send + Sync {
    /// The environment waits for this, as in `waiting for a node`.
    fn waits_for(&self, what: &str);
}

impl fmt::Debug for dyn StartReport + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StartReport")
    }
}
