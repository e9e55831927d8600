//! Whether a job is slower while the viewer shows it.
//!
//! `cargo bench -p rollout-cli --bench view` runs a job of 400 short trials, or of as many as stand after `--`, with and
//! without an open page, and prints trials per second. `cargo bench -p rollout-view` measures the pages themselves.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rollout_testkit::{TestJob, TestTask, raw_request};
use serde_json::json;

const ROLLOUT: &str = env!("CARGO_BIN_EXE_rollout");

/// A running viewer.
struct Viewer {
    process: Child,
    port: u16,
    token: String,
}

impl Viewer {
    fn start(dir: &Path) -> Self {
        let mut process = Command::new(ROLLOUT)
            .arg("view")
            .arg(dir)
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the viewer");
        let mut url = String::new();
        let stdout = process.stdout.take().expect("its output is a pipe");
        BufReader::new(stdout).read_line(&mut url).expect("read its address");
        let parts: Vec<&str> = url.trim().split(['/', ':']).collect();
        Self { process, port: parts[4].parse().expect("a port"), token: parts[5].to_owned() }
    }

    /// Requests a page.
    fn get(&self, path: &str) {
        let request = format!(
            "GET /{}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n\r\n",
            self.token, self.port
        );
        let response = raw_request(self.port, &request);
        assert!(response.starts_with("HTTP/1.1 200"), "{path}: {}", &response[..response.len().min(400)]);
    }

    /// The CPU time until now.
    fn used(&self) -> Duration {
        let stat = fs::read_to_string(Path::new("/proc").join(self.process.id().to_string()).join("stat"));
        let stat = stat.expect("it runs");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: u64 = [11, 12].map(|place| fields[place].parse::<u64>().unwrap_or_default()).iter().sum();
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn main() {
    let trials: u32 = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(400);
    println!("{:<12} {:>10} {:>10}", "viewer", "trials/s", "CPU ms");
    // A browser loads a page that has changed at most once a second.
    for is_watched in [false, true, false, true] {
        let job = TestJob::new(ROLLOUT)
            .script("true")
            .task(TestTask::new("task"))
            .set("n_attempts", json!(trials))
            .set("n_concurrent_trials", json!(2));
        fs::create_dir(job.root().join("jobs")).expect("make the directory of jobs");
        let viewer = is_watched.then(|| Viewer::start(&job.root().join("jobs")));
        let is_over = AtomicBool::new(false);
        let seconds = thread::scope(|scope| {
            if let Some(viewer) = &viewer {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let journal = fs::metadata(job.dir().join("journal.jsonl"));
                        if journal.is_ok_and(|file| file.len() > 0) {
                            viewer.get("jobs/job/index.html");
                        }
                        thread::sleep(Duration::from_secs(1));
                    }
                });
            }
            let from = Instant::now();
            job.run().expect(0);
            is_over.store(true, Ordering::Relaxed);
            from.elapsed().as_secs_f64()
        });
        let cpu = viewer.as_ref().map_or(String::new(), |viewer| viewer.used().as_millis().to_string());
        let name = if is_watched { "open" } else { "none" };
        println!("{name:<12} {:>10.1} {cpu:>10}", f64::from(trials) / seconds);
    }
}
