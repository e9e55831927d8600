//! What a job leaves and tells: events, reports, logs, and a journal that can be continued.

use std::{collections::BTreeMap, fs, os::unix::fs::FileExt as _, process::Command};

use rollout_testkit::{Gate, TestJob, TestTask};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

#[test]
fn events_come_in_the_order_in_which_things_happen() {
    let agent = json!({"name": "agent", "install": "true", "execute": "touch /app/done"});
    let job = job()
        .task(TestTask::new("a"))
        .task(TestTask::new("b").tests("exit 1\n"))
        .oracle()
        .agent(agent)
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(3));
    let finished = job.rollout(&["run", "job.yaml", "--output", "json"]).expect(1);
    let events = finished.events();
    let (first, last) = (&events[0], &events[events.len() - 1]);
    assert_eq!(
        (&first["event"], &first["total_trials"], &first["provider"]),
        (&json!("job_started"), &json!(8), &json!("native, network host"))
    );
    assert_eq!(last["event"], "job_finished");
    assert_eq!(last["result"]["totals"]["completed_trials"], 4);

    let mut trials: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut running = 0;
    for event in &events {
        let name = event["event"].as_str().unwrap();
        running += i32::from(name == "trial_started") - i32::from(event["phase"] == "teardown");
        assert!(running <= 3, "more trials at once than the job allows");
        if let Some(index) = event["index"].as_u64() {
            trials.entry(index).or_default().push(event["phase"].as_str().unwrap_or(name).to_owned());
        }
    }
    assert_eq!(trials.len(), 8);
    for (index, reported) in trials {
        let install: &[&str] = if index < 4 { &[] } else { &["install"] };
        let expected = [
            &["trial_started", "image", "start"],
            install,
            &["execute", "verify", "collect", "teardown", "trial_finished"],
        ]
        .concat();
        assert_eq!(reported, expected, "trial {index}");
    }
    for event in events.iter().filter(|event| event["event"] == "trial_finished") {
        let row = &event["result"];
        let path =
            ["agent_name", "dataset_name", "task_name"].map(|key| row[key].as_str().unwrap()).join("/");
        let mut file = finished.trial(&format!("{path}__{}", row["attempt"]));
        file.as_object_mut().unwrap().remove("provenance").expect("only the file tells where it comes from");
        assert_eq!(*row, file, "the event holds the file");
    }
}

#[test]
fn a_junit_report_distinguishes_passed_failed_and_broken_trials() {
    let job = job()
        .task(TestTask::new("passed"))
        .task(TestTask::new("failed").solution("true\n"))
        .task(TestTask::new("broken").tests("echo '<&]]>' >&2; exit 1\n"))
        .oracle();
    job.rollout(&["run", "job.yaml", "--junit", "report.xml"]).expect(1);
    let report = fs::read_to_string(job.root().join("report.xml")).unwrap();
    let cases: Vec<&str> = report.split("<testcase").collect();
    assert!(cases[0].contains(r#"tests="3" failures="1" errors="1" skipped="0""#), "{report}");
    assert!(
        cases[1].contains("broken__1") && cases[1].contains(r#"<error type="verifier_failed""#),
        "{report}"
    );
    assert!(!report.contains("<&]]>"), "text is escaped: {report}");
    assert!(cases[2].contains("failed__1") && cases[2].contains("<failure"), "{report}");
    assert!(
        cases[3].contains("passed__1") && !cases[3].contains("<error") && !cases[3].contains("<failure"),
        "{report}"
    );
}

#[test]
fn a_junit_report_that_cannot_be_written_is_refused_before_anything_runs() {
    let job = job().task(TestTask::new("task")).oracle();
    let refused = job.rollout(&["run", "job.yaml", "--junit", "absent/report.xml"]).expect(2);
    assert!(refused.stderr().contains("absent/report.xml"), "{}", refused.stderr());
    assert!(!job.dir().exists());
}

#[test]
fn the_log_level_decides_what_the_jobs_log_holds() {
    let log = |level: &str| {
        let job = job().task(TestTask::new("task")).oracle().set("log_level", json!(level));
        let finished = job.run().expect(0);
        assert_eq!(
            finished.stderr().contains("trial started"),
            level == "info",
            "piped: {}",
            finished.stderr()
        );
        finished.file("rollout.log")
    };
    assert_eq!(log("error"), "");
    assert!(log("info").contains("oracle/set/task__1"));
}

#[test]
fn resume_is_refused_while_the_job_runs() {
    let gate = Gate::new();
    let job = job().task(TestTask::new("task")).script(&(gate.wait() + "touch /app/done"));
    let running = job.start();
    let arrival = gate.arrival();
    let refused = job.rollout(&["resume", "jobs/job"]).expect(2);
    assert!(refused.stderr().contains("hint: wait for the other process"), "{}", refused.stderr());
    arrival.pass();
    assert_eq!(running.finish().expect(0).trial("agent/set/task__1")["reward"], 1.0);
}

#[test]
fn a_journal_torn_at_any_byte_resumes_to_the_same_result() {
    let mut job = job().oracle().script("true").set("n_attempts", json!(2));
    for task in ["a", "b"] {
        job = job.task(TestTask::new(task));
    }
    let whole = job.run().expect(0);
    let journal = fs::read(job.dir().join("journal.jsonl")).unwrap();
    let rewards = |result: &Value| result["results"].clone();
    let expected = rewards(&whole.result());
    let header = journal.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let rest = journal.len() - header;
    for part in 0..=7 {
        let cut = header + rest * part / 7;
        fs::write(job.dir().join("journal.jsonl"), &journal[..cut]).unwrap();
        let resumed = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(0);
        assert_eq!(rewards(&resumed.result()), expected, "cut at {cut}");
        let again = resumed.events().iter().filter(|event| event["event"] == "trial_finished").count();
        let kept = journal[..cut].split_inclusive(|byte| *byte == b'\n');
        let kept =
            kept.filter(|line| line.starts_with(br#"{"entry":"trial""#) && line.ends_with(b"\n")).count();
        assert_eq!(again + kept, 8, "cut at {cut}: what was kept is not run again");
    }
}

#[test]
fn a_journal_torn_in_its_first_line_is_refused_and_kept() {
    let job = job().task(TestTask::new("task")).oracle();
    job.run().expect(0);
    let path = job.dir().join("journal.jsonl");
    let torn = fs::read(&path).unwrap()[..40].to_vec();
    fs::write(&path, &torn).unwrap();
    let refused = job.rollout(&["resume", "jobs/job"]).expect(2);
    assert!(refused.stderr().contains("journal"), "{}", refused.stderr());
    assert_eq!(fs::read(&path).unwrap(), torn);
}

#[test]
fn a_damaged_line_in_the_middle_is_refused_with_the_command_that_removes_it() {
    let job = job().task(TestTask::new("a")).task(TestTask::new("b")).oracle();
    job.run().expect(0);
    let path = job.dir().join("journal.jsonl");
    let mut lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    lines[2].truncate(30);
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    let refused = job.rollout(&["resume", "jobs/job"]).expect(2);
    let said = refused.stderr();
    assert!(said.contains("line 3 of the journal"), "{said}");
    let hint = said.lines().find_map(|line| line.strip_prefix("hint: ")).unwrap_or_default();
    assert!(
        hint.starts_with("restore ") && hint.ends_with("`rollout resume` then runs its trial again"),
        "{said}"
    );
    let command =
        hint.split('`').find(|text| text.starts_with("sed -i 3d ")).unwrap_or_else(|| panic!("{said}"));
    assert!(Command::new("sh").args(["-c", command]).current_dir(job.root()).status().unwrap().success());
    let resumed = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(0);
    let again = resumed.events().iter().filter(|event| event["event"] == "trial_finished").count();
    assert_eq!((again, &resumed.result()["completed_trials"]), (1, &json!(2)));
}

#[test]
fn the_evidence_of_every_try_is_kept_and_reported() {
    let gate = Gate::new();
    let job = job()
        .task(TestTask::new("task").dockerfile("FROM test\nWORKDIR /app\nRUN touch /built\n"))
        .script(&(gate.wait() + "touch /app/done"))
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(1))
        .set("retry", json!({"max_attempts": 3, "initial_delay_ms": 5}));
    let running = job.start();
    let first = gate.arrival();
    fs::rename(job.state_dir().join("layers"), job.root().join("gone")).unwrap();
    first.pass();
    let finished = running.finish().expect(1);
    let trial = "agent/set/task__2";
    assert_eq!(finished.trial(trial)["tries"], 3);
    for number in [1, 2] {
        assert!(
            finished
                .file(&format!("{trial}/tries/{number}/error.txt"))
                .starts_with("environment_start_failed")
        );
    }
    assert!(finished.file(&format!("{trial}/error.txt")).starts_with("environment_start_failed"));
    let retried: Vec<Value> = finished
        .events()
        .into_iter()
        .filter(|event| event["event"] == "trial_retried")
        .map(|event| json!([event["failed_try"], event["delay_ms"], event["error"]["type"]]))
        .collect();
    assert_eq!(
        retried,
        [json!([1, 5, "environment_start_failed"]), json!([2, 10, "environment_start_failed"])]
    );
}

#[test]
fn the_outcome_of_agent_and_tests_is_never_tried_again() {
    let job = job()
        .task(TestTask::new("a-agent").solution("exit 1\n"))
        .task(TestTask::new("b-tests").tests("exit 1\n"))
        .oracle()
        .set("retry", json!({"max_attempts": 5, "initial_delay_ms": 1}));
    let finished = job.run().expect(1);
    for task in ["a-agent", "b-tests"] {
        assert_eq!(finished.trial(&format!("oracle/set/{task}__1"))["tries"], 1, "{task}");
        assert!(!job.dir().join(format!("oracle/set/{task}__1/tries")).exists());
    }
}

#[test]
fn a_job_that_failed_everywhere_has_rates_of_zero_and_a_dash_in_the_table() {
    let job = job().task(TestTask::new("task").tests("exit 1\n")).oracle();
    let finished = job.run().expect(1);
    let result = finished.result();
    assert_eq!((&result["pass_rate"], &result["mean_reward"]), (&json!(0.0), &json!(0.0)));
    let table = finished.stdout();
    let row = table.lines().find(|line| line.starts_with("oracle ")).unwrap();
    insta::assert_snapshot!(row.split_whitespace().take(8).collect::<Vec<_>>().join(" "), @"oracle set 1 0 1 0 0 0.0%");
}

#[test]
fn a_job_directory_that_is_removed_while_the_job_runs_ends_it_with_an_error() {
    let gate = Gate::new();
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(TestTask::new("task"))
        .script(&(gate.wait() + "touch /app/done"))
        .set("n_attempts", json!(3))
        .set("n_concurrent_trials", json!(1));
    let running = job.start();
    let first = gate.arrival();
    fs::remove_dir_all(job.dir()).unwrap();
    first.pass();
    let ended = running.finish().expect(1);
    assert!(ended.stderr().contains("was removed while the job ran"), "{}", ended.stderr());
    assert!(!ended.stdout().contains("3 completed"), "{}", ended.stdout());
}

#[test]
fn a_log_that_is_too_long_is_cut_with_a_mark_and_the_summary_says_so() {
    let script =
        "cd /logs/agent; echo start > long; truncate -s 300M long; echo end >> long; touch /app/done";
    let job = job().task(TestTask::new("task")).script(script).oracle();
    let finished = job.run().expect(0);
    let summary = finished.stdout();
    let said = "logs: 1 trial has logs that were cut or left out; see `notes` in result.json";
    assert!(summary.lines().any(|line| line == said), "{summary}");
    assert_eq!(finished.result()["incomplete_log_trials"], 1);
    let (cut, whole) = (finished.trial("agent/set/task__1"), finished.trial("oracle/set/task__1"));
    assert_eq!((&cut["incomplete_logs"], whole.get("incomplete_logs")), (&json!(true), None));
    assert!(cut["notes"].to_string().contains("long: it has 314572804 bytes"), "{cut:#}");

    let kept = fs::File::open(job.dir().join("agent/set/task__1/logs/agent/long")).unwrap();
    let length = kept.metadata().unwrap().len();
    let read = |from: u64, bytes: usize| {
        let mut text = vec![0; bytes];
        kept.read_exact_at(&mut text, from).unwrap();
        String::from_utf8(text).unwrap()
    };
    assert_eq!(
        (length, read(0, 6), read(length - 4, 4)),
        (256 << 20, "start\n".to_owned(), "end\n".to_owned())
    );
    let middle = read((128 << 20) - 100, 200);
    assert!(middle.contains("\n[46137348 bytes were left out here]\n"), "{middle:?}");

    let again = job.rollout(&["resume", "jobs/job"]).expect(0);
    assert!(again.stdout().contains(said), "the journal has it too: {}", again.stdout());
}
