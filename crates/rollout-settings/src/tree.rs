//! A tree of values with their positions, independent of the file format.

use std::{ops::Range, sync::Arc};

/// A position in one of the [`SourceFiles`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The number of the source.
    pub source: usize,
    /// Its first byte.
    pub start: usize,
    /// The byte after its last.
    pub end: usize,
}

impl Span {
    /// The bytes.
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

/// A syntax error of a text.
#[derive(Debug)]
pub struct SyntaxError {
    /// What is wrong.
    pub message: String,
    /// Its position, if known.
    pub span: Option<Span>,
    /// How to fix it, if known.
    pub hint: Option<String>,
}

/// A source text: a file, or an argument of the command.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its name in messages.
    pub name: String,
    /// The text.
    pub text: Arc<str>,
}

/// All source texts of one configuration.
#[derive(Debug, Default)]
pub struct SourceFiles(Vec<Source>);

impl SourceFiles {
    /// Adds a text and returns its id.
    pub fn add(&mut self, name: &str, text: &str) -> usize {
        self.0.push(Source { name: printable(name), text: text.into() });
        self.0.len() - 1
    }

    /// A text by its id.
    pub fn get(&self, id: usize) -> &Source {
        &self.0[id]
    }

    /// The text at a span, as it was written.
    pub fn slice(&self, span: Span) -> &str {
        self.get(span.source).text.get(span.range()).unwrap_or_default()
    }
}

/// A value and its position.
#[derive(Debug, Clone)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Its position.
    pub span: Span,
}

/// The value of a node.
#[derive(Debug, Clone)]
pub enum Value {
    /// Null.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// Another number.
    Float(f64),
    /// A text.
    String(String),
    /// Values in order.
    List(Vec<Node>),
    /// Keys and values in the order of the file.
    Map(Vec<Entry>),
}

/// One key of a mapping, in the order of the file.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The position of the key.
    pub key_span: Span,
    /// The value.
    pub node: Node,
}

impl Node {
    /// The kind of the value, for messages.
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "a whole number",
            Value::Float(_) => "a number",
            Value::String(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// The value of a key, if this is a mapping.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node),
            _ => None,
        }
    }

    /// The same, mutable.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        match &mut self.value {
            Value::Map(entries) => {
                entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node)
            }
            _ => None,
        }
    }

    /// The values of a list; empty for other values.
    pub fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The value as JSON, with each string passed through `text` together with its key.
    ///
    /// A number that JSON cannot represent becomes the string as it was written.
    pub fn to_json(
        &self,
        key: &str,
        text: &mut dyn FnMut(&str, &str, &Node) -> serde_json::Value,
    ) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
                (Ok(value), _) => value.into(),
                (_, Ok(value)) => value.into(),
                _ => Json::String(value.to_string()),
            },
            Value::Float(value) => serde_json::Number::from_f64(*value)
                .map_or_else(|| Json::String(value.to_string()), Json::Number),
            Value::String(value) => text(key, value, self),
            Value::List(items) => items.iter().map(|item| item.to_json(key, text)).collect(),
            Value::Map(entries) => Json::Object(
                entries
                    .iter()
                    .map(|entry| (entry.key.clone(), entry.node.to_json(&entry.key, text)))
                    .collect(),
            ),
        }
    }
}

/// The text with all control characters escaped, for a terminal.
pub fn printable(text: &str) -> String {
    let bidi = |char| matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() || bidi(char) { out.extend(char.escape_default()) } else { out.push(char) }
    }
    out
}
