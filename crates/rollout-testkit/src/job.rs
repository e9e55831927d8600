//! A job in a temporary directory, and its results.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The timeout of all operations in tests, so that a test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Runs jobs with the command.
pub struct Binary(pub(crate) PathBuf);

/// A job with its tasks, run with the command or, as a [`crate::Library`] job, with the library.
pub struct TestJob<R = Binary> {
    pub(crate) runner: R,
    pub(crate) name: String,
    pub(crate) root: Arc<TempDir>,
    pub(crate) config: Value,
    pub(crate) env: Vec<(String, String)>,
}

impl<R> TestJob<R> {
    /// A job without agents and tasks, with this `environment` section.
    pub(crate) fn empty(runner: R, name: String, root: TempDir, environment: Value) -> Self {
        let config = json!({
            "name": name,
            "environment": environment,
            "retry": {"initial_delay_ms": 10},
            "agents": [],
            "datasets": [{"path": "set"}],
        });
        Self { runner, name, root: Arc::new(root), config, env: Vec::new() }
    }

    /// Adds the oracle.
    #[must_use]
    pub fn oracle(self) -> Self {
        self.agent(json!({"name": "oracle"}))
    }

    /// Adds an agent named `agent` that runs this script.
    #[must_use]
    pub fn script(self, execute: &str) -> Self {
        self.agent(json!({"name": "agent", "execute": execute}))
    }

    /// Adds an agent in the form of the job file.
    #[must_use]
    pub fn agent(mut self, agent: Value) -> Self {
        self.config["agents"].as_array_mut().expect("agents is a list").push(agent);
        self
    }

    /// Sets a value of the job file, by its JSON pointer without the first slash.
    #[must_use]
    pub fn set(mut self, pointer: &str, value: Value) -> Self {
        let mut place = &mut self.config;
        for key in pointer.split('/') {
            place = &mut place[key];
        }
        *place = value;
        self
    }

    /// Sets an environment variable for reading the job file.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Writes a file next to the job file.
    #[must_use]
    pub fn file(self, path: &str, content: &str) -> Self {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().expect("a file has a parent")).expect("make a directory");
        fs::write(path, content).expect("write a file");
        self
    }

    /// The directory of the job file.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The directory of images and running environments.
    pub fn state_dir(&self) -> PathBuf {
        self.root.path().join("state")
    }

    /// The job's directory.
    pub fn dir(&self) -> PathBuf {
        self.root.path().join("jobs").join(&self.name)
    }

    /// Writes a job file atomically, because another run of the same test may be reading it.
    pub(crate) fn write(&self, file: &str, config: &Value) {
        let written = self.root.path().join(file).with_extension("new");
        fs::write(&written, config.to_string()).expect("write the job file");
        fs::rename(&written, self.root.path().join(file)).expect("name the job file");
    }
}

/// A run that has ended.
pub struct Finished {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) dir: PathBuf,
    /// Keeps the files until the last reader is done.
    pub(crate) _root: Arc<TempDir>,
}

impl Finished {
    /// The exit code; for a job run with the library, the one that the command would have returned.
    pub fn code(&self) -> i32 {
        self.code
    }

    /// Its standard output.
    pub fn stdout(&self) -> String {
        self.stdout.clone()
    }

    /// Its standard error.
    pub fn stderr(&self) -> String {
        self.stderr.clone()
    }

    /// Its events with `--output json`.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        whole_lines(&self.stdout)
    }

    /// Fails the test unless the run ended with this exit code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "stdout:\n{}\nstderr:\n{}", self.stdout(), self.stderr());
        self
    }

    /// The job's result.json.
    #[track_caller]
    pub fn result(&self) -> Value {
        read_json(&self.dir.join("result.json"))
    }

    /// A trial's result.json, by its directory relative to the job's.
    #[track_caller]
    pub fn trial(&self, path: &str) -> Value {
        read_json(&self.dir.join(path).join("result.json"))
    }

    /// The text of a file in the job's directory.
    #[track_caller]
    pub fn file(&self, path: &str) -> String {
        let path = self.dir.join(path);
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The JSON of every complete line: a killed command may leave a partial one.
#[track_caller]
pub(crate) fn whole_lines(text: &str) -> Vec<Value> {
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?} is not an event: {error}"))
        })
        .collect()
}

#[track_caller]
fn read_json(path: &Path) -> Value {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
