//! The forms of values in task.toml.

use serde_json::{Map, Value as Json, json};

use super::{
    keys::ArtifactKeys,
    parts::{ArtifactConfig, TaskAmount},
    plain_entry, plain_json,
};
use rollout_core::{hosts::HostPattern, quantity::Bytes};
use rollout_settings::{
    Entry, Form, Node, Section, Settings as _, Value,
    declare::entry,
    diagnostic::{Code, Diagnostic, quoted},
    forms::{bytes, env, list, number_or_text, texts},
};

pub(super) fn version(root: &Section<'_>) -> Option<String> {
    let key = if root.node("version").is_some() { "version" } else { "schema_version" };
    let version = root.text(key)?;
    if version != "1" && !version.starts_with("1.") {
        let message = format!("unknown version {} of the task format", quoted(&version));
        root.reader.report(
            Diagnostic::warning(root.reader.sources, root.value_span(key), Code::Unsupported, message)
                .hint("the task is read as version 1.0"),
        );
    }
    Some(version)
}

pub(super) fn metadata(section: &Section<'_>, key: &str) -> Option<Map<String, Json>> {
    Some(section.mapping(key)?.entries.iter().map(plain_entry).collect())
}

/// Variables as they are written: a task can be loaded and validated where they are not set.
pub(super) fn variables() -> Form<Vec<(String, String)>> {
    let read = |section: &Section<'_>, key: &str| {
        let variables = section.variables(key).into_iter();
        Some(variables.map(|(entry, text)| (entry.key.clone(), text)).collect())
    };
    env().read_into(read, |_, written| written.plain()).or_empty()
}

/// Entries of an allow-list.
pub(super) fn hosts() -> Form<Vec<String>> {
    texts().kind("list of hosts").check(|hosts, section, key| {
        for problem in hosts.iter().filter_map(|host| host.parse::<HostPattern>().err()) {
            section.invalid(key, format!("`{}`: {problem}", section.at(key)));
        }
    })
}

/// A user, as `name|uid`.
pub(super) fn user() -> Form<Option<String>> {
    number_or_text()
        .kind("name or number")
        .filter(|user| !user.is_empty())
        .check(|user, section, key| {
            if user.chars().any(|char| char.is_whitespace() || char.is_control()) {
                section.invalid(key, format!("{} cannot be the name of a user", quoted(user)));
            }
        })
        .optional()
        .unset("the image's `USER`")
}

/// TPUs, as written. An empty table asks for nothing.
pub(super) fn tpu() -> Form<Option<Json>> {
    let schema = || json!({ "type": ["object", "string", "integer"] });
    Form::written("mapping", schema, |section, key| {
        let value = plain_json(section.node(key)?);
        let nothing = [json!({}), json!(""), json!(0), json!(false)].contains(&value);
        (!nothing).then_some(value)
    })
    .optional()
}

/// Artifacts: paths, or tables.
pub(super) fn artifacts() -> Form<Vec<ArtifactConfig>> {
    let item = || {
        let mut table = entry::<ArtifactKeys>();
        table["additionalProperties"] = json!(true);
        json!({ "anyOf": [{ "type": "string" }, table] })
    };
    list(item, |section, key| {
        let Value::List(items) = &section.node(key)?.value else {
            section.invalid_with_hint(
                key,
                "`artifacts` must be a list",
                "write `artifacts = [\"/app/result.txt\"]`",
            );
            return None;
        };
        let read = |(index, item): (usize, &Node)| artifact(item, index, section, key);
        Some(items.iter().enumerate().filter_map(read).collect())
    })
}

fn artifact(item: &Node, index: usize, section: &Section<'_>, key: &str) -> Option<ArtifactConfig> {
    let keys = match &item.value {
        Value::String(path) => {
            ArtifactKeys { source: path.clone(), destination: None, exclude: Vec::new(), service: None }
        }
        Value::Map(_) => {
            let table = section.reader.mapping(item, &format!("{}.{index}", section.at(key)))?;
            ArtifactKeys::read(&table)?
        }
        _ => {
            section.invalid(key, "an entry of `artifacts` must be a path or a table with `source`");
            return None;
        }
    };
    let Some(source) = source_path(&keys.source) else {
        let message = format!("{} cannot be the path of an artifact", quoted(&keys.source));
        section.invalid_with_hint(key, message, "write it as `/app/result.txt`, without `..`");
        return None;
    };
    if let Some(path) = keys.destination.as_deref() {
        let leaves = path.split('/').any(|name| name == "..");
        if leaves || path.starts_with('/') || path.chars().any(char::is_control) {
            let message = format!("{} is not a relative path without `..`", quoted(path));
            section.invalid_with_hint(key, message, "a destination is below `artifacts/` of the trial");
        }
    }
    let ArtifactKeys { destination, exclude, service, .. } = keys;
    Some(ArtifactConfig { source, destination, exclude, service })
}

/// The absolute path of an artifact. As in Harbor, `/` at the end is allowed, and other paths are below `/`.
fn source_path(written: &str) -> Option<String> {
    let names: Vec<&str> = written.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    let is_plain = !names.contains(&"..") && !written.chars().any(char::is_control);
    (is_plain && !names.is_empty()).then(|| format!("/{}", names.join("/")))
}

/// A number, or numbers by the names of rewards.
pub(super) fn min_reward() -> Form<Vec<(String, f64)>> {
    let schema = || json!({ "anyOf": [{ "type": "number" }, { "type": "object" }] });
    Form::written("number, or mapping of name to number", schema, |section, key| {
        match &section.node(key)?.value {
            Value::Map(_) => {
                let named = section.mapping(key)?;
                let read = |entry: &Entry| Some((entry.key.clone(), named.finite(&entry.key)?));
                Some(named.entries.iter().filter_map(read).collect())
            }
            _ => Some(vec![("reward".to_owned(), section.finite(key)?)]),
        }
    })
    .or_empty()
    .unset("none")
}

/// An amount of memory or storage, as Rollout and as Harbor read it.
pub(super) fn task_amount(mebibytes_key: &'static str, mebibytes_doc: &'static str) -> Form<TaskAmount> {
    let mebibytes: Form<f64> =
        Form::new("MiB", || json!({ "type": "number", "exclusiveMinimum": 0 }), |_, _| None);
    bytes()
        .read_into(
            move |section, key| {
                let bytes = amount(section, key, mebibytes_key)?;
                let binary = section.text(key).and_then(|text| binary(&text)).unwrap_or(bytes);
                Some(TaskAmount { bytes, binary })
            },
            |amount, _| json!(amount.bytes.to_string()),
        )
        .note("A number or a Kubernetes quantity.")
        .alias(mebibytes_key, mebibytes_doc, mebibytes)
}

/// An amount with a decimal unit, read as a power of 1024.
fn binary(text: &str) -> Option<Bytes> {
    let text = text.trim();
    let unit = text.chars().last().filter(|unit| "kMGTPE".contains(*unit))?;
    let number = &text[..text.len() - 1];
    format!("{number}{}i", unit.to_ascii_uppercase()).parse().ok()
}

pub(super) fn check_image(image: &str, section: &Section<'_>, key: &str) {
    // A leading dash would be an option to a command that is given the image.
    if image.starts_with('-') || image.chars().any(|char| char.is_whitespace() || char.is_control()) {
        let message = format!("{} cannot be the name of an image", quoted(image));
        section.invalid_with_hint(key, message, "write it as `registry/name:tag` or `name@sha256:…`");
    }
}

pub(super) fn check_hostname(name: &str, section: &Section<'_>, key: &str) {
    let label = |label: &str| {
        !label.is_empty() && label.chars().all(|char| char.is_ascii_alphanumeric() || char == '-')
    };
    if name.len() > 253 || !name.split('.').all(label) {
        let message = format!("{} cannot be the name of a host", quoted(name));
        section.invalid_with_hint(key, message, "use letters, digits, `-` and `.`");
    }
}

/// An amount that can be given in two ways. The spec's own key has priority, and a warning says which key is ignored.
fn amount(environment: &Section<'_>, key: &str, mebibytes_key: &str) -> Option<Bytes> {
    let (exact, mebibytes) = (environment.bytes(key), environment.mebibytes(mebibytes_key));
    if let (Some(exact), Some(mebibytes)) = (exact, mebibytes)
        && exact != mebibytes
    {
        let message = format!("`{mebibytes_key}` is {mebibytes} and `{key}` is {exact}: `{key}` is used");
        let span = environment.value_span(mebibytes_key);
        environment.reader.report(
            Diagnostic::warning(environment.reader.sources, span, Code::Conflict, message)
                .hint("keep one of them"),
        );
    }
    exact.or(mebibytes)
}
