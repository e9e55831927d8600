//! The Kubernetes cluster that `scripts/with-services` starts for tests, used through its own client.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::OFlags;

use crate::{docker::TestEngine, variable::variable};

/// The timeout for starting the cluster, or for it to become healthy again.
const PATIENCE: Duration = Duration::from_secs(600);

/// The time between two looks at the cluster.
const PAUSE: Duration = Duration::from_millis(100);

/// The only node of the cluster.
const NODE: &str = "localhost";

/// A real Kubernetes cluster of one node. The first test that needs it starts it.
pub struct TestCluster {
    dir: PathBuf,
    kubeconfig: PathBuf,
    exclusive: bool,
    _lock: File,
}

impl TestCluster {
    /// The cluster, which other tests use at the same time. A test may only change its own
    /// [namespaces](Self::namespace).
    #[track_caller]
    pub fn shared() -> Self {
        Self::open(false)
    }

    /// The cluster, which no other test uses at the same time: for tests that stop parts of it.
    #[track_caller]
    pub fn exclusive() -> Self {
        Self::open(true)
    }

    #[track_caller]
    fn open(exclusive: bool) -> Self {
        let dir = PathBuf::from(variable("ROLLOUT_TEST_CLUSTER_DIR"));
        start(&dir);
        // Two locks: tests that wait for exclusive use keep later tests from overtaking them.
        let gate = lock(&dir.join("gate.lock"), exclusive);
        let _lock = lock(&dir.join("use.lock"), exclusive);
        drop(gate);
        let cluster = Self { dir, kubeconfig: variable("ROLLOUT_TEST_KUBECONFIG").into(), exclusive, _lock };
        // A test that was killed may have left parts of it stopped.
        let _ = fs::remove_file(cluster.hold());
        cluster.signal("kubelet", "-CONT");
        cluster.expect_healthy();
        cluster
    }

    /// The configuration of an administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Host and port of a registry without a login, which the node can also reach. It speaks plain HTTP.
    #[track_caller]
    pub fn registry(&self) -> String {
        variable("ROLLOUT_TEST_KUBE_REGISTRY")
    }

    /// The engine that runs the node's containers. It has the images `test`, `debian:bookworm-slim` and `busybox`.
    #[track_caller]
    pub fn node_engine(&self) -> TestEngine {
        TestEngine::at(variable("ROLLOUT_TEST_NODE_DOCKER_HOST"))
    }

    /// The client, with the administrator's configuration.
    #[track_caller]
    pub fn client(&self) -> Command {
        let mut client = Command::new(variable("ROLLOUT_TEST_KUBECTL"));
        client.env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.dir).stdin(Stdio::null());
        client
    }

    /// Runs the client and returns its output.
    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.client().args(arguments).output().expect("run the client");
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Makes a namespace in which pods can be created. It is deleted with everything in it when the value is dropped.
    #[track_caller]
    pub fn namespace(&self) -> ClusterNamespace<'_> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{number}", std::process::id());
        self.kubectl(&["create", "namespace", &name]);
        let namespace = ClusterNamespace { cluster: self, name };
        // The cluster refuses pods in a namespace without it.
        self.wait("the service account of a namespace", || {
            namespace.try_kubectl(&["get", "serviceaccount", "default"])
        });
        namespace
    }

    /// Kills the API server, and waits until another one serves the same objects.
    #[track_caller]
    pub fn restart_api_server(&self) {
        let before = self.pid("kube-apiserver");
        self.end_api_server();
        self.wait("another API server", || self.pid("kube-apiserver") != before);
        self.expect_healthy();
    }

    /// Kills the API server until the value is dropped.
    #[track_caller]
    #[must_use]
    pub fn without_api_server(&self) -> StoppedPart<'_> {
        fs::write(self.hold(), "").expect("keep the API server from starting");
        self.end_api_server();
        StoppedPart { cluster: self, part: "kube-apiserver" }
    }

    /// Stops the kubelet until the value is dropped, as if the node had lost its connection: its containers run, but
    /// nothing is reported, started or ended.
    #[track_caller]
    #[must_use]
    pub fn without_kubelet(&self) -> StoppedPart<'_> {
        assert!(self.exclusive, "only a test with exclusive use of the cluster may stop parts of it");
        self.signal("kubelet", "-STOP");
        StoppedPart { cluster: self, part: "kubelet" }
    }

    /// Waits until the API server answers, and the node is ready.
    #[track_caller]
    pub fn expect_healthy(&self) {
        self.wait("the API server", || self.try_kubectl(&["get", "--raw", "/readyz"]));
        let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        self.wait("the node", || {
            let output = self.client().args(["get", "node", NODE, "-o", ready]).output();
            output.expect("run the client").stdout == b"True"
        });
    }

    #[track_caller]
    fn end_api_server(&self) {
        assert!(self.exclusive, "only a test with exclusive use of the cluster may stop parts of it");
        let pid = self.pid("kube-apiserver");
        self.signal("kube-apiserver", "-KILL");
        self.wait("the end of the API server", || !Path::new(&format!("/proc/{pid}")).exists());
    }

    fn try_kubectl(&self, arguments: &[&str]) -> bool {
        self.client().args(arguments).output().expect("run the client").status.success()
    }

    #[track_caller]
    fn wait(&self, what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < deadline, "the cluster lost {what}:\n{}", logs(&self.dir));
            thread::sleep(PAUSE);
        }
    }

    fn hold(&self) -> PathBuf {
        self.dir.join("kube-apiserver.hold")
    }

    #[track_caller]
    fn pid(&self, part: &str) -> String {
        let pid =
            fs::read_to_string(self.dir.join(format!("{part}.pid"))).expect("read the file of a process");
        pid.trim().to_owned()
    }

    #[track_caller]
    fn signal(&self, part: &str, signal: &str) {
        let status = Command::new("kill").args([signal, &self.pid(part)]).status().expect("run kill");
        assert!(status.success(), "kill {signal} of {part} failed");
    }
}

/// A part of the cluster that is stopped. Dropping it starts the part again, and waits until the cluster is healthy.
pub struct StoppedPart<'a> {
    cluster: &'a TestCluster,
    part: &'static str,
}

impl Drop for StoppedPart<'_> {
    fn drop(&mut self) {
        if self.part == "kubelet" {
            self.cluster.signal(self.part, "-CONT");
        } else {
            let _ = fs::remove_file(self.cluster.hold());
        }
        if !thread::panicking() {
            self.cluster.expect_healthy();
        }
    }
}

/// A namespace of one test.
pub struct ClusterNamespace<'a> {
    cluster: &'a TestCluster,
    name: String,
}

impl ClusterNamespace<'_> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The client for its objects.
    #[track_caller]
    pub fn client(&self) -> Command {
        let mut client = self.cluster.client();
        client.args(["--namespace", &self.name]);
        client
    }

    /// Runs the client for its objects, and returns the output.
    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.cluster.kubectl(&[&["--namespace", &self.name], arguments].concat())
    }

    /// The names of its pods.
    #[track_caller]
    pub fn pods(&self) -> Vec<String> {
        let names = self.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].metadata.name}"]);
        names.split_whitespace().map(str::to_owned).collect()
    }

    fn try_kubectl(&self, arguments: &[&str]) -> bool {
        self.cluster.try_kubectl(&[&["--namespace", &self.name], arguments].concat())
    }
}

impl Drop for ClusterNamespace<'_> {
    fn drop(&mut self) {
        self.try_kubectl(&["delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false"]);
        self.cluster.try_kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

/// Starts the cluster, unless another test did, and waits for it.
#[track_caller]
fn start(dir: &Path) {
    let program = PathBuf::from(variable("ROLLOUT_TEST_KUBECTL"));
    let mut deadline = Instant::now() + PATIENCE;
    while !dir.join("ready").exists() {
        request_start(&dir.join("start"));
        if !program.exists() {
            // Its programs are still being compiled, which takes long on a busy machine. If that fails, `failed` exists.
            deadline = Instant::now() + PATIENCE;
        }
        let failed = dir.join("failed").exists() || Instant::now() > deadline;
        assert!(!failed, "the Kubernetes cluster did not start:\n{}", logs(dir));
        thread::sleep(PAUSE);
    }
}

/// Asks the script for the cluster. If it does not listen, it either will soon, or has started the cluster for another
/// test: an ordinary write would wait for a reader, in the second case forever.
fn request_start(pipe: &Path) {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    if let Ok(mut pipe) = File::options().write(true).custom_flags(nonblocking).open(pipe) {
        let _ = pipe.write_all(b"\n");
    }
}

#[track_caller]
fn lock(path: &Path, exclusive: bool) -> File {
    let file = File::options().create(true).append(true).open(path).expect("open a lock of the cluster");
    if exclusive { file.lock() } else { file.lock_shared() }.expect("lock the cluster");
    file
}

/// The last lines of each log of the cluster.
fn logs(dir: &Path) -> String {
    const LINES: usize = 15;
    let mut text = String::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_log = path.file_name().is_some_and(|name| name == "log")
            || path.extension().is_some_and(|end| end == "log");
        let Some(content) = is_log.then(|| fs::read(&path).ok()).flatten() else { continue };
        let content = String::from_utf8_lossy(&content).into_owned();
        let lines: Vec<&str> = content.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
        text += &format!("--- {}\n{last}\n", path.display());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, process::Stdio};

    use super::TestCluster;
    use crate::until;

    const QUOTA: &str =
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: one}\nspec: {hard: {pods: 1}}\n";

    fn run(client: &mut std::process::Command) -> (bool, String) {
        let output = client.output().expect("run the client");
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.success(), text.concat())
    }

    #[test]
    fn a_pod_runs_commands_and_attach_and_is_deleted() {
        let cluster = TestCluster::shared();
        let namespace = cluster.namespace();
        let spec = [
            "run",
            "pod",
            "--image=busybox",
            "--image-pull-policy=Never",
            "--stdin",
            "--attach=false",
            "--restart=Never",
        ];
        namespace.kubectl(&[&spec[..], &["--", "sh", "-c", "read word; echo heard $word"]].concat());
        namespace.kubectl(&["wait", "--for=condition=Ready", "pod/pod", "--timeout=600s"]);
        assert_eq!(namespace.kubectl(&["exec", "pod", "--", "sh", "-c", "echo $((6 * 7))"]), "42");
        // The node may lose input that ends at once.
        let mut attached = namespace.client();
        attached.args(["attach", "pod", "--stdin", "--quiet"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut attached = attached.spawn().expect("run the client");
        let mut stdin = attached.stdin.take().expect("the input is a pipe");
        stdin.write_all(b"hello\n").expect("write the input");
        until("the pod reads the input", || namespace.kubectl(&["logs", "pod"]).contains("heard hello"));
        drop(stdin);
        attached.wait().expect("wait for the client");
        let events = namespace.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"]);
        assert!(events.contains("Scheduled") && events.contains("Started"), "{events}");
        namespace.kubectl(&["delete", "pod", "pod", "--grace-period=1", "--timeout=600s"]);
        assert!(namespace.pods().is_empty());
    }

    #[test]
    fn a_quota_refuses_a_second_pod() {
        let cluster = TestCluster::shared();
        let namespace = cluster.namespace();
        let mut apply = namespace.client();
        let (applied, message) = run(apply.args(["apply", "-f", "-"]).stdin(input(QUOTA)));
        assert!(applied, "{message}");
        // The quota counts once its controller has seen it.
        until("the quota counts", || {
            namespace.kubectl(&["get", "resourcequota", "one", "-o", "jsonpath={.status.hard.pods}"]) == "1"
        });
        let pod = |name| {
            let mut client = namespace.client();
            client.args([
                "run",
                name,
                "--image=busybox",
                "--image-pull-policy=Never",
                "--",
                "sh",
                "-c",
                "sleep 600",
            ]);
            run(&mut client)
        };
        let (created, message) = pod("first");
        assert!(created, "{message}");
        let (created, message) = pod("second");
        assert!(!created && message.contains("exceeded quota"), "{message}");
    }

    #[test]
    fn the_node_pulls_from_the_registry() {
        let cluster = TestCluster::shared();
        let namespace = cluster.namespace();
        let engine = crate::TestEngine::shared();
        let image = format!("{}/pulled/{}:1", cluster.registry(), namespace.name());
        engine.docker(&["tag", "busybox", &image]);
        engine.docker(&["push", "--quiet", &image]);
        engine.docker(&["image", "rm", &image]);
        namespace.kubectl(&["run", "pod", &format!("--image={image}"), "--", "sh", "-c", "sleep 600"]);
        namespace.kubectl(&["wait", "--for=condition=Ready", "pod/pod", "--timeout=600s"]);
    }

    #[test]
    fn parts_that_are_stopped_come_back() {
        let cluster = TestCluster::exclusive();
        let namespace = cluster.namespace();
        namespace.kubectl(&[
            "run",
            "pod",
            "--image=busybox",
            "--image-pull-policy=Never",
            "--",
            "sh",
            "-c",
            "sleep 600",
        ]);
        namespace.kubectl(&["wait", "--for=condition=Ready", "pod/pod", "--timeout=600s"]);
        cluster.restart_api_server();
        assert_eq!(namespace.pods(), ["pod"]);
        let stopped = cluster.without_api_server();
        assert!(!run(namespace.client().args(["get", "pods"])).0);
        drop(stopped);
        let stopped = cluster.without_kubelet();
        namespace.kubectl(&["delete", "pod", "pod", "--grace-period=1", "--wait=false"]);
        assert_eq!(namespace.pods(), ["pod"]);
        drop(stopped);
        until("the pod is deleted", || namespace.pods().is_empty());
    }

    fn input(text: &str) -> std::fs::File {
        use std::io::{Seek as _, Write as _};
        let mut file = tempfile::tempfile().expect("make a temporary file");
        file.write_all(text.as_bytes()).expect("write the input");
        file.rewind().expect("go to the start of the input");
        file
    }
}
