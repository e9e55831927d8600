//! A job in a temporary directory, run by the real command.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::TestTask;

/// How long anything in a test may take before the test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(120);

/// A job with its tasks. It is run from the directory it lies in.
pub struct TestJob {
    command: PathBuf,
    root: Arc<TempDir>,
    config: Value,
    env: Vec<(String, String)>,
}

impl TestJob {
    /// An empty job named `job` for the native environment, run by this command.
    ///
    /// The command is run from a link of its own, so that its processes can be told from those of other tests.
    pub fn new(command: impl AsRef<Path>) -> Self {
        Self::new_in(command, &std::env::temp_dir())
    }

    /// The same below a directory of choice, and so on its file system.
    pub fn new_in(command: impl AsRef<Path>, dir: &Path) -> Self {
        let root = Arc::new(TempDir::new_in(dir).expect("make a temporary directory"));
        let link = root.path().join("rollout");
        fs::hard_link(&command, &link)
            .or_else(|_| fs::copy(&command, &link).map(drop))
            .expect("link the command");
        let config = json!({
            "name": "job",
            "environment": {"type": "native", "provider_config": {"images": {"*": "host"}}},
            "retry": {"initial_delay_ms": 10},
            "agents": [],
            "datasets": [{"path": "set"}],
        });
        Self { command: link, root, config, env: Vec::new() }
    }

    /// Adds a task to the dataset `set`.
    #[must_use]
    pub fn task(self, task: TestTask) -> Self {
        task.write(&self.root.path().join("set"));
        self
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

    /// Adds an agent as the job file has it.
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

    /// Sets a variable of the command's environment.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Writes a file beside the job file.
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

    /// Where the command keeps images and running environments.
    pub fn state_dir(&self) -> PathBuf {
        self.root.path().join("state")
    }

    /// The directories of environments that run, are preserved or were left behind.
    pub fn environments(&self) -> Vec<PathBuf> {
        let below = |dir: PathBuf| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|path| path.is_dir())
        };
        below(self.state_dir().join("run"))
            .flat_map(below)
            // The place where a run's helper mounts what it needs itself.
            .filter(|path| !path.ends_with("mnt"))
            .chain(below(self.state_dir().join("preserved")))
            .collect()
    }

    /// The job's directory.
    pub fn dir(&self) -> PathBuf {
        self.root.path().join("jobs/job")
    }

    /// The command with these arguments, in the job's directory, with a clean environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        // Moved into place, because another command of the same test may be reading it.
        let written = self.root.path().join("job.yaml.new");
        fs::write(&written, self.config.to_string()).expect("write the job file");
        fs::rename(&written, self.root.path().join("job.yaml")).expect("name the job file");
        let mut command = Command::new(&self.command);
        command
            .args(arguments)
            .current_dir(self.root.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.root.path())
            .env("ROLLOUT_STATE_DIR", self.state_dir())
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null());
        command
    }

    /// Runs the command to its end.
    pub fn rollout(&self, arguments: &[&str]) -> Finished {
        let output = self.command(arguments).output().expect("run the command");
        Finished { output, dir: self.dir(), _root: Arc::clone(&self.root) }
    }

    /// Runs the job to its end.
    pub fn run(&self) -> Finished {
        self.rollout(&["run", "job.yaml"])
    }

    /// Starts the job and goes on.
    pub fn start(&self) -> Running {
        self.start_with(&["run", "job.yaml", "--output", "json"])
    }

    /// Starts the command with these arguments and goes on.
    pub fn start_with(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(arguments);
        let stdout = fs::File::create(self.root.path().join("stdout")).expect("make a file for the output");
        let stderr = fs::File::create(self.root.path().join("stderr")).expect("make a file for the errors");
        let child = command.stdout(stdout).stderr(stderr).spawn().expect("start the command");
        Running { child, root: Arc::clone(&self.root), dir: self.dir() }
    }
}

/// A command that has ended.
pub struct Finished {
    output: Output,
    dir: PathBuf,
    /// Keeps the files until the last one who may look at them is done.
    _root: Arc<TempDir>,
}

impl Finished {
    /// The exit code.
    pub fn code(&self) -> i32 {
        self.output.status.code().unwrap_or(-1)
    }

    /// What it printed.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// What it complained.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// The events it told with `--output json`.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        whole_lines(&self.stdout())
    }

    /// Fails the test unless the command ended with this code.
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

/// A command that is running.
pub struct Running {
    /// The process.
    pub child: Child,
    root: Arc<TempDir>,
    dir: PathBuf,
}

impl Running {
    /// The events told so far, one JSON object each.
    pub fn events(&self) -> Vec<Value> {
        whole_lines(&fs::read_to_string(self.root.path().join("stdout")).unwrap_or_default())
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("look at the command").is_none()
    }

    /// Waits until the condition holds for the events told so far.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut condition: impl FnMut(&[Value]) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(&self.events()) {
            let stderr = || fs::read_to_string(self.root.path().join("stderr")).unwrap_or_default();
            assert!(Instant::now() < deadline, "no {what} in time; stderr:\n{}", stderr());
            if let Some(status) = self.child.try_wait().expect("look at the command") {
                assert!(condition(&self.events()), "ended ({status}) before {what}; stderr:\n{}", stderr());
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until this many trials are told to be in a phase or beyond.
    #[track_caller]
    pub fn until_phase(&mut self, phase: &str, trials: usize) {
        self.until(phase, |events| {
            events.iter().filter(|event| event["event"] == "phase_started" && event["phase"] == phase).count()
                >= trials
        });
    }

    /// Sends a signal to the command.
    pub fn signal(&self, signal: &str) {
        let status =
            Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("run kill");
        assert!(status.success(), "kill {signal} failed");
    }

    /// Waits for the end.
    #[track_caller]
    pub fn finish(mut self) -> Finished {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("look at the command") {
                break status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                panic!("the command did not end in time");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let output = Output {
            status,
            stdout: fs::read(self.root.path().join("stdout")).unwrap_or_default(),
            stderr: fs::read(self.root.path().join("stderr")).unwrap_or_default(),
        };
        Finished { output, dir: self.dir.clone(), _root: Arc::clone(&self.root) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed test must not leave its job running; one that ended is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The JSON of every line that is there to its end: a killed command may leave a torn one.
#[track_caller]
fn whole_lines(text: &str) -> Vec<Value> {
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
