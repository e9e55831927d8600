//! Removes secret values from all output.

use std::{borrow::Cow, collections::BTreeSet};

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

/// The replacement of a secret.
pub const MASK: &str = "[redacted]";

/// The minimum length of a secret. Shorter values would mask ordinary output.
pub const MIN_SECRET_BYTES: usize = 8;

/// Replaces known secret values in text and in byte streams.
#[derive(Debug, Clone, Default)]
pub struct Redactor {
    matcher: Option<AhoCorasick>,
    longest: usize,
}

impl Redactor {
    /// Creates a redactor of these values. Values shorter than [`MIN_SECRET_BYTES`] are ignored.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut values = BTreeSet::new();
        for secret in secrets {
            // A script that prints a value as JSON shows it escaped, and a model that passes such a line to a tool
            // shows it escaped twice.
            let mut shown = secret.to_owned();
            for _ in 0..2 {
                let escaped = serde_json::Value::from(shown.as_str()).to_string();
                values.insert(shown);
                shown = escaped[1..escaped.len() - 1].to_owned();
            }
            values.insert(shown);
        }
        values.retain(|value| value.len() >= MIN_SECRET_BYTES);
        if values.is_empty() {
            return Self::default();
        }
        let longest = values.iter().map(String::len).max().unwrap_or(0);
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&values)
            .expect("a list of variables is far below the automaton's size limit");
        Self { matcher: Some(matcher), longest }
    }

    /// Whether there are no secrets.
    pub fn is_empty(&self) -> bool {
        self.matcher.is_none()
    }

    /// Returns the text with every secret masked.
    pub fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match &self.matcher {
            Some(matcher) if matcher.is_match(text) => {
                let mut clean = String::with_capacity(text.len());
                matcher.replace_all_with(text, &mut clean, |_, _, out| {
                    out.push_str(MASK);
                    true
                });
                Cow::Owned(clean)
            }
            _ => Cow::Borrowed(text),
        }
    }

    /// Returns the value with the secrets in each string masked, so that it stays valid JSON.
    pub fn json(&self, value: Value) -> Value {
        match value {
            Value::String(text) => match self.text(&text) {
                Cow::Borrowed(_) => Value::String(text),
                Cow::Owned(clean) => Value::String(clean),
            },
            Value::Array(items) => items.into_iter().map(|item| self.json(item)).collect(),
            Value::Object(fields) => {
                let clean = |(key, value): (String, Value)| (self.text(&key).into_owned(), self.json(value));
                fields.into_iter().map(clean).collect()
            }
            plain => plain,
        }
    }

    /// Whether the text contains a secret.
    pub fn finds(&self, text: impl AsRef<[u8]>) -> bool {
        self.matcher.as_ref().is_some_and(|matcher| matcher.is_match(text.as_ref()))
    }

    /// Returns a redactor for one stream. It finds secrets that are split between two reads.
    pub fn stream(&self) -> StreamRedactor {
        StreamRedactor { redactor: self.clone(), held: Vec::new() }
    }
}

/// Redacts one byte stream. It holds back bytes that may be the start of a secret.
#[derive(Debug)]
pub struct StreamRedactor {
    redactor: Redactor,
    held: Vec<u8>,
}

impl StreamRedactor {
    /// Adds bytes, and appends to `out` those that cannot be part of a secret.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(matcher) = &self.redactor.matcher else {
            out.extend_from_slice(bytes);
            return;
        };
        self.held.extend_from_slice(bytes);
        // A match that ends before this point cannot grow into a longer one with bytes yet to come.
        let settled = (self.held.len() + 1).saturating_sub(self.redactor.longest);
        let mut done = 0;
        for found in matcher.find_iter(&self.held) {
            if found.start() >= settled {
                break;
            }
            out.extend_from_slice(&self.held[done..found.start()]);
            out.extend_from_slice(MASK.as_bytes());
            done = found.end();
        }
        if done < settled {
            out.extend_from_slice(&self.held[done..settled]);
            done = settled;
        }
        self.held.drain(..done);
    }

    /// Appends the held bytes to `out`, as if the stream ended here.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        if let Some(matcher) = &self.redactor.matcher {
            let mut done = 0;
            for found in matcher.find_iter(&self.held) {
                out.extend_from_slice(&self.held[done..found.start()]);
                out.extend_from_slice(MASK.as_bytes());
                done = found.end();
            }
            out.extend_from_slice(&self.held[done..]);
            self.held.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn streamed(redactor: &Redactor, chunks: &[&[u8]]) -> Vec<u8> {
        let mut stream = redactor.stream();
        let mut out = Vec::new();
        for chunk in chunks {
            stream.push(chunk, &mut out);
        }
        stream.flush(&mut out);
        out
    }

    #[test]
    fn values_under_eight_bytes_are_left_alone() {
        assert!(Redactor::new(["short", ""]).is_empty());
    }

    #[test]
    fn a_secret_is_found_escaped_inside_json() {
        let redactor = Redactor::new(["a\"quoted\"secret"]);
        assert_eq!(redactor.text(r#"{"key":"a\"quoted\"secret"}"#), r#"{"key":"[redacted]"}"#);
        let line = serde_json::json!({"key": "a\"quoted\"secret"}).to_string();
        assert!(redactor.finds(serde_json::json!({ "arguments": line }).to_string()));
    }

    #[test]
    fn secrets_are_masked_in_the_texts_of_json_and_nowhere_else() {
        let redactor = Redactor::new(["12345678", "sk-12345\\"]);
        let value = serde_json::json!({"12345678": [12345678, "12345678", "sk-12345\""], "on": true});
        assert_eq!(
            redactor.json(value),
            serde_json::json!({"[redacted]": [12345678, "[redacted]", "sk-12345\""], "on": true})
        );
    }

    #[test]
    fn the_longer_of_two_overlapping_secrets_is_masked_whole() {
        let redactor = Redactor::new(["sk-12345", "sk-123456789"]);
        assert_eq!(redactor.text("key sk-123456789."), "key [redacted].");
        assert_eq!(streamed(&redactor, &[b"key sk-12345", b"6789."]), b"key [redacted].");
    }

    proptest! {
        #[test]
        fn a_stream_is_redacted_the_same_however_it_is_cut(
            parts in prop::collection::vec(prop_oneof![Just("hunter2-secret".to_owned()), "[a-z0-9-]{0,12}"], 0..12),
            cuts in prop::collection::vec(0usize..200, 0..8),
        ) {
            let redactor = Redactor::new(["hunter2-secret", "2-secret-long-one"]);
            let text = parts.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            let mut chunks = Vec::new();
            let mut from = 0;
            for cut in cuts {
                chunks.push(&text.as_bytes()[from..cut]);
                from = cut;
            }
            chunks.push(&text.as_bytes()[from..]);
            let clean = streamed(&redactor, &chunks);
            prop_assert_eq!(String::from_utf8_lossy(&clean).into_owned(), redactor.text(&text).into_owned());
            prop_assert!(!String::from_utf8_lossy(&clean).contains("hunter2-secret"));
        }
    }
}
