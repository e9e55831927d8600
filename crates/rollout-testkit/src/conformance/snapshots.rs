//! Installations that are stored as images for other trials.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::BTreeSet;

use rollout::config::{Bytes, Cpus};
use rollout::environment::{EnvironmentSpec, Origin};
use serde_json::{Value, json};

use super::{Ability, Suite, suite::PRIVATE_DIRS};
use crate::{Finished, Library, TestJob, TestTask, library::runtime};

const REWARD: &str = "echo 1 > /logs/verifier/reward.txt\n";

/// A job that stores its agent's installation, which no other job has stored.
fn job(suite: &Suite, install: &str, execute: &str) -> TestJob<Library> {
    let job = suite.job();
    let install = format!(": {}\n{install}", job.name());
    job.agent(json!({"name": "agent", "install": install, "execute": execute}))
        .set("environment/cache_agent_install", json!(true))
}

/// The results of a job's trials.
fn results(finished: &Finished) -> Vec<Value> {
    let result = finished.result();
    let rows = result["results"].as_array().unwrap().iter();
    rows.map(|row| {
        finished.trial(&format!("agent/set/{}__{}", row["task_name"].as_str().unwrap(), row["attempt"]))
    })
    .collect()
}

/// The number of trials that ran their install script.
fn installed(finished: &Finished) -> usize {
    let took_time = |result: &Value| result["durations"]["agent_setup_sec"].as_f64() > Some(0.0);
    results(finished).iter().filter(|result| took_time(result)).count()
}

pub fn trials_of_this_job_and_later_ones_share_one_install(suite: &Suite) {
    let job = job(suite, "cat /proc/sys/kernel/random/uuid > /opt/agent", "cat /opt/agent; touch /app/done")
        .task(TestTask::new("task"))
        .set("n_attempts", json!(4));
    let (one, two) = (job.run_as("one").expect(0), job.run_as("two").expect(0));
    let said = |finished: &Finished| -> BTreeSet<String> {
        (1..=4).map(|n| finished.file(&format!("agent/set/task__{n}/command/stdout.txt"))).collect()
    };
    assert_eq!((said(&one).len(), said(&two)), (1, said(&one)));
    assert_eq!((installed(&one), installed(&two)), (1, 0));
    for result in results(&two) {
        assert_eq!((&result["reward"], &result["notes"]), (&json!(1.0), &Value::Null), "{result:#}");
        assert!(result["environment"]["agent_snapshot"].is_string(), "{result:#}");
    }
    job.expect_nothing_left();
}

pub fn nothing_of_the_trial_that_installed_is_visible_in_others(suite: &Suite) {
    let install = "touch /logs/agent/install.log /logs/loose; setsid sleep 1001 > /dev/null 2>&1 & true";
    let look = "cat /tmp/instruction.md; ls -A /logs /logs/agent; grep -lxz 1001 /proc/[0-9]*/cmdline 2>/dev/null; true";
    let job = job(suite, install, look)
        .task(TestTask::new("first").file("instruction.md", "the first\n").tests(REWARD))
        .task(TestTask::new("second").file("instruction.md", "the second\n").tests(REWARD))
        .set("n_concurrent_trials", json!(1))
        .set("instruction_path", json!("/tmp/instruction.md"));
    let finished = job.run().expect(0);
    assert_eq!(installed(&finished), 1);
    assert_eq!(finished.file("agent/set/first__1/logs/agent/install.log"), "");
    let second = finished.file("agent/set/second__1/command/stdout.txt");
    assert_eq!(second, "the second\n/logs:\nagent\nverifier\n\n/logs/agent:\n");
}

pub fn changes_of_the_install_are_visible_in_later_trials(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    let install =
        "rm -r /usr/share/base-files; mkdir -m 1751 /opt/own; ln -s own /opt/link; chown daemon /opt/own";
    let look = "ls -d /usr/share/base-files 2> /dev/null; stat -c '%a %U %N' /opt/own /opt/link";
    let job = job(suite, install, look).task(TestTask::new("task").tests(REWARD)).set("n_attempts", json!(2));
    let finished = job.run().expect(0);
    assert_eq!(installed(&finished), 1);
    for attempt in 1..=2 {
        let said = finished.file(&format!("agent/set/task__{attempt}/command/stdout.txt"));
        assert_eq!(said, "1751 daemon '/opt/own'\n777 root '/opt/link' -> 'own'\n", "{attempt}");
    }
}

pub fn settings_of_the_image_hold_in_later_trials(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    let task = |name: &str| {
        let dockerfile = format!("FROM test\nENV WHICH={name}\nWORKDIR /opt/{name}\nUSER daemon\n");
        TestTask::new(name).dockerfile(&dockerfile).tests(REWARD)
    };
    let job = job(suite, "true", "echo $WHICH $PWD $(id -un)")
        .task(task("a"))
        .task(task("b"))
        .set("n_attempts", json!(2));
    let finished = job.run().expect(0);
    assert_eq!(installed(&finished), 2);
    for (name, attempt) in [("a", 1), ("a", 2), ("b", 1), ("b", 2)] {
        let said = finished.file(&format!("agent/set/{name}__{attempt}/command/stdout.txt"));
        assert_eq!(said, format!("{name} /opt/{name} daemon\n"));
    }
}

pub fn an_install_that_fails_is_not_kept(suite: &Suite) {
    let job =
        job(suite, "touch /opt/half; exit 3", "true").task(TestTask::new("task")).set("n_attempts", json!(2));
    let finished = job.run().expect(1);
    assert_eq!(installed(&finished), 2);
    for result in results(&finished) {
        assert_eq!(result["error"]["type"], "agent_install_failed", "{result:#}");
    }
    job.expect_nothing_left();
}

pub fn files_that_the_install_wrote_to_a_volume_exist_in_later_trials(suite: &Suite) {
    let task = TestTask::new("task").dockerfile("FROM test\nVOLUME /opt/agent\n").tests(REWARD);
    let job = job(suite, "echo installed > /opt/agent/state", "cat /opt/agent/state")
        .task(task)
        .set("n_attempts", json!(2));
    let finished = job.run().expect(0);
    for attempt in 1..=2 {
        assert_eq!(finished.file(&format!("agent/set/task__{attempt}/command/stdout.txt")), "installed\n");
    }
    job.expect_nothing_left();
}

pub fn a_snapshot_is_found_by_its_key_and_the_first_one_stays(suite: &Suite) {
    let job = suite.job().task(TestTask::new("task")).oracle();
    // Keys are hexadecimal hashes, as in trials.
    let key: String = job.name().bytes().cycle().take(32).map(|byte| format!("{byte:02x}")).collect();
    let log = job.root().join("build.txt");
    runtime().block_on(async {
        let (plan, provider) = job.connect().await;
        let task = plan.tasks()[0].container().unwrap();
        let origin = Origin { job: job.name(), trial: "oracle/set/task__1" };
        let image =
            provider.prepare(task.image_request(task.compose.as_deref(), origin, false, &log)).await.unwrap();
        assert!(provider.snapshot(&key).await.unwrap().is_none());
        let mut start = image.clone();
        for (round, expected) in [("first", "absent"), ("second", "first"), ("third", "first")] {
            let spec = EnvironmentSpec {
                cpus: Some(Cpus { millis: 1000 }),
                memory: Some(Bytes(256 << 20)),
                storage: Some(Bytes(1 << 30)),
                private_dirs: PRIVATE_DIRS,
                ..EnvironmentSpec::new(origin, &start, round)
            };
            let environment = provider.create(spec).await.unwrap();
            let read = environment.read_file("/opt/round", 100).await.unwrap();
            let found = match read {
                rollout::environment::FileRead::Content(content) => String::from_utf8(content).unwrap(),
                _ => "absent".to_owned(),
            };
            assert_eq!(found, expected);
            environment.write_file("/opt/round", round.as_bytes()).await.unwrap();
            environment.snapshot(&key).await.unwrap();
            // Later changes are not part of it.
            environment.write_file("/opt/round", b"later").await.unwrap();
            environment.destroy().await.unwrap();
            start = provider.snapshot(&key).await.unwrap().unwrap();
        }
    });
    job.expect_nothing_left();
}
