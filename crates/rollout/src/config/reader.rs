//! Typed access to a tree: each reader takes a value out, or notes what is wrong with it and goes on.

use std::{
    cell::{Cell, RefCell},
    ops::{Bound, RangeBounds, RangeInclusive},
};

use super::{
    diagnostic::{Code, Diagnostic, Severity, nearest, quoted, sort},
    tree::{Entry, Node, Sources, Span, Value},
};
use rollout_core::quantity::{Bytes, Cpus, QuantityError};
use rollout_core::redact::MASK;

/// Collects what is found while a tree is read.
pub(super) struct Reader<'a> {
    pub(super) sources: &'a Sources,
    found: RefCell<Vec<Diagnostic>>,
    failed: Cell<bool>,
    left_out: Cell<usize>,
}

/// Some thirty years. Scaled by any multiplier it still fits the clocks.
pub(super) const MAX_TIMEOUT_SEC: f64 = 1e9;

/// As much as fits the signed numbers that providers count bytes in.
const MAX_MEBIBYTES: f64 = (i64::MAX >> 20) as f64;

/// More than this no person reads; a file made to waste time would have millions.
const MAX_DIAGNOSTICS: usize = 100;

impl<'a> Reader<'a> {
    pub(super) fn new(sources: &'a Sources) -> Self {
        Self { sources, found: RefCell::default(), failed: Cell::new(false), left_out: Cell::new(0) }
    }

    pub(super) fn report(&self, diagnostic: Diagnostic) {
        if diagnostic.severity == Severity::Error {
            self.failed.set(true);
        }
        let mut found = self.found.borrow_mut();
        if found.len() < MAX_DIAGNOSTICS {
            found.push(diagnostic);
        } else {
            self.left_out.set(self.left_out.get() + 1);
        }
    }

    pub(super) fn error(&self, span: Span, code: Code, message: impl Into<String>) {
        self.report(Diagnostic::error(self.sources, span, code, message));
    }

    pub(super) fn error_with_hint(
        &self,
        span: Span,
        code: Code,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.report(Diagnostic::error(self.sources, span, code, message).hint(hint));
    }

    /// Everything found, in the order of the file, and whether an error is among it.
    pub(super) fn finish(self) -> (Vec<Diagnostic>, bool) {
        let mut found = self.found.into_inner();
        sort(&mut found);
        if self.left_out.get() > 0 {
            let message = format!("{} more problems are not shown", self.left_out.get());
            found.push(Diagnostic::about_file(
                self.sources.get(0).name.as_str(),
                Code::InvalidValue,
                message,
            ));
        }
        (found, self.failed.get())
    }

    /// Notes every key that stands twice in one mapping, however deep.
    pub(super) fn check_duplicates(&self, node: &Node) {
        match &node.value {
            Value::List(items) => items.iter().for_each(|item| self.check_duplicates(item)),
            Value::Map(entries) => {
                let mut seen = std::collections::HashMap::new();
                for entry in entries {
                    if let Some(first) = seen.insert(entry.key.as_str(), entry.key_span) {
                        let message = format!("the key {} is written twice", quoted(&entry.key));
                        self.report(
                            Diagnostic::error(self.sources, entry.key_span, Code::DuplicateKey, message)
                                .related(self.sources, first, "first written here")
                                .hint("keep one of them"),
                        );
                    }
                    self.check_duplicates(&entry.node);
                }
            }
            _ => {}
        }
    }

    /// Notes every value that a record masks: what it was is not known.
    pub(super) fn check_masks(&self, node: &Node) {
        match &node.value {
            Value::String(text) if text.contains(MASK) => {
                let message = "a secret was masked here when the job was recorded";
                let hint = "load the job file instead, and write secrets as `${VAR}`";
                self.error_with_hint(node.span, Code::InvalidValue, message, hint);
            }
            Value::List(items) => items.iter().for_each(|item| self.check_masks(item)),
            Value::Map(entries) => entries.iter().for_each(|entry| self.check_masks(&entry.node)),
            _ => {}
        }
    }

    pub(super) fn wrong_type(&self, node: &Node, path: &str, expected: &str) {
        let subject = if path.is_empty() { "the file".to_owned() } else { quoted(path) };
        let message = format!("{subject} must be {expected}, not {}", node.kind());
        let diagnostic = Diagnostic::error(self.sources, node.span, Code::WrongType, message);
        self.report(match self.right_form(node, expected) {
            Some(form) => diagnostic.hint(format!("write {form}")),
            None => diagnostic,
        });
    }

    /// How a value of the wrong type was likely meant.
    fn right_form(&self, node: &Node, expected: &str) -> Option<String> {
        match (&node.value, expected) {
            (Value::String(text), "true or false") => match text.to_lowercase().as_str() {
                "true" | "yes" | "on" => Some("true".to_owned()),
                "false" | "no" | "off" => Some("false".to_owned()),
                _ => None,
            },
            (Value::String(text), "a number" | "a whole number") => {
                text.parse::<f64>().is_ok().then(|| format!("{text} without quotes"))
            }
            (Value::Bool(_) | Value::Int(_) | Value::Float(_), "a string") => {
                Some(format!("\"{}\" with quotes", self.sources.slice(node.span)))
            }
            _ => None,
        }
    }

    /// A mapping whose keys are all known.
    pub(super) fn section<'r>(&'r self, node: &'r Node, path: &str, keys: &[&str]) -> Option<Section<'r>> {
        let section = self.mapping(node, path)?;
        for entry in section.entries {
            if !keys.contains(&entry.key.as_str()) {
                self.unknown_key(entry, path, keys);
            }
        }
        Some(section)
    }

    /// A mapping with keys of any name.
    pub(super) fn mapping<'r>(&'r self, node: &'r Node, path: &str) -> Option<Section<'r>> {
        let entries = match &node.value {
            Value::Map(entries) => entries.as_slice(),
            Value::Null => &[],
            _ => {
                self.wrong_type(node, path, "a mapping of keys to values");
                return None;
            }
        };
        Some(Section { reader: self, path: path.to_owned(), span: node.span, entries })
    }

    fn unknown_key(&self, entry: &Entry, path: &str, keys: &[&str]) {
        let place = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
        let list = keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        let hint = match nearest(&entry.key, keys) {
            Some(key) => format!("did you mean `{key}`? known keys{place}: {list}"),
            None => format!("known keys{place}: {list}"),
        };
        let message = format!("unknown key {}{place}", quoted(&entry.key));
        self.error_with_hint(entry.key_span, Code::UnknownKey, message, hint);
    }
}

/// A mapping that is being read.
pub(super) struct Section<'r> {
    pub(super) reader: &'r Reader<'r>,
    pub(super) path: String,
    pub(super) span: Span,
    pub(super) entries: &'r [Entry],
}

impl<'r> Section<'r> {
    /// The path of a key in this section, as a person would write it.
    pub(super) fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// A section without keys, in place of one that is absent or has been refused.
    pub(super) fn empty(&self, key: &str) -> Section<'r> {
        Section { reader: self.reader, path: self.at(key), span: self.span, entries: &[] }
    }

    pub(super) fn entry(&self, key: &str) -> Option<&'r Entry> {
        self.entries.iter().find(|entry| entry.key == key && !entry.node.is_null())
    }

    /// The value of a key, if it is there and not null.
    pub(super) fn node(&self, key: &str) -> Option<&'r Node> {
        self.entry(key).map(|entry| &entry.node)
    }

    pub(super) fn section(&self, key: &str, keys: &[&str]) -> Option<Section<'r>> {
        self.reader.section(self.node(key)?, &self.at(key), keys)
    }

    pub(super) fn mapping(&self, key: &str) -> Option<Section<'r>> {
        self.reader.mapping(self.node(key)?, &self.at(key))
    }

    /// The variables under `env`, as written.
    pub(super) fn variables(&self) -> Vec<(&'r Entry, String)> {
        let mut variables = Vec::new();
        let Some(env) = self.mapping("env") else { return variables };
        for entry in env.entries {
            let path = env.at(&entry.key);
            if entry.key.is_empty() || entry.key.contains(['=', '\0']) {
                let message = format!("{} cannot be the name of a variable", quoted(&entry.key));
                self.reader.error(entry.key_span, Code::InvalidValue, message);
                continue;
            }
            match scalar_text(self.reader.sources, &entry.node) {
                Some(text) if text.contains('\0') => {
                    let message = format!("{} holds a NUL character", quoted(&path));
                    self.reader.error(entry.node.span, Code::InvalidValue, message);
                }
                Some(text) => variables.push((entry, text)),
                None => self.reader.wrong_type(&entry.node, &path, "a string, a number or a boolean"),
            }
        }
        variables
    }

    pub(super) fn list(&self, key: &str) -> Option<&'r [Node]> {
        let node = self.node(key)?;
        match &node.value {
            Value::List(items) => Some(items),
            _ => {
                self.reader.wrong_type(node, &self.at(key), "a list");
                None
            }
        }
    }

    pub(super) fn string(&self, key: &str) -> Option<&'r str> {
        let node = self.node(key)?;
        match &node.value {
            Value::String(text) => Some(text),
            _ => {
                self.reader.wrong_type(node, &self.at(key), "a string");
                None
            }
        }
    }

    /// A string that must not be blank.
    pub(super) fn filled_string(&self, key: &str) -> Option<&'r str> {
        let text = self.string(key)?;
        if text.trim().is_empty() {
            self.invalid(key, format!("`{}` must not be empty", self.at(key)));
            return None;
        }
        Some(text)
    }

    /// A string, or a number as it was written: `version: 2.0` means the text 2.0.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        let node = self.node(key)?;
        match scalar_text(self.reader.sources, node) {
            Some(text) if !matches!(node.value, Value::Bool(_)) => Some(text),
            _ => {
                self.reader.wrong_type(node, &self.at(key), "a string");
                None
            }
        }
    }

    pub(super) fn bool(&self, key: &str) -> Option<bool> {
        let node = self.node(key)?;
        match node.value {
            Value::Bool(value) => Some(value),
            _ => {
                self.reader.wrong_type(node, &self.at(key), "true or false");
                None
            }
        }
    }

    pub(super) fn integer(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let node = self.node(key)?;
        let Value::Int(value) = node.value else {
            self.reader.wrong_type(node, &self.at(key), "a whole number");
            return None;
        };
        let in_range = u64::try_from(value).ok().filter(|value| range.contains(value));
        if in_range.is_none() {
            let bound = match value < i128::from(*range.start()) {
                true => format!("at least {}", range.start()),
                false => format!("at most {}", range.end()),
            };
            self.invalid(key, format!("`{}` must be {bound}, not {value}", self.at(key)));
        }
        in_range
    }

    /// A number within bounds.
    pub(super) fn number(&self, key: &str, bounds: impl RangeBounds<f64>) -> Option<f64> {
        let node = self.node(key)?;
        let value = match node.value {
            Value::Int(value) => value as f64,
            Value::Float(value) => value,
            _ => {
                self.reader.wrong_type(node, &self.at(key), "a number");
                return None;
            }
        };
        let least = match bounds.start_bound() {
            Bound::Included(least) => Some((value >= *least, format!("at least {least}"))),
            Bound::Excluded(least) => Some((value > *least, format!("more than {least}"))),
            Bound::Unbounded => None,
        };
        let most = match bounds.end_bound() {
            Bound::Included(most) => Some((value <= *most, format!("at most {most}"))),
            Bound::Excluded(most) => Some((value < *most, format!("less than {most}"))),
            Bound::Unbounded => None,
        };
        if let Some((_, rule)) = [least, most].into_iter().flatten().find(|(fits, _)| !fits) {
            self.invalid(key, format!("`{}` must be {rule}, not {value}", self.at(key)));
            return None;
        }
        Some(value)
    }

    /// A number that is neither infinite nor none.
    pub(super) fn finite(&self, key: &str) -> Option<f64> {
        let value = self.number(key, ..)?;
        if !value.is_finite() {
            self.invalid(key, format!("`{}` must be a finite number, not {value}", self.at(key)));
            return None;
        }
        Some(value)
    }

    /// Seconds; 0 means that the key is not set.
    pub(super) fn timeout(&self, key: &str) -> Option<f64> {
        self.number(key, 0.0..=MAX_TIMEOUT_SEC).filter(|seconds| *seconds > 0.0)
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let node = self.node(key)?;
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let list = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let Value::String(text) = &node.value else {
            self.reader.wrong_type(node, &self.at(key), &format!("one of {list}"));
            return None;
        };
        let found = words.iter().find(|(word, _)| word == text).map(|(_, value)| *value);
        if found.is_none() {
            let hint = match nearest(text, &names) {
                Some(name) => format!("did you mean `{name}`? it can be one of {list}"),
                None => format!("it can be one of {list}"),
            };
            self.invalid_with_hint(key, format!("`{}` cannot be {}", self.at(key), quoted(text)), hint);
        }
        found
    }

    pub(super) fn cpus(&self, key: &str) -> Option<Cpus> {
        let text = self.quantity_text(key)?;
        text.parse().map_err(|error| self.bad_quantity(key, &text, error)).ok()
    }

    /// An amount under `key`, or in mebibytes under `key_mb`.
    pub(super) fn bytes(&self, key: &str) -> Option<Bytes> {
        let text = self.quantity_text(key)?;
        match Bytes::from_file(&text) {
            Ok((bytes, false)) => Some(bytes),
            Ok((bytes, true)) => {
                let span = self.node(key)?.span;
                let message = format!("`{} = {text}` is taken as {text} MiB", self.at(key));
                self.reader.report(
                    Diagnostic::warning(self.reader.sources, span, Code::BareQuantity, message)
                        .hint(format!("write \"{bytes}\" to say so exactly")),
                );
                Some(bytes)
            }
            Err(error) => {
                self.bad_quantity(key, &text, error);
                None
            }
        }
    }

    /// A whole or fractional number of mebibytes.
    pub(super) fn mebibytes(&self, key: &str) -> Option<Bytes> {
        let value = self.number(key, above_zero(MAX_MEBIBYTES))?;
        match format!("{value}Mi").parse() {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.bad_quantity(key, &value.to_string(), error);
                None
            }
        }
    }

    fn quantity_text(&self, key: &str) -> Option<String> {
        let node = self.node(key)?;
        match &node.value {
            Value::Int(value) => Some(value.to_string()),
            Value::Float(value) => Some(value.to_string()),
            Value::String(text) => Some(text.trim().to_owned()),
            _ => {
                self.reader.wrong_type(node, &self.at(key), "a number or a quantity such as \"2Gi\"");
                None
            }
        }
    }

    fn bad_quantity(&self, key: &str, text: &str, error: QuantityError) {
        let message = format!("`{}` cannot be {}: {error}", self.at(key), quoted(text));
        // Docker's units are the likeliest slip: 2g, 512MB.
        let stem = text.trim_end_matches(['b', 'B']);
        let guess = ["Ki", "Mi", "Gi", "Ti", "k", "M", "G", "T"].iter().find_map(|unit| {
            let end = stem.len().checked_sub(unit.len())?;
            let (number, suffix) = (stem.get(..end)?, stem.get(end..)?);
            let fits = suffix.eq_ignore_ascii_case(unit) && number.parse::<f64>().is_ok();
            fits.then(|| format!("{number}{unit}"))
        });
        match (error, guess) {
            (QuantityError::Form, Some(guess)) => {
                self.invalid_with_hint(key, message, format!("did you mean \"{guess}\"?"));
            }
            (QuantityError::Form, None) => {
                let hint = "write a number, with a unit if need be: `500m`, `2G`, `512Mi`";
                self.invalid_with_hint(key, message, hint);
            }
            _ => self.invalid(key, message),
        }
    }

    pub(super) fn invalid(&self, key: &str, message: impl Into<String>) {
        self.reader.error(self.value_span(key), Code::InvalidValue, message);
    }

    pub(super) fn invalid_with_hint(&self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        self.reader.error_with_hint(self.value_span(key), Code::InvalidValue, message, hint);
    }

    /// Notes that a required key is absent.
    pub(super) fn missing(&self, key: &str, hint: &str) {
        let message = if self.path.is_empty() {
            format!("`{key}` is missing")
        } else {
            format!("`{key}` is missing in `{}`", self.path)
        };
        self.reader.error_with_hint(self.span, Code::Missing, message, hint);
    }

    pub(super) fn value_span(&self, key: &str) -> Span {
        self.node(key).map_or(self.span, |node| node.span)
    }
}

/// Numbers above 0, up to `most`.
pub(super) fn above_zero(most: f64) -> (Bound<f64>, Bound<f64>) {
    (Bound::Excluded(0.0), Bound::Included(most))
}

/// A scalar as text: a string's content, a number or boolean as it was written.
pub(super) fn scalar_text(sources: &Sources, node: &Node) -> Option<String> {
    match &node.value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => Some(sources.slice(node.span).to_owned()),
        Value::Null | Value::List(_) | Value::Map(_) => None,
    }
}
