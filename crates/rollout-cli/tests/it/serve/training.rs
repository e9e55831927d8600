//! The training loop of the documentation, against both kinds of jobs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use rollout_testkit::{FileServer, ModelReply, ModelServer, Script, TestJob};
use serde_json::{Value, json};

use super::Service;

fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A training job of the examples, with a model at this address.
fn served(job: &str, server: &ModelServer) -> Service {
    let test = TestJob::new(env!("CARGO_BIN_EXE_rollout")).env("MODEL_URL", &server.url());
    let copied = Command::new("cp").arg("-r").arg(repository().join("examples")).arg(test.root()).status();
    assert!(copied.unwrap().success());
    Service::start_at(test, &format!("examples/training/{job}"), &[])
}

/// Runs the loop with a service.
fn run(dir: &Path, service: &str) -> Output {
    Command::new("python3")
        .arg(repository().join("examples/training/train.py"))
        .current_dir(dir)
        .env("ROLLOUT_URL", service)
        .output()
        .expect("run python3")
}

/// Runs the loop, and returns what it prints and what its trainer noted in each step.
fn train(service: &Service) -> (String, Vec<Vec<Value>>) {
    let dir = service.job.root();
    let output = run(dir, &format!("http://{}", service.address));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let noted = |step: usize| -> Vec<Value> {
        let text = fs::read_to_string(dir.join(format!("step-{step}.jsonl"))).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    (String::from_utf8(output.stdout).unwrap(), vec![noted(1), noted(2)])
}

#[test]
fn the_documented_loop_is_the_example() {
    let documented = fs::read_to_string(repository().join("docs/training.md")).unwrap();
    let script = fs::read_to_string(repository().join("examples/training/train.py")).unwrap();
    assert!(
        documented.contains(&format!("```python\n{script}```\n")),
        "docs/training.md shows train.py as it is"
    );
}

#[test]
fn the_readme_shows_what_the_loop_prints_with_the_scripted_model() {
    let server = ModelServer::start(Script::examples());
    let (shown, _) = train(&served("sums.yaml", &server));
    let readme = fs::read_to_string(repository().join("examples/training/README.md")).unwrap();
    let command = "$ python3 examples/training/train.py\n";
    assert!(readme.contains(&format!("{command}{shown}```")), "the README has another text than:\n{shown}");
}

#[test]
fn the_loop_trains_on_an_interaction() {
    // The first weights are right about one question in every second rollout; the next ones always are.
    let asked = AtomicUsize::new(0);
    let server =
        ModelServer::scripted(move |request| match (request.model(), request.last_text().as_str()) {
            ("my-model", "What is 6*7?") if asked.fetch_add(1, Relaxed).is_multiple_of(2) => {
                ModelReply::text("42")
            }
            ("step-1", "What is 6*7?") => ModelReply::text("42"),
            _ => ModelReply::text("0"),
        });
    let service = served("sums.yaml", &server);
    let (shown, steps) = train(&service);
    insta::assert_snapshot!(shown, @"
    my-model: mean reward 0.17, 4 samples with 8 sampled tokens
    step-1: mean reward 0.33, 0 samples with 0 sampled tokens
    ");
    let mut advantages: Vec<f64> =
        steps[0].iter().map(|sample| sample["advantage"].as_f64().unwrap()).collect();
    advantages.sort_by(f64::total_cmp);
    assert_eq!(advantages, [-0.5, -0.5, 0.5, 0.5]);
    assert!(steps[0].iter().all(|sample| sample["example_id"] == 2), "{:?}", steps[0]);
    assert_eq!(steps[1], [Value::Null; 0], "all rewards of a question are equal");
}

#[test]
fn rollouts_that_failed_are_not_in_the_mean() {
    let server = ModelServer::scripted(|request| match (request.model(), request.last_text().as_str()) {
        ("my-model", "What is 6*7?") => ModelReply::text("42"),
        _ => ModelReply::error(400, "not this one"),
    });
    let (shown, steps) = train(&served("sums.yaml", &server));
    insta::assert_snapshot!(shown, @"
    my-model: mean reward 1.00, 0 samples with 0 sampled tokens
    step-1: mean reward nan, 0 samples with 0 sampled tokens
    ");
    assert_eq!(steps.concat(), [Value::Null; 0]);
}

#[test]
fn the_loop_does_not_train_on_an_incomplete_answer() {
    let dir = tempfile::tempdir().unwrap();
    let group = r#"{"type": "group", "rewards": [1.0], "errors": [null], "samples": []}"#;
    fs::create_dir(dir.path().join("v1")).unwrap();
    for (path, answer) in
        [("info", r#"{"model": "m"}"#), ("examples", r#"{"example_ids": [0]}"#), ("rollouts", group)]
    {
        fs::write(dir.path().join("v1").join(path), format!("{answer}\n")).unwrap();
    }
    let output = run(dir.path(), FileServer::new(dir.path()).url("").trim_end_matches('/'));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.ends_with("the answer is incomplete: its summary is missing\n"), "{said}");
    assert!(!output.status.success() && !dir.path().join("step-1.jsonl").exists());
}

#[test]
fn the_loop_trains_on_container_tasks() {
    let asked = AtomicUsize::new(0);
    let server = ModelServer::scripted(move |request| {
        let is_hello = request
            .messages()
            .iter()
            .any(|message| message["content"].as_str().is_some_and(|text| text.contains("hello.txt`")));
        let knows = || request.model() == "step-1" || asked.fetch_add(1, Relaxed).is_multiple_of(2);
        match request.turns() {
            0 if is_hello && knows() => {
                let command = json!({"command": "echo 'Hello, world!' > /app/hello.txt"});
                ModelReply::tool_call("bash", &command).tokens(&[1], &[(2, -0.5)])
            }
            0 => ModelReply::text("I do not know.").tokens(&[1], &[(5, -0.5)]),
            _ => ModelReply::text("Done.").tokens(&[1, 2, 3], &[(4, -0.25)]),
        }
    });
    let service = served("tasks.yaml", &server);
    let (shown, steps) = train(&service);
    insta::assert_snapshot!(shown, @"
    my-model: mean reward 0.17, 4 samples with 6 sampled tokens
    step-1: mean reward 0.33, 0 samples with 0 sampled tokens
    ");
    assert!(steps[0].iter().all(|sample| sample["task"] == "hello-world"), "{:?}", steps[0]);
    assert_eq!(steps[1], [Value::Null; 0], "all rewards of a task are equal");
}
