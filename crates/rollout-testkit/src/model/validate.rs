//! Validates requests like strict servers, in each dialect.

mod chat;
mod messages;

use hyper::StatusCode;
use serde_json::Value;

use super::request::{ModelRequest, RequestDialect};

/// Why a request is rejected, with the status.
pub(super) type Refusal = (StatusCode, String);

/// Checks a request like the real servers; `key` is the only accepted key, if given.
pub(super) fn validate(request: &ModelRequest, key: Option<&str>) -> Result<(), Refusal> {
    let given = given_key(request)?;
    if key.is_some_and(|key| given != Some(key)) {
        return Err((StatusCode::UNAUTHORIZED, "Incorrect API key provided".to_owned()));
    }
    let refused = |message: String| (StatusCode::BAD_REQUEST, message);
    let json = request.header("content-type").is_some_and(|kind| kind.starts_with("application/json"));
    if !json {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err((status, "the content type of a request is application/json".to_owned()));
    }
    if !request.body.is_object() {
        return Err(refused("could not parse the body of your request as a JSON object".to_owned()));
    }
    let checked = match request.dialect {
        RequestDialect::Chat => chat::validate(&request.body),
        RequestDialect::Messages if request.header("anthropic-version").is_none() => {
            Err("anthropic-version: header is required".to_owned())
        }
        RequestDialect::Messages => messages::validate(&request.body),
        RequestDialect::Responses => {
            check_text("model", &request.body["model"]).and_then(|()| match &request.body["input"] {
                Value::String(_) => Ok(()),
                items => list("input", items).map(drop),
            })
        }
        RequestDialect::Gemini => list("contents", &request.body["contents"]).map(drop),
    };
    checked.map_err(refused)
}

/// The key of a request. Local servers need none, but a malformed header is always rejected.
fn given_key(request: &ModelRequest) -> Result<Option<&str>, Refusal> {
    let bearer = match request.header("authorization") {
        Some(header) => match header.strip_prefix("Bearer ").filter(|key| !key.trim().is_empty()) {
            Some(key) => Some(key),
            None => {
                let message = "the authorization header has the form `Bearer KEY`";
                return Err((StatusCode::UNAUTHORIZED, message.to_owned()));
            }
        },
        None => None,
    };
    match request.dialect {
        RequestDialect::Chat | RequestDialect::Responses => Ok(bearer),
        RequestDialect::Gemini => Ok(request.header("x-goog-api-key")),
        RequestDialect::Messages => Ok(request.header("x-api-key").or(bearer)),
    }
}

/// Checks the name of a tool.
fn check_tool_name(place: &str, name: &Value) -> Result<(), String> {
    let fits = name.as_str().is_some_and(|name| {
        (1..=64).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    });
    if fits { Ok(()) } else { Err(format!("{place}: expected a string of 1 to 64 of [a-zA-Z0-9_-]")) }
}

/// Checks the schema of a tool's arguments.
fn check_schema(place: &str, schema: &Value) -> Result<(), String> {
    if schema["type"] != "object" {
        return Err(format!("{place}: schema must be a JSON Schema of type \"object\""));
    }
    if schema.get("properties").is_some_and(|properties| !properties.is_object()) {
        return Err(format!("{place}.properties: expected an object"));
    }
    Ok(())
}

/// Checks an optional number within a range.
fn check_number(body: &Value, name: &str, bounds: std::ops::RangeInclusive<f64>) -> Result<(), String> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(()),
        Some(value) if value.as_f64().is_some_and(|number| bounds.contains(&number)) => Ok(()),
        Some(value) => Err(format!("{name}: {value} is not between {} and {}", bounds.start(), bounds.end())),
    }
}

/// Checks an optional flag.
fn check_flag(body: &Value, name: &str) -> Result<(), String> {
    match body.get(name) {
        None | Some(Value::Null | Value::Bool(_)) => Ok(()),
        Some(value) => Err(format!("{name}: expected a boolean, got {value}")),
    }
}

/// Checks a required text.
fn check_text(place: &str, value: &Value) -> Result<(), String> {
    match value.as_str() {
        Some(text) if !text.is_empty() => Ok(()),
        _ => Err(format!("{place}: expected a string that is not empty")),
    }
}

/// A required list that is not empty.
fn list<'a>(place: &str, value: &'a Value) -> Result<&'a [Value], String> {
    match value.as_array() {
        Some(list) if !list.is_empty() => Ok(list),
        _ => Err(format!("{place}: expected an array that is not empty")),
    }
}
