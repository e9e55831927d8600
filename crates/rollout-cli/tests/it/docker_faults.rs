//! Docker jobs that are killed, cancelled, or lose their engine: nothing is lost, and nothing stays.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt as _, path::Path};

use rollout_testkit::{Finished, Gate, OwnEngine, TestEngine, TestJob, TestTask, until};
use serde_json::{Value, json};

fn job(engine: &TestEngine) -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout")).on(engine)
}

/// Starts a job whose four trials wait, and kills the command. Trials do not wait if the gate does not exist.
fn kill_in_the_middle(engine: &TestEngine, task: &str) -> TestJob {
    let gate = Gate::new();
    let job = job(engine)
        .task(TestTask::new(task))
        .script(&format!("({}) || true\ntouch /app/done", gate.wait()))
        .set("n_attempts", json!(4))
        .set("n_concurrent_trials", json!(4));
    let running = job.start();
    let waiting: Vec<_> = (0..4).map(|_| gate.arrival()).collect();
    assert_eq!(engine.running().iter().filter(|name| name.contains(task)).count(), 4);
    running.signal("-KILL");
    running.finish();
    // Without the other end of the connection, the processes inside end by themselves.
    until("all containers stop", || !engine.running().iter().any(|name| name.contains(task)));
    drop(waiting);
    job
}

#[test]
fn after_a_kill_clean_leaves_containers_networks_and_volumes_as_they_were() {
    let own = OwnEngine::start();
    let engine = own.engine();
    engine.docker(&["create", "--name", "unrelated", "test", "true"]);
    let before = engine.holdings();
    let job = kill_in_the_middle(engine, "killed");
    let killed = engine.holdings();
    assert_eq!(killed.containers.len(), before.containers.len() + 4);
    job.rollout(&["clean", "--dry-run"]).expect(0);
    assert_eq!(engine.holdings(), killed);
    job.rollout(&["clean"]).expect(0);
    assert_eq!(engine.holdings(), before);
}

#[test]
fn the_next_job_removes_what_a_killed_one_left_and_nothing_else() {
    let own = OwnEngine::start();
    let engine = own.engine();
    engine.docker(&["create", "--name", "unrelated", "test", "true"]);
    let before = engine.holdings();
    kill_in_the_middle(engine, "swept");
    assert_eq!(engine.containers().len(), before.containers.len() + 4);
    job(engine).task(TestTask::new("next")).oracle().run().expect(0);
    assert_eq!(engine.holdings(), before);
}

#[test]
fn a_killed_job_is_completed_by_resume() {
    let engine = TestEngine::shared();
    let killed = kill_in_the_middle(&engine, "resumed");
    let resumed = killed.rollout(&["resume", "jobs/job"]).expect(0);
    assert_eq!(resumed.result()["completed_trials"], 4);
    engine.expect_no_container("resumed");
}

#[test]
fn a_job_that_starts_or_cleans_touches_nothing_of_one_that_runs() {
    let own = OwnEngine::start();
    let engine = own.engine();
    let before = engine.holdings();
    let gate = Gate::new();
    let first = job(engine).task(TestTask::new("first")).script(&format!("{}touch /app/done", gate.wait()));
    let running = first.start();
    let waiting = gate.arrival();
    let second = job(engine).task(TestTask::new("second")).set("n_attempts", json!(3)).oracle();
    second.run().expect(0);
    second.rollout(&["clean"]).expect(0);
    let left: BTreeSet<_> = engine.containers().difference(&before.containers).cloned().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    waiting.pass();
    let finished = running.finish().expect(0);
    assert_eq!(finished.trial("agent/set/first__1")["reward"], 1.0);
    assert_eq!(engine.holdings(), before);
}

#[test]
fn one_interrupt_tears_down_what_runs_and_two_end_at_once_and_neither_leaves_anything() {
    for (task, interrupts) in [("interrupted-once", 1), ("interrupted-twice", 2)] {
        let engine = TestEngine::shared();
        let gate = Gate::new();
        let job = job(&engine)
            .task(TestTask::new(task))
            .script(&gate.wait())
            .set("n_attempts", json!(3))
            .set("n_concurrent_trials", json!(2));
        let mut running = job.start();
        let _waiting = [gate.arrival(), gate.arrival()];
        for number in 0..interrupts {
            if number > 0 && !running.is_running() {
                break;
            }
            running.signal("-INT");
        }
        let cancelled = running.finish().expect(130);
        assert_eq!(cancelled.result()["cancelled"], true);
        assert_eq!(cancelled.result()["skipped_trials"], 3);
        if interrupts > 1 {
            job.rollout(&["clean"]).expect(0);
        }
        engine.expect_no_container(task);
    }
}

/// Runs thirty trials and does something to the engine when some of them are through and others in the middle.
fn outage(own: &mut OwnEngine, task: &str, outage: impl FnOnce(&mut OwnEngine)) -> Finished {
    let gate = Gate::new();
    let job = job(own.engine())
        .task(TestTask::new(task))
        // A script does not wait for a gate that no longer exists.
        .script(&format!("( {} ) 2> /dev/null; touch /app/done", gate.wait().trim_end()))
        .set("n_attempts", json!(30))
        .set("n_concurrent_trials", json!(6))
        .set("retry", json!({"max_attempts": 8, "initial_delay_ms": 200, "max_delay_ms": 3000}));
    let mut running = job.start();
    for _ in 0..6 {
        gate.arrival().pass();
    }
    running.until("six finished trials", |events| {
        events.iter().filter(|event| event["event"] == "trial_finished").count() >= 6
    });
    let in_the_middle = gate.arrival();
    outage(own);
    drop((in_the_middle, gate));
    let finished = running.finish();
    assert!([0, 1].contains(&finished.code()), "{}", finished.stderr());
    finished
}

/// Every trial is in the results once: completed, or with an error of the infrastructure that was tried again.
#[track_caller]
fn expect_nothing_lost(finished: &Finished) {
    let result = finished.result();
    let rows = result["results"].as_array().unwrap();
    assert_eq!(rows.len(), 30);
    let attempts: BTreeSet<_> = rows.iter().map(|row| row["attempt"].as_u64().unwrap()).collect();
    assert_eq!(attempts.len(), 30);
    let mut again = 0;
    for attempt in attempts {
        let trial = finished.trial(&trial_of(rows, attempt));
        again += usize::from(trial["tries"].as_u64().unwrap() > 1);
        if trial["reward"] == 1.0 {
            continue;
        }
        let kind = trial["error"]["type"].as_str().unwrap();
        assert!(
            ["environment_start_failed", "environment_image_pull_failed", "internal_error"].contains(&kind),
            "{trial:#}"
        );
        assert!(trial["tries"].as_u64().unwrap() > 1, "{trial:#}");
    }
    assert!(again > 0, "no trial noticed the outage");
}

fn trial_of(rows: &[Value], attempt: u64) -> String {
    let row = rows.iter().find(|row| row["attempt"] == attempt).unwrap();
    let text = |key: &str| row[key].as_str().unwrap();
    format!("{}/{}/{}__{attempt}", text("agent_name"), text("dataset_name"), text("task_name"))
}

#[test]
fn an_engine_that_is_stopped_and_started_in_the_middle_loses_no_trial_and_keeps_no_container() {
    let mut own = OwnEngine::start();
    let before = own.engine().holdings();
    let finished = outage(&mut own, "stopped", |own| {
        own.stop();
        own.start_again();
    });
    expect_nothing_lost(&finished);
    assert_eq!(own.engine().holdings(), before);
}

#[test]
fn an_engine_that_crashes_in_the_middle_loses_no_trial_and_keeps_no_container() {
    let mut own = OwnEngine::start();
    let before = own.engine().holdings();
    let finished = outage(&mut own, "crashed", |own| {
        own.kill();
        own.start_again();
    });
    expect_nothing_lost(&finished);
    assert_eq!(own.engine().holdings(), before);
}

#[test]
fn a_container_that_is_removed_from_outside_is_named_and_its_trial_is_retried() {
    let engine = TestEngine::shared();
    let gate = Gate::new();
    let job = job(&engine).task(TestTask::new("removed")).script(&format!("{}touch /app/done", gate.wait()));
    let running = job.start();
    let first = gate.arrival();
    let name = engine.running().into_iter().find(|name| name.contains("removed")).unwrap();
    engine.docker(&["rm", "--force", &name]);
    drop(first);
    gate.arrival().pass();
    let finished = running.finish().expect(0);
    let trial = finished.trial("agent/set/removed__1");
    assert_eq!((&trial["reward"], &trial["tries"]), (&json!(1.0), &json!(2)));
    let evidence = finished.file("agent/set/removed__1/tries/1/error.txt");
    // By when it is looked at, it has ended or is gone.
    assert!(
        evidence.contains("stopped from outside") || evidence.contains("removed from outside"),
        "{evidence}"
    );
}

#[test]
fn a_container_whose_first_process_is_killed_on_the_machine_is_tried_again() {
    let engine = TestEngine::shared();
    let gate = Gate::new();
    let job = job(&engine).task(TestTask::new("shot")).script(&format!("{}touch /app/done", gate.wait()));
    let running = job.start();
    let first = gate.arrival();
    let name = engine.running().into_iter().find(|name| name.contains("shot")).unwrap();
    let pid = engine.docker(&["inspect", "--format", "{{.State.Pid}}", &name]);
    let killed = std::process::Command::new("kill").args(["-9", &pid]).status().unwrap();
    assert!(killed.success());
    drop(first);
    gate.arrival().pass();
    let finished = running.finish().expect(0);
    let trial = finished.trial("agent/set/shot__1");
    assert_eq!((&trial["reward"], &trial["tries"]), (&json!(1.0), &json!(2)));
    let evidence = finished.file("agent/set/shot__1/tries/1/error.txt");
    assert!(evidence.contains("stopped from outside"), "{evidence}");
}

#[test]
fn an_ordinary_user_gets_files_of_his_own_and_none_of_roots() {
    let engine = TestEngine::shared();
    let job = job(&engine).task(TestTask::new("ordinary")).script(
        "id -u; mkdir -p /logs/agent/deep; echo x > /logs/agent/deep/file; chmod 4755 /logs/agent/deep/file",
    );
    let output = job.command_as_user(&["run", "job.yaml"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Root inside the container, and an ordinary user outside.
    let printed = fs::read_to_string(job.dir().join("agent/set/ordinary__1/command/stdout.txt")).unwrap();
    assert_eq!(printed, "0\n");
    let mut files = 0;
    walk(&job.dir(), &mut |path| {
        let meta = path.symlink_metadata().unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o7000), (65534, 0), "{}", path.display());
        files += 1;
    });
    assert!(files > 10, "{files}");
}

fn walk(dir: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        visit(&entry.path());
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), visit);
        }
    }
}
