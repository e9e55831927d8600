//! The settings that all clouds share.

use std::time::Duration;

use rollout_settings::{Form, forms::seconds};

/// What a trial may need besides its timeouts: for copies, health checks, and repeated connections.
const MARGIN: Duration = Duration::from_secs(30 * 60);

/// The lifetime of a sandbox for a trial without a time limit. Vendors allow a day, or more.
const UNLIMITED: Duration = Duration::from_secs(24 * 3600);

/// How long a sandbox outlives its last connection.
const GRACE: Duration = Duration::from_secs(120);

/// The default time for a sandbox to start.
const START: Duration = Duration::from_secs(600);

/// The times of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CloudTimes {
    /// How long a sandbox may take to start, including waits that the vendor requests.
    pub(crate) start_timeout: Duration,
    /// After this time the vendor ends a sandbox, whatever happens; `None` if the trial decides.
    pub(crate) lifetime: Option<Duration>,
    /// How long a trial continues while the connection to its sandbox is lost.
    pub(crate) grace: Duration,
}

impl CloudTimes {
    /// The lifetime of a sandbox that is needed for this time, at a vendor that allows `most`.
    pub(crate) fn lifetime_for(&self, needed: Option<Duration>, most: Duration) -> Duration {
        let of_trial = || {
            needed
                .map_or(UNLIMITED, |needed| needed.saturating_add(self.start_timeout).saturating_add(MARGIN))
        };
        self.lifetime.unwrap_or_else(of_trial).min(most)
    }
}

/// The form of `start_timeout_sec`.
pub(crate) fn start_timeout() -> Form<Duration> {
    seconds().default(START)
}

/// The form of `lifetime_sec`.
pub(crate) fn lifetime() -> Form<Option<Duration>> {
    seconds().optional().unset("from the timeouts of the task")
}

/// The form of `grace_sec`.
pub(crate) fn grace() -> Form<Duration> {
    seconds().default(GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_lives_longer_than_its_trial_may_take_and_no_longer_than_the_vendor_allows() {
        const HOUR: Duration = Duration::from_secs(3600);
        let times = |lifetime| CloudTimes { start_timeout: START, lifetime, grace: GRACE };
        for (setting, needed, most, lifetime) in [
            (None, Some(HOUR), Duration::MAX, HOUR + START + MARGIN),
            (None, Some(30 * HOUR), 24 * HOUR, 24 * HOUR),
            (None, None, Duration::MAX, UNLIMITED),
            (None, None, HOUR, HOUR),
            (Some(2 * HOUR), Some(HOUR), Duration::MAX, 2 * HOUR),
            (Some(2 * HOUR), None, HOUR, HOUR),
        ] {
            assert_eq!(
                times(setting).lifetime_for(needed, most),
                lifetime,
                "{setting:?} {needed:?} {most:?}"
            );
        }
    }
}
