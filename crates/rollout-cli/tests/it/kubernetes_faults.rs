//! Kubernetes jobs whose connections, API server, pods or orchestrator fail: nothing is lost, and nothing stays.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::Command,
    time::Duration,
};

use rollout_testkit::{ClusterNamespace, Gate, Running, TestCluster, TestEngine, TestJob, TestTask, until};
use serde_json::{Value, json};

/// A job in a namespace of its own.
fn job(cluster: &TestCluster, namespace: &ClusterNamespace<'_>) -> TestJob {
    let engine = TestEngine::shared();
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .set(
            "environment",
            json!({"type": "k8s", "provider_config": {
                "namespace": namespace.name(),
                "registry": cluster.registry(),
                "network": "host",
                "cpu_request": 0.01,
                "memory_request": 0.01,
                "storage_request": 0,
            }}),
        )
        .env("DOCKER_HOST", engine.host())
        .env("KUBECONFIG", &cluster.kubeconfig().display().to_string())
}

fn task() -> TestTask {
    TestTask::new("task")
}

/// Kills the processes of connections to pods of a namespace; returns how many there were.
fn cut_connections(namespace: &ClusterNamespace<'_>) -> usize {
    let pods = namespace.pods();
    let mut cut = 0;
    for entry in fs::read_dir("/proc").expect("list processes").flatten() {
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let is_connection = words.len() >= 3
            && words[0] == b"/guest"
            && words[1] == b"connect"
            && pods.iter().any(|pod| pod.as_bytes() == words[2]);
        if is_connection {
            let pid = entry.file_name();
            let killed = Command::new("kill").arg("-KILL").arg(&pid).status().expect("run kill");
            cut += usize::from(killed.success());
        }
    }
    cut
}

#[test]
fn output_and_files_are_complete_although_connections_are_cut() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    let script = "for ((n = 0; n < 40000; n++)); do echo line $n; [ $((n % 4000)) != 0 ] || sleep 0.5; done
                  seq 400000 > /logs/agent/numbers; touch /app/done";
    let job = job(&cluster, &namespace).task(task()).script(script);
    let running = job.start();
    let log = job.dir().join("agent/set/task__1/command/stdout.txt");
    until("output arrives", || fs::metadata(&log).is_ok_and(|log| log.len() > 10_000));
    let mut cut = 0;
    let mut last = 0;
    while cut < 6 && !job.dir().join("agent/set/task__1/result.json").exists() {
        cut += cut_connections(&namespace);
        // Some output between two cuts shows that the session goes on.
        until("more output arrives", || {
            let now = fs::metadata(&log).map_or(0, |log| log.len());
            now > last || job.dir().join("agent/set/task__1/result.json").exists()
        });
        last = fs::metadata(&log).map_or(0, |log| log.len());
        std::thread::sleep(Duration::from_millis(200));
    }
    let finished = running.finish().expect(0);
    assert!(cut > 1, "{cut} connections were cut");
    let expected: String = (0..40_000).map(|n| format!("line {n}\n")).collect();
    assert!(finished.file("agent/set/task__1/command/stdout.txt") == expected, "the output differs");
    let numbers: String = (1..=400_000).map(|n| format!("{n}\n")).collect();
    assert!(finished.file("agent/set/task__1/logs/agent/numbers") == numbers, "a copied file differs");
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(1)), "{result:#}");
}

/// The number of bytes of the files below a directory.
fn size(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&entry.path()),
            Ok(metadata) => metadata.len(),
            // A temporary file was renamed.
            Err(_) => 0,
        })
        .sum()
}

#[test]
fn a_file_is_complete_although_the_connection_is_cut_in_the_middle_of_its_copy() {
    const LINES: u64 = 10_000_000;
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    let script = format!("seq {LINES} > /logs/agent/numbers; touch /app/done");
    let job = job(&cluster, &namespace).task(task()).script(&script);
    let mut running = job.start();
    running.until_phase("collect", 1);
    let trial = job.dir().join("agent/set/task__1");
    until("the copy began", || size(&trial) > 4 << 20);
    let cut = cut_connections(&namespace);
    let copied = size(&trial);
    let finished = running.finish().expect(0);
    let total = fs::metadata(trial.join("logs/agent/numbers")).expect("the copied file").len();
    assert!(cut == 1 && copied < total, "{cut} connections were cut after {copied} of {total} bytes");
    let lines =
        BufReader::new(fs::File::open(trial.join("logs/agent/numbers")).expect("open the file")).lines();
    let mut number = 0;
    for line in lines {
        number += 1;
        assert_eq!(line.expect("read the file"), number.to_string());
    }
    assert_eq!(number, LINES);
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(1)), "{result:#}");
    until("all pods are deleted", || namespace.pods().is_empty());
}

/// Waits until a trial is tried again, and returns the error of the first try.
#[track_caller]
fn retried(running: &mut Running) -> Value {
    let mut found = None;
    running.until("a retry", |events| {
        found = events.iter().find(|event| event["event"] == "trial_retried").cloned();
        found.is_some()
    });
    found.expect("an event")["error"].clone()
}

/// A job whose first try waits until its pod is ended by `end`, and whose second try succeeds. Returns the error of the
/// first.
fn second_try_succeeds(
    cluster: &TestCluster,
    namespace: &ClusterNamespace<'_>,
    change: impl FnOnce(TestJob) -> TestJob,
    end: impl FnOnce(),
) -> Value {
    let gate = Gate::new();
    let script = format!("({}) || true\ntouch /app/done", gate.wait());
    let job = change(job(cluster, namespace).task(task()).script(&script));
    let mut running = job.start();
    let first = gate.arrival();
    end();
    let error = retried(&mut running);
    let second = gate.arrival();
    drop(first);
    second.pass();
    let result = running.finish().expect(0).trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(2)), "{result:#}");
    until("all pods are deleted", || namespace.pods().is_empty());
    error
}

#[track_caller]
fn expect_error(error: &Value, kind: &str, words: &str) {
    assert_eq!(error["type"], kind, "{error:#}");
    assert!(error["message"].as_str().expect("a message").contains(words), "{error:#}");
}

#[test]
fn a_pod_that_is_evicted_by_a_request_is_tried_again() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    let error = second_try_succeeds(
        &cluster,
        &namespace,
        |job| job,
        || {
            let (pod, name) = (namespace.pods().remove(0), namespace.name());
            let dir = tempfile::tempdir().expect("make a directory");
            let eviction = json!({
                "apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod, "namespace": name},
            });
            let file = dir.path().join("eviction.json");
            fs::write(&file, eviction.to_string()).expect("write the eviction");
            let path = format!("/api/v1/namespaces/{name}/pods/{pod}/eviction");
            namespace.kubectl(&["create", "--raw", &path, "-f", &file.display().to_string()]);
        },
    );
    // This version of Kubernetes deletes the pod without a reason. Newer ones report the eviction in its conditions.
    expect_error(&error, "internal_error", "the pod was deleted from outside");
}

#[test]
fn a_trial_that_outlives_its_pod_is_not_tried_again() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    let job = job(&cluster, &namespace)
        .task(task())
        .script("sleep 300")
        .set("environment/provider_config/lifetime_sec", json!(30));
    let result = job.run().expect(1).trial("agent/set/task__1");
    expect_error(&result["error"], "internal_error", "raise provider_config.lifetime_sec");
    assert_eq!(result["tries"], 1, "{result:#}");
    until("all pods are deleted", || namespace.pods().is_empty());
}

#[test]
fn a_pod_whose_node_is_lost_is_tried_again() {
    let cluster = TestCluster::exclusive();
    let namespace = cluster.namespace();
    let gate = Gate::new();
    let script = format!("({}) || true\ntouch /app/done", gate.wait());
    let job = job(&cluster, &namespace)
        .task(task())
        .script(&script)
        .set("environment/provider_config/grace_sec", json!(10));
    let mut running = job.start();
    let first = gate.arrival();
    let stopped = cluster.without_kubelet();
    let error = retried(&mut running);
    assert_eq!(error["type"], "internal_error", "{error:#}");
    // The next pod waits until a node is ready.
    drop(stopped);
    let second = gate.arrival();
    drop(first);
    second.pass();
    let result = running.finish().expect(0).trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(2)), "{result:#}");
    until("all pods are deleted", || namespace.pods().is_empty());
}

#[test]
fn an_image_that_the_node_does_not_find_fails_the_trial_at_once() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    // Only the node uses plain HTTP for this name of the registry, so only the node finds that the image is missing.
    let registry = cluster.registry().replace("127.0.0.1", "localhost");
    let config = format!("[environment]\ndocker_image = \"{registry}/absent:1\"\n");
    let job = job(&cluster, &namespace)
        .task(task().config(&config))
        .oracle()
        .set("environment/provider_config/user", json!("root"));
    let result = job.run().expect(1).trial("oracle/set/task__1");
    expect_error(&result["error"], "environment_image_pull_failed", "absent");
    assert_eq!(result["tries"], 1, "{result:#}");
    until("all pods are deleted", || namespace.pods().is_empty());
}

#[test]
fn a_killed_job_is_resumed_and_nothing_is_left() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    let gate = Gate::new();
    let script = format!("({}) || true\ntouch /app/done", gate.wait());
    let job = job(&cluster, &namespace).task(task()).script(&script);
    let running = job.start();
    let first = gate.arrival();
    running.signal("-KILL");
    running.finish();
    assert_eq!(namespace.pods().len(), 1);
    let resumed = job.start_with(&["resume", "jobs/job", "--output", "json"]);
    let second = gate.arrival();
    drop(first);
    second.pass();
    let result = resumed.finish().expect(0).trial("agent/set/task__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    until("all pods are deleted", || namespace.pods().is_empty());
    let leases = namespace.kubectl(&["get", "leases", "-o", "jsonpath={.items[*].metadata.name}"]);
    assert_eq!(leases, "");
}

#[test]
fn a_job_survives_a_restart_of_the_api_server() {
    let cluster = TestCluster::exclusive();
    let namespace = cluster.namespace();
    let gate = Gate::new();
    let script = format!("echo before; {}echo after; touch /app/done", gate.wait());
    let job = job(&cluster, &namespace).task(task()).script(&script);
    let running = job.start();
    let arrival = gate.arrival();
    cluster.restart_api_server();
    arrival.pass();
    let finished = running.finish().expect(0);
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "before\nafter\n");
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(1)), "{result:#}");
    until("all pods are deleted", || namespace.pods().is_empty());
}

#[test]
fn a_pod_that_is_deleted_from_outside_is_tried_again() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    let error = second_try_succeeds(
        &cluster,
        &namespace,
        |job| job,
        || {
            namespace.kubectl(&["delete", "pods", "--all", "--grace-period=1", "--wait=false"]);
        },
    );
    expect_error(&error, "internal_error", "the pod was deleted from outside");
}

#[test]
fn a_pod_that_the_cluster_refuses_fails_its_trial_at_once() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    let dir = tempfile::tempdir().expect("make a directory");
    let limits = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "16Mi"}}]},
    });
    let file = dir.path().join("limits.json");
    fs::write(&file, limits.to_string()).expect("write the limits");
    namespace.kubectl(&["create", "-f", &file.display().to_string()]);
    let result = job(&cluster, &namespace).task(task()).oracle().run().expect(1).trial("oracle/set/task__1");
    expect_error(&result["error"], "environment_start_failed", "the cluster refused the pod");
    expect_error(&result["error"], "environment_start_failed", "maximum memory usage per Container is 16Mi");
    assert_eq!(result["tries"], 1, "{result:#}");
    assert!(namespace.pods().is_empty());
}

#[test]
fn a_quota_delays_trials_and_one_that_is_never_free_fails_them() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    namespace.kubectl(&["create", "quota", "few", "--hard=pods=1"]);
    until("the quota counts", || {
        namespace.kubectl(&["get", "resourcequota", "few", "-o", "jsonpath={.status.hard.pods}"]) == "1"
    });
    let shared = job(&cluster, &namespace).task(task()).oracle().set("n_attempts", json!(2));
    let finished = shared.set("n_concurrent_trials", json!(2)).run().expect(0);
    assert_eq!(finished.result()["completed_trials"], 2);
    until("all pods are deleted", || namespace.pods().is_empty());
    namespace.kubectl(&["patch", "resourcequota", "few", "-p", r#"{"spec": {"hard": {"pods": "0"}}}"#]);
    until("the quota counts", || {
        namespace.kubectl(&["get", "resourcequota", "few", "-o", "jsonpath={.status.hard.pods}"]) == "0"
    });
    let job = job(&cluster, &namespace)
        .task(task())
        .oracle()
        .set("environment/provider_config/start_timeout_sec", json!(2));
    let result = job.run().expect(1).trial("oracle/set/task__1");
    assert_eq!(result["error"]["type"], "environment_resource_allocation_failed", "{result:#}");
    assert!(result["error"]["message"].as_str().expect("a message").contains("exceeded quota"), "{result:#}");
}

/// A job that was killed while its agent waited, and its pod.
fn killed(cluster: &TestCluster, namespace: &ClusterNamespace<'_>) -> TestJob {
    let gate = Gate::new();
    let job = job(cluster, namespace)
        .task(task())
        .script(&format!("({}) || true\ntouch /app/done", gate.wait()))
        .set("environment/provider_config/grace_sec", json!(3));
    let running = job.start();
    let waiting = gate.arrival();
    running.signal("-KILL");
    running.finish();
    let phases = || namespace.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].status.phase}"]);
    until("the pod ends by itself", || phases() != "Running");
    drop(waiting);
    job
}

#[track_caller]
fn expect_nothing_left(namespace: &ClusterNamespace<'_>) {
    for kind in ["pods", "leases", "jobs"] {
        let left = || namespace.kubectl(&["get", kind, "-o", "jsonpath={.items[*].metadata.name}"]);
        until(&format!("all {kind} are deleted"), || left().is_empty());
    }
}

#[test]
fn what_a_killed_job_leaves_deletes_itself() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    let job = killed(&cluster, &namespace);
    assert_eq!(namespace.pods().len(), 1);
    let run = namespace.kubectl(&["get", "jobs", "-o", "name"]);
    // As if five minutes had passed.
    namespace.kubectl(&["patch", &run, "--type=merge", "-p", r#"{"spec": {"activeDeadlineSeconds": 1}}"#]);
    // Before Kubernetes 1.24, the start of a Job without pods is not recorded. Newer versions do this themselves.
    let mut started: Value =
        serde_json::from_str(&namespace.kubectl(&["get", &run, "-o", "json"])).expect("a job");
    started["status"]["startTime"] = started["metadata"]["creationTimestamp"].clone();
    let file = job.root().join("started.json");
    fs::write(&file, started.to_string()).expect("write the job");
    let (name, run) = (namespace.name(), run.trim_start_matches("job.batch/"));
    let path = format!("/apis/batch/v1/namespaces/{name}/jobs/{run}/status");
    namespace.kubectl(&["replace", "--raw", &path, "-f", &file.display().to_string()]);
    expect_nothing_left(&namespace);
}

#[test]
fn clean_deletes_what_a_killed_job_left_in_its_namespace() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    let job = killed(&cluster, &namespace);
    let shown = job.rollout(&["clean", "--namespace", namespace.name()]).expect(0).stdout();
    assert!(shown.contains("1 pod of ended runs"), "{shown}");
    expect_nothing_left(&namespace);
}
