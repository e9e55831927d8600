//! A tool server for a test.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use rollout_testkit::{Finished, Running, TestJob};
use serde_json::{Value, json};

use crate::http::{self, Answer};

/// How long anything may take before a test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// A server that runs.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) job: TestJob,
    running: Running,
}

/// The place of a server that is to be started, with its configuration.
pub(crate) fn place(config: &Value) -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout")).file("tools.json", &config.to_string())
}

impl Server {
    /// Serves what needs no configuration.
    pub(crate) fn start() -> Self {
        Self::with(&json!({}))
    }

    pub(crate) fn with(config: &Value) -> Self {
        Self::in_place(place(config), &[])
    }

    /// Serves as soon as it says that it does.
    pub(crate) fn serving(job: TestJob, arguments: &[&str]) -> Self {
        let all = [&["tools", "serve", "--port", "0", "--config", "tools.json"], arguments].concat();
        let mut running = job.start_with(&all);
        let address = address(&job, || running.is_running());
        Self { address, job, running }
    }

    pub(crate) fn in_place(job: TestJob, arguments: &[&str]) -> Self {
        let server = Self::serving(job, arguments);
        // What it tries out when it starts is not to be counted as a test's.
        until(|| {
            let (status, reported) = server.get("/api/v1/warmup/status");
            let tried = |(name, how): (&String, &Value)| {
                name == "vm" || how["status"] == "warm" || how["status"] == "failed"
            };
            status != 200 || reported["backends"].as_object().unwrap().iter().all(tried)
        });
        server
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        reported(http::get(self.address, path))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        reported(http::post(self.address, path, body))
    }

    /// Calls a tool, and returns the whole answer.
    pub(crate) fn execute(&self, worker: &str, action: &str, params: &Value) -> Value {
        let body = json!({"worker_id": worker, "action": action, "params": params});
        self.post("/api/v1/execute", &body).1
    }

    /// What a shell command says.
    #[track_caller]
    pub(crate) fn shell(&self, worker: &str, command: &str) -> String {
        let answer = self.execute(worker, "code:shell", &json!({"command": command}));
        assert_eq!(answer["code"], 0, "{answer}");
        answer["data"]["result"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn open(&self, worker: &str, kind: &str) -> Value {
        let body = json!({"worker_id": worker, "resource_type": kind});
        let (status, mut answer) = self.post("/api/v1/session/create", &body);
        assert_eq!(status, 200, "{answer}");
        answer["data"].take()
    }

    pub(crate) fn sessions(&self) -> u64 {
        self.get("/ready").1["total_sessions"].as_u64().unwrap()
    }

    /// Waits until so many sessions are open.
    #[track_caller]
    pub(crate) fn until_sessions(&self, number: u64) {
        until(|| self.sessions() == number);
    }

    /// How many files it may open.
    pub(crate) fn open_files(&self) -> u64 {
        let limits = fs::read_to_string(format!("/proc/{}/limits", self.running.child.id())).unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: &str) {
        self.running.signal(signal);
    }

    /// Waits for the end, after which nothing is left.
    #[track_caller]
    pub(crate) fn finish(self) -> Finished {
        let finished = self.running.finish();
        self.job.expect_nothing_left();
        finished
    }

    #[track_caller]
    pub(crate) fn stop(self) {
        self.signal("-TERM");
        self.finish().expect(0);
    }
}

/// Where a server says that it serves.
#[track_caller]
pub(crate) fn address(job: &TestJob, mut is_running: impl FnMut() -> bool) -> SocketAddr {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = fs::read_to_string(job.root().join("stdout")).unwrap_or_default();
        if let Some((_, address)) = shown.lines().next().and_then(|line| line.split_once(" at http://"))
            && shown.ends_with('\n')
        {
            let port = address.parse::<SocketAddr>().unwrap().port();
            return SocketAddr::new([127, 0, 0, 1].into(), port);
        }
        let stderr = || fs::read_to_string(job.root().join("stderr")).unwrap_or_default();
        assert!(is_running() && Instant::now() < deadline, "it did not start:\n{}", stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn reported(answer: Answer) -> (u16, Value) {
    (answer.status, answer.json())
}

#[track_caller]
pub(crate) fn until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it did not happen in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}
