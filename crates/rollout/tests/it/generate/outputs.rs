//! Rows and datasets as data.

use rollout::model::{
    RolloutOutput,
    dataset::{ExamplesError, Format, rows, shuffle},
};
use serde_json::{from_value, json, to_value};

#[test]
fn a_row_is_read_back_as_it_was() {
    let row = json!({
        "example_id": 3, "attempt": 2, "task": "say",
        "prompt": [{"role": "user", "content": "say 3"}],
        "completion": [{"role": "assistant", "content": "3"}],
        "answer": "3", "info": {"level": 1}, "reward": 0.1,
        "error": null,
        "timing": {"start_time": 1.5, "generation_ms": 2.0, "scoring_ms": 1.0, "total_ms": 3.0},
        "is_completed": true, "is_truncated": false, "stop_condition": "max_turns_reached",
        "metrics": {"right": 0.1}, "tool_defs": [],
        "token_usage": {"input_tokens": 10.0, "output_tokens": 1.0, "cost": 0.25},
        "right": 0.1, "board": [[0, 1]],
    });
    let output: RolloutOutput = from_value(row.clone()).unwrap();
    assert_eq!(output.columns.keys().collect::<Vec<_>>(), ["board"]);
    assert_eq!(to_value(&output).unwrap(), row);
}

#[test]
fn rows_of_other_programs_are_read_as_far_as_they_go() {
    let output: RolloutOutput =
        from_value(json!({"example_id": 0, "error": "ToolError: no", "completion": "text", "reward": null, "timing": {"setup": {}}}))
            .unwrap();
    assert_eq!(output.error.unwrap().error, "ToolError: no");
    assert_eq!(output.completion.unwrap()[0].text(), "text");
    assert_eq!((output.reward, output.attempt), (0.0, None));
    assert!(from_value::<RolloutOutput>(json!({"reward": 1.0})).is_err());
}

#[test]
fn a_metric_with_the_name_of_a_field_stays_below_metrics() {
    let output = RolloutOutput { metrics: [("reward".to_owned(), 7.0)].into(), ..RolloutOutput::default() };
    let row = serde_json::to_string(&output).unwrap();
    assert_eq!(row.matches("\"reward\"").count(), 2);
    assert_eq!(from_value::<RolloutOutput>(serde_json::from_str(&row).unwrap()).unwrap(), output);
}

#[test]
fn questions_become_prompts_with_system_prompt_and_examples_before_them() {
    let format = Format {
        system_prompt: Some("Be brief.".to_owned()),
        few_shot: serde_json::from_value(
            json!([{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]),
        )
        .unwrap(),
        task: None,
    };
    let text = r#"
        {"question": "2+2?", "answer": 4, "env_id": "x", "level": "easy"}

        {"prompt": [{"role": "user", "content": "3+3?"}], "info": "{\"source\": \"book\"}", "task": "sum"}
        {"prompt": [{"role": "system", "content": "Shout."}, {"role": "user", "content": "4+4?"}], "answer": "8"}
        {"prompt": "5+5?"}"#;
    let inputs = format.inputs(rows(text).unwrap()).unwrap();
    let prompts: Vec<Vec<_>> = inputs
        .iter()
        .map(|input| {
            input
                .prompt
                .iter()
                .map(|message| format!("{}: {}", message.role.as_str(), message.text()))
                .collect()
        })
        .collect();
    assert_eq!(
        prompts,
        [
            vec!["system: Be brief.", "user: 1+1?", "assistant: 2", "user: 2+2?"],
            vec!["system: Be brief.", "user: 3+3?"],
            vec!["system: Shout.", "user: 4+4?"],
            vec!["system: Be brief.", "user: 5+5?"],
        ]
    );
    assert_eq!(inputs.iter().map(|input| input.example_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(
        inputs.iter().map(|input| input.task.as_str()).collect::<Vec<_>>(),
        ["default", "sum", "default", "default"]
    );
    assert_eq!(inputs[0].answer.as_deref(), Some("4"));
    assert_eq!(inputs[0].extra.keys().collect::<Vec<_>>(), ["question", "level"]);
    assert_eq!(inputs[1].info.as_ref().unwrap()["source"], "book");
}

#[test]
fn whole_numbers_stay_example_ids_and_anything_else_becomes_the_source_id() {
    let format = Format::default();
    let ids = |text: &str| {
        let inputs = format.inputs(rows(text).unwrap()).unwrap();
        inputs
            .into_iter()
            .map(|input| (input.example_id, input.extra.get("src_id").cloned()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        ids(r#"[{"prompt": "a", "example_id": 7}, {"prompt": "b", "example_id": 3}]"#),
        [(7, None), (3, None)]
    );
    assert_eq!(
        ids(r#"[{"prompt": "a", "example_id": "x"}, {"prompt": "b", "example_id": 3}]"#),
        [(0, Some(json!("x"))), (1, Some(json!(3)))]
    );
}

#[test]
fn all_invalid_rows_are_reported_at_once_with_their_numbers() {
    insta::assert_snapshot!(rows("{\"prompt\": \"a\"}\n[1]\n{\"prompt\"\n\n7\n").unwrap_err(), @r"
    the dataset has 3 invalid rows:
      row 2: a row must be a JSON object
      row 3: not JSON: EOF while parsing an object at column 9
      row 5: a row must be a JSON object
    ");
    let bad = json!([{"answer": "x"}, {"prompt": []}, {"question": 3}, {"prompt": "a", "info": "no"}, {"prompt": "b", "answer": []}, {"prompt": [{"content": "x"}]}, {"prompt": "c", "task": 1}]);
    insta::assert_snapshot!(Format::default().inputs(rows(&bad.to_string()).unwrap()).unwrap_err(), @r"
    the dataset has 7 invalid rows:
      row 1: missing `prompt` or `question`
      row 2: `prompt` is empty
      row 3: `question` must be a string
      row 4: `info` must be an object, or the JSON text of one
      row 5: `answer` must be a string or a number
      row 6: `prompt`: a message needs a `role`
      row 7: `task` must be a string
    ");
    insta::assert_snapshot!(Format::default().inputs(rows(r#"[{"prompt": "a", "example_id": 1}, {"prompt": "b", "example_id": 1}]"#).unwrap()).unwrap_err(), @r"
    the dataset has 1 invalid row:
      row 2: example_id 1 is already used in row 1
    ");
    assert!(matches!(rows(" \n"), Err(ExamplesError::Empty)));
}

#[test]
fn the_order_of_a_seed_never_changes() {
    let shuffled = |seed| {
        let mut items: Vec<u32> = (0..10).collect();
        shuffle(&mut items, seed);
        items
    };
    assert_eq!(shuffled(0), [4, 9, 2, 5, 1, 7, 6, 0, 3, 8]);
    let mut sorted = shuffled(1);
    assert_ne!(sorted, shuffled(0));
    sorted.sort_unstable();
    assert_eq!(sorted, (0..10).collect::<Vec<_>>());
}
