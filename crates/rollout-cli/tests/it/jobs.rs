//! What a job does: its order, its totals, cancel, retry and resume.

use std::fs;

use rollout_testkit::{Gate, TestJob, TestTask};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

/// What does not depend on when a job ran, and by which command.
fn timeless(mut result: Value) -> Value {
    match &mut result {
        Value::Object(map) => {
            for (key, value) in map {
                *value = match key.as_str() {
                    "started_at" | "ended_at" => json!("[time]"),
                    "command" => json!("[command]"),
                    key if key.ends_with("_sec") => json!("[time]"),
                    _ => timeless(value.take()),
                };
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| *value = timeless(value.take())),
        _ => {}
    }
    result
}

#[test]
fn results_are_in_enumeration_order_with_totals_by_agent() {
    let job = job()
        .task(TestTask::new("b-task"))
        .task(TestTask::new("a-task").tests("exit 1\n"))
        .oracle()
        .script("true")
        .set("n_attempts", json!(2))
        .set("metrics", json!([{"type": "mean"}, {"type": "sum"}, {"type": "min"}, {"type": "max"}]));
    let finished = job.run().expect(1);
    let mut result = timeless(finished.result());
    for key in ["statistics", "provenance"] {
        assert!(result[key].is_object(), "{key} is there");
        result[key] = json!("[checked elsewhere]");
    }
    insta::assert_json_snapshot!(result, @r#"
    {
      "job_name": "job",
      "cancelled": false,
      "total_trials": 8,
      "completed_trials": 4,
      "failed_trials": 4,
      "skipped_trials": 0,
      "pass_rate": 0.5,
      "mean_reward": 0.5,
      "headline": {
        "pass_rate": 0.25,
        "mean_reward": 0.25,
        "solved_trials": 2,
        "counted_trials": 8,
        "counted": {
          "scored": 4,
          "failed_by_agent": 0,
          "failed_by_verifier": 4
        },
        "excluded": {
          "failed_by_infrastructure": 0,
          "failed_by_task": 0,
          "unscored": 0,
          "skipped": 0
        },
        "pass_thresholds": {
          "set": 1.0
        }
      },
      "total_cost": 0.0,
      "environment_cost": 0.0,
      "model_cost": null,
      "restarted_trials": 0,
      "incomplete_log_trials": 0,
      "total_duration_sec": "[time]",
      "started_at": "[time]",
      "ended_at": "[time]",
      "agents": {
        "oracle": {
          "total_trials": 4,
          "completed_trials": 2,
          "failed_trials": 2,
          "skipped_trials": 0,
          "pass_rate": 1.0,
          "mean_reward": 1.0,
          "headline": {
            "pass_rate": 0.5,
            "mean_reward": 0.5,
            "solved_trials": 2,
            "counted_trials": 4,
            "counted": {
              "scored": 2,
              "failed_by_agent": 0,
              "failed_by_verifier": 2
            },
            "excluded": {
              "failed_by_infrastructure": 0,
              "failed_by_task": 0,
              "unscored": 0,
              "skipped": 0
            }
          },
          "total_cost": 0.0,
          "environment_cost": 0.0,
          "model_cost": null,
          "metrics": {
            "mean": 1.0,
            "sum": 2.0,
            "min": 1.0,
            "max": 1.0
          }
        },
        "agent": {
          "total_trials": 4,
          "completed_trials": 2,
          "failed_trials": 2,
          "skipped_trials": 0,
          "pass_rate": 0.0,
          "mean_reward": 0.0,
          "headline": {
            "pass_rate": 0.0,
            "mean_reward": 0.0,
            "solved_trials": 0,
            "counted_trials": 4,
            "counted": {
              "scored": 2,
              "failed_by_agent": 0,
              "failed_by_verifier": 2
            },
            "excluded": {
              "failed_by_infrastructure": 0,
              "failed_by_task": 0,
              "unscored": 0,
              "skipped": 0
            }
          },
          "total_cost": 0.0,
          "environment_cost": 0.0,
          "model_cost": null,
          "metrics": {
            "mean": 0.0,
            "sum": 0.0,
            "min": 0.0,
            "max": 0.0
          }
        }
      },
      "provenance": "[checked elsewhere]",
      "statistics": "[checked elsewhere]",
      "results": [
        {
          "task_name": "a-task",
          "dataset_name": "set",
          "agent_name": "oracle",
          "attempt": 1,
          "task_git_commit_id": null,
          "reward": null,
          "error": "verifier_failed"
        },
        {
          "task_name": "a-task",
          "dataset_name": "set",
          "agent_name": "oracle",
          "attempt": 2,
          "task_git_commit_id": null,
          "reward": null,
          "error": "verifier_failed"
        },
        {
          "task_name": "b-task",
          "dataset_name": "set",
          "agent_name": "oracle",
          "attempt": 1,
          "task_git_commit_id": null,
          "reward": 1.0,
          "error": null
        },
        {
          "task_name": "b-task",
          "dataset_name": "set",
          "agent_name": "oracle",
          "attempt": 2,
          "task_git_commit_id": null,
          "reward": 1.0,
          "error": null
        },
        {
          "task_name": "a-task",
          "dataset_name": "set",
          "agent_name": "agent",
          "attempt": 1,
          "task_git_commit_id": null,
          "reward": null,
          "error": "verifier_failed"
        },
        {
          "task_name": "a-task",
          "dataset_name": "set",
          "agent_name": "agent",
          "attempt": 2,
          "task_git_commit_id": null,
          "reward": null,
          "error": "verifier_failed"
        },
        {
          "task_name": "b-task",
          "dataset_name": "set",
          "agent_name": "agent",
          "attempt": 1,
          "task_git_commit_id": null,
          "reward": 0.0,
          "error": null
        },
        {
          "task_name": "b-task",
          "dataset_name": "set",
          "agent_name": "agent",
          "attempt": 2,
          "task_git_commit_id": null,
          "reward": 0.0,
          "error": null
        }
      ]
    }
    "#);
}

#[test]
fn a_job_directory_is_never_overwritten() {
    let job = job().task(TestTask::new("task")).oracle();
    let before = job.run().expect(0).file("result.json");
    let second = job.run().expect(2);
    assert!(second.stderr().contains("rollout resume"), "{}", second.stderr());
    assert_eq!(second.file("result.json"), before);
}

#[test]
fn unnamed_jobs_started_in_one_second_get_directories_of_their_own() {
    let job = job().task(TestTask::new("task")).oracle().set("name", Value::Null);
    let mut running: Vec<_> =
        (0..3).map(|_| job.command(&["run", "job.yaml"]).spawn().expect("start the command")).collect();
    for child in &mut running {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(fs::read_dir(job.root().join("jobs")).unwrap().count(), 3);
}

#[test]
fn the_first_interrupt_stops_the_job_in_good_order_and_resume_completes_it() {
    let gate = Gate::new();
    let job = job()
        .task(TestTask::new("a-quick"))
        .task(TestTask::new("b-slow"))
        .task(TestTask::new("c-queued"))
        .script(&format!(
            "touch /app/done; case $ROLLOUT_TRIAL in *b-slow*) {} ;; esac",
            gate.wait().trim_end()
        ))
        .set("n_concurrent_trials", json!(1));
    let running = job.start();
    let waiting = gate.arrival();
    running.signal("-INT");
    let cancelled = running.finish().expect(130);
    drop(waiting);
    let result = cancelled.result();
    assert_eq!(result["cancelled"], true);
    assert_eq!(
        (&result["completed_trials"], &result["skipped_trials"], &result["failed_trials"]),
        (&json!(1), &json!(2), &json!(0))
    );
    assert_eq!(
        result["results"][1],
        json!({
            "task_name": "b-slow", "dataset_name": "set", "agent_name": "agent", "attempt": 1,
            "task_git_commit_id": null, "reward": null, "error": null, "skipped": true,
        })
    );
    assert!(!job.dir().join("agent/set/b-slow__1/result.json").exists());
    assert_eq!(job.environments(), Vec::<std::path::PathBuf>::new(), "nothing runs on");

    let first = cancelled.file("agent/set/a-quick__1/result.json");
    let resumed = std::thread::scope(|scope| {
        let resumed = scope.spawn(|| job.rollout(&["resume", "jobs/job"]));
        gate.arrival().pass();
        resumed.join().unwrap()
    })
    .expect(0);
    let result = resumed.result();
    assert_eq!(
        (&result["cancelled"], &result["completed_trials"], &result["skipped_trials"]),
        (&json!(false), &json!(3), &json!(0))
    );
    assert_eq!(resumed.file("agent/set/a-quick__1/result.json"), first, "what was finished is not run again");
}

#[test]
fn the_second_interrupt_stops_at_once() {
    let gate = Gate::new();
    let job = job().task(TestTask::new("task")).script(&gate.wait());
    let running = job.start();
    let _waiting = gate.arrival();
    running.signal("-INT");
    running.signal("-INT");
    running.finish().expect(130);
    job.rollout(&["clean"]).expect(0);
    // The helper outlives the command for a moment, and removes what `clean` saw it still hold.
    job.expect_nothing_left();
}

#[test]
fn a_resumed_job_ends_with_the_result_of_an_uninterrupted_one() {
    let tasks = ["a", "b", "c", "d"];
    let mut whole = job().oracle().set("n_concurrent_trials", json!(2));
    for task in tasks {
        whole = whole.task(TestTask::new(task));
    }
    let expected = timeless(whole.run().expect(0).result());
    // What a kill leaves: a journal that ends in the middle of a line, and no aggregate.
    let journal = whole.dir().join("journal.jsonl");
    let text = fs::read(&journal).unwrap();
    let lines: Vec<usize> =
        text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
    fs::write(&journal, &text[..lines[3] + 25]).unwrap();
    fs::remove_file(whole.dir().join("result.json")).unwrap();
    let resumed = whole.rollout(&["resume", "jobs/job"]).expect(0);
    assert_eq!(timeless(resumed.result()), expected);
}

#[test]
fn resume_refuses_a_changed_configuration_and_names_the_difference() {
    let job = job().task(TestTask::new("task")).oracle();
    job.run().expect(0);
    let changed = job.set("timeout_multiplier", json!(2.0));
    let refused = changed.rollout(&["resume", "jobs/job"]).expect(2);
    assert!(refused.stderr().contains("timeout_multiplier: was 1.0, is 2.0"), "{}", refused.stderr());
}

#[test]
fn resume_refuses_changed_tasks_and_names_them() {
    let job = job().task(TestTask::new("task")).oracle();
    job.run().expect(0);
    fs::write(job.root().join("set/task/tests/test.sh"), "echo 1 > /logs/verifier/reward.txt\n").unwrap();
    let refused = job.rollout(&["resume", "jobs/job"]).expect(2);
    assert!(refused.stderr().contains("set/task"), "{}", refused.stderr());
}

#[test]
fn resume_reruns_the_trials_that_the_option_selects() {
    let job = job()
        .task(TestTask::new("a-solved"))
        .task(TestTask::new("b-unsolved").solution("true\n"))
        .task(TestTask::new("c-error").solution("exit 1\n"))
        .oracle();
    job.run().expect(1);
    let finished_again = |rerun: &str| -> Vec<String> {
        let resumed = job.rollout(&["resume", "jobs/job", "--rerun", rerun, "--output", "json"]).expect(1);
        let events = resumed.stdout();
        let names = events
            .lines()
            .map(|line| line.parse::<Value>().unwrap())
            .filter(|event| event["event"] == "trial_finished");
        let mut names: Vec<_> =
            names.map(|event| event["result"]["task_name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(finished_again("missing"), Vec::<String>::new());
    assert_eq!(finished_again("error"), ["c-error"]);
    assert_eq!(finished_again("unsolved"), ["b-unsolved", "c-error"]);
    assert_eq!(finished_again("missing,error"), ["c-error"]);
}

#[test]
fn a_job_resumes_from_its_own_copy_when_the_job_file_is_gone() {
    let job = job().task(TestTask::new("task").solution("exit 1\n")).oracle();
    job.run().expect(1);
    let mut command = job.command(&["resume", "jobs/job", "--rerun", "error"]);
    fs::remove_file(job.root().join("job.yaml")).unwrap();
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_selection_runs_a_part_of_the_job() {
    let job = job().task(TestTask::new("alpha")).task(TestTask::new("beta")).oracle().script("true");
    let names = |arguments: &[&str], name: &str| -> Vec<String> {
        let set = format!("name={name}");
        let all = [&["run", "job.yaml", "--set", &set], arguments].concat();
        job.rollout(&all).expect(0);
        let result = fs::read_to_string(job.root().join(format!("jobs/{name}/result.json"))).unwrap();
        let result: Value = result.parse().unwrap();
        let rows = result["results"].as_array().unwrap();
        rows.iter()
            .map(|row| {
                format!(
                    "{}/{}__{}",
                    row["agent_name"].as_str().unwrap(),
                    row["task_name"].as_str().unwrap(),
                    row["attempt"]
                )
            })
            .collect()
    };
    assert_eq!(names(&["--agent", "ora*"], "one"), ["oracle/alpha__1", "oracle/beta__1"]);
    assert_eq!(
        names(&["--task", "b*", "--attempts", "2"], "two"),
        ["oracle/beta__1", "oracle/beta__2", "agent/beta__1", "agent/beta__2"]
    );
    assert_eq!(names(&["--limit", "1", "--agent", "agent"], "three"), ["agent/alpha__1"]);
    let none = job.rollout(&["run", "job.yaml", "--task", "nothing*"]).expect(2);
    assert!(none.stderr().contains("alpha, beta"), "{}", none.stderr());
}

#[test]
fn a_dry_run_shows_the_plan_and_leaves_nothing() {
    let job = job().task(TestTask::new("task")).oracle().set("n_attempts", json!(3));
    let shown = job.rollout(&["run", "job.yaml", "--dry-run"]).expect(0);
    assert!(shown.stdout().contains('3'), "{}", shown.stdout());
    assert!(!job.root().join("jobs").exists());
}

#[test]
fn fail_under_makes_a_low_pass_rate_fail_the_command() {
    let job = job().task(TestTask::new("solved")).task(TestTask::new("unsolved").solution("true\n")).oracle();
    job.rollout(&["run", "job.yaml", "--fail-under", "pass_rate=0.5"]).expect(0);
    job.rollout(&["run", "job.yaml", "--set", "name=again", "--fail-under", "pass_rate=0.9"]).expect(1);
}

#[test]
fn a_full_disk_stops_the_job_and_loses_nothing_that_was_reported() {
    let mut job = job()
        .script("head -c 200000 /dev/urandom > /logs/agent/bulk; touch /app/done")
        .set("n_concurrent_trials", json!(1));
    for number in 0..20 {
        job = job.task(TestTask::new(&format!("task-{number:02}")));
    }
    let mut command = job.command(&["run", "job.yaml", "--output", "json"]);
    fs::create_dir(job.root().join("jobs")).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(job.root().join("jobs"))
        .status()
        .unwrap();
    assert!(mounted.success(), "mounting needs root");
    let output = command.output().unwrap();
    let reported: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| line.parse::<Value>().unwrap())
        .filter(|event| event["event"] == "trial_finished")
        .map(|event| event["index"].clone())
        .collect();
    let journal = fs::read_to_string(job.dir().join("journal.jsonl")).unwrap();
    let kept: Vec<Value> = journal
        .lines()
        .filter_map(|line| line.parse::<Value>().ok())
        .filter(|entry| entry["entry"] == "trial")
        .map(|entry| entry["index"].clone())
        .collect();
    let _ = std::process::Command::new("umount").arg(job.root().join("jobs")).status();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("rollout resume"),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!reported.is_empty() && reported.len() < 20, "{} were reported", reported.len());
    assert!(reported.iter().all(|index| kept.contains(index)), "reported {reported:?}, kept {kept:?}");
}

#[test]
fn a_cancelled_rerun_leaves_the_earlier_record_as_it_was() {
    let gate = Gate::new();
    let script = format!("echo first; {}exit 1", gate.wait());
    let job = job().task(TestTask::new("task")).script(&script);
    let first = std::thread::scope(|scope| {
        let first = scope.spawn(|| job.run());
        gate.arrival().pass();
        first.join().unwrap()
    })
    .expect(1);
    let (result, output) =
        (first.file("agent/set/task__1/result.json"), first.file("agent/set/task__1/command/stdout.txt"));
    let running = job.start_with(&["resume", "jobs/job", "--rerun", "error", "--output", "json"]);
    let _waiting = gate.arrival();
    running.signal("-INT");
    let cancelled = running.finish().expect(130);
    assert_eq!(cancelled.file("agent/set/task__1/result.json"), result);
    assert_eq!(cancelled.file("agent/set/task__1/command/stdout.txt"), output);
    assert_eq!(cancelled.result()["failed_trials"], 1);
}

#[test]
fn a_rerun_that_ends_takes_the_place_of_the_earlier_result() {
    let job = job().task(TestTask::new("task").solution("exit 1\n")).oracle();
    job.run().expect(1);
    let again = job.rollout(&["resume", "jobs/job", "--rerun", "error"]).expect(1);
    assert!(!job.dir().join("oracle/set/task__1/earlier").exists());
    let before = again.file("oracle/set/task__1/result.json");
    // What a kill between the journal and the file leaves.
    fs::remove_file(job.dir().join("oracle/set/task__1/result.json")).unwrap();
    let restored = job.rollout(&["resume", "jobs/job"]).expect(1);
    assert_eq!(restored.file("oracle/set/task__1/result.json"), before);
}

#[test]
fn a_result_that_cannot_be_written_stops_the_job() {
    let gate = Gate::new();
    let job = job()
        .task(TestTask::new("task"))
        .script(&gate.wait())
        .set("n_attempts", json!(8))
        .set("n_concurrent_trials", json!(8));
    let running = job.start();
    let arrivals: Vec<_> = (0..8).map(|_| gate.arrival()).collect();
    fs::create_dir(job.dir().join("agent/set/task__1/result.json.tmp")).unwrap();
    arrivals.into_iter().for_each(rollout_testkit::Arrival::pass);
    let stopped = running.finish().expect(1);
    assert!(stopped.stderr().contains("result.json"), "{}", stopped.stderr());
}

#[test]
fn a_reader_that_is_gone_before_the_start_cancels_the_job() {
    for _ in 0..5 {
        let job = job().task(TestTask::new("task")).oracle();
        let mut child =
            job.command(&["run", "job.yaml"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(130));
    }
}

#[test]
fn a_misspelt_selection_is_refused_even_beside_a_right_one() {
    let job = job().task(TestTask::new("task")).oracle();
    let refused = job.rollout(&["run", "job.yaml", "--agent", "oracle", "--agent", "orcale"]).expect(2);
    assert!(refused.stderr().contains("orcale"), "{}", refused.stderr());
}
