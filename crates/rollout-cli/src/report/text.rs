//! Formatting of times, numbers and colours, and sanitizing of untrusted text.

use std::time::Duration;

use anstyle::{AnsiColor, Style};
use rollout::text::is_invisible;

/// Success.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Failure.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// Warning.
pub(crate) const ODD: Style = AnsiColor::Yellow.on_default();
/// Less important text.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Headings and names.
pub(crate) const BOLD: Style = Style::new().bold();

/// Wraps text in a style. Writers strip it if colours are disabled.
pub(crate) fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// A running time: `0:04`, `12:31`, `1:02:03`.
pub(crate) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// A duration: `0.4s`, `2m 05s`, `1h 02m`.
pub(crate) fn span(seconds: f64) -> String {
    if seconds < 59.95 {
        return format!("{seconds:.1}s");
    }
    let whole = seconds.round() as u64;
    match whole / 3600 {
        0 => format!("{}m {:02}s", whole / 60, whole % 60),
        hours => format!("{hours}h {:02}m", whole / 60 % 60),
    }
}

/// A reward or metric with at most three decimals: `1`, `0.92`, `-0.333`.
pub(crate) fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// A fraction as a percentage: `83.3%`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// An amount of US dollars with two decimals, or four below ten cents.
pub(crate) fn dollars(amount: f64) -> String {
    if amount == 0.0 {
        "$0".to_owned()
    } else if amount < 0.1 {
        format!("${amount:.4}")
    } else {
        format!("${amount:.2}")
    }
}

/// A size on disk: `512 B`, `1.5 MiB`.
pub(crate) fn size(bytes: u64) -> String {
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
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Removes control characters and invisible characters, because they could move the cursor of a terminal or reverse the
/// text.
pub(crate) fn printable(line: &str) -> String {
    line.chars().filter(|c| !c.is_control() && !is_invisible(*c)).collect()
}

/// Returns the first line that is not empty, joined with the next line if it ends with a colon, in printable characters.
pub(crate) fn first_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut first = lines.next().unwrap_or_default().to_owned();
    if first.ends_with(':')
        && let Some(next) = lines.next()
    {
        first = format!("{first} {next}");
    }
    printable(&first)
}

/// Cuts the text to at most `width` characters, with an ellipsis at the cut.
pub(crate) fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        cut.push('…');
    }
    cut
}

/// Cuts the text to its last `width` characters, with an ellipsis at the cut.
pub(crate) fn fit_end(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    std::iter::once('…').chain(text.chars().skip(length + 1 - width)).take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_and_exact_enough() {
        assert_eq!([4, 751, 3723].map(|s| clock(Duration::from_secs(s))), ["0:04", "12:31", "1:02:03"]);
        assert_eq!(
            [0.04, 59.94, 59.96, 125.0, 3720.0].map(span),
            ["0.0s", "59.9s", "1m 00s", "2m 05s", "1h 02m"]
        );
    }

    #[test]
    fn numbers_lose_their_empty_decimals() {
        assert_eq!([1.0, 0.92, -1.0 / 3.0, 0.0, -0.0001].map(number), ["1", "0.92", "-0.333", "0", "0"]);
        assert_eq!([0.0, 0.0342, 1.234].map(dollars), ["$0", "$0.0342", "$1.23"]);
        assert_eq!([512, 1536, 3 << 30].map(size), ["512 B", "1.5 KiB", "3.0 GiB"]);
    }

    #[test]
    fn an_untrusted_message_cannot_move_the_cursor() {
        assert_eq!(first_line("\n  \u{1b}[2Jgone\u{7}\r\nsecond"), "[2Jgone");
    }

    #[test]
    fn text_is_cut_by_characters_not_bytes() {
        assert_eq!(fit("日本語", 3), "日本語");
        assert_eq!(fit("日本語です", 3), "日本…");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(
            ["agent/set/t__1", "t__1", "日本語です"].map(|text| fit_end(text, 4)),
            ["…__1", "t__1", "…語です"]
        );
        assert_eq!(fit_end("abc", 0), "");
    }
}
