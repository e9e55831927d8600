//! Numbers as people read them, on the terminal and in the viewer.

/// A duration: `0.4s`, `2m 05s`, `1h 02m`.
pub fn span(seconds: f64) -> String {
    if seconds < 59.95 {
        return format!("{seconds:.1}s");
    }
    let whole = seconds.round() as u64;
    match whole / 3600 {
        0 => format!("{}m {:02}s", whole / 60, whole % 60),
        hours => format!("{hours}h {:02}m", whole / 60 % 60),
    }
}

/// A duration that may be far below a second: `40ms`, `1.4s`, `2m 05s`.
pub fn fine_span(seconds: f64) -> String {
    if seconds < 0.9995 { format!("{:.0}ms", seconds * 1000.0) } else { span(seconds) }
}

/// A reward or metric with at most three decimals: `1`, `0.92`, `-0.333`.
pub fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// A fraction as a percentage: `83.3%`.
pub fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// An amount of US dollars with two decimals, or four below one cent.
pub fn dollars(amount: f64) -> String {
    if amount == 0.0 {
        "$0".to_owned()
    } else if amount < 0.00995 {
        format!("${amount:.4}")
    } else {
        format!("${amount:.2}")
    }
}

/// A size on disk: `512 B`, `1.5 MiB`.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// `1 trial`, `2 trials`.
pub fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short_and_exact_enough() {
        assert_eq!(
            [0.04, 59.94, 59.96, 125.0, 3720.0].map(span),
            ["0.0s", "59.9s", "1m 00s", "2m 05s", "1h 02m"]
        );
        assert_eq!(
            [0.0, 0.0042, 0.9994, 0.9996, 125.0].map(fine_span),
            ["0ms", "4ms", "999ms", "1.0s", "2m 05s"]
        );
    }

    #[test]
    fn numbers_lose_their_empty_decimals() {
        assert_eq!([1.0, 0.92, -1.0 / 3.0, 0.0, -0.0001].map(number), ["1", "0.92", "-0.333", "0", "0"]);
        assert_eq!(
            [0.0, 0.0042, 0.00996, 0.03, 1.234].map(dollars),
            ["$0", "$0.0042", "$0.01", "$0.03", "$1.23"]
        );
        assert_eq!([512, 1536, 3 << 30].map(size), ["512 B", "1.5 KiB", "3.0 GiB"]);
    }
}
