//! Jobs run with the library, with any provider.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rollout::{
    config::{AgentKind, JobConfig, load_job},
    environment::Provider,
    job::{Cancel, Job, Plan, Selection},
    model::{Model, build},
    name::AgentName,
    result::JobResult,
    task::{Resolved, Sources},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{Arrival, Finished, Gate, TestJob, TestTask, leftover::until_empty, subject::Subject};

/// The timeout of a job with its builds, so that the test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs jobs with the library.
pub struct Library(Arc<dyn Subject>);

impl TestJob<Library> {
    /// An empty job for the environments of a subject. Its name is unique, so that its leftovers can be
    /// identified.
    pub(crate) fn of(subject: Arc<dyn Subject>) -> Self {
        let root = tempfile::Builder::new().prefix("job-").tempdir().expect("make a temporary directory");
        let name = root.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let environment = subject.environment();
        Self::empty(Library(subject), name, root, environment)
    }

    /// Adds a task to the dataset `set`, with the subject's base image instead of `test`.
    #[must_use]
    pub fn task(self, task: TestTask) -> Self {
        task.base(self.runner.0.base_image()).write(&self.root.path().join("set"));
        self
    }

    /// The job's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the job to its end.
    #[track_caller]
    pub fn run(&self) -> Finished {
        self.start().finish()
    }

    /// Runs the job to its end with this suffix added to its name.
    #[track_caller]
    pub fn run_as(&self, suffix: &str) -> Finished {
        self.start_as(suffix).finish()
    }

    /// Starts the job without waiting for it.
    pub fn start(&self) -> Started {
        self.start_as("")
    }

    /// Starts the job with this suffix added to its name, without waiting for it.
    pub fn start_as(&self, suffix: &str) -> Started {
        let (config, file) = self.named(suffix);
        self.write(&file, &config);
        let cancel = Cancel::default();
        let (sender, finished) = channel();
        let (subject, root, state_dir) =
            (Arc::clone(&self.runner.0), Arc::clone(&self.root), self.state_dir());
        let (env, stop) = (self.env.clone(), cancel.clone());
        let thread = std::thread::spawn(move || {
            runtime().block_on(async move {
                let plan = plan(root.path().join(file), state_dir.clone(), &env).await;
                let provider = subject.provider(&plan.config().environment, &state_dir).await;
                let job = Job::create(plan, provider).await.expect("create the job");
                let dir = job.directory().to_owned();
                let (events, _) = tokio::sync::mpsc::unbounded_channel();
                let result = job.run(events, stop).await.expect("run the job");
                let (stdout, stderr) = (errors(&dir), String::new());
                let finished = Finished { code: code(&result), stdout, stderr, dir, _root: root };
                // The receiver is gone if the test has failed.
                let _ = sender.send(finished);
            });
        });
        Started { finished, cancel, thread: Some(thread) }
    }

    /// The job file with a suffix added to the job's name, and the name.
    fn named(&self, suffix: &str) -> (Value, String) {
        let mut config = self.config.clone();
        if !suffix.is_empty() {
            config["name"] = json!(format!("{}-{suffix}", self.name));
        }
        let jobs_dir = config.get("jobs_dir").and_then(Value::as_str).unwrap_or("jobs");
        config["jobs_dir"] = json!(self.root.path().join(jobs_dir));
        (config, format!("job{suffix}.yaml"))
    }

    /// The job's plan and its provider, for tests that call the provider themselves.
    pub(crate) async fn connect(&self) -> (Plan, Arc<dyn Provider>) {
        let (config, file) = self.named("");
        self.write(&file, &config);
        let plan = plan(self.root.path().join(file), self.state_dir(), &self.env).await;
        let provider = self.runner.0.provider(&plan.config().environment, &self.state_dir()).await;
        (plan, provider)
    }

    /// Waits until nothing of the job is left on the machine, and fails the test if something remains.
    #[track_caller]
    pub fn expect_nothing_left(&self) {
        until_empty(|| self.runner.0.leftovers(&self.name, &self.state_dir()));
    }
}

/// A runtime for one job.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("start a runtime")
}

async fn plan(file: PathBuf, state_dir: PathBuf, env: &[(String, String)]) -> Plan {
    let vars = |name: &str| env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let loaded = load_job(&file, &[], &vars).unwrap_or_else(|problems| panic!("{}", problems.render(false)));
    let sources = Sources::new(state_dir);
    let datasets =
        sources.load(&loaded.config.datasets, &Resolved::default(), &|_| ()).await.expect("load the tasks");
    let models = models(&loaded.config);
    Plan::new(loaded, Vec::new(), datasets, &Selection::default(), &vars)
        .expect("plan the job")
        .with_models(models)
}

fn models(config: &JobConfig) -> HashMap<AgentName, Arc<Model>> {
    let models = config.agents.iter().filter_map(|agent| match &agent.kind {
        AgentKind::Model(config) => {
            Some((agent.name.clone(), Arc::new(build::model(&config.model).expect("make a model"))))
        }
        _ => None,
    });
    models.collect()
}

/// The exit code that the command would return.
fn code(result: &JobResult) -> i32 {
    match result {
        result if result.cancelled => 130,
        result if result.totals.failed_trials > 0 => 1,
        _ => 0,
    }
}

/// The errors of a job's trials, for the message of a failed test.
fn errors(dir: &Path) -> String {
    let mut found = String::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        } else if path.ends_with("error.txt") {
            found += &format!("{}: {}\n", path.display(), fs::read_to_string(&path).unwrap_or_default());
        }
    }
    found
}

/// A job that the library is running.
pub struct Started {
    finished: Receiver<Finished>,
    /// Stops it.
    pub cancel: Cancel,
    thread: Option<JoinHandle<()>>,
}

impl Started {
    /// Waits until a script of the job has reached a gate.
    #[track_caller]
    pub fn arrival(&self, gate: &Gate) -> Arrival {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(arrival) = gate.next() {
                return arrival;
            }
            if let Ok(finished) = self.finished.try_recv() {
                panic!("the job ended before a script came to the gate: {}", finished.stdout);
            }
            assert!(Instant::now() < deadline, "no script reached the gate in time");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the end of the job and of its provider.
    #[track_caller]
    pub fn finish(mut self) -> Finished {
        let finished = self.finished.recv_timeout(PATIENCE);
        if !matches!(finished, Err(RecvTimeoutError::Timeout))
            && let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            std::panic::resume_unwind(panic);
        }
        finished.expect("the job ends in time")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // A failed test must not leave its job running.
        self.cancel.graceful.cancel();
        self.cancel.now.cancel();
    }
}
