//! Kills and interrupts in the middle, and jobs of an ordinary user.

use std::{fs, process::Stdio};

use rollout_testkit::{Gate, TestJob, TestTask, conformance::hostile::MESS};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

#[track_caller]
fn trial(job: &TestJob, path: &str) -> Value {
    let path = job.dir().join(path).join("result.json");
    serde_json::from_slice(&fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        .unwrap()
}

#[test]
fn a_mess_is_removed_by_an_ordinary_user_too() {
    let job = job().task(TestTask::new("task")).script(MESS);
    let output = job.command_as_user(&["run", "job.yaml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let result = trial(&job, "agent/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null), "{result:#}");
    job.expect_nothing_left();
}

#[test]
fn a_kill_of_an_ordinary_users_job_leaves_nothing_and_resume_completes_it() {
    let gate = Gate::new();
    let job = job()
        .task(TestTask::new("task"))
        .script(&(gate.wait() + "touch /app/done"))
        .set("n_attempts", json!(2));
    let mut child = job.command_as_user(&["run", "job.yaml"]).stdout(Stdio::null()).spawn().unwrap();
    let waiting = [gate.arrival(), gate.arrival()];
    child.kill().unwrap();
    child.wait().unwrap();
    drop(waiting);
    job.expect_nothing_running();
    let mut resumed = job.command_as_user(&["resume", "jobs/job"]).stdout(Stdio::null()).spawn().unwrap();
    for _ in 0..2 {
        gate.arrival().pass();
    }
    assert!(resumed.wait().unwrap().success());
    assert_eq!(trial(&job, "agent/set/task__2")["reward"], 1.0);
    job.expect_nothing_left();
}

#[test]
fn an_ordinary_user_sees_which_limits_are_not_enforced() {
    let job = job().task(TestTask::new("task")).oracle();
    let output = job.command_as_user(&["run", "job.yaml"]).output().unwrap();
    let result = trial(&job, "oracle/set/task__1");
    let enforced = result["environment"]["enforced"].as_object().unwrap();
    assert_eq!(enforced.keys().collect::<Vec<_>>(), ["cpus", "memory", "pids", "storage"]);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let unheld = enforced.iter().filter(|(limit, held)| *limit != "storage" && **held == false).count();
    assert_eq!(said.matches("are not enforced").count(), unheld, "each is reported once: {said}");
}

#[test]
fn a_job_killed_while_it_builds_leaves_nothing_and_the_next_one_builds() {
    let gate = Gate::new();
    let wait = gate.wait().trim_end().to_owned();
    let task = TestTask::new("task").dockerfile(&format!(
        "FROM test\nSHELL [\"/bin/bash\", \"-c\"]\nWORKDIR /app\nRUN {wait}; echo built > /built\n"
    ));
    let job = job().task(task.solution("cat /built && touch /app/done\n")).oracle();
    let running = job.start();
    let _waiting = gate.arrival();
    running.signal("-KILL");
    running.finish();
    let journal = job.dir().join("journal.jsonl");
    assert!(journal.exists());
    let resumed = std::thread::scope(|scope| {
        let resumed = scope.spawn(|| job.rollout(&["resume", "jobs/job"]));
        gate.arrival().pass();
        resumed.join().unwrap()
    })
    .expect(0);
    assert_eq!(resumed.trial("oracle/set/task__1")["reward"], 1.0);
    job.expect_nothing_left();
}

#[test]
fn an_interrupt_while_it_builds_stops_the_build() {
    let gate = Gate::new();
    let wait = gate.wait().trim_end().to_owned();
    let task =
        TestTask::new("task").dockerfile(&format!("FROM test\nSHELL [\"/bin/bash\", \"-c\"]\nRUN {wait}\n"));
    let job = job().task(task).oracle();
    let running = job.start();
    let _waiting = gate.arrival();
    running.signal("-INT");
    let cancelled = running.finish().expect(130);
    assert_eq!(cancelled.result()["skipped_trials"], 1);
    job.expect_nothing_left();
}

#[test]
fn of_two_resumes_at_once_one_is_refused() {
    let gate = Gate::new();
    let job = job().task(TestTask::new("task")).script(&(gate.wait() + "touch /app/done"));
    let first = job.start();
    let waiting = gate.arrival();
    first.signal("-KILL");
    first.finish();
    drop(waiting);
    let resumed = job.start_with(&["resume", "jobs/job", "--output", "json"]);
    let arrival = gate.arrival();
    job.rollout(&["resume", "jobs/job"]).expect(2);
    arrival.pass();
    assert_eq!(resumed.finish().expect(0).result()["completed_trials"], 1);
}

#[test]
fn a_job_whose_path_has_blanks_and_strange_letters_can_be_resumed() {
    let job = job().task(TestTask::new("a task: ünïcode")).oracle();
    let job = job.set("name", json!("the job, №1")).set("jobs_dir", json!("all my jobs"));
    job.run().expect(0);
    let dir = job.root().join("all my jobs/the job, №1");
    assert!(dir.join("oracle/set/a task: ünïcode__1/result.json").is_file());
    job.rollout(&["resume", dir.to_str().unwrap()]).expect(0);
}
