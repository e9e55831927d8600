//! Kubernetes jobs against the API server of the testkit: the calls that they make, and what they leave.

use std::time::Duration;

use rollout_testkit::{
    ApiFault, ApiTrouble, Gate, KubernetesServer, PodFault, TestJob, TestTask, long_enough, until,
};
use serde_json::{Value, json};

const ROLLOUT: &str = env!("CARGO_BIN_EXE_rollout");

/// A job whose pods have the programs of this machine.
fn job(server: &KubernetesServer) -> TestJob {
    TestJob::new(ROLLOUT).set("environment", server.environment()).task(task(server))
}

fn task(server: &KubernetesServer) -> TestTask {
    let image = server.add_image("task", "1", &json!({}));
    TestTask::new("task")
        .config(&format!("[environment]\ndocker_image = {image:?}\n"))
        .solution("mkdir -p /app && touch /app/done\n")
}

/// Waits until the cluster has nothing of a job.
#[track_caller]
fn expect_nothing_left(server: &KubernetesServer) {
    for plural in ["pods", "leases", "jobs", "networkpolicies"] {
        until(&format!("the {plural} are deleted"), || server.objects(plural).is_empty());
    }
}

#[test]
fn a_trial_makes_few_calls_and_nothing_is_left() {
    const TRIALS: u64 = 40;
    let server = KubernetesServer::start(ROLLOUT);
    let job = job(&server).oracle().set("n_attempts", json!(TRIALS)).set("n_concurrent_trials", json!(10));
    let finished = job.run().expect(0);
    assert_eq!(finished.result()["completed_trials"], TRIALS);
    let calls = server.calls();
    for call in ["create pods", "delete pods"] {
        assert_eq!(calls.of(call), TRIALS, "{call}:\n{calls}");
    }
    for call in ["watch pods", "create jobs", "create leases", "delete leases", "delete jobs"] {
        assert_eq!(calls.of(call), 1, "{call}:\n{calls}");
    }
    // A guest that has only just started may not accept its first connection.
    assert!(calls.of("connect pods/exec") <= 2 * TRIALS, "{calls}");
    // The events of a pod that starts slowly, on a busy machine, show whether it waits for an image.
    let variable = calls.of("connect pods/exec") + calls.of("list events");
    assert!(calls.total() - variable <= 2 * TRIALS + 10, "{calls}");
    expect_nothing_left(&server);
}

/// The texts of the events about waiting.
fn waits(events: &[Value]) -> Vec<String> {
    let waiting = events.iter().filter(|event| event["event"] == "trial_waiting");
    waiting.map(|event| event["what"].as_str().expect("a text").to_owned()).collect()
}

#[test]
fn a_pod_without_a_node_is_reported_while_it_waits() {
    let server = KubernetesServer::start(ROLLOUT);
    server.pod_fault("task", PodFault::SlowScheduling(Duration::from_secs(2)));
    let job = job(&server).oracle().set("log_level", json!("info"));
    let finished = job.rollout(&["run", "job.yaml", "--output", "json"]).expect(0);
    let waits = waits(&finished.events());
    assert!(waits.iter().any(|what| what.contains("1 Insufficient cpu")), "{waits:?}");
    assert!(finished.file("rollout.log").contains("waiting for a node: 0/1 nodes are available"));
    expect_nothing_left(&server);
}

#[test]
fn a_slow_pull_is_reported_and_fails_the_trial_at_the_timeout() {
    long_enough(Duration::from_secs(2), |timeout| {
        let server = KubernetesServer::start(ROLLOUT);
        server.pod_fault("task", PodFault::SlowPull);
        let job = job(&server)
            .oracle()
            .set("environment/provider_config/start_timeout_sec", json!(timeout.as_secs()))
            .set("retry/max_attempts", json!(1));
        let finished = job.rollout(&["run", "job.yaml", "--output", "json"]).expect(1);
        expect_nothing_left(&server);
        let waits = waits(&finished.events());
        // Otherwise the time was up before the pull began.
        if !waits.iter().any(|what| what.starts_with("the image ")) {
            return None;
        }
        assert!(waits.iter().any(|what| what.contains("/task")), "{waits:?}");
        let result = finished.trial("oracle/set/task__1");
        assert_eq!(result["error"]["type"], "environment_image_pull_failed", "{result:#}");
        Some(())
    });
}

#[test]
fn a_full_quota_is_reported_while_a_pod_waits_for_it() {
    let server = KubernetesServer::start(ROLLOUT);
    server.limit_pods("default", 1);
    let job = job(&server).oracle().set("n_attempts", json!(2)).set("n_concurrent_trials", json!(2));
    let finished = job.rollout(&["run", "job.yaml", "--output", "json"]).expect(0);
    let waits = waits(&finished.events());
    assert!(waits.iter().any(|what| what.contains("exceeded quota")), "{waits:?}");
    expect_nothing_left(&server);
}

#[test]
fn a_busy_api_server_is_asked_again_when_it_says() {
    let server = KubernetesServer::start(ROLLOUT);
    for call in ["create pods", "create leases", "connect pods/exec"] {
        server.fault(ApiFault::times(2, call, ApiTrouble::Status(429, Some(1))));
    }
    let result = job(&server).oracle().run().expect(0).trial("oracle/set/task__1");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(1)), "{result:#}");
    let calls = server.calls();
    for call in ["create pods", "create leases", "connect pods/exec"] {
        assert_eq!(calls.of(call), 3, "{calls}");
    }
    expect_nothing_left(&server);
}

#[test]
fn a_policy_takes_the_network_of_pods_and_is_removed_with_the_run() {
    let server = KubernetesServer::start(ROLLOUT);
    // The sandboxes of this server have the host's network, so that the agent can reach the gate.
    let network = |mode: &str, settings: Value| {
        let gate = Gate::new();
        let image = server.add_image("task", "1", &json!({}));
        let config = format!("[environment]\ndocker_image = {image:?}\n{mode}");
        let mut job = TestJob::new(ROLLOUT)
            .set("environment", server.environment())
            .task(TestTask::new("task").config(&config))
            .script(&format!("{}mkdir -p /app && touch /app/done", gate.wait()));
        for (key, value) in settings.as_object().expect("a mapping") {
            job = job.set(&format!("environment/provider_config/{key}"), value.clone());
        }
        let running = job.start();
        let agent = gate.arrival();
        let policies = server.objects("networkpolicies");
        let labels = server.objects("pods")[0]["metadata"]["labels"].clone();
        agent.pass();
        running.finish().expect(0);
        expect_nothing_left(&server);
        (policies, labels)
    };
    for (mode, settings) in [
        ("", json!({"network": "none"})),
        ("network_mode = \"no-network\"\n", json!({"network_policy": true})),
        (
            "network_mode = \"allowlist\"\nallowed_hosts = [\"example.com\"]\n",
            json!({"network_policy": true}),
        ),
    ] {
        let (policies, labels) = network(mode, settings);
        assert_eq!(policies.len(), 1, "{mode:?}");
        let spec = &policies[0]["spec"];
        assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
        assert_eq!(
            (&spec["ingress"], &spec["egress"]),
            (&Value::Null, &Value::Null),
            "no rule allows anything"
        );
        for (key, value) in spec["podSelector"]["matchLabels"].as_object().expect("labels") {
            assert_eq!(labels[key], *value, "{mode:?}: the policy selects the pod");
        }
    }
    let (policies, _) = network("", json!({}));
    assert!(policies.is_empty(), "{policies:?}");
}

#[test]
fn an_image_that_the_registry_has_needs_no_engine() {
    let server = KubernetesServer::start(ROLLOUT);
    let job = TestJob::new(ROLLOUT)
        .set("environment", server.environment())
        .set("retry/max_attempts", json!(1))
        .task(TestTask::new("task").solution("mkdir -p /app && touch /app/done\n"))
        .oracle()
        .env("DOCKER_HOST", "unix:///no/engine");
    let result = job.run().expect(1).trial("oracle/set/task__1");
    let message = result["error"]["message"].as_str().expect("a message").to_owned();
    assert!(message.contains("needs a Docker engine"), "{message}");
    // The registry was asked for the hash of the content before.
    let asked = server.asked_images();
    let (repository, tag) = asked
        .iter()
        .find_map(|asked| asked.split_once(':').filter(|(repository, _)| *repository == "rollout-task"))
        .expect("the registry was asked for the image of the task");
    server.add_image(repository, tag, &json!({}));
    job.rollout(&["resume", "jobs/job", "--rerun", "error"]).expect(0);
    expect_nothing_left(&server);
}
