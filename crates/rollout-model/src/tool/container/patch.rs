//! Parses and applies patches: the `*** Begin Patch` format of models, and unified diffs.
//!
//! A hunk is found by its text. Line numbers are ignored, because models count lines badly.

/// Why a patch cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The format is unknown.
    #[error(
        "the patch has no section `*** Update File: <path>`, `*** Add File: <path>` or `*** Delete File: <path>`, and is not a unified diff"
    )]
    NoSections,
    /// A line is not valid at its position.
    #[error("unexpected line {line} of the patch: {text:?}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// Two sections are for the same file.
    #[error("the patch changes {0} twice; use one section")]
    Twice(String),
    /// An update changes nothing.
    #[error("the section for {0} changes nothing")]
    Empty(String),
    /// The file does not contain the lines of a hunk.
    #[error("{path} does not contain these lines, in this order:\n{lines}")]
    NotFound {
        /// The file.
        path: String,
        /// The missing lines.
        lines: String,
    },
}

/// The change of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) path: String,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Add(String),
    Delete,
    Update { hunks: Vec<Hunk>, move_to: Option<String> },
}

impl Change {
    pub(super) fn move_to(&self) -> Option<&str> {
        match &self.kind {
            Kind::Update { move_to, .. } => move_to.as_deref(),
            _ => None,
        }
    }
}

/// A position in a file and its change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Hunk {
    /// Lines before it, each after the previous one.
    anchors: Vec<String>,
    lines: Vec<Line>,
    /// Whether it must be at the end of the file.
    at_end: bool,
    /// Whether the new file has no line break at the end.
    no_newline: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    Kept(String),
    Removed(String),
    Added(String),
}

/// Parses a patch in either format.
pub(super) fn parse(text: &str) -> Result<Vec<Change>, PatchError> {
    let lines: Vec<&str> = text.lines().collect();
    let is_envelope = lines.iter().any(|line| section(line).is_some());
    let changes = if is_envelope { parse_envelope(&lines)? } else { parse_diff(&lines)? };
    if changes.is_empty() {
        return Err(PatchError::NoSections);
    }
    for (index, change) in changes.iter().enumerate() {
        if changes[..index].iter().any(|other| other.path == change.path) {
            return Err(PatchError::Twice(change.path.clone()));
        }
        if let Kind::Update { hunks, move_to: None } = &change.kind
            && hunks.iter().all(|hunk| hunk.lines.iter().all(|line| matches!(line, Line::Kept(_))))
        {
            return Err(PatchError::Empty(change.path.clone()));
        }
    }
    Ok(changes)
}

enum Section {
    Update,
    Add,
    Delete,
}

fn section(line: &str) -> Option<(Section, &str)> {
    let rest = line.strip_prefix("*** ")?;
    let (kind, path) = rest.split_once(" File:")?;
    let section = match kind {
        "Update" => Section::Update,
        "Add" => Section::Add,
        "Delete" => Section::Delete,
        _ => return None,
    };
    Some((section, path.trim()))
}

fn parse_envelope(lines: &[&str]) -> Result<Vec<Change>, PatchError> {
    let mut changes: Vec<Change> = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let nonsense = || PatchError::Line { line: number + 1, text: (*line).to_owned() };
        if let Some((section, path)) = section(line) {
            let kind = match section {
                Section::Update => Kind::Update { hunks: Vec::new(), move_to: None },
                Section::Add => Kind::Add(String::new()),
                Section::Delete => Kind::Delete,
            };
            changes.push(Change { path: path.to_owned(), kind });
            continue;
        }
        if line.trim() == "*** End Patch" {
            break;
        }
        match changes.last_mut().map(|change| &mut change.kind) {
            None if line.trim().is_empty() || line.trim() == "*** Begin Patch" => {}
            None => return Err(nonsense()),
            Some(Kind::Add(content)) => {
                content.push_str(line.strip_prefix('+').ok_or_else(nonsense)?);
                content.push('\n');
            }
            Some(Kind::Delete) if line.trim().is_empty() => {}
            Some(Kind::Delete) => return Err(nonsense()),
            Some(Kind::Update { hunks, move_to }) => {
                if let Some(path) = line.strip_prefix("*** Move to:") {
                    *move_to = Some(path.trim().to_owned());
                } else if line.trim() == "*** End of File" {
                    hunks.last_mut().ok_or_else(nonsense)?.at_end = true;
                } else if let Some(anchor) = line.strip_prefix("@@") {
                    // Several anchors in a row belong to one hunk.
                    let anchor = anchor.strip_prefix(' ').unwrap_or(anchor);
                    let mut hunk = hunks.pop_if(|hunk| hunk.lines.is_empty()).unwrap_or_default();
                    if !anchor.trim().is_empty() && !is_range(anchor) {
                        hunk.anchors.push(anchor.to_owned());
                    }
                    hunks.push(hunk);
                } else {
                    if hunks.is_empty() {
                        hunks.push(Hunk::default());
                    }
                    let hunk = hunks.last_mut().ok_or_else(nonsense)?;
                    hunk.lines.push(body_line(line).ok_or_else(nonsense)?);
                }
            }
        }
    }
    Ok(changes)
}

/// Whether this is a range after `@@` in a unified diff.
fn is_range(text: &str) -> bool {
    let text = text.trim_start();
    text.starts_with('-') && text.contains(" +") && text.contains("@@")
}

fn body_line(line: &str) -> Option<Line> {
    let mut rest = line.chars();
    match rest.next() {
        Some(' ') => Some(Line::Kept(rest.as_str().to_owned())),
        Some('-') => Some(Line::Removed(rest.as_str().to_owned())),
        Some('+') => Some(Line::Added(rest.as_str().to_owned())),
        // Models leave out the space of an empty line.
        None => Some(Line::Kept(String::new())),
        Some(_) => None,
    }
}

fn parse_diff(lines: &[&str]) -> Result<Vec<Change>, PatchError> {
    let mut changes = Vec::new();
    let mut number = 0;
    while number < lines.len() {
        let (Some(old), Some(new)) = (
            lines[number].strip_prefix("--- "),
            lines.get(number + 1).and_then(|line| line.strip_prefix("+++ ")),
        ) else {
            number += 1;
            continue;
        };
        number += 2;
        let mut hunks: Vec<Hunk> = Vec::new();
        while let Some(line) = lines.get(number) {
            if line.starts_with("--- ") && lines.get(number + 1).is_some_and(|next| next.starts_with("+++ "))
                || line.starts_with("diff ")
            {
                break;
            }
            if line.starts_with("@@") {
                hunks.push(Hunk::default());
            } else if let Some(hunk) = hunks.last_mut() {
                if line.starts_with('\\') {
                    hunk.no_newline = !matches!(hunk.lines.last(), Some(Line::Removed(_)));
                } else {
                    let nonsense = || PatchError::Line { line: number + 1, text: (*line).to_owned() };
                    hunk.lines.push(body_line(line).ok_or_else(nonsense)?);
                }
            }
            number += 1;
        }
        changes.push(of_diff(diff_path(old, "a/"), diff_path(new, "b/"), hunks)?);
    }
    Ok(changes)
}

/// The path of a header line; none for `/dev/null`.
fn diff_path<'a>(header: &'a str, prefix: &str) -> Option<&'a str> {
    let path = header.split('\t').next().unwrap_or(header).trim_end();
    (path != "/dev/null").then(|| path.strip_prefix(prefix).unwrap_or(path))
}

fn of_diff(old: Option<&str>, new: Option<&str>, hunks: Vec<Hunk>) -> Result<Change, PatchError> {
    match (old, new) {
        (None, None) => Err(PatchError::NoSections),
        (Some(old), None) => Ok(Change { path: old.to_owned(), kind: Kind::Delete }),
        (None, Some(new)) => {
            let content = apply(new, "", &hunks)?;
            Ok(Change { path: new.to_owned(), kind: Kind::Add(content) })
        }
        (Some(old), Some(new)) => {
            let move_to = (old != new).then(|| new.to_owned());
            Ok(Change { path: old.to_owned(), kind: Kind::Update { hunks, move_to } })
        }
    }
}

/// Applies the hunks. Each is searched after the previous one.
pub(super) fn apply(path: &str, old: &str, hunks: &[Hunk]) -> Result<String, PatchError> {
    let lines: Vec<&str> = old.lines().collect();
    let crlf = old.contains("\r\n");
    let mut new: Vec<&str> = Vec::with_capacity(lines.len());
    let mut from = 0;
    let mut newline = old.is_empty() || old.ends_with('\n');
    for hunk in hunks {
        let not_found =
            |wanted: &[&str]| PatchError::NotFound { path: path.to_owned(), lines: wanted.join("\n") };
        let mut search = from;
        for anchor in &hunk.anchors {
            let found = find(&lines, &[anchor], search, false).ok_or_else(|| not_found(&[anchor]))?;
            search = found + 1;
        }
        let wanted: Vec<&str> = hunk.lines.iter().filter_map(Line::before).collect();
        let at = if wanted.is_empty() {
            // Nothing to search: insert after the anchor, or at the end.
            if hunk.anchors.is_empty() { lines.len() } else { search }
        } else {
            find(&lines, &wanted, search, hunk.at_end).ok_or_else(|| not_found(&wanted))?
        };
        new.extend(&lines[from..at]);
        let mut next = at;
        for line in &hunk.lines {
            match line {
                // If only white space differs, the text of the file is kept.
                Line::Kept(_) => {
                    new.push(lines[next]);
                    next += 1;
                }
                Line::Removed(_) => next += 1,
                Line::Added(text) => new.push(text),
            }
        }
        from = next;
        newline |= from == lines.len();
        if hunk.no_newline {
            newline = false;
        }
    }
    new.extend(&lines[from..]);
    let separator = if crlf { "\r\n" } else { "\n" };
    let mut text = new.join(separator);
    if newline && !new.is_empty() {
        text.push_str(separator);
    }
    Ok(text)
}

impl Line {
    /// The line before the patch, if it existed.
    fn before(&self) -> Option<&str> {
        match self {
            Self::Kept(text) | Self::Removed(text) => Some(text),
            Self::Added(_) => None,
        }
    }
}

/// The position of some lines, compared exactly first, then without white space at their ends.
fn find(lines: &[&str], wanted: &[&str], from: usize, at_end: bool) -> Option<usize> {
    let last = lines.len().checked_sub(wanted.len())?;
    let same: [fn(&str, &str) -> bool; 3] =
        [|a, b| a == b, |a, b| a.trim_end() == b.trim_end(), |a, b| a.trim() == b.trim()];
    let matches = |at: usize, same: fn(&str, &str) -> bool| {
        lines[at..].iter().zip(wanted).all(|(line, wanted)| same(line, wanted))
    };
    same.into_iter().find_map(|same| {
        if at_end {
            return (last >= from && matches(last, same)).then_some(last);
        }
        (from..=last).find(|at| matches(*at, same))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::tool::container::patch::*;

    /// The result of a patch that updates one file.
    fn update(old: &str, patch: &str) -> Result<String, PatchError> {
        let changes = parse(patch)?;
        let [Change { path, kind: Kind::Update { hunks, .. } }] = &changes[..] else {
            panic!("not one update: {changes:?}");
        };
        apply(path, old, hunks)
    }

    #[test]
    fn an_envelope_adds_updates_moves_and_deletes() {
        let patch = "*** Begin Patch\n*** Add File: new.txt\n+one\n+\n+two\n*** Delete File: old.txt\n\
                     *** Update File: a.py\n*** Move to: b.py\n@@ def f():\n-    pass\n+    return 1\n*** End Patch\n";
        let changes = parse(patch).unwrap();
        assert_eq!(
            changes[0],
            Change { path: "new.txt".to_owned(), kind: Kind::Add("one\n\ntwo\n".to_owned()) }
        );
        assert_eq!(changes[1], Change { path: "old.txt".to_owned(), kind: Kind::Delete });
        assert_eq!((changes[2].path.as_str(), changes[2].move_to()), ("a.py", Some("b.py")));
        let Kind::Update { hunks, .. } = &changes[2].kind else { panic!("not an update") };
        let old = "def e():\n    pass\n\ndef f():\n    pass\n";
        assert_eq!(apply("a.py", old, hunks).unwrap(), "def e():\n    pass\n\ndef f():\n    return 1\n");
    }

    #[test]
    fn hunks_are_applied_one_after_another_wherever_their_text_is() {
        let old = "a\nb\nc\nb\nd\n";
        let patch = "*** Begin Patch\n*** Update File: f\n@@\n a\n-b\n+B\n@@\n b\n+new\n d\n*** End Patch";
        assert_eq!(update(old, patch).unwrap(), "a\nB\nc\nb\nnew\nd\n");
    }

    #[test]
    fn several_anchors_locate_one_hunk() {
        let old = "class A:\n  def f():\n    x\nclass B:\n  def f():\n    x\n";
        let patch = "*** Update File: f\n@@ class B:\n@@   def f():\n-    x\n+    y\n";
        assert_eq!(update(old, patch).unwrap(), "class A:\n  def f():\n    x\nclass B:\n  def f():\n    y\n");
    }

    #[test]
    fn a_hunk_at_the_end_of_the_file_is_found_there() {
        let patch = "*** Update File: f\n@@\n-x\n+y\n*** End of File\n";
        assert_eq!(update("x\nx\n", patch).unwrap(), "x\ny\n");
    }

    #[test]
    fn lines_without_context_are_added_at_the_end_or_after_their_anchor() {
        assert_eq!(update("a\nb\n", "*** Update File: f\n@@\n+c\n").unwrap(), "a\nb\nc\n");
        assert_eq!(update("a\nb\n", "*** Update File: f\n@@ a\n+c\n").unwrap(), "a\nc\nb\n");
        assert_eq!(update("", "*** Update File: f\n+c\n").unwrap(), "c\n");
    }

    #[test]
    fn wrong_white_space_is_accepted_and_that_of_the_file_kept() {
        let patch = "*** Update File: f\n@@\n if x:\n-  old\n+\tnew\n";
        assert_eq!(update("\tif x:  \n\told\n", patch).unwrap(), "\tif x:  \n\tnew\n");
    }

    #[test]
    fn line_endings_of_the_file_are_kept() {
        let patch = "*** Update File: f\n@@\n-a\n+c\n";
        assert_eq!(update("a\r\nb\r\n", patch).unwrap(), "c\r\nb\r\n");
        assert_eq!(update("a\nb", patch).unwrap(), "c\nb");
    }

    #[test]
    fn a_unified_diff_is_applied_whatever_its_line_numbers() {
        let patch = "diff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -90,2 +90,2 @@ fn x\n a\n-b\n+B\n\
                     --- /dev/null\n+++ b/new\n@@ -0,0 +1,2 @@\n+x\n+y\n\\ No newline at end of file\n\
                     --- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-z\n";
        let changes = parse(patch).unwrap();
        let Kind::Update { hunks, move_to: None } = &changes[0].kind else { panic!("not an update") };
        assert_eq!(apply("f", "0\na\nb\nc\n", hunks).unwrap(), "0\na\nB\nc\n");
        assert_eq!(changes[1], Change { path: "new".to_owned(), kind: Kind::Add("x\ny".to_owned()) });
        assert_eq!(changes[2], Change { path: "gone".to_owned(), kind: Kind::Delete });
    }

    #[test]
    fn a_patch_that_does_not_apply_is_explained() {
        let failure = |old: &str, patch: &str| update(old, patch).unwrap_err().to_string();
        insta::assert_snapshot!(failure("a\n", "*** Update File: f\n@@\n-b\n+c\n"), @"
        f does not contain these lines, in this order:
        b
        ");
        insta::assert_snapshot!(failure("a\n", "*** Update File: f\n@@ fn x\n-b\n+c\n"), @"
        f does not contain these lines, in this order:
        fn x
        ");
        insta::assert_snapshot!(failure("a\n", "*** Update File: f\n@@\n a\nrubbish\n"), @r#"unexpected line 4 of the patch: "rubbish""#);
        insta::assert_snapshot!(failure("a\n", "*** Update File: f\n@@\n a\n"), @"the section for f changes nothing");
        insta::assert_snapshot!(failure("a\n", "*** Delete File: f\n*** Delete File: f\n"), @"the patch changes f twice; use one section");
        insta::assert_snapshot!(failure("a\n", "change a to b, please"), @"the patch has no section `*** Update File: <path>`, `*** Add File: <path>` or `*** Delete File: <path>`, and is not a unified diff");
        insta::assert_snapshot!(failure("a\n", "*** Add File: f\nno plus\n"), @r#"unexpected line 2 of the patch: "no plus""#);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "(\\*\\*\\* (Begin Patch|End Patch|End of File|(Add|Update|Delete) File: [ab]|Move to: c)|--- a/f|\\+\\+\\+ b/f|@@.?|[-+ ]?[ab\\r]{0,2}|.{0,5}\n){0,12}", old in "([ab ]{0,3}\r?\n?){0,6}") {
            for change in parse(&text).unwrap_or_default() {
                if let Kind::Update { hunks, .. } = change.kind {
                    let _ = apply("f", &old, &hunks);
                }
            }
        }

        #[test]
        fn a_patch_made_from_two_texts_turns_one_into_the_other(
            before in prop::collection::vec("[a-c]", 0..6),
            removed in prop::collection::vec("[d-f]", 1..4),
            added in prop::collection::vec("[g-i]", 0..4),
            after in prop::collection::vec("[a-c]", 0..6),
        ) {
            let lines = |parts: &[&[String]]| parts.concat().iter().map(|line| format!("{line}\n")).collect::<String>();
            let old = lines(&[&before, &removed, &after]);
            let new = lines(&[&before, &added, &after]);
            let marked = |mark: char, lines: &[String]| lines.iter().map(|line| format!("{mark}{line}\n")).collect::<String>();
            let patch = format!("*** Update File: f\n@@\n{}{}", marked('-', &removed), marked('+', &added));
            prop_assert_eq!(update(&old, &patch).unwrap(), new);
        }
    }
}
