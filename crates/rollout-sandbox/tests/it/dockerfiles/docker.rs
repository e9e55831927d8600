//! Docker's builders, through its client, and a server of files for `ADD`.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
};

use serde_json::{Value, json};

use super::case::Builder;

/// The client of the engine's own version: a newer one needs plugins to build.
const CLIENT: &str = "/usr/bin/docker";

/// The parts of a configuration that are compared.
pub(super) const KEYS: [&str; 12] = [
    "Env",
    "User",
    "WorkingDir",
    "Entrypoint",
    "Cmd",
    "Labels",
    "ExposedPorts",
    "Volumes",
    "Healthcheck",
    "StopSignal",
    "OnBuild",
    "Shell",
];

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A Docker engine for tests.
pub(super) struct Docker {
    host: String,
    config: PathBuf,
    theme: String,
    /// The name of the base image.
    pub(super) base: String,
}

impl Docker {
    pub(super) fn new(dir: &Path, theme: &str) -> Docker {
        let variable = "ROLLOUT_TEST_DOCKER_HOST";
        let host = std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: run the test with scripts/with-services, which starts an engine")
        });
        let config = dir.join("docker");
        fs::create_dir(&config).unwrap();
        Docker { host, config, theme: theme.to_owned(), base: "base".to_owned() }
    }

    fn run(&self, arguments: &[&str], buildkit: bool) -> Output {
        Command::new(CLIENT)
            .args(arguments)
            .env("DOCKER_HOST", &self.host)
            .env("DOCKER_CONFIG", &self.config)
            .env("DOCKER_BUILDKIT", if buildkit { "1" } else { "0" })
            .output()
            .unwrap()
    }

    fn must(&self, arguments: &[&str]) -> Vec<u8> {
        let output = self.run(arguments, false);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Builds the base image, which all tests share, and saves it to a file.
    pub(super) fn save_base(&self, context: &Path) -> PathBuf {
        self.must(&["build", "--quiet", "--tag", &self.base, &context.display().to_string()]);
        let archive = context.with_extension("tar");
        self.must(&["save", "--output", &archive.display().to_string(), &self.base]);
        archive
    }

    /// Builds a Dockerfile and returns the name of the image.
    pub(super) fn build(&self, context: &Path, builder: Builder, number: usize) -> Result<String, String> {
        let tag = format!("{}-{number}-{}", self.theme, format!("{builder:?}").to_lowercase());
        let context = context.display().to_string();
        let arguments = ["build", "--quiet", "--no-cache", "--network=host", "--tag", &tag, &context];
        let output = self.run(&arguments, builder == Builder::BuildKit);
        match output.status.success() {
            true => Ok(tag),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// All files of an image, as a tar archive.
    pub(super) fn export(&self, image: &str) -> Vec<u8> {
        let container = self.must(&["create", "--network=none", image, "command"]);
        let container = String::from_utf8(container).unwrap();
        let files = self.must(&["export", container.trim()]);
        self.must(&["rm", container.trim()]);
        files
    }

    pub(super) fn config(&self, image: &str) -> Value {
        let found: Value = serde_json::from_slice(&self.must(&["inspect", image])).unwrap();
        normalised(found[0]["Config"].clone())
    }

    pub(super) fn remove(&self, image: &str) {
        self.must(&["rmi", image]);
    }
}

/// A configuration in which what is missing is written as its default.
pub(super) fn normalised(config: Value) -> Value {
    let mut clean = json!({});
    for key in KEYS {
        let value = &config[key];
        let is_empty = match value {
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::String(text) => text.is_empty(),
            _ => value.is_null(),
        };
        clean[key] = if is_empty { Value::Null } else { value.clone() };
    }
    if clean["WorkingDir"].is_null() {
        clean["WorkingDir"] = json!("/");
    }
    if clean["Shell"].is_null() {
        clean["Shell"] = json!(["/bin/sh", "-c"]);
    }
    let mut env = clean["Env"].as_array().cloned().unwrap_or_default();
    if !env.iter().any(|variable| variable.as_str().unwrap().starts_with("PATH=")) {
        env.insert(0, json!(PATH));
    }
    clean["Env"] = json!(env);
    if let Some(check) = clean["Healthcheck"].as_object_mut() {
        check.retain(|_, value| *value != json!(0));
    }
    clean
}

/// Serves every path as a small file, and names that end with `.gz` as an archive. Returns the port.
pub(super) fn serve_files() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut lines = BufReader::new(connection.try_clone().unwrap()).lines();
            let request = lines.next().unwrap().unwrap();
            // The rest of the head.
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let body = match request.contains(".gz") {
                true => super::tree::archive_with_capabilities(),
                false => b"downloaded\n".to_vec(),
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\
                 Connection: close\r\n\r\n",
                body.len()
            );
            // A client may only ask for the head.
            let _ = connection.write_all(head.as_bytes());
            if !request.starts_with("HEAD") {
                let _ = connection.write_all(&body);
            }
        }
    });
    port
}
