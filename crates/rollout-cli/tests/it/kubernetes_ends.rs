//! Pods that end, do not start or lose their connection, on the API server of the testkit: the error of the trial, and
//! whether it is tried again.

use std::time::Duration;

use rollout_testkit::{ApiFault, ApiTrouble, Gate, KubernetesServer, PodFault, TestJob, TestTask, until};
use serde_json::{Value, json};

const ROLLOUT: &str = env!("CARGO_BIN_EXE_rollout");

fn job(server: &KubernetesServer) -> TestJob {
    let image = server.add_image("task", "1", &json!({}));
    let config = format!("[environment]\ndocker_image = {image:?}\ncpus = 1\nmemory_mb = 512\n");
    TestJob::new(ROLLOUT)
        .set("environment", server.environment())
        .set("retry/initial_delay_ms", json!(1))
        .task(TestTask::new("task").config(&config).solution("mkdir -p /app && touch /app/done\n"))
}

#[track_caller]
fn expect_error(error: &Value, kind: &str, words: &str) {
    assert_eq!(error["type"], kind, "{error:#}");
    assert!(error["message"].as_str().expect("a message").contains(words), "{error:#}");
}

#[track_caller]
fn expect_nothing_left(server: &KubernetesServer) {
    for plural in ["pods", "leases", "jobs"] {
        until(&format!("the {plural} are deleted"), || server.objects(plural).is_empty());
    }
}

/// A job whose agent waits while `end` ends its pod, by its name. Returns the error of the first try, and the result.
/// The agent of a second try goes on.
fn ended(server: &KubernetesServer, end: impl FnOnce(&str) -> bool) -> (Option<Value>, Value) {
    let gate = Gate::new();
    let script = format!("({}) || true\nmkdir -p /app && touch /app/done", gate.wait());
    let mut running = job(server).script(&script).start();
    let first = gate.arrival();
    let pod = server.objects("pods")[0]["metadata"]["name"].as_str().expect("a name").to_owned();
    assert!(end(&pod), "the pod exists");
    let named = |events: &[Value], name: &str| events.iter().find(|event| event["event"] == name).cloned();
    running.until("the end of a try", |events| {
        named(events, "trial_retried").or_else(|| named(events, "trial_finished")).is_some()
    });
    let retried = named(&running.events(), "trial_retried");
    if retried.is_some() {
        gate.arrival().pass();
    }
    drop(first);
    let result = running.finish().trial("agent/set/task__1");
    (retried.map(|event| event["error"].clone()), result)
}

#[test]
fn a_pod_that_its_node_evicts_is_tried_again() {
    let server = KubernetesServer::start(ROLLOUT);
    let (error, result) = ended(&server, |pod| server.evict("default", pod));
    let words = "the pod was evicted from its node: The node was low on resource: ephemeral-storage.";
    expect_error(&error.expect("another try"), "internal_error", words);
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(2)), "{result:#}");
    expect_nothing_left(&server);
}

#[test]
fn a_pod_whose_node_is_lost_is_tried_again() {
    let server = KubernetesServer::start(ROLLOUT);
    let (error, result) = ended(&server, |pod| server.lose_node("default", pod));
    expect_error(&error.expect("another try"), "internal_error", "the node of the pod was lost");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(2)), "{result:#}");
}

#[test]
fn a_pod_that_is_deleted_is_tried_again_and_the_cluster_is_not_polled() {
    let server = KubernetesServer::start(ROLLOUT);
    let (error, result) = ended(&server, |pod| server.delete("pods", "default", pod));
    expect_error(&error.expect("another try"), "internal_error", "the pod was deleted from outside");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(2)), "{result:#}");
    // The watch had the state of the pod.
    assert_eq!(server.calls().of("get pods"), 0, "{}", server.calls());
    expect_nothing_left(&server);
}

#[test]
fn a_pod_without_memory_fails_its_trial() {
    let server = KubernetesServer::start(ROLLOUT);
    let (error, result) = ended(&server, |pod| server.kill_out_of_memory("default", pod));
    assert!(error.is_none(), "{error:#?}");
    expect_error(&result["error"], "agent_execution_failed", "the container ran out of memory");
    assert_eq!(result["tries"], 1, "{result:#}");
    expect_nothing_left(&server);
}

#[test]
fn a_pod_that_cannot_start_fails_its_trial_at_once() {
    for (fault, kind, words) in [
        (PodFault::ImagePull, "environment_image_pull_failed", "manifest unknown"),
        (PodFault::Unschedulable, "environment_resource_allocation_failed", "1 Insufficient cpu"),
    ] {
        let server = KubernetesServer::start(ROLLOUT);
        server.pod_fault("task", fault);
        let job = job(&server).oracle().set("environment/provider_config/start_timeout_sec", json!(15));
        let result = job.run().expect(1).trial("oracle/set/task__1");
        expect_error(&result["error"], kind, words);
        assert_eq!(result["tries"], 1, "{result:#}");
        expect_nothing_left(&server);
    }
}

#[test]
fn a_pod_that_runs_out_of_memory_or_is_evicted_by_itself_is_reported() {
    for (fault, kind, words, tries) in [
        (
            PodFault::OutOfMemory(Duration::from_secs(2)),
            "agent_execution_failed",
            "the container ran out of memory",
            1,
        ),
        (
            PodFault::StorageExceeded(Duration::from_secs(2)),
            "agent_execution_failed",
            "exceeded its local ephemeral storage limit",
            1,
        ),
        (PodFault::Evicted(Duration::from_secs(2)), "internal_error", "low on resource: memory", 2),
        (PodFault::NodeLost(Duration::from_secs(2)), "internal_error", "the node of the pod was lost", 2),
    ] {
        let server = KubernetesServer::start(ROLLOUT);
        server.pod_fault("task", fault);
        // All tries have the fault.
        let job = job(&server).script("sleep 600").set("retry/max_attempts", json!(2));
        let result = job.run().expect(1).trial("agent/set/task__1");
        expect_error(&result["error"], kind, words);
        assert_eq!(result["tries"], tries, "{result:#}");
    }
}

#[test]
fn cut_connections_do_not_end_a_trial() {
    let server = KubernetesServer::start(ROLLOUT);
    server.pod_fault("task", PodFault::CutStreams { after: 30_000, times: 3 });
    let script = "seq 20000; mkdir -p /app && touch /app/done";
    let finished = job(&server).script(script).run().expect(0);
    let expected: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    assert!(finished.file("agent/set/task__1/command/stdout.txt") == expected, "the output differs");
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(1)), "{result:#}");
    assert!(server.calls().of("connect pods/exec") >= 4, "{}", server.calls());
    expect_nothing_left(&server);
}

#[test]
fn a_pod_that_was_created_although_its_creation_seemed_to_fail_is_used() {
    for trouble in [ApiTrouble::StatusAfter(504), ApiTrouble::StatusAfter(500), ApiTrouble::LoseAnswer] {
        let server = KubernetesServer::start(ROLLOUT);
        server.fault(ApiFault::once("create pods", trouble.clone()));
        let job = job(&server)
            .oracle()
            .set("environment/provider_config/start_timeout_sec", json!(60))
            .set("retry/max_attempts", json!(1));
        let result = job.run().expect(0).trial("oracle/set/task__1");
        assert_eq!(
            (&result["reward"], &result["tries"]),
            (&json!(1.0), &json!(1)),
            "{trouble:?}: {result:#}"
        );
        let calls = server.calls();
        assert_eq!((calls.of("create pods"), calls.of("get pods")), (2, 1), "{trouble:?}: {calls}");
        expect_nothing_left(&server);
    }
}

#[test]
fn a_trial_costs_what_its_pod_requests() {
    let server = KubernetesServer::start(ROLLOUT);
    let cost = |settings: &[(&str, Value)]| {
        let mut job = job(&server).oracle();
        for (key, value) in settings {
            job = job.set(&format!("environment/provider_config/{key}"), value.clone());
        }
        let finished = job.run().expect(0);
        let is_announced = finished.stderr().contains("the start of environments are not included");
        let cost = finished.trial("oracle/set/task__1")["environment_cost"].as_f64().expect("a cost");
        assert_eq!(is_announced, cost > 0.0, "{}", finished.stderr());
        cost
    };
    assert_eq!(cost(&[]), 0.0, "there is no price");
    for price in ["cpu_hour", "gib_hour"] {
        assert!(cost(&[(price, json!(1000))]) > 0.0, "{price}");
    }
    let pool = json!({"spot": {"cpu_hour": 1000}});
    let prices = [("node_selector", json!({"pool": "spot"})), ("pool_prices", pool)];
    assert!(cost(&prices) > 0.0);
}
