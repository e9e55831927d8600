//! The JSON Schemas of arguments.

use std::collections::HashSet;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

/// The schema of a struct of arguments, without texts for people, and without additional properties, as servers with
/// strict schemas require.
pub(super) fn of<A: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<A>().to_value();
    tidy(&mut schema);
    if let Value::Object(root) = &mut schema {
        root.remove("$schema");
        // The doc comment of the struct is about the code; the tool has its own description.
        root.remove("description");
        root.entry("type").or_insert_with(|| json!("object"));
        root.entry("properties").or_insert_with(|| json!({}));
        root.entry("additionalProperties").or_insert(json!(false));
    }
    schema
}

fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            // As a keyword, `title` is text; a property of that name has a schema.
            if object.get("title").is_some_and(Value::is_string) {
                object.remove("title");
            }
            // `int64` and similar formats of OpenAPI are rejected by strict servers.
            let numeric = object.get("type").is_some_and(names_a_number);
            if numeric && object.get("format").is_some_and(Value::is_string) {
                object.remove("format");
            }
            if object.get("properties").is_some_and(Value::is_object)
                && object.get("type").is_some_and(|kind| kind == "object")
            {
                object.entry("additionalProperties").or_insert(json!(false));
            }
            object.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

fn names_a_number(kind: &Value) -> bool {
    match kind {
        Value::String(kind) => matches!(kind.as_str(), "integer" | "number"),
        Value::Array(kinds) => kinds.iter().any(names_a_number),
        _ => false,
    }
}

/// Removes a property, with the definitions that nothing else refers to. False if it does not exist.
pub(super) fn remove_property(schema: &mut Value, name: &str) -> bool {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return false };
    // The model sees the order of the others.
    if properties.shift_remove(name).is_none() {
        return false;
    }
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|required| required != name);
        if required.is_empty()
            && let Some(schema) = schema.as_object_mut()
        {
            schema.shift_remove("required");
        }
    }
    for place in ["$defs", "definitions"] {
        remove_orphans(schema, place);
    }
    true
}

fn remove_orphans(schema: &mut Value, place: &str) {
    let Some(root) = schema.as_object_mut() else { return };
    let Some(Value::Object(definitions)) = root.shift_remove(place) else { return };
    let prefix = format!("#/{place}/");
    let mut wanted = HashSet::new();
    root.values().for_each(|value| collect(value, &prefix, &definitions, &mut wanted));
    let kept: Map<String, Value> =
        definitions.into_iter().filter(|(name, _)| wanted.contains(name.as_str())).collect();
    if !kept.is_empty() {
        root.insert(place.to_owned(), Value::Object(kept));
    }
}

/// The definitions that a value refers to, directly or indirectly.
fn collect(value: &Value, prefix: &str, definitions: &Map<String, Value>, wanted: &mut HashSet<String>) {
    match value {
        Value::Object(object) => {
            let reference = object.get("$ref").and_then(Value::as_str);
            let name = reference.and_then(|reference| reference.strip_prefix(prefix));
            if let Some(name) = name.and_then(|rest| rest.split('/').next())
                && wanted.insert(name.to_owned())
                && let Some(definition) = definitions.get(name)
            {
                collect(definition, prefix, definitions, wanted);
            }
            object.values().for_each(|value| collect(value, prefix, definitions, wanted));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, prefix, definitions, wanted)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use crate::tool::schema::*;

    #[test]
    fn a_schema_has_no_titles_or_formats_and_is_closed() {
        #[derive(Deserialize, JsonSchema)]
        #[expect(dead_code, reason = "only the schema is used")]
        struct Point {
            x: f64,
        }
        /// For the reader of the code.
        #[derive(Deserialize, JsonSchema)]
        #[expect(dead_code, reason = "only the schema is used")]
        struct Arguments {
            /// Where to go.
            target: Point,
            title: String,
            steps: Option<u32>,
        }
        insta::assert_json_snapshot!(of::<Arguments>(), @r#"
        {
          "type": "object",
          "properties": {
            "target": {
              "type": "object",
              "properties": {
                "x": {
                  "type": "number"
                }
              },
              "required": [
                "x"
              ],
              "description": "Where to go.",
              "additionalProperties": false
            },
            "title": {
              "type": "string"
            },
            "steps": {
              "type": [
                "integer",
                "null"
              ],
              "minimum": 0
            }
          },
          "required": [
            "target",
            "title"
          ],
          "additionalProperties": false
        }
        "#);
    }

    #[test]
    fn a_schema_without_arguments_is_an_empty_object() {
        #[derive(Deserialize, JsonSchema)]
        struct Nothing {}
        insta::assert_json_snapshot!(of::<Nothing>(), @r#"
        {
          "type": "object",
          "properties": {},
          "additionalProperties": false
        }
        "#);
    }

    #[test]
    fn definitions_are_removed_with_the_last_property_that_needs_them() {
        let mut schema = json!({
            "type": "object",
            "properties": {
                "session": {"$ref": "#/$defs/Session"},
                "place": {"$ref": "#/$defs/Place"},
                "tree": {"$ref": "#/$defs/Tree"},
            },
            "required": ["session", "place"],
            "$defs": {
                "Session": {"properties": {"user": {"$ref": "#/$defs/User"}, "at": {"$ref": "#/$defs/Place"}}},
                "User": {"type": "string"},
                "Place": {"type": "string"},
                "Tree": {"properties": {"child": {"$ref": "#/$defs/Tree"}}},
            },
        });
        assert!(!remove_property(&mut schema, "nothing"));
        assert!(remove_property(&mut schema, "session"));
        let names = |schema: &Value| -> Vec<String> {
            schema["$defs"].as_object().map(|defs| defs.keys().cloned().collect()).unwrap_or_default()
        };
        assert_eq!(names(&schema), ["Place", "Tree"]);
        assert_eq!(schema["required"], json!(["place"]));
        assert!(remove_property(&mut schema, "tree"));
        assert!(remove_property(&mut schema, "place"));
        assert_eq!(schema, json!({"type": "object", "properties": {}}));
    }
}
