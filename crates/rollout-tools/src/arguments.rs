//! Reads the parameters that a model passes to a tool, tolerant of the forms that models write.
//!
//! Unknown parameters are ignored: a benchmark passes those of a question to every call.

use serde_json::Value;

use crate::resource::{ErrorCode, Params, ToolError};

/// An optional text.
pub(crate) fn text<'p>(params: &'p Params, name: &str) -> Result<Option<&'p str>, ToolError> {
    match given(params, name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(wrong(name, "a text", other)),
    }
}

/// A required text that is not blank.
pub(crate) fn required_text<'p>(params: &'p Params, name: &str) -> Result<&'p str, ToolError> {
    text(params, name)?.filter(|text| !text.trim().is_empty()).ok_or_else(|| missing(name))
}

/// A required list of texts, read as by [`list`].
pub(crate) fn texts(params: &Params, names: &[&str]) -> Result<Vec<String>, ToolError> {
    let found = list(params, names)?;
    if !found.is_empty() {
        return Ok(found);
    }
    match names.iter().find(|name| given(params, name).is_some()) {
        Some(name) => Err(ToolError::new(ErrorCode::InvalidInput, format!("the list {name:?} is empty"))),
        None => Err(missing(names[0])),
    }
}

/// An optional list of texts. A single text may be written without a list, and a list as JSON in a text. The
/// first of the names that is present is used.
pub(crate) fn list(params: &Params, names: &[&str]) -> Result<Vec<String>, ToolError> {
    let found = names.iter().find_map(|name| given(params, name).map(|value| (*name, value)));
    let Some((name, value)) = found else { return Ok(Vec::new()) };
    let items = |values: &[Value]| values.iter().map(|value| item(name, value)).collect();
    match value {
        Value::Array(values) => items(values),
        Value::String(text) => match serde_json::from_str::<Vec<Value>>(text) {
            Ok(values) => items(&values),
            Err(_) => Ok(vec![text.clone()]),
        },
        other => Ok(vec![item(name, other)?]),
    }
}

fn item(name: &str, value: &Value) -> Result<String, ToolError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(wrong(name, "a text or a list of texts", other)),
    }
}

/// A count: a whole number, zero or more, limited to `most`.
pub(crate) fn count(params: &Params, name: &str, default: usize, most: usize) -> Result<usize, ToolError> {
    let Some(number) = whole(params, name)? else { return Ok(default.min(most)) };
    match usize::try_from(number) {
        Ok(count) => Ok(count.min(most)),
        Err(_) => Err(wrong(name, "a whole number, zero or more", &number.into())),
    }
}

/// An optional whole number. Models write it as a number, with a fraction of zero, or as a text.
pub(crate) fn whole(params: &Params, name: &str) -> Result<Option<i64>, ToolError> {
    let Some(value) = given(params, name) else { return Ok(None) };
    let number = match value {
        Value::String(text) => text.trim().parse().ok(),
        // The conversion saturates at the bounds of the type.
        value => value
            .as_i64()
            .or_else(|| value.as_f64().filter(|number| number.is_finite()).map(|n| n.round() as i64)),
    };
    number.map(Some).ok_or_else(|| wrong(name, "a whole number", value))
}

/// The error for a missing parameter.
pub(crate) fn missing(name: &str) -> ToolError {
    ToolError::new(ErrorCode::MissingField, format!("the parameter {name:?} is missing"))
}

fn given<'p>(params: &'p Params, name: &str) -> Option<&'p Value> {
    params.get(name).filter(|value| !value.is_null())
}

fn wrong(name: &str, expected: &str, found: &Value) -> ToolError {
    let found = match found {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text {:?}", text.chars().take(50).collect::<String>()),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    ToolError::new(ErrorCode::InvalidType, format!("the parameter {name:?} is {found}; expected {expected}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn params(value: Value) -> Params {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn numbers_are_read_as_models_write_them() {
        let params =
            params(json!({"a": 3, "b": 3.0, "c": " 3 ", "d": null, "e": "three", "f": [3], "g": 1e300}));
        assert_eq!(whole(&params, "a"), Ok(Some(3)));
        assert_eq!(whole(&params, "b"), Ok(Some(3)));
        assert_eq!(whole(&params, "c"), Ok(Some(3)));
        assert_eq!(whole(&params, "d"), Ok(None));
        assert_eq!(whole(&params, "none"), Ok(None));
        assert_eq!(whole(&params, "g"), Ok(Some(i64::MAX)));
        let error = whole(&params, "e").unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidType);
        assert_eq!(error.message, "the parameter \"e\" is the text \"three\"; expected a whole number");
        assert_eq!(whole(&params, "f").unwrap_err().code, ErrorCode::InvalidType);
    }

    #[test]
    fn one_text_is_a_list_of_one() {
        let params = params(json!({"query": "x", "urls": ["a", "b"], "bad": ["a", {}], "none": []}));
        assert_eq!(texts(&params, &["query"]), Ok(vec!["x".to_owned()]));
        assert_eq!(texts(&params, &["url", "urls"]), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(texts(&params, &["bad"]).unwrap_err().code, ErrorCode::InvalidType);
        assert_eq!(texts(&params, &["goal"]).unwrap_err().code, ErrorCode::MissingField);
        assert_eq!(texts(&params, &["none"]).unwrap_err().code, ErrorCode::InvalidInput);
    }

    #[test]
    fn a_list_is_accepted_in_every_form_that_models_send() {
        for (sent, want) in [
            (json!(["a", 2]), vec!["a", "2"]),
            (json!("[\"a\", \"b\"]"), vec!["a", "b"]),
            (json!("a b"), vec!["a b"]),
            (json!(7), vec!["7"]),
            (json!(" "), vec![" "]),
            (json!(null), vec![]),
        ] {
            assert_eq!(list(&params(json!({"p": sent.clone()})), &["p"]).unwrap(), want, "{sent}");
        }
    }

    #[test]
    fn a_count_is_limited() {
        for (sent, want) in [(json!(3), 3), (json!("4"), 4), (json!(1e300), 100), (json!(null), 10)] {
            assert_eq!(count(&params(json!({"p": sent.clone()})), "p", 10, 100), Ok(want), "{sent}");
        }
        for sent in [json!(-1), json!("many"), json!([1])] {
            assert_eq!(
                count(&params(json!({"p": sent})), "p", 10, 100).unwrap_err().code,
                ErrorCode::InvalidType
            );
        }
    }
}
