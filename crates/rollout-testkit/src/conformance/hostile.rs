//! Hostile agents and hostile output: each ends as documented, harms no other trial, and leaves nothing behind.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};

use super::{Ability, Suite, suite::says};
use crate::{Finished, Library, TestJob, TestTask, long_enough};

/// Files that make collecting and removing difficult.
pub const MESS: &str = "cd /logs/agent
    truncate -s 1T sparse
    mkdir locked && echo x > locked/file && chmod 000 locked/file locked
    echo x > $'new\\nline'; echo x > $'not-utf8-\\377'; echo x > -rf
    ln -s loop loop; mkdir real; ln -s . real/again; ln file hard 2>/dev/null
    cd /app; i=0; while [ $i -lt 250 ]; do mkdir a-directory-with-a-name && cd a-directory-with-a-name || break; i=$((i + 1)); done
    cd /logs/agent; i=0; while [ $i -lt 220 ]; do mkdir deep-deep-deep-deep && cd deep-deep-deep-deep || break; i=$((i + 1)); done
    mkdir -p /app/closed/inner && touch /app/closed/inner/x && chmod 000 /app/closed/inner /app/closed
    touch /app/done";

/// The agents beside a hostile one.
const OTHERS: [&str; 2] = ["good", "good-too"];

/// A job with one hostile agent between two good ones, which must still succeed.
fn beside_others(suite: &Suite, hostile: &str) -> TestJob<Library> {
    suite
        .job()
        .task(TestTask::new("task").config("[environment]\nmemory = \"128Mi\"\n"))
        .set("n_concurrent_trials", json!(3))
        .agent(json!({"name": "good", "execute": "touch /app/done"}))
        .agent(json!({"name": "hostile", "execute": hostile}))
        .agent(json!({"name": "good-too", "execute": "touch /app/done"}))
}

/// Runs it, and returns the result of the hostile trial.
#[track_caller]
fn result_beside_others(job: &TestJob<Library>) -> Value {
    hostile_result(job, &job.run())
}

/// The result of the hostile trial of a job whose other trials must have succeeded.
#[track_caller]
fn hostile_result(job: &TestJob<Library>, finished: &Finished) -> Value {
    for agent in OTHERS {
        let result = finished.trial(&format!("{agent}/set/task__1"));
        assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null), "{agent}: {result:#}");
    }
    job.expect_nothing_left();
    finished.trial("hostile/set/task__1")
}

/// Everything below a directory, links not followed.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(path) = pending.pop() {
        if path.symlink_metadata().unwrap().is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push(path);
    }
    found
}

pub fn a_fork_bomb_ends_at_the_limit_of_processes_and_at_its_deadline(suite: &Suite) {
    if suite.lacks(Ability::LimitProcesses) {
        return;
    }
    long_enough(Duration::from_secs(5), |timeout| {
        let config = format!("[agent]\ntimeout_sec = {}\n", timeout.as_secs());
        let job = beside_others(suite, "bomb() { bomb | bomb & }; bomb; sleep 600")
            .task(TestTask::new("task").config(&config))
            .set("environment/provider_config/pids", json!(200));
        let finished = job.run();
        // The timeout is that of the others too, who share the machine with the processes of the bomb.
        let results =
            OTHERS.map(|agent| finished.trial(&format!("{agent}/set/task__1"))["error"]["type"].take());
        if results.contains(&json!("agent_execution_timeout")) {
            job.expect_nothing_left();
            return None;
        }
        let result = hostile_result(&job, &finished);
        assert_eq!(result["error"]["type"], "agent_execution_timeout", "{result:#}");
        Some(())
    });
}

pub fn an_agent_that_uses_all_memory_fails_alone_with_the_reason(suite: &Suite) {
    if suite.lacks(Ability::LimitMemory) {
        return;
    }
    let result = result_beside_others(&beside_others(suite, "tail /dev/zero"));
    assert_eq!(result["error"]["type"], "agent_execution_failed", "{result:#}");
    says(&result, "ran out of memory");
}

pub fn an_agent_that_kills_every_process_harms_no_more_than_itself(suite: &Suite) {
    for script in [
        "sleep 1001 & kill -9 -1; exit 0",
        "for process in /proc/[0-9]*; do pid=${process#/proc/}; [ $pid = $$ ] || kill -9 $pid 2>/dev/null; done; exit 0",
    ] {
        let result = result_beside_others(&beside_others(suite, script));
        if suite.lacks(Ability::SurvivesKills) {
            let ended = (&result["error"]["type"], &result["tries"]);
            assert_eq!(ended, (&json!("agent_execution_failed"), &json!(1)), "{script}: {result:#}");
            continue;
        }
        assert_eq!(
            (&result["reward"], &result["error"]),
            (&json!(0.0), &Value::Null),
            "{script}: {result:#}"
        );
    }
}

pub fn output_that_is_not_utf8_is_kept_as_it_is(suite: &Suite) {
    let job = suite.job().task(TestTask::new("task")).script("printf 'ok \\377\\376\\n'");
    job.run().expect(0);
    let output = fs::read(job.dir().join("agent/set/task__1/command/stdout.txt")).unwrap();
    assert_eq!(output, b"ok \xff\xfe\n");
}

pub fn links_that_leave_the_directory_and_pipes_are_skipped_and_reported(suite: &Suite) {
    let script = "cd /logs/agent; ln -s /etc/passwd absolute; \
                  ln -s ../../../../../../../../etc/passwd climbing; ln -s real inside; \
                  echo real > real; mkfifo pipe; touch /app/done";
    let job = suite.job().task(TestTask::new("task")).script(script);
    let result = job.run().expect(0).trial("agent/set/task__1");
    assert_eq!(result["reward"], 1.0);
    let logs = job.dir().join("agent/set/task__1/logs/agent");
    assert_eq!(fs::read_to_string(logs.join("inside")).unwrap(), "real\n");
    for absent in ["absolute", "climbing", "pipe"] {
        assert!(fs::symlink_metadata(logs.join(absent)).is_err(), "{absent} was copied");
        assert!(result["notes"].to_string().contains(absent), "{result:#}");
    }
}

pub fn an_agent_that_replaces_logs_by_a_file_harms_no_more_than_itself(suite: &Suite) {
    let job = suite.job().task(TestTask::new("task")).script("rm -rf /logs; touch /logs");
    let result = job.run().trial("agent/set/task__1");
    // If the verifier is isolated, the attack is impossible, and the tests find that nothing else was changed.
    let ended = (&result["error"]["type"], &result["reward"]);
    assert!(
        ended == (&json!("verifier_failed"), &Value::Null) || ended == (&Value::Null, &json!(0.0)),
        "{result:#}"
    );
    job.expect_nothing_left();
}

pub fn an_agent_that_removes_all_programs_fails_its_own_verification(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    let script = "touch /app/done; rm -rf /bin/* /usr/bin /usr/sbin 2>/dev/null; exit 0";
    let job = suite.job().task(TestTask::new("task")).script(script);
    let result = job.run().expect(1).trial("agent/set/task__1");
    assert_eq!(result["error"]["type"], "verifier_failed", "{result:#}");
    says(&result, "bash");
    assert!(Path::new("/usr/bin/env").exists(), "the host keeps its programs");
    job.expect_nothing_left();
}

pub fn a_mess_is_collected_as_far_as_possible_and_removed_altogether(suite: &Suite) {
    let job = suite.job().task(TestTask::new("task")).script(MESS);
    let finished = job.run().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null));
    assert!(result["notes"].to_string().contains("sparse"), "{result:#}");
    assert_eq!(finished.file("agent/set/task__1/logs/agent/new\nline"), "x\n");
    let sparse = job.dir().join("agent/set/task__1/logs/agent/sparse").metadata().unwrap();
    assert!(sparse.blocks() * 512 < 4 << 20, "holes take no room: {sparse:?}");
    job.expect_nothing_left();
}

pub fn an_agent_that_fills_its_logs_does_not_suppress_the_logs_of_the_tests(suite: &Suite) {
    // Directories are copied in any order, so some come before that of the tests.
    let fill = "cd /logs; for dir in agent 0 a k q z; do mkdir -p $dir
        for n in 1 2 3 4; do truncate -s 256M $dir/$n; done; done; touch /app/done";
    let tests = "echo evidence > /logs/verifier/evidence.txt; echo 1 > /logs/verifier/reward.txt\n";
    let job = suite.job().task(TestTask::new("task").tests(tests)).script(fill);
    let finished = job.run().expect(0);
    assert_eq!(finished.file("agent/set/task__1/logs/verifier/evidence.txt"), "evidence\n");
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["incomplete_logs"]), (&json!(1.0), &json!(true)), "{result:#}");
    assert!(result["notes"].to_string().contains("the copy would have more than"), "{result:#}");
    job.expect_nothing_left();
}

pub fn a_pipe_in_the_place_of_a_log_does_not_block_the_job(suite: &Suite) {
    let script = "rm -rf /logs/agent; mkfifo /logs/agent; mkfifo /logs/usage.json; touch /app/done";
    let job = suite.job().task(TestTask::new("task")).script(script);
    let finished = job.run().expect(0);
    assert_eq!(finished.trial("agent/set/task__1")["reward"], 1.0);
    let copied = fs::symlink_metadata(job.dir().join("agent/set/task__1/logs/agent"));
    assert!(copied.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound), "no pipe on the host");
    let kinds = tree(&job.dir()).into_iter().map(|path| path.symlink_metadata().unwrap().file_type());
    assert!(!kinds.into_iter().any(|kind| kind.is_fifo()));
}

pub fn nothing_in_the_job_directory_belongs_to_others_or_has_special_bits(suite: &Suite) {
    let script = "cd /logs/agent; mkdir theirs; cp /bin/true theirs/setuid; echo x > file; \
                  chown -R daemon:daemon theirs file; chmod 6755 theirs/setuid; chmod 3777 theirs; \
                  chmod 2000 file; touch /app/done";
    let job = suite.job().task(TestTask::new("task")).script(script);
    job.run().expect(0);
    let owner = job.root().metadata().unwrap().uid();
    let copied = tree(&job.dir());
    assert!(copied.iter().any(|path| path.ends_with("theirs/setuid")), "{copied:#?}");
    for path in copied {
        let found = path.symlink_metadata().unwrap();
        assert_eq!(found.uid(), owner, "{} belongs to another", path.display());
        assert_eq!(found.mode() & 0o6000, 0, "{} has mode {:o}", path.display(), found.mode());
    }
}

pub fn a_flood_of_output_without_a_newline_is_cut_and_counted_in_little_memory(suite: &Suite) {
    let full = std::env::var_os("ROLLOUT_TEST_FULL").is_some();
    let bytes: u64 = if full { 1 << 30 } else { 200 << 20 };
    // A first job loads the program and its connections into memory, which depends on the build and the provider.
    suite.job().task(TestTask::new("task")).script("touch /app/done").run().expect(0);
    let before = peak_memory_mb();
    let job = suite
        .job()
        .task(TestTask::new("task"))
        .script(&format!("head -c {bytes} /dev/zero; touch /app/done"));
    let finished = job.run().expect(0);
    assert_eq!(finished.trial("agent/set/task__1")["reward"], 1.0);
    let path = job.dir().join("agent/set/task__1/command/stdout.txt");
    let size = fs::metadata(&path).unwrap().len();
    assert!((64 << 20..65 << 20).contains(&size), "{size} bytes are kept");
    let grown = peak_memory_mb() - before;
    assert!(grown < 40, "{grown} MB more at the peak than the {before} MB of a job without output");
    let text = fs::read(&path).unwrap();
    let end = String::from_utf8_lossy(&text[text.len() - 200..]).into_owned();
    assert!(end.contains(&format!("{} more bytes were dropped", bytes - (64 << 20))), "{end:?}");
}

fn peak_memory_mb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

pub fn trials_share_nothing_with_each_other_or_the_host(suite: &Suite) {
    let job = suite.job();
    let trace = format!("trace-{}", job.name());
    let mut dirs = vec!["/app", "/tmp", "/dev/shm", "/etc", "/var/tmp"];
    if !suite.lacks(Ability::OtherUsers) {
        dirs.push("/usr/local");
    }
    let traces: Vec<String> = dirs.iter().map(|dir| format!("{dir}/{trace}")).collect();
    let traces = traces.join(" ");
    let job = job
        .task(TestTask::new("task"))
        .script(&format!("ls {traces} 2>/dev/null; touch {traces} /app/done"))
        .set("n_attempts", json!(3))
        .set("n_concurrent_trials", json!(1));
    let finished = job.run().expect(0);
    for attempt in 1..=3 {
        assert_eq!(finished.file(&format!("agent/set/task__{attempt}/command/stdout.txt")), "");
    }
    for trace in traces.split(' ') {
        assert!(!Path::new(trace).exists(), "{trace} is on the host");
    }
}

pub fn an_agent_has_no_power_over_the_machine(suite: &Suite) {
    let script = "mount -t tmpfs none /mnt && echo mounted
        cat /proc/sys/kernel/panic > /proc/sys/kernel/panic && echo kernel
        mknod /app/disk b 8 0 && head -c 1 /app/disk > /dev/null && echo device
        hostname stolen && echo name
        unshare -m true && echo namespace
        while read -r key value; do [ \"$key\" = CapEff: ] && echo $value; done < /proc/self/status";
    let finished = suite.job().task(TestTask::new("task")).script(script).run();
    let said = finished.file("agent/set/task__1/command/stdout.txt");
    let capabilities = u64::from_str_radix(said.trim(), 16).unwrap_or_else(|_| panic!("{said}"));
    // Modules, raw input and output, administration, reboot, time.
    for forbidden in [16, 17, 21, 22, 25] {
        assert_eq!(capabilities >> forbidden & 1, 0, "capability {forbidden} of {capabilities:x}");
    }
}

pub fn names_with_spaces_and_special_characters_work_everywhere(suite: &Suite) {
    let job = suite.job().task(TestTask::new("a task: ünïcode")).oracle();
    let name = format!("{} №1, the job", job.name());
    let job = job.set("name", json!(name)).set("jobs_dir", json!("all my jobs"));
    job.run().expect(0);
    let dir = job.root().join("all my jobs").join(name);
    assert!(dir.join("oracle/set/a task: ünïcode__1/result.json").is_file());
    job.expect_nothing_left();
}
