//! What `rollout list` costs for a large job, and whether a job is slower while the viewer shows it.
//!
//! `cargo bench -p rollout-cli --bench view` lists a job of 100,000 trials. Then it runs a job of 400 short trials, or of
//! as many as stand after `--`, with an open page and without one in turn, and prints the trials per second of both. The
//! page is connected to the server's events. With optimizations it fails at its end if a list needed too much, or if the
//! jobs with a page were slower than those without. `cargo bench -p rollout-view` measures the pages themselves.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use std::{
    fs,
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rollout_testkit::{LargeJob, Measured, TestJob, TestTask, raw_request};
use serde_json::json;

const ROLLOUT: &str = env!("CARGO_BIN_EXE_rollout");

/// The job that is listed.
const LISTED_TRIALS: u32 = 100_000;

/// What one list may need.
const MAX_CPU: Duration = Duration::from_millis(300);
const MAX_KILOBYTES: u64 = 200 << 10;

/// How often each list is measured; the median counts.
const LISTS: usize = 5;

/// How often a job runs with and without a page.
const ROUNDS: usize = 5;

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

    /// Does what a browser with an open page does: listens to the events of the page, and requests it at each of them.
    fn follow(&self, page: &str, is_over: &AtomicBool) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connect to the viewer");
        stream.set_read_timeout(Some(Duration::from_millis(200))).expect("set a timeout");
        let head =
            format!("GET /{}/{page}/events HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", self.token, self.port);
        stream.write_all(head.as_bytes()).expect("ask for events");
        let mut read = [0; 4096];
        let mut is_first = true;
        let mut requested: Option<Instant> = None;
        while !is_over.load(Ordering::Relaxed) {
            match stream.read(&mut read) {
                Ok(0) => return,
                Ok(length) => {
                    let text = String::from_utf8_lossy(&read[..length]);
                    if std::mem::take(&mut is_first) {
                        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
                    }
                    // The page requests itself at most once a second.
                    let is_due = requested.is_none_or(|at| at.elapsed() >= Duration::from_secs(1));
                    if is_due && text.contains("data:") {
                        requested = Some(Instant::now());
                        self.get(&format!("{page}/index.html"));
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => panic!("cannot read events: {error}"),
            }
        }
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
    let mut missed = lists();
    missed.extend(speeds(trials));
    for target in &missed {
        println!("missed: {target}");
    }
    assert!(missed.is_empty() || cfg!(debug_assertions), "{} targets were missed", missed.len());
}

/// Measures `rollout list` of a large job, and returns the targets that it missed.
fn lists() -> Vec<String> {
    let large = LargeJob::containers(LISTED_TRIALS);
    let jobs = large.dir().parent().expect("a job is in a directory").to_owned();
    let mut missed = Vec::new();
    println!("{LISTED_TRIALS} trials\n{:<28} {:>9} {:>9} {:>9}", "command", "ms", "CPU ms", "KB");
    for (name, arguments) in [
        ("list", vec![jobs.clone()]),
        ("list job", vec![large.dir()]),
        ("list job --status unsolved", vec![large.dir(), "--status".into(), "unsolved".into()]),
        ("list job --json", vec![large.dir(), "--json".into()]),
    ] {
        let mut command = Command::new(ROLLOUT);
        command.arg("list").args(&arguments).stdout(Stdio::null());
        // The first run reads the journal, and later ones find its pages in memory.
        Measured::of(&mut command);
        let mut runs: Vec<Measured> = (0..LISTS)
            .map(|_| {
                let (measured, status) = Measured::of(&mut command);
                assert!(status.success(), "{name} failed with {status}");
                measured
            })
            .collect();
        runs.sort_by_key(|run| run.cpu);
        let Measured { time, cpu, peak_kilobytes } = runs[LISTS / 2];
        println!("{name:<28} {:>9} {:>9} {peak_kilobytes:>9}", time.as_millis(), cpu.as_millis());
        if cpu > MAX_CPU {
            missed.push(format!("{name} needs more than {MAX_CPU:?} of CPU: {cpu:?}"));
        }
        if peak_kilobytes > MAX_KILOBYTES {
            missed.push(format!("{name} needs more than {MAX_KILOBYTES} KB: {peak_kilobytes} KB"));
        }
    }
    missed
}

/// Measures jobs with and without an open page in turn, and returns the target if it was missed.
fn speeds(trials: u32) -> Option<String> {
    println!("\n{:<6} {:>10} {:>10} {:>8} {:>10}", "round", "none /s", "open /s", "ratio", "CPU ms");
    let (mut alone, mut watched) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        // Each order comes first in turn, because a machine gets slower or faster over time.
        let is_first_watched = round % 2 == 0;
        let (first, second) = (speed(trials, is_first_watched), speed(trials, !is_first_watched));
        let (without, with) = if is_first_watched { (second, first) } else { (first, second) };
        println!(
            "{round:<6} {:>10.1} {:>10.1} {:>8.3} {:>10}",
            without.trials_per_second,
            with.trials_per_second,
            with.trials_per_second / without.trials_per_second,
            with.viewer_cpu.as_millis()
        );
        alone.push(without.trials_per_second);
        watched.push(with.trials_per_second);
    }
    alone.sort_by(f64::total_cmp);
    watched.sort_by(f64::total_cmp);
    for (name, speeds) in [("none", &alone), ("open", &watched)] {
        let (least, median, most) = (speeds[0], speeds[ROUNDS / 2], speeds[ROUNDS - 1]);
        println!("{name}: median {median:.1} trials/s, from {least:.1} to {most:.1}");
    }
    // The noise is how much the jobs without a page differ from each other.
    let (typical, slowest) = (watched[ROUNDS / 2], alone[0]);
    (typical < slowest).then(|| {
        format!("with a page {typical:.1} trials/s, below the slowest job without one, {slowest:.1}")
    })
}

/// How fast a job ran.
struct Speed {
    trials_per_second: f64,
    viewer_cpu: Duration,
}

/// Runs a job, with a page open that follows it, or without a viewer.
fn speed(trials: u32, is_watched: bool) -> Speed {
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
            let journal = job.dir().join("journal.jsonl");
            let is_over = &is_over;
            scope.spawn(move || {
                let has_started = || fs::metadata(&journal).is_ok_and(|file| file.len() > 0);
                while !has_started() && !is_over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(5));
                }
                viewer.follow("jobs/job", is_over);
            });
        }
        let from = Instant::now();
        job.run().expect(0);
        is_over.store(true, Ordering::Relaxed);
        from.elapsed().as_secs_f64()
    });
    Speed {
        trials_per_second: f64::from(trials) / seconds,
        viewer_cpu: viewer.as_ref().map_or(Duration::ZERO, Viewer::used),
    }
}
