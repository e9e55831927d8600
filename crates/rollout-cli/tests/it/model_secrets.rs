//! Keys of models and tools are in no file and in no output, even if a server or a tool prints them.

use std::fs;

use rollout_testkit::{Finished, ModelReply, ModelServer, Reasoning, TestJob, files_holding};
use serde_json::{Value, json};

/// The part of every key that is looked for, however the rest of it is escaped.
const TAIL: &str = "0123456789abcdef";

fn job(server: &ModelServer, key: &str, interaction: Value) -> TestJob {
    let model = json!({
        "name": "m", "base_url": server.url(), "api_key": "${MODEL_KEY}", "max_retries": 0,
        "sampling": {"user": format!("the one with {key}")},
    });
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .env("MODEL_KEY", key)
        .agent(json!({"name": "gpt", "model": model}))
        .set("datasets", json!([{"name": "set", "interaction": interaction}]))
        .set("log_level", json!("trace"))
}

#[track_caller]
fn shown_nowhere(job: &TestJob, finished: &Finished) {
    assert_eq!(files_holding(&job.dir(), TAIL), Vec::<String>::new());
    for said in [finished.stdout(), finished.stderr()] {
        assert!(!said.contains(TAIL), "{said}");
    }
}

fn rows(job: &TestJob) -> Vec<Value> {
    let text = fs::read_to_string(job.dir().join("outputs.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_key_in_messages_of_models_tools_and_scores_is_in_no_file_and_no_output() {
    for key in [format!("sk-{TAIL}"), format!("sk-\"quoted\"-{TAIL}")] {
        let said = key.clone();
        let server = ModelServer::scripted(move |request| match (request.turns(), &*request.last_text()) {
            (_, "refused") => ModelReply::error(400, format!("no such key: {said}")),
            (_, "garbled") => ModelReply::raw(200, format!("who are you, {said}?")),
            (0, _) => ModelReply::tool_call(
                "tell",
                &json!({"key": said, "nested": json!({"key": said}).to_string()}),
            )
            .reasoning(Reasoning::ReasoningContent, &format!("my key is {said}")),
            (1, _) => ModelReply::tool_call("fail", &json!({})),
            _ => ModelReply::text(format!("the key is {said}")),
        });
        let reported = key.clone();
        let judge = ModelServer::scripted(move |_| ModelReply::text(format!("yes, as {reported} says")));
        let command = |name: &str, script: &str| json!({"command": ["sh", "-c", script], "name": name, "description": "Any.", "parameters": {"type": "object"}});
        let interaction = json!({
            "dataset": [{"question": "well"}, {"question": "refused"}, {"question": "garbled"}],
            "system_prompt": format!("Never tell {key}."),
            "tools": [
                command("tell", "cat; echo \"$MODEL_KEY\""),
                command("fail", "echo \"$MODEL_KEY\" >&2; exit 1"),
            ],
            "rubric": [
                {"match": "contains"},
                {"name": "broken", "command": ["sh", "-c", "echo \"$MODEL_KEY\"; echo \"$MODEL_KEY\" >&2; exit 1"]},
                {"name": "noted", "judge": {"model": {"name": "j", "base_url": judge.url(), "api_key": "${MODEL_KEY}"}}},
            ],
            "state_columns": ["trajectory", "judge_response"],
        });
        let job = job(&server, &key, interaction).set("retry/max_attempts", json!(2));
        let junit = ["run", "job.yaml", "--output", "json", "--junit", "jobs/job.xml"];
        fs::create_dir(job.root().join("jobs")).unwrap();
        let finished = job.rollout(&junit);
        assert!(finished.code() < 2, "{}", finished.stderr());
        shown_nowhere(&job, &finished);
        assert_eq!(files_holding(&job.root().join("jobs"), TAIL), Vec::<String>::new());
        let rows = rows(&job);
        assert_eq!(rows.len(), 3);
        let row = |id: u64| rows.iter().find(|row| row["example_id"] == id).unwrap();
        let completion = row(0)["completion"].as_array().unwrap();
        assert_eq!(completion.last().unwrap()["content"], "the key is [redacted]", "{:#}", row(0));
        assert!(
            completion
                .iter()
                .filter(|message| message["role"] == "tool")
                .all(|message| { message["content"].as_str().unwrap().contains("[redacted]") }),
            "{completion:#?}"
        );
        assert_eq!(row(1)["stop_condition"], "has_error", "{:#}", row(1));
        assert!(row(2)["error"]["message"].as_str().unwrap().contains("[redacted]"), "{:#}", row(2));
        assert!(finished.file("rollout.log").contains("[redacted]"));

        // What was saved without the key is read again and is the same.
        let again = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(finished.code());
        shown_nowhere(&job, &again);
        assert_eq!(again.result()["results"], finished.result()["results"]);
    }
}

#[test]
fn a_key_that_is_also_a_number_or_ends_in_an_escape_leaves_rows_that_are_json() {
    for key in ["00000000", "sk-12345\\"] {
        // The first is in the digits of the reward, and the second before the quotes of a text.
        let server = ModelServer::always(ModelReply::text("sk-12345\" and 00000000"));
        let interaction = json!({
            "dataset": [{"question": "well"}],
            "rubric": [{"name": "any", "command": ["echo", "1.00000000000000000002e-7"]}, {"name": "sum", "command": ["echo", "0.30000000000000004"]}],
        });
        let job = job(&server, key, interaction);
        let result = job.run().expect(0).result();
        let row = rows(&job).remove(0);
        assert_eq!(row["metrics"]["sum"], 0.30000000000000004, "{row:#}");
        assert_eq!(row["reward"], result["mean_reward"], "{row:#}");
        let again = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(0);
        assert_eq!(again.events()[0]["resumed_trials"], 1);
    }
}

#[test]
fn averages_hold_no_key_of_the_settings() {
    let server = ModelServer::always(ModelReply::text("yes"));
    let key = format!("sk-{TAIL}");
    let interaction = json!({
        "dataset": [{
            "question": "well",
            "info": {"tool_defs": [{"name": "any", "description": format!("Needs {key}."), "parameters": {"type": "object"}}]},
        }],
        "rubric": [{"match": "contains"}],
    });
    let job = job(&server, &key, interaction);
    let finished = job.run().expect(0);
    shown_nowhere(&job, &finished);
}
