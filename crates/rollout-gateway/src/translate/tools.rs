//! Tools and their schemas, as far as the dialects share them.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::neutral::{ChoiceMode, Conversation, MediaSource, ToolOrigin, ToolSpec};

/// A tool that takes free text, as a function with one argument. The grammar of the text, if there is one, goes into
/// the description.
pub(super) fn custom_tool(
    name: String,
    description: Option<String>,
    grammar: Option<Value>,
    origin: ToolOrigin,
) -> ToolSpec {
    let mut description = description.unwrap_or_default();
    let definition = grammar.as_ref().and_then(|grammar| grammar.get("definition")?.as_str());
    if let Some(definition) = definition {
        let syntax = grammar.as_ref().and_then(|grammar| grammar.get("syntax")?.as_str()).unwrap_or_default();
        description.push_str(&format!("\n\n`input` follows this grammar ({syntax}):\n{definition}"));
    }
    let schema = json!({
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The text for the tool."}},
        "required": ["input"],
        "additionalProperties": false,
    });
    let description = Some(description).filter(|text| !text.is_empty());
    ToolSpec { name, description, schema, strict: None, origin }
}

/// The arguments of the function that stands for a tool of free text.
pub(super) fn custom_arguments(input: &str) -> String {
    json!({"input": input}).to_string()
}

/// The free text in the arguments of such a function. A model that writes the text itself is understood too.
pub(super) fn custom_input(arguments: &str) -> String {
    let read: Option<Value> = serde_json::from_str(arguments).ok();
    let input = read.as_ref().and_then(|read| read.get("input")?.as_str());
    input.unwrap_or(arguments).to_owned()
}

/// The arguments of a call as an object. Cut or wrong JSON is kept as text under a name that says so.
pub(super) fn arguments_object(arguments: &str) -> Value {
    if arguments.trim().is_empty() {
        return json!({});
    }
    match serde_json::from_str(arguments) {
        Ok(Value::Object(object)) => Value::Object(object),
        _ => json!({"invalid_arguments": arguments}),
    }
}

/// The arguments of a call as text. The reverse of [`arguments_object`].
pub(super) fn arguments_text(arguments: &Value) -> String {
    match arguments {
        Value::Null => "{}".to_owned(),
        Value::Object(fields) if fields.len() == 1 => match fields.get("invalid_arguments") {
            Some(Value::String(text)) => text.clone(),
            _ => arguments.to_string(),
        },
        arguments => arguments.to_string(),
    }
}

/// Leaves only the tools that the model may choose from, where the client names several.
pub(super) fn only_chosen(conversation: &mut Conversation) {
    let Some(choice) = &mut conversation.choice else { return };
    if choice.only.len() > 1 || (choice.mode == ChoiceMode::Auto && !choice.only.is_empty()) {
        let only: BTreeSet<String> = std::mem::take(&mut choice.only).into_iter().collect();
        conversation.tools.retain(|tool| only.contains(&tool.name));
    }
}

/// The schema of arguments as providers take it: an object, without the name of the standard.
pub(super) fn plain_schema(schema: &Value) -> Value {
    let mut plain = match schema {
        Value::Object(fields) => fields.clone(),
        _ => Map::new(),
    };
    plain.shift_remove("$schema");
    plain.entry("type").or_insert_with(|| json!("object"));
    if plain.get("type") == Some(&json!("object")) {
        plain.entry("properties").or_insert_with(|| json!({}));
    }
    Value::Object(plain)
}

/// The text of a result that is an error, where the dialect has no mark for it.
pub(super) fn marked_error(text: String) -> String {
    let is_marked = text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("error"));
    if is_marked { text } else { format!("Error: {text}") }
}

impl MediaSource {
    /// Reads a URL, which may contain the data itself.
    pub(super) fn from_url(url: String) -> Self {
        let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
        match data {
            Some((media_type, data)) => {
                let media_type = media_type.split(';').next().unwrap_or_default().to_owned();
                Self::Base64 { media_type, data: data.to_owned() }
            }
            None => Self::Url(url),
        }
    }

    /// As a URL, which contains the data if there is no other.
    pub(super) fn to_url(&self) -> String {
        match self {
            Self::Base64 { media_type, data } => format!("data:{media_type};base64,{data}"),
            Self::Url(url) => url.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_survive_as_object_and_text() {
        for arguments in ["{\"a\":1}", "{\"cut\": \"of", "[1]", "text"] {
            assert_eq!(arguments_text(&arguments_object(arguments)), *arguments);
        }
        assert_eq!(arguments_object(" "), json!({}));
        assert_eq!(arguments_text(&Value::Null), "{}");
    }

    #[test]
    fn free_text_is_found_in_whatever_form_the_model_wrote_it() {
        assert_eq!(custom_input(&custom_arguments("*** Begin Patch\n\"é\"")), "*** Begin Patch\n\"é\"");
        assert_eq!(custom_input("*** Begin Patch"), "*** Begin Patch");
        assert_eq!(custom_input("{\"patch\": 1}"), "{\"patch\": 1}");
    }
}
