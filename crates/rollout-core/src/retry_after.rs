//! The header `Retry-After` of HTTP.

use std::time::Duration;

use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};

/// Returns how long the value of `Retry-After` asks to wait: a number of seconds, or until a date.
pub fn parse_retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    let seconds = value.parse::<f64>().ok().or_else(|| {
        let date = DateTimeParser::new().parse_timestamp(value).ok()?;
        Some((date.as_second() - now.as_second()).max(0) as f64)
    })?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_read() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (value, expected) in [
            ("2", Some(2000)),
            (" 0.5 ", Some(500)),
            ("Thu, 01 Jan 2026 00:00:07 GMT", Some(7000)),
            ("Wed, 31 Dec 2025 23:59:00 GMT", Some(0)),
            ("-5", None),
            ("1e400", None),
            ("NaN", None),
            ("tomorrow", None),
            ("", None),
        ] {
            let wait = parse_retry_after(value, now);
            assert_eq!(wait.map(|wait| wait.as_millis()), expected, "{value}");
        }
    }
}
