//! The disk space of native images: its limits in a job, and those of `rollout clean`.

use std::{fs, path::PathBuf};

use rollout_testkit::{TestJob, TestTask};
use serde_json::json;

/// Far more than the host image and the files of an empty layer take.
const BULK: &str = "40000000";

/// A task whose image has a layer of 40 MB of its own.
fn bulky(name: &str) -> TestTask {
    TestTask::new(name).dockerfile(&format!(
        "FROM test\nWORKDIR /app\nRUN head -c {BULK} /dev/urandom > /bulk && echo {name} > /name\n"
    ))
}

/// A job that finds no engine: that of the user who runs the tests is not theirs.
fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .env("DOCKER_HOST", "unix:///nonexistent/engine.sock")
        .task(bulky("a"))
        .task(bulky("b"))
        .task(bulky("c"))
        .script("test -e /bulk && touch /app/done")
        .set("n_concurrent_trials", json!(1))
}

fn layers(job: &TestJob) -> Vec<PathBuf> {
    let entries = fs::read_dir(job.state_dir().join("layers")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn run(job: &TestJob, name: &str, task: &str, settings: &[&str]) {
    let name = format!("name={name}");
    let mut arguments = vec!["run", "job.yaml", "--set", &name, "--task", task];
    arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    job.rollout(&arguments).expect(0);
    job.expect_nothing_running();
}

#[test]
fn the_least_recently_used_images_go_before_another_is_prepared() {
    let job = job();
    let limit = ["environment.store_size=70M"];
    run(&job, "one", "a", &limit);
    run(&job, "two", "b", &limit);
    assert_eq!(layers(&job).len(), 2, "the limit is applied before an image is prepared");
    let before = layers(&job);
    run(&job, "three", "c", &limit);
    assert_eq!(layers(&job).len(), 2);
    assert_ne!(layers(&job), before);
}

#[test]
fn images_of_finished_tasks_make_room_in_the_same_job() {
    let job = job().set("environment/store_size", json!("50M"));
    job.rollout(&["run", "job.yaml", "--set", "environment.keep_images=until_done"]).expect(0);
    assert_eq!(layers(&job).len(), 1, "one fits");
    job.rollout(&["run", "job.yaml", "--set", "name=kept", "--set", "environment.keep_images=always"])
        .expect(0);
    assert_eq!(layers(&job).len(), 3, "the job used all of them");
}

#[test]
fn space_is_kept_free_on_the_disk() {
    let job = job();
    run(&job, "one", "a", &["environment.free_disk=0"]);
    // What was used a moment ago stays.
    run(&job, "two", "b", &["environment.free_disk=4Pi"]);
    assert_eq!(layers(&job).len(), 2);
    for layer in layers(&job) {
        let used = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
        fs::File::open(layer).unwrap().set_modified(used).unwrap();
    }
    run(&job, "three", "c", &["environment.free_disk=0"]);
    assert_eq!(layers(&job).len(), 3);
    run(&job, "four", "c", &["environment.free_disk=4Pi"]);
    assert_eq!(layers(&job).len(), 1);
}

#[test]
fn clean_applies_a_limit() {
    let job = job();
    for task in ["a", "b", "c"] {
        run(&job, task, task, &[]);
    }
    let cleaned = |arguments: &[&str]| {
        let output = job.command(&[&["clean"], arguments].concat()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().filter(|line| line.contains("layer"));
        let words = lines.map(|line| line.split("  ").filter(|part| !part.is_empty()).take(2));
        words.map(|words| words.map(str::trim).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(cleaned(&["--store-size", "90M", "--dry-run"]), @"
    to remove 1 layer
    kept 2 layers
    ");
    assert_eq!(layers(&job).len(), 3);
    insta::assert_snapshot!(cleaned(&["--store-size", "50M"]), @"
    removed 2 layers
    kept 1 layer
    ");
    assert_eq!(layers(&job).len(), 1);
    let output = job.command(&["clean", "--store-size", "much"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
