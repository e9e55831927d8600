//! E2B.

use std::sync::Arc;

use rollout_testkit::{
    CloudFake as _, E2bServer, Gate, Python, TestJob, TestTask,
    conformance::{Ability, Suite},
    until,
};
use serde_json::{Value, json};

use super::Cloud;

fn server() -> E2bServer {
    E2bServer::start(env!("CARGO_BIN_EXE_rollout"))
}

fn cloud() -> Cloud {
    Cloud::new(server()).lacking(Ability::FractionsOfCpus)
}

cloud_tests!(cloud());

/// The official client accepts the fake, and means the same by its messages.
#[test]
fn the_client_of_e2b_drives_the_fake() {
    let fake = server();
    let variables: serde_json::Map<String, Value> =
        fake.variables().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let python = Python::with_packages("clouds.txt");
    let output = python.run(include_str!("e2b_sdk.py"), &json!({"variables": variables}).to_string());
    let seen: Value = serde_json::from_str(output.lines().last().unwrap_or_default()).expect("JSON");
    assert_eq!(
        seen,
        json!({
            "built": true,
            "exists": true,
            "broken": "BuildException",
            "stdout": "hello\n",
            "stderr": "word\n",
            "code": 0,
            "failed": 7,
            "echo": "bytes",
            "processes": true,
            "killed": true,
            "listed": true,
            "others": 0,
            "info": [{"kind": "a test & more"}, 1, 512],
            "running": true,
            "again": "again\n",
            "deleted": [true, false],
            "left": 0,
        }),
        "{seen:#}"
    );
    assert!(fake.sandboxes().is_empty());
}

#[test]
fn the_size_of_a_task_is_that_of_its_template() {
    let fake = Arc::new(server());
    let suite = Suite::new(Cloud::shared(Arc::clone(&fake)));
    let task = TestTask::new("task").config("[environment]\ncpus = 1\nmemory = \"700Mi\"\n");
    let job = suite.job().task(task).oracle().set("environment/provider_config/cpu_hour", json!(1));
    let result = job.run().expect(0).trial("oracle/set/task__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    assert_eq!(fake.sizes(), [(1, 768), (2, 1024)]);
    assert!(result["environment_cost"].as_f64().unwrap() > 0.0, "{result:#}");
}

#[test]
fn a_dockerfile_that_e2b_cannot_build_is_named_in_the_error() {
    let suite = Suite::new(cloud());
    let task =
        TestTask::new("task").dockerfile("FROM test AS one\nFROM test\nCOPY --from=one /etc/passwd /x\n");
    let result = suite.job().task(task).oracle().run().expect(1).trial("oracle/set/task__1");
    assert_eq!(result["error"]["type"], "environment_build_failed", "{result:#}");
    assert!(result["error"]["message"].as_str().unwrap().contains("several stages"), "{result:#}");
}

#[test]
fn clean_deletes_the_sandboxes_of_a_killed_job() {
    let fake = server();
    let gate = Gate::new();
    let mut job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .set("environment", json!({"type": "e2b", "provider_config": {"grace_sec": 3}}))
        .env("DOCKER_HOST", "unix:///nonexistent/engine.sock")
        .task(TestTask::new("task"))
        .script(&gate.wait());
    for (name, value) in fake.variables() {
        job = job.env(name, &value);
    }
    let running = job.start();
    let waiting = gate.arrival();
    running.signal("-KILL");
    running.finish();
    // The guest ends by itself.
    waiting.ended();
    assert_eq!(fake.sandboxes().len(), 1);
    let shown = job.rollout(&["clean", "--all-providers"]).expect(0).stdout();
    assert!(shown.contains("e2b"), "{shown}");
    until("the sandbox is deleted", || fake.sandboxes().is_empty());
}
