//! Typed access to a mapping: each method reads a value, or reports a problem and continues.

use std::{
    ops::{Bound, RangeBounds, RangeInclusive},
    str::FromStr,
};

use crate::{
    declare::Settings,
    diagnostic::{Code, Diagnostic, nearest, quoted},
    reader::Reader,
    tree::{Entry, Node, SourceFiles, Span, Value},
};
use rollout_core::quantity::{Bytes, Cpus, QuantityError};

/// About thirty years. Even multiplied it fits the clock types.
pub(crate) const MAX_TIMEOUT_SEC: f64 = 1e9;

/// The largest amount that fits the signed numbers of providers.
const MAX_MEBIBYTES: f64 = (i64::MAX >> 20) as f64;

/// A mapping that is being read.
pub struct Section<'r> {
    /// Collects problems.
    pub reader: &'r Reader<'r>,
    /// The path of the section, as shown in messages.
    pub path: String,
    /// Where it was written.
    pub span: Span,
    /// Its keys and values.
    pub entries: &'r [Entry],
}

impl<'r> Section<'r> {
    /// The path of a key in this section, as shown in messages.
    pub fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// An empty section, in place of an absent or invalid one.
    pub fn empty(&self, key: &str) -> Section<'r> {
        Section { reader: self.reader, path: self.at(key), span: self.span, entries: &[] }
    }

    /// The entry of a key, if its value is not null.
    pub fn entry(&self, key: &str) -> Option<&'r Entry> {
        self.entries.iter().find(|entry| entry.key == key && !entry.node.is_null())
    }

    /// The value of a key, if it is present and not null.
    pub fn node(&self, key: &str) -> Option<&'r Node> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// The section of a key, if it is present; its keys are those of the declaration.
    pub fn section<S: Settings>(&self, key: &str) -> Option<Section<'r>> {
        self.reader.section::<S>(self.node(key)?, &self.at(key))
    }

    /// The same, or an empty section.
    pub fn section_or_empty<S: Settings>(&self, key: &str) -> Section<'r> {
        self.section::<S>(key).unwrap_or_else(|| self.empty(key))
    }

    /// The mapping of a key, if it is one. Reports nothing, so it can be read again.
    pub fn inside(&self, key: &str) -> Section<'r> {
        let mut section = self.empty(key);
        if let Some(Node { value: Value::Map(entries), span }) = self.node(key) {
            (section.entries, section.span) = (entries, *span);
        }
        section
    }

    /// The settings of a key, if it is present.
    pub fn settings<S: Settings>(&self, key: &str) -> Option<S::Value> {
        S::read(&self.section::<S>(key)?)
    }

    /// The sections of a list.
    pub fn sections<S: Settings>(&self, key: &str) -> Vec<Section<'r>> {
        let nodes = self.list(key).unwrap_or_default().iter().enumerate();
        nodes
            .filter_map(|(index, node)| self.reader.section::<S>(node, &format!("{}.{index}", self.at(key))))
            .collect()
    }

    /// The mapping of a key, with any keys.
    pub fn mapping(&self, key: &str) -> Option<Section<'r>> {
        self.reader.mapping(self.node(key)?, &self.at(key))
    }

    /// The values of a list.
    pub fn list(&self, key: &str) -> Option<&'r [Node]> {
        let node = self.node(key)?;
        match &node.value {
            Value::List(items) => Some(items),
            _ => {
                self.reader.wrong_type(node, &self.at(key), "a list");
                None
            }
        }
    }

    /// A string.
    pub fn string(&self, key: &str) -> Option<&'r str> {
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
    pub fn filled_string(&self, key: &str) -> Option<&'r str> {
        let text = self.string(key)?;
        if text.trim().is_empty() {
            self.invalid(key, format!("`{}` must not be empty", self.at(key)));
            return None;
        }
        Some(text)
    }

    /// Reports an empty list where entries are required.
    pub fn refuse_empty(&self, key: &str, hint: &str) {
        if let Some(Value::List(nodes)) = self.node(key).map(|node| &node.value)
            && nodes.is_empty()
        {
            let message = format!("`{}` is empty", self.at(key));
            self.reader.error_with_hint(self.value_span(key), Code::Missing, message, hint);
        }
    }

    /// A list that is not empty; otherwise reports the hint.
    pub fn filled_list(&self, key: &str, hint: &str) -> Option<&'r [Node]> {
        let nodes = self.list(key);
        if nodes.is_some_and(<[_]>::is_empty) {
            self.invalid_with_hint(key, format!("`{}` is empty", self.at(key)), hint);
        }
        nodes
    }

    /// A string, or a number as it was written: `version: 2.0` means the text 2.0.
    pub fn text(&self, key: &str) -> Option<String> {
        let node = self.node(key)?;
        match scalar_text(self.reader.sources, node) {
            Some(text) if !matches!(node.value, Value::Bool(_)) => Some(text),
            _ => {
                self.reader.wrong_type(node, &self.at(key), "a string");
                None
            }
        }
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Option<bool> {
        let node = self.node(key)?;
        match node.value {
            Value::Bool(value) => Some(value),
            _ => {
                self.reader.wrong_type(node, &self.at(key), "true or false");
                None
            }
        }
    }

    /// A whole number within a range.
    pub fn integer(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
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

    /// A number within a range.
    pub fn number(&self, key: &str, bounds: impl RangeBounds<f64>) -> Option<f64> {
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

    /// A finite number.
    pub fn finite(&self, key: &str) -> Option<f64> {
        let value = self.number(key, ..)?;
        if !value.is_finite() {
            self.invalid(key, format!("`{}` must be a finite number, not {value}", self.at(key)));
            return None;
        }
        Some(value)
    }

    /// Seconds; 0 means that the key is not set.
    pub fn timeout(&self, key: &str) -> Option<f64> {
        self.number(key, 0.0..=MAX_TIMEOUT_SEC).filter(|seconds| *seconds > 0.0)
    }

    /// One of several words.
    pub fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let node = self.node(key)?;
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let list = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let Value::String(text) = &node.value else {
            self.reader.wrong_type(node, &self.at(key), &format!("one of {list}"));
            return None;
        };
        let found = words.iter().find(|(word, _)| word == text).map(|(_, value)| *value);
        if found.is_none() {
            let allowed = match words {
                [_] => format!("it can only be {list}"),
                _ => format!("it can be one of {list}"),
            };
            let hint = match nearest(text, &names) {
                Some(name) if words.len() > 1 => format!("did you mean `{name}`? {allowed}"),
                _ => allowed,
            };
            self.invalid_with_hint(key, format!("`{}` cannot be {}", self.at(key), quoted(text)), hint);
        }
        found
    }

    /// An amount of CPU.
    pub fn cpus(&self, key: &str) -> Option<Cpus> {
        self.quantity(key)
    }

    /// A quantity of any kind.
    pub fn quantity<T: FromStr<Err = QuantityError>>(&self, key: &str) -> Option<T> {
        let text = self.quantity_text(key)?;
        text.parse().map_err(|error| self.bad_quantity(key, &text, error)).ok()
    }

    /// A quantity under `key`, or in mebibytes under `key_mb`.
    pub fn bytes(&self, key: &str) -> Option<Bytes> {
        let text = self.quantity_text(key)?;
        match Bytes::from_file(&text) {
            Ok((bytes, false)) => Some(bytes),
            Ok((bytes, true)) => {
                let span = self.node(key)?.span;
                let message = format!("`{} = {text}` is taken as {text} MiB", self.at(key));
                self.reader.report(
                    Diagnostic::warning(self.reader.sources, span, Code::BareQuantity, message)
                        .hint(format!("write \"{bytes}\" to be explicit")),
                );
                Some(bytes)
            }
            Err(error) => {
                self.bad_quantity(key, &text, error);
                None
            }
        }
    }

    /// A quantity that can be 0.
    pub fn bytes_or_zero(&self, key: &str) -> Option<Bytes> {
        match self.quantity_text(key)?.as_str() {
            "0" => Some(Bytes(0)),
            _ => self.bytes(key),
        }
    }

    /// A whole or fractional number of mebibytes.
    pub fn mebibytes(&self, key: &str) -> Option<Bytes> {
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
        // Docker's units are the most likely mistake: 2g, 512MB.
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
                let hint = "write a number with an optional unit: `500m`, `2G`, `512Mi`";
                self.invalid_with_hint(key, message, hint);
            }
            _ => self.invalid(key, message),
        }
    }

    /// Reports an invalid value.
    pub fn invalid(&self, key: &str, message: impl Into<String>) {
        self.reader.error(self.value_span(key), Code::InvalidValue, message);
    }

    /// Reports an invalid value with a hint.
    pub fn invalid_with_hint(&self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        self.reader.error_with_hint(self.value_span(key), Code::InvalidValue, message, hint);
    }

    /// Reports a missing key.
    pub fn missing(&self, key: &str, hint: &str) {
        let message = if self.path.is_empty() {
            format!("`{key}` is missing")
        } else {
            format!("`{key}` is missing in `{}`", self.path)
        };
        self.reader.error_with_hint(self.span, Code::Missing, message, hint);
    }

    /// Reports two keys that cannot both be set.
    pub fn exclude(&self, one: &str, other: &str) {
        if let (Some(one), Some(other)) = (self.entry(one), self.entry(other)) {
            let message = format!("`{}` and `{}` cannot both be set", one.key, other.key);
            let sources = self.reader.sources;
            self.reader.report(
                Diagnostic::error(sources, other.key_span, Code::Conflict, message)
                    .related(sources, one.key_span, "also given here")
                    .hint("keep one of them"),
            );
        }
    }

    /// The only present key of these. Reports several, or with this hint none.
    pub fn one_of<'k>(&self, keys: &[&'k str], hint: &str) -> Option<&'k str> {
        let given: Vec<&str> = keys.iter().copied().filter(|key| self.entry(key).is_some()).collect();
        for pair in given.windows(2) {
            self.exclude(pair[0], pair[1]);
        }
        match given[..] {
            [only] => Some(only),
            [] => {
                self.missing(keys[0], hint);
                None
            }
            _ => None,
        }
    }

    /// Reports keys that cannot be combined with another.
    pub fn refuse(&self, keys: &[&str], beside: &str, hint: impl Fn(&str) -> String) {
        for entry in keys.iter().filter_map(|key| self.entry(key)) {
            let message = format!("`{}` cannot be combined with `{beside}`", entry.key);
            self.reader.error_with_hint(entry.key_span, Code::Conflict, message, hint(&entry.key));
        }
    }

    /// Reports the second of two things with the same name.
    pub fn same_name(&self, things: &str, name: &str, span: Span, first: Span, hint: &str) {
        let sources = self.reader.sources;
        let message = format!("two {things} are named {}", quoted(name));
        self.reader.report(
            Diagnostic::error(sources, span, Code::InvalidName, message)
                .related(sources, first, "the first one")
                .hint(hint),
        );
    }

    /// The position of the value of a key, otherwise of the section.
    pub fn value_span(&self, key: &str) -> Span {
        self.node(key).map_or(self.span, |node| node.span)
    }
}

/// Numbers above 0, up to `most`.
pub fn above_zero(most: f64) -> (Bound<f64>, Bound<f64>) {
    (Bound::Excluded(0.0), Bound::Included(most))
}

/// A scalar as text: the content of a string, a number or boolean as it was written.
pub fn scalar_text(sources: &SourceFiles, node: &Node) -> Option<String> {
    match &node.value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => Some(sources.slice(node.span).to_owned()),
        Value::Null | Value::List(_) | Value::Map(_) => None,
    }
}
