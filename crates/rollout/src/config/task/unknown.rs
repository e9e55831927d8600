//! Keys of task.toml that Rollout does not use: they are kept, and those that look like a typo give warnings.

use serde_json::{Map, Value as Json};

use super::keys::{TaskAgent, TaskEnvironment, TaskKeys, TaskSolution, TaskVerifier};
use rollout_settings::{
    Entry, Key, Section, Settings as _,
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

/// Keeps unknown keys, and warns about those that look like a typo.
fn note_unknown(section: &Section<'_>, keys: &[Key], unknown: &mut Map<String, Json>) {
    let keys: Vec<&str> = keys.iter().map(|key| key.name).collect();
    for entry in section.entries.iter().filter(|entry| !keys.contains(&entry.key.as_str())) {
        let path = section.at(&entry.key);
        warn_of_typo(section, entry, &keys);
        unknown.insert(path, super::plain_json(&entry.node));
    }
}

/// Warns about an unknown key that is similar to a known one: unknown keys are kept and ignored, so a typo would
/// silently give the default.
fn warn_of_typo(section: &Section<'_>, entry: &Entry, keys: &[&str]) {
    let path = section.at(&entry.key);
    let Some(meant) = meant(section, &entry.key, keys) else { return };
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
