//! Modal.

use std::sync::Arc;

use rollout_testkit::{
    CloudFake as _, ModalServer, Python, TestTask,
    conformance::{Subject as _, Suite},
};
use serde_json::{Value, json};

use super::Cloud;

fn server() -> ModalServer {
    ModalServer::start(env!("CARGO_BIN_EXE_rollout"))
}

fn cloud() -> Cloud {
    Cloud::new(server())
}

cloud_tests!(cloud());

/// The official client accepts the fake, and means the same by its messages.
#[test]
fn the_client_of_modal_drives_the_fake() {
    let fake = server();
    let variables: serde_json::Map<String, Value> =
        fake.variables().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let python = Python::with_packages("clouds.txt");
    let output = python.run(include_str!("modal_sdk.py"), &json!({"variables": variables}).to_string());
    let seen: Value = serde_json::from_str(&output).expect("the program prints JSON");
    assert_eq!(
        seen,
        json!({
            "echo": true,
            "error": "word",
            "code": 3,
            "signal": 137,
            "copied": "from the context\n",
            "listed": true,
            "tags": {"kind": "test", "more": "tags"},
            "running": null,
            "reopened": "again\n",
            "terminated": 137,
            "left": 0,
            "exited": 7,
            "missing": "NotFoundError",
            "build": "ImageBuildError",
        }),
        "{seen:#}"
    );
    assert!(fake.sandboxes().is_empty());
}

#[test]
fn a_private_base_image_needs_the_secret_that_the_settings_name() {
    let fake = Arc::new(server());
    fake.add_secret("login", &["REGISTRY_USERNAME", "REGISTRY_PASSWORD"]);
    fake.add_secret("other", &["SOMETHING"]);
    let suite = Suite::new(Cloud::shared(Arc::clone(&fake)));
    let job = |secret: Option<&str>| {
        let task = TestTask::new("task").dockerfile("FROM private.example.com/test\nWORKDIR /app\n");
        let job = suite.job().task(task).oracle();
        match secret {
            Some(name) => job.set("environment/provider_config/registry_secret", json!(name)),
            None => job,
        }
    };
    let result = job(None).run().expect(1).trial("oracle/set/task__1");
    assert!(result["error"]["message"].as_str().unwrap().contains("pull access denied"), "{result:#}");
    for (secret, words) in [("other", "needs REGISTRY_USERNAME"), ("none", "has no secret `none`")] {
        let result = job(Some(secret)).run().expect(1).trial("oracle/set/task__1");
        assert!(result["error"]["message"].as_str().unwrap().contains(words), "{result:#}");
    }
    let result = job(Some("login")).run().expect(0).trial("oracle/set/task__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
}

#[test]
fn large_files_of_a_context_are_uploaded_and_an_image_is_built_once() {
    let fake = Arc::new(server());
    let suite = Suite::new(Cloud::shared(Arc::clone(&fake)));
    let large = "0123456789abcdef".repeat(320 << 10);
    let task = || {
        TestTask::new("task")
            .file("environment/large", &large)
            .dockerfile("FROM test\nWORKDIR /app\nCOPY large /large\n")
            .tests("wc -c < /large; [ $(wc -c < /large) = 5242880 ] && echo 1 > /logs/verifier/reward.txt\n")
    };
    for _ in 0..2 {
        let result = suite.job().task(task()).oracle().run().expect(0).trial("oracle/set/task__1");
        assert_eq!(result["reward"], 1.0, "{result:#}");
    }
    // That of the task, and that with the guest.
    assert_eq!(fake.builds(), 2);
}

#[test]
fn settings_choose_the_app() {
    let fake = Arc::new(server());
    let cloud = Cloud::shared(Arc::clone(&fake));
    assert_eq!(cloud.environment()["type"], "modal");
    let suite = Suite::new(cloud);
    let job = suite.job().task(TestTask::new("task")).oracle();
    let job = job
        .set("environment/provider_config/app", json!("team"))
        .set("environment/provider_config/environment", json!("dev"));
    job.run().expect(0);
    assert_eq!(fake.apps(), [("dev".to_owned(), "team".to_owned())]);
}
