//! Docker engines for tests, used through their own client: the one that all tests share, and some that a test
//! may stop.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::json;
use tempfile::TempDir;

use crate::{job::TestJob, variable::variable};

/// Debian's client: a newer one in PATH would need plugins to build.
const CLIENT: &str = "/usr/bin/docker";

/// The timeout for starting or stopping an engine.
const PATIENCE: Duration = Duration::from_secs(600);

/// An engine that is running.
#[derive(Debug, Clone)]
pub struct TestEngine {
    host: String,
}

/// Everything on an engine that a job could have left behind. Images are not included: they are meant to stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holdings {
    /// The names of its containers, including stopped ones.
    pub containers: BTreeSet<String>,
    /// The names of its networks.
    pub networks: BTreeSet<String>,
    /// The names of its volumes.
    pub volumes: BTreeSet<String>,
}

impl TestEngine {
    /// The Docker engine that all tests share. A test may only change its own objects there.
    #[track_caller]
    pub fn shared() -> Self {
        Self { host: variable("ROLLOUT_TEST_DOCKER_HOST") }
    }

    /// The Podman engine that all tests share.
    #[track_caller]
    pub fn podman() -> Self {
        Self { host: variable("ROLLOUT_TEST_PODMAN_HOST") }
    }

    /// The engine at an address, in the form of `DOCKER_HOST`.
    pub(crate) fn at(host: String) -> Self {
        Self { host }
    }

    /// Its address, in the form of `DOCKER_HOST`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The client, without the user's configuration and so without logins.
    pub fn client(&self) -> Command {
        let mut client = Command::new(CLIENT);
        client.env("DOCKER_HOST", &self.host).env("DOCKER_CONFIG", "/nonexistent").stdin(Stdio::null());
        client.env_remove("DOCKER_CONTEXT");
        client
    }

    /// Runs the client and returns its output.
    #[track_caller]
    pub fn docker(&self, arguments: &[&str]) -> String {
        let output = self.client().args(arguments).output().expect("run the client");
        assert!(output.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// The names of its containers, including stopped ones.
    #[track_caller]
    pub fn containers(&self) -> BTreeSet<String> {
        self.list(&["ps", "--all", "--format", "{{.Names}}"])
    }

    /// The names of its running containers.
    #[track_caller]
    pub fn running(&self) -> BTreeSet<String> {
        self.list(&["ps", "--format", "{{.Names}}"])
    }

    /// The names of its networks.
    #[track_caller]
    pub fn networks(&self) -> BTreeSet<String> {
        self.list(&["network", "ls", "--format", "{{.Name}}"])
    }

    /// The names of its volumes.
    #[track_caller]
    pub fn volumes(&self) -> BTreeSet<String> {
        self.list(&["volume", "ls", "--quiet"])
    }

    /// The names of its images, as `repository:tag`.
    #[track_caller]
    pub fn images(&self) -> BTreeSet<String> {
        self.list(&["images", "--format", "{{.Repository}}:{{.Tag}}"])
    }

    /// Its current objects, for a later comparison.
    #[track_caller]
    pub fn holdings(&self) -> Holdings {
        Holdings { containers: self.containers(), networks: self.networks(), volumes: self.volumes() }
    }

    #[track_caller]
    fn list(&self, arguments: &[&str]) -> BTreeSet<String> {
        self.docker(arguments).lines().map(str::to_owned).collect()
    }

    /// Waits until no container has this text in its name, and fails the test if one remains.
    #[track_caller]
    pub fn expect_no_container(&self, text: &str) {
        let named = || -> Vec<_> {
            self.containers().into_iter().filter(|container| container.contains(text)).collect()
        };
        let deadline = Instant::now() + PATIENCE;
        while !named().is_empty() {
            assert!(Instant::now() < deadline, "left behind: {:#?}", named());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl TestJob {
    /// Runs the job on an engine, with the host's network, so that scripts can reach a [`Gate`](crate::Gate).
    #[must_use]
    pub fn on(self, engine: &TestEngine) -> Self {
        self.set("environment", json!({"type": "docker", "provider_config": {"network": "host"}}))
            .env("DOCKER_HOST", engine.host())
    }
}

/// An engine of a single test, which may stop it. It has the image `test` and no network.
pub struct OwnEngine {
    engine: TestEngine,
    dir: TempDir,
    daemon: Option<Child>,
}

impl OwnEngine {
    /// Starts an engine.
    #[track_caller]
    pub fn start() -> Self {
        let shared = PathBuf::from(variable("ROLLOUT_TEST_DOCKER_HOST").trim_start_matches("unix://"));
        // Next to the shared one, because the file system there supports layers and is removed with the
        // services.
        let services = shared.ancestors().nth(2).expect("the engine's socket is two directories deep");
        let dir = TempDir::with_prefix_in("own-", services).expect("make a directory for the engine");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("open the directory");
        let engine = TestEngine { host: format!("unix://{}", dir.path().join("sock").display()) };
        let mut own = Self { engine, dir, daemon: None };
        own.start_again();
        own.engine.docker(&["import", &variable("ROLLOUT_TEST_BASE"), "test:latest"]);
        own
    }

    /// The engine, for the common operations.
    pub fn engine(&self) -> &TestEngine {
        &self.engine
    }

    /// Lets every user of the machine connect to it, until it is stopped.
    pub fn open_to_everyone(&self) {
        fs::set_permissions(self.dir.path().join("sock"), fs::Permissions::from_mode(0o666))
            .expect("open the engine's socket");
    }

    /// Stops it like an administrator: its containers are ended first.
    #[track_caller]
    pub fn stop(&mut self) {
        self.end("-TERM");
    }

    /// Kills it like a crash: its containers keep running.
    #[track_caller]
    pub fn kill(&mut self) {
        self.end("-KILL");
    }

    /// Starts it again with its data.
    #[track_caller]
    pub fn start_again(&mut self) {
        assert!(self.daemon.is_none(), "the engine is running");
        let path = |name: &str| self.dir.path().join(name);
        let log =
            fs::File::options().create(true).append(true).open(path("log")).expect("open the engine's log");
        // A killed daemon leaves the file, and the next one would think that another daemon runs.
        let _ = fs::remove_file(path("pid"));
        let daemon = Command::new("dockerd")
            .arg("--data-root")
            .arg(path("data"))
            .arg("--exec-root")
            .arg(path("exec"))
            .arg("--pidfile")
            .arg(path("pid"))
            .args(["--host", &self.engine.host, "--storage-driver", "overlay2"])
            .args(["--exec-opt", "native.cgroupdriver=cgroupfs"])
            .args(["--cgroup-parent", &variable("ROLLOUT_TEST_CGROUP")])
            // The bridge and the rules of the shared engine stay unchanged.
            .args(["--bridge", "none", "--iptables=false", "--ip-forward=false"])
            .args(["--shutdown-timeout", "3"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("share the engine's log"))
            .stderr(log)
            .spawn()
            .expect("start dockerd");
        self.daemon = Some(daemon);
        let deadline = Instant::now() + PATIENCE;
        let answers = || {
            let version = self.engine.client().arg("version").output().expect("run the client");
            version.status.success()
        };
        while !answers() {
            let log = || fs::read_to_string(path("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "the engine did not start:\n{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[track_caller]
    fn end(&mut self, signal: &str) {
        let mut daemon = self.daemon.take().expect("the engine is running");
        let status =
            Command::new("kill").args([signal, &daemon.id().to_string()]).status().expect("run kill");
        assert!(status.success(), "kill {signal} failed");
        let deadline = Instant::now() + PATIENCE;
        while daemon.try_wait().expect("look at dockerd").is_none() {
            if Instant::now() > deadline {
                let _ = daemon.kill();
                panic!("the engine did not stop in time");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        if self.daemon.is_some() {
            self.end("-TERM");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{OwnEngine, TestEngine};
    use crate::TestRegistry;

    #[test]
    fn an_own_engine_keeps_its_data_over_a_stop_and_does_not_affect_the_shared_one() {
        let mut own = OwnEngine::start();
        let before = own.engine().holdings();
        own.engine().docker(&[
            "run",
            "--detach",
            "--stop-timeout",
            "1",
            "--name",
            "own-keeps",
            "test",
            "sleep",
            "infinity",
        ]);
        assert!(own.engine().running().contains("own-keeps"));
        own.stop();
        assert!(!own.engine().client().arg("version").output().expect("run the client").status.success());
        own.start_again();
        assert!(own.engine().containers().contains("own-keeps"));
        assert!(!TestEngine::shared().containers().contains("own-keeps"));
        own.engine().docker(&["rm", "--force", "own-keeps"]);
        assert_eq!(own.engine().holdings(), before);
    }

    #[test]
    fn an_own_engine_comes_back_after_a_crash() {
        let mut own = OwnEngine::start();
        own.engine().docker(&[
            "run",
            "--detach",
            "--stop-timeout",
            "1",
            "--name",
            "own-crash",
            "test",
            "sleep",
            "infinity",
        ]);
        own.kill();
        own.start_again();
        assert!(own.engine().containers().contains("own-crash"));
    }

    #[test]
    fn the_registry_accepts_images_and_counts_requests() {
        let registry = TestRegistry::shared();
        let reference = registry.push(&TestEngine::shared(), "busybox", "counted:1");
        assert!(!TestEngine::shared().images().contains(&reference));
        let pushed = registry.requests("counted");
        assert!(pushed.contains(&"PUT /v2/counted/manifests/1".to_owned()), "{pushed:#?}");
        assert_eq!(registry.requests("never"), Vec::<String>::new());
    }

    #[test]
    fn both_shared_engines_have_the_images() {
        for engine in [TestEngine::shared(), TestEngine::podman()] {
            let images = engine.images().into_iter().collect::<Vec<_>>().join(" ");
            assert!(images.contains("test:latest") && images.contains("busybox:latest"), "{images}");
            let said = engine.docker(&["run", "--rm", "--network", "none", "test", "echo", "hello"]);
            assert_eq!(said, "hello");
        }
    }
}
