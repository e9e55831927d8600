//! Parameters as models send them: a number may come as text, a list as one item or as JSON in a string.

use serde_json::Value;

use crate::{Code, Params, ToolError};

/// The text of a parameter, if it is there.
pub(crate) fn text(params: &Params, name: &str) -> Result<Option<String>, ToolError> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => scalar(name, value).map(Some),
    }
}

/// The text of a parameter that has to be there.
pub(crate) fn required_text(params: &Params, name: &str) -> Result<String, ToolError> {
    match text(params, name)? {
        Some(text) if !text.trim().is_empty() => Ok(text),
        _ => Err(ToolError::new(Code::MissingField, format!("`{name}` is missing"))),
    }
}

/// The texts of a parameter: those of a list, those of a list written as JSON in a string, or the one there is.
pub(crate) fn texts(params: &Params, name: &str) -> Result<Vec<String>, ToolError> {
    let items = |list: &[Value]| list.iter().map(|item| scalar(name, item)).collect();
    match params.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => items(list),
        Some(Value::String(text)) => match serde_json::from_str::<Vec<Value>>(text) {
            Ok(list) => items(&list),
            Err(_) if text.trim().is_empty() => Ok(Vec::new()),
            Err(_) => Ok(vec![text.clone()]),
        },
        Some(value) => Ok(vec![scalar(name, value)?]),
    }
}

/// A number that counts something, at most `most`.
pub(crate) fn count(params: &Params, name: &str, default: usize, most: usize) -> Result<usize, ToolError> {
    let number = match params.get(name) {
        None | Some(Value::Null) => return Ok(default.min(most)),
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => text.trim().parse().ok(),
        Some(_) => None,
    };
    match number {
        // The conversion saturates, so that any number beyond `most` becomes `most`.
        Some(number) if number >= 0.0 => Ok((number as usize).min(most)),
        _ => Err(ToolError::new(Code::InvalidType, format!("`{name}` has to be a number, zero or more"))),
    }
}

fn scalar(name: &str, value: &Value) -> Result<String, ToolError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(flag) => Ok(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => {
            Err(ToolError::new(Code::InvalidType, format!("`{name}` has to be text or a list of texts")))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn params(value: Value) -> Params {
        Params::from_iter([("p".to_owned(), value)])
    }

    #[test]
    fn a_list_is_taken_in_every_form_that_models_send() {
        for (sent, want) in [
            (json!(["a", 2]), vec!["a", "2"]),
            (json!("[\"a\", \"b\"]"), vec!["a", "b"]),
            (json!("a b"), vec!["a b"]),
            (json!(7), vec!["7"]),
            (json!(" "), vec![]),
            (json!(null), vec![]),
        ] {
            assert_eq!(texts(&params(sent.clone()), "p").unwrap(), want, "{sent}");
        }
        assert_eq!(texts(&params(json!([{}])), "p").unwrap_err().code, Code::InvalidType);
    }

    #[test]
    fn a_count_is_taken_from_text_and_held_to_its_bound() {
        for (sent, want) in
            [(json!(3), 3), (json!("4"), 4), (json!(2.0), 2), (json!(1e300), 100), (json!(null), 10)]
        {
            assert_eq!(count(&params(sent.clone()), "p", 10, 100).unwrap(), want, "{sent}");
        }
        for sent in [json!(-1), json!("many"), json!([1])] {
            assert_eq!(count(&params(sent), "p", 10, 100).unwrap_err().code, Code::InvalidType);
        }
    }

    #[test]
    fn what_has_to_be_there_is_asked_for_by_name() {
        assert_eq!(required_text(&params(json!("")), "p").unwrap_err().message, "`p` is missing");
        assert_eq!(required_text(&Params::new(), "q").unwrap_err().code, Code::MissingField);
    }
}
