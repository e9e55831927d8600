//! Explains YAML syntax errors in practical terms: the parser's messages speak of scalars and blocks.

use std::ops::Range;

/// What is wrong, where, and how to fix it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SyntaxCause {
    pub(crate) message: String,
    pub(crate) at: Range<usize>,
    pub(crate) hint: String,
}

/// Finds the most likely cause of a parser error at this offset, if it is a common one.
pub(crate) fn cause(text: &str, noticed: usize) -> Option<SyntaxCause> {
    let noticed = noticed.min(text.len());
    let line = text[..noticed].matches('\n').count();
    let open = Open::before(text, noticed);
    if let Some((at, quote)) = open.quote {
        return Some(SyntaxCause {
            message: format!("this {quote} is not closed on its line"),
            at: at..at + 1,
            hint: format!("add another {quote} where the value ends"),
        });
    }
    if let Some((at, bracket)) = open.bracket {
        let closing = if bracket == '[' { ']' } else { '}' };
        return Some(SyntaxCause {
            message: format!("this `{bracket}` is not closed"),
            at: at..at + 1,
            hint: format!("add a `{closing}`"),
        });
    }
    tab(text, line).or_else(|| indentation(text, line))
}

/// What is open at a position.
#[derive(Default)]
struct Open {
    quote: Option<(usize, char)>,
    bracket: Option<(usize, char)>,
}

impl Open {
    /// Reads up to the line of a position. A quote counts as open if it is not closed on its line: quoted
    /// values of several lines are rare, and this runs only after an error.
    fn before(text: &str, end: usize) -> Self {
        let end = text[end..].find('\n').map_or(text.len(), |rest| end + rest);
        let mut brackets: Vec<(usize, char)> = Vec::new();
        let mut offset = 0;
        let mut block: Option<usize> = None;
        for line in text[..end].split_inclusive('\n') {
            let start = offset;
            offset += line.len();
            let indent = line.len() - line.trim_start_matches(' ').len();
            // The lines of a block text have no syntax.
            if block.is_some_and(|outer| line.trim().is_empty() || indent > outer) {
                continue;
            }
            block = None;
            let mut before = None;
            let mut chars = line.char_indices().peekable();
            while let Some((at, char)) = chars.next() {
                match char {
                    '#' if before.is_none_or(char::is_whitespace) => break,
                    '"' | '\'' if starts_value(&line[..at]) => {
                        let Some(close) = closed(&line[at + 1..], char) else {
                            return Self { quote: Some((start + at, char)), bracket: None };
                        };
                        while chars.peek().is_some_and(|(next, _)| *next <= at + 1 + close) {
                            chars.next();
                        }
                    }
                    '[' | '{' if starts_value(&line[..at]) || !brackets.is_empty() => {
                        brackets.push((start + at, char));
                    }
                    ']' | '}' if !brackets.is_empty() => _ = brackets.pop(),
                    _ => {}
                }
                before = Some(char);
            }
            let last = line.trim_end();
            if brackets.is_empty()
                && [": |", ": >", ": |-", ": >-", ": |+", "- |"].iter().any(|end| last.ends_with(end))
            {
                block = Some(indent);
            }
        }
        Self { quote: None, bracket: brackets.pop() }
    }
}

/// Whether a value can begin after this part of a line.
fn starts_value(before: &str) -> bool {
    matches!(before.trim_end().chars().last(), None | Some(':' | '-' | '[' | '{' | ','))
}

/// The position of the closing quote in the rest of its line.
fn closed(rest: &str, quote: char) -> Option<usize> {
    let mut chars = rest.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' if quote == '"' => _ = chars.next(),
            '\'' if quote == '\'' && rest[at + 1..].starts_with('\'') => _ = chars.next(),
            char if char == quote => return Some(at),
            _ => {}
        }
    }
    None
}

/// A tab in the indentation of the line of an error, or of the next.
fn tab(text: &str, line: usize) -> Option<SyntaxCause> {
    let mut offset = 0;
    for (number, content) in text.split_inclusive('\n').enumerate().take(line + 2) {
        let indent = content.len() - content.trim_start_matches([' ', '\t']).len();
        if number + 1 >= line
            && let Some(at) = content[..indent].find('\t')
        {
            return Some(SyntaxCause {
                message: "the line is indented by a tab".to_owned(),
                at: offset + at..offset + at + 1,
                hint: "indent it by spaces".to_owned(),
            });
        }
        offset += content.len();
    }
    None
}

/// A line whose indentation matches none of the open ones above it.
fn indentation(text: &str, line: usize) -> Option<SyntaxCause> {
    let mut open: Vec<usize> = Vec::new();
    let mut offset = 0;
    for (number, content) in text.split_inclusive('\n').enumerate() {
        let start = offset;
        offset += content.len();
        let trimmed = content.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        let indent = content.len() - content.trim_start_matches(' ').len();
        while open.last().is_some_and(|last| *last > indent) {
            let inner = open.pop();
            let outer = open.last().copied();
            if number + 1 >= line && number <= line && outer.is_none_or(|outer| outer < indent) {
                let fits = [outer, inner].into_iter().flatten().map(|spaces| spaces.to_string());
                let fits = fits.collect::<Vec<_>>().join(" or ");
                let trimmed_start = start + indent;
                return Some(SyntaxCause {
                    message: format!("the line is indented by {indent} spaces, unlike the lines above it"),
                    at: trimmed_start..trimmed_start + 1,
                    hint: format!("indent it by {fits} spaces"),
                });
            }
        }
        if open.last() != Some(&indent) {
            open.push(indent);
        }
        // The text after a dash is indented as if the dash were a space.
        if let Some(rest) = trimmed.strip_prefix("- ") {
            open.push(indent + 2 + (rest.len() - rest.trim_start().len()));
        }
        if number > line {
            break;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn explain(text: &str, noticed: usize) -> String {
        let SyntaxCause { message, at, hint } = cause(text, noticed).expect("there is a cause");
        let line = text[..at.start].matches('\n').count() + 1;
        format!("{line} {:?}: {message}; {hint}", &text[at])
    }

    #[test]
    fn common_causes_are_found_at_their_position() {
        let at = |text: &str, part: &str| text.find(part).unwrap();
        let quote = "name: \"one\nagents:\n  - name: \"two\"\n";
        assert_eq!(
            explain(quote, at(quote, "agents")),
            "1 \"\\\"\": this \" is not closed on its line; add another \" where the value ends"
        );
        let list = "agents: [{name: oracle}\ndatasets:\n  - path: x\n";
        assert_eq!(explain(list, at(list, ":\n  -")), "1 \"[\": this `[` is not closed; add a `]`");
        let tab = "agents:\n\t- name: oracle\n";
        assert_eq!(explain(tab, 0), "2 \"\\t\": the line is indented by a tab; indent it by spaces");
        let indented = "agents:\n  - name: a\n    env: {A: b}\n   description: c\n";
        assert_eq!(
            explain(indented, at(indented, "description")),
            "4 \"d\": the line is indented by 3 spaces, unlike the lines above it; indent it by 2 or 4 spaces"
        );
    }

    #[test]
    fn scripts_and_comments_are_ignored() {
        let text = "agents:\n  - name: a\n    execute: |\n      echo \"one\n      if [ x; then\n  # it's\nname: b: c\n";
        assert_eq!(cause(text, text.find(": c").unwrap()), None);
    }
}
