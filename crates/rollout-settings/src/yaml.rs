//! Parses YAML, including JSON, into a tree with positions. Only this module uses the YAML library.

use std::{fmt, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Location, Spanned};

use super::{
    diagnostic::{Code, Diagnostic, Problems},
    json,
    tree::printable,
    tree::{Entry, Node, SourceFiles, Span, SyntaxError, Value},
    yaml_syntax::{SyntaxCause, cause},
};

/// Whether the text is not YAML at all, rather than YAML with a rejected feature.
fn is_of_scanner(error: &serde_saphyr::Error) -> bool {
    use serde_saphyr::Error;
    matches!(
        error,
        Error::Message { .. }
            | Error::ExternalMessage { .. }
            | Error::Eof { .. }
            | Error::Unexpected { .. }
            | Error::IndentationError { .. }
    )
}

impl SyntaxError {
    fn new(text: &str, source: usize, error: &serde_saphyr::Error) -> Self {
        let error = error.without_snippet();
        let mut message = match error {
            serde_saphyr::Error::MultipleDocuments { .. } => {
                "a file can contain only one YAML document".to_owned()
            }
            error => error.to_string(),
        };
        // The position is shown with the source line.
        if let Some(at) = message.rfind(" at line ") {
            message.truncate(at);
        }
        let found = error.location().map(|location| span(text, source, location));
        match cause(text, found.map_or(0, |span| span.start)).filter(|_| is_of_scanner(error)) {
            Some(SyntaxCause { message, at, hint }) => {
                Self { message, span: Some(Span { source, start: at.start, end: at.end }), hint: Some(hint) }
            }
            None => Self { message: printable(&message), span: found, hint: None },
        }
    }
}

/// Parses the content of the file at `path`, which is `name` in messages.
pub fn parse_file(sources: &mut SourceFiles, name: &str, path: &Path, text: &str) -> Result<Node, Problems> {
    let source = sources.add(name, text);
    parse_at(path, text, source).map_err(|error| {
        let span = error.span.unwrap_or(Span { source, start: 0, end: 0 });
        let message =
            format!("this is not {}: {}", if is_json(path) { "JSON" } else { "YAML" }, error.message);
        let problem = Diagnostic::error(sources, span, Code::Syntax, message);
        Problems::new(vec![match error.hint {
            Some(hint) => problem.hint(hint),
            None => problem,
        }])
    })
}

/// Parses the content of the file at `path`: JSON by its extension, otherwise YAML.
pub fn parse_at(path: &Path, text: &str, source: usize) -> Result<Node, SyntaxError> {
    if is_json(path) { json::parse(text, source) } else { parse(text, source) }
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// Parses one document. Duplicate keys appear twice in the tree.
pub fn parse(text: &str, source: usize) -> Result<Node, SyntaxError> {
    let options = serde_saphyr::options! {
        // With this policy, duplicate keys reach the visitor, so both positions can be reported.
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        strict_booleans: true,
        with_snippet: false,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
        // Far above any job that a user writes, far below what an alias bomb needs. A level of nesting takes
        // about 35 KiB of stack in a debug build, out of 2 MiB per thread.
        budget: serde_saphyr::budget! {
            max_depth: 24,
            max_nodes: 250_000,
            max_events: 1_000_000,
            max_aliases: 10_000,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 50_000 },
    };
    let tree: Option<Spanned<Tree>> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| SyntaxError::new(text, source, &error))?;
    Ok(match tree {
        Some(tree) => tree.value.into_node(text, source, tree.defined),
        None => Node { value: Value::Null, span: Span { source, start: 0, end: 0 } },
    })
}

fn span(text: &str, source: usize, location: Location) -> Span {
    let at = location.span();
    let start = match at.byte_offset() {
        Some(offset) if offset > 0 => offset as usize,
        // Errors of the scanner only have a line and a column.
        _ => offset_of(text, location.line() as usize, location.column() as usize),
    };
    let start = start.min(text.len());
    let end = start.saturating_add(at.byte_len().map_or(0, |len| len as usize)).min(text.len());
    // The span of a collection may include white space up to the next token.
    let end = start + text.get(start..end).map_or(0, |slice| slice.trim_end().len());
    Span { source, start, end }
}

fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let rest = &text[start..];
    start + rest.char_indices().nth(column.saturating_sub(1)).map_or(rest.len(), |(at, _)| at)
}

enum Tree {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    String(String),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
}

impl Tree {
    fn into_node(self, text: &str, source: usize, location: Location) -> Node {
        let value = match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(value),
            Self::Int(value) => Value::Int(value),
            Self::Float(value) => Value::Float(value),
            Self::String(value) => Value::String(value),
            Self::List(items) => Value::List(
                items.into_iter().map(|item| item.value.into_node(text, source, item.defined)).collect(),
            ),
            Self::Map(entries) => Value::Map(
                entries
                    .into_iter()
                    .map(|(key, item)| Entry {
                        key_span: span(text, source, key.defined),
                        key: key.value,
                        node: item.value.into_node(text, source, item.defined),
                    })
                    .collect(),
            ),
        };
        Node { value, span: span(text, source, location) }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Int(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Int(value.into()))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Tree, E> {
        Ok(Tree::Int(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::String(value.to_owned()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Tree, E> {
        Ok(Tree::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(text: &str) -> String {
        fn walk(text: &str, node: &Node, indent: usize, out: &mut String) {
            let pad = " ".repeat(indent);
            let slice = &text[node.span.range()];
            match &node.value {
                Value::List(items) => {
                    *out += &format!("{pad}list\n");
                    for item in items {
                        walk(text, item, indent + 1, out);
                    }
                }
                Value::Map(entries) => {
                    *out += &format!("{pad}map {slice:?}\n");
                    for entry in entries {
                        *out += &format!("{pad} {} at {:?}\n", entry.key, &text[entry.key_span.range()]);
                        walk(text, &entry.node, indent + 2, out);
                    }
                }
                value => *out += &format!("{pad}{value:?} at {slice:?}\n"),
            }
        }
        let mut out = String::new();
        match parse(text, 0) {
            Ok(node) => walk(text, &node, 0, &mut out),
            Err(error) => out = format!("{error:?}"),
        }
        out
    }

    #[test]
    fn repeated_keys_and_the_spans_of_scalars_are_kept() {
        insta::assert_snapshot!(show("a: 1\na: 'x'\nb:\n  - 1.10\n  - ~\n  - yes\n"), @r#"
        map ""
         a at "a"
          Int(1) at "1"
         a at "a"
          String("x") at "'x'"
         b at "b"
          list
           Float(1.1) at "1.10"
           Null at "~"
           String("yes") at "yes"
        "#);
    }

    #[test]
    fn a_key_overrides_the_same_key_of_a_merged_mapping() {
        insta::assert_snapshot!(show("base: &b {x: 1, y: 2}\nd:\n  <<: *b\n  y: 3\n"), @r#"
        map ""
         base at "base"
          map "{"
           x at "x"
            Int(1) at "1"
           y at "y"
            Int(2) at "2"
         d at "d"
          map ""
           y at "y"
            Int(3) at "3"
           x at "x"
            Int(1) at "1"
        "#);
    }

    #[test]
    fn json_is_read_with_its_tabs_and_escapes() {
        insta::assert_snapshot!(show("{\n\t\"a\": \"\\ud83d\\ude00\\/\",\n\t\"b\": [\n\t\t1\n\t]\n}"), @r#"
        map "{"
         a at "\"a\""
          String("😀/") at "\"\\ud83d\\ude00\\/\""
         b at "\"b\""
          list
           Int(1) at "1"
        "#);
    }

    #[test]
    fn an_alias_bomb_is_rejected() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            text += &format!("a{level}: &a{level} [{aliases}]\n");
        }
        assert!(parse(&text, 0).is_err());
    }

    #[test]
    fn endless_nesting_is_rejected() {
        assert!(parse(&"[".repeat(100_000), 0).is_err());
        assert!(parse(&"- ".repeat(100_000), 0).is_err());
        assert!(parse(&"{a: ".repeat(10_000), 0).is_err());
    }

    #[test]
    fn a_syntax_error_has_its_position() {
        let error = parse("é: ü\nb: [", 0).unwrap_err();
        assert_eq!(error.span, Some(Span { source: 0, start: 10, end: 11 }));
        assert_eq!(error.message, "this `[` is not closed");
    }
}
