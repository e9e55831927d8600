//! Limits the size and depth of recorded calls.

use serde_json::{Map, Value};

/// The maximum depth of a recorded value. JSON readers reject much deeper values, and the record adds levels of its
/// own.
const MAX_LEVELS: usize = 64;

/// The maximum size of a recorded result, in bytes of JSON.
const MAX_BYTES: usize = 256 << 10;

/// The parameters of a call. Values that are too deep become JSON text.
pub(super) fn parameters(parameters: Map<String, Value>) -> Map<String, Value> {
    parameters.into_iter().map(|(name, value)| (name, shallow(value, MAX_LEVELS - 1))).collect()
}

/// The result of a tool. Values that are too deep become JSON text; texts that are too long are cut.
pub(super) fn result(result: Value) -> Value {
    let text = match &result {
        Value::String(text) if text.len() <= MAX_BYTES => return result,
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) => return result,
        Value::Array(_) | Value::Object(_) => result.to_string(),
    };
    if text.len() <= MAX_BYTES {
        return shallow(result, MAX_LEVELS);
    }
    let end = (0..=MAX_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    format!("{}\n... (truncated, total {} bytes)", &text[..end], text.len()).into()
}

fn shallow(value: Value, levels: usize) -> Value {
    match value {
        Value::Array(_) | Value::Object(_) if levels == 0 => value.to_string().into(),
        Value::Array(items) => items.into_iter().map(|item| shallow(item, levels - 1)).collect(),
        Value::Object(entries) => {
            entries.into_iter().map(|(key, value)| (key, shallow(value, levels - 1))).collect()
        }
        plain => plain,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
            Value::Object(entries) => 1 + entries.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    fn nested(levels: usize) -> Value {
        (0..levels)
            .fold(json!(1), |inner, level| if level % 2 == 0 { json!([inner]) } else { json!({"a": inner}) })
    }

    #[test]
    fn deep_values_become_text_and_others_are_unchanged() {
        for levels in [0, 1, MAX_LEVELS] {
            assert_eq!(result(nested(levels)), nested(levels));
        }
        for levels in [MAX_LEVELS + 1, 127] {
            let kept = result(nested(levels));
            assert_eq!(depth(&kept), MAX_LEVELS);
            assert!(kept.to_string().len() >= nested(levels).to_string().len(), "nothing is lost");
            let parameters = parameters(Map::from_iter([("a".to_owned(), nested(levels))]));
            assert_eq!(depth(&Value::Object(parameters)), MAX_LEVELS);
        }
    }

    #[test]
    fn long_results_are_cut_at_the_end() {
        let fits = Value::String("x".repeat(MAX_BYTES));
        assert_eq!(result(fits.clone()), fits);
        for long in [json!("好".repeat(MAX_BYTES)), json!(["x".repeat(MAX_BYTES)])] {
            let kept = result(long);
            let kept = kept.as_str().unwrap();
            assert!(kept.len() < MAX_BYTES + 100 && kept.contains("(truncated, total "), "{}", kept.len());
        }
    }

    proptest! {
        #[test]
        fn a_record_can_be_read_at_any_depth(levels in 0..127usize, around in 0..60usize) {
            let kept = (0..around).fold(result(nested(levels)), |inner, _| json!([inner]));
            prop_assert_eq!(serde_json::from_str::<Value>(&kept.to_string()).unwrap(), kept);
        }
    }
}
