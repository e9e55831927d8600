//! What of a call is put on record, however large or deep what a model or a tool says is.

use serde_json::{Map, Value};

/// The deepest value that stands in a record as it is. Readers of JSON refuse what is much deeper, and the record has
/// levels of its own.
const MAX_LEVELS: usize = 64;

/// The longest result that stands in a record as it is, in bytes of JSON.
const MAX_BYTES: usize = 256 << 10;

/// The parameters of a call. What is too deep stands there as its JSON text.
pub(super) fn parameters(parameters: Map<String, Value>) -> Map<String, Value> {
    parameters.into_iter().map(|(name, value)| (name, shallow(value, MAX_LEVELS - 1))).collect()
}

/// What a tool gave. What is too deep stands there as its JSON text; of what is too long, the beginning does.
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
    fn what_is_too_deep_is_kept_as_text_and_everything_else_as_it_is() {
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
    fn of_what_is_too_long_the_beginning_is_kept() {
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
        fn a_record_is_read_again_wherever_it_stands(levels in 0..127usize, around in 0..60usize) {
            let kept = (0..around).fold(result(nested(levels)), |inner, _| json!([inner]));
            prop_assert_eq!(serde_json::from_str::<Value>(&kept.to_string()).unwrap(), kept);
        }
    }
}
