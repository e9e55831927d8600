//! The image registry that `scripts/with-services` starts for tests.

use std::{fs, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;

use crate::{docker::TestEngine, variable::variable};

/// The image registry on loopback. It requires a login.
pub struct TestRegistry {
    address: String,
    login: String,
}

impl TestRegistry {
    /// The registry that all tests share. It keeps what they push, so each test uses unique names.
    #[track_caller]
    pub fn shared() -> Self {
        Self { address: variable("ROLLOUT_TEST_REGISTRY"), login: variable("ROLLOUT_TEST_REGISTRY_LOGIN") }
    }

    /// The reference of an image in it.
    pub fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// Its password, which must appear in no file.
    pub fn password(&self) -> &str {
        self.login.split_once(':').expect("a login is a user and a password").1
    }

    /// Its host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Writes a client configuration with the login into a directory for `DOCKER_CONFIG`.
    pub fn write_login(&self, dir: &Path) {
        self.write(dir, &self.address, &self.login);
    }

    /// The same for another address of the registry.
    pub fn write_login_for(&self, dir: &Path, address: &str) {
        self.write(dir, address, &self.login);
    }

    /// The same with this password instead of the right one.
    pub fn write_wrong_login(&self, dir: &Path, password: &str) {
        self.write(dir, &self.address, &format!("tester:{password}"));
    }

    fn write(&self, dir: &Path, address: &str, login: &str) {
        fs::create_dir_all(dir).expect("make a directory for the client's configuration");
        let config = json!({"auths": {address: {"auth": BASE64_STANDARD.encode(login)}}});
        fs::write(dir.join("config.json"), config.to_string()).expect("write the client's configuration");
    }

    /// Pushes an image that no engine has: the source with an additional label.
    #[track_caller]
    pub fn push(&self, engine: &TestEngine, source: &str, name: &str) -> String {
        let config = tempfile::tempdir().expect("make a temporary directory");
        self.write_login(config.path());
        let reference = self.image(name);
        // The directory's name is unique: two identical images would be one, which another test may remove
        // meanwhile.
        let unique = config.path().display();
        let dockerfile = format!("FROM {source}\nLABEL pushed-as={name} pushed-from={unique}\n");
        fs::write(config.path().join("Dockerfile"), dockerfile).expect("write a Dockerfile");
        engine.docker(&["build", "--quiet", "--tag", &reference, &config.path().display().to_string()]);
        let pushed = engine
            .client()
            .env("DOCKER_CONFIG", config.path())
            .args(["push", "--quiet", &reference])
            .output()
            .expect("run the client");
        assert!(pushed.status.success(), "push {reference}: {}", String::from_utf8_lossy(&pushed.stderr));
        engine.docker(&["image", "rm", &reference]);
        reference
    }

    /// The accepted requests for a repository so far, such as `GET /v2/name/manifests/1`.
    pub fn requests(&self, repository: &str) -> Vec<String> {
        let log = fs::read_to_string(variable("ROLLOUT_TEST_REGISTRY_LOG")).expect("read the registry's log");
        let within = format!("/v2/{repository}/");
        // Lines in the common log format: address, time, "METHOD path protocol", status.
        log.lines()
            .filter_map(|line| line.split_once("] \"")?.1.split_once("\" "))
            .filter(|(request, rest)| request.contains(&within) && !rest.starts_with("401"))
            .filter_map(|(request, _)| Some(request.rsplit_once(' ')?.0.to_owned()))
            .collect()
    }
}
