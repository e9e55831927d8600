//! The differences between two configurations, for users.

use std::fmt;

use serde_json::Value;

use rollout_core::text::excerpt;

/// A setting that differs between two configurations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigDifference {
    /// The path of the setting, with dots. For a text of several lines, also the line.
    pub key: String,
    /// The old value, if there was one.
    pub before: Option<String>,
    /// The new value, if there is one.
    pub after: Option<String>,
}

impl fmt::Display for ConfigDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, before, after } = self;
        match (before, after) {
            (Some(before), Some(after)) => write!(f, "{key}: was {before}, is {after}"),
            (Some(before), None) => write!(f, "{key}: removed, was {before}"),
            (None, Some(after)) => write!(f, "{key}: added, {after}"),
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

/// Compares two values of a setting.
pub(super) fn compare(
    key: &str,
    before: Option<&Value>,
    after: Option<&Value>,
    found: &mut Vec<ConfigDifference>,
) {
    let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    match (before, after) {
        (Some(before), Some(after)) if before == after => {}
        // A null setting that the earlier version did not have.
        (None, Some(Value::Null)) => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            // The text of a script is more useful than its hash.
            let has_text = |name: &str| {
                let text = name.strip_suffix("_sha256");
                text.is_some_and(|text| before.contains_key(text) && after.contains_key(text))
            };
            for (name, value) in before.iter().filter(|(name, _)| !has_text(name)) {
                compare(&below(name), Some(value), after.get(name), found);
            }
            for (name, value) in
                after.iter().filter(|(name, _)| !before.contains_key(*name) && !has_text(name))
            {
                compare(&below(name), None, Some(value), found);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => {
            for place in 0..before.len().max(after.len()) {
                compare(&below(&place.to_string()), before.get(place), after.get(place), found);
            }
        }
        (Some(Value::String(before)), Some(Value::String(after))) => found.push(of_texts(key, before, after)),
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

/// The first line that differs between two texts, starting shortly before the difference.
fn of_texts(key: &str, before: &str, after: &str) -> ConfigDifference {
    /// How many characters are shown before the difference.
    const CONTEXT: usize = 20;
    /// Shorter lines are shown completely.
    const SHORT: usize = 56;
    let one_line = !before.trim_end().contains('\n') && !after.trim_end().contains('\n');
    let pairs = |number: usize| (before.lines().nth(number), after.lines().nth(number));
    let lines = before.lines().count().max(after.lines().count());
    let number = (0..lines).find(|number| pairs(*number).0 != pairs(*number).1).unwrap_or_default();
    let (old, new) = pairs(number);
    let (old, new) = if one_line { (Some(before), Some(after)) } else { (old, new) };
    let same = old.unwrap_or("").chars().zip(new.unwrap_or("").chars()).take_while(|(a, b)| a == b).count();
    let fits = [old, new].into_iter().flatten().all(|text| text.chars().count() <= SHORT);
    let from = |text: &str| {
        let skipped = if fits { 0 } else { same.saturating_sub(CONTEXT) };
        let rest: String = text.chars().skip(skipped).collect();
        let rest = if skipped == 0 { rest } else { format!("…{rest}") };
        excerpt(&Value::from(rest).to_string())
    };
    let key = if one_line { key.to_owned() } else { format!("{key}, line {}", number + 1) };
    ConfigDifference { key, before: old.map(from), after: new.map(from) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(before: &Value, after: &Value) -> Vec<String> {
        differences(before, after).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_changed_leaf_is_named_once() {
        let before = json!({"n_attempts": 1, "agents": [{"name": "a"}], "verifier": {"disable": false}});
        let after =
            json!({"n_attempts": 2, "agents": [{"name": "a"}, {"name": "b"}], "verifier": {}, "metrics": []});
        assert_eq!(
            lines(&before, &after),
            [
                "n_attempts: was 1, is 2",
                "agents.1: added, {\"name\":\"b\"}",
                "verifier.disable: removed, was false",
                "metrics: added, []",
            ]
        );
    }

    #[test]
    fn long_texts_are_shown_where_they_differ() {
        let script = |last: &str| {
            let text = format!("set -e\n{}\ncd /app && make {last} && true\n", "x".repeat(100));
            json!({"execute": text, "execute_sha256": format!("sha256:{last}")})
        };
        assert_eq!(
            lines(&script("one"), &script("two")),
            ["execute, line 3: was \"cd /app && make one && true\", is \"cd /app && make two && true\""]
        );
        let url = |end: &str| json!({"url": format!("https://example.com/{}{end}", "a".repeat(80))});
        assert_eq!(
            lines(&url("1"), &url("2")),
            ["url: was \"…aaaaaaaaaaaaaaaaaaaa1\", is \"…aaaaaaaaaaaaaaaaaaaa2\""]
        );
        let longer = json!({"execute": "one\ntwo\nthree\n"});
        assert_eq!(lines(&json!({"execute": "one\ntwo\n"}), &longer), ["execute, line 3: added, \"three\""]);
    }
}
