//! Cancelling and continuing jobs.

use std::fs;

use rollout_testkit::{Gate, ModelServer, TestJob, TestTask};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

fn events_named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == name).collect()
}

#[test]
fn a_termination_signal_cancels_like_an_interrupt_and_is_reported() {
    let gate = Gate::new();
    let job = job()
        .task(TestTask::new("a-running"))
        .task(TestTask::new("b-queued"))
        .script(&gate.wait())
        .set("n_concurrent_trials", json!(1));
    let running = job.start();
    let _waiting = gate.arrival();
    running.signal("-TERM");
    let cancelled = running.finish().expect(130);
    let events = cancelled.events();
    assert_eq!(events_named(&events, "cancelling").len(), 1);
    assert_eq!(
        events_named(&events, "trial_skipped").iter().map(|event| &event["index"]).collect::<Vec<_>>(),
        [&json!(0)]
    );
    let last = events.last().unwrap();
    assert_eq!((&last["event"], &last["result"]["cancelled"]), (&json!("job_finished"), &json!(true)));
    let result = cancelled.result();
    assert_eq!((&result["cancelled"], &result["skipped_trials"]), (&json!(true), &json!(2)));
    assert!(
        result["results"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["skipped"] == true && row["reward"].is_null())
    );
}

#[test]
fn a_cancelled_job_with_a_bound_is_cancelled_and_not_unmet() {
    let gate = Gate::new();
    let job = job().task(TestTask::new("task")).script(&gate.wait());
    let running = job.start_with(&["run", "job.yaml", "--fail-under", "pass_rate=1"]);
    let _waiting = gate.arrival();
    running.signal("-INT");
    running.finish().expect(130);
}

#[test]
fn a_finished_job_has_nothing_to_resume_and_keeps_its_results() {
    let job = job().task(TestTask::new("task")).oracle();
    let finished = job.run().expect(0);
    let (trial, rows) =
        (finished.file("oracle/set/task__1/result.json"), finished.result()["results"].clone());
    let resumed = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(0);
    assert_eq!(events_named(&resumed.events(), "trial_started").len(), 0);
    assert_eq!(resumed.events()[0]["resumed_trials"], 1);
    assert_eq!(
        (resumed.file("oracle/set/task__1/result.json"), resumed.result()["results"].clone()),
        (trial, rows)
    );
}

#[test]
fn results_that_are_gone_are_written_again_from_the_journal() {
    let job = job().task(TestTask::new("task")).task(TestTask::new("wrong").tests("exit 1\n")).oracle();
    let finished = job.run().expect(1);
    let files = [
        "oracle/set/task__1/result.json",
        "oracle/set/wrong__1/result.json",
        "oracle/set/wrong__1/error.txt",
    ];
    let before = files.map(|file| finished.file(file));
    fs::remove_file(job.dir().join("result.json")).unwrap();
    for file in files {
        fs::remove_file(job.dir().join(file)).unwrap();
    }
    let resumed = job.rollout(&["resume", "jobs/job"]).expect(1);
    assert_eq!(files.map(|file| resumed.file(file)), before);
    assert_eq!(resumed.result()["results"], finished.result()["results"]);
}

#[test]
fn a_trial_that_is_run_again_leaves_nothing_of_its_first_run() {
    let job = job().task(TestTask::new("task")).script("echo kept > /logs/agent/$RANDOM$RANDOM; exit 1");
    job.run().expect(1);
    let logs = || -> Vec<_> {
        let entries = fs::read_dir(job.dir().join("agent/set/task__1/logs/agent")).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    let before = logs();
    job.rollout(&["resume", "jobs/job", "--rerun", "error"]).expect(1);
    let after = logs();
    assert_eq!((before.len(), after.len()), (1, 1));
    assert_ne!(before, after);
}

#[test]
fn resume_runs_the_same_selection_as_the_first_run() {
    let job =
        job().task(TestTask::new("a")).task(TestTask::new("b").solution("exit 1\n")).oracle().script("true");
    let arguments = ["run", "job.yaml", "--agent", "oracle", "--task", "b", "--attempts", "2"];
    job.rollout(&arguments).expect(1);
    let resumed = job.rollout(&["resume", "jobs/job", "--rerun", "error", "--output", "json"]).expect(1);
    assert_eq!(events_named(&resumed.events(), "trial_finished").len(), 2);
    assert_eq!(resumed.result()["total_trials"], 2);
}

#[test]
fn a_changed_agent_script_is_a_changed_job() {
    let job = job()
        .task(TestTask::new("task"))
        .file("agent.sh", "exit 1")
        .agent(json!({"name": "agent", "execute_file": "agent.sh"}));
    job.run().expect(1);
    let job = job.file("agent.sh", "touch /app/done");
    let refused = job.rollout(&["resume", "jobs/job", "--rerun", "error"]).expect(2);
    assert!(
        refused.stderr().contains("agents") && refused.stderr().contains("changed"),
        "{}",
        refused.stderr()
    );
}

#[test]
fn a_dataset_is_chosen_and_the_number_at_once_is_set_on_the_command_line() {
    let job = job().task(TestTask::new("task")).oracle();
    let job =
        job.set("datasets", json!([{"path": "set", "name": "small"}, {"path": "set", "name": "large"}]));
    let run = ["run", "job.yaml", "--dataset", "sm*", "--concurrency", "7", "--output", "json"];
    let finished = job.rollout(&run).expect(0);
    assert_eq!(finished.events()[0]["concurrency"], 7);
    let rows = finished.result()["results"].clone();
    assert_eq!((rows.as_array().unwrap().len(), &rows[0]["dataset_name"]), (1, &json!("small")));
}

#[test]
fn never_more_trials_run_at_once_than_the_job_allows() {
    let gate = Gate::new();
    let job = job().task(TestTask::new("task")).script(&(gate.wait() + "touch /app/done"));
    let job = job.set("n_attempts", json!(5)).set("n_concurrent_trials", json!(2));
    let running = job.start();
    let mut waiting = vec![gate.arrival(), gate.arrival()];
    for _ in 0..3 {
        let started = events_named(&running.events(), "trial_started").len();
        let over = events_named(&running.events(), "phase_started")
            .iter()
            .filter(|event| event["phase"] == "teardown")
            .count();
        assert!(started <= over + 2, "{started} started, {over} over");
        waiting.remove(0).pass();
        waiting.push(gate.arrival());
    }
    for arrival in waiting {
        arrival.pass();
    }
    assert_eq!(running.finish().expect(0).result()["completed_trials"], 5);
}

#[test]
fn piped_output_is_plain_lines() {
    let job = job().task(TestTask::new("a")).task(TestTask::new("b").tests("exit 1\n")).oracle();
    let finished = job.run().expect(1);
    let said = finished.stdout() + &finished.stderr();
    assert!(!said.contains(['\u{1b}', '\r']), "{said:?}");
    assert_eq!(said.lines().filter(|line| line.contains("oracle/set/a__1")).count(), 1, "{said}");
}

/// Every file of a job, with when it was written and what is in it.
fn written(job: &TestJob) -> Vec<(std::path::PathBuf, std::time::SystemTime, Vec<u8>)> {
    let mut found = Vec::new();
    let mut directories = vec![job.dir()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let (path, about) = entry.map(|entry| (entry.path(), entry.metadata().unwrap())).unwrap();
            match about.is_dir() {
                true => directories.push(path),
                false => found.push((path.clone(), about.modified().unwrap(), fs::read(path).unwrap())),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_resume_with_nothing_left_to_do_changes_no_file_and_shows_the_result() {
    let job = job().task(TestTask::new("a")).task(TestTask::new("b")).oracle();
    let first = job.rollout(&["run", "job.yaml", "--output", "json"]).expect(0);
    let before = written(&job);
    let resumed = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(0);
    assert_eq!(written(&job), before);
    let ends = [first, resumed].map(|run| events_named(&run.events(), "job_finished")[0]["result"].clone());
    assert_eq!(ends[0]["totals"], ends[1]["totals"]);
    fs::remove_file(job.dir().join("result.json")).unwrap();
    let mended = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(0);
    assert_eq!(mended.result()["completed_trials"], 2);
}

#[test]
fn a_resume_of_a_finished_benchmark_changes_no_file_and_shows_its_summary() {
    let server = ModelServer::arithmetic();
    let config = json!({"data_path": "questions.jsonl", "output_dir": "jobs/job", "base_url": server.url(), "model_name": "m"});
    let job = job()
        .file("questions.jsonl", r#"{"id": "q1", "question": "What is 2+2?", "answer": "4"}"#)
        .file("config.json", &config.to_string());
    let first = job.rollout(&["eval", "config.json", "--output", "json"]).expect(0);
    let before = written(&job);
    let resumed = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(0);
    assert_eq!(written(&job), before);
    let ends =
        [first, resumed].map(|run| events_named(&run.events(), "benchmark_finished")[0]["summary"].clone());
    assert_eq!(ends[0], ends[1]);
    assert_eq!(server.served(), 1);
}

#[test]
fn a_resume_of_finished_rollouts_changes_no_file_and_asks_the_model_nothing() {
    let server = ModelServer::arithmetic();
    let rows =
        json!([{"question": "What is 1+1?", "answer": "2"}, {"question": "What is 2+2?", "answer": "5"}]);
    let interaction =
        json!({"dataset": rows, "rubric": [{"match": "numeric"}], "state_columns": ["trajectory"]});
    let job = job()
        .agent(json!({"name": "model", "model": {"name": "scripted", "base_url": server.url()}}))
        .set("n_attempts", json!(2))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    let first = job.rollout(&["run", "job.yaml", "--output", "json"]).expect(0);
    assert_eq!(server.served(), 4);
    let before = written(&job);
    let resumed = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(0);
    assert_eq!(written(&job), before);
    assert_eq!(server.served(), 4);
    assert_eq!(events_named(&resumed.events(), "trial_started").len(), 0);
    let ends = [first, resumed].map(|run| events_named(&run.events(), "job_finished")[0]["result"].clone());
    assert_eq!(ends[0]["totals"], ends[1]["totals"]);
}
