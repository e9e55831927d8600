//! Kills of the command: nothing is lost, nothing is done twice, and nothing is left behind.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rollout_testkit::{TestJob, TestTask};
use serde_json::json;

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

fn full() -> bool {
    std::env::var_os("ROLLOUT_TEST_FULL").is_some()
}

/// Processes whose command line names a path below a directory.
fn processes_of(root: &Path) -> Vec<String> {
    let needle = root.to_string_lossy().into_owned();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&needle))
        .collect()
}

/// Everything that is left of a job besides its results.
fn remains(root: &Path, ids: &BTreeSet<String>) -> Vec<String> {
    let mut found = processes_of(root);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    found.extend(mounts.lines().filter(|line| line.contains(&*root.to_string_lossy())).map(str::to_owned));
    let sandboxes = fs::read_dir(root.join("state/run")).into_iter().flatten().flatten();
    found.extend(
        sandboxes
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .map(|path| path.display().to_string()),
    );
    let mut cgroups = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = cgroups.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if ids.iter().any(|id| entry.file_name().to_string_lossy().contains(id.as_str())) {
                    found.push(entry.path().display().to_string());
                }
                cgroups.push(entry.path());
            }
        }
    }
    found
}

/// A spread of moments that is the same in every run.
fn moments(count: u64) -> impl Iterator<Item = Duration> {
    (1..=count).map(|n| Duration::from_millis(20 + n * 7919 % 640))
}

#[test]
fn a_job_killed_at_many_moments_loses_nothing_doubles_nothing_and_leaves_nothing() {
    let kills = if full() { 20 } else { 4 };
    // Long enough that the job outlives every kill.
    let seconds = if full() { 0.7 } else { 0.3 };
    let script = &format!("sleep {seconds} & echo $ROLLOUT_TRIAL > /logs/agent/who; touch /app/done; wait");
    let mut job = job().script(script).set("n_attempts", json!(10)).set("n_concurrent_trials", json!(4));
    for task in ["a", "b", "c", "d", "e"] {
        job = job.task(TestTask::new(task));
    }
    let mut ids = BTreeSet::new();
    let mut finished = BTreeSet::new();
    let mut arguments = vec!["run", "job.yaml", "--output", "json"];
    for moment in moments(kills) {
        let mut running = job.start_with(&arguments);
        running
            .until("the first trial", |events| events.iter().any(|event| event["event"] == "trial_started"));
        let kill_at = Instant::now() + moment;
        while Instant::now() < kill_at && running.is_running() {
            let names = job
                .environments()
                .into_iter()
                .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
            ids.extend(names);
            std::thread::sleep(Duration::from_millis(2));
        }
        running.signal("-KILL");
        let killed = running.finish();
        let reported = killed.events();
        let reported = reported.iter().filter(|event| event["event"] == "trial_finished");
        for event in reported {
            assert!(finished.insert(event["index"].as_u64().unwrap()), "{} ran twice", event["index"]);
        }
        let deadline = Instant::now() + Duration::from_secs(600);
        while !remains(job.root(), &ids).is_empty() {
            assert!(Instant::now() < deadline, "left behind: {:#?}", remains(job.root(), &ids));
            std::thread::sleep(Duration::from_millis(20));
        }
        if job.dir().join("journal.jsonl").exists() {
            arguments = vec!["resume", "jobs/job", "--output", "json"];
        } else {
            let _ = fs::remove_dir_all(job.dir());
        }
    }
    let end = job.rollout(&arguments).expect(0);
    for event in end.events().iter().filter(|event| event["event"] == "trial_finished") {
        assert!(finished.insert(event["index"].as_u64().unwrap()), "{} ran twice", event["index"]);
    }
    let result = end.result();
    assert_eq!((&result["completed_trials"], &result["mean_reward"]), (&json!(50), &json!(1.0)));
    for row in result["results"].as_array().unwrap() {
        let trial = format!("agent/set/{}__{}", row["task_name"].as_str().unwrap(), row["attempt"]);
        assert_eq!(end.trial(&trial)["reward"], 1.0);
        assert_eq!(end.file(&format!("{trial}/logs/agent/who")), format!("{trial}\n"));
    }
    assert_eq!(remains(job.root(), &ids), Vec::<String>::new());
}
