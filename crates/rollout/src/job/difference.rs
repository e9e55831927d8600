//! What differs between two configurations, for a person to read.

use std::fmt;

use serde_json::Value;

use rollout_core::text::excerpt;

/// One setting that is not the same in two configurations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigDifference {
    /// The setting, dotted.
    pub key: String,
    /// What it was, or nothing.
    pub before: Option<String>,
    /// What it is, or nothing.
    pub after: Option<String>,
}

impl fmt::Display for ConfigDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, before, after } = self;
        match (before, after) {
            (Some(before), Some(after)) => write!(f, "{key}: was {before}, is {after}"),
            (Some(before), None) => write!(f, "{key}: was {before}, is gone"),
            (None, Some(after)) => write!(f, "{key}: is new, {after}"),
            (None, None) => write!(f, "{key}"),
        }
    }
}

/// Every leaf that differs, in the order of the first value.
pub(super) fn differences(before: &Value, after: &Value) -> Vec<ConfigDifference> {
    let mut found = Vec::new();
    compare("", Some(before), Some(after), &mut found);
    found
}

fn compare(key: &str, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<ConfigDifference>) {
    let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    match (before, after) {
        (Some(before), Some(after)) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            for (name, value) in before {
                compare(&below(name), Some(value), after.get(name), found);
            }
            for (name, value) in after.iter().filter(|(name, _)| !before.contains_key(*name)) {
                compare(&below(name), None, Some(value), found);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => {
            for place in 0..before.len().max(after.len()) {
                compare(&below(&place.to_string()), before.get(place), after.get(place), found);
            }
        }
        _ => found.push(ConfigDifference {
            key: key.to_owned(),
            before: before.map(short),
            after: after.map(short),
        }),
    }
}

fn short(value: &Value) -> String {
    excerpt(&value.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_changed_leaf_is_named_once() {
        let before = json!({"n_attempts": 1, "agents": [{"name": "a"}], "verifier": {"disable": false}});
        let after =
            json!({"n_attempts": 2, "agents": [{"name": "a"}, {"name": "b"}], "verifier": {}, "metrics": []});
        let lines: Vec<_> = differences(&before, &after).iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "n_attempts: was 1, is 2",
                "agents.1: is new, {\"name\":\"b\"}",
                "verifier.disable: was false, is gone",
                "metrics: is new, []",
            ]
        );
    }
}
