//! When a failed request is sent again.

use std::time::Duration;

use super::error::ImageRegistryError;

/// How often a request is sent without any success in between.
const TRIES: u32 = 5;

/// The same, for a mirror: there is another place to ask.
const TRIES_OF_MIRROR: u32 = 2;

/// The wait before the second request. It doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// The longest wait that a server may demand. A trial whose image would take longer fails, and is retried later.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// The same, for a mirror.
const LONGEST_WAIT_FOR_MIRROR: Duration = Duration::from_secs(2);

/// The waits between attempts of one request.
pub(super) struct Backoff {
    most: u32,
    tries: u32,
    /// The longest wait that the server may demand.
    longest: Duration,
    /// Whether the content was corrupt once: another copy is requested once.
    was_corrupt: bool,
}

impl Backoff {
    /// `is_last` is whether there is no other server to ask.
    pub(super) fn new(is_last: bool) -> Self {
        let (most, longest) = match is_last {
            true => (TRIES, LONGEST_WAIT),
            false => (TRIES_OF_MIRROR, LONGEST_WAIT_FOR_MIRROR),
        };
        Self { most, tries: 1, longest, was_corrupt: false }
    }

    /// How long to wait after a failure; None if the request is given up.
    pub(super) fn after(&mut self, error: &ImageRegistryError) -> Option<Duration> {
        if matches!(error, ImageRegistryError::Corrupt { .. }) {
            let is_first = !self.was_corrupt;
            self.was_corrupt = true;
            return is_first.then_some(Duration::ZERO);
        }
        let demanded = error.retry_after().unwrap_or_default();
        if !error.is_temporary() || self.tries == self.most || demanded > self.longest {
            return None;
        }
        let wait = FIRST_WAIT * 2_u32.pow(self.tries - 1);
        self.tries += 1;
        Some(wait.max(demanded))
    }

    /// Begins anew, after some success.
    pub(super) fn reset(&mut self) {
        self.tries = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, retry_after: Option<u64>) -> ImageRegistryError {
        ImageRegistryError::Status {
            host: "registry".into(),
            status,
            detail: String::new(),
            is_rate_limit: status == 429,
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    fn waits(most: bool, error: &ImageRegistryError) -> Vec<u128> {
        let mut backoff = Backoff::new(most);
        std::iter::from_fn(|| backoff.after(error)).map(|wait| wait.as_millis()).collect()
    }

    #[test]
    fn waits_double_and_are_at_least_what_the_server_demands() {
        assert_eq!(waits(true, &refusal(503, None)), [250, 500, 1000, 2000]);
        assert_eq!(waits(true, &refusal(429, Some(1))), [1000, 1000, 1000, 2000]);
        assert_eq!(waits(false, &refusal(429, None)), [250]);
        assert_eq!(waits(true, &refusal(429, Some(120))), [120_000; 4]);
        assert_eq!(waits(true, &refusal(429, Some(3600))), []);
        assert_eq!(waits(false, &refusal(429, Some(2))), [2000]);
        assert_eq!(waits(false, &refusal(429, Some(3))), [], "the registry is asked instead");
        for permanent in [400, 401, 403, 404, 501] {
            assert_eq!(waits(true, &refusal(permanent, Some(1))), [], "{permanent}");
        }
    }

    #[test]
    fn corrupt_content_is_requested_once_more() {
        let corrupt = ImageRegistryError::Corrupt { host: "registry".into(), what: "a layer".into() };
        assert_eq!(waits(true, &corrupt), [0]);
    }
}
