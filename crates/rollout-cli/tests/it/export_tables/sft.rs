//! Conversations to imitate.

use std::fs;

use rollout_testkit::{Finished, ModelReply, ModelServer, TestJob};
use serde_json::{Value, json};

use super::{benchmark, containers, diligent, job, rollouts};

fn export(job: &TestJob, options: &[&str]) -> Finished {
    job.rollout(&[&["export", "sft", "jobs/job", "-o", "out"], options].concat())
}

fn traces(job: &TestJob) -> Vec<Value> {
    let text = fs::read_to_string(job.root().join("out/traces.jsonl")).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn a_trace_is_a_chat_in_the_form_of_openai() {
    let server = diligent();
    let job = containers(&server);
    job.run().expect(1);
    insta::assert_snapshot!(export(&job, &[]).expect(0).stdout(), @"
    out/traces.jsonl
    1 conversation
    left out: 2 trials with an error
    left out: 1 trial without a recorded conversation
    ");
    let [mut trace] = traces(&job).try_into().unwrap();
    assert_eq!(trace["tools"][0]["type"], "function");
    assert_eq!(trace["tools"][0]["function"]["name"], "bash");
    trace.as_object_mut().unwrap().shift_remove("tools");
    trace["messages"][0]["content"] = json!("[system prompt]");
    insta::assert_json_snapshot!(trace, @r#"
    {
      "messages": [
        {
          "role": "system",
          "content": "[system prompt]"
        },
        {
          "role": "user",
          "content": "Create the file /app/done.\n"
        },
        {
          "role": "assistant",
          "content": null,
          "tool_calls": [
            {
              "id": "call-1",
              "type": "function",
              "function": {
                "name": "bash",
                "arguments": "{\"command\":\"touch /app/done; echo made\"}"
              }
            }
          ]
        },
        {
          "role": "tool",
          "content": "made\n[exit code 0]",
          "tool_call_id": "call-1"
        },
        {
          "role": "assistant",
          "content": "=HYPERLINK(\"http://x\",\"a\"),\r\n'quoted' \"twice\"\u0000 \n;\tend é 好"
        }
      ],
      "reward": 1.0,
      "agent": "model",
      "model": "scripted",
      "dataset": "set",
      "task": "plain",
      "attempt": 1
    }
    "#);
}

#[test]
fn only_rewarded_whole_and_different_conversations_are_taken() {
    let server = ModelServer::sequence([
        ModelReply::text("2"),
        ModelReply::text("2"),
        ModelReply::text("2").finish_reason("length"),
        ModelReply::text("It is 4"),
        ModelReply::text("5"),
        ModelReply::error(400, "no"),
    ]);
    let job = rollouts(&server).set("n_attempts", json!(3));
    job.run();
    insta::assert_snapshot!(export(&job, &[]).expect(0).stdout(), @"
    out/traces.jsonl
    2 conversations
    left out: 1 trial with a reward below 1, or without one
    left out: 1 trial with an error
    left out: 1 truncated conversation
    left out: 1 conversation equal to an earlier one
    ");
    let said: Vec<_> = traces(&job).iter().map(|trace| trace["messages"][1]["content"].clone()).collect();
    assert_eq!(said, ["2", "It is 4"]);
}

#[test]
fn the_reward_and_the_number_for_each_task_can_be_chosen() {
    let server = ModelServer::sequence(["2", "3", "4", "5"].map(ModelReply::text));
    let job = rollouts(&server);
    job.run().expect(0);
    insta::assert_snapshot!(export(&job, &["--min-reward", "0", "--max-per-task", "1"]).expect(0).stdout(), @"
    out/traces.jsonl
    2 conversations
    left out: 2 trials above the maximum per task
    ");
    assert_eq!(traces(&job).len(), 2);
    insta::assert_snapshot!(
        job.rollout(&["export", "sft", "jobs/job", "-o", "none", "--min-reward", "1.5"]).expect(2).stderr(), @"error: jobs/job has nothing to export: 4 trials with a reward below 1.5, or without one");
    assert!(!job.root().join("none/traces.jsonl").exists());
}

#[test]
fn conversations_that_differ_only_in_the_names_of_calls_are_the_same() {
    let server = ModelServer::scripted(|request| match request.turns() {
        0 => ModelReply::tool_call("bash", &json!({"command": "touch /app/done"})),
        _ => ModelReply::text("Done."),
    });
    let job = job()
        .task(rollout_testkit::TestTask::new("task"))
        .agent(super::model(&server))
        .set("n_attempts", json!(2));
    job.run().expect(0);
    let reported = export(&job, &[]).expect(0).stdout();
    assert!(reported.contains("1 conversation equal to an earlier one"), "{reported}");
}

#[test]
fn questions_of_a_benchmark_are_conversations_too() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server);
    job.rollout(&["eval", "config.json"]).expect(0);
    export(&job, &[]).expect(0);
    let [trace] = traces(&job).try_into().unwrap();
    assert_eq!((&trace["task"], &trace["model"], &trace["reward"]), (&json!("q1"), &json!("m"), &json!(1.0)));
}
