//! What a model that investigates has to say, and nothing else.

use serde_json::{Map, Value};

use rollout_core::text::excerpt;
use rollout_record::export::eval_log::Findings;

/// The longest answer that is looked at, in characters.
pub(super) const MAX_CHARS: usize = 8000;

/// The longest texts that findings hold, in characters.
const MAX_DIFFICULTY: usize = 100;
const MAX_CAUSE: usize = 2000;

/// Why an answer cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("it is no JSON object: {0:?}")]
    NotAnObject(String),
    #[error("it is longer than {MAX_CHARS} characters")]
    TooLong,
    #[error("it has no {0:?}")]
    Missing(&'static str),
    #[error("nobody asked for {0:?}")]
    Unknown(String),
    #[error("{0:?} is neither {1} nor null")]
    Wrong(&'static str, &'static str),
    #[error("{0:?} is longer than {1} characters")]
    LongText(&'static str, usize),
}

/// Reads an answer: one object with the three fields, each of its kind or null.
pub(super) fn read(answer: &str) -> Result<Findings, AnswerError> {
    let answer = answer.trim();
    if answer.chars().nth(MAX_CHARS).is_some() {
        return Err(AnswerError::TooLong);
    }
    let Ok(Value::Object(mut fields)) = serde_json::from_str(answer) else {
        return Err(AnswerError::NotAnObject(excerpt(answer)));
    };
    let findings = Findings {
        difficulty: text(&mut fields, "difficulty", MAX_DIFFICULTY)?,
        feasible: match take(&mut fields, "feasible")? {
            Value::Null => None,
            Value::Bool(feasible) => Some(feasible),
            _ => return Err(AnswerError::Wrong("feasible", "true or false")),
        },
        failure_root_cause: text(&mut fields, "failure_root_cause", MAX_CAUSE)?,
        unknown: Map::new(),
    };
    match fields.into_iter().next() {
        Some((key, _)) => Err(AnswerError::Unknown(excerpt(&key))),
        None => Ok(findings),
    }
}

fn take(fields: &mut Map<String, Value>, key: &'static str) -> Result<Value, AnswerError> {
    fields.shift_remove(key).ok_or(AnswerError::Missing(key))
}

fn text(
    fields: &mut Map<String, Value>,
    key: &'static str,
    most: usize,
) -> Result<Option<String>, AnswerError> {
    match take(fields, key)? {
        Value::Null => Ok(None),
        Value::String(text) if text.chars().nth(most).is_some() => Err(AnswerError::LongText(key, most)),
        Value::String(text) => Ok(Some(text)),
        _ => Err(AnswerError::Wrong(key, "a text")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_has_three_fields_each_of_its_kind_or_null() {
        let findings = read(
            " {\"difficulty\": \"hard\", \"feasible\": true, \"failure_root_cause\": \"It gave up.\"}\n",
        );
        insta::assert_json_snapshot!(findings.unwrap(), @r#"
        {
          "difficulty": "hard",
          "feasible": true,
          "failure_root_cause": "It gave up."
        }
        "#);
        let nothing = read(r#"{"difficulty": null, "feasible": null, "failure_root_cause": null}"#);
        assert_eq!(nothing, Ok(Findings::default()));
    }

    #[test]
    fn anything_else_is_refused_with_the_reason() {
        let whole = json!({"difficulty": "hard", "feasible": true, "failure_root_cause": "x"});
        let with = |key: &str, value: Value| {
            let mut answer = whole.clone();
            answer[key] = value;
            answer.to_string()
        };
        let table = [
            (String::new(), "it is no JSON object: \"\""),
            ("I cannot help with that.".to_owned(), "it is no JSON object: \"I cannot help with that.\""),
            (json!({"difficulty": "hard", "feasible": true}).to_string(), "it has no \"failure_root_cause\""),
            (with("why", json!(1)), "nobody asked for \"why\""),
            (with("feasible", json!("yes")), "\"feasible\" is neither true or false nor null"),
            (with("difficulty", json!(5)), "\"difficulty\" is neither a text nor null"),
            (with("difficulty", json!("x".repeat(101))), "\"difficulty\" is longer than 100 characters"),
            (
                with("failure_root_cause", json!("é".repeat(2001))),
                "\"failure_root_cause\" is longer than 2000 characters",
            ),
            (" x".repeat(4001), "it is longer than 8000 characters"),
        ];
        for (answer, problem) in table {
            assert_eq!(read(&answer).map_err(|error| error.to_string()), Err(problem.to_owned()), "{answer}");
        }
        for answer in [format!("```json\n{whole}\n```"), format!("[{whole}]"), format!("{whole} {whole}")] {
            assert!(matches!(read(&answer), Err(AnswerError::NotAnObject(_))), "{answer}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_is_too_odd_to_be_refused(answer in ".{0,200}") {
            let _ = read(&answer);
        }
    }
}
