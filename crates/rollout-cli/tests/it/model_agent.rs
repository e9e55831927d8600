//! Models as agents of container tasks, by the command, against a scripted server.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rollout_testkit::{
    Finished, Hold, ModelReply, ModelServer, TestJob, TestTask, TokenCounts, files_holding, long_enough,
};
use serde_json::{Value, json};

const KEY: &str = "sk-model-0123456789abcdef";
const TRIAL: &str = "model/set/task__1";

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

/// An agent named `model` that is a model of this server.
fn model(server: &ModelServer) -> Value {
    json!({"name": "model", "model": {"name": "scripted", "base_url": server.url(), "max_retries": 0}})
}

fn bash(command: &str) -> ModelReply {
    ModelReply::tool_call("bash", &json!({"command": command}))
}

#[track_caller]
fn trajectory(finished: &Finished) -> Value {
    finished.file(&format!("{TRIAL}/trajectory.json")).parse().unwrap()
}

#[track_caller]
fn contains(value: &Value, words: &str) {
    assert!(value.as_str().is_some_and(|text| text.contains(words)), "{words:?} is not in {value}");
}

#[test]
fn a_model_solves_a_task_and_its_trajectory_has_every_message() {
    let counts = TokenCounts { prompt: 1000, cached: 600, completion: 50, ..TokenCounts::default() };
    let server = ModelServer::turns([
        bash("touch /app/done; echo made").usage(counts),
        ModelReply::text("Done.").usage(counts),
    ]);
    let mut agent = model(&server);
    agent["model"]["prices"] = json!({"input": 10, "output": 100, "cached_input": 5});
    let finished = job().task(TestTask::new("task")).agent(agent).run().expect(0);

    let result = finished.trial(TRIAL);
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null), "{result:#}");
    // Twice 400 tokens at 10, 600 at 5 and 50 at 100 dollars the million.
    let (cost, usage) = (result["model_cost"].as_f64().unwrap(), &result["usage"]);
    assert!((cost - 0.024).abs() < 1e-12, "{cost}");
    assert_eq!((&result["cost"], &usage["cost_usd"]), (&result["model_cost"], &result["model_cost"]));
    assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!(2000), &json!(100)));
    assert_eq!((&usage["cached_tokens"], &result["notes"]), (&json!(1200), &Value::Null));
    assert_eq!(finished.result()["total_cost"], result["cost"]);

    let mut trajectory = trajectory(&finished);
    let time = |value: &mut Value| {
        assert!(value.is_number() || value.is_string(), "{value} is a time");
        *value = json!("[time]");
    };
    time(&mut trajectory["started_at"]);
    time(&mut trajectory["duration_sec"]);
    time(&mut trajectory["turns"][0]["tools_sec"]);
    for turn in trajectory["turns"].as_array_mut().unwrap() {
        time(&mut turn["model_sec"]);
        time(&mut turn["response"]["created"]);
        turn["response"]["id"] = json!("[id]");
    }
    trajectory["trajectory_id"] = json!("[id]");
    let tools: Vec<_> =
        trajectory["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
    trajectory["tools"] = json!(tools);
    trajectory["prompt"][0]["content"] = json!("[system prompt]");
    insta::assert_json_snapshot!(trajectory, @r#"
    {
      "model": "scripted",
      "trajectory_id": "[id]",
      "started_at": "[time]",
      "duration_sec": "[time]",
      "stop_condition": "no_tools_called",
      "is_truncated": false,
      "error": null,
      "usage": {
        "input_tokens": 2000,
        "output_tokens": 100,
        "cached_tokens": 1200,
        "cost_usd": 0.024
      },
      "tools": [
        "bash",
        "read_file",
        "write_file",
        "apply_patch"
      ],
      "prompt": [
        {
          "role": "system",
          "content": "[system prompt]"
        },
        {
          "role": "user",
          "content": "Create the file /app/done.\n"
        }
      ],
      "turns": [
        {
          "response": {
            "id": "[id]",
            "created": "[time]",
            "model": "scripted",
            "usage": {
              "prompt_tokens": 1000,
              "cached_tokens": 600,
              "cache_write_tokens": 0,
              "completion_tokens": 50,
              "reasoning_tokens": 0,
              "total_tokens": 1050,
              "cost": 0.012
            },
            "message": {
              "role": "assistant",
              "content": null,
              "tool_calls": [
                {
                  "id": "call_0_0",
                  "name": "bash",
                  "arguments": "{\"command\":\"touch /app/done; echo made\"}"
                }
              ],
              "finish_reason": "tool_calls",
              "is_truncated": false,
              "tokens": null
            }
          },
          "model_sec": "[time]",
          "answers": [
            {
              "role": "tool",
              "content": "made\n[exit code 0]",
              "tool_call_id": "call_0_0"
            }
          ],
          "tools_sec": "[time]"
        },
        {
          "response": {
            "id": "[id]",
            "created": "[time]",
            "model": "scripted",
            "usage": {
              "prompt_tokens": 1000,
              "cached_tokens": 600,
              "cache_write_tokens": 0,
              "completion_tokens": 50,
              "reasoning_tokens": 0,
              "total_tokens": 1050,
              "cost": 0.012
            },
            "message": {
              "role": "assistant",
              "content": "Done.",
              "finish_reason": "stop",
              "is_truncated": false,
              "tokens": null
            }
          },
          "model_sec": "[time]",
          "answers": [],
          "tools_sec": null
        }
      ]
    }
    "#);
}

#[test]
fn a_model_gets_the_instruction_and_the_default_system_prompt_unless_the_job_sets_another() {
    let server = ModelServer::always(ModelReply::text("Done."));
    let mut own = model(&server);
    own["name"] = json!("own");
    own["system_prompt"] = json!("Be quick.");
    let mut none = model(&server);
    none["name"] = json!("none");
    none["system_prompt"] = json!("");
    let agents = job().task(TestTask::new("task")).agent(model(&server)).agent(own).agent(none);
    agents.set("n_concurrent_trials", json!(1)).run().expect(0);
    let requests = server.requests();
    let prompts: Vec<Vec<String>> = requests
        .iter()
        .map(|request| {
            let text = |message: &Value| {
                format!("{}: {}", message["role"].as_str().unwrap(), message["content"].as_str().unwrap())
            };
            request.messages().iter().map(text).collect()
        })
        .collect();
    let instruction = "user: Create the file /app/done.\n";
    let [default, own, none] = &prompts[..] else { panic!("{prompts:?}") };
    assert!(default[0].starts_with("system: ") && default[0].contains("tests that you cannot see"));
    assert_eq!(default[1..], [instruction]);
    assert_eq!(own[..], ["system: Be quick.", instruction]);
    assert_eq!(none[..], [instruction]);
    let tools = requests[0].body["tools"].as_array().unwrap();
    let tools: Vec<_> = tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(tools, ["bash", "read_file", "write_file", "apply_patch"]);
}

#[test]
fn models_of_any_dialect_compete_with_the_oracle_scripts_and_nop_in_one_job() {
    let server = ModelServer::turns([bash("touch /app/done"), ModelReply::text("Done.")]);
    let mut job = job().task(TestTask::new("one")).task(TestTask::new("two")).oracle().script("true");
    job = job.agent(json!({"name": "nop"}));
    for (dialect, stream) in [("chat", false), ("chat", true), ("messages", false), ("messages", true)] {
        let mut agent = model(&server);
        agent["name"] = json!(format!("{dialect}-{stream}"));
        agent["model"]["dialect"] = json!(dialect);
        agent["model"]["stream"] = json!(stream);
        job = job.agent(agent);
    }
    let result = job.run().expect(0).result();
    let rewards: Vec<_> = result["agents"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, agent)| format!("{name} {} {}", agent["completed_trials"], agent["mean_reward"]))
        .collect();
    let expected = ["oracle 2 1.0", "agent 2 0.0", "nop 2 0.0"];
    let models = ["chat-false 2 1.0", "chat-true 2 1.0", "messages-false 2 1.0", "messages-true 2 1.0"];
    assert_eq!(rewards, [&expected[..], &models].concat());
    assert_eq!(server.refusals(), Vec::<String>::new());
}

#[test]
fn a_model_that_thinks_longer_than_the_task_allows_is_agent_execution_timeout() {
    let (finished, seconds) = long_enough(Duration::from_secs(5), |timeout| {
        let hold = Hold::new();
        let server = ModelServer::turns([bash("touch /app/done"), ModelReply::text("Done.").held(&hold)]);
        let config = format!("[agent]\ntimeout_sec = {}\n", timeout.as_secs());
        let finished =
            job().task(TestTask::new("task").config(&config)).agent(model(&server)).run().expect(1);
        // Otherwise the time was up before the second turn.
        (server.served() == 2).then_some((finished, format!("{} seconds", timeout.as_secs())))
    });
    let result = finished.trial(TRIAL);
    assert_eq!(result["error"]["type"], "agent_execution_timeout", "{result:#}");
    for words in [&*seconds, "agent.timeout_sec", "timeout_multiplier", "trajectory.json"] {
        contains(&result["error"]["message"], words);
    }
    assert_eq!((&result["reward"], &result["tries"]), (&Value::Null, &json!(1)));
    assert!(result["usage"]["input_tokens"].as_u64().unwrap() > 0, "the first turn counts: {result:#}");
    let trajectory = trajectory(&finished);
    assert_eq!(trajectory["stop_condition"], "timeout_reached");
    assert_eq!(trajectory["turns"][0]["answers"][0]["content"], "[exit code 0]");
    assert_eq!(trajectory["turns"].as_array().unwrap().len(), 1);
}

#[test]
fn limits_of_the_agent_end_its_work_which_is_graded_all_the_same() {
    let server = ModelServer::always(bash("touch /app/done"));
    let run = |server: &ModelServer, limits: Value| {
        let mut agent = model(server);
        agent["limits"] = limits;
        job().task(TestTask::new("task")).agent(agent).run().expect(0)
    };
    let out_of_time = long_enough(Duration::from_secs(5), |timeout| {
        let hold = Hold::new();
        let slow = ModelServer::turns([bash("touch /app/done"), ModelReply::text("Done.").held(&hold)]);
        let finished = run(&slow, json!({"timeout_sec": timeout.as_secs()}));
        // Otherwise the time was up before the second turn.
        (slow.served() == 2).then_some(finished)
    });
    for (finished, condition) in [
        (run(&server, json!({"max_turns": 2})), "max_turns_reached"),
        (run(&server, json!({"max_completion_tokens": 1})), "max_total_completion_tokens_reached"),
        (out_of_time, "timeout_reached"),
    ] {
        let result = finished.trial(TRIAL);
        // The last answer of the model calls a tool, and the tool is not run any more.
        let reward = if condition == "max_total_completion_tokens_reached" { 0.0 } else { 1.0 };
        assert_eq!((&result["reward"], &result["error"]), (&json!(reward), &Value::Null), "{condition}");
        contains(&result["notes"][0], condition);
        assert_eq!(trajectory(&finished)["stop_condition"], condition);
    }
}

#[test]
fn a_conversation_that_became_too_long_is_graded_and_noted() {
    let server = ModelServer::turns([bash("touch /app/done"), ModelReply::overlong()]);
    let finished = job().task(TestTask::new("task")).agent(model(&server)).run().expect(0);
    let result = finished.trial(TRIAL);
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null), "{result:#}");
    contains(&result["notes"][0], "longer than the context of the model");
    let trajectory = trajectory(&finished);
    assert_eq!(
        (&trajectory["stop_condition"], &trajectory["is_truncated"]),
        (&json!("prompt_too_long"), &json!(true))
    );
}

#[test]
fn a_model_that_is_cut_off_in_its_last_message_is_graded_and_noted() {
    let server = ModelServer::always(ModelReply::text("I will now cre").finish_reason("length"));
    let finished = job().task(TestTask::new("task")).agent(model(&server)).run().expect(0);
    let result = finished.trial(TRIAL);
    assert_eq!((&result["reward"], &result["error"]), (&json!(0.0), &Value::Null), "{result:#}");
    contains(&result["notes"][0], "cut off");
    assert_eq!(trajectory(&finished)["is_truncated"], true);
}

#[test]
fn a_server_that_fails_is_no_fault_of_the_agent_and_its_words_are_shown() {
    let server = ModelServer::turns([bash("touch /app/done"), ModelReply::error(400, "no such parameter")]);
    let verifier = json!({"after_agent_error": "run"});
    let job = job().task(TestTask::new("task")).agent(model(&server)).set("verifier", verifier);
    let finished = job.run().expect(1);
    let counted = finished.result();
    assert_eq!(counted["headline"]["excluded"]["failed_by_infrastructure"], 1, "{counted:#}");
    assert_eq!(counted["headline"]["pass_rate"], Value::Null);
    let result = finished.trial(TRIAL);
    assert_eq!(result["error"]["type"], "model_failed");
    for words in ["ModelError -> BadRequestError: ", "`scripted`", "no such parameter", "trajectory.json"] {
        contains(&result["error"]["message"], words);
    }
    assert_eq!((&result["reward"], &result["tries"]), (&Value::Null, &json!(1)), "{result:#}");
    let trajectory = trajectory(&finished);
    assert_eq!(trajectory["error"]["error_chain_str"], "ModelError -> BadRequestError");
    assert_eq!(
        (&trajectory["stop_condition"], trajectory["turns"].as_array().unwrap().len()),
        (&json!("has_error"), 1)
    );
    assert!(finished.file(&format!("{TRIAL}/error.txt")).contains("no such parameter"));
    for words in ["no such parameter", "rollout show jobs/job/model/set/task__1"] {
        assert!(finished.stdout().contains(words), "{words:?} is not in: {}", finished.stdout());
    }
}

#[test]
fn a_dead_server_stops_a_job_of_container_tasks_early_and_a_resume_goes_on() {
    let is_dead = Arc::new(AtomicBool::new(true));
    let dead = Arc::clone(&is_dead);
    let server = ModelServer::scripted(move |request| match (dead.load(Ordering::SeqCst), request.turns()) {
        (true, _) => ModelReply::error(503, "the engine is dead"),
        (false, 0) => bash("touch /app/done"),
        (false, _) => ModelReply::text("Done."),
    });
    let job = job().task(TestTask::new("task")).agent(model(&server));
    let job = job.set("n_attempts", json!(6)).set("n_concurrent_trials", json!(1));
    let stopped = job.rollout(&["run", "job.yaml"]).expect(1);
    let result = stopped.result();
    assert_eq!((&result["failed_trials"], &result["skipped_trials"]), (&json!(5), &json!(1)), "{result:#}");
    assert_eq!(result["stopped"]["error"]["type"], "model_failed");
    assert_eq!((server.served(), &stopped.trial(TRIAL)["tries"]), (5, &json!(1)));
    is_dead.store(false, Ordering::SeqCst);
    let resumed = job.rollout(&["resume", "jobs/job", "--rerun", "error"]).expect(0);
    assert_eq!(resumed.result()["headline"]["pass_rate"], 1.0);
}

#[test]
fn a_response_without_sense_is_tried_again_only_while_nothing_was_done() {
    let done = || [bash("touch /app/done"), ModelReply::text("Done.")];
    let server = ModelServer::sequence([ModelReply::empty()].into_iter().chain(done()));
    let finished = job().task(TestTask::new("task")).agent(model(&server)).run().expect(0);
    let result = finished.trial(TRIAL);
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(2)), "{result:#}");
    assert_eq!(result["agent_starts"], 2);
    let reported = "restarted: 1 trial started the agent more than once";
    assert!(finished.stdout().contains(reported), "{}", finished.stdout());
    let failed: Value = finished.file(&format!("{TRIAL}/tries/1/trajectory.json")).parse().unwrap();
    assert_eq!(failed["error"]["error"], "EmptyModelResponseError");

    let server =
        ModelServer::sequence([bash("touch /app/done"), ModelReply::empty()].into_iter().chain(done()));
    let finished = job().task(TestTask::new("task")).agent(model(&server)).run().expect(1);
    let result = finished.trial(TRIAL);
    assert_eq!((&result["reward"], &result["tries"]), (&Value::Null, &json!(1)), "{result:#}");
    contains(&result["error"]["message"], "EmptyModelResponseError");
}

#[test]
fn a_refused_key_ends_the_job_and_is_nowhere_to_be_read() {
    let is_valid = Arc::new(AtomicBool::new(false));
    let valid = Arc::clone(&is_valid);
    let server =
        ModelServer::scripted(move |request| match (valid.load(Ordering::SeqCst), request.turns()) {
            (false, _) => ModelReply::error(401, format!("unknown key {KEY}")),
            (true, 0) => bash("touch /app/done"),
            (true, _) => ModelReply::text("Done."),
        });
    let mut agent = model(&server);
    agent["model"]["api_key"] = json!("${THE_KEY}");
    let mut job = job().oracle().agent(agent).env("THE_KEY", KEY);
    for task in ["one", "two", "three"] {
        job = job.task(TestTask::new(task));
    }
    let job = job.set("n_concurrent_trials", json!(1)).set("log_level", json!("trace"));
    let finished = job.rollout(&["run", "job.yaml", "--output", "json"]).expect(1);
    assert_eq!(server.served(), 1, "nothing is asked after the first refusal");
    assert_eq!(server.requests()[0].header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    let stderr = finished.stderr();
    for words in [
        "rejected the API key of model",
        "rejected the API key for model `scripted`",
        "hint:",
        "rollout resume",
    ] {
        assert!(stderr.contains(words), "{words:?} is not in: {stderr}");
    }
    assert_eq!(files_holding(&job.dir(), KEY), Vec::<String>::new());
    assert!(!finished.stdout().contains(KEY) && !stderr.contains(KEY), "{stderr}");
    assert!(!job.dir().join("model/set/one__1/result.json").exists());
    let refused: Value = finished.file("model/set/one__1/trajectory.json").parse().unwrap();
    assert_eq!((&refused["error"]["error"], &refused["turns"]), (&json!("Unauthorized"), &json!([])));
    contains(&refused["error"]["message"], "unknown key [redacted]");

    // What was recorded stays, and the rest is done when the key is right.
    is_valid.store(true, Ordering::SeqCst);
    let resumed = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(0);
    let started = resumed.events().into_iter().filter(|event| event["event"] == "trial_started").count();
    assert_eq!((started, &resumed.result()["pass_rate"]), (3, &json!(1.0)));
}

#[test]
fn secrets_in_messages_of_the_model_and_its_tools_are_redacted() {
    let server = ModelServer::turns([
        bash("env | grep PASSWORD")
            .call("bash", &json!({"command": "printf '%s' \"$PASSWORD\" | head -c 9; touch /app/done"})),
        ModelReply::text(format!("The password is {KEY}.")),
    ]);
    let mut agent = model(&server);
    agent["env"] = json!({"PASSWORD": "${THE_KEY}"});
    let job = job().task(TestTask::new("task")).agent(agent).env("THE_KEY", KEY);
    let finished = job.run().expect(0);
    let reported = server.requests()[1].messages().to_vec();
    contains(&reported[3]["content"], KEY);
    assert_eq!(files_holding(&job.dir(), KEY), Vec::<String>::new());
    let trajectory = trajectory(&finished);
    let turns = &trajectory["turns"];
    assert_eq!(turns[0]["answers"][0]["content"], "PASSWORD=[redacted]\n[exit code 0]");
    assert_eq!(turns[1]["response"]["message"]["content"], "The password is [redacted].");
}

#[test]
fn a_flood_of_bytes_takes_little_memory_and_the_model_sees_both_ends_of_it_as_text() {
    let bytes: u64 = if std::env::var_os("ROLLOUT_TEST_FULL").is_some() { 1 << 30 } else { 200 << 20 };
    let hold = Hold::new();
    let flood = format!(r"echo start; yes $'\377\376é' | head -c {bytes}; echo; echo end; touch /app/done");
    let server = ModelServer::turns([bash(&flood), ModelReply::text("Done.").held(&hold)]);
    let job = job().task(TestTask::new("task")).agent(model(&server));
    let mut running = job.start();
    running.until("the second request", |_| server.served() == 2);
    let status = fs::read_to_string(format!("/proc/{}/status", running.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    hold.open();
    let finished = running.finish().expect(0);
    assert!(peak < 100 << 10, "{peak} KiB at the peak");
    assert_eq!(finished.trial(TRIAL)["reward"], 1.0);
    let answer = server.requests()[1].last_text();
    assert!(answer.starts_with("start\n\u{fffd}"), "{:?}", &answer[..40]);
    assert!(answer.contains("bytes are left out here"));
    assert!(answer.len() < 100 << 10, "{} bytes", answer.len());
    assert_eq!(trajectory(&finished)["turns"][0]["answers"][0]["content"], answer.as_str());
}

#[test]
fn a_cancelled_job_keeps_what_was_said_so_far_and_a_resume_starts_over() {
    let hold = Hold::new();
    let server =
        ModelServer::turns([bash("echo working; touch /app/done"), ModelReply::text("Done.").held(&hold)]);
    let job = job().task(TestTask::new("task")).agent(model(&server));
    let mut running = job.start();
    running.until("the second request", |_| server.served() == 2);
    running.signal("-TERM");
    let finished = running.finish().expect(130);
    assert!(!job.dir().join(TRIAL).join("result.json").exists());
    let kept = trajectory(&finished);
    assert_eq!(kept["turns"][0]["answers"][0]["content"], "working\n[exit code 0]");
    assert_eq!((&kept["stop_condition"], &kept["error"]), (&Value::Null, &Value::Null));
    hold.open();
    let resumed = job.rollout(&["resume", "jobs/job"]).expect(0);
    assert_eq!(resumed.trial(TRIAL)["reward"], 1.0);
    assert_eq!(trajectory(&resumed)["stop_condition"], "no_tools_called");
    job.expect_nothing_left();
}

#[test]
fn an_instruction_that_no_model_reads_is_task_invalid() {
    let server = ModelServer::always(ModelReply::text("Done."));
    let task = TestTask::new("task").file("instruction.md", &"very ".repeat(300_000));
    let finished = job().task(task).agent(model(&server)).run().expect(1);
    let result = finished.trial(TRIAL);
    assert_eq!(result["error"]["type"], "task_invalid");
    contains(&result["error"]["message"], "1 MiB");
    assert_eq!(server.served(), 0);
}

#[test]
fn what_a_model_writes_into_usage_json_is_not_its_usage() {
    let lie = bash(r#"echo '{"input_tokens": 7, "cost_usd": 99}' > /logs/agent/usage.json"#);
    let server = ModelServer::turns([lie.no_usage(), ModelReply::text("Done.").no_usage()]);
    let finished = job().task(TestTask::new("task")).agent(model(&server)).run().expect(0);
    let result = finished.trial(TRIAL);
    assert_eq!((&result["usage"], &result["model_cost"]), (&Value::Null, &Value::Null), "{result:#}");
    assert_eq!(trajectory(&finished)["usage"], Value::Null);
}
