//! The web viewer, in a real browser and against attacks.

mod attacks;
mod browser;
mod causes;
mod pictures;
mod steps;

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
};

use rollout_testkit::{TestJob, TestTask, raw_request};
use serde_json::json;

/// A running viewer.
struct RunningViewer {
    process: Child,
    /// The address of the list of jobs, with the token.
    url: String,
}

impl RunningViewer {
    fn start(job: &TestJob) -> Self {
        Self::start_with(job, &["view"])
    }

    fn start_with(job: &TestJob, arguments: &[&str]) -> Self {
        Self::start_at(job, arguments, "127.0.0.1")
    }

    /// Starts it at an address of this machine.
    fn start_at(job: &TestJob, arguments: &[&str], address: &str) -> Self {
        let mut process = job.command(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with(&format!("http://{address}:")), "{line:?}");
        Self { process, url: line.trim().to_owned() }
    }

    /// The address of a page.
    fn page(&self, path: &str) -> String {
        self.url.replace("index.html", path)
    }

    fn port(&self) -> u16 {
        self.url.split(['/', ':']).find_map(|part| part.parse().ok()).unwrap()
    }

    /// The path of a page, with the token.
    fn path(&self, path: &str) -> String {
        let page = self.page(path);
        page[page.match_indices('/').nth(2).unwrap().0..].to_owned()
    }

    /// Requests a path with additional header lines.
    fn get(&self, path: &str, headers: &str) -> String {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n{headers}\r\n",
            self.port()
        );
        raw_request(self.port(), &request)
    }
}

impl Drop for RunningViewer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A job of two agents with a solved, an unsolved and two failed trials.
fn job() -> TestJob {
    let broken = "echo trying; printf 'cannot find \\033[31mthe tool\\033[0m\\n' >&2; exit 3";
    let tests = "#!/bin/sh\nif [ -e /app/done ]; then echo 1; else echo 'done is missing' >&2; echo 0; fi >/logs/verifier/reward.txt\n";
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "good", "execute": "echo working; case $PWD in *) touch /app/done;; esac"}))
        .agent(json!({"name": "idle", "execute": "echo 'nothing to do'"}))
        .agent(json!({"name": "broken", "execute": broken}))
        .task(TestTask::new("first").tests(tests))
        .task(TestTask::new("second").tests(tests))
}

/// The directory of exported pages as the address of a file.
fn file_url(job: &TestJob, path: &str) -> String {
    format!("file://{}", job.root().join(path).display())
}
