//! Rows of the original, read and gone on with here, and read by it again.

use std::fs;

use rollout::{
    model::{Examples, Message, RolloutInput, RolloutOutput, RunOptions},
    record::rows,
};
use rollout_testkit::Python;
use serde_json::{Value, json};

use crate::generate::support::{lines, named, right, rollouts};

const EXAMPLES: [(&str, &str); 3] = [("1+2?", "3"), ("bad?", "3"), ("2+2?", "4")];

/// The examples of the original under the same numbers.
fn inputs() -> Vec<RolloutInput> {
    let input = |(id, (question, answer)): (u64, (&str, &str))| RolloutInput {
        prompt: Message::user(question).into(),
        example_id: id,
        task: "adder".to_owned(),
        answer: Some(answer.to_owned()),
        info: None,
        extra: serde_json::Map::new(),
    };
    (0..).zip(EXAMPLES).map(input).collect()
}

#[tokio::test]
async fn rows_of_the_original_are_read_and_its_run_continues() {
    let dir = tempfile::tempdir().unwrap();
    let request = |only: u64| {
        json!({"do": "generate", "dir": dir.path(), "env_id": "adder", "model": "m", "examples": EXAMPLES,
            "rollouts": 2, "only": only, "tools": true, "fails": ["bad"], "columns": ["trajectory"]})
    };
    let python = Python::new();

    let answers = python.verifiers(&[request(6), json!({"do": "load", "dir": dir.path()})]);
    let theirs = answers[1].as_array().unwrap().clone();
    assert_eq!(theirs.len(), 6);

    let mut read = Vec::new();
    let foreign = rows::read(&dir.path().join("results.jsonl"), |_, row| read.push(row)).unwrap();
    assert_eq!((foreign, read.len()), (0, 6));
    for (row, theirs) in read.iter().zip(&theirs) {
        check(row, theirs);
    }
    assert_eq!(read.iter().filter(|row| row.error.is_some()).count(), 2);

    // One row is missing, and is run again.
    let results = dir.path().join("results.jsonl");
    let text = fs::read_to_string(&results).unwrap();
    let kept: String = text.lines().skip(1).map(|line| format!("{line}\n")).collect();
    fs::write(&results, &kept).unwrap();
    let scripted = right();
    let options = RunOptions::new(named("m")).save_to(dir.path());
    let rollouts = rollouts(&scripted, 0).env_id("adder").dataset(inputs());
    let outputs = rollouts.evaluate(Examples::all().rollouts(2), options).await.unwrap();
    assert_eq!((scripted.calls(), outputs.outputs.len()), (1, 6));
    assert!(
        fs::read_to_string(&results).unwrap().starts_with(&kept),
        "rows of the original stay as they are"
    );
    assert_eq!(lines(&results).len(), 6);

    // Nothing is left to do for the original, which counts our row with its own.
    let again = python.verifiers(&[request(6)]);
    assert_eq!((&again[0]["calls"], &again[0]["rows"]), (&json!(0), &json!(6)));
}

/// Whether a row has all that the original wrote.
fn check(row: &RolloutOutput, theirs: &Value) {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let asked: Vec<Value> = row
        .prompt
        .iter()
        .flatten()
        .map(|message| json!({"role": message.role.as_str(), "content": message.text()}))
        .collect();
    let prompt = theirs["prompt"].as_array().unwrap().iter();
    let their_prompt: Vec<Value> =
        prompt.map(|message| json!({"role": message["role"], "content": message["content"]})).collect();
    assert_eq!(asked, their_prompt);
    let messages = row.completion.as_ref().unwrap();
    let their_messages = theirs["completion"].as_array().unwrap();
    assert_eq!(messages.len(), their_messages.len());
    for (message, theirs) in messages.iter().zip(their_messages) {
        assert_eq!(message.text(), text(&theirs["content"]).unwrap_or_default());
        assert_eq!(message.reasoning_content, text(&theirs["reasoning_content"]));
        let calls: Vec<Value> = theirs["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| serde_json::from_str(call.as_str().unwrap()).unwrap())
            .collect();
        assert_eq!(serde_json::to_value(&message.tool_calls).unwrap(), Value::Array(calls));
    }
    let seconds = |path: &str| theirs["timing"].pointer(path).and_then(Value::as_f64).unwrap();
    let timing = row.timing;
    assert_eq!(timing.start_time, seconds("/start_time"));
    assert_eq!(timing.generation_ms, seconds("/generation/duration") * 1e3);
    assert_eq!(timing.scoring_ms, seconds("/scoring/duration") * 1e3);
    assert_eq!(timing.total_ms, seconds("/total") * 1e3);
    assert!(timing.generation_ms > 0.0);
    assert_eq!(row.reward, theirs["reward"].as_f64().unwrap());
    assert_eq!(row.columns["trajectory"], theirs["trajectory"]);
    let written = serde_json::to_value(row).unwrap();
    match theirs["error"].as_object() {
        Some(error) => {
            error.iter().for_each(|(key, value)| assert_eq!(&written["error"][key], value, "{key}"))
        }
        None => assert!(written["error"].is_null()),
    }
    for key in ["metrics", "tool_defs", "error_chain", "long_error_chain", "stop_condition", "answer"] {
        assert_eq!(written[key], theirs[key], "{key}");
    }
    assert_eq!(written["timing"]["model"], theirs["timing"]["model"]);
    let final_tokens = |row: &Value| {
        ["final_input_tokens", "final_output_tokens"].map(|key| row["token_usage"][key].as_f64())
    };
    assert_eq!(final_tokens(&written), final_tokens(theirs));
}
