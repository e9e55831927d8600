//! Reads the fields of a body, and notes those that nothing read.

use serde_json::{Map, Value};

use super::TranslationError;

/// The most notes that one translation keeps: bodies may have any number of unknown fields.
const NOTES: usize = 50;

/// The most letters of a name that a note or an error shows.
const NAME: usize = 80;

/// What a translation left out, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Notes(Vec<String>);

impl Notes {
    /// Notes that a field was left out or changed, and why.
    pub(super) fn add(&mut self, field: &str, what: &str) {
        let note = format!("`{}`: {what}", shown(field));
        if self.0.len() < NOTES && !self.0.contains(&note) {
            self.0.push(note);
        }
    }

    pub(super) fn into_list(self) -> Vec<String> {
        self.0
    }
}

/// A name of the client's as a note or an error shows it: short, and in one line.
pub(super) fn shown(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{}…", name[..end].escape_debug()),
        None => name.escape_debug().to_string(),
    }
}

/// An object of a body. What is read is taken out.
#[derive(Debug)]
pub(super) struct Object {
    fields: Map<String, Value>,
    path: String,
}

impl Object {
    pub(super) fn new(value: Value, path: impl Into<String>) -> Result<Self, TranslationError> {
        let path = path.into();
        match value {
            Value::Object(fields) => Ok(Self { fields, path }),
            _ => Err(TranslationError::invalid(&path, "must be an object")),
        }
    }

    /// The path of a field.
    pub(super) fn path(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    /// Takes a field. Null counts as missing.
    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        self.fields.shift_remove(key).filter(|value| !value.is_null())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.fields.get(key).is_some_and(|value| !value.is_null())
    }

    /// The text of a field, without taking it.
    pub(super) fn peek(&self, key: &str) -> &str {
        self.fields.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn invalid(&self, key: &str, problem: &str) -> TranslationError {
        TranslationError::invalid(&self.path(key), problem)
    }

    /// The refusal of content whose type is not supported.
    pub(super) fn unsupported_type(&self, kind: &str) -> TranslationError {
        let reason = format!("content of type `{}` is not supported", shown(kind));
        TranslationError::unsupported(&self.path("type"), &reason, "Send text or images.")
    }

    /// The refusal of a file that only its provider can read, with what to do instead.
    pub(super) fn stored_file(&self, key: &str, hint: &str) -> TranslationError {
        let reason = "files that are stored at a provider cannot be read";
        TranslationError::unsupported(&self.path(key), reason, hint)
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, TranslationError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.invalid(key, "must be a text")),
        }
    }

    /// A text that must be there.
    pub(super) fn required(&mut self, key: &str) -> Result<String, TranslationError> {
        self.text(key)?.ok_or_else(|| self.invalid(key, "is missing"))
    }

    pub(super) fn number(&mut self, key: &str) -> Result<Option<f64>, TranslationError> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| self.invalid(key, "must be a number")),
        }
    }

    pub(super) fn count(&mut self, key: &str) -> Result<Option<u64>, TranslationError> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => {
                let count = value.as_u64().or_else(|| value.as_f64().filter(|n| *n >= 0.0).map(|n| n as u64));
                count.map(Some).ok_or_else(|| self.invalid(key, "must be a whole number"))
            }
        }
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<Option<bool>, TranslationError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.invalid(key, "must be true or false")),
        }
    }

    /// A list of objects; empty if it is missing.
    pub(super) fn objects(&mut self, key: &str) -> Result<Vec<Object>, TranslationError> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => objects(list, &self.path(key)),
            Some(_) => Err(self.invalid(key, "must be a list")),
        }
    }

    pub(super) fn object(&mut self, key: &str) -> Result<Option<Object>, TranslationError> {
        let path = self.path(key);
        self.take(key).map(|value| Object::new(value, path)).transpose()
    }

    /// Texts: one, or a list of them.
    pub(super) fn texts(&mut self, key: &str) -> Result<Vec<String>, TranslationError> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(list)) => {
                let texts = list.into_iter().map(|value| match value {
                    Value::String(text) => Ok(text),
                    _ => Err(self.invalid(key, "must be a list of texts")),
                });
                texts.collect()
            }
            Some(_) => Err(self.invalid(key, "must be a text or a list of texts")),
        }
    }

    /// Renames fields such as `inline_data` to `inlineData`: Google's servers take both.
    pub(super) fn into_camel_case(mut self) -> Self {
        if !self.fields.keys().any(|key| key.contains('_')) {
            return self;
        }
        let camel = |key: String| {
            let mut words = key.split('_').filter(|word| !word.is_empty());
            let first = words.next().unwrap_or_default().to_owned();
            words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
        };
        let fields = std::mem::take(&mut self.fields).into_iter();
        self.fields =
            fields.map(|(key, value)| (if key.is_ascii() { camel(key) } else { key }, value)).collect();
        self
    }

    /// Takes fields that have no meaning for another upstream, such as where a cache begins. They need no note.
    pub(super) fn ignore(&mut self, keys: &[&str]) {
        for key in keys {
            self.fields.shift_remove(*key);
        }
    }

    /// Notes the fields that nothing read. Numbers in the path are left out, so that a field of every message is one
    /// note.
    pub(super) fn finish(self, notes: &mut Notes) {
        if self.fields.values().all(Value::is_null) {
            return;
        }
        let path: String = self.path.split('[').enumerate().fold(String::new(), |path, (at, piece)| {
            let rest = if at == 0 { Some(piece) } else { piece.split_once(']').map(|(_, rest)| rest) };
            path + if at == 0 { "" } else { "[]" } + rest.unwrap_or_default()
        });
        let path = Object { fields: Map::new(), path };
        for (key, value) in self.fields {
            if !value.is_null() {
                notes.add(&path.path(&key), "not translated");
            }
        }
    }
}

/// A list of objects, each with its path.
pub(super) fn objects(list: Vec<Value>, path: &str) -> Result<Vec<Object>, TranslationError> {
    list.into_iter().enumerate().map(|(at, value)| Object::new(value, format!("{path}[{at}]"))).collect()
}
