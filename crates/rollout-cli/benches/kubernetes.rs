//! What trials on Kubernetes cost the orchestrator and the API server.
//!
//! `cargo bench -p rollout-cli --bench kubernetes` runs jobs against the API server of the testkit, whose pods are
//! native sandboxes of this machine. It runs in this process, so that only the command itself is measured.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use rollout_testkit::{Arrival, Gate, KubernetesServer, TestJob, TestTask, until};
use serde_json::json;

const ROLLOUT: &str = env!("CARGO_BIN_EXE_rollout");
const TRIALS: u32 = 500;
const CONCURRENCY: usize = 50;

/// How long trials are watched that only wait.
const IDLE: Duration = Duration::from_secs(30);

fn main() {
    let build = if cfg!(debug_assertions) { "dev build" } else { "release build" };
    println!("no-op oracle task, {TRIALS} trials, {CONCURRENCY} at a time, {build}");
    println!();
    whole_trials();
    println!();
    running_trials();
}

/// A job whose pods have the programs of this machine.
fn job(server: &KubernetesServer, trials: u32) -> TestJob {
    let image = server.add_image("task", "1", &json!({}));
    let task = TestTask::new("task")
        .config(&format!("[environment]\ndocker_image = {image:?}\n"))
        .solution("exit 0\n")
        .tests("echo 1 > /logs/verifier/reward.txt\n");
    TestJob::new(ROLLOUT)
        .set("environment", server.environment())
        .set("n_attempts", json!(trials))
        .set("n_concurrent_trials", json!(CONCURRENCY))
        .task(task)
}

/// Counts the calls of a job, and what the command uses for it.
fn whole_trials() {
    let server = KubernetesServer::start(ROLLOUT);
    let job = job(&server, TRIALS).oracle();
    let from = Instant::now();
    let mut child = start(&job);
    let mut usage = Usage::default();
    // A process that has ended has no figures, so the last ones before that are used.
    let status = loop {
        usage = Usage::of(&child).unwrap_or(usage);
        if let Some(status) = child.try_wait().expect("wait for the command") {
            break status;
        }
        sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "the command failed");
    let seconds = from.elapsed().as_secs_f64();
    let trials = f64::from(TRIALS);
    let calls = server.calls();
    row("API calls per trial", &format!("{:.2}", calls.total() as f64 / trials));
    for (call, number) in calls.iter() {
        row(&format!("  {call}"), &format!("{number}"));
    }
    row("most pods at a time", &server.most_running().to_string());
    row("trials per second", &format!("{:.1}", trials / seconds));
    row("CPU per 1,000 trials", &format!("{:.2} s", usage.cpu.as_secs_f64() / trials * 1e3));
    row("peak memory", &format!("{:.0} MB", usage.peak / 1024.0));
    until("no pod is left", || server.objects("pods").is_empty());
}

/// Measures what trials cost while their agents run and print nothing: more trials minus one trial.
fn running_trials() {
    let (one, many) = (waiting(1), waiting(CONCURRENCY));
    let more = CONCURRENCY as f64 - 1.0;
    let cpu = (many.cpu.as_secs_f64() - one.cpu.as_secs_f64()) / IDLE.as_secs_f64();
    let memory = (many.resident - one.resident) / 1024.0;
    row("1 running trial, memory", &format!("{:.1} MB", one.resident / 1024.0));
    row(&format!("{CONCURRENCY} running trials, memory"), &format!("{:.1} MB", many.resident / 1024.0));
    row("memory per 1,000 running trials", &format!("{:.0} MB", memory / more * 1e3));
    row("CPU per 1,000 running trials", &format!("{:.2} cores", cpu / more * 1e3));
}

/// The memory of the command while so many agents wait, and the CPU time that it uses meanwhile.
fn waiting(trials: usize) -> Usage {
    let server = KubernetesServer::start(ROLLOUT);
    let gate = Gate::new();
    let count = u32::try_from(trials).expect("the number of trials is small");
    let job = job(&server, count).script(&gate.wait());
    let mut child = start(&job);
    let agents: Vec<Arrival> = (0..trials).map(|_| gate.arrival()).collect();
    // What the starts left to do is done after that.
    sleep(Duration::from_secs(3));
    let before = Usage::of(&child).expect("the command runs");
    sleep(IDLE);
    let after = Usage::of(&child).expect("the command runs");
    agents.into_iter().for_each(Arrival::pass);
    assert!(child.wait().expect("wait for the command").success(), "the command failed");
    Usage { cpu: after.cpu - before.cpu, ..after }
}

fn start(job: &TestJob) -> Child {
    let mut command: Command = job.command(&["run", "job.yaml", "--output", "json"]);
    command.stdout(Stdio::null()).spawn().expect("start the command")
}

fn row(what: &str, figure: &str) {
    println!("{what:<40} {figure}");
}

/// What a process has used so far. Memory is in kilobytes.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    cpu: Duration,
    peak: f64,
    resident: f64,
}

impl Usage {
    /// `None` if the process has ended.
    fn of(child: &Child) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
        let memory = |key: &str| -> Option<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().trim_end_matches(" kB").parse().ok()
        };
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok());
        Some(Self {
            // The kernel reports in hundredths of a second on every architecture that Rollout runs on.
            cpu: Duration::from_millis((ticks(11)? + ticks(12)?) * 10),
            peak: memory("VmHWM:")?,
            resident: memory("VmRSS:")?,
        })
    }
}
