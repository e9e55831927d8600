//! Kills, hostile agents and hostile output: each ends as documented, and nothing is left behind.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rollout_testkit::{TestJob, TestTask};
use serde_json::{Value, json};

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
        let told = killed.events();
        let told = told.iter().filter(|event| event["event"] == "trial_finished");
        for event in told {
            assert!(finished.insert(event["index"].as_u64().unwrap()), "{} ran twice", event["index"]);
        }
        let deadline = Instant::now() + Duration::from_secs(20);
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

#[test]
fn hostile_agents_end_as_documented_and_leave_the_others_alone() {
    let job = job()
        .task(TestTask::new("task").config("[agent]\ntimeout_sec = 5\n[environment]\nmemory = \"128Mi\"\n"))
        .set("environment/provider_config/pids", json!(200))
        .set("n_concurrent_trials", json!(4))
        .agent(json!({"name": "good", "execute": "touch /app/done"}))
        .agent(json!({"name": "fork-bomb", "execute": "bomb() { bomb | bomb & }; bomb; sleep 60"}))
        .agent(json!({"name": "memory", "execute": "tail /dev/zero"}))
        .agent(json!({"name": "not-utf8", "execute": "printf 'ok \\377\\376\\n'; touch /app/done"}))
        .agent(json!({"name": "links", "execute":
            "cd /logs/agent; ln -s /etc/passwd absolute; ln -s ../../../../../../../../etc/passwd climbing; ln -s real inside; \
             echo real > real; mkfifo pipe; touch /app/done"}))
        .agent(json!({"name": "logs-is-a-file", "execute": "rm -rf /logs; touch /logs"}))
        .agent(json!({"name": "no-bin", "execute": "touch /app/done; rm -rf /bin/* /usr/bin /usr/sbin 2>/dev/null; exit 0"}))
        .agent(json!({"name": "kills-all", "execute": "kill -9 -1"}))
        .agent(json!({"name": "good-too", "execute": "touch /app/done"}));
    let finished = job.run().expect(1);
    let trial = |agent: &str| finished.trial(&format!("{agent}/set/task__1"));
    let error = |agent: &str| trial(agent)["error"]["type"].clone();
    for agent in ["good", "good-too", "not-utf8", "links"] {
        assert_eq!((&trial(agent)["reward"], &trial(agent)["error"]), (&json!(1.0), &Value::Null), "{agent}");
    }
    assert_eq!(error("fork-bomb"), "agent_execution_timeout");
    assert_eq!(error("memory"), "agent_execution_failed");
    let message = trial("memory")["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("ran out of memory"), "{message}");
    let output = fs::read(job.dir().join("not-utf8/set/task__1/command/stdout.txt")).unwrap();
    assert_eq!(output, b"ok \xff\xfe\n");

    let logs = job.dir().join("links/set/task__1/logs/agent");
    assert_eq!(fs::read_to_string(logs.join("inside")).unwrap(), "real\n");
    for absent in ["absolute", "climbing", "pipe"] {
        assert!(fs::symlink_metadata(logs.join(absent)).is_err(), "{absent} was copied");
    }
    let notes = trial("links")["notes"].to_string();
    assert!(["absolute", "climbing", "pipe"].iter().all(|name| notes.contains(name)), "{notes}");

    assert_eq!(error("logs-is-a-file"), "verifier_failed");
    assert_eq!(error("no-bin"), "verifier_failed");
    let message = trial("no-bin")["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("bash"), "{message}");
    assert!(Path::new("/usr/bin/env").exists(), "the host keeps its programs");
    assert_eq!((&trial("kills-all")["reward"], &error("kills-all")), (&json!(0.0), &Value::Null));
    assert_eq!(remains(job.root(), &BTreeSet::new()), Vec::<String>::new());
}

#[test]
fn a_flood_of_output_without_a_newline_is_cut_and_counted_in_little_memory() {
    let bytes: u64 = if full() { 1 << 30 } else { 200 << 20 };
    let job =
        job().task(TestTask::new("task")).script(&format!("head -c {bytes} /dev/zero; touch /app/done"));
    let mut running = job.start();
    let mut peak = 0;
    while running.is_running() {
        peak = peak.max(resident_mb(running.child.id()));
        std::thread::sleep(Duration::from_millis(5));
    }
    let finished = running.finish().expect(0);
    assert_eq!(finished.trial("agent/set/task__1")["reward"], 1.0);
    let path = job.dir().join("agent/set/task__1/command/stdout.txt");
    let size = fs::metadata(&path).unwrap().len();
    assert!((64 << 20..65 << 20).contains(&size), "{size} bytes are kept");
    let text = fs::read(&path).unwrap();
    let end = String::from_utf8_lossy(&text[text.len() - 200..]).into_owned();
    assert!(end.contains(&format!("{} more bytes were dropped", bytes - (64 << 20))), "{end:?}");
    assert!(peak < 100, "{peak} MB at the peak");
}

fn resident_mb(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) / 256
}

#[test]
fn a_pipe_in_the_place_of_a_log_does_not_block_the_job() {
    let script = "rm -rf /logs/agent; mkfifo /logs/agent; mkfifo /logs/usage.json; touch /app/done";
    let job = job().task(TestTask::new("task")).script(script);
    let finished = job.run().expect(0);
    assert_eq!(finished.trial("agent/set/task__1")["reward"], 1.0);
    let copied = fs::symlink_metadata(job.dir().join("agent/set/task__1/logs/agent"));
    assert!(copied.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound), "no pipe on the host");
    let any_pipe = fs::read_dir(job.dir().join("agent/set/task__1/logs")).unwrap().flatten();
    assert!(!any_pipe.into_iter().any(|entry| entry.file_type().unwrap().is_fifo()));
}

#[test]
fn the_host_is_out_of_sight() {
    let script = "ls -A /root /home /mnt /srv | grep -v ':$'; cat /etc/shadow /proc/1/environ 2>/dev/null
                  find /run /var -type f -o -type s; ls /dev | sort | tr '\\n' ' '; echo; id -u; hostname; touch /usr/local/rollout-was-here";
    let finished = job().task(TestTask::new("task")).script(script).run().expect(0);
    let output = finished.file("agent/set/task__1/command/stdout.txt");
    assert!(!Path::new("/usr/local/rollout-was-here").exists());
    insta::assert_snapshot!(output.trim_start(), @"
    fd full null ptmx pts random shm stderr stdin stdout tty urandom zero 
    0
    task-agent-1
    ");
}
