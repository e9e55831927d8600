//! The settings that all clouds share.

use std::time::Duration;

use rollout_settings::{Form, forms::seconds};

/// The default lifetime of a sandbox.
const LIFETIME: Duration = Duration::from_secs(4 * 3600);

/// How long a sandbox outlives its last connection.
const GRACE: Duration = Duration::from_secs(120);

/// The default time for a sandbox to start.
const START: Duration = Duration::from_secs(600);

/// The times of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CloudTimes {
    /// How long a sandbox may take to start, including waits that the vendor requests.
    pub(crate) start_timeout: Duration,
    /// After this time the vendor ends a sandbox, whatever happens.
    pub(crate) lifetime: Duration,
    /// How long a trial continues while the connection to its sandbox is lost.
    pub(crate) grace: Duration,
}

/// The form of `start_timeout_sec`.
pub(crate) fn start_timeout() -> Form<Duration> {
    seconds().default(START)
}

/// The form of `lifetime_sec`.
pub(crate) fn lifetime() -> Form<Duration> {
    seconds().default(LIFETIME)
}

/// The form of `grace_sec`.
pub(crate) fn grace() -> Form<Duration> {
    seconds().default(GRACE)
}
