//! Awkward and hostile contents of an environment, as root and as an ordinary user.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, os::unix::fs::PermissionsExt as _, process::Stdio};

use rollout_testkit::{Gate, TestJob, TestTask};
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

/// What an agent may do to make collecting and removing hard.
const MESS: &str = "cd /logs/agent
    truncate -s 1T sparse
    mkdir locked && echo x > locked/file && chmod 000 locked/file locked
    echo x > $'new\\nline'; echo x > $'not-utf8-\\377'; echo x > -rf
    ln -s loop loop; mkdir real; ln -s . real/again; ln file hard 2>/dev/null
    cd /app; i=0; while [ $i -lt 250 ]; do mkdir a-directory-with-a-name && cd a-directory-with-a-name || break; i=$((i + 1)); done
    cd /logs/agent; i=0; while [ $i -lt 220 ]; do mkdir deep-deep-deep-deep && cd deep-deep-deep-deep || break; i=$((i + 1)); done
    mkdir -p /app/closed/inner && touch /app/closed/inner/x && chmod 000 /app/closed/inner /app/closed
    touch /app/done";

#[test]
fn a_mess_is_collected_as_far_as_possible_and_removed_altogether() {
    let job = job().task(TestTask::new("task")).script(MESS);
    let finished = job.run().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null));
    assert!(result["notes"].to_string().contains("sparse"), "{result:#}");
    assert_eq!(finished.file("agent/set/task__1/logs/agent/new\nline"), "x\n");
    assert!(!job.dir().join("agent/set/task__1/logs/agent/sparse").exists());
    job.expect_nothing_left();
}

#[test]
fn a_mess_is_removed_by_an_ordinary_user_too() {
    let job = job().task(TestTask::new("task")).script(MESS);
    let output = job.command_as_nobody(&["run", "job.yaml"]).output().unwrap();
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
    let mut child = job.command_as_nobody(&["run", "job.yaml"]).stdout(Stdio::null()).spawn().unwrap();
    let waiting = [gate.arrival(), gate.arrival()];
    child.kill().unwrap();
    child.wait().unwrap();
    drop(waiting);
    job.expect_nothing_running();
    let mut resumed = job.command_as_nobody(&["resume", "jobs/job"]).stdout(Stdio::null()).spawn().unwrap();
    for _ in 0..2 {
        gate.arrival().pass();
    }
    assert!(resumed.wait().unwrap().success());
    assert_eq!(trial(&job, "agent/set/task__2")["reward"], 1.0);
    job.expect_nothing_left();
}

#[test]
fn an_ordinary_user_is_told_which_limits_do_not_hold() {
    let job = job().task(TestTask::new("task")).oracle();
    let output = job.command_as_nobody(&["run", "job.yaml"]).output().unwrap();
    let result = trial(&job, "oracle/set/task__1");
    let enforced = result["environment"]["enforced"].as_object().unwrap();
    assert_eq!(enforced.keys().collect::<Vec<_>>(), ["cpus", "memory", "pids", "storage"]);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let unheld = enforced.iter().filter(|(limit, held)| *limit != "storage" && **held == false).count();
    assert_eq!(said.matches("are not enforced").count(), unheld, "each is told once: {said}");
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
fn scripts_need_no_executable_bit() {
    let job = job()
        .task(
            TestTask::new("task")
                .file("tests/lib/more.sh", "echo 1\n")
                .tests("/tests/lib/more.sh > /logs/verifier/reward.txt\n"),
        )
        .oracle();
    for script in ["tests/test.sh", "solution/solve.sh"] {
        fs::set_permissions(job.root().join("set/task").join(script), fs::Permissions::from_mode(0o644))
            .unwrap();
    }
    assert_eq!(job.run().expect(0).trial("oracle/set/task__1")["reward"], 1.0, "and others keep theirs");
}

#[test]
fn a_process_that_the_tests_leave_does_not_hold_up_the_trial() {
    let task = TestTask::new("task").tests("(sleep 600; echo never) & echo 1 > /logs/verifier/reward.txt\n");
    let job = job().task(task).oracle();
    assert_eq!(job.run().expect(0).trial("oracle/set/task__1")["reward"], 1.0);
    job.expect_nothing_left();
}

#[test]
fn a_process_that_the_install_script_leaves_serves_the_agent() {
    let install = "mkfifo /tmp/in; (cat /tmp/in > /app/done) & true";
    let agent = json!({"name": "agent", "install": install, "execute": "echo hello > /tmp/in; while [ ! -s /app/done ]; do :; done"});
    let task = TestTask::new("task").tests("grep -c hello /app/done > /logs/verifier/reward.txt\n");
    assert_eq!(job().task(task).agent(agent).run().expect(0).trial("agent/set/task__1")["reward"], 1.0);
}

#[test]
fn a_timeout_ends_the_agent_after_the_multiplied_time() {
    let task = TestTask::new("task").config("[agent]\ntimeout_sec = 0.2\ninstall_timeout_sec = 9\n");
    let job = job().task(task).script("trap '' TERM; sleep 600").set("timeout_multiplier", json!(2.0));
    let result = job.run().expect(1).trial("agent/set/task__1");
    assert_eq!(result["error"]["type"], "agent_execution_timeout");
    assert!(result["error"]["message"].as_str().unwrap().contains("0.4 seconds"), "{result:#}");
    assert!(result["durations"]["agent_execution_sec"].as_f64().unwrap() >= 0.4);
}

#[test]
fn paths_with_blanks_and_strange_letters_work_everywhere() {
    let job = job().task(TestTask::new("a task: ünïcode")).oracle();
    let job = job.set("name", json!("the job, №1")).set("jobs_dir", json!("all my jobs"));
    job.run().expect(0);
    let dir = job.root().join("all my jobs/the job, №1");
    assert!(dir.join("oracle/set/a task: ünïcode__1/result.json").is_file());
    job.rollout(&["resume", dir.to_str().unwrap()]).expect(0);
}
