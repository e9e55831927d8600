//! What changes in a request on its way to an upstream of the same dialect; everything else keeps its bytes.

use bytes::Bytes;
use indexmap::IndexMap;
use serde_json::{Map, Value, json, value::RawValue};

use crate::{dialect::Dialect, translate::provider_tools, usage::tokens::Extras};

/// The top-level fields of a request. The bytes of a field that is not set stay as they came.
#[derive(Debug, Clone)]
pub(crate) struct Fields {
    fields: IndexMap<String, Box<RawValue>>,
    is_changed: bool,
    original: Bytes,
}

impl Fields {
    pub(crate) fn parse(body: Bytes) -> Result<Self, serde_json::Error> {
        let fields = serde_json::from_slice(&body)?;
        Ok(Self { fields, is_changed: false, original: body })
    }

    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        serde_json::from_str(self.fields.get(name)?.get()).ok()
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.fields.get(name)?.get()).ok()
    }

    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|value| value.get() == "true")
    }

    fn raw(&self, name: &str) -> Option<&str> {
        Some(self.fields.get(name)?.get())
    }

    fn set(&mut self, name: &str, value: &Value) {
        if let Ok(raw) = serde_json::value::to_raw_value(value) {
            self.fields.insert(name.to_owned(), raw);
            self.is_changed = true;
        }
    }

    fn remove(&mut self, name: &str) {
        self.is_changed |= self.fields.shift_remove(name).is_some();
    }

    /// The request as it is sent: the bytes of the agent, if nothing changed.
    pub(crate) fn into_bytes(self) -> Bytes {
        if !self.is_changed {
            return self.original;
        }
        serde_json::to_vec(&self.fields).map_or(self.original, Bytes::from)
    }
}

/// Removes what the provider would fetch or run itself; gives the names.
pub(crate) fn remove_provider_side(fields: &mut Fields, dialect: Dialect) -> Vec<String> {
    let Ok(before) = serde_json::from_slice::<Value>(&fields.original) else { return Vec::new() };
    let mut after = before.clone();
    let removed = provider_tools::remove(dialect, &mut after);
    for (name, value) in before.as_object().into_iter().flatten() {
        match after.get(name) {
            None => fields.remove(name),
            Some(new) if new != value => fields.set(name, new),
            Some(_) => {}
        }
    }
    removed
}

/// Fields in which agents name their session, user or turn. They are different in each run, and the model does not see
/// them.
const SESSION_FIELDS: [&str; 5] =
    ["prompt_cache_key", "client_metadata", "metadata", "safety_identifier", "user"];

/// The part of a request that its response depends on.
pub(crate) fn without_session_fields(body: Bytes) -> Bytes {
    let Ok(mut fields) = Fields::parse(body.clone()) else { return body };
    SESSION_FIELDS.iter().for_each(|name| fields.remove(name));
    fields.into_bytes()
}

/// Writes the name of the model, unless the dialect has it in the path.
pub(crate) fn set_model(fields: &mut Fields, dialect: Dialect, model: &str) {
    if dialect != Dialect::Gemini && fields.text("model").as_deref() != Some(model) {
        fields.set("model", &json!(model));
    }
}

/// Asks the upstream for what the record needs. What the agent did not ask for itself is returned.
pub(crate) fn ask_for_more(fields: &mut Fields, dialect: Dialect, token_ids: bool) -> Extras {
    let mut extras = Extras::default();
    match dialect {
        Dialect::Chat => {
            if fields.is_true("stream") {
                let mut options = object(fields.get("stream_options"));
                if options.get("include_usage") != Some(&Value::Bool(true)) {
                    options.insert("include_usage".to_owned(), json!(true));
                    fields.set("stream_options", &Value::Object(options));
                    extras.usage_chunk = true;
                }
            }
            if token_ids {
                for (name, is_extra) in
                    [("logprobs", &mut extras.logprobs), ("return_token_ids", &mut extras.token_ids)]
                {
                    if !fields.is_true(name) {
                        fields.set(name, &json!(true));
                        *is_extra = true;
                    }
                }
            }
        }
        Dialect::Responses if token_ids => {
            const LOGPROBS: &str = "message.output_text.logprobs";
            let mut include =
                fields.get("include").and_then(|list| list.as_array().cloned()).unwrap_or_default();
            if !include.iter().any(|item| item == LOGPROBS) {
                include.push(json!(LOGPROBS));
                fields.set("include", &Value::Array(include));
                extras.logprobs = true;
            }
        }
        Dialect::Gemini if token_ids => {
            let name = if fields.raw("generation_config").is_some() {
                "generation_config"
            } else {
                "generationConfig"
            };
            let mut config = object(fields.get(name));
            let asked = ["responseLogprobs", "response_logprobs"]
                .iter()
                .any(|key| config.get(*key) == Some(&json!(true)));
            if !asked {
                config.insert("responseLogprobs".to_owned(), json!(true));
                fields.set(name, &Value::Object(config));
                extras.logprobs = true;
            }
        }
        Dialect::Responses | Dialect::Messages | Dialect::Gemini => {}
    }
    extras
}

fn object(value: Option<Value>) -> Map<String, Value> {
    match value {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    }
}
