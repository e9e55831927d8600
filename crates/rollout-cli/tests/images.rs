//! Images: built once for their content, kept, and environments that share nothing but them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeSet, fs, path::PathBuf};

use rollout_testkit::{TestJob, TestTask};
use serde_json::json;

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

/// A task whose image knows which build it came from.
fn stamped(name: &str) -> TestTask {
    TestTask::new(name)
        .dockerfile("FROM test\nWORKDIR /app\nRUN cat /proc/sys/kernel/random/uuid > /stamp\n")
        .tests("cat /stamp; echo 1 > /logs/verifier/reward.txt\n")
}

fn stamps(job: &TestJob, name: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for dataset in fs::read_dir(job.root().join("jobs").join(name).join("oracle")).unwrap() {
        for trial in fs::read_dir(dataset.unwrap().path()).unwrap() {
            found.insert(fs::read_to_string(trial.unwrap().path().join("logs/verifier/stdout.txt")).unwrap());
        }
    }
    assert!(found.iter().all(|stamp| stamp.len() == 37), "{found:?}");
    found
}

#[test]
fn a_forced_build_happens_once_for_all_trials_of_a_job() {
    let job = job()
        .task(stamped("task"))
        .oracle()
        .set("n_attempts", json!(4))
        .set("environment/force_build", json!(true));
    job.rollout(&["run", "job.yaml", "--set", "name=one"]).expect(0);
    job.rollout(&["run", "job.yaml", "--set", "name=two"]).expect(0);
    let (one, two) = (stamps(&job, "one"), stamps(&job, "two"));
    assert_eq!((one.len(), two.len()), (1, 1));
    assert_ne!(one, two);
}

#[test]
fn tasks_of_the_same_content_share_one_build() {
    let job = job().task(stamped("a")).task(stamped("b")).task(stamped("c")).oracle();
    job.run().expect(0);
    assert_eq!(stamps(&job, "job").len(), 1);
}

#[test]
fn jobs_at_the_same_time_share_one_build() {
    let job = job().task(stamped("task")).oracle();
    let names = ["one", "two", "three"];
    let started: Vec<_> = names
        .iter()
        .map(|name| job.command(&["run", "job.yaml", "--set", &format!("name={name}")]).spawn().unwrap())
        .collect();
    for mut child in started {
        assert!(child.wait().unwrap().success());
    }
    let all: BTreeSet<String> = names.iter().flat_map(|name| stamps(&job, name)).collect();
    assert_eq!(all.len(), 1);
}

#[test]
fn a_changed_context_is_another_image() {
    let copying = |content: &str| {
        TestTask::new("task")
            .dockerfile("FROM test\nWORKDIR /app\nCOPY data.txt /data.txt\n")
            .file("environment/data.txt", content)
            .tests("cat /data.txt; echo 1 > /logs/verifier/reward.txt\n")
    };
    let job = job().task(copying("first\n")).oracle();
    job.rollout(&["run", "job.yaml", "--set", "name=one"]).expect(0);
    let job = job.task(copying("second\n"));
    job.rollout(&["run", "job.yaml", "--set", "name=two"]).expect(0);
    let said = |name: &str| {
        fs::read_to_string(
            job.root().join(format!("jobs/{name}/oracle/set/task__1/logs/verifier/stdout.txt")),
        )
        .unwrap()
    };
    assert_eq!((said("one"), said("two")), ("first\n".to_owned(), "second\n".to_owned()));
}

#[test]
fn the_build_log_is_there_when_something_was_built() {
    let task = TestTask::new("task").dockerfile("FROM test\nWORKDIR /app\nRUN echo said while building\n");
    let finished = job().task(task).oracle().run().expect(0);
    assert!(finished.file("oracle/set/task__1/environment/build.txt").contains("said while building"));
}

#[test]
fn trials_share_nothing_with_each_other_or_the_host() {
    let traces = "/app/trace /tmp/trace /dev/shm/trace /usr/local/trace /etc/trace /var/tmp/trace";
    let script = format!("ls {traces} 2>/dev/null; touch {traces} /app/done");
    let job = job()
        .task(TestTask::new("task"))
        .script(&script)
        .set("n_attempts", json!(3))
        .set("n_concurrent_trials", json!(1));
    let finished = job.run().expect(0);
    for attempt in 1..=3 {
        assert_eq!(finished.file(&format!("agent/set/task__{attempt}/command/stdout.txt")), "");
    }
    for trace in traces.split(' ').filter(|trace| !trace.starts_with("/app")) {
        assert!(!PathBuf::from(trace).exists(), "{trace} is on the host");
    }
}

#[test]
fn an_agent_has_no_power_over_the_machine() {
    let script = "mount -t tmpfs none /mnt && echo mounted
        cat /proc/sys/kernel/panic > /proc/sys/kernel/panic && echo kernel
        mknod /app/disk b 8 0 && echo device
        hostname stolen && echo name
        unshare -m true && echo namespace
        unshare -U true && echo user namespace
        awk '/NoNewPrivs|CapEff/ { print $2 }' /proc/self/status";
    let finished = job().task(TestTask::new("task")).script(script).run().expect(0);
    let said = finished.file("agent/set/task__1/command/stdout.txt");
    let [capabilities, no_new_privileges] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert_eq!(no_new_privileges, "1");
    let capabilities = u64::from_str_radix(capabilities, 16).unwrap();
    // Modules, raw input and output, administration, reboot, time.
    for forbidden in [16, 17, 21, 22, 25] {
        assert_eq!(capabilities >> forbidden & 1, 0, "capability {forbidden} of {capabilities:x}");
    }
}

#[test]
fn preserved_environments_outlive_other_jobs_and_clean_until_they_are_named() {
    let job = job().task(TestTask::new("task")).oracle().set("environment/preserve_env", json!("always"));
    let place = job.run().expect(0).trial("oracle/set/task__1")["environment"]["preserved"].clone();
    let place = PathBuf::from(place.as_str().unwrap());
    job.rollout(&["run", "job.yaml", "--set", "name=other", "--set", "environment.preserve_env=never"])
        .expect(0);
    job.rollout(&["clean"]).expect(0);
    assert!(place.is_dir(), "{} is gone", place.display());
    job.rollout(&["clean", "--preserved"]).expect(0);
    assert!(!place.exists());
    assert_eq!(job.environments(), Vec::<PathBuf>::new());
}
