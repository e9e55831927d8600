//! Checks requests and answers against the description of the API in `description.json`.
//!
//! The description was written for this fake, from Fly's documentation and the types of its own client. It has the
//! routes and fields that Rollout uses. An unknown field is an error, so a misspelled one is noticed.

use std::sync::LazyLock;

use serde_json::Value;

static DESCRIPTION: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("description.json")).expect("the description is valid JSON")
});

/// Checks the body of a request.
pub(super) fn check_request(route: &str, body: &Value, is_empty: bool) -> Result<(), String> {
    let Some(described) = DESCRIPTION["routes"].get(route) else {
        return Err(format!("{route} is not described"));
    };
    match described.get("request") {
        None if is_empty => Ok(()),
        None => Err(format!("{route} has no body")),
        Some(schema) => check(schema, body, "body"),
    }
}

/// Checks the body of a successful answer.
pub(super) fn check_answer(route: &str, body: &Value) -> Result<(), String> {
    check(&DESCRIPTION["routes"][route]["answer"], body, "answer")
}

/// Checks a value. `at` is its place, for messages.
fn check(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        return check(&DESCRIPTION["schemas"][name], value, at);
    }
    let kind = schema["type"].as_str().ok_or_else(|| format!("{at} is not described"))?;
    let fits = match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        _ => false,
    };
    if !fits {
        return Err(format!("{at} must be of type {kind}, not {value}"));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return Err(format!("{at} must be one of {words:?}, not {value}"));
    }
    if let Some(number) = value.as_i64() {
        let bound = |name: &str| schema[name].as_i64();
        let is_outside = bound("minimum").is_some_and(|least| number < least)
            || bound("maximum").is_some_and(|most| number > most)
            || bound("multipleOf").is_some_and(|step| number % step != 0);
        if is_outside {
            return Err(format!("{at} must not be {number}"));
        }
    }
    for item in value.as_array().into_iter().flatten() {
        check(&schema["items"], item, &format!("{at}[]"))?;
    }
    let Some(fields) = value.as_object() else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            return Err(format!("{at}.{name} is required"));
        }
    }
    for (name, field) in fields {
        let described = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
        let described = described.ok_or_else(|| format!("{at}.{name} is unknown"))?;
        check(described, field, &format!("{at}.{name}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine() -> Value {
        json!({"name": "r-1", "config": {
            "image": "registry.fly.io/app:1",
            "init": {"exec": ["/.rollout/guest"]},
            "guest": {"cpu_kind": "shared", "cpus": 1, "memory_mb": 512},
            "metadata": {"rollout": "true"},
            "restart": {"policy": "no"},
            "services": [{"protocol": "tcp", "internal_port": 1, "ports": [{"port": 443, "handlers": ["tls"]}]}],
        }})
    }

    #[test]
    fn a_creation_is_checked_field_by_field() {
        let route = "POST /apps/{app}/machines";
        assert_eq!(check_request(route, &machine(), false), Ok(()));
        for (pointer, value, expected) in [
            ("/config/image", json!(1), "body.config.image must be of type string"),
            ("/config/guest/memory_mb", json!(500), "body.config.guest.memory_mb must not be 500"),
            ("/config/guest/cpu_kind", json!("fast"), "must be one of"),
            ("/config/restart", json!({"polcy": "no"}), "body.config.restart.polcy is unknown"),
            ("/config/metadata/rollout", json!(true), "must be of type string"),
            ("/config/services/0/ports/0/handlers/0", json!("ssl"), "must be one of"),
            ("/config", json!({}), "body.config.image is required"),
        ] {
            let mut body = machine();
            *body.pointer_mut(pointer).unwrap() = value;
            let error = check_request(route, &body, false).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn routes_and_bodies_that_are_not_described_are_errors() {
        assert!(check_request("GET /volumes", &Value::Null, true).is_err());
        assert!(check_request("GET /apps", &json!({}), false).is_err());
        assert_eq!(check_request("GET /apps", &Value::Null, true), Ok(()));
    }
}
