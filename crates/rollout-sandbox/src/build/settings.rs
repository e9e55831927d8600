//! Parses the instructions that describe a running container: `EXPOSE` and `HEALTHCHECK`.

use super::error::ImageBuildError;
use super::parse::{CommandLine, Flag, Location};
use super::plan::unknown_flag;
use crate::image::DockerfileHealthcheck;

/// The units of times, in nanoseconds; a longer unit before a shorter one that it ends with.
const UNITS: [(&str, f64); 7] =
    [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("h", 3600e9), ("m", 60e9), ("s", 1e9)];

/// The most ports of one range.
const MAX_RANGE: u16 = 10_000;

/// The ports that words such as `80`, `53/udp` and `8000-8010` stand for.
pub(crate) fn ports(at: &Location, words: &[String]) -> Result<Vec<String>, ImageBuildError> {
    let mut ports = Vec::new();
    for word in words {
        let invalid =
            || ImageBuildError::Syntax { at: at.clone(), message: format!("`{word}` is not a port") };
        let (range, protocol) = word.split_once('/').unwrap_or((word, "tcp"));
        // A port of the host before a colon has no effect on an image.
        let range = range.rsplit(':').next().unwrap_or(range);
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u16>().map_err(|_| invalid());
        let (first, last) = (number(first)?, number(last)?);
        if last < first || last - first > MAX_RANGE {
            return Err(invalid());
        }
        ports.extend((first..=last).map(|port| format!("{port}/{}", protocol.to_lowercase())));
    }
    Ok(ports)
}

/// The check that a `HEALTHCHECK` describes.
pub(crate) fn healthcheck(
    at: &Location,
    flags: &[Flag],
    command: Option<&CommandLine>,
) -> Result<DockerfileHealthcheck, ImageBuildError> {
    let mut check = DockerfileHealthcheck::default();
    for flag in flags {
        let value = flag.value.as_deref().unwrap_or_default();
        let invalid = |kind| {
            let message = format!("`{value}` of --{} is not {kind}", flag.name);
            ImageBuildError::Syntax { at: at.clone(), message }
        };
        let time = || duration(value).ok_or_else(|| invalid("a time such as 30s"));
        match flag.name.as_str() {
            "interval" => check.interval = time()?,
            "timeout" => check.timeout = time()?,
            "start-period" => check.start_period = time()?,
            // Newer than the format of configurations that is kept.
            "start-interval" => drop(time()?),
            "retries" => check.retries = value.parse().map_err(|_| invalid("a number"))?,
            _ => return Err(unknown_flag(at, "HEALTHCHECK", flag)),
        }
    }
    check.test = match command {
        None => vec!["NONE".to_owned()],
        Some(CommandLine::Shell(line)) => vec!["CMD-SHELL".to_owned(), line.clone()],
        Some(CommandLine::Exec(list)) => [&["CMD".to_owned()], list.as_slice()].concat(),
    };
    Ok(check)
}

/// A time such as `1m30s`, in nanoseconds.
fn duration(text: &str) -> Option<i64> {
    let (mut rest, mut total) = (text, 0.0);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let (unit, factor) = UNITS.iter().find(|(unit, _)| rest[end..].starts_with(unit))?;
        total += number * factor;
        rest = &rest[end + unit.len()..];
    }
    (total < 1e18).then_some(total as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, expected) in [
            ("5s", Some(5_000_000_000)),
            ("1m30s", Some(90_000_000_000)),
            ("1.5h", Some(5_400_000_000_000)),
            ("250ms", Some(250_000_000)),
            ("3us", Some(3_000)),
            ("5", None),
            ("", None),
            ("s", None),
            ("1x", None),
        ] {
            assert_eq!(duration(text), expected, "{text}");
        }
    }

    #[test]
    fn ports_have_ranges_and_protocols() {
        let at = Location { line: 1, text: String::new() };
        let read = |word: &str| ports(&at, &[word.to_owned()]).map_err(|error| error.to_string());
        assert_eq!(read("80").unwrap(), ["80/tcp"]);
        assert_eq!(read("7000-7002/UDP").unwrap(), ["7000/udp", "7001/udp", "7002/udp"]);
        assert!(read("http").is_err() && read("3-1").is_err() && read("70000").is_err());
    }
}
