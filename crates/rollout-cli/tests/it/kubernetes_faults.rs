//! Kubernetes jobs whose connections, API server, pods or orchestrator fail: nothing is lost, and nothing stays.

use std::{fs, process::Command, time::Duration};

use rollout_testkit::{ClusterNamespace, Gate, TestCluster, TestEngine, TestJob, TestTask, until};
use serde_json::json;

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
    let gate = Gate::new();
    let job =
        job(&cluster, &namespace).task(task()).script(&format!("({}) || true\ntouch /app/done", gate.wait()));
    let running = job.start();
    let first = gate.arrival();
    namespace.kubectl(&["delete", "pods", "--all", "--grace-period=1", "--wait=false"]);
    // The first agent waits until its pod is gone.
    let second = gate.arrival();
    drop(first);
    second.pass();
    let result = running.finish().expect(0).trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(2)), "{result:#}");
    until("all pods are deleted", || namespace.pods().is_empty());
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

#[test]
fn a_killed_job_leaves_no_pod_that_runs_and_clean_deletes_what_is_left() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    let gate = Gate::new();
    let job = job(&cluster, &namespace)
        .task(task())
        .script(&format!("({}) || true\ntouch /app/done", gate.wait()))
        .set("environment/provider_config/grace_sec", json!(3));
    let running = job.start();
    let _waiting = gate.arrival();
    running.signal("-KILL");
    running.finish();
    let phases = || namespace.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].status.phase}"]);
    until("the pod ends by itself", || phases() != "Running");
    clean(job, &cluster, &namespace);
    until("all pods are deleted", || namespace.pods().is_empty());
    let leases = namespace.kubectl(&["get", "leases", "-o", "jsonpath={.items[*].metadata.name}"]);
    assert_eq!(leases, "");
}

/// Runs `rollout clean` with a context of the namespace.
fn clean(job: TestJob, cluster: &TestCluster, namespace: &ClusterNamespace<'_>) {
    let path = job.root().join("kubeconfig");
    let text = fs::read_to_string(cluster.kubeconfig()).expect("read the configuration");
    let own = format!("user: admin, namespace: {}}}}}", namespace.name());
    fs::write(&path, text.replace("user: admin}}", &own)).expect("write the configuration");
    let job = job.env("KUBECONFIG", &path.display().to_string());
    let shown = job.rollout(&["clean"]).expect(0).stdout();
    assert!(shown.contains("1 pod of ended runs"), "{shown}");
}
