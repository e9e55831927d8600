//! What may be added to a job after it has run: only agents, datasets, tasks and attempts.

use serde_json::Value;

use super::difference::{ConfigDifference, compare, differences};

/// The lists of a job, whose entries are identified by name.
const LISTS: [&str; 2] = ["agents", "datasets"];

/// The location of a dataset's files. The hashes of their contents decide whether they are the same.
const PLACES: [&str; 2] = ["path", "registry"];

/// The differences between the configuration of a job and another, except what may be added. Without differences, the
/// job can be extended.
pub(super) fn changes(before: &Value, after: &Value, provider: &str) -> Vec<ConfigDifference> {
    let (mut before, mut after) = (before.clone(), after.clone());
    let mut found = Vec::new();
    for list in LISTS {
        let (old, new) = (take(&mut before, list), take(&mut after, list));
        let (old, new) = (entries(&old), entries(&new));
        for (name, old) in &old {
            let key = format!("{list}.{name}");
            match new.iter().find(|(other, _)| other == name) {
                Some((_, new)) => {
                    compare(&key, Some(&without_places(old)), Some(&without_places(new)), &mut found)
                }
                None => compare(&key, Some(old), None, &mut found),
            }
        }
    }
    let (old, new) = (take(&mut before, "n_attempts"), take(&mut after, "n_attempts"));
    if old.as_u64() > new.as_u64() {
        compare("n_attempts", Some(&old), Some(&new), &mut found);
    }
    found.extend(other_than_provider(differences(&before, &after), provider));
    found
}

/// Ignores that a job now names the provider that it ran on.
pub(super) fn other_than_provider(
    found: Vec<ConfigDifference>,
    provider: &str,
) -> impl Iterator<Item = ConfigDifference> {
    let named = Value::from(provider).to_string();
    let is_named = move |found: &ConfigDifference| {
        found.key == "environment.type"
            && found.before.as_deref().is_none_or(|before| before == "null")
            && found.after.as_ref() == Some(&named)
    };
    found.into_iter().filter(move |found| !is_named(found))
}

fn take(record: &mut Value, key: &str) -> Value {
    record.get_mut(key).map(Value::take).unwrap_or_default()
}

/// The entries of a list by their names in results.
fn entries(list: &Value) -> Vec<(&str, &Value)> {
    list.as_array()
        .into_iter()
        .flatten()
        .map(|entry| {
            let text = |key: &str| entry.get(key).and_then(Value::as_str);
            (text("rename").or_else(|| text("name")).unwrap_or_default(), entry)
        })
        .collect()
}

fn without_places(entry: &Value) -> Value {
    let mut entry = entry.clone();
    if let Value::Object(settings) = &mut entry {
        PLACES.iter().for_each(|key| _ = settings.shift_remove(*key));
    }
    entry
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job() -> Value {
        json!({
            "n_attempts": 2,
            "environment": {"type": null},
            "agents": [{"name": "a", "execute": "true"}],
            "datasets": [{"path": "./set", "name": "set"}],
        })
    }

    fn lines(after: &Value) -> Vec<String> {
        changes(&job(), after, "native").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_job_grows_by_attempts_agents_and_datasets() {
        let after = json!({
            "n_attempts": 3,
            "environment": {"type": "native"},
            "agents": [{"name": "b", "execute": "false"}, {"name": "a", "execute": "true"}],
            "datasets": [{"path": "../set", "name": "set"}, {"path": "./more", "name": "more"}],
        });
        assert_eq!(lines(&after), [""; 0]);
    }

    #[test]
    fn changes_to_finished_parts_are_listed() {
        let after = json!({
            "n_attempts": 1,
            "environment": {"type": "docker"},
            "agents": [{"name": "a", "execute": "false"}],
            "datasets": [{"path": "./set", "name": "other"}],
        });
        assert_eq!(
            lines(&after),
            [
                "agents.a.execute: was \"true\", is \"false\"",
                "datasets.set: removed, was {\"path\":\"./set\",\"name\":\"set\"}",
                "n_attempts: was 2, is 1",
                "environment.type: was null, is \"docker\"",
            ]
        );
    }
}
