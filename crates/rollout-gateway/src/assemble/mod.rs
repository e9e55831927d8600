//! Puts the events of a stream together to the whole response, for the record.
//!
//! A stream that was cut gives what came of it. The caller bounds the size of the stream.

mod chat;
mod gemini;
mod messages;
mod responses;

use serde_json::{Map, Value};

use crate::Dialect;

/// A response put together from its stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assembled {
    /// The body as it would have been without streaming. An error in the stream is its `error`.
    pub(crate) body: Value,
    /// Whether the provider said that the answer is complete.
    pub(crate) is_complete: bool,
}

/// Takes the events of one stream.
#[derive(Debug)]
pub(crate) enum Assembler {
    Chat(chat::Assembly),
    Responses(responses::Assembly),
    Messages(messages::Assembly),
    Gemini(gemini::Assembly),
}

impl Assembler {
    /// For a stream of this dialect.
    pub(crate) fn new(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Chat => Self::Chat(chat::Assembly::default()),
            Dialect::Responses => Self::Responses(responses::Assembly::default()),
            Dialect::Messages => Self::Messages(messages::Assembly::default()),
            Dialect::Gemini => Self::Gemini(gemini::Assembly::default()),
        }
    }

    /// Takes an event that is JSON. `[DONE]` and the like need not come here.
    pub(crate) fn feed(&mut self, event: &Value) {
        match self {
            Self::Chat(assembly) => assembly.add(event),
            Self::Responses(assembly) => assembly.add(event),
            Self::Messages(assembly) => assembly.add(event),
            Self::Gemini(assembly) => assembly.add(event),
        }
    }

    /// The response as far as it came.
    pub(crate) fn finish(self) -> Assembled {
        match self {
            Self::Chat(assembly) => assembly.finish(),
            Self::Responses(assembly) => assembly.finish(),
            Self::Messages(assembly) => assembly.finish(),
            Self::Gemini(assembly) => assembly.finish(),
        }
    }
}

/// Joins two values of one field: texts and lists grow, objects are joined field by field, anything else is replaced.
/// The depth is bounded by that of the events.
fn join(whole: &mut Value, more: &Value) {
    match (whole, more) {
        (_, Value::Null) => {}
        (Value::String(text), Value::String(more)) => text.push_str(more),
        (Value::Array(list), Value::Array(more)) => list.extend(more.iter().cloned()),
        (Value::Object(fields), Value::Object(more)) => join_fields(fields, more, &[]),
        (whole, more) => *whole = more.clone(),
    }
}

/// Joins the fields of two objects. Those that are named are replaced, even if they are texts.
fn join_fields(whole: &mut Map<String, Value>, more: &Map<String, Value>, replaced: &[&str]) {
    for (key, value) in more {
        match whole.get_mut(key) {
            Some(before) if !before.is_null() && !replaced.contains(&key.as_str()) => join(before, value),
            Some(before) if !value.is_null() => *before = value.clone(),
            Some(_) => {}
            None => {
                whole.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
