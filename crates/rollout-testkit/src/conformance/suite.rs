//! The fixtures of every case.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use rollout::{
    config::{Bytes, Cpus},
    environment::{CommandRole, Environment, EnvironmentError, EnvironmentSpec, Exec, Exit, Origin},
    record::{log::LogWriter, redact::Redactor},
};
use rollout_sandbox::Terminal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Ability, Subject};
use crate::{Finished, Library, TestJob, TestTask, library::runtime};

/// The directories that a trial hides from its agent.
pub(crate) const PRIVATE_DIRS: &[&str] = &["/tests", "/logs/verifier"];

/// A subject and its jobs.
pub struct Suite(Arc<dyn Subject>);

impl Suite {
    /// The suite for a subject.
    pub fn new(subject: impl Subject) -> Self {
        Self(Arc::new(subject))
    }

    /// An empty job.
    pub fn job(&self) -> TestJob<Library> {
        TestJob::of(Arc::clone(&self.0))
    }

    /// The subject.
    pub fn subject(&self) -> &dyn Subject {
        &*self.0
    }

    /// Whether the subject lacks an ability; if it does, checks that its notes say so.
    #[track_caller]
    pub(crate) fn lacks(&self, ability: Ability) -> bool {
        let Some(words) = self.0.lacks(ability) else {
            return false;
        };
        let job = self.job().task(TestTask::new("task")).oracle();
        let notes = runtime().block_on(async { job.connect().await.1.notes() });
        assert!(notes.iter().any(|note| note.contains(words)), "no note has {words:?}: {notes:?}");
        true
    }

    /// Creates an environment for a task, works in it, and removes it.
    #[track_caller]
    pub fn inside(&self, task: TestTask, work: impl AsyncFnOnce(&Inside)) {
        inside(&self.job().task(task).oracle(), work);
    }

    /// The same, in an environment without a network if the subject has such.
    #[track_caller]
    pub(crate) fn inside_alone(&self, task: TestTask, work: impl AsyncFnOnce(&Inside)) {
        let job = self.job().task(task).oracle();
        if self.lacks(Ability::NoNetwork) {
            return inside(&job, work);
        }
        inside(&job.set("environment/provider_config/network", json!("none")), work);
    }

    /// Creates an environment, kills it from outside while a command runs in it, and returns the result of the
    /// command.
    pub(crate) fn killed(&self, role: CommandRole) -> Result<(Exit, String), EnvironmentError> {
        let job = self.job().task(TestTask::new("task")).oracle();
        let ended = runtime().block_on(async {
            let (environment, scratch) = make(&job).await;
            let inside = Inside { environment, scratch };
            let stdout = inside.scratch().join("stdout");
            let kill = async {
                while fs::read(&stdout).unwrap_or_default().is_empty() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                self.subject().end_environments(job.name(), &job.state_dir());
            };
            let argv = ["bash", "-c", "echo up; exec sleep 600"];
            let (ended, ()) = tokio::join!(inside.exec_as(role, &argv, None), kill);
            // The remains of a lost environment are removed, too; an error is expected here.
            let _ = inside.environment.destroy().await;
            ended
        });
        job.expect_nothing_left();
        ended
    }

    /// Creates an environment, and drops its provider before the environment.
    #[track_caller]
    pub(crate) fn let_go(&self) {
        let job = self.job().task(TestTask::new("task")).oracle();
        runtime().block_on(async {
            let (environment, _scratch) = make(&job).await;
            drop(environment);
        });
        job.expect_nothing_left();
    }
}

/// Creates an environment for the only task of a job, works in it, and removes it.
#[track_caller]
fn inside(job: &TestJob<Library>, work: impl AsyncFnOnce(&Inside)) {
    runtime().block_on(async {
        let (environment, scratch) = make(job).await;
        let inside = Inside { environment, scratch };
        work(&inside).await;
        inside.environment.destroy().await.expect("destroy the environment");
    });
    job.expect_nothing_left();
}

/// Creates an environment for a job's only task. Its provider has been dropped.
async fn make(job: &TestJob<Library>) -> (Box<dyn Environment>, TempDir) {
    let (plan, provider) = job.connect().await;
    let task = plan.tasks()[0].container().expect("the task is valid");
    let scratch = tempfile::tempdir().expect("make a temporary directory");
    let origin = Origin { job: job.name(), trial: "oracle/set/task__1" };
    let log = scratch.path().join("build.txt");
    let request = task.image_request(task.compose.as_deref(), origin, false, &log);
    let image = provider.prepare(request).await.expect("prepare the image");
    let spec = EnvironmentSpec {
        cpus: Some(Cpus { millis: 1000 }),
        memory: Some(Bytes(256 << 20)),
        storage: Some(Bytes(1 << 30)),
        private_dirs: PRIVATE_DIRS,
        ..EnvironmentSpec::new(origin, &image, "task-oracle-1")
    };
    let environment = provider.create(spec).await.expect("create the environment");
    (environment, scratch)
}

/// An environment that a case works in.
pub struct Inside {
    environment: Box<dyn Environment>,
    scratch: TempDir,
}

impl Inside {
    /// The environment.
    pub fn environment(&self) -> &dyn Environment {
        &*self.environment
    }

    /// A directory of the host, empty except for a build log.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Runs a script to its end and returns its standard output followed by its standard error.
    pub async fn bash(&self, script: &str) -> String {
        self.exec(&["bash", "-c", script], None).await.expect("run a script").1
    }

    /// Runs a command as the agent, and returns its exit and its output.
    pub async fn exec(
        &self,
        argv: &[&str],
        deadline: Option<Duration>,
    ) -> Result<(Exit, String), EnvironmentError> {
        self.exec_as(CommandRole::Agent, argv, deadline).await
    }

    /// Runs a script as the verifier to its end and returns its output.
    pub(crate) async fn verifier_bash(&self, script: &str) -> String {
        self.exec_as(CommandRole::Verifier, &["bash", "-c", script], None).await.expect("run a script").1
    }

    async fn exec_as(
        &self,
        role: CommandRole,
        argv: &[&str],
        deadline: Option<Duration>,
    ) -> Result<(Exit, String), EnvironmentError> {
        let file = |name: &str| fs::File::create(self.scratch().join(name));
        let writer =
            |name: &str| -> io::Result<LogWriter> { Ok(LogWriter::new(file(name)?, &Redactor::default())) };
        let (stdout, stderr) =
            (writer("stdout").expect("make a file"), writer("stderr").expect("make a file"));
        let exit = self.environment.exec(Exec { role, argv, env: &[], deadline, stdout, stderr }).await?;
        let printed: Vec<u8> = ["stdout", "stderr"]
            .iter()
            .flat_map(|name| fs::read(self.scratch().join(name)).expect("read what was printed"))
            .collect();
        Ok((exit, String::from_utf8_lossy(&printed).into_owned()))
    }
}

/// Runs a command on a terminal with this typed input, and returns its exit and its output.
pub(crate) async fn on_terminal(environment: &dyn Environment, argv: &[&str], typed: &str) -> (Exit, String) {
    let Terminal { person_end, command_end } = Terminal::open().expect("open a terminal");
    let mut screen = fs::File::from(person_end);
    screen.write_all(typed.as_bytes()).expect("type");
    let exit = environment.exec_on_terminal(argv, command_end).await.expect("run a command on a terminal");
    let mut shown = Vec::new();
    // Reading fails after the other end is closed.
    let _ = screen.read_to_end(&mut shown);
    (exit, String::from_utf8_lossy(&shown).into_owned())
}

/// Runs a job of one trial that must fail with this error, and returns its result.
#[track_caller]
pub(crate) fn fails(job: &TestJob<Library>, kind: &str) -> (Finished, Value) {
    let finished = job.run();
    let job = finished.result();
    let row = &job["results"][0];
    let text = |key: &str| row[key].as_str().unwrap_or_default();
    let trial =
        format!("{}/{}/{}__{}", text("agent_name"), text("dataset_name"), text("task_name"), row["attempt"]);
    let result = finished.trial(&trial);
    assert_eq!(result["error"]["type"], kind, "{result:#}");
    assert_eq!(result["reward"], Value::Null);
    let said = finished.file(&format!("{trial}/error.txt"));
    assert!(said.starts_with(kind), "error.txt names the type: {said}");
    assert!(said.contains(message(&result).trim_end()), "error.txt has the message: {said}");
    assert_eq!((&job["failed_trials"], &job["completed_trials"]), (&json!(1), &json!(0)));
    assert_eq!(row["error"], kind);
    (finished.expect(1), result)
}

/// The message of a result's error.
#[track_caller]
pub(crate) fn message(result: &Value) -> &str {
    result["error"]["message"].as_str().unwrap_or_else(|| panic!("there is no error in {result:#}"))
}

/// Fails the test unless the error's message contains these words.
#[track_caller]
pub(crate) fn says(result: &Value, words: &str) {
    assert!(message(result).contains(words), "{words:?} is not in: {}", message(result));
}

/// Checks that phases that did not run have neither a duration nor timestamps.
#[track_caller]
pub(crate) fn never_ran(result: &Value, phases: &[&str]) {
    for phase in phases {
        assert_eq!(result["durations"][format!("{phase}_sec")], Value::Null, "{phase}");
        assert_eq!(result["timestamps"][format!("{phase}_started_at")], Value::Null, "{phase}");
        assert_eq!(result["timestamps"][format!("{phase}_ended_at")], Value::Null, "{phase}");
    }
}
