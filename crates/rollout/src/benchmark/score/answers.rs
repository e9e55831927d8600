//! The answers of a file, one line at a time.

use std::{io, path::Path, sync::Arc};

use futures_util::{Stream, stream};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

use rollout_core::message::Message;
use rollout_model::{
    metric::extract_final_answer,
    parser::{Parser as _, Plain},
};
use rollout_record::lines::Lines;

/// The number of lines that are read ahead.
const AHEAD: usize = 64;

/// A line of a file.
pub(super) enum Line {
    Answer(Answer),
    /// Not an answer. Empty lines are ignored.
    Foreign,
}

/// A saved answer.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    /// Identifies the attempt at a question, if the line has it.
    pub(super) place: Option<(u64, u64)>,
    pub(super) task_id: String,
    pub(super) question: String,
    pub(super) predicted: String,
    pub(super) truth: Option<String>,
    /// Why there is no answer.
    pub(super) failure: Option<String>,
    /// Its previous score, and the metric.
    pub(super) score: Option<f64>,
    pub(super) metric: Option<String>,
}

/// Reads a file in a separate thread, not much faster than its lines are processed.
pub(super) fn read(path: &Path) -> impl Stream<Item = io::Result<Line>> + use<> {
    let path = path.to_owned();
    let (sender, mut receiver) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        let read = || -> io::Result<()> {
            let mut lines = Lines::open(&path)?;
            while let Some(line) = lines.next_line()? {
                if line.is_blank() {
                    continue;
                }
                let found = Answer::read(line.bytes).map_or(Line::Foreign, Line::Answer);
                if sender.blocking_send(Ok(found)).is_err() {
                    break;
                }
            }
            Ok(())
        };
        if let Err(error) = read() {
            // The receiver may be gone.
            let _ = sender.blocking_send(Err(error));
        }
    });
    stream::poll_fn(move |context| receiver.poll_recv(context))
}

/// The fields of a line, of any type. Conversations of benchmarks are skipped.
#[derive(Deserialize)]
struct Row {
    task_id: Option<Value>,
    example_id: Option<Value>,
    attempt: Option<Value>,
    question: Option<Value>,
    predicted_answer: Option<Value>,
    success: Option<Value>,
    ground_truth: Option<Value>,
    score: Option<Value>,
    metric: Option<Value>,
    error: Option<Value>,
    prompt: Option<Value>,
    completion: Option<Value>,
    answer: Option<Value>,
    reward: Option<Value>,
}

impl Answer {
    fn read(line: &[u8]) -> Option<Self> {
        let row: Row = serde_json::from_slice(line).ok()?;
        let metric = row.metric.and_then(text);
        let number = |value: &Option<Value>| value.as_ref().and_then(Value::as_u64);
        let place = number(&row.example_id).zip(number(&row.attempt));
        if let (Some(task_id), true) =
            (row.task_id.and_then(text), row.predicted_answer.is_some() || row.success.is_some())
        {
            let failed = row.success.as_ref().and_then(Value::as_bool) == Some(false);
            return Some(Self {
                place,
                task_id,
                question: row.question.and_then(text).unwrap_or_default(),
                predicted: row.predicted_answer.and_then(text).unwrap_or_default(),
                truth: row.ground_truth.and_then(text),
                failure: failed.then(|| row.error.and_then(text).unwrap_or_else(|| "it failed".to_owned())),
                score: row.score.as_ref().and_then(Value::as_f64),
                metric,
            });
        }
        let completion: Vec<Arc<Message>> = serde_json::from_value(row.completion?).ok()?;
        let prompt: Vec<Arc<Message>> =
            row.prompt.and_then(|prompt| serde_json::from_value(prompt).ok()).unwrap_or_default();
        let example = row.example_id.and_then(text)?;
        let said = Plain.parse_answer(&completion);
        let error = row.error.filter(|error| !error.is_null()).map(|error| match error.get("message") {
            Some(Value::String(message)) => message.clone(),
            _ => text(error).unwrap_or_default(),
        });
        Some(Self {
            place,
            task_id: match row.attempt.and_then(text) {
                Some(attempt) => format!("{example}__{attempt}"),
                None => example,
            },
            question: prompt.last().map(|message| message.text().into_owned()).unwrap_or_default(),
            predicted: extract_final_answer(&said.unwrap_or_default()),
            truth: row.answer.and_then(text),
            failure: error,
            score: row.reward.as_ref().and_then(Value::as_f64),
            metric,
        })
    }
}

/// Converts a value to text. Null is none.
pub(super) fn text(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> Option<Answer> {
        Answer::read(line.as_bytes())
    }

    #[test]
    fn only_an_absent_or_null_ground_truth_is_missing() {
        let truth = |line: &str| answer(line).unwrap().truth;
        assert_eq!(truth(r#"{"task_id": "a", "predicted_answer": "x"}"#), None);
        assert_eq!(truth(r#"{"task_id": "a", "predicted_answer": "x", "ground_truth": null}"#), None);
        assert_eq!(truth(r#"{"task_id": "a", "predicted_answer": "x", "ground_truth": ""}"#).unwrap(), "");
        assert_eq!(truth(r#"{"task_id": "a", "predicted_answer": "x", "ground_truth": 42}"#).unwrap(), "42");
    }

    #[test]
    fn the_answer_of_a_models_row_is_found_in_its_last_message() {
        let row = r#"{"example_id": 3, "attempt": 2, "prompt": [{"role": "user", "content": "2+2?"}], "reward": 0.5,
            "completion": [{"role": "assistant", "content": "Hm.\nThe answer is 4."}], "answer": "4", "error": null}"#;
        assert_eq!(
            answer(row),
            Some(Answer {
                place: Some((3, 2)),
                task_id: "3__2".to_owned(),
                question: "2+2?".to_owned(),
                predicted: "4".to_owned(),
                truth: Some("4".to_owned()),
                failure: None,
                score: Some(0.5),
                metric: None,
            })
        );
    }

    #[test]
    fn a_failed_question_has_a_reason() {
        let failure = |line: &str| answer(line).unwrap().failure;
        assert_eq!(failure(r#"{"task_id": "a", "success": false, "error": "no"}"#).unwrap(), "no");
        assert_eq!(failure(r#"{"task_id": "a", "success": false}"#).unwrap(), "it failed");
        assert_eq!(failure(r#"{"task_id": "a", "success": true, "predicted_answer": ""}"#), None);
        let row =
            r#"{"example_id": 0, "completion": [], "error": {"error": "ModelError", "message": "gone"}}"#;
        assert_eq!(failure(row).unwrap(), "gone");
    }

    #[test]
    fn other_lines_are_not_answers() {
        for line in
            ["", "[1]", "7", r#"{"a": 1}"#, r#"{"task_id": "a"}"#, r#"{"example_id": 1}"#, "{\"task_id\""]
        {
            assert_eq!(answer(line), None, "{line}");
        }
    }
}
