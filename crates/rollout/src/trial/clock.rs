//! The times of a trial and of its phases.

use jiff::{Timestamp, Unit};
use tokio::time::Instant;

use rollout_core::text::seconds;

/// Measures times that are consistent with each other, even if the wall clock changes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub(super) started_at: Timestamp,
    started: Instant,
}

impl Clock {
    pub(super) fn start() -> Self {
        let now = Timestamp::now();
        Self { started_at: now.round(Unit::Microsecond).unwrap_or(now), started: Instant::now() }
    }

    /// A moment after the start, as a time of day.
    pub(super) fn at(&self, moment: Instant) -> Timestamp {
        let elapsed = moment.duration_since(self.started);
        let exact = self.started_at.checked_add(elapsed).unwrap_or(Timestamp::MAX);
        exact.round(Unit::Microsecond).unwrap_or(exact)
    }

    /// Seconds from the start to a moment.
    pub(super) fn seconds_to(&self, moment: Instant) -> f64 {
        seconds(moment.duration_since(self.started))
    }
}

/// The start and the end of a phase.
#[derive(Debug, Clone, Copy)]
pub(super) struct PhaseSpan {
    pub(super) began: Instant,
    pub(super) ended: Instant,
}

impl PhaseSpan {
    /// A phase that started then and ends now.
    pub(super) fn since(began: Instant) -> Self {
        Self { began, ended: Instant::now() }
    }

    pub(super) fn seconds(&self) -> f64 {
        seconds(self.ended.duration_since(self.began))
    }
}
