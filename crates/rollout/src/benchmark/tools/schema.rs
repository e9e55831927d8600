//! Converts the parameters of a tool, as the tool server lists them, to a JSON Schema.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::ServerTool;

/// A tool in the server's format.
#[derive(Debug, Deserialize)]
pub(super) struct WireTool {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    resource_type: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    parameters: Option<Value>,
    #[serde(default)]
    input_schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Parameter {
    name: String,
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    required: bool,
    #[serde(default)]
    array_type: Option<String>,
    #[serde(default)]
    r#enum: Option<Vec<Value>>,
}

impl From<WireTool> for ServerTool {
    /// Takes the schema of the tool, or makes one from its list of parameters. Invalid parameters are ignored: the tool
    /// itself checks its arguments.
    fn from(tool: WireTool) -> Self {
        let parameters = match (tool.input_schema, tool.parameters) {
            (Some(schema @ Value::Object(_)), _) | (_, Some(schema @ Value::Object(_))) => schema,
            (_, Some(Value::Array(list))) => schema(list),
            _ => schema(Vec::new()),
        };
        let kind = tool.resource_type.or_else(|| tool.name.split_once(':').map(|(kind, _)| kind.to_owned()));
        Self {
            kind: kind.unwrap_or_default(),
            name: tool.name,
            aliases: tool.aliases,
            description: tool.description.unwrap_or_default(),
            parameters,
        }
    }
}

/// The parameters of a schema, if it allows no others.
pub(super) fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    let open =
        ["patternProperties", "$ref", "allOf", "anyOf", "oneOf"].iter().any(|key| schema.get(key).is_some());
    let others = schema.get("additionalProperties").is_some_and(|others| *others != false);
    schema.get("properties")?.as_object().filter(|_| !open && !others)
}

fn schema(list: Vec<Value>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for parameter in list.into_iter().filter_map(|value| Parameter::deserialize(value).ok()) {
        let kind = known_type(parameter.r#type.as_deref());
        let mut property = json!({"type": kind, "description": parameter.description.unwrap_or_default()});
        if kind == "array" {
            property["items"] = json!({"type": known_type(parameter.array_type.as_deref())});
        }
        if let Some(values) = parameter.r#enum {
            property["enum"] = values.into();
        }
        if parameter.required {
            required.push(Value::from(parameter.name.as_str()));
        }
        properties.insert(parameter.name, property);
    }
    json!({"type": "object", "properties": properties, "required": required})
}

fn known_type(name: Option<&str>) -> &str {
    const TYPES: [&str; 6] = ["string", "integer", "number", "boolean", "array", "object"];
    name.filter(|name| TYPES.contains(name)).unwrap_or("string")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tool: Value) -> ServerTool {
        WireTool::deserialize(tool).unwrap().into()
    }

    #[test]
    fn a_list_of_parameters_becomes_a_schema() {
        let tool = read(json!({
            "name": "web:search",
            "description": "Searches.",
            "parameters": [
                {"name": "query", "type": "array", "description": "What for.", "required": true, "array_type": "string"},
                {"name": "lang", "type": "language", "enum": ["en", "zh"]},
                {"nameless": true},
                {"name": "count", "type": "integer", "required": false},
            ],
        }));
        insta::assert_json_snapshot!(tool.parameters, @r#"
        {
          "type": "object",
          "properties": {
            "query": {
              "type": "array",
              "description": "What for.",
              "items": {
                "type": "string"
              }
            },
            "lang": {
              "type": "string",
              "description": "",
              "enum": [
                "en",
                "zh"
              ]
            },
            "count": {
              "type": "integer",
              "description": ""
            }
          },
          "required": [
            "query"
          ]
        }
        "#);
    }

    #[test]
    fn a_schema_takes_precedence_over_a_list() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let tool = read(json!({"name": "x", "parameters": [{"name": "b"}], "input_schema": schema}));
        assert_eq!(tool.parameters, schema);
    }
}
