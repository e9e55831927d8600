//! The lines of a Dockerfile: continuations, and the here-documents between them.

use std::borrow::Cow;

use super::error::ImageBuildError;
use super::expand::Expander;
use super::parse::Location;

/// The longest part of an instruction shown in messages.
const MAX_SHOWN: usize = 120;

/// Replaces here-documents of `RUN` with white space where the parser crate would read them as instructions, and empty
/// lists, which the crate rejects, with words.
///
/// Every byte keeps its position, so spans into the masked text are spans into the original.
pub(crate) fn mask_here_documents(text: &str) -> Result<Cow<'_, str>, ImageBuildError> {
    let escape = escape_directive(text);
    let mut masked = Cow::Borrowed(text);
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let after = at + logical_line(rest, escape);
        let line = join_continuations(&text[at..after], escape);
        let mut words = line.split_whitespace();
        let keyword = words.next().unwrap_or_default().to_ascii_uppercase();
        let start = at;
        at = after;
        if matches!(keyword.as_str(), "CMD" | "ENTRYPOINT") && words.clone().collect::<String>() == "[]" {
            mask_empty_list(masked.to_mut(), start..after);
            continue;
        }
        if !matches!(keyword.as_str(), "RUN" | "COPY" | "ADD") {
            continue;
        }
        let Some(bodies) = collect_bodies(text, after, &markers(&line)) else {
            let at = Location { line: line_number(text, start), text: first_line(&text[start..], escape) };
            let message = "a here-document is not closed by its delimiter on a line of its own".to_owned();
            return Err(ImageBuildError::Syntax { at, message });
        };
        let Some(last) = bodies.last() else { continue };
        at = last.after;
        if keyword == "RUN" {
            let known = words.find(|word| !word.starts_with("--")).is_some_and(|word| word.starts_with("<<"));
            let from = if known { bodies[0].after } else { after };
            let blank: String = text[from..at]
                .chars()
                .flat_map(|c| std::iter::repeat_n(if c == '\n' { '\n' } else { ' ' }, c.len_utf8()))
                .collect();
            masked.to_mut().replace_range(from..at, &blank);
        }
    }
    Ok(masked)
}

fn mask_empty_list(text: &mut String, line: std::ops::Range<usize>) {
    let masked = text[line.clone()].replace(['[', ']'], "x");
    text.replace_range(line, &masked);
}

/// Finds the `escape` directive among the comments that a Dockerfile starts with.
fn escape_directive(text: &str) -> char {
    let directives = text.lines().map_while(|line| line.trim().strip_prefix('#')?.split_once('='));
    let mut escape = directives.filter(|(name, _)| name.trim().eq_ignore_ascii_case("escape"));
    escape.next().and_then(|(_, value)| value.trim().chars().next()).unwrap_or('\\')
}

/// The length of the line that a text starts with, with the lines that continue it.
pub(crate) fn logical_line(text: &str, escape: char) -> usize {
    let mut length = 0;
    let mut continued = false;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        length += line.len();
        if continued && (trimmed.is_empty() || trimmed.starts_with('#')) {
            continue;
        }
        continued = trimmed.ends_with(escape) && !trimmed.starts_with('#');
        if !continued {
            break;
        }
    }
    length
}

/// The words of a shell line, with their quotes.
pub(crate) fn words(line: &str) -> Vec<String> {
    Expander::new('\\', &|_| None).split(line)
}

/// The `<<NAME` of a shell line.
pub(crate) struct Marker {
    delimiter: String,
    pub(crate) strip_tabs: bool,
}

pub(crate) fn markers(line: &str) -> Vec<Marker> {
    words(line)
        .iter()
        .filter_map(|word| {
            let rest = word.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix("<<")?;
            let (strip_tabs, rest) = match rest.strip_prefix('-') {
                Some(rest) => (true, rest),
                None => (false, rest),
            };
            let delimiter = Expander::new('\\', &|_| None).word(rest).ok()?;
            (!delimiter.is_empty() && !delimiter.contains(['<', '(', ')', ';', '&', '|', '>']))
                .then_some(Marker { delimiter, strip_tabs })
        })
        .collect()
}

/// The text of a here-document and the position after its delimiter.
pub(crate) struct Body {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) after: usize,
}

pub(crate) fn collect_bodies(text: &str, from: usize, markers: &[Marker]) -> Option<Vec<Body>> {
    let mut at = from;
    let mut bodies = Vec::new();
    for marker in markers {
        let start = at;
        loop {
            let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
            let length = rest.find('\n').map_or(rest.len(), |newline| newline + 1);
            let line = rest[..length].trim_end_matches(['\n', '\r']);
            let line = if marker.strip_tabs { line.trim_start_matches('\t') } else { line };
            let end = at;
            at += length;
            if line == marker.delimiter {
                bodies.push(Body { start, end, after: at });
                break;
            }
        }
    }
    Some(bodies)
}

pub(crate) fn strip_tabs(text: &str) -> String {
    text.split_inclusive('\n').map(|line| line.trim_start_matches('\t')).collect()
}

/// Joins the lines of a shell form: removes continuations, and the comments and empty lines between them.
pub(crate) fn join_continuations(raw: &str, escape: char) -> String {
    let mut out = String::with_capacity(raw.len());
    for (number, line) in raw.lines().enumerate() {
        let trimmed = line.trim();
        if number > 0 && (trimmed.is_empty() || trimmed.starts_with('#')) {
            continue;
        }
        match line.trim_end().strip_suffix(escape) {
            Some(kept) => out.push_str(kept),
            None => out.push_str(line),
        }
    }
    out.trim().to_owned()
}

pub(crate) fn line_number(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The first line of an instruction, as shown in messages.
pub(crate) fn first_line(text: &str, escape: char) -> String {
    let line = text.lines().next().unwrap_or_default().trim();
    match line.strip_suffix(escape) {
        Some(continued) => shorten(&format!("{} …", continued.trim_end())),
        None => shorten(line),
    }
}

pub(crate) fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
