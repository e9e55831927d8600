//! `rollout serve` over real HTTP, against a scripted model server.

mod endpoint;
mod examples;
mod service;
mod tasks;
mod training;

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use rollout_testkit::{Finished, ModelServer, Running, TestJob};
use serde_json::{Value, json};

use crate::http::{Answer, get, post};

/// How long anything may take before a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(600);

/// A job with one model and the examples `0+1`, `1+1` and so on.
fn job(server: &ModelServer, examples: usize) -> TestJob {
    let rows: Vec<Value> = (0..examples)
        .map(|n| json!({"question": format!("What is {n}+1?"), "answer": (n + 1).to_string()}))
        .collect();
    let model = json!({
        "name": "policy", "base_url": server.url(), "api_key": "${POLICY_KEY}", "max_retries": 0,
        "token_ids": true, "sampling": {"temperature": 1.0, "max_tokens": 64},
    });
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .env("POLICY_KEY", "sk-of-the-policy")
        .agent(json!({"name": "policy", "model": model}))
        .set("retry", json!({"max_attempts": 1}))
        .set("log_level", json!("error"))
        .set(
            "datasets",
            json!([{"name": "sums", "interaction": {"dataset": rows, "rubric": [{"match": "numeric"}]}}]),
        )
}

/// A service that runs.
struct Service {
    address: SocketAddr,
    running: Running,
    job: TestJob,
}

impl Service {
    fn start(job: TestJob) -> Self {
        Self::start_with(job, &[])
    }

    fn start_with(job: TestJob, arguments: &[&str]) -> Self {
        Self::start_at(job, "job.yaml", arguments)
    }

    /// Serves the job file at a path below the directory of the job.
    fn start_at(job: TestJob, file: &str, arguments: &[&str]) -> Self {
        let arguments = [&["serve", file, "--port", "0"], arguments].concat();
        let mut running = job.start_with(&arguments);
        let deadline = Instant::now() + PATIENCE;
        let address = loop {
            let shown = fs::read_to_string(job.root().join("stdout")).unwrap_or_default();
            if let Some((_, address)) = shown.lines().next().and_then(|line| line.split_once(" at http://"))
                && shown.ends_with('\n')
            {
                break address.parse::<SocketAddr>().unwrap();
            }
            let stderr = || fs::read_to_string(job.root().join("stderr")).unwrap_or_default();
            assert!(running.is_running() && Instant::now() < deadline, "it did not start:\n{}", stderr());
            std::thread::sleep(Duration::from_millis(5));
        };
        let address = SocketAddr::new([127, 0, 0, 1].into(), address.port());
        Self { address, running, job }
    }

    fn rollouts(&self, body: &Value) -> Answer {
        let answer = post(self.address, "/v1/rollouts", body);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
        answer
    }

    fn in_flight(&self) -> Value {
        get(self.address, "/v1/info").json()["in_flight"].take()
    }

    /// Waits until the counts of what is in flight are these.
    #[track_caller]
    fn until(&self, expected: &Value) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.in_flight();
            let reached =
                expected.as_object().unwrap().iter().all(|(key, value)| now[key.as_str()] == *value);
            if reached {
                return;
            }
            assert!(Instant::now() < deadline, "still {now} instead of {expected}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn finish(self) -> Finished {
        self.running.finish()
    }
}

fn idle() -> Value {
    json!({"requests": 0, "rollouts_running": 0, "rollouts_waiting": 0, "groups_unread": 0})
}

/// Waits for something that a model server is asked.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("it comes in time") })
}

/// The summary without its time.
fn summary(line: Option<Value>) -> Value {
    let mut summary = line.expect("the last line");
    assert!(summary.as_object_mut().unwrap().remove("seconds").is_some_and(|seconds| seconds.is_f64()));
    summary
}
