//! The forms of values in compose files: command lines, sizes, durations, and short mounts.

use std::time::Duration;

/// Splits a command line as a shell does, without expanding anything. `None` if a quote is not closed.
pub(super) fn split_words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match (quote, char) {
            (None, ' ' | '\t' | '\n') => words.extend(word.take()),
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (Some(open), _) if char == open => quote = None,
            (None, '\\') => word.get_or_insert_default().push(chars.next()?),
            (Some('"'), '\\') => {
                let next = chars.next()?;
                if !matches!(next, '"' | '\\' | '$' | '`') {
                    word.get_or_insert_default().push('\\');
                }
                word.get_or_insert_default().push(next);
            }
            _ => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// A size such as `64m`, `2gb` or `1048576`, in bytes. Units are powers of 1024.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_lowercase();
    let digits = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    let bytes = number * (1u64 << shift) as f64;
    (bytes >= 0.0 && bytes < i64::MAX as f64).then_some(bytes as u64)
}

/// A duration such as `1m30s`, `500ms` or `10s`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|char: char| char.is_ascii_digit()).unwrap_or(rest.len());
        total += number
            * match &rest[..unit] {
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                "d" => 86_400.0,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    Duration::try_from_secs_f64(total).ok().filter(|_| !text.trim().is_empty())
}

/// The parts of a mount such as `./data:/data:ro`: its source, its target, and its options.
pub(super) fn short_mount(text: &str) -> (Option<&str>, &str, Vec<&str>) {
    let mut parts = text.split(':');
    let first = parts.next().unwrap_or_default();
    match parts.next() {
        None => (None, first, Vec::new()),
        Some(target) => {
            let options = parts.next().into_iter().flat_map(|options| options.split(','));
            (Some(first), target, options.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_split_like_a_shell_does() {
        let words = |line: &str| split_words(line).map(|words| words.join("|"));
        assert_eq!(words("redis-server --port 1").as_deref(), Some("redis-server|--port|1"));
        assert_eq!(words("sh -c 'echo \"a b\"; sleep 1'").as_deref(), Some("sh|-c|echo \"a b\"; sleep 1"));
        assert_eq!(words(r#"a "b \"c\" \d" e\ f ''"#).as_deref(), Some(r#"a|b "c" \d|e f|"#));
        assert_eq!(words("  ").as_deref(), Some(""));
        assert_eq!(words("sh -c 'open"), None);
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, expected) in [
            ("64m", Some(64 << 20)),
            ("2gb", Some(2 << 30)),
            ("1.5G", Some(3 << 29)),
            ("512Mi", Some(512 << 20)),
            ("1024", Some(1024)),
            ("10b", Some(10)),
            ("-1", None),
            ("much", None),
            ("", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }

    #[test]
    fn durations_have_units() {
        for (text, expected) in [
            ("10s", Some(10.0)),
            ("1m30s", Some(90.0)),
            ("500ms", Some(0.5)),
            ("1.5h", Some(5400.0)),
            ("0", Some(0.0)),
            ("10", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(duration(text).map(|time| time.as_secs_f64()), expected, "{text}");
        }
    }
}
