//! The Kubernetes API server of the testkit, checked with the official client and over plain HTTP.

use std::{
    io::{Seek as _, Write as _},
    process::{Command, Stdio},
    time::Duration,
};

use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::{Client, StatusCode};
use rollout_testkit::{ApiFault, ApiTrouble, KubernetesServer, PodFault, until};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest as _};

fn server() -> KubernetesServer {
    KubernetesServer::start(env!("CARGO_BIN_EXE_kubernetes-server"))
}

fn pod(name: &str, script: &str) -> Value {
    let container = json!({
        "name": "main", "image": "task", "stdin": true, "command": ["/bin/sh", "-c", script],
    });
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"job": "one"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    })
}

struct Api<'a> {
    server: &'a KubernetesServer,
    client: Client,
}

impl<'a> Api<'a> {
    fn new(server: &'a KubernetesServer) -> Self {
        Self { server, client: Client::new() }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/v1/namespaces/default/{path}", self.server.url())
    }

    async fn create(&self, plural: &str, object: &Value) -> reqwest::Result<(StatusCode, Value)> {
        let response = self.client.post(self.url(plural)).json(object).send().await?;
        Ok((response.status(), response.json().await?))
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        let response = self.client.get(self.url(path)).send().await.unwrap();
        (response.status(), response.json().await.unwrap())
    }

    async fn delete(&self, path: &str) -> (StatusCode, Value) {
        let response = self.client.delete(self.url(path)).send().await.unwrap();
        (response.status(), response.json().await.unwrap())
    }

    /// Waits until a pod's status has a value at a path.
    async fn expect(&self, pod: &str, path: &str, value: &str) -> Value {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(300);
        loop {
            let (_, object) = self.get(&format!("pods/{pod}")).await;
            if object.pointer(path).is_some_and(|found| found == value) {
                return object;
            }
            assert!(tokio::time::Instant::now() < deadline, "{path} is not {value}: {object:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn input(text: &str) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.rewind().unwrap();
    file
}

fn kubectl(server: &KubernetesServer, arguments: &[&str], stdin: Stdio) -> String {
    let client = std::env::var("ROLLOUT_TEST_KUBECTL").expect("run this test with scripts/with-services");
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(client);
    command.env("KUBECONFIG", server.kubeconfig()).env("HOME", home.path()).args(arguments).stdin(stdin);
    let output = command.output().unwrap();
    assert!(output.status.success(), "kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_official_client_runs_and_deletes_a_pod() {
    let server = server();
    let mut pod = pod("first", "cat /shared/greeting; read word; echo heard $word");
    let mount = json!([{"name": "shared", "mountPath": "/shared"}]);
    pod["spec"]["volumes"] = json!([{"name": "shared", "emptyDir": {}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = mount;
    pod["spec"]["initContainers"] = json!([{
        "name": "init", "image": "tool", "command": ["/bin/sh", "-c", "echo hello > /elsewhere/greeting"],
        "volumeMounts": [{"name": "shared", "mountPath": "/elsewhere"}],
    }]);
    let run = |arguments: &[&str]| kubectl(&server, arguments, Stdio::null());
    kubectl(&server, &["apply", "--validate=false", "-f", "-"], input(&pod.to_string()).into());
    run(&["wait", "--for=condition=Ready", "pod/first", "--timeout=300s"]);
    assert_eq!(run(&["exec", "first", "--", "sh", "-c", "echo $((6 * 7))"]), "42\n");
    assert_eq!(kubectl(&server, &["exec", "-i", "first", "--", "cat"], input("a lot\n").into()), "a lot\n");
    // The client ends with the container.
    assert_eq!(
        kubectl(&server, &["attach", "-i", "--quiet", "first"], input("word\n").into()),
        "heard word\n"
    );
    until("the pod reads the input", || run(&["logs", "first"]) == "hello\nheard word\n");
    assert!(run(&["get", "events", "-o", "jsonpath={.items[*].reason}"]).contains("Scheduled"));
    assert!(run(&["get", "pods", "-l", "job=one", "-o", "name"]).contains("pod/first"));
    run(&["delete", "pod", "first", "--timeout=300s"]);
    assert_eq!(server.objects("pods"), Vec::<Value>::new());
    assert_eq!(server.calls().of("create pods"), 1);
    assert_eq!(server.calls().of("connect pods/attach"), 1);
}

#[test]
fn the_official_client_reports_the_exit_code_of_a_command() {
    let server = server();
    kubectl(
        &server,
        &["apply", "--validate=false", "-f", "-"],
        input(&pod("p", "sleep 600").to_string()).into(),
    );
    kubectl(&server, &["wait", "--for=condition=Ready", "pod/p", "--timeout=300s"], Stdio::null());
    let client = std::env::var("ROLLOUT_TEST_KUBECTL").unwrap();
    let mut command = Command::new(client);
    command.env("KUBECONFIG", server.kubeconfig()).args(["exec", "p", "--", "sh", "-c", "exit 7"]);
    assert_eq!(command.status().unwrap().code(), Some(7));
}

#[tokio::test]
async fn a_pod_ends_with_its_containers() {
    let server = server();
    let api = Api::new(&server);
    for (name, script, phase, code) in [("good", "exit 0", "Succeeded", 0), ("bad", "exit 3", "Failed", 3)] {
        assert_eq!(api.create("pods", &pod(name, script)).await.unwrap().0, StatusCode::CREATED);
        let object = api.expect(name, "/status/phase", phase).await;
        assert_eq!(
            object["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], code,
            "{object:#}"
        );
    }
    api.create("pods", &{
        let mut limited = pod("limited", "sleep 600");
        limited["spec"]["activeDeadlineSeconds"] = 1.into();
        limited
    })
    .await
    .unwrap();
    api.expect("limited", "/status/reason", "DeadlineExceeded").await;
}

#[tokio::test]
async fn a_create_whose_answer_is_lost_makes_one_pod() {
    let server = server();
    let api = Api::new(&server);
    server.fault(ApiFault::once("create pods one", ApiTrouble::LoseAnswer));
    server.fault(ApiFault::once("create pods two", ApiTrouble::Status(429, Some(7))));
    assert!(api.create("pods", &pod("one", "sleep 600")).await.is_err());
    let (status, body) = api.create("pods", &pod("one", "sleep 600")).await.unwrap();
    assert_eq!((status, body["reason"].as_str()), (StatusCode::CONFLICT, Some("AlreadyExists")));
    let refused = api.client.post(api.url("pods")).json(&pod("two", "true")).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "7");
    assert_eq!(server.objects("pods").len(), 1);
    assert_eq!(server.calls().of("create pods"), 3);
}

#[tokio::test]
async fn a_quota_and_invalid_names_are_refused() {
    let server = server();
    let api = Api::new(&server);
    server.limit_pods("default", 1);
    assert_eq!(api.create("pods", &pod("one", "sleep 600")).await.unwrap().0, StatusCode::CREATED);
    let (status, body) = api.create("pods", &pod("two", "sleep 600")).await.unwrap();
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(body["message"].as_str().unwrap().contains("exceeded quota: pods, requested: pods=1"), "{body}");
    let (status, body) = api.create("pods", &pod("Wrong_Name", "true")).await.unwrap();
    assert_eq!((status, body["reason"].as_str()), (StatusCode::UNPROCESSABLE_ENTITY, Some("Invalid")));
    let client = Client::new();
    let url = format!("{}/api/v1/namespaces/missing/pods", server.url());
    assert_eq!(
        client.post(url).json(&pod("one", "true")).send().await.unwrap().status(),
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn pods_are_collected_with_their_owner() {
    let server = server();
    let api = Api::new(&server);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job"}});
    let (_, owner) = api.create("configmaps", &map).await.unwrap();
    for name in ["a", "b"] {
        let mut pod = pod(name, "sleep 600");
        let uid = &owner["metadata"]["uid"];
        let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "job", "uid": uid});
        pod["metadata"]["ownerReferences"] = json!([reference]);
        api.create("pods", &pod).await.unwrap();
        api.expect(name, "/status/phase", "Running").await;
    }
    assert_eq!(api.delete("configmaps/job").await.0, StatusCode::OK);
    for name in ["a", "b"] {
        let gone = async || api.get(&format!("pods/{name}")).await.0 == StatusCode::NOT_FOUND;
        while !gone().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The events of a watch, as type and name, until a number of them came.
async fn events(api: &Api<'_>, query: &str, number: usize) -> Vec<(String, Value)> {
    let response = api.client.get(api.url(&format!("pods?watch=true&{query}"))).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let mut stream = response.bytes_stream();
    let (mut buffer, mut found) = (Vec::new(), Vec::new());
    while found.len() < number {
        buffer.extend_from_slice(&stream.next().await.expect("the watch goes on").unwrap());
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).unwrap();
            found.push((event["type"].as_str().unwrap().to_owned(), event["object"].clone()));
        }
    }
    found
}

#[tokio::test]
async fn a_watch_continues_from_a_version_until_the_history_is_forgotten() {
    let server = server();
    let api = Api::new(&server);
    let (_, list) = api.get("pods").await;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    api.create("pods", &pod("watched", "exit 0")).await.unwrap();
    api.expect("watched", "/status/phase", "Succeeded").await;
    let seen = events(&api, &format!("resourceVersion={version}&labelSelector=job%3Done"), 3).await;
    assert_eq!(seen[0].0, "ADDED");
    assert!(seen[1..].iter().all(|(kind, _)| kind == "MODIFIED"), "{seen:#?}");
    let (_, list) = api.get("pods").await;
    let newest = list["metadata"]["resourceVersion"].as_str().unwrap();
    let bookmarks = events(&api, &format!("resourceVersion={newest}&allowWatchBookmarks=true"), 1).await;
    assert_eq!(bookmarks[0].0, "BOOKMARK");
    server.compact();
    let expired = events(&api, &format!("resourceVersion={version}"), 1).await;
    assert_eq!((expired[0].0.as_str(), expired[0].1["code"].as_u64()), ("ERROR", Some(410)));
}

#[tokio::test]
async fn faults_of_pods_are_reported_as_a_cluster_reports_them() {
    let server = server();
    let api = Api::new(&server);
    server.pod_fault("pull", PodFault::ImagePull);
    server.pod_fault("wait", PodFault::Unschedulable);
    server.pod_fault("memory", PodFault::OutOfMemory(Duration::ZERO));
    server.pod_fault("evict", PodFault::Evicted(Duration::ZERO));
    server.pod_fault("lost", PodFault::NodeLost(Duration::ZERO));
    server.pod_fault("stuck", PodFault::IgnoredDeletion);
    for name in ["pull", "wait", "memory", "evict", "lost", "stuck"] {
        api.create("pods", &pod(name, "sleep 600")).await.unwrap();
    }
    let state = "/status/containerStatuses/0/state";
    api.expect("pull", &format!("{state}/waiting/reason"), "ImagePullBackOff").await;
    api.expect("wait", "/status/conditions/0/reason", "Unschedulable").await;
    api.expect("memory", &format!("{state}/terminated/reason"), "OOMKilled").await;
    api.expect("memory", "/status/phase", "Failed").await;
    api.expect("evict", "/status/reason", "Evicted").await;
    api.expect("lost", "/status/reason", "NodeLost").await;
    api.expect("stuck", "/status/phase", "Running").await;
    assert!(api.delete("pods/stuck").await.1["metadata"]["deletionTimestamp"].is_string());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(api.get("pods/stuck").await.0, StatusCode::OK);
    api.delete("pods/stuck?gracePeriodSeconds=0").await;
    assert_eq!(api.get("pods/stuck").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_eviction_by_a_request_is_reported_before_the_pod_is_deleted() {
    let server = server();
    let api = Api::new(&server);
    server.pod_fault("evicted", PodFault::IgnoredDeletion);
    api.create("pods", &pod("evicted", "sleep 600")).await.unwrap();
    api.expect("evicted", "/status/phase", "Running").await;
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}});
    assert_eq!(api.create("pods/evicted/eviction", &eviction).await.unwrap().0, StatusCode::CREATED);
    let (_, pod) = api.get("pods/evicted").await;
    assert!(pod["metadata"]["deletionTimestamp"].is_string(), "{pod:#}");
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let disrupted = conditions.iter().find(|condition| condition["type"] == "DisruptionTarget").unwrap();
    assert_eq!(disrupted["reason"], "EvictionByEvictionAPI");
}

#[tokio::test]
async fn a_job_is_deleted_with_what_it_owns_when_its_deadline_has_passed() {
    let server = server();
    let url = format!("{}/apis/batch/v1/namespaces/default/jobs", server.url());
    let client = Client::new();
    let job = |name: &str, spec: Value| json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec});
    let (short, long) = (json!({"activeDeadlineSeconds": 1}), json!({"activeDeadlineSeconds": 600}));
    let mut temporary = short.clone();
    temporary["ttlSecondsAfterFinished"] = 0.into();
    for (name, spec) in [("stays", short), ("lives", long), ("goes", temporary)] {
        client.post(&url).json(&job(name, spec)).send().await.unwrap();
    }
    let owner = server.objects("jobs").into_iter().find(|job| job["metadata"]["name"] == "goes").unwrap();
    let uid = &owner["metadata"]["uid"];
    let reference = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "goes", "uid": uid});
    let map = json!({"metadata": {"name": "owned", "ownerReferences": [reference]}});
    Api::new(&server).create("configmaps", &map).await.unwrap();
    until("the job and what it owns are deleted", || {
        server.objects("jobs").len() == 2 && server.objects("configmaps").is_empty()
    });
    let failed = |name: &str| {
        let jobs = server.objects("jobs");
        let job = jobs.iter().find(|job| job["metadata"]["name"] == name);
        job.is_some_and(|job| job["status"]["conditions"][0]["type"] == "Failed")
    };
    until("the other job has failed", || failed("stays"));
    assert!(!failed("lives"));
}

#[tokio::test]
async fn a_request_can_be_handled_although_it_seems_to_fail() {
    let server = server();
    let api = Api::new(&server);
    server.fault(ApiFault::once("create configmaps", ApiTrouble::StatusAfter(504)));
    let map = json!({"metadata": {"name": "one"}});
    assert_eq!(api.create("configmaps", &map).await.unwrap().0, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(api.get("configmaps/one").await.0, StatusCode::OK);
}

#[tokio::test]
async fn an_attach_stream_carries_all_bytes_until_it_is_cut() {
    let server = server();
    let api = Api::new(&server);
    server.pod_fault("echo", PodFault::CutStreams { after: 100_000, times: 1 });
    api.create("pods", &pod("echo", "exec cat")).await.unwrap();
    api.expect("echo", "/status/phase", "Running").await;
    // Half of the bytes go in, and half come out.
    let first = echo(&server, 200_000).await;
    assert!(first < 100_000, "{first}");
    let second = echo(&server, 200_000).await;
    assert!(second >= 200_000, "{second}");
}

/// Writes so many bytes to a pod that echoes them, and returns how many came back before the stream ended.
async fn echo(server: &KubernetesServer, bytes: usize) -> usize {
    let address = server.url().trim_start_matches("http://");
    let url = format!(
        "ws://{address}/api/v1/namespaces/default/pods/echo/attach?stdin=true&stdout=true&stderr=true"
    );
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", "v4.channel.k8s.io".parse().unwrap());
    let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
    let (socket, _) = tokio_tungstenite::client_async(request, tcp).await.unwrap();
    let (mut sink, mut stream) = socket.split();
    let write = async {
        for _ in 0..bytes / 1000 {
            let mut message = vec![0];
            message.resize(1001, b'x');
            // The stream may be cut meanwhile.
            if sink.send(Message::Binary(message.into())).await.is_err() {
                return;
            }
        }
    };
    let read = async {
        let mut found = 0;
        while found < bytes
            && let Some(Ok(message)) = stream.next().await
        {
            found += message.into_data().len().saturating_sub(1);
        }
        found
    };
    tokio::join!(write, read).1
}

#[tokio::test]
async fn many_pods_run_at_the_same_time() {
    let server = server();
    let api = Api::new(&server);
    let create = |number: usize| {
        let api = &api;
        async move { api.create("pods", &pod(&format!("pod-{number}"), "read word")).await.unwrap().0 }
    };
    let created = futures_util::future::join_all((0..40).map(create)).await;
    assert!(created.iter().all(|status| *status == StatusCode::CREATED), "{created:?}");
    for number in 0..40 {
        api.expect(&format!("pod-{number}"), "/status/phase", "Running").await;
    }
    assert_eq!(server.most_running(), 40);
    let url = api.url("pods?labelSelector=job%3Done&gracePeriodSeconds=0");
    let deleted: Value = api.client.delete(url).send().await.unwrap().json().await.unwrap();
    assert_eq!(deleted["items"].as_array().unwrap().len(), 40);
    assert_eq!(server.calls().of("deletecollection pods"), 1);
    assert_eq!(server.objects("pods").len(), 0);
}
