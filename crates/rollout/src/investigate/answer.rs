//! Reads the answer of the investigating model, and rejects everything else.

use serde_json::{Map, Value, json};

use rollout_core::text::excerpt;
use rollout_record::export::eval_log::Findings;

/// The maximum length of an answer, in characters.
pub(super) const MAX_CHARS: usize = 16_000;

/// The maximum lengths of texts in findings, in characters.
const MAX_DIFFICULTY: usize = 100;
const MAX_CAUSE: usize = 2000;
const MAX_ANALYSIS: usize = 6000;
const MAX_QUOTE: usize = 500;
/// The maximum number of quotes in findings.
const MAX_EVIDENCE: usize = 20;

/// The possible outcomes of an attempt, in addition to its reward.
const OUTCOMES: [&str; 5] = ["success", "success_lucky", "almost", "failure", "should_have_been_rewarded"];
/// The possible causes of a failure.
const BLAMES: [&str; 10] = [
    "task_unclear",
    "model_capability",
    "tool_failure",
    "env_failure",
    "agent_scaffolding",
    "action_space_limited",
    "insufficient_observation",
    "eval_brittle",
    "submission_format",
    "none",
];

/// Why an answer is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("it is not a JSON object: {0:?}")]
    NotAnObject(String),
    #[error("it is longer than {MAX_CHARS} characters")]
    TooLong,
    #[error("missing field {0:?}")]
    Missing(&'static str),
    #[error("unknown field {0:?}")]
    Unknown(String),
    #[error("{0:?} must be {1} or null")]
    Wrong(&'static str, &'static str),
    #[error("{0:?} is longer than {1} characters")]
    LongText(&'static str, usize),
    #[error("{0:?} must be one of {1}")]
    NoWord(&'static str, String),
}

/// Reads an answer: an object with the three required fields, each of its type or null, and any optional fields.
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
        unknown: further(&mut fields)?,
    };
    match fields.into_iter().next() {
        Some((key, _)) => Err(AnswerError::Unknown(excerpt(&key))),
        None => Ok(findings),
    }
}

/// Reads the optional fields, which smaller models leave out.
fn further(fields: &mut Map<String, Value>) -> Result<Map<String, Value>, AnswerError> {
    let mut read = Map::new();
    for (key, most) in [("analysis", MAX_ANALYSIS), ("summary", MAX_CAUSE), ("hypothesis", MAX_CAUSE)] {
        if fields.contains_key(key) {
            read.extend(text(fields, key, most)?.map(|text| (key.to_owned(), text.into())));
        }
    }
    for (key, words) in [("outcome", &OUTCOMES[..]), ("primary_blame", &BLAMES[..])] {
        match fields.shift_remove(key).unwrap_or_default() {
            Value::Null => {}
            value if value.as_str().is_some_and(|word| words.contains(&word)) => {
                _ = read.insert(key.to_owned(), value)
            }
            _ => return Err(AnswerError::NoWord(key, words.join(", "))),
        }
    }
    for key in ["primary_blame_confidence", "hypothesis_confidence"] {
        match fields.shift_remove(key).unwrap_or_default() {
            Value::Null => {}
            value if value.as_u64().is_some_and(|confidence| confidence <= 5) => {
                _ = read.insert(key.to_owned(), value)
            }
            _ => return Err(AnswerError::Wrong(key, "a whole number from 0 to 5")),
        }
    }
    match fields.shift_remove("other_blames").unwrap_or_default() {
        Value::Null => {}
        Value::Array(blames)
            if blames.iter().all(|blame| blame.as_str().is_some_and(|word| BLAMES.contains(&word))) =>
        {
            read.insert("other_blames".to_owned(), blames.into());
        }
        _ => return Err(AnswerError::NoWord("other_blames", BLAMES.join(", "))),
    }
    let wrong = AnswerError::Wrong("evidence", "a list of objects with a \"step\" and a \"quote\"");
    match fields.shift_remove("evidence").unwrap_or_default() {
        Value::Null => {}
        Value::Array(items) => {
            let items: Option<Vec<Value>> = items.iter().take(MAX_EVIDENCE).map(evidence).collect();
            read.insert("evidence".to_owned(), items.ok_or(wrong)?.into());
        }
        _ => return Err(wrong),
    }
    Ok(read)
}

fn evidence(item: &Value) -> Option<Value> {
    let (step, quote) = (item.get("step")?.as_i64()?, item.get("quote")?.as_str()?);
    Some(json!({ "step": step, "quote": quote.chars().take(MAX_QUOTE).collect::<String>() }))
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
    fn optional_fields_are_read_if_present() {
        let whole = json!({
            "difficulty": "hard", "feasible": true, "failure_root_cause": "x", "analysis": "First …", "summary": "It failed.",
            "hypothesis": "A longer limit.", "outcome": "almost", "primary_blame": "env_failure",
            "primary_blame_confidence": 4, "hypothesis_confidence": 0, "other_blames": ["eval_brittle"],
            "evidence": [{"step": 2, "quote": "no space left", "why": "x"}],
        });
        let findings = read(&whole.to_string()).unwrap();
        assert_eq!(findings.unknown["evidence"], json!([{"step": 2, "quote": "no space left"}]));
        assert_eq!(findings.unknown.len(), 9);
        assert_eq!(findings.unknown["primary_blame"], "env_failure");
    }

    #[test]
    fn anything_else_is_rejected_with_the_reason() {
        let whole = json!({"difficulty": "hard", "feasible": true, "failure_root_cause": "x"});
        let with = |key: &str, value: Value| {
            let mut answer = whole.clone();
            answer[key] = value;
            answer.to_string()
        };
        let table = [
            (String::new(), "it is not a JSON object: \"\""),
            ("I cannot help with that.".to_owned(), "it is not a JSON object: \"I cannot help with that.\""),
            (
                json!({"difficulty": "hard", "feasible": true}).to_string(),
                "missing field \"failure_root_cause\"",
            ),
            (with("why", json!(1)), "unknown field \"why\""),
            (with("feasible", json!("yes")), "\"feasible\" must be true or false or null"),
            (with("difficulty", json!(5)), "\"difficulty\" must be a text or null"),
            (with("difficulty", json!("x".repeat(101))), "\"difficulty\" is longer than 100 characters"),
            (
                with("failure_root_cause", json!("é".repeat(2001))),
                "\"failure_root_cause\" is longer than 2000 characters",
            ),
            (" x".repeat(8001), "it is longer than 16000 characters"),
            (
                with("outcome", json!("fine")),
                "\"outcome\" must be one of success, success_lucky, almost, failure, should_have_been_rewarded",
            ),
            (
                with("hypothesis_confidence", json!(6)),
                "\"hypothesis_confidence\" must be a whole number from 0 to 5 or null",
            ),
            (
                with("evidence", json!(["x"])),
                "\"evidence\" must be a list of objects with a \"step\" and a \"quote\" or null",
            ),
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
        fn no_answer_makes_the_reader_panic(answer in ".{0,200}") {
            let _ = read(&answer);
        }
    }
}
