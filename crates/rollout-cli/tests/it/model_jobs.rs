//! How jobs of models end, and what they take while they run.

use std::{fs, time::Duration};

use rollout_testkit::{Hold, ModelReply, ModelServer, Running, TestJob};
use serde_json::{Value, json};

fn job(server: &ModelServer, interaction: Value) -> TestJob {
    job_of("m", server, interaction)
}

fn job_of(name: &str, server: &ModelServer, interaction: Value) -> TestJob {
    let model =
        json!({"name": name, "base_url": server.url(), "api_key": "a-key-of-some-length", "max_retries": 0});
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "gpt", "model": model}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]))
}

fn sums(count: usize) -> Value {
    let sums =
        (0..count).map(|n| json!({"question": format!("What is {n}+1?"), "answer": (n + 1).to_string()}));
    json!({"dataset": sums.collect::<Vec<_>>(), "rubric": [{"match": "numeric"}]})
}

fn rows(job: &TestJob) -> Vec<Value> {
    let text = fs::read_to_string(job.dir().join("outputs.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn finished(events: &[Value]) -> usize {
    events.iter().filter(|event| event["event"] == "trial_finished").count()
}

#[test]
fn a_wrong_answer_is_a_result_and_a_server_that_fails_is_a_failure() {
    let server = ModelServer::scripted(|request| match &*request.last_text() {
        "What is 0+1?" => ModelReply::text("1"),
        "What is 1+1?" => ModelReply::text("5"),
        _ => ModelReply::error(400, "no such model"),
    });
    let job = job(&server, sums(3));
    let end = job.rollout(&["run", "job.yaml"]).expect(1);
    let result = end.result();
    assert_eq!((&result["completed_trials"], &result["failed_trials"]), (&json!(2), &json!(1)), "{result:#}");
    assert_eq!(result["headline"]["excluded"]["failed_by_infrastructure"], 1);
    assert_eq!(result["headline"]["pass_rate"], 0.5);
    assert!(end.stdout().contains("no such model"), "{}", end.stdout());
    assert!(end.stdout().contains("--rerun error"), "{}", end.stdout());
    let row = rows(&job).into_iter().find(|row| row["example_id"] == 2).unwrap();
    assert_eq!((&row["reward"], &row["stop_condition"]), (&json!(0.0), &json!("has_error")));
    assert_eq!(row["error"]["error"], "ModelError");
    let metadata: Value =
        serde_json::from_slice(&fs::read(job.dir().join("metadata.json")).unwrap()).unwrap();
    assert_eq!((&metadata["avg_error"], &metadata["avg_reward"]), (&json!(1.0 / 3.0), &json!(1.0 / 3.0)));
}

#[test]
fn a_long_rollout_reports_what_it_used_and_an_unsolved_one_what_it_ended_with() {
    // Reports are a second apart.
    let server = ModelServer::always(ModelReply::text("It is 5.").delay(Duration::from_millis(1_050)));
    let job = job(&server, sums(1));
    let events = job.rollout(&["run", "job.yaml", "--output", "json"]).expect(0).events();
    let event = |name: &str| events.iter().find(|event| event["event"] == name).unwrap();
    assert_eq!(event("model_used")["used"]["turns"], 1);
    assert_eq!(event("trial_finished")["evidence"], "assistant: It is 5. (expected: 1)");
}

#[test]
fn a_job_whose_server_is_dead_stops_early_and_can_be_resumed() {
    let server = ModelServer::scripted(|_| ModelReply::error(503, "the engine is dead"));
    let job = job(&server, sums(40)).set("n_concurrent_trials", json!(1));
    let stopped = job.rollout(&["run", "job.yaml"]).expect(1);
    assert_eq!((server.served(), rows(&job).len()), (5, 5));
    let result = stopped.result();
    assert_eq!((&result["failed_trials"], &result["skipped_trials"]), (&json!(5), &json!(35)));
    assert_eq!((&result["stopped"]["failures"], &result["cancelled"]), (&json!(5), &json!(false)));
    assert_eq!(result["stopped"]["error"]["type"], "model_failed");
    let screen = stopped.stdout();
    assert!(
        screen.contains("5 trials in a row failed with the same cause, so 35 trials were not run"),
        "{screen}"
    );
    assert!(screen.contains("5 trials: model_failed: "), "{screen}");
    assert!(screen.contains("rollout resume jobs/job --rerun error"), "{screen}");
    // Beside the summary, the cause is there once: the other failures only name their kind.
    assert_eq!(screen.matches("the engine is dead").count(), 2, "{screen}");
}

#[test]
fn a_server_that_dies_in_the_middle_stops_a_job_after_twenty_failures() {
    let server = ModelServer::scripted(|request| match request.number {
        0..3 => ModelReply::text("1"),
        _ => ModelReply::error(503, "the engine is dead"),
    });
    let job = job(&server, sums(40)).set("n_concurrent_trials", json!(1));
    let stopped = job.run().expect(1);
    assert_eq!((server.served(), rows(&job).len()), (23, 23));
    assert_eq!(stopped.result()["stopped"]["failures"], 20);
    let end = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(1);
    // A run that fails from its start on stops after five.
    assert_eq!((finished(&end.events()), rows(&job).len()), (5, 28));
}

#[test]
fn a_bound_that_a_model_does_not_reach_changes_the_exit_status() {
    let server = ModelServer::always(ModelReply::text("1"));
    let job = job(&server, sums(2));
    let missed = job.rollout(&["run", "job.yaml", "--fail-under", "mean_reward=0.6"]).expect(1);
    assert!(missed.stderr().contains("mean_reward is 0.5, below 0.6"), "{}", missed.stderr());
    fs::remove_dir_all(job.dir()).unwrap();
    job.rollout(&["run", "job.yaml", "--fail-under", "mean_reward=0.5"]).expect(0);
}

#[test]
fn a_refused_key_ends_a_job_that_was_running_and_keeps_its_rows() {
    for status in [401, 403] {
        let server = ModelServer::scripted(move |request| match &*request.last_text() {
            "What is 2+1?" if request.header("authorization") == Some("Bearer a-key-of-some-length") => {
                ModelReply::error(status, "this key may not")
            }
            _ => ModelReply::text("1"),
        });
        let job = job(&server, sums(40)).set("n_concurrent_trials", json!(1));
        let refused = job.run().expect(1);
        assert!(refused.stderr().contains("this key may not"), "{}", refused.stderr());
        assert_eq!(rows(&job).len(), 2);
        assert_eq!(server.served(), 3);
    }
}

#[test]
fn an_interrupted_job_keeps_its_rows_and_is_carried_on() {
    let hold = Hold::new();
    hold.pass(5);
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("1").held(&held));
    let job = job(&server, sums(9)).set("n_concurrent_trials", json!(1));
    let mut running = job.start();
    running.until("five rollouts", |events| finished(events) == 5);
    running.signal("-INT");
    let cancelled = running.finish().expect(130);
    assert_eq!(cancelled.result()["cancelled"], true);
    assert_eq!(rows(&job).len(), 5);
    hold.open();
    let resumed = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(0);
    assert_eq!((finished(&resumed.events()), rows(&job).len()), (4, 9));
}

#[test]
fn a_group_that_an_interrupt_cut_short_has_the_advantages_of_the_whole_group_after_a_resume() {
    let hold = Hold::new();
    hold.pass(2);
    let held = hold.clone();
    let asked = std::sync::atomic::AtomicUsize::new(0);
    // The first two rollouts are right.
    let server =
        ModelServer::scripted(move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 | 1 => ModelReply::text("1").held(&held),
            _ => ModelReply::text("5").held(&held),
        });
    let mut interaction = sums(1);
    interaction["state_columns"] = json!(["advantage"]);
    let job = job(&server, interaction).set("n_attempts", json!(4)).set("n_concurrent_trials", json!(2));
    let running = job.start();
    // The others begin when the first two have ended.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(hold.waiting(2));
    running.signal("-INT");
    running.finish().expect(130);
    assert_eq!(rows(&job).len(), 2);
    hold.open();
    job.rollout(&["resume", "jobs/job"]).expect(0);
    // The later of two rows of an attempt counts.
    let advantages: std::collections::BTreeMap<_, _> = rows(&job)
        .iter()
        .map(|row| (row["attempt"].as_u64().unwrap(), row["advantage"].as_f64().unwrap()))
        .collect();
    assert_eq!(advantages, [(1, 0.5), (2, 0.5), (3, -0.5), (4, -0.5)].into());
}

#[test]
fn commands_of_an_interaction_run_beside_the_file_that_names_them() {
    let server = ModelServer::turns([ModelReply::tool_call("look", &json!({})), ModelReply::text("done")]);
    let interaction = json!({
        "dataset": [{"question": "look"}],
        "tools": [{"command": ["cat", "beside.txt"], "name": "look", "description": "Looks.", "parameters": {"type": "object"}}],
        "rubric": [{"name": "size", "command": ["sh", "-c", "wc -c < beside.txt"]}],
    });
    let inline = job(&server, interaction.clone()).file("beside.txt", "here");
    let in_a_file = job(&server, json!("words.yaml"))
        .file("words.yaml", &interaction.to_string())
        .file("beside.txt", "here");
    let below = job(&server, json!("sets/words.yaml"))
        .file("sets/words.yaml", &interaction.to_string())
        .file("sets/beside.txt", "here");
    for job in [inline, in_a_file, below] {
        job.run().expect(0);
        let row = rows(&job).remove(0);
        assert_eq!(
            (&row["completion"][1]["content"], &row["reward"]),
            (&json!("here"), &json!(4.0)),
            "{row:#}"
        );
    }
}

#[test]
fn unusable_interactions_are_refused_before_anybody_is_asked() {
    let server = ModelServer::arithmetic();
    for (interaction, words) in [
        (json!({"dataset": [], "rubric": [{"match": "exact"}]}), "dataset"),
        (json!({"dataset": [{"question": "1+1?"}], "rubric": [{"match": "guess"}]}), "guess"),
        (json!({"dataset": "missing.jsonl", "rubric": [{"match": "exact"}]}), "missing.jsonl"),
        (
            json!({"dataset": [{"question": "1+1?"}], "rubric": [{"command": ["true"], "group": true, "name": "g"}], "independent_scoring": true}),
            "independent_scoring",
        ),
    ] {
        let job = job(&server, interaction);
        let refused = job.run().expect(2);
        assert!(refused.stderr().contains(words), "{}", refused.stderr());
        assert!(!job.dir().exists());
    }
    assert_eq!(server.served(), 0);
}

/// The most memory that the command had so far, in MiB.
fn peak(running: &Running) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", running.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[test]
fn memory_does_not_grow_with_the_rows() {
    const ROLLOUTS: usize = 60;
    // More than the command has with a few rows, and less than it would have with all of them.
    const ROOM: u64 = 95;
    let hold = Hold::new();
    hold.pass(ROLLOUTS - 1);
    let held = hold.clone();
    let message = json!({"role": "assistant", "content": "0123456789abcdef".repeat(1 << 16)});
    let body = json!({
        "id": "r", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    });
    let body = body.to_string();
    let server = ModelServer::scripted(move |_| ModelReply::raw(200, body.clone()).held(&held));
    let examples: Vec<_> = (0..ROLLOUTS).map(|n| json!({"question": n.to_string(), "answer": "x"})).collect();
    let job = job(&server, json!({"dataset": examples, "rubric": [{"match": "exact"}]}))
        .set("n_concurrent_trials", json!(2));
    let mut running = job.start();
    running.until("all rows but one", |events| finished(events) == ROLLOUTS - 1);
    assert!(fs::metadata(job.dir().join("outputs.jsonl")).unwrap().len() > (ROLLOUTS as u64 - 1) << 20);
    let first = peak(&running);
    running.signal("-KILL");
    running.finish();
    let mut resumed = job.start_with(&["resume", "jobs/job", "--output", "json"]);
    resumed.until("the last one", |events| events.iter().any(|event| event["event"] == "trial_started"));
    let second = peak(&resumed);
    hold.open();
    resumed.finish().expect(0);
    assert!(first < ROOM && second < ROOM, "{first} MiB, and {second} MiB when it was resumed");
}

#[test]
fn memory_does_not_grow_with_the_text_of_planned_examples() {
    const EXAMPLES: usize = 3000;
    /// The texts have 24 MB.
    const TEXT: usize = 8000;
    /// What the plan of so many examples may add, in MiB.
    const ROOM: u64 = 18;
    let peak_of = |examples: usize| {
        let hold = Hold::new();
        let held = hold.clone();
        let server = ModelServer::scripted(move |_| ModelReply::text("1").held(&held));
        let text = "x".repeat(TEXT);
        let line = |n| format!("{}\n", json!({"question": format!("{n}: {text}"), "answer": "1"}));
        let interaction = json!({"dataset": "examples.jsonl", "rubric": [{"match": "exact"}]});
        let job = job(&server, interaction)
            .file("examples.jsonl", &(0..examples).map(line).collect::<String>())
            .set("n_concurrent_trials", json!(1));
        let mut running = job.start();
        running.until("the first one", |events| events.iter().any(|event| event["event"] == "trial_started"));
        let peak = peak(&running);
        running.signal("-KILL");
        running.finish();
        peak
    };
    let (few, many) = (peak_of(100), peak_of(EXAMPLES));
    assert!(many < few + ROOM, "{few} MiB with 100 examples, {many} MiB with {EXAMPLES}");
}

#[test]
fn two_models_behind_one_variable_are_two_agents_and_no_job_goes_on_with_the_other() {
    let server = ModelServer::arithmetic();
    let mut ids = Vec::new();
    let mut one = job_of("${MODEL}", &server, sums(2));
    for model in ["small", "large"] {
        one = one.env("MODEL", model).set("name", json!(model));
        one.rollout(&["run", "job.yaml"]).expect(0);
        let config: Value = serde_json::from_slice(
            &fs::read(one.root().join("jobs").join(model).join("config.json")).unwrap(),
        )
        .unwrap();
        assert_eq!(config["agents"][0]["model"]["name"], model);
        let log = format!("log-{model}");
        one.rollout(&["export", "eval-log", &format!("jobs/{model}"), "-o", &log]).expect(0);
        let path = one.root().join(log).join("gpt/sums/experiment_record.json");
        let record: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert_eq!(record["agent"]["llm_model"], model);
        ids.push(record["agent"]["agent_id"].clone());
    }
    assert_ne!(ids[0], ids[1]);
    let names: Vec<_> = server.requests().iter().map(|request| request.model().to_owned()).collect();
    assert_eq!(names, ["small", "small", "large", "large"]);

    let other = one.env("MODEL", "other").set("name", json!("small"));
    let refused = other.rollout(&["resume", "jobs/small"]).expect(2);
    let said = refused.stderr();
    assert!(said.contains("agents.0.model.name: was \"small\", is \"other\""), "{said}");
    let refused = job_of("${NOWHERE_SET}", &server, sums(1)).rollout(&["run", "job.yaml"]).expect(2);
    assert!(refused.stderr().contains("the variable `NOWHERE_SET` is not set"), "{}", refused.stderr());
}
