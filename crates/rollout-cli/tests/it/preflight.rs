//! What is found before the first trial, and said once.

use std::{fs, io::Write as _, process::Stdio};

use rollout_testkit::{TestEngine, TestJob, TestTask};
use serde_json::json;

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

const SYNTAX_ERROR: &str = "if true; then\n";

/// Fails unless the job, its dry run and its validation all end with 2 and these words, and nothing is made.
#[track_caller]
fn refused(job: &TestJob, words: &[&str]) {
    for arguments in [&["run", "job.yaml"][..], &["run", "job.yaml", "--dry-run"], &["validate", "job.yaml"]]
    {
        let refused = job.rollout(arguments).expect(2);
        let said = refused.stdout() + &refused.stderr();
        for word in words {
            assert_eq!(said.matches(word).count(), 1, "{arguments:?} says {word:?} once:\n{said}");
        }
    }
    assert!(!job.root().join("jobs").exists());
}

#[test]
fn a_name_that_no_image_can_have_is_reported_once_for_all_tasks() {
    let job = ["a", "b", "c"]
        .iter()
        .fold(job(), |job, name| job.task(TestTask::new(name).dockerfile("FROM Not/An/Image\n")));
    let job = job.oracle().set("environment", json!({"type": "native"}));
    refused(&job, &["task set/a and 2 others", "\"Not/An/Image\" is not the name of an image"]);
}

#[test]
fn a_dockerfile_that_cannot_be_built_is_found_before_anything_runs() {
    let with = |text: &str| job().task(TestTask::new("task").dockerfile(text)).oracle();
    refused(&with("FROM x\nRUM true\n"), &["Dockerfile line 2"]);
    refused(
        &with("FROM x\nCOPY absent.txt /app/\n"),
        &["`absent.txt` does not exist in the directory of the Dockerfile"],
    );
}

#[test]
fn a_script_that_is_not_bash_is_found_before_anything_runs() {
    let task = || TestTask::new("task");
    refused(&job().task(task().tests(SYNTAX_ERROR)).oracle(), &["task set/task: tests/test.sh: line 2"]);
    refused(
        &job().task(task().solution(SYNTAX_ERROR)).oracle(),
        &["task set/task: solution/solve.sh: line 2"],
    );
    refused(&job().task(task()).script(SYNTAX_ERROR), &["agent agent: the execute script: line 2"]);
    let agent = json!({"name": "agent", "install": SYNTAX_ERROR, "execute": "true"});
    refused(&job().task(task()).agent(agent), &["agent agent: the install script: line 2"]);
}

#[test]
fn environments_that_are_too_large_for_the_machine_or_the_engine_are_reported_once() {
    for (job, owner) in [(job(), "this machine"), (job().on(&TestEngine::shared()), "the engine")] {
        let large = |name: &str| TestTask::new(name).config("[environment]\nmemory = \"4Ti\"\n");
        let job = job.task(large("a")).task(large("b")).task(TestTask::new("c")).oracle();
        let checked = job.rollout(&["run", "job.yaml", "--dry-run"]);
        let said = checked.stdout() + &checked.stderr();
        assert_eq!(said.matches("the environment needs").count(), 1, "{said}");
        assert!(
            said.contains("task set/a and 1 other") && said.contains(&format!("but {owner} has")),
            "{said}"
        );
    }
}

#[test]
fn what_one_task_has_is_a_warning_and_the_others_run() {
    let job = job()
        .task(TestTask::new("bad").tests(SYNTAX_ERROR))
        .task(TestTask::new("good"))
        .task(TestTask::new("late").tests("echo 1 > /logs/verifier/reward.txt\nexit 0\n((data\n"))
        .oracle();
    let finished = job.run().expect(1);
    assert!(
        finished.stderr().contains("warning: task set/bad: tests/test.sh: line 2"),
        "{}",
        finished.stderr()
    );
    assert_eq!(finished.trial("oracle/set/good__1")["reward"], 1.0);
    assert_eq!(finished.trial("oracle/set/late__1")["reward"], 1.0);
    assert_eq!(finished.trial("oracle/set/bad__1")["error"]["type"], "verifier_failed");
    let strict = job.rollout(&["run", "job.yaml", "--strict", "--set", "name=strict"]).expect(2);
    assert!(strict.stderr().contains("rejected by --strict"), "{}", strict.stderr());
    assert!(!job.root().join("jobs/strict").exists());
}

#[test]
fn one_agent_that_cannot_succeed_does_not_stop_another() {
    let bad = json!({"name": "bad", "execute": SYNTAX_ERROR});
    let finished = job().task(TestTask::new("task")).oracle().agent(bad).run().expect(1);
    assert!(finished.stderr().contains("warning: agent bad: the execute script"), "{}", finished.stderr());
    assert_eq!(finished.trial("oracle/set/task__1")["reward"], 1.0);
}

#[test]
fn a_resume_checks_what_it_adds_before_anything_starts() {
    let grow = ["resume", "jobs/job", "--with", "job.yaml"];
    let job = job().task(TestTask::new("good")).oracle();
    job.run().expect(0);
    let journal = || fs::read(job.dir().join("journal.jsonl")).unwrap();
    let before = journal();
    TestTask::new("bad").tests(SYNTAX_ERROR).write(&job.root().join("set"));
    let refused = job.rollout(&grow).expect(2).stderr();
    assert!(refused.contains("no added trial can succeed, so nothing was started"), "{refused}");
    assert!(refused.contains("error: task set/bad: tests/test.sh: line 2"), "{refused}");
    assert_eq!(journal(), before);

    // Beside a task that can succeed it is a warning, and what the job already has is not checked again.
    TestTask::new("fine").write(&job.root().join("set"));
    let grown = job.rollout(&grow).expect(1);
    let warned = "warning: task set/bad: tests/test.sh: line 2";
    assert!(grown.stderr().contains(warned), "{}", grown.stderr());
    assert_eq!(grown.trial("oracle/set/fine__1")["reward"], 1.0);
    assert_eq!(grown.trial("oracle/set/bad__1")["error"]["type"], "verifier_failed");
    TestTask::new("later").dockerfile("FROM test\nRUM true\n").write(&job.root().join("set"));
    let refused = job.rollout(&grow).expect(2).stderr();
    assert!(refused.contains("Dockerfile line 2") && !refused.contains("set/bad"), "{refused}");
}

#[test]
fn a_resume_that_adds_an_agent_checks_its_scripts() {
    let job = job().task(TestTask::new("task")).oracle();
    job.run().expect(0);
    let job = job.agent(json!({"name": "bad", "execute": SYNTAX_ERROR}));
    let refused = job.rollout(&["resume", "jobs/job", "--with", "job.yaml"]).expect(2).stderr();
    assert!(refused.contains("no added trial can succeed"), "{refused}");
    assert!(refused.contains("error: agent bad: the execute script: line 2"), "{refused}");
    assert!(!job.dir().join("bad").exists());
}

#[test]
fn a_dry_run_takes_the_provider_that_the_run_takes() {
    let job = job().task(TestTask::new("task")).oracle();
    let shown = job.rollout(&["run", "job.yaml", "--dry-run"]).expect(0).stdout();
    assert!(shown.contains("provider  native, network host"), "{shown}");
    let job = job.set("environment", json!({"type": "kubernetes"}));
    refused(&job, &["`registry` is missing in `provider_config`"]);
    let job = job.set("environment", json!({"type": "docker"})).env("DOCKER_HOST", "unix:///nonexistent");
    refused(&job, &["unix:///nonexistent: there is no such socket"]);
}

#[test]
fn a_model_server_that_does_not_answer_is_a_warning() {
    let model = json!({"name": "m", "base_url": "http://127.0.0.1:1/v1", "api_key": "a-key-of-some-length"});
    let job = job().task(TestTask::new("task")).agent(json!({"name": "gpt", "model": model}));
    let said = job.rollout(&["run", "job.yaml", "--dry-run"]).expect(0).stderr();
    assert!(
        said.contains("warning: agent gpt: the model server at http://127.0.0.1:1 does not answer"),
        "{said}"
    );
    let said = job.rollout(&["validate", "job.yaml"]).expect(0).stdout();
    assert!(said.contains("the model server at http://127.0.0.1:1 does not answer"), "{said}");
}

#[test]
fn each_model_server_without_a_key_that_does_not_answer_is_a_warning() {
    let model = |port: u16| json!({"name": "m", "base_url": format!("http://127.0.0.1:{port}/v1")});
    let interaction = json!({
        "dataset": [{"question": "What is 2+2?", "answer": "4"}],
        "type": "multi_turn",
        "user": {"model": model(2), "prompt": "Ask."},
        "rubric": [{"judge": {"model": model(3)}}],
    });
    let job = job()
        .agent(json!({"name": "gpt", "model": model(1)}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    let said = job.rollout(&["run", "job.yaml", "--dry-run"]).expect(0).stderr();
    for (subject, port) in [("agent gpt", 1), ("the user of sums", 2), ("the judge of sums", 3)] {
        let warning =
            format!("warning: {subject}: the model server at http://127.0.0.1:{port} does not answer");
        assert!(said.contains(&warning), "{said}");
    }
}

#[test]
fn a_directory_of_tasks_is_validated_with_its_dockerfiles_and_scripts() {
    let job = job()
        .task(TestTask::new("a").dockerfile("FRM x\n"))
        .task(TestTask::new("b").tests(SYNTAX_ERROR))
        .task(TestTask::new("c").tests(SYNTAX_ERROR));
    let found = job.rollout(&["validate", "set"]).expect(2).stdout();
    assert!(found.contains("error: task a: Dockerfile line 1"), "{found}");
    assert!(found.contains("error: task b and 1 other: tests/test.sh: line 2"), "{found}");
    assert!(found.contains("set (3 tasks): 2 problems"), "{found}");
}

#[test]
fn warnings_that_tasks_share_are_given_once_with_their_details() {
    let task = |name: &str| TestTask::new(name).config("[agent]\ntimeout = 5\n\n[environment]\ngpus = 1\n");
    let job = job().task(task("a")).task(task("b")).task(task("c")).oracle();
    let said = job.rollout(&["run", "job.yaml", "--dry-run"]).expect(0).stderr();
    let lines = said.lines().filter(|line| !line.starts_with("warning: low disk space for "));
    insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"), @"
    warning: task a and 2 others: unknown key `agent.timeout`, which is ignored; did you mean `timeout_sec`?
    warning: task set/a and 2 others: `environment.gpus` is not supported: the native environment has no GPUs; use `environment.type: docker`
    ");
    let shown = job.rollout(&["validate", "job.yaml"]).expect(2).stdout();
    assert_eq!(shown.matches("the same in task b and 1 other").count(), 1, "{shown}");
}

#[test]
fn a_directory_with_a_job_runs_and_so_does_standard_input() {
    let job = job().task(TestTask::new("task")).oracle();
    let mut in_directory = job.command(&["."]);
    assert!(in_directory.output().unwrap().status.success());
    assert!(job.dir().join("result.json").is_file());
    let config = fs::read_to_string(job.root().join("job.yaml")).unwrap();
    for (name, path) in [("dash", "-"), ("device", "/dev/stdin")] {
        let mut command = job.command(&[path, "--set", &format!("name={name}")]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{path}");
        let dir = format!("jobs/{name}");
        assert!(job.root().join(&dir).join("result.json").is_file());
        job.rollout(&["resume", &dir]).expect(0);
    }
    fs::create_dir(job.root().join("empty")).unwrap();
    let refused = job.rollout(&["empty"]).expect(2);
    assert!(refused.stderr().contains("empty has no job.yaml"), "{}", refused.stderr());
}
