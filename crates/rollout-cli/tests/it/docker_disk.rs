//! How long images stay on an engine.

use std::collections::BTreeSet;

use rollout_testkit::{OwnEngine, TestEngine, TestJob, TestTask};
use serde_json::json;

fn job(engine: &TestEngine) -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout")).on(engine).oracle()
}

fn task(name: &str) -> TestTask {
    TestTask::new(name).dockerfile(&format!("FROM test\nWORKDIR /app\nENV NAME={name}\n"))
}

/// The images that Rollout made.
fn made(engine: &TestEngine) -> BTreeSet<String> {
    engine.images().into_iter().filter(|image| image.starts_with("rollout-")).collect()
}

#[test]
fn images_are_kept_as_the_job_says() {
    let own = OwnEngine::start();
    let engine = own.engine();
    let run = |name: &str, keep: &str| {
        let environment =
            json!({"type": "docker", "keep_images": keep, "provider_config": {"network": "host"}});
        let job = job(engine).task(task(name)).set("environment", environment).set("n_attempts", json!(3));
        let finished = job.run().expect(0);
        assert_eq!(finished.result()["completed_trials"], 3, "{keep}");
    };
    run("done", "until_done");
    assert_eq!(made(engine), BTreeSet::new());
    run("never", "never");
    assert_eq!(made(engine), BTreeSet::new());
    run("kept", "always");
    assert_eq!(made(engine).len(), 2);
    assert!(engine.images().contains("test:latest"));
}

#[test]
fn large_datasets_do_not_keep_their_images() {
    let own = OwnEngine::start();
    let engine = own.engine();
    let tasks = (0..51).map(|number| task(&format!("task-{number}")));
    let job = tasks.fold(job(engine), |job, task| job.task(task));
    let limited = job.rollout(&["run", "job.yaml", "--limit", "2", "--set", "name=limited"]).expect(0);
    drop(limited);
    assert_eq!(made(engine).len(), 4, "two tasks are few");
    job.rollout(&["run", "job.yaml"]).expect(0);
    assert_eq!(made(engine), BTreeSet::new());
}

#[test]
fn a_task_whose_image_is_shared_keeps_it_until_both_are_done() {
    let own = OwnEngine::start();
    let engine = own.engine();
    let same = |name: &str| TestTask::new(name).dockerfile("FROM test\nWORKDIR /app\nENV NAME=same\n");
    let environment =
        json!({"type": "docker", "keep_images": "until_done", "provider_config": {"network": "host"}});
    let job = job(engine).task(same("one")).task(same("two")).set("environment", environment);
    job.set("n_attempts", json!(2)).run().expect(0);
    assert_eq!(made(engine), BTreeSet::new());
}

#[test]
fn the_build_cache_of_the_engine_is_left_alone_unless_the_job_says_so() {
    let own = OwnEngine::start();
    let engine = own.engine();
    let built = |name: &str| {
        let dockerfile = format!("FROM test\nWORKDIR /app\nRUN echo {name} > /name\n");
        TestTask::new(name).dockerfile(&dockerfile)
    };
    let names = ["a", "b", "c", "d", "e", "f"];
    let job = names.iter().fold(job(engine), |job, name| job.task(built(name)));
    // Room is made before the image of a task is built, so a build of its own follows each time.
    let run = |task: &str, after: &str| {
        let name = format!("name=job-{task}");
        let after = format!("environment.provider_config.prune_build_cache_after_sec={after}");
        let room = ["--set", "environment.free_disk=4Pi", "--set", &after];
        job.rollout(&[&["run", "job.yaml", "--task", task, "--set", &name], &room[..]].concat()).expect(0);
        let cached = engine.docker(&["system", "df", "--format", "{{.Type}}={{.TotalCount}}"]);
        let cached = cached.lines().find_map(|line| line.strip_prefix("Build Cache=")).unwrap();
        cached.parse::<u32>().unwrap()
    };
    let first = run("a", "null");
    assert!(first > 0, "the engine has a build cache");
    let second = run("b", "null");
    assert!(second > first, "{second} and {first}: the cache may be of another program");
    let third = run("c", "3600");
    assert!(third > second, "{third} and {second}: it was used in the last hour");
    let fourth = run("d", "0");
    assert!(fourth < third, "{fourth} and {third}: it was emptied");
    let room = ["--set", "environment.free_disk=4Pi", "--set", "log_level=warn"];
    let tasks = ["run", "job.yaml", "--task", "e", "--task", "f", "--set", "name=both"];
    job.rollout(&[&tasks[..], &room[..]].concat()).expect(0);
    let log = std::fs::read_to_string(job.root().join("jobs/both/rollout.log")).unwrap();
    assert_eq!(log.matches("`rollout clean --cache` removes it").count(), 1, "{log}");
}

#[test]
fn old_images_are_removed_to_keep_space_free() {
    let own = OwnEngine::start();
    let engine = own.engine();
    let job = job(engine).task(task("old")).task(task("new"));
    let run = |name: &str, task: &str, free: &str| {
        let free = format!("environment.free_disk={free}");
        let name = format!("name={name}");
        job.rollout(&["run", "job.yaml", "--task", task, "--set", &free, "--set", &name]).expect(0);
    };
    run("first", "old", "1Mi");
    let old = made(engine);
    assert_eq!(old.len(), 2);
    // Images that were used a moment ago stay.
    run("second", "new", "4Pi");
    assert!(made(engine).is_superset(&old));
    for entry in std::fs::read_dir(job.state_dir().join("docker-images")).unwrap() {
        let file = std::fs::File::options().write(true).open(entry.unwrap().path()).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(7200)).unwrap();
    }
    run("third", "new", "4Pi");
    assert!(made(engine).is_disjoint(&old), "{:?}", made(engine));
    assert_eq!(made(engine).len(), 2);
}
