//! Logs for Inspect, read by Inspect.

use std::fs;

use rollout_testkit::{Python, TestJob};
use serde_json::{Value, json};

use super::{answerer, benchmark, containers, hostile, rollouts, solver};

fn export(job: &TestJob) -> String {
    job.rollout(&["export", "inspect", "jobs/job", "-o", "out"]).expect(0).stdout()
}

/// The logs of a job as Inspect reads them.
fn logs(job: &TestJob) -> Vec<Value> {
    let read = Python::new().run(include_str!("read.py"), job.root().join("out").to_str().unwrap());
    serde_json::from_str(&read).unwrap()
}

fn sample<'a>(log: &'a Value, id: &str, epoch: u32) -> &'a Value {
    let samples = log["samples"].as_array().unwrap();
    samples.iter().find(|sample| sample["id"] == id && sample["epoch"] == epoch).unwrap()
}

/// Sees that a log has the numbers of the job's own result.
#[track_caller]
fn agrees(log: &Value, result: &Value) {
    let agent = log["solver"].as_str().unwrap();
    let totals = &result["agents"][agent];
    let metrics = &log["metrics"]["reward"];
    for (metric, total) in [("mean", "mean_reward"), ("accuracy", "pass_rate")] {
        let (metric, total) = (metrics[metric].as_f64().unwrap(), totals[total].as_f64().unwrap());
        assert!((metric - total).abs() < 1e-12, "{metric} {total}");
    }
    assert_eq!((&log["total"], &log["completed"]), (&totals["total_trials"], &totals["completed_trials"]));
    let rows = result["results"].as_array().unwrap().iter().filter(|row| row["agent_name"] == agent);
    let mut count = 0;
    for row in rows {
        let attempt = row["attempt"].as_u64().unwrap() as u32;
        let sample = sample(log, row["task_name"].as_str().unwrap(), attempt);
        let error = sample["error"].as_str().map(|error| error.split(": ").next().unwrap());
        // Inspect knows no error beside a score: a trial that failed has no score there, and the error of another that
        // has a reward is in the metadata.
        let failed = row["reward"].is_null() || row["error"] == "model_failed";
        let reward = if failed { &Value::Null } else { &row["reward"] };
        assert_eq!(sample["scores"].get("reward").unwrap_or(&Value::Null), reward);
        let kept = if failed { error } else { sample["metadata"]["error"]["type"].as_str() };
        assert_eq!((kept, error.is_some()), (row["error"].as_str(), failed));
        count += 1;
    }
    assert_eq!(log["samples"].as_array().unwrap().len(), count);
}

/// A file's name without what differs from run to run.
fn plain(stdout: &str) -> String {
    let line = |line: &str| match line.split('_').collect::<Vec<_>>()[..] {
        [time, task, id] if id.ends_with(".eval") => {
            assert_eq!((time.len(), id.len()), ("out/2026-11-15T21-13-23-00-00".len(), 22 + ".eval".len()));
            format!("out/<time>_{task}_<id>.eval")
        }
        _ => line.to_owned(),
    };
    stdout.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn trials_in_containers_are_samples_with_messages_tools_scores_and_errors() {
    let server = solver();
    let job = containers(&server);
    let result = job.run().expect(1).result();
    insta::assert_snapshot!(plain(&export(&job)), @"
    out/<time>_set_<id>.eval
    out/<time>_set_<id>.eval
    8 samples
    ");
    let logs = logs(&job);
    let [script, model] = &logs[..] else { panic!("{logs:#?}") };
    for log in [script, model] {
        agrees(log, &result);
        assert_eq!((&log["status"], &log["epochs"]), (&json!("success"), &json!(2)));
        assert_eq!(log["sample_ids"], json!(["broken", "good"]));
        assert_eq!(log["metrics"]["reward"], json!({"accuracy": 1.0, "mean": 1.0}), "one task has no error");
        assert_eq!(
            (&log["scored"]["reward"], &log["reductions"]),
            (&json!([2, 2]), &json!({"reward": {"good": 1.0}}))
        );
    }
    assert_eq!((&script["model"], &model["model"]), (&json!("agent"), &json!("scripted")));
    assert_eq!(model["provenance"]["provider"], "native");

    let silent = sample(script, "good", 1);
    assert_eq!((&silent["input"], &silent["messages"]), (&json!("Create the file /app/done.\n"), &json!([])));
    let mut said = sample(model, "good", 2).clone();
    let usage = json!({
        "input_tokens": 800, "output_tokens": 100, "total_tokens": 2100, "input_tokens_cache_read": 1200,
        "total_cost": 0.024,
    });
    assert_eq!(said["usage"], json!({"scripted": usage}));
    assert_eq!(said["total_time"], said["metadata"]["durations"]["total_sec"]);
    assert_eq!(said["metadata"]["environment"]["provider"], "native");
    said["messages"][0]["text"] = json!("[system prompt]");
    said["messages"][3]["answers"][0] = json!("[id]");
    insta::assert_snapshot!(lines(&said["messages"]), @r#"
    {"role":"system","text":"[system prompt]"}
    {"role":"user","text":"Create the file /app/done.\n"}
    {"role":"assistant","text":"","calls":[["bash",{"command":"touch /app/done; echo made"},null]]}
    {"role":"tool","text":"made\n[exit code 0]","answers":["[id]","bash"]}
    {"role":"assistant","text":"Done."}
    "#);
    insta::assert_snapshot!(lines(&said["events"]), @r#"
    {"event":"sample_init"}
    {"event":"model","input":2,"completion":"","tools":["bash","read_file","write_file","apply_patch"],"usage":{"input_tokens":400,"output_tokens":50,"total_tokens":1050,"input_tokens_cache_write":0,"input_tokens_cache_read":600,"reasoning_tokens":0,"total_cost":0.012}}
    {"event":"tool","function":"bash","arguments":{"command":"touch /app/done; echo made"},"result":"made\n[exit code 0]"}
    {"event":"model","input":4,"completion":"Done.","tools":["bash","read_file","write_file","apply_patch"],"usage":{"input_tokens":400,"output_tokens":50,"total_tokens":1050,"input_tokens_cache_write":0,"input_tokens_cache_read":600,"reasoning_tokens":0,"total_cost":0.012}}
    {"event":"score","score":["reward",1.0]}
    "#);
    let failed = sample(model, "broken", 1);
    assert_eq!(failed["messages"].as_array().unwrap().len(), 5);
    assert_eq!(failed["events"].as_array().unwrap().last().unwrap()["message"], failed["error"]);
}

/// A list, one entry on each line.
fn lines(list: &Value) -> String {
    list.as_array().unwrap().iter().map(|entry| format!("{entry}\n")).collect()
}

#[test]
fn rollouts_are_samples_with_questions_answers_and_every_score() {
    let server = answerer();
    let job = rollouts(&server);
    let result = job.run().expect(1).result();
    insta::assert_snapshot!(plain(&export(&job)), @"
    out/<time>_small-sums_<id>.eval
    6 samples
    ");
    let logs = logs(&job);
    let [log] = &logs[..] else { panic!("{logs:#?}") };
    agrees(log, &result);
    assert_eq!((&log["task"], &log["model"]), (&json!("small_sums"), &json!("scripted")));
    let names: Vec<_> =
        log["samples"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    let mut right = sample(log, names[0], 1).clone();
    right["metadata"] = json!({});
    right["total_time"] = json!(0);
    insta::assert_snapshot!(serde_json::to_string_pretty(&right).unwrap(), @r#"
    {
      "id": "0",
      "epoch": 1,
      "input": [
        "system",
        "user"
      ],
      "target": "1",
      "messages": [
        {
          "role": "system",
          "text": "Be brief."
        },
        {
          "role": "user",
          "text": "What is 0+1?"
        },
        {
          "role": "assistant",
          "text": "1"
        }
      ],
      "completion": "1",
      "scores": {
        "reward": 1.0,
        "numeric": 1.0,
        "num_turns": 1.0
      },
      "answers": {
        "reward": null,
        "numeric": null,
        "num_turns": null
      },
      "error": null,
      "usage": {
        "scripted": {
          "input_tokens": 400,
          "output_tokens": 50,
          "total_tokens": 1050,
          "input_tokens_cache_read": 600,
          "total_cost": 0.012
        }
      },
      "events": [
        {
          "event": "sample_init"
        },
        {
          "event": "model",
          "input": 2,
          "completion": "1",
          "tools": []
        },
        {
          "event": "score",
          "score": [
            "reward",
            1.0
          ]
        },
        {
          "event": "score",
          "score": [
            "numeric",
            1.0
          ]
        },
        {
          "event": "score",
          "score": [
            "num_turns",
            1.0
          ]
        }
      ],
      "metadata": {},
      "total_time": 0
    }
    "#);
    let refused = sample(log, names[5], 2);
    assert_eq!(refused["completion"], "");
    assert!(
        refused["error"].as_str().is_some_and(|error| error.starts_with("model_failed: ")),
        "{refused:#}"
    );
    assert_eq!(refused["metadata"]["model_error"]["error"], "ModelError");
    assert!(refused["events"].to_string().contains("no such model"), "{refused:#}");
}

#[test]
fn questions_of_a_benchmark_are_samples_with_what_was_answered() {
    let server = answerer();
    let job = benchmark(&server);
    job.rollout(&["eval", "config.json"]).expect(1);
    export(&job);
    let logs = logs(&job);
    let [log] = &logs[..] else { panic!("{logs:#?}") };
    insta::assert_snapshot!(serde_json::to_string_pretty(&json!([
        log["task"], log["solver"], log["model"], log["total"], log["completed"], log["metrics"], log["scored"],
        log["sample_ids"],
    ])).unwrap(), @r#"
    [
      "questions",
      "m",
      "m",
      4,
      3,
      {
        "reward": {
          "accuracy": 0.5,
          "mean": 0.5,
          "stderr": 0.5
        },
        "exact_match": {
          "mean": 0.5,
          "stderr": 0.5
        }
      },
      {
        "reward": [
          2,
          2
        ],
        "exact_match": [
          2,
          2
        ]
      },
      [
        "q_1~dd4810e7f33e",
        "q2",
        "问题",
        "q4"
      ]
    ]
    "#);
    for line in fs::read_to_string(job.dir().join("results.jsonl")).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let mut samples = log["samples"].as_array().unwrap().iter();
        let sample = samples.find(|sample| {
            sample["messages"].to_string().contains(row["question"].as_str().unwrap())
                && sample["target"] == row["ground_truth"].as_str().unwrap_or_default()
        });
        let sample = sample.unwrap_or_else(|| panic!("{row:#}"));
        assert_eq!(sample["scores"].get("reward").unwrap_or(&Value::Null), &row["score"]);
        if !row["score"].is_null() {
            assert_eq!(sample["answers"]["reward"], row["predicted_answer"]);
        }
        assert_eq!(sample["error"].is_null(), row["error"].is_null(), "{row:#}");
    }
}

#[test]
fn the_viewer_of_inspect_lists_and_opens_the_logs() {
    let server = solver();
    let job = containers(&server);
    job.run().expect(1);
    export(&job);
    let shown = Python::new().run(include_str!("view.py"), job.root().join("out").to_str().unwrap());
    insta::assert_snapshot!(shown.trim_end(), @r#"[["set", "agent", "success", 4, "broken"], ["set", "model", "success", 4, "broken"]]"#);
}

#[test]
fn no_message_of_a_model_or_a_tool_makes_a_log_unreadable() {
    let server = answerer();
    let (job, output) = hostile(&server);
    export(&job);
    let logs = logs(&job);
    let mut sample = sample(&logs[0], logs[0]["sample_ids"][0].as_str().unwrap(), 1).clone();
    let huge = sample["messages"][4]["text"].take();
    assert_eq!(huge.as_str().unwrap(), output);
    assert_eq!(sample["events"][2]["result"].take().as_str().unwrap(), output);
    insta::assert_snapshot!(lines(&sample["messages"]), @r#"
    {"role":"system","text":"\u0000"}
    {"role":"user","text":"look\n{\"type\":\"image_url\",\"image_url\":{\"url\":\"file:///etc/passwd\"}}\n{\"type\":\"image_url\",\"image_url\":4}\n{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"AA==\",\"format\":\"ogg\"}}","parts":["text","image","image","text","text","text"]}
    {"role":"assistant","text":"","calls":[["old",{},null]]}
    {"role":"assistant","text":"","parts":["reasoning"],"calls":[["a/b",{"arguments":"{\"x\": \"\\ud800\"}"},"the arguments are not a JSON object"],["",{"arguments":"[1]"},"the arguments are not a JSON object"]]}
    {"role":"tool","text":null,"answers":["../../1","a/b"]}
    {"role":"tool","text":"?","parts":["text"],"answers":["unknown",null]}
    {"role":"tool","text":"","answers":[null,null]}
    {"role":"user","text":"go on"}
    {"role":"tool","text":"late","answers":["2",""]}
    {"role":"assistant","text":"a\n{\"type\":\"thing\",\"value\":[1]}","parts":["text","text"]}
    "#);
    insta::assert_snapshot!(lines(&sample["events"]), @r#"
    {"event":"sample_init"}
    {"event":"model","input":3,"completion":"","tools":["a/b"]}
    {"event":"tool","function":"a/b","arguments":{"arguments":"{\"x\": \"\\ud800\"}"},"result":null}
    {"event":"tool","function":"","arguments":{},"result":"[ContentText(internal=None, type='text', text='?', refusal=None, citations=None, cache_breakpoint=None)]"}
    {"event":"tool","function":"","arguments":{},"result":""}
    {"event":"tool","function":"","arguments":{"arguments":"[1]"},"result":"late"}
    {"event":"model","input":9,"completion":"a","tools":["a/b"]}
    {"event":"score","score":["reward",1.0]}
    {"event":"score","score":["numeric",1.0]}
    {"event":"score","score":["num_turns",1.0]}
    "#);
    assert_eq!(sample["scores"], json!({"reward": 1.0, "numeric": 1.0, "num_turns": 1.0}));
}
