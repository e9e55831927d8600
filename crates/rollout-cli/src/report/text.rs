//! Formatting of times, numbers and colours, and sanitizing of untrusted text.

use std::time::Duration;

use anstyle::{AnsiColor, Style};
pub(crate) use rollout::display::{count, dollars, number, percent, size, span};
pub(crate) use rollout::text::{first_line, fit, without_controls as printable};

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

/// Cuts the text to its last `width` characters, with an ellipsis at the cut.
pub(crate) fn fit_end(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    std::iter::once('…').chain(text.chars().skip(length + 1 - width)).take(width).collect()
}

/// Breaks a text between words into lines of at most `width` characters. Longer words are broken too. There is at least
/// one line.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let (mut lines, mut line, mut length) = (Vec::new(), String::new(), 0);
    for word in text.split(' ') {
        let word_length = word.chars().count();
        if length > 0 && length + 1 + word_length > width {
            lines.push(std::mem::take(&mut line));
            length = 0;
        } else if !line.is_empty() || length > 0 {
            line.push(' ');
            length += 1;
        }
        for c in word.chars() {
            if length == width {
                lines.push(std::mem::take(&mut line));
                length = 0;
            }
            line.push(c);
            length += 1;
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_and_exact_enough() {
        assert_eq!([4, 751, 3723].map(|s| clock(Duration::from_secs(s))), ["0:04", "12:31", "1:02:03"]);
    }

    #[test]
    fn text_is_wrapped_between_words_and_long_words_are_broken() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a abcdefgh b", 4), ["a", "abcd", "efgh", "b"]);
        assert_eq!(wrap("", 4), [""]);
        assert_eq!(wrap("日本語", 2), ["日本", "語"]);
        assert_eq!(wrap("any text", usize::MAX), ["any text"]);
    }

    #[test]
    fn text_is_cut_by_characters_not_bytes() {
        assert_eq!(
            ["agent/set/t__1", "t__1", "日本語です"].map(|text| fit_end(text, 4)),
            ["…__1", "t__1", "…語です"]
        );
        assert_eq!(fit_end("abc", 0), "");
    }
}
