//! E2B.

use std::sync::Arc;

use rollout_testkit::{
    CloudCall, CloudFake as _, CloudTrouble, E2bServer, Gate, Python, TestTask,
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
fn clean_deletes_the_sandboxes_of_a_killed_job_and_reports_those_that_stay() {
    let fake = Arc::new(server());
    let gate = Gate::new();
    let job = Cloud::shared(Arc::clone(&fake))
        .command_job()
        .set("environment/provider_config/grace_sec", json!(3))
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(2))
        .task(TestTask::new("task"))
        .script(&gate.wait());
    let running = job.start();
    let waiting = [gate.arrival(), gate.arrival()];
    running.signal("-KILL");
    running.finish();
    // The guests end by themselves.
    for waiting in waiting {
        waiting.ended();
    }
    let left = fake.sandboxes();
    assert_eq!(left.len(), 2, "{left:?}");
    fake.faults().times(1000, CloudCall::Delete, CloudTrouble::Refusal);
    let refused = job.rollout(&["clean", "--all-providers"]).expect(1);
    assert!(refused.stdout().contains("2 sandboxes that could not be deleted"), "{}", refused.stdout());
    for sandbox in &left {
        assert!(refused.stderr().contains(&sandbox.id), "{}", refused.stderr());
    }
    fake.faults().heal();
    let shown = job.rollout(&["clean", "--all-providers"]).expect(0).stdout();
    assert!(shown.contains("e2b") && shown.contains("2 sandboxes of ended runs"), "{shown}");
    until("the sandboxes are deleted", || fake.sandboxes().is_empty());
}

#[test]
fn a_dry_run_shows_the_size_and_the_price_of_each_trial() {
    let cloud = Cloud::shared(Arc::new(server()));
    let task = |name: &str, environment: &str| {
        let timeouts =
            "[agent]\ntimeout_sec = 3000\ninstall_timeout_sec = 300\n[verifier]\ntimeout_sec = 300\n";
        TestTask::new(name).config(&format!("{timeouts}[environment]\n{environment}"))
    };
    let job = cloud
        .command_job()
        .set("environment/provider_config/cpu_hour", json!(1))
        .set("environment/provider_config/gib_hour", json!(2))
        .set("environment/provider_config/max_lifetime_sec", json!(1800))
        .set("n_attempts", json!(3))
        .task(task("small", "cpus = 1.5\nmemory = \"1000Mi\"\n"))
        .task(task("large", "cpus = 64\n"))
        .oracle();
    let shown = job.rollout(&["run", "job.yaml", "--dry-run"]).expect(0);
    let (out, warnings) = (shown.stdout(), shown.stderr());
    for line in [
        "1 task: 2 CPUs, 1 GiB of memory; $4.00 an hour, at most $4.00 a trial",
        "1 task: the size is not available, so the cost is not included",
        "at most $12.00 if every trial uses all of its time; models, retries, separate tests of another size, and \
         the start of environments are not included",
    ] {
        assert!(out.contains(line), "{line:?} is not in:\n{out}");
    }
    assert!(warnings.contains("task set/large: the task needs 64 CPUs"), "{warnings}");
    assert!(
        warnings.contains(
            "a trial may take 1h 00m, but its environment ends after 30m 00s, and a trial that takes longer fails"
        ),
        "{warnings}"
    );
}
