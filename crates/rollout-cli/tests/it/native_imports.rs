//! Images of native jobs that are in no registry: of a local Docker engine, and from files.

use rollout_testkit::{TestEngine, TestJob, TestTask};
use serde_json::{Value, json};

/// A job on native with this mapping of images.
fn job(images: Value) -> TestJob {
    let environment = json!({"type": "native", "provider_config": {"network": "none", "images": images}});
    TestJob::new(env!("CARGO_BIN_EXE_rollout")).set("environment", environment).oracle()
}

#[test]
fn tasks_run_in_images_of_a_local_engine_and_of_a_file() {
    let rootfs = std::env::var("ROLLOUT_TEST_BASE").expect("run the tests with scripts/with-services");
    let images = json!({"made/here:*": "docker:test", "from/file": format!("rootfs:{rootfs}")});
    let task = |name: &str, image: &str| {
        TestTask::new(name).dockerfile(&format!(
            "FROM {image}\nWORKDIR /app\nRUN grep -q Debian /etc/os-release\nUSER root\n"
        ))
    };
    let job = job(images)
        .env("DOCKER_HOST", TestEngine::shared().host())
        .task(task("engine", "made/here:1"))
        .task(task("file", "from/file"));
    let finished = job.run().expect(0);
    assert_eq!(finished.result()["mean_reward"], 1.0, "{:#}", finished.result());
    // No engine is needed for layers that are in the store and an image that is built.
    let again = job.rollout(&["run", "job.yaml", "--set", "name=again"]).expect(0);
    assert!(again.stdout().contains("2 completed"), "{}", again.stdout());
}

#[test]
fn an_image_that_cannot_be_imported_is_reported_with_its_origin() {
    let task = |name: &str, image: &str| TestTask::new(name).dockerfile(&format!("FROM {image}\nRUN true\n"));
    // Nothing starts if no task can run.
    let missing = job(json!({"x": "oci:/nonexistent/layout"})).task(task("missing", "x")).run().expect(2);
    assert!(missing.stderr().contains("maps x to /nonexistent/layout"), "{}", missing.stderr());
    let absent = job(json!({"x": "docker:native-imports-absent"}))
        .env("DOCKER_HOST", TestEngine::shared().host())
        .task(task("absent", "x"));
    let finished = absent.run().expect(1);
    let error = &finished.trial("oracle/set/absent__1")["error"];
    assert_eq!(error["type"], "environment_build_failed", "{error:#}");
    assert!(error["message"].as_str().unwrap().contains("native-imports-absent"), "{error:#}");
}
