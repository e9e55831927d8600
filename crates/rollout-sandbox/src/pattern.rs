//! File patterns: the globs of `COPY` and `ADD`, and the rules of `.dockerignore`.
//!
//! Names are bytes, because file names need not be UTF-8. A `*`, a `?` and a class never match a slash. `**` as
//! a whole path component matches any number of components.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns whether a source contains a wildcard, so that it must be matched instead of looked up.
pub(crate) fn is_pattern(source: &str) -> bool {
    source.bytes().any(|b| matches!(b, b'*' | b'?' | b'['))
}

/// Matches a relative path against a pattern, component by component.
pub(crate) fn matches(pattern: &str, path: &Path) -> bool {
    let pattern: Vec<&[u8]> = components(pattern.as_bytes()).collect();
    let path: Vec<&[u8]> = components(path.as_os_str().as_bytes()).collect();
    path_matches(&pattern, &path)
}

/// Matches text that is not a path, so a wildcard matches any byte.
pub(crate) fn text_matches(pattern: &str, text: &str) -> bool {
    component_matches(pattern.as_bytes(), text.as_bytes())
}

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".")
}

fn path_matches(pattern: &[&[u8]], path: &[&[u8]]) -> bool {
    let one = |pattern: &[&[u8]], name: &&[u8]| component_matches(pattern.first()?, name).then_some(1);
    wildcard_matches(pattern, path, |part| *part == b"**", one)
}

/// Matches the name of one file.
pub(crate) fn component_matches(pattern: &[u8], name: &[u8]) -> bool {
    wildcard_matches(pattern, name, |byte| *byte == b'*', |pattern, byte| one_matches(pattern, *byte))
}

/// Matches wildcards by remembering only the last one: linear in memory, and never exponential in time.
///
/// `one` matches the first element of the text without a wildcard and returns the length of the pattern it
/// used.
fn wildcard_matches<P, T>(
    pattern: &[P],
    text: &[T],
    is_wildcard: impl Fn(&P) -> bool,
    one: impl Fn(&[P], &T) -> Option<usize>,
) -> bool {
    let (mut p, mut s) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while s < text.len() {
        if pattern.get(p).is_some_and(&is_wildcard) {
            retry = Some((p + 1, s));
            p += 1;
        } else if let Some(used) = one(&pattern[p..], &text[s]) {
            p += used;
            s += 1;
        } else if let Some((after, from)) = retry {
            retry = Some((after, from + 1));
            p = after;
            s = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(is_wildcard)
}

/// Matches one byte and returns the length of the pattern it used.
fn one_matches(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'[' => match class_matches(&pattern[1..], byte) {
            Some((true, used)) => Some(used + 1),
            Some((false, _)) => None,
            None => (byte == b'[').then_some(1),
        },
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        literal => (literal == byte).then_some(1),
    }
}

/// Matches a class after its `[`; `None` if the class is not closed.
fn class_matches(class: &[u8], byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(class.first(), Some(b'^' | b'!'));
    let mut at = usize::from(negated);
    let start = at;
    let mut found = false;
    loop {
        let low = *class.get(at)?;
        if low == b']' && at > start {
            return Some((found != negated, at + 1));
        }
        at += 1;
        let mut high = low;
        if class.get(at) == Some(&b'-') && class.get(at + 1).is_some_and(|b| *b != b']') {
            high = class[at + 1];
            at += 2;
        }
        found |= (low..=high).contains(&byte);
    }
}

/// The rules of a `.dockerignore` file.
#[derive(Debug, Default)]
pub(crate) struct Ignore {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    pattern: String,
    keep: bool,
}

impl Ignore {
    /// Parses the rules, one per line; `#` starts a comment line and `!` an exception.
    pub(crate) fn parse(text: &str) -> Ignore {
        let rules = text
            .trim_start_matches('\u{feff}')
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let line = line.trim();
                let (keep, pattern) = match line.strip_prefix('!') {
                    Some(rest) => (true, rest.trim()),
                    None => (false, line),
                };
                let pattern = pattern.trim_matches('/');
                (!pattern.is_empty()).then(|| Rule { pattern: pattern.to_owned(), keep })
            })
            .collect();
        Ignore { rules }
    }

    /// Returns whether a path relative to the context is excluded: the last rule that matches it or a parent
    /// decides.
    pub(crate) fn ignores(&self, path: &Path) -> bool {
        let mut ignored = false;
        for rule in &self.rules {
            if rule.keep == ignored
                && path.ancestors().any(|p| !p.as_os_str().is_empty() && matches(&rule.pattern, p))
            {
                ignored = !rule.keep;
            }
        }
        ignored
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn globs_match_within_one_component() {
        for (pattern, path, expected) in [
            ("a.txt", "a.txt", true),
            ("*.txt", "a.txt", true),
            ("*.txt", "dir/a.txt", false),
            ("dir/*.txt", "dir/a.txt", true),
            ("*/a.txt", "dir/a.txt", true),
            ("?.txt", "a.txt", true),
            ("?.txt", "ab.txt", false),
            ("[ab].txt", "b.txt", true),
            ("[^ab].txt", "b.txt", false),
            ("[a-c]x", "bx", true),
            ("[]]x", "]x", true),
            ("[x", "[x", true),
            (r"\*", "*", true),
            (r"\*", "a", false),
            ("**/x", "x", true),
            ("**/x", "a/b/x", true),
            ("a/**", "a/b/c", true),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z", true),
            ("a/**/z", "a/b/c", false),
            ("./a", "a", true),
        ] {
            assert_eq!(matches(pattern, Path::new(path)), expected, "{pattern} on {path}");
        }
    }

    #[test]
    fn the_last_matching_ignore_rule_decides() {
        let ignore =
            Ignore::parse("# comment\n*.log\n!keep.log\n/build/\n!build/keep\n**/*.tmp\n\n  secrets  \n");
        for (path, expected) in [
            ("a.log", true),
            ("keep.log", false),
            ("dir/a.log", false),
            ("build", true),
            ("build/x/y", true),
            ("build/keep", false),
            ("build/keep/inner", false),
            ("a/b/c.tmp", true),
            ("c.tmp", true),
            ("secrets", true),
            ("# comment", false),
            ("src/main.rs", false),
        ] {
            assert_eq!(ignore.ignores(Path::new(path)), expected, "{path}");
        }
    }

    proptest! {
        #[test]
        fn a_name_without_wildcards_matches_itself_only(a in "[a-z.]{1,8}", b in "[a-z.]{1,8}") {
            prop_assume!(a != "." && b != ".");
            prop_assert_eq!(matches(&a, Path::new(&b)), a == b);
        }

        #[test]
        fn any_pattern_terminates(pattern in "[a*?\\[\\]!^/\\\\-]{0,30}", path in "[ab/]{0,30}") {
            let _ = matches(&pattern, Path::new(&path));
        }

        #[test]
        fn a_star_spans_any_part_of_a_name(head in "[a-z]{0,5}", middle in "[a-z]{0,5}", tail in "[a-z]{1,5}") {
            let pattern = format!("{head}*{tail}");
            let name = format!("{head}{middle}{tail}");
            prop_assert!(matches(&pattern, Path::new(&name)));
        }
    }
}
