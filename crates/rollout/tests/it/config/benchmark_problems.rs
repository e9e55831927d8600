//! What is wrong with the configuration of a benchmark, and how that is told.

use serde_json::json;

use super::benchmark::{load, problems, read, warnings};

#[test]
fn all_that_is_wrong_is_told_at_once_where_it_is() {
    let text = r#"{
  "model_name": " ",
  "base_url": "ftp://example.org",
  "max_turns": 0,
  "max_retries": -1,
  "max_workers": "4",
  "available_tools": "web:search",
  "evaluation_metric": "f1_scor",
  "evaluator_temperature": 2.1,
  "evaluator_max_retries": 1.5,
  "evaluator_extra_params": {"model": "x", "user": "${ABSENT}"},
  "sandbox_server_url": "127.0.0.1:18890",
  "data_path": "absent.jsonl",
  "benchmark_name": "a/b",
  "number_of_tasks": 0,
  "task_ids": [{}],
  "parallel": "yes",
  "parallel": true
}"#;
    insta::assert_snapshot!(read(text).unwrap_err(), @r#"
    error: `model_name` must not be empty
     --> config.json:2:17
      |
    2 |   "model_name": " ",
      |                 ^^^
      |
      = help: write the name that the server knows the model by

    error: `base_url` must be an `http` or `https` URL
     --> config.json:3:15
      |
    3 |   "base_url": "ftp://example.org",
      |               ^^^^^^^^^^^^^^^^^^^
      |
      = help: such as `https://api.openai.com/v1` or `http://127.0.0.1:8000/v1`

    error: `max_turns` must be at least 1, not 0
     --> config.json:4:16
      |
    4 |   "max_turns": 0,
      |                ^

    error: `max_retries` must be at least 0, not -1
     --> config.json:5:18
      |
    5 |   "max_retries": -1,
      |                  ^^

    error: `max_workers` must be a whole number, not a string
     --> config.json:6:18
      |
    6 |   "max_workers": "4",
      |                  ^^^
      |
      = help: write 4 without quotes

    error: `available_tools` must be a list, not a string
     --> config.json:7:22
      |
    7 |   "available_tools": "web:search",
      |                      ^^^^^^^^^^^^

    error: `evaluation_metric` cannot be `f1_scor`
     --> config.json:8:24
      |
    8 |   "evaluation_metric": "f1_scor",
      |                        ^^^^^^^^^
      |
      = help: did you mean `f1_score`? it can be one of `exact_match`, `f1_score`, `contains_answer`, `numeric_match`, `llm_judgement`, `similarity`, `char_f1`, `edit_similarity`, `math_equal`, `multiple_choice`

    error: `evaluator_temperature` must be from 0 to 2, not 2.1
     --> config.json:9:28
      |
    9 |   "evaluator_temperature": 2.1,
      |                            ^^^
      |
      = help: 0 gives the steadiest judge

    error: `evaluator_max_retries` must be a whole number, not a number
      --> config.json:10:28
       |
    10 |   "evaluator_max_retries": 1.5,
       |                            ^^^

    error: `evaluator_extra_params.model` cannot be set
      --> config.json:11:29
       |
    11 |   "evaluator_extra_params": {"model": "x", "user": "${ABSENT}"},
       |                             ^
       |
       = help: the judge's model is `evaluator_model_name`; the rest of it is fixed

    error: the variable `ABSENT` is not set
      --> config.json:11:53
       |
    11 |   "evaluator_extra_params": {"model": "x", "user": "${ABSENT}"},
       |                                                     ^^^^^^^^^
       |
       = help: set it, or write `${ABSENT:-default}`

    error: `sandbox_server_url` must be an `http` or `https` URL
      --> config.json:12:25
       |
    12 |   "sandbox_server_url": "127.0.0.1:18890",
       |                         ^^^^^^^^^^^^^^^^^
       |
       = help: such as `http://127.0.0.1:18890`

    error: `data_path`: there is no such file
      --> config.json:13:16
       |
    13 |   "data_path": "absent.jsonl",
       |                ^^^^^^^^^^^^^^
       |
       = help: the path is relative to this file, else to the working directory

    error: `benchmark_name` cannot be used: a name becomes a directory, so it cannot be a path
      --> config.json:14:21
       |
    14 |   "benchmark_name": "a/b",
       |                     ^^^^^
       |
       = help: files of results have it in their names

    error: `number_of_tasks` must be at least 1, not 0
      --> config.json:15:22
       |
    15 |   "number_of_tasks": 0,
       |                      ^

    error: `task_ids.0` must be a string, not a mapping
      --> config.json:16:16
       |
    16 |   "task_ids": [{}],
       |                ^

    error: `parallel` must be true or false, not a string
      --> config.json:17:15
       |
    17 |   "parallel": "yes",
       |               ^^^^^
       |
       = help: write true

    error: the key `parallel` is written twice
      --> config.json:18:3
       |
    17 |   "parallel": "yes",
       |   ---------- first written here
    18 |   "parallel": true
       |   ^^^^^^^^^^
       |
       = help: keep one of them
    "#);
}

#[test]
fn a_server_must_be_named_and_a_key_given_unless_it_is_on_this_machine() {
    insta::assert_snapshot!(read("{}").unwrap_err(), @"
    error: `base_url` is missing
     --> config.json:1:1
      |
    1 | {}
      | ^
      |
      = help: write where the model's server answers, or set OPENAI_BASE_URL: `https://api.openai.com/v1`, `http://127.0.0.1:8000/v1`
    ");
    insta::assert_snapshot!(
        read("{\"base_url\": \"https://api.example.org/v1\",\n \"api_key\": \"\"}").unwrap_err(),
        @r#"
    error: `api_key` is missing
     --> config.json:2:13
      |
    2 |  "api_key": ""}
      |             ^^
      |
      = help: write it as `${VAR}`, or set OPENAI_API_KEY; only a server on this machine needs none
    "#
    );
    for url in [
        "http://127.0.0.1:1/v1",
        "http://127.8.9.1",
        "http://[::1]:80",
        "http://localhost/v1",
        "http://x.localhost",
    ] {
        assert_eq!(load(&json!({"base_url": url})).config.api_key, None, "{url}");
    }
    for url in [
        "http://10.0.0.1",
        "http://127.0.0.1.example.org",
        "http://localhost.example.org",
        "http://127.0.0.1@example.org",
    ] {
        assert!(read(&json!({"base_url": url}).to_string()).is_err(), "{url}");
    }
}

#[test]
fn a_variable_that_is_not_set_is_the_only_problem_of_its_key() {
    insta::assert_snapshot!(problems(r#""model_name": "${ABSENT}", "evaluation_metric": "${M:-bleu}""#), @r#"
    error: the variable `ABSENT` is not set
     --> config.json:3:18
      |
    3 |   "model_name": "${ABSENT}", "evaluation_metric": "${M:-bleu}"
      |                  ^^^^^^^^^
      |
      = help: set it, or write `${ABSENT:-default}`

    error: `evaluation_metric` cannot be `bleu`
     --> config.json:3:51
      |
    3 |   "model_name": "${ABSENT}", "evaluation_metric": "${M:-bleu}"
      |                                                   ^^^^^^^^^^^^
      |
      = help: it can be one of `exact_match`, `f1_score`, `contains_answer`, `numeric_match`, `llm_judgement`, `similarity`, `char_f1`, `edit_similarity`, `math_equal`, `multiple_choice`
    "#);
}

#[test]
fn an_unknown_key_is_a_warning_with_the_nearest_one() {
    let text = "{\"base_url\": \"http://localhost\",\n \"_a\": 1, \"_a\": 2, \"max_turn\": 3, \"llm\": {}}";
    insta::assert_snapshot!(warnings(&read(text).unwrap()), @r#"
    warning: `max_turn` is not known here, and has no effect
     --> config.json:2:20
      |
    2 |  "_a": 1, "_a": 2, "max_turn": 3, "llm": {}}
      |                    ^^^^^^^^^^
      |
      = help: did you mean `max_turns`?
    warning: `llm` is not known here, and has no effect
     --> config.json:2:35
      |
    2 |  "_a": 1, "_a": 2, "max_turn": 3, "llm": {}}
      |                                   ^^^^^
      |
      = help: keys that begin with `_` are taken as comments
    "#);
}

#[test]
fn settings_that_come_to_nothing_are_warned_of() {
    let loaded = load(&json!({
        "base_url": "https://a.example.org", "api_key": "sk-very-secret", "max_workers": 8,
        "evaluation_metric": "llm_judgement", "evaluator_base_url": "https://b.example.org",
    }));
    let told: Vec<_> = loaded.warnings.iter().map(|warning| warning.message.as_str()).collect();
    assert_eq!(
        told,
        [
            "`max_workers` has no effect: questions are asked one after the other",
            "the judge's server gets the key of the model that answers",
        ]
    );
}
