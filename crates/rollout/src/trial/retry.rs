//! Decides whether a trial is retried, and keeps the files of the failed try.

use std::{fs, io, time::Duration};

use super::failure::Failure;
use crate::config::RetryConfig;
use rollout_core::result::TrialError;
use rollout_record::layout::TrialDir;

/// How long to wait before the next try of a trial; none after the last one.
pub(super) fn next_try(retry: &RetryConfig, number: u32, failure: Option<&Failure>) -> Option<Duration> {
    failure.filter(|failure| failure.transient).and_then(|_| retry.delay_after(number))
}

/// Moves the files of a failed try away for the next one.
pub(super) fn keep_failed_try(dir: &TrialDir, number: u32, error: &TrialError) -> io::Result<()> {
    let kept = dir.failed_try(number);
    fs::create_dir_all(&kept)?;
    for entry in fs::read_dir(dir.path())? {
        let entry = entry?;
        if entry.file_name() != "tries" && entry.file_name() != "earlier" {
            fs::rename(entry.path(), kept.join(entry.file_name()))?;
        }
    }
    fs::write(kept.join("error.txt"), error.file_content())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use rollout_core::result::ErrorType;

    fn millis(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    fn retry() -> RetryConfig {
        RetryConfig {
            max_attempts: NonZeroU32::new(5).unwrap(),
            initial_delay_ms: 1000,
            max_delay_ms: 3000,
            multiplier: 2.0,
        }
    }

    #[test]
    fn waits_grow_to_the_limit_and_there_is_none_after_the_last_try() {
        let delays: Vec<_> = (1..=5).map(|failed| retry().delay_after(failed)).collect();
        assert_eq!(delays, [millis(1000), millis(2000), millis(3000), millis(3000), None]);
    }

    #[test]
    fn only_a_transient_failure_before_the_last_try_is_retried() {
        let failure = |transient| {
            let failure = Failure::new(ErrorType::InternalError, "it broke".to_owned());
            Some(Failure { transient, ..failure })
        };
        for (number, failure, delay) in [
            (1, None, None),
            (1, failure(false), None),
            (1, failure(true), millis(1000)),
            (4, failure(true), millis(3000)),
            (5, failure(true), None),
        ] {
            assert_eq!(next_try(&retry(), number, failure.as_ref()), delay, "try {number}, {failure:?}");
        }
    }
}
