//! Google's own form of schemas.

use serde_json::{Map, Value, json};

/// Numbers that Google's JSON writes as text.
const NUMBERS: [&str; 6] =
    ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];

/// Turns a schema of Google's form into JSON schema: types in lower case, `nullable` as a type. The depth is bounded by
/// that of the body.
pub(super) fn to_json_schema(schema: Value) -> Value {
    let Value::Object(fields) = schema else { return schema };
    let mut plain = Map::new();
    let mut nullable = false;
    for (key, value) in fields {
        let value = match (key.as_str(), value) {
            ("nullable", value) => {
                nullable = value == Value::Bool(true);
                continue;
            }
            ("propertyOrdering" | "property_ordering", _) => continue,
            ("type", Value::String(kind)) => Value::String(kind.to_lowercase()),
            ("properties", Value::Object(properties)) => {
                properties.into_iter().map(|(name, schema)| (name, to_json_schema(schema))).collect()
            }
            ("items" | "additionalProperties", value) => to_json_schema(value),
            ("anyOf" | "any_of", Value::Array(list)) => {
                plain.insert("anyOf".to_owned(), list.into_iter().map(to_json_schema).collect());
                continue;
            }
            (key, Value::String(text)) if NUMBERS.contains(&key) => {
                text.parse::<u64>().map_or(Value::String(text), |number| json!(number))
            }
            (_, value) => value,
        };
        plain.insert(key, value);
    }
    if nullable && let Some(Value::String(kind)) = plain.get("type") {
        let kinds = json!([kind, "null"]);
        plain.insert("type".to_owned(), kinds);
    }
    Value::Object(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_become_those_of_json_schema() {
        let schema = json!({
            "type": "OBJECT",
            "properties": {
                "type": {"type": "STRING", "nullable": true, "enum": ["A"]},
                "list": {"type": "ARRAY", "items": {"type": "INTEGER"}, "maxItems": "3"},
                "any": {"anyOf": [{"type": "BOOLEAN"}, 7]},
            },
            "propertyOrdering": ["list"],
            "required": ["list"],
        });
        insta::assert_snapshot!(to_json_schema(schema), @r#"{"type":"object","properties":{"type":{"type":["string","null"],"enum":["A"]},"list":{"type":"array","items":{"type":"integer"},"maxItems":3},"any":{"anyOf":[{"type":"boolean"},7]}},"required":["list"]}"#);
    }
}
