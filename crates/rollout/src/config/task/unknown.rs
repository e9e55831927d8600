//! Keys of task.toml that Rollout does not use: they are kept, and those that may matter give warnings.

use serde_json::{Map, Value as Json};

use super::keys::{TaskAgent, TaskEnvironment, TaskKeys, TaskSolution, TaskVerifier};
use rollout_settings::{
    Entry, Key, Node, Reader, Section, Settings as _, Span, Value,
    diagnostic::{Code, Diagnostic, nearest, quoted},
};

/// The unknown keys of a task.toml, by their dotted path.
pub(super) fn unknown(root: &Section<'_>) -> Map<String, Json> {
    let mut unknown = Map::new();
    note_unknown(root, &TaskKeys::keys(), &mut unknown);
    note_unknown(&root.inside("verifier"), &TaskVerifier::keys(), &mut unknown);
    note_unknown(&root.inside("agent"), &TaskAgent::keys(), &mut unknown);
    note_unknown(&root.inside("environment"), &TaskEnvironment::keys(), &mut unknown);
    note_unknown(&root.inside("solution"), &TaskSolution::keys(), &mut unknown);
    unknown
}

/// Keeps unknown keys, and warns about those that may matter.
fn note_unknown(section: &Section<'_>, keys: &[Key], unknown: &mut Map<String, Json>) {
    let keys: Vec<&str> = keys.iter().map(|key| key.name).collect();
    for entry in section.entries.iter().filter(|entry| !keys.contains(&entry.key.as_str())) {
        let path = section.at(&entry.key);
        warn_of_changed_meaning(section.reader, &path, entry.key_span, &entry.node);
        warn_of_typo(section, entry, &keys);
        unknown.insert(path, super::plain_json(&entry.node));
    }
}

/// The effect of keys that other tools support and a task may depend on.
const CHANGED_MEANING: [(&str, &str); 2] = [
    ("environment.mcp_servers", "the agent gets no MCP servers"),
    ("environment.skills_dir", "the agent gets no skills"),
];

fn warn_of_changed_meaning(reader: &Reader<'_>, path: &str, key_span: Span, node: &Node) {
    let Some((_, effect)) = CHANGED_MEANING.iter().find(|(key, _)| *key == path) else { return };
    if is_empty(&node.value) {
        return;
    }
    reader.report(Diagnostic::warning(
        reader.sources,
        key_span,
        Code::Unsupported,
        format!("`{path}` is not supported: {effect}"),
    ));
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty(),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => false,
    }
}

/// Warns about an unknown key that is similar to a known one: unknown keys are kept and ignored, so a typo would
/// silently give the default.
fn warn_of_typo(section: &Section<'_>, entry: &Entry, keys: &[&str]) {
    let path = section.at(&entry.key);
    let Some(meant) = meant(section, &entry.key, keys) else { return };
    if CHANGED_MEANING.iter().any(|(key, _)| *key == path) {
        return;
    }
    let message = format!("unknown key {}, which is ignored", quoted(&path));
    section.reader.report(
        Diagnostic::warning(section.reader.sources, entry.key_span, Code::UnknownKey, message)
            .hint(format!("did you mean `{meant}`?")),
    );
}

/// The known key that an unknown one is most similar to, if it is not present as well.
fn meant(section: &Section<'_>, key: &str, keys: &[&str]) -> Option<String> {
    // A missing or written-out unit differs by more than a few letters: `timeout`, `timeout_seconds`.
    let stem =
        ["_seconds", "_secs", "_second", "_s"].iter().find_map(|unit| key.strip_suffix(unit)).unwrap_or(key);
    let longer = |known: &&&str| known.strip_prefix(stem).is_some_and(|rest| rest.starts_with('_'));
    let shorter = |known: &&&str| known.strip_suffix(key).is_some_and(|rest| rest.ends_with('_'));
    let own = nearest(key, keys)
        .or_else(|| keys.iter().find(longer).copied())
        .or_else(|| keys.iter().find(shorter).copied())
        .filter(|own| section.node(own).is_none());
    if own.is_some() || !section.path.is_empty() {
        return own.map(str::to_owned);
    }
    let sections: [(&str, Vec<Key>); 3] = [
        ("agent", TaskAgent::keys()),
        ("verifier", TaskVerifier::keys()),
        ("environment", TaskEnvironment::keys()),
    ];
    let of_section = |(name, keys): &(&str, Vec<Key>)| {
        keys.iter().any(|known| known.name == key).then(|| format!("{name}.{key}"))
    };
    sections.iter().find_map(of_section)
}
