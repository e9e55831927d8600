//! What owns the pods of Kubernetes jobs, on the API server of the testkit: no pod is left, and none is lost too early.

use rollout_testkit::{ApiFault, ApiTrouble, Gate, KubernetesServer, TestJob, TestTask, until};
use serde_json::{Value, json};

const ROLLOUT: &str = env!("CARGO_BIN_EXE_rollout");

/// A namespace that exists from the start, and is not that of the kubeconfig file.
const NAMESPACE: &str = "kube-system";

fn job(server: &KubernetesServer) -> TestJob {
    let image = server.add_image("task", "1", &json!({}));
    TestJob::new(ROLLOUT)
        .set("environment", server.environment())
        .env("KUBECONFIG", &server.kubeconfig().display().to_string())
        .task(TestTask::new("task").config(&format!("[environment]\ndocker_image = {image:?}\n")))
}

/// The only object of a kind.
#[track_caller]
fn only(server: &KubernetesServer, plural: &str) -> Value {
    let objects = server.objects(plural);
    assert_eq!(objects.len(), 1, "{plural}: {objects:#?}");
    objects.into_iter().next().expect("there is one")
}

#[track_caller]
fn expect_nothing_left(server: &KubernetesServer) {
    for plural in ["pods", "leases", "jobs", "networkpolicies"] {
        until(&format!("the {plural} are deleted"), || server.objects(plural).is_empty());
    }
}

#[track_caller]
fn expect_owner(object: &Value, owner: &Value) {
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], owner["metadata"]["uid"], "{object:#}");
}

/// A script that waits at a gate, until its pod ends.
fn waiting(gate: &Gate) -> String {
    format!("({}) || true\nmkdir -p /app && touch /app/done", gate.wait())
}

#[test]
fn what_a_killed_run_leaves_deletes_itself() {
    let server = KubernetesServer::start(ROLLOUT);
    let gate = Gate::new();
    let job = job(&server).script(&waiting(&gate)).set("environment/provider_config/network", json!("none"));
    let running = job.start();
    let _waiting = gate.arrival();
    let (run, lease) = (only(&server, "jobs"), only(&server, "leases"));
    expect_owner(&lease, &run);
    expect_owner(&only(&server, "pods"), &lease);
    expect_owner(&only(&server, "networkpolicies"), &lease);
    // Five minutes, and the time for which a trial may continue without a connection.
    assert_eq!(run["spec"]["activeDeadlineSeconds"], 420);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 420);
    running.signal("-KILL");
    running.finish();
    server.pass_deadlines();
    expect_nothing_left(&server);
}

#[test]
fn the_deadline_of_a_run_moves_while_it_lives() {
    let server = KubernetesServer::start(ROLLOUT);
    let gate = Gate::new();
    let running = job(&server).script(&waiting(&gate)).start();
    let agent = gate.arrival();
    let deadline = || only(&server, "jobs")["spec"]["activeDeadlineSeconds"].as_u64();
    let renewed = || only(&server, "leases")["spec"]["renewTime"].clone();
    let (first, created) = (deadline(), renewed());
    until("the deadline moves", || deadline() >= first.map(|first| first + 60) && renewed() != created);
    agent.pass();
    running.finish().expect(0);
    expect_nothing_left(&server);
}

#[test]
fn a_run_whose_lease_was_deleted_gets_another_one() {
    let server = KubernetesServer::start(ROLLOUT);
    let gate = Gate::new();
    let job = job(&server).script(&waiting(&gate)).set("environment/provider_config/network", json!("none"));
    let running = job.start();
    let first = gate.arrival();
    let lease = only(&server, "leases");
    assert!(server.delete("leases", "default", lease["metadata"]["name"].as_str().expect("a name")));
    // The pod is deleted with its owner, and the trial is tried again.
    let second = gate.arrival();
    drop(first);
    let other = only(&server, "leases");
    assert_ne!(other["metadata"]["uid"], lease["metadata"]["uid"]);
    expect_owner(&only(&server, "pods"), &other);
    expect_owner(&only(&server, "networkpolicies"), &other);
    second.pass();
    let result = running.finish().expect(0).trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(2)), "{result:#}");
    expect_nothing_left(&server);
}

#[test]
fn a_run_without_permission_for_jobs_has_only_a_lease() {
    let server = KubernetesServer::start(ROLLOUT);
    server.fault(ApiFault::times(9, "create jobs", ApiTrouble::Status(403, None)));
    let gate = Gate::new();
    let running = job(&server).script(&waiting(&gate)).set("log_level", json!("warn")).start();
    let agent = gate.arrival();
    let lease = only(&server, "leases");
    assert_eq!(lease["metadata"]["ownerReferences"], Value::Null);
    expect_owner(&only(&server, "pods"), &lease);
    agent.pass();
    let finished = running.finish().expect(0);
    let log = finished.file("rollout.log");
    assert!(log.contains("cannot create the job"), "{log}");
    expect_nothing_left(&server);
}

#[test]
fn a_preserved_pod_keeps_its_policy_and_is_found_in_its_namespace() {
    let server = KubernetesServer::start(ROLLOUT);
    let job = job(&server)
        .script("mkdir -p /app && touch /app/done")
        .set("environment/preserve_env", json!("always"))
        .set("environment/provider_config/namespace", json!(NAMESPACE))
        .set("environment/provider_config/network", json!("none"));
    job.run().expect(0);
    until("the lease is deleted", || server.objects("leases").is_empty());
    let (pod, policy, expiry) =
        (only(&server, "pods"), only(&server, "networkpolicies"), only(&server, "jobs"));
    let selected = policy["spec"]["podSelector"]["matchLabels"].as_object().expect("labels");
    assert!(!selected.is_empty());
    for (key, value) in selected {
        assert_eq!(pod["metadata"]["labels"][key], *value, "the policy selects the pod");
    }
    expect_owner(&policy, &pod);
    // The pod is deleted after its lifetime, and its Job with it if the user deletes it before.
    expect_owner(&pod, &expiry);
    expect_owner(&expiry, &pod);
    let deadline = expiry["spec"]["activeDeadlineSeconds"].as_u64().expect("a deadline");
    assert!((86_000..=86_460).contains(&deadline), "{deadline}");

    let chosen = ["--context", "loopback", "--namespace", NAMESPACE];
    let clean = |more: &[&str]| job.rollout(&[&["clean"], more].concat()).expect(0).stdout();
    assert!(clean(&[]).contains("0 preserved pods"), "the namespace of the context has none");
    assert!(clean(&chosen).contains("1 preserved pod "));
    assert!(job.rollout(&[&["doctor"][..], &chosen].concat()).stdout().contains("namespace kube-system"));
    assert!(clean(&[&chosen[..], &["--preserved"]].concat()).contains("1 preserved pod"));
    expect_nothing_left(&server);
}

#[test]
fn a_preserved_pod_is_deleted_after_its_lifetime() {
    let server = KubernetesServer::start(ROLLOUT);
    let job = job(&server)
        .script("mkdir -p /app && touch /app/done")
        .set("environment/preserve_env", json!("always"));
    job.run().expect(0);
    assert_eq!(server.objects("pods").len(), 1);
    server.pass_deadlines();
    expect_nothing_left(&server);
}

#[test]
fn a_context_that_does_not_exist_is_an_error() {
    let server = KubernetesServer::start(ROLLOUT);
    let finished = job(&server).rollout(&["clean", "--context", "other"]);
    assert_ne!(finished.code(), 0);
    assert!(finished.stderr().contains("other"), "{}", finished.stderr());
}
