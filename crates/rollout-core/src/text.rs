//! Formatting of untrusted text, long lists, bytes and durations for messages and records.

use std::time::Duration;

/// Formats bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

/// Returns seconds rounded to microseconds.
pub fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e6
}

/// Whether a character is invisible, or changes the direction of the text around it. Two texts that differ only in such
/// characters look the same.
pub fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{00ad}' | '\u{061c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}

/// Escapes characters that move a terminal's cursor, change its colours or reverse the text, as in `\u{1b}`. Line
/// breaks and tabs are kept.
///
/// ```
/// assert_eq!(rollout_core::text::printable("a\tb\n\u{1b}[31mred"), "a\tb\n\\u{1b}[31mred");
/// ```
pub fn printable(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            _ if c.is_control() || is_invisible(c) => shown.extend(c.escape_unicode()),
            _ => shown.push(c),
        }
    }
    shown
}

/// Returns the start of a text, short enough for a message.
pub fn excerpt(text: &str) -> String {
    cut(text, 60)
}

/// Returns the first characters of a text, with an ellipsis if there are more.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the first names of a list, and the number of the others.
pub fn listed(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    const SHOWN: usize = 10;
    let mut names = names.into_iter();
    let mut text = String::new();
    for (place, name) in names.by_ref().take(SHOWN).enumerate() {
        if place > 0 {
            text.push_str(", ");
        }
        text.push_str(name.as_ref());
    }
    match names.count() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// Returns more backticks in a row than any of the texts contains. A text between two such lines cannot end the code
/// block.
pub fn fence<'t>(texts: impl IntoIterator<Item = &'t str>) -> String {
    let runs = texts.into_iter().flat_map(|text| text.split(|c| c != '`').map(str::len));
    "`".repeat(runs.max().unwrap_or(0).max(2) + 1)
}

/// Returns an error and its causes on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_names_the_first_ten_and_counts_the_rest() {
        let names = |count: usize| (1..=count).map(|n| n.to_string());
        assert_eq!(listed(names(0)), "");
        assert_eq!(listed(names(2)), "1, 2");
        assert_eq!(listed(names(10)), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10");
        assert_eq!(listed(names(12)), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more");
    }
}
