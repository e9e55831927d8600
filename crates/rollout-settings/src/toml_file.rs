//! Reads TOML into a tree with positions.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    tree::printable,
    tree::{Entry, Node, Span, Value},
};

/// A syntax error in TOML.
#[derive(Debug)]
pub struct TomlError {
    /// What is wrong.
    pub message: String,
    /// Its position, if known.
    pub span: Option<Span>,
    /// The first position of a duplicate key.
    pub first: Option<Span>,
}

/// Parses a document, or returns all its syntax errors.
pub fn parse(text: &str, source: usize) -> Result<Node, Vec<TomlError>> {
    let (tree, errors) = DeTable::parse_recoverable(text);
    let at = span(tree.span(), source);
    let root = Node { value: table(tree.into_inner(), source), span: at };
    if errors.is_empty() {
        return Ok(root);
    }
    let error = |error: toml::de::Error| {
        let span = error.span().map(|range| span(range, source));
        let again = span.filter(|_| error.message().starts_with("duplicate key"));
        let key = again.and_then(|again| Some((text.get(again.range())?, again)));
        TomlError {
            message: printable(&error.message().trim_end().replace('\n', ", ")),
            first: key.and_then(|(key, again)| last_before(&root, key, again)),
            span,
        }
    };
    Err(errors.into_iter().map(error).collect())
}

/// The nearest position of the key before `again`.
fn last_before(node: &Node, key: &str, again: Span) -> Option<Span> {
    let (items, entries): (&[Node], &[Entry]) = match &node.value {
        Value::List(items) => (items, &[]),
        Value::Map(entries) => (&[], entries),
        _ => return None,
    };
    let here = entries.iter().filter(|entry| entry.key == key).map(|entry| entry.key_span);
    let inside = items.iter().chain(entries.iter().map(|entry| &entry.node));
    let inside = inside.filter_map(|node| last_before(node, key, again));
    here.chain(inside).filter(|span| span.end <= again.start).max_by_key(|span| span.start)
}

fn span(range: Range<usize>, source: usize) -> Span {
    Span { source, start: range.start, end: range.end }
}

fn node(tree: Spanned<DeValue<'_>>, source: usize) -> Node {
    let at = span(tree.span(), source);
    let value = match tree.into_inner() {
        DeValue::String(value) => Value::String(value.into_owned()),
        DeValue::Integer(value) => {
            match i128::from_str_radix(&value.as_str().replace('_', ""), value.radix()) {
                Ok(value) => Value::Int(value),
                Err(_) => Value::Float(f64::INFINITY),
            }
        }
        DeValue::Float(value) => Value::Float(value.as_str().replace('_', "").parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(value) => Value::Bool(value),
        DeValue::Datetime(value) => Value::String(value.to_string()),
        DeValue::Array(items) => Value::List(items.into_iter().map(|item| node(item, source)).collect()),
        DeValue::Table(entries) => table(entries, source),
    };
    Node { value, span: at }
}

fn table(table: DeTable<'_>, source: usize) -> Value {
    let mut entries: Vec<Entry> = table
        .into_iter()
        .map(|(key, item)| Entry {
            key_span: span(key.span(), source),
            key: key.into_inner().into_owned(),
            node: node(item, source),
        })
        .collect();
    entries.sort_by_key(|entry| entry.key_span.start);
    Value::Map(entries)
}
