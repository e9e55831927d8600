//! The forms of settings that only benchmarks have. `${VAR}` is expanded in nearly all of them.

use std::path::PathBuf;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json, json};

use super::is_hub_address;
use rollout_model::metric::Metric;
use rollout_settings::{
    Code, EnvValue, Expanded, Form, Node, Section, Value,
    diagnostic::{nearest, quoted},
    expand::{has_password, is_secret_header, names_a_secret, recorded},
    section::scalar_text,
};

/// Expands a text. None if it cannot be expanded, which is reported.
fn expand(section: &Section<'_>, key: &str, written: &str, node: &Node) -> Option<Expanded> {
    let expanded = section.try_expand(written, node)?;
    let named = std::iter::once(key).chain(expanded.names()).any(names_a_secret);
    if named || is_secret_header(key) || has_password(&expanded.text) {
        section.reader.hide(expanded.secrets());
    }
    Some(expanded)
}

fn read_text(section: &Section<'_>, key: &str) -> Option<String> {
    expand(section, key, section.string(key)?, section.node(key)?).map(|expanded| expanded.text)
}

fn read_texts(section: &Section<'_>, key: &str) -> Option<Vec<String>> {
    let mut texts = Vec::new();
    for (index, node) in section.list(key)?.iter().enumerate() {
        match scalar_text(section.reader.sources, node) {
            Some(written) => texts.extend(expand(section, key, &written, node).map(|text| text.text)),
            None => section.reader.wrong_type(node, &format!("{key}.{index}"), "a string"),
        }
    }
    Some(texts)
}

fn string() -> Json {
    json!({ "type": "string" })
}

/// A text.
pub(super) fn text() -> Form<String> {
    Form::new("text", string, read_text)
}

/// A text that is not blank; a blank one counts as absent.
pub(super) fn filled() -> Form<String> {
    text().filter(|text| is_filled(text))
}

pub(super) fn is_filled(text: &str) -> bool {
    !text.trim().is_empty()
}

/// A URL, which may contain a password.
pub(super) fn url() -> Form<String> {
    text().kind("URL").recorded(|url, _| recorded("", url).into())
}

/// An API key.
pub(super) fn key() -> Form<Option<EnvValue>> {
    filled()
        .note("Write it as `${VAR}`. Keys never appear in outputs.")
        .recorded(|key, _| recorded("key", key).into())
        .map(|value| EnvValue { value, secret: true }, |key| key.value.clone())
        .optional()
}

/// A list of texts. Numbers are kept as written.
pub(super) fn texts() -> Form<Vec<String>> {
    Form::new("list of texts", || json!({ "type": "array", "items": { "type": "string" } }), read_texts)
}

/// A text, or its lines.
pub(super) fn prompt() -> Form<String> {
    let schema =
        || json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] });
    Form::new("text, or a list of lines", schema, |section, key| match section.node(key)?.value {
        Value::List(_) => read_texts(section, key).map(|lines| lines.join("\n")),
        _ => read_text(section, key),
    })
}

/// The path of an input, relative to the file or to the working directory. Some must exist.
pub(super) fn input(needed: fn(&Section<'_>) -> bool) -> Form<Option<PathBuf>> {
    Form::written("path", string, move |section, key| {
        let path = PathBuf::from(read_text(section, key).filter(|text| is_filled(text))?);
        // Rows on a hub are no file of this machine yet.
        if key == "data_path" && path.to_str().is_some_and(is_hub_address) {
            return Some(path);
        }
        let beside = section.reader.dir.join(&path);
        // The first source is the file; others came from the command line.
        let from_file = section.node(key).is_some_and(|node| node.span.source == 0);
        if from_file && beside.exists() {
            return Some(beside);
        }
        if needed(section) && !path.exists() {
            let hint = match from_file && path.is_relative() {
                true => "the path is relative to this file or to the working directory",
                false => "the path is relative to the working directory",
            };
            let message = format!("`{key}`: the file does not exist");
            section.reader.error_with_hint(section.value_span(key), Code::Unreadable, message, hint);
        }
        Some(path)
    })
    // A path need not be text, but a record is.
    .recorded(|path, _| path.to_string_lossy().into())
    .optional()
}

/// The name of a metric.
pub(super) fn metric() -> Form<Metric> {
    let schema = || json!({ "enum": Metric::ALL.map(Metric::as_str) });
    Form::written("a [metric](scoring.md)", schema, |section, key| {
        let text = read_text(section, key).filter(|text| is_filled(text))?;
        let found = Metric::ALL.into_iter().find(|metric| metric.as_str() == text);
        if found.is_none() {
            let names = Metric::ALL.map(Metric::as_str);
            let list = names.map(|name| format!("`{name}`")).join(", ");
            let hint = match nearest(&text, &names) {
                Some(name) => format!("did you mean `{name}`? known metrics: {list}"),
                None => format!("known metrics: {list}"),
            };
            section.invalid_with_hint(key, format!("`{key}`: unknown metric {}", quoted(&text)), hint);
        }
        found
    })
    .recorded(|metric, _| metric.as_str().into())
}

fn read_values(section: &Section<'_>, key: &str) -> Option<Map<String, Json>> {
    let mut text = |key: &str, written: &str, node: &Node| {
        expand(section, key, written, node).map_or(Json::Null, |expanded| Json::String(expanded.text))
    };
    let entries = section.mapping(key)?.entries.iter();
    Some(entries.map(|entry| (entry.key.clone(), entry.node.to_json(&entry.key, &mut text))).collect())
}

fn without_secrets(values: &Map<String, Json>) -> Json {
    let mut values = Json::Object(values.clone());
    mask("", &mut values);
    values
}

/// A mapping as JSON, with its texts expanded.
pub(super) fn values() -> Form<Map<String, Json>> {
    Form::written("mapping", || json!({ "type": "object" }), read_values)
        .recorded(|values, _| without_secrets(values))
        .or_empty()
}

/// Mappings by name.
pub(super) fn maps() -> Form<IndexMap<String, Map<String, Json>>> {
    let schema = || json!({ "type": "object", "additionalProperties": { "type": "object" } });
    Form::written("mapping", schema, |section, key| {
        let kinds = section.mapping(key)?;
        let kind = |key: &String| (key.clone(), read_values(&kinds, key).unwrap_or_default());
        Some(kinds.entries.iter().map(|entry| kind(&entry.key)).collect())
    })
    .recorded(|maps: &IndexMap<String, Map<String, Json>>, _| {
        maps.iter()
            .map(|(kind, values)| (kind.clone(), without_secrets(values)))
            .collect::<Map<_, _>>()
            .into()
    })
    .or_empty()
}

/// A text for a record, without secrets.
pub(super) fn masked(key: &str, text: &str) -> String {
    recorded(if is_secret_header(key) { "secret" } else { key }, text)
}

fn mask(key: &str, value: &mut Json) {
    match value {
        Json::String(text) => *text = masked(key, text),
        Json::Array(items) => items.iter_mut().for_each(|item| mask(key, item)),
        Json::Object(entries) => entries.iter_mut().for_each(|(key, value)| mask(key, value)),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}
