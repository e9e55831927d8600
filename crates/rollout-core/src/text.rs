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

/// Removes escape sequences of terminals, control characters and invisible characters, because they could move the
/// cursor, change colours or reverse the text.
///
/// ```
/// assert_eq!(rollout_core::text::without_controls("\u{1b}[31mred\u{1b}[0m\u{7}"), "red");
/// ```
pub fn without_controls(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut add = |part: &str| shown.extend(part.chars().filter(|c| !c.is_control() && !is_invisible(*c)));
    let mut rest = text;
    while let Some(start) = rest.find('\u{1b}') {
        add(&rest[..start]);
        rest = split_escape(&rest[start + 1..]).1;
    }
    add(rest);
    shown
}

/// Splits off an escape sequence of a terminal, behind its escape character. Returns the parameters of a sequence that
/// changes the style of the text, and the rest of the text.
pub fn split_escape(text: &str) -> (Option<&str>, &str) {
    if let Some(body) = text.strip_prefix('[') {
        let end = body.find(|c: char| ('@'..='~').contains(&c)).unwrap_or(body.len());
        let after = body.get(end + 1..).unwrap_or("");
        let is_style = body[end..].starts_with('m')
            && body[..end].bytes().all(|byte| matches!(byte, b'0'..=b'9' | b';' | b':'));
        return (is_style.then_some(&body[..end]), after);
    }
    if text.starts_with([']', 'P', 'X', '^', '_']) {
        let bell = text.find('\u{7}').map(|at| at + 1);
        let end = text.find("\u{1b}\\").map(|at| at + 2);
        let end = [bell, end].into_iter().flatten().min().unwrap_or(text.len());
        return (None, &text[end..]);
    }
    let skipped = text.chars().take_while(|c| (' '..='/').contains(c)).count();
    let mut rest = text[skipped..].chars();
    rest.next();
    (None, rest.as_str())
}

/// Returns the first line that is not empty, joined with the next line if it ends with a colon, without control
/// characters.
pub fn first_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut first = lines.next().unwrap_or_default().to_owned();
    if first.ends_with(':')
        && let Some(next) = lines.next()
    {
        first = format!("{first} {next}");
    }
    without_controls(&first)
}

/// Cuts a text to at most `width` characters, with an ellipsis at the cut.
pub fn fit(text: &str, width: usize) -> String {
    if text.len() <= width || text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        cut.push('…');
    }
    cut
}

/// Quotes a text as one word of a shell, if that is needed.
///
/// ```
/// use rollout_core::text::shell_quoted;
///
/// assert_eq!(shell_quoted("jobs/first"), "jobs/first");
/// assert_eq!(shell_quoted("it's; rm"), r"'it'\''s; rm'");
/// ```
pub fn shell_quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
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

/// Returns an error and its causes on one line. A cause is not repeated if the text already ends with it: some
/// libraries print the cause at the end of the error.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = format!(": {cause}");
        if !format!(": {text}").ends_with(&more) {
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Failure(&'static str, Option<Box<Failure>>);

    impl std::fmt::Display for Failure {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Failure {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn a_cause_is_printed_once() {
        let of = |texts: &[&'static str]| {
            let failure = texts.iter().rev().fold(None, |cause, text| Some(Box::new(Failure(text, cause))));
            chain(&*failure.unwrap())
        };
        assert_eq!(of(&["cannot add", "no"]), "cannot add: no");
        assert_eq!(of(&["cannot add: no room", "no room", "disk full"]), "cannot add: no room: disk full");
        assert_eq!(of(&["disk full", "disk full"]), "disk full");
        assert_eq!(of(&["a: b: c", "b: c", "c"]), "a: b: c");
    }

    #[test]
    fn an_untrusted_message_cannot_move_the_cursor() {
        assert_eq!(first_line("\n  \u{1b}[2Jgone\u{7}\r\nsecond"), "gone");
        for sequence in
            ["\u{1b}[1;31m", "\u{1b}[?25l", "\u{1b}c", "\u{1b}(B", "\u{1b}]0;t\u{7}", "\u{1b}]52;c;x\u{1b}\\"]
        {
            assert_eq!(without_controls(&format!("a{sequence}b")), "ab", "{sequence:?}");
        }
        assert_eq!(["\u{1b}", "\u{1b}[", "\u{1b}[é", "\u{1b}é"].map(without_controls), ["", "", "", ""]);
    }

    #[test]
    fn text_is_cut_by_characters_not_bytes() {
        assert_eq!(fit("日本語", 3), "日本語");
        assert_eq!(fit("日本語です", 3), "日本…");
        assert_eq!(fit("abc", 0), "");
    }

    #[test]
    fn a_long_list_names_the_first_ten_and_counts_the_rest() {
        let names = |count: usize| (1..=count).map(|n| n.to_string());
        assert_eq!(listed(names(0)), "");
        assert_eq!(listed(names(2)), "1, 2");
        assert_eq!(listed(names(10)), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10");
        assert_eq!(listed(names(12)), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more");
    }
}
