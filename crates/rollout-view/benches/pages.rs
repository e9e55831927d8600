//! What pages cost: those of a large job, and one of a long conversation.
//!
//! `cargo bench -p rollout-view` prints two tables. The job has 100,000 trials, or as many as stand after `--`. Without
//! optimizations it only prints. With them it fails at its end if a page needed more than 300 ms of CPU after the first
//! read, if the process needed more than 200 MB, or if a page of a conversation took more than 100 ms.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rollout_core::{
    event::JobKind,
    name::{AgentName, DatasetName, TaskName, TrialId, TrialIndex},
    result::{ErrorType, TrialError, TrialResult},
};
use rollout_record::{
    journal::{Header, Journal, JournalEntry, JournalError, PlannedTask, VERSION},
    layout::JobDir,
};
use rollout_view::{ViewOptions, Viewer};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const MAX_CPU: Duration = Duration::from_millis(300);
const MAX_KILOBYTES: u64 = 200 << 10;
const MAX_TIME: Duration = Duration::from_millis(100);

/// How often a page is requested after the first time.
const TIMES: u32 = 5;

/// The attempts at a task.
const ATTEMPTS: u32 = 4;

fn main() {
    let trials = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(100_000);
    let mut missed = large_job(trials);
    missed.extend(long_conversation());
    for target in &missed {
        println!("missed: {target}");
    }
    assert!(missed.is_empty() || cfg!(debug_assertions), "{} targets were missed", missed.len());
}

/// Measures the pages of a large job, and returns the targets that they missed.
fn large_job(trials: u32) -> Vec<String> {
    let mut missed = Vec::new();
    let dir = tempfile::tempdir().expect("make a directory");
    write_job(&dir.path().join("job"), trials / ATTEMPTS / 2, &["one", "two"]);
    let viewer = Served::start(dir.path());
    println!("{trials} trials\n{:<28} {:>9} {:>9} {:>9} {:>9}", "page", "first ms", "ms", "CPU ms", "KB");
    let pages = [
        "index.html",
        "jobs/job/index.html",
        "jobs/job/trials.html?status=unsolved",
        "jobs/job/trials.html?text=9",
    ];
    for page in pages {
        let (first, size) = viewer.get(page);
        let before = used().0;
        let time: Duration = (0..TIMES).map(|_| viewer.get(page).0).sum();
        let cpu = (used().0 - before) / TIMES;
        let name = page.rsplit('/').next().unwrap_or(page);
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "{name:<28} {:>9.1} {:>9.1} {:>9} {:>9}",
            milliseconds(first),
            milliseconds(time / TIMES),
            cpu.as_millis(),
            size / 1024
        );
        if cpu >= MAX_CPU {
            missed.push(format!("{page} needs more than {MAX_CPU:?} of CPU: {cpu:?}"));
        }
    }
    let peak = used().1;
    println!("at most {} MB", peak / 1024);
    if peak >= MAX_KILOBYTES {
        missed.push(format!("more than {MAX_KILOBYTES} KB: {peak} KB"));
    }
    missed
}

/// Measures pages of a conversation of 20 MB, and returns the target if it was missed.
fn long_conversation() -> Option<String> {
    let dir = tempfile::tempdir().expect("make a directory");
    let job = dir.path().join("job");
    write_job(&job, 1, &["one"]);
    let turn = json!({
        "response": {"message": {"role": "assistant", "content": "I read the file again. ".repeat(200),
            "tool_calls": [{"id": "1", "name": "bash", "arguments": "{\"command\": \"cat big\"}"}]}},
        "model_sec": 1.0, "tools_sec": 0.5,
        "answers": [{"role": "tool", "tool_call_id": "1", "content": "a line of \"output\"\n".repeat(2_500)}],
    });
    let conversation = json!({
        "model": "scripted", "started_at": "2026-01-02T03:04:05Z", "stop_condition": null, "is_truncated": false,
        "error": null, "prompt": [{"role": "user", "content": "go"}], "turns": vec![turn; 400],
    });
    let text = conversation.to_string();
    let trial = JobDir::new(&job).trial(&trial("one", 0, 1));
    fs::create_dir_all(trial.path()).expect("make the directory of the trial");
    fs::write(trial.trajectory(), &text).expect("write the conversation");
    let viewer = Served::start(dir.path());
    // The job is read before.
    viewer.get("jobs/job/index.html");
    let directory = "jobs/job/trials/one/set/task-000000__1";
    let (first, size) = viewer.get(&format!("{directory}/index.html"));
    let (second, _) = viewer.get(&format!("{directory}/page-2.html"));
    println!(
        "\nconversation of {} MB: first page {:.1} ms, second page {:.1} ms, {} KB",
        text.len() >> 20,
        first.as_secs_f64() * 1e3,
        second.as_secs_f64() * 1e3,
        size / 1024
    );
    (first >= MAX_TIME).then(|| format!("the page of a conversation takes more than {MAX_TIME:?}: {first:?}"))
}

fn trial(agent: &str, task: u32, attempt: u32) -> TrialId {
    TrialId {
        agent: AgentName::new(agent).expect("a valid name"),
        dataset: DatasetName::new("set").expect("a valid name"),
        task: TaskName::new(format!("task-{task:06}")).expect("a valid name"),
        attempt,
    }
}

/// Writes a finished job.
fn write_job(dir: &Path, tasks: u32, agents: &[&str]) {
    fs::create_dir_all(dir).expect("make the directory of the job");
    let planned = |task: u32| PlannedTask {
        dataset: "set".to_owned(),
        name: format!("task-{task:06}"),
        content_hash: None,
        git_commit_id: None,
        example_id: None,
        attempts: None,
        source: None,
    };
    let header = Header {
        version: VERSION,
        kind: JobKind::Job,
        job_name: "job".to_owned(),
        directory: None,
        job_file: PathBuf::from("/job.yaml"),
        overrides: Vec::new(),
        config_hash: "sha256:0".to_owned(),
        config: None,
        provider: "native".to_owned(),
        agents: agents.iter().map(|agent| (*agent).to_owned()).collect(),
        attempts: ATTEMPTS,
        pins: BTreeMap::new(),
        selection: None,
        dataset_sizes: BTreeMap::new(),
        regrade: None,
        imported: None,
        tasks: Vec::new(),
    };
    let tasks_of_plan = (0..tasks).map(|task| Ok::<_, JournalError>(planned(task)));
    let path = JobDir::new(dir).journal();
    let mut journal = Journal::create(&path, header, tasks_of_plan).expect("create the journal");
    journal.push(&JournalEntry::RunStarted { at: Timestamp::UNIX_EPOCH, provenance: None });
    let mut index = 0;
    for agent in agents {
        for task in 0..tasks {
            for attempt in 1..=ATTEMPTS {
                let mut result = TrialResult::empty(&trial(agent, task, attempt), Timestamp::UNIX_EPOCH);
                result.durations.total_sec = f64::from(index as u32 % 97);
                match index % 10 {
                    0 => {
                        let message = format!(
                            "the agent's execute script exited with code 3\nlast lines of command/stderr.txt:\n\
                             + npm install\nnpm error: no answer from port {}\n",
                            index % 7_919
                        );
                        result.error = Some(TrialError { kind: ErrorType::AgentExecutionFailed, message });
                    }
                    other => result.reward = Some(f64::from(u8::from(other > 4))),
                }
                journal.push(&JournalEntry::Trial { index: TrialIndex(index), result: Arc::new(result) });
                index += 1;
            }
        }
        journal.sync().expect("write the journal");
    }
    journal.push(&JournalEntry::RunEnded { at: Timestamp::UNIX_EPOCH, cancelled: false });
    journal.sync().expect("write the journal");
}

/// A viewer in this process.
struct Served {
    host: String,
    token: String,
    stop: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
}

impl Served {
    fn start(dir: &Path) -> Self {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("start a runtime");
        let address = "127.0.0.1:0".parse().expect("an address");
        let viewer =
            runtime.block_on(Viewer::open(dir, address, ViewOptions::default())).expect("open the jobs");
        let url = viewer.url();
        let mut parts = url.trim_start_matches("http://").split('/').map(str::to_owned);
        let (host, token) = (parts.next().expect("a host"), parts.next().expect("a token"));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let thread = thread::spawn(move || runtime.block_on(viewer.serve(stopped)).expect("serve pages"));
        Self { host, token, stop, thread: Some(thread) }
    }

    /// Requests a page, and returns the time and its size.
    fn get(&self, path: &str) -> (Duration, usize) {
        let from = Instant::now();
        let mut stream = TcpStream::connect(&self.host).expect("connect");
        let request = format!(
            "GET /{}/{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.token, self.host
        );
        stream.write_all(request.as_bytes()).expect("send the request");
        let mut response = Vec::new();
        stream.read_to_end(&mut response).expect("read the page");
        let start = String::from_utf8_lossy(&response[..response.len().min(400)]);
        assert!(start.starts_with("HTTP/1.1 200"), "{path}: {start}");
        (from.elapsed(), response.len())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
        // A panic of the thread was printed already.
        drop(self.thread.take().map(thread::JoinHandle::join));
    }
}

/// The CPU time and the peak memory in kilobytes of this process.
fn used() -> (Duration, u64) {
    let status = fs::read_to_string("/proc/self/status").expect("read the status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let stat = fs::read_to_string("/proc/self/stat").expect("read the times");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = [11, 12].map(|place| fields[place].parse::<u64>().unwrap_or_default()).iter().sum();
    let peak = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    (Duration::from_millis(ticks * 10), peak)
}
