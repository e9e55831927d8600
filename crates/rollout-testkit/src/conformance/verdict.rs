//! Agents that attack their verdict: no reward is forged, and nothing is gained by breaking the environment.
//!
//! The honest reward of each task is 0, so a reward of 1 is forged. A provider either keeps the agent's
//! processes away from the tests, and the reward is 0, or it detects the attack, and the trial fails with
//! evidence.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use serde_json::{Value, json};

use super::{Ability, Suite};
use crate::{Library, TestJob, TestTask};

/// Tests that take a while before and after they write the honest reward.
const HONEST_TESTS: &str = "sleep 0.3\necho 0 > /logs/verifier/reward.txt\nsleep 0.2\nexit 0\n";

/// Waits until the process of an attack runs. Without it, the agent times out, and the attack counts as failed.
const RUNS: &str = "until [ -e /tmp/runs ]; do sleep 0.01; done\n";

/// A process that keeps forking: the parent exits and the child continues, so its pid changes all the time. The
/// text is Perl, which runs in each of them; `$dir` is the directory of rewards.
fn hopper(work: &str) -> String {
    let program = format!(
        "$dir = \"/logs/verifier\"; setpgrp; open(M, \">\", \"/tmp/runs\"); close M; \
         while (1) {{ my $child = fork; next unless defined $child; exit if $child; {work} }}"
    );
    format!("perl -e '{program}' > /dev/null 2>&1 < /dev/null &\n{RUNS}")
}

/// The attempt of a hopper to forge a reward.
const FORGE: &str =
    "if (-e \"$dir/reward.txt\") { open(F, \">\", \"$dir/reward.txt\"); print F \"1\\n\"; close F }";

/// A program for x86-64 without libc, because only machine code can go on in the memory of a process that has ended.
/// In an endless loop it writes `1` to `/logs/verifier/reward.txt` if that exists, calls `clone(CLONE_VM | SIGCHLD)`
/// without a new stack, which it does not use, and ends, while the child continues.
const SHARING_HOPPER: &str = "\
f0VMRgIBAQAAAAAAAAAAAAIAPgABAAAAeABAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAAAAEAAOAABAAAAAAAAAAEAAAAFAAAAAAAAAAAAAAAA
AEAAAAAAAAAAQAAAAAAA6gAAAAAAAADqAAAAAAAAAAAQAAAAAAAAuAIAAABIjT1KAAAAvgECAAAPBYXAeByJx7gBAAAASI01SwAAALoCAAAA
DwW4AwAAAA8FuDgAAAC/EQEAADH2MdJFMdJFMcAPBYXAfrO4PAAAADH/DwUvbG9ncy92ZXJpZmllci9yZXdhcmQudHh0ADEK";

fn sharing_hopper() -> String {
    format!(
        "base64 -d > /tmp/hopper <<'END'\n{SHARING_HOPPER}\nEND\nchmod +x /tmp/hopper\n\
         setsid /tmp/hopper > /dev/null 2>&1 < /dev/null &\n"
    )
}

/// A process that outlives the agent's script and runs this script.
fn daemon(script: &str) -> String {
    format!(
        "cat > /tmp/daemon.sh <<'END'\ntouch /tmp/runs\n{script}\nEND\n\
         setsid bash /tmp/daemon.sh > /dev/null 2>&1 < /dev/null &\n{RUNS}"
    )
}

/// The number of attempts of each attack.
fn attempts() -> u64 {
    if std::env::var_os("ROLLOUT_TEST_FULL").is_some() { 50 } else { 3 }
}

fn job(suite: &Suite, script: &str) -> TestJob<Library> {
    suite
        .job()
        .task(TestTask::new("task").tests(HONEST_TESTS))
        .script(script)
        .set("n_attempts", json!(attempts()))
        .set("n_concurrent_trials", json!(2))
        .set("retry", json!({"max_attempts": 3, "initial_delay_ms": 10}))
}

fn results(job: &TestJob<Library>) -> Vec<Value> {
    let finished = job.run();
    let results =
        (1..=attempts()).map(|attempt| finished.trial(&format!("agent/set/task__{attempt}"))).collect();
    job.expect_nothing_left();
    results
}

/// Runs a process of the agent during the tests: it must be recorded, and forge no reward.
fn attack(suite: &Suite, script: &str) {
    for result in results(&job(suite, script)) {
        let found = result["survivors"].as_array().cloned().unwrap_or_default();
        let is_named = |command: &Value| command.as_str().is_some_and(|command| !command.trim().is_empty());
        assert!(!found.is_empty() && found.iter().all(is_named), "{result:#}");
        forged_nothing(&result);
    }
}

/// Runs a process of the agent that always has a new number, and so may be in no list of processes.
fn attack_of_hopper(suite: &Suite, script: &str) {
    results(&job(suite, script)).iter().for_each(forged_nothing);
}

/// The reward must be that of the tests, or there must be evidence and no reward.
fn forged_nothing(result: &Value) {
    assert_eq!(result["tries"], 1, "{result:#}");
    if result["reward"].is_null() {
        assert_eq!(result["error"]["type"], "verifier_failed", "{result:#}");
        assert!(!result["tampering"].as_array().unwrap().is_empty(), "{result:#}");
    } else {
        assert_eq!((&result["reward"], &result["error"]), (&json!(0.0), &Value::Null), "{result:#}");
    }
}

pub fn a_process_that_edits_the_tests_forges_no_reward(suite: &Suite) {
    attack(
        suite,
        &daemon(
            "until [ -s /tests/test.sh ]; do :; done
             while :; do echo 'echo 1 > /logs/verifier/reward.txt; exit 0' > /tests/test.sh; done",
        ),
    );
}

pub fn a_process_that_edits_the_tests_and_restores_them_forges_no_reward(suite: &Suite) {
    attack(
        suite,
        &daemon(
            "until [ -s /tests/test.sh ]; do :; done
             before=$(cat /tests/test.sh)
             echo 'echo 1 > /logs/verifier/reward.txt; exit 0' > /tests/test.sh
             sleep 0.1
             printf '%s\\n' \"$before\" > /tests/test.sh",
        ),
    );
}

pub fn a_process_that_replaces_the_tests_forges_no_reward(suite: &Suite) {
    attack(
        suite,
        &daemon(
            "mkdir /forged; echo 'echo 1 > /logs/verifier/reward.txt' > /forged/test.sh
             until [ -s /tests/test.sh ]; do :; done
             mv /tests /hidden; mv /forged /tests; sleep 0.1; mv /tests /forged; mv /hidden /tests",
        ),
    );
}

pub fn a_process_that_moves_the_directories_away_forges_no_reward(suite: &Suite) {
    attack(
        suite,
        &daemon(
            "while :; do mv /logs /old-$RANDOM; mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt
             mv /tests /tests-$RANDOM; mkdir /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; done",
        ),
    );
}

pub fn a_process_that_rewrites_the_reward_forges_none(suite: &Suite) {
    attack(
        suite,
        &daemon("while :; do [ -s /logs/verifier/reward.txt ] && echo 1 > /logs/verifier/reward.txt; done"),
    );
}

pub fn a_process_with_a_blank_name_and_command_line_forges_no_reward(suite: &Suite) {
    attack(
        suite,
        &format!(
            "cat > /tmp/daemon.sh <<'END'
             printf ' ' > /proc/$$/comm; touch /tmp/runs
             while :; do [ -s /logs/verifier/reward.txt ] && echo 1 > /logs/verifier/reward.txt; done\nEND\n\
             setsid bash -c 'exec -a \"\" bash' < /tmp/daemon.sh > /dev/null 2>&1 &\n{RUNS}"
        ),
    );
}

pub fn a_process_that_replaces_the_reward_forges_none(suite: &Suite) {
    attack(
        suite,
        &daemon(
            "cd /logs; while :; do [ -s verifier/reward.txt ] && echo 1 > forged && mv forged verifier/reward.txt; done",
        ),
    );
}

pub fn a_process_that_hides_the_reward_of_the_tests_forges_none(suite: &Suite) {
    attack(
        suite,
        &daemon(
            "until [ -s /tests/test.sh ]; do :; done
             ln -s /dev/null /logs/verifier/reward.txt; sleep 0.4
             echo 1 > /logs/forged; mv /logs/forged /logs/verifier/reward.txt",
        ),
    );
}

pub fn a_process_that_writes_the_reward_by_another_name_forges_none(suite: &Suite) {
    // It waits until the file is watched, as shown in /proc, and then until the tests have written to it.
    attack(
        suite,
        &daemon(
            "watches() { cat /proc/[0-9]*/fdinfo/* 2> /dev/null | grep -c ^inotify; }
             until [ -s /tests/test.sh ]; do :; done
             before=$(watches); : > /logs/other; exec 3<> /logs/other
             ln /logs/other /logs/verifier/reward.txt; rm /logs/other
             until [ $(watches) -gt $before ]; do :; done
             until [ -s /logs/verifier/reward.txt ]; do :; done
             echo 1 >&3; exec 3>&-; sleep 600",
        ),
    );
}

pub fn a_process_that_keeps_starting_another_forges_no_reward(suite: &Suite) {
    attack_of_hopper(suite, &hopper(FORGE));
}

pub fn a_process_that_keeps_starting_another_is_ended_before_the_tests(suite: &Suite) {
    let job = job(suite, &hopper(FORGE)).set("verifier", json!({"agent_processes": "kill"}));
    for result in results(&job) {
        assert_eq!((&result["reward"], &result["error"]), (&json!(0.0), &Value::Null), "{result:#}");
    }
}

pub fn a_process_that_keeps_starting_another_in_its_own_memory_forges_no_reward(suite: &Suite) {
    if cfg!(target_arch = "x86_64") {
        attack_of_hopper(suite, &sharing_hopper());
    }
}

pub fn a_process_that_keeps_starting_another_in_its_own_memory_is_ended_before_the_tests(suite: &Suite) {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let job = job(suite, &sharing_hopper()).set("verifier", json!({"agent_processes": "kill"}));
    for result in results(&job) {
        assert_eq!((&result["reward"], &result["error"]), (&json!(0.0), &Value::Null), "{result:#}");
    }
}

pub fn a_process_that_keeps_starting_another_does_not_outlive_a_timeout(suite: &Suite) {
    let task = TestTask::new("task").tests(HONEST_TESTS).config("[agent]\ntimeout_sec = 1\n");
    let job = job(suite, &(hopper(FORGE) + "sleep 600"))
        .task(task)
        .set("verifier", json!({"after_agent_error": "run"}));
    for result in results(&job) {
        assert_eq!(result["error"]["type"], "agent_execution_timeout", "{result:#}");
        assert_eq!((&result["reward"], &result["survivors"]), (&json!(0.0), &Value::Null), "{result:#}");
    }
}

pub fn a_process_that_adds_files_to_the_tests_is_reported(suite: &Suite) {
    let script = daemon("until [ -s /tests/test.sh ]; do :; done; touch /tests/conftest.py; sleep 600");
    let tests =
        "sleep 0.3\nif [ -e /tests/conftest.py ]; then echo 0; else echo 1; fi > /logs/verifier/reward.txt\n";
    for result in results(&job(suite, &script).task(TestTask::new("task").tests(tests))) {
        let notes = result["notes"].to_string();
        assert!(result["reward"] == 1.0 || notes.contains("/tests/conftest.py"), "{result:#}");
        assert_eq!(result["error"], Value::Null, "{result:#}");
    }
}

pub fn tests_beside_a_service_may_change_modes_and_add_files(suite: &Suite) {
    let tests = "chmod 700 /tests/test.sh; mkdir /tests/cache; touch /tests/cache/x /logs/verifier/log.txt\n\
                 mktemp -p /logs/verifier > /tmp/name; echo 1 > $(cat /tmp/name)\n\
                 mv $(cat /tmp/name) /logs/verifier/reward.txt; cat /logs/verifier/reward.txt\n";
    let job = job(suite, "setsid sleep 600 > /dev/null 2>&1 < /dev/null &")
        .task(TestTask::new("task").tests(tests));
    for result in results(&job) {
        assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null), "{result:#}");
        assert_eq!(result["tampering"], Value::Null, "{result:#}");
    }
}

/// Makes the kernel choose the first process, and uses up the memory.
pub(super) const KILL_ENVIRONMENT: &str = "echo 1000 > /proc/1/oom_score_adj; tail /dev/zero";

fn small(tests: &str) -> TestTask {
    TestTask::new("task").tests(tests).config("[environment]\nmemory = \"64Mi\"\n")
}

pub fn an_agent_that_has_its_environment_killed_gains_no_second_try(suite: &Suite) {
    if suite.lacks(Ability::LimitMemory) {
        return;
    }
    let job = job(suite, KILL_ENVIRONMENT).task(small(HONEST_TESTS));
    for result in results(&job) {
        assert_eq!(result["error"]["type"], "agent_execution_failed", "{result:#}");
        assert_eq!(result["tries"], 1, "{result:#}");
        assert!(result["error"]["message"].as_str().unwrap().contains("memory"), "{result:#}");
    }
}

pub fn a_process_that_has_the_environment_killed_gains_no_second_verification(suite: &Suite) {
    if suite.lacks(Ability::LimitMemory) {
        return;
    }
    let script = daemon(&format!("until [ -s /tests/test.sh ]; do :; done; {KILL_ENVIRONMENT}"));
    let job = job(suite, &script).task(small("sleep 2\necho 0 > /logs/verifier/reward.txt\n"));
    for result in results(&job) {
        assert_eq!(result["tries"], 1, "{result:#}");
        if result["reward"].is_null() {
            assert_eq!(result["error"]["type"], "verifier_failed", "{result:#}");
        } else {
            assert_eq!((&result["reward"], &result["error"]), (&json!(0.0), &Value::Null), "{result:#}");
        }
    }
}

pub fn an_install_that_replaces_what_starts_environments_has_no_power_over_later_trials(suite: &Suite) {
    if suite.lacks(Ability::Snapshots) {
        return;
    }
    let install = "cp /.rollout/guest /opt/guest; rm -rf /.rollout; mkdir -p /.rollout
                   printf '#!/bin/sh\\nexit 7\\n' > /.rollout/guest; chmod 755 /.rollout/guest; true";
    // If there was one before, it must be the same again.
    let execute = "[ ! -e /opt/guest ] || cmp /.rollout/guest /opt/guest";
    let job = suite.job();
    let install = format!(": {}\n{install}", job.name());
    let job = job
        .task(TestTask::new("task").tests("echo 1 > /logs/verifier/reward.txt\n"))
        .agent(json!({"name": "agent", "install": install, "execute": execute}))
        .set("environment/cache_agent_install", json!(true))
        .set("n_attempts", json!(attempts()));
    let results = results(&job);
    for result in &results {
        assert_eq!((&result["reward"], &result["notes"]), (&json!(1.0), &Value::Null), "{result:#}");
    }
    let restored =
        results.iter().filter(|result| result["environment"]["agent_snapshot"].is_string()).count();
    assert_eq!(restored as u64, attempts() - 1);
}
