//! Records of configurations: `${VAR}` as written, literal secrets masked.

use std::borrow::Cow;

use serde_json::{Map, Value as Json, json};
use sha2::{Digest as _, Sha256};

use crate::{
    declare::Settings,
    expand::{is_secret_header, recorded},
    form::Written,
    section::scalar_text,
    tree::{Entry, Node, Value},
};
use rollout_core::redact::Redactor;

/// The value as it was written, with secrets masked.
pub fn plain(node: &Node, key: &str) -> Json {
    node.to_json(key, &mut |key, text, _| Json::String(recorded(key, text)))
}

/// Variables, each as it was written.
pub fn env(written: Written<'_>) -> Json {
    mapping(written, |entry| {
        let text = written.sources.and_then(|sources| scalar_text(sources, &entry.node));
        recorded(&entry.key, &text.unwrap_or_default())
    })
}

/// Headers. Their schemes stay readable: `Bearer ${TOKEN}` can be used again.
pub fn headers(written: Written<'_>) -> Json {
    mapping(written, |entry| {
        let Value::String(text) = &entry.node.value else { return String::new() };
        let key = if is_secret_header(&entry.key) { "secret" } else { &entry.key };
        match text.split_once(' ') {
            Some((scheme, rest)) if scheme.chars().all(|char| char.is_ascii_alphabetic()) => {
                format!("{scheme} {}", recorded(key, rest))
            }
            _ => recorded(key, text),
        }
    })
}

fn mapping(written: Written<'_>, text: impl Fn(&Entry) -> String) -> Json {
    let Some(Node { value: Value::Map(entries), .. }) = written.node else { return json!({}) };
    entries.iter().map(|entry| (entry.key.clone(), Json::String(text(entry)))).collect::<Map<_, _>>().into()
}

/// Masks secrets everywhere: an author may have written one into a script as well.
pub fn redact(record: &mut Json, redactor: &Redactor) {
    match record {
        Json::String(text) => {
            if let Cow::Owned(clean) = redactor.text(text) {
                *text = clean;
            }
        }
        Json::Array(items) => items.iter_mut().for_each(|item| redact(item, redactor)),
        Json::Object(entries) => entries.values_mut().for_each(|item| redact(item, redactor)),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Removes the values from a recorded section, and from the sections in it, that cannot change a result.
pub fn leave_out_unhashed<S: Settings>(record: &mut Json) {
    if let Json::Object(settings) = record {
        for key in S::keys() {
            if !key.hashed {
                settings.shift_remove(key.name);
            } else if let (Some(leave_out), Some(inner)) = (key.leave_out, settings.get_mut(key.name)) {
                leave_out(inner);
            }
        }
    }
}

/// The hash of a record, independent of the order of its keys.
pub fn hash(mut record: Json) -> String {
    record.sort_all_objects();
    sha256(record.to_string().as_bytes())
}

/// `sha256:` and the hash of these bytes in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// `sha256:` and a hash in hexadecimal.
pub fn hexadecimal(hash: &[u8]) -> String {
    format!("sha256:{}", rollout_core::text::hex(hash))
}
