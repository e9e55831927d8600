//! The manifests in deploy/kubernetes: their permissions, and a job that runs inside the cluster.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use rollout_testkit::{TestCluster, TestEngine, TestJob, TestTask, until};
use serde_json::{Value, json};

const ROLLOUT: &str = env!("CARGO_BIN_EXE_rollout");

/// The path of a manifest.
fn deploy(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes");
    dir.join(name).display().to_string()
}

/// A job in the namespace of its credentials.
fn job(cluster: &TestCluster) -> TestJob {
    TestJob::new(ROLLOUT)
        .set(
            "environment",
            json!({"type": "k8s", "provider_config": {
                "registry": cluster.registry(),
                "network": "host",
                "cpu_request": 0.01,
                "memory_request": 0.01,
                "storage_request": 0,
            }}),
        )
        .env("DOCKER_HOST", TestEngine::shared().host())
}

#[test]
fn the_permissions_in_deploy_are_enough() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    namespace.kubectl(&["apply", "-f", &deploy("rbac.yaml")]);
    let secret =
        || namespace.kubectl(&["get", "serviceaccount", "rollout", "-o", "jsonpath={.secrets[0].name}"]);
    until("the service account has a token", || !secret().is_empty());
    let template = "go-template={{.data.token | base64decode}}";
    let token = namespace.kubectl(&["get", "secret", &secret(), "-o", template]);
    // A policy, and waiting for an image, need more permissions than a plain trial.
    let job = job(&cluster)
        .set("environment/provider_config/namespace", json!(namespace.name()))
        .task(TestTask::new("task"))
        .oracle()
        .set("log_level", json!("warn"))
        .set("environment/provider_config/network", json!("none"))
        .set("environment/provider_config/network_policy", json!(true));
    let text = fs::read_to_string(cluster.kubeconfig()).expect("read the configuration");
    let (head, tail) = text.split_once("user: {token: ").expect("the configuration has a token");
    let (_, tail) = tail.split_once('}').expect("the token ends");
    let path = job.root().join("kubeconfig");
    fs::write(&path, format!("{head}user: {{token: {token}}}{tail}")).expect("write the configuration");
    let job = job.env("KUBECONFIG", &path.display().to_string());
    let finished = job.run().expect(0);
    let log = fs::read_to_string(job.dir().join("rollout.log")).unwrap_or_default();
    for refused in ["leftovers", "cannot create the job"] {
        assert!(!log.contains(refused), "{log}");
    }
    let result = finished.trial("oracle/set/task__1");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(1)), "{result:#}");
    for kind in ["pods", "leases", "jobs", "networkpolicies"] {
        let left = || namespace.kubectl(&["get", kind, "-o", "jsonpath={.items[*].metadata.name}"]);
        until(&format!("all {kind} are deleted"), || left().is_empty());
    }
}

#[test]
fn the_cluster_accepts_the_manifests_in_deploy() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    for manifest in ["rbac.yaml", "job.yaml", "view.yaml"] {
        namespace.kubectl(&["apply", "--dry-run=server", "-f", &deploy(manifest)]);
    }
}

#[test]
fn a_job_inside_the_cluster_uses_the_service_account_of_its_pod() {
    let cluster = TestCluster::shared();
    let namespace = cluster.namespace();
    namespace.kubectl(&["apply", "-f", &deploy("rbac.yaml")]);
    let image = format!("{}/test:inside", cluster.registry());
    let engine = TestEngine::shared();
    engine.docker(&["tag", "test", &image]);
    engine.docker(&["push", "--quiet", &image]);
    let config = format!("[environment]\ndocker_image = {image:?}\n");
    let solution = "mkdir -p /app && touch /app/done\n";
    let job = job(&cluster).task(TestTask::new("task").config(&config).solution(solution)).oracle();
    let root = job.root().display().to_string();
    // Writes the file of the job.
    drop(job.command(&[]));
    // The registry is at the loopback address of the node.
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "inside"},
        "spec": {
            "serviceAccountName": "rollout",
            "restartPolicy": "Never",
            "hostNetwork": true,
            "hostAliases": [{"ip": "10.96.0.1", "hostnames": ["kubernetes.default.svc"]}],
            "volumes": [
                {"name": "program", "hostPath": {"path": ROLLOUT, "type": "File"}},
                {"name": "job", "hostPath": {"path": root, "type": "Directory"}},
                {"name": "authorities", "hostPath": {"path": "/etc/ssl/certs", "type": "Directory"}},
            ],
            "containers": [{
                "name": "rollout",
                "image": "test",
                "imagePullPolicy": "Never",
                "command": ["/usr/local/bin/rollout", "run", "job.yaml"],
                "workingDir": root,
                "env": [{"name": "ROLLOUT_STATE_DIR", "value": job.state_dir()}, {"name": "HOME", "value": "/none"}],
                "volumeMounts": [
                    {"name": "program", "mountPath": "/usr/local/bin/rollout"},
                    {"name": "job", "mountPath": root},
                    // The image of deploy/kubernetes/Dockerfile has them.
                    {"name": "authorities", "mountPath": "/etc/ssl/certs", "readOnly": true},
                ],
            }],
        },
    });
    let file = job.root().join("pod.json");
    fs::write(&file, pod.to_string()).expect("write the pod");
    until("the service account has a token", || {
        let secrets = ["get", "serviceaccount", "rollout", "-o", "jsonpath={.secrets[0].name}"];
        !namespace.kubectl(&secrets).is_empty()
    });
    namespace.kubectl(&["create", "-f", &file.display().to_string()]);
    let phase = || namespace.kubectl(&["get", "pod", "inside", "-o", "jsonpath={.status.phase}"]);
    until("the job inside ends", || ["Succeeded", "Failed"].contains(&phase().as_str()));
    let log = namespace.kubectl(&["logs", "inside"]);
    assert_eq!(phase(), "Succeeded", "{log}");
    let result = fs::read_to_string(job.dir().join("oracle/set/task__1/result.json")).expect("a result");
    let result: Value = serde_json::from_str(&result).expect("the result is JSON");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(1)), "{result:#}\n{log}");
    until("the pods of trials are deleted", || namespace.pods() == ["inside"]);
}

#[test]
fn the_job_in_a_cluster_ends_when_trials_failed_and_is_repeated_when_it_was_cut_off() {
    let manifest = fs::read_to_string(deploy("job.yaml")).expect("read the manifest");
    let (_, script) = manifest.split_once("- |\n").expect("the manifest has a script");
    let script: Vec<&str> = script.lines().take_while(|line| line.starts_with("              ")).collect();
    let dir = tempfile::tempdir().expect("make a directory");
    let program = dir.path().join("rollout");
    for (status, expected) in [(0, 0), (1, 0), (2, 2), (130, 130)] {
        fs::write(&program, format!("#!/bin/sh\n[ $1 = run ] || exit 9\nexit {status}\n")).expect("write it");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("make it executable");
        let path = format!("{}:/usr/bin:/bin", dir.path().display());
        let ended = Command::new("sh").args(["-c", &script.join("\n")]).env("PATH", path).status();
        assert_eq!(ended.expect("run the script").code(), Some(expected), "status {status}");
    }
}
