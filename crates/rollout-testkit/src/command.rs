//! Jobs run with the real command.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    job::{Binary, Finished, PATIENCE, TestJob, whole_lines},
    task::TestTask,
};

/// The number of trials that are reported as finished.
pub fn finished_trials(events: &[Value]) -> usize {
    events.iter().filter(|event| event["event"] == "trial_finished").count()
}

/// Links a program to another path, also if another thread does the same.
///
/// If the path were already a link to the program, a copy would overwrite the program, so the copy goes to a
/// new file first.
#[track_caller]
pub fn link_program(program: &Path, link: &Path) {
    match fs::hard_link(program, link) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(_) => {
            let dir = link.parent().expect("a link is in a directory");
            let copy = TempDir::new_in(dir).expect("make a temporary directory");
            let file = copy.path().join("program");
            fs::copy(program, &file).and_then(|_| fs::rename(&file, link)).expect("copy the program");
        }
    }
}

impl TestJob {
    /// An empty job named `job` for the native environment, run with this command.
    ///
    /// The command runs from its own link, so that its processes can be distinguished from those of other
    /// tests.
    pub fn new(command: impl AsRef<Path>) -> Self {
        Self::new_in(command, &std::env::temp_dir())
    }

    /// The same below the given directory, and so on its file system.
    pub fn new_in(command: impl AsRef<Path>, dir: &Path) -> Self {
        let root = TempDir::new_in(dir).expect("make a temporary directory");
        let link = root.path().join("rollout");
        link_program(command.as_ref(), &link);
        let environment = json!({"type": "native", "provider_config": {"images": {"*": "host"}}});
        Self::empty(Binary(link), "job".to_owned(), root, environment)
    }

    /// Runs a command and kills it after it has reported that many finished trials; then does the same with the
    /// other command for each further number. Returns the total number of reported trials, and checks that none
    /// is reported twice.
    #[track_caller]
    pub fn kill_at(
        &self,
        first: &[&str],
        resume: &[&str],
        finished: impl IntoIterator<Item = usize>,
        mut before_each: impl FnMut(),
    ) -> usize {
        let mut reported = BTreeSet::new();
        let mut arguments = first;
        for finished in finished {
            before_each();
            let mut running = self.start_with(arguments);
            running.until("finished trials", |events| finished_trials(events) >= finished);
            running.signal("-KILL");
            for event in running.finish().events() {
                let index = event["index"].as_u64();
                assert!(event["event"] != "trial_finished" || reported.insert(index), "done twice: {event}");
            }
            arguments = resume;
        }
        reported.len()
    }

    /// Adds a task to the dataset `set`.
    #[must_use]
    pub fn task(self, task: TestTask) -> Self {
        task.write(&self.root.path().join("set"));
        self
    }

    /// The directories of environments that are running, preserved or left behind.
    pub fn environments(&self) -> Vec<PathBuf> {
        let below = |dir: PathBuf| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|path| path.is_dir())
        };
        below(self.state_dir().join("run"))
            .flat_map(below)
            // The mount point of a run's helper.
            .filter(|path| !path.ends_with("mnt"))
            .chain(below(self.state_dir().join("preserved")))
            .collect()
    }

    /// The command with these arguments, in the job's directory, with a clean environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.write("job.yaml", &self.config);
        let mut command = Command::new(&self.runner.0);
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
        finished(&output, self.dir(), &self.root)
    }

    /// Runs the job to its end.
    pub fn run(&self) -> Finished {
        self.rollout(&["run", "job.yaml"])
    }

    /// Starts the job without waiting for it.
    pub fn start(&self) -> Running {
        self.start_with(&["run", "job.yaml", "--output", "json"])
    }

    /// Starts the command with these arguments without waiting for it.
    pub fn start_with(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(arguments);
        let stdout = fs::File::create(self.root.path().join("stdout")).expect("make a file for the output");
        let stderr = fs::File::create(self.root.path().join("stderr")).expect("make a file for the errors");
        let child = command.stdout(stdout).stderr(stderr).spawn().expect("start the command");
        Running { child, root: Arc::clone(&self.root), dir: self.dir() }
    }
}

fn finished(output: &Output, dir: PathBuf, root: &Arc<TempDir>) -> Finished {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Finished {
        code: output.status.code().unwrap_or(-1),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
        dir,
        _root: Arc::clone(root),
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
    /// The events so far, one JSON object each.
    pub fn events(&self) -> Vec<Value> {
        whole_lines(&fs::read_to_string(self.root.path().join("stdout")).unwrap_or_default())
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("look at the command").is_none()
    }

    /// Waits until the condition is true for the events so far.
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

    /// Waits until this many trials have reached a phase.
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
        finished(&output, self.dir.clone(), &self.root)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed test must not leave its job running; the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
