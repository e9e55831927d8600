//! What a trial costs on this machine, beside what it is compared with.
//!
//! `cargo bench -p rollout-cli --bench native` prints the cost of single steps, and then the native environment beside
//! the Docker engine of `DOCKER_HOST`, if it is set. Every figure comes from real runs: the command itself, its
//! environments, and `bwrap` where it is installed, all in the same minutes. Ratios and CPU time say more than
//! wall-clock time on a machine that others use too.
//!
//! `-- 80` runs 80 trials instead of 800, to see whether the benchmark works.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

#[path = "support/beside.rs"]
mod beside;

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rollout::{
    config::load_job,
    job::{Cancel, Job, Plan, Selection},
    task::{Resolved, Sources},
};
use rollout_sandbox::{EngineOptions, Network, SandboxEngine, SandboxLimits, SandboxSpec};
use rollout_testkit::{IdleProvider, TestJob, TestTask};
use serde_json::json;

const ROLLOUT: &str = env!("CARGO_BIN_EXE_rollout");
const CONCURRENCY: usize = 8;
const TRIALS: u32 = 800;

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    // Cargo adds arguments of its own.
    let wanted = std::env::args().skip(1).find_map(|argument| argument.parse::<u32>().ok());
    let count = wanted.unwrap_or(TRIALS).max(CONCURRENCY as u32);
    println!("{}", machine());
    start_up();
    runtime.block_on(environments());
    let trial = trials(count, "on the disk", &std::env::temp_dir());
    // What a file system costs shows beside one that costs next to nothing.
    let memory = Some(Path::new("/dev/shm")).filter(|dir| dir.is_dir());
    let fastest = memory.map(|dir| trials(count, "in memory", dir));
    bwrap(count, fastest.unwrap_or(trial));
    runtime.block_on(orchestration("on the disk", &std::env::temp_dir()));
    if let Some(dir) = memory {
        runtime.block_on(orchestration("in memory", dir));
    }
    runtime.block_on(beside::compare(count as usize));
}

fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name\t: ")).unwrap_or("unknown CPU");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores, Linux {}", read("/proc/sys/kernel/osrelease").trim())
}

fn row(what: &str, figure: String) {
    println!("{what:<50} {figure}");
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    format!("p50 {:.2} ms   p99 {:.2} ms", at(0.5), at(0.99))
}

fn start_up() {
    let mut times = Vec::new();
    let mut peak = 0;
    for _ in 0..100 {
        let from = Instant::now();
        let output = Command::new(ROLLOUT).arg("--version").output().expect("run the command");
        times.push(from.elapsed());
        assert!(output.status.success());
    }
    // The peak is read by the shell's own report, for a process that ended has none to ask.
    let report = Command::new("bash")
        .args(["-c", "\"$0\" --version > /dev/null & pid=$!; while [ -e /proc/$pid/status ]; do grep VmHWM /proc/$pid/status; done", ROLLOUT])
        .output();
    for line in String::from_utf8_lossy(&report.map(|output| output.stdout).unwrap_or_default()).lines() {
        let kilobytes = line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
        peak = peak.max(kilobytes.unwrap_or(0));
    }
    row("rollout --version", percentiles(times));
    row("rollout --version, memory", format!("{:.1} MB", peak as f64 / 1024.0));
}

async fn environments() {
    let state = tempfile::tempdir().expect("make a directory");
    let engine =
        SandboxEngine::start(EngineOptions { helper: ROLLOUT.into(), state_dir: state.path().to_owned() })
            .await
            .expect("start the engine");
    let image = engine.host_image().await.expect("use the host as an image");
    let (mut create, mut exec, mut destroy) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..300 {
        let spec = SandboxSpec {
            name: format!("bench-{number}"),
            image: image.clone(),
            network: Network::Host,
            limits: SandboxLimits { cpus_millis: Some(1000), memory_bytes: Some(1 << 30), pids: Some(1000) },
            private_dirs: vec!["/tests".to_owned(), "/logs/verifier".to_owned()],
            hosts: Vec::new(),
        };
        let from = Instant::now();
        let sandbox = engine.create(spec).await.expect("create a sandbox");
        create.push(from.elapsed());
        let null = || fs::File::options().write(true).open("/dev/null").expect("open /dev/null");
        let command = rollout_sandbox::SandboxCommand {
            argv: vec!["/bin/true".to_owned()],
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            cwd: "/".to_owned(),
            user: None,
            stdin: rollout_sandbox::Stdio::Null,
            stdout: null().into(),
            stderr: null().into(),
            tty: false,
            nested: true,
        };
        let from = Instant::now();
        let mut process = sandbox.exec(command).await.expect("start a command");
        process.wait().await.expect("wait for a command");
        exec.push(from.elapsed());
        let from = Instant::now();
        sandbox.destroy().await.expect("destroy a sandbox");
        destroy.push(from.elapsed());
    }
    row("environment, create", percentiles(create));
    row("environment, exec /bin/true", percentiles(exec));
    row("environment, destroy", percentiles(destroy));
}

/// Whole trials of a task that needs nothing, with everything they write below a directory. Returns the time per trial.
fn trials(count: u32, place: &str, dir: &Path) -> Duration {
    let task = TestTask::new("task").solution("exit 0\n").tests("echo 1 > /logs/verifier/reward.txt\n");
    let job = TestJob::new_in(ROLLOUT, dir)
        .task(task)
        .oracle()
        .set("n_attempts", json!(count))
        .set("n_concurrent_trials", json!(CONCURRENCY));
    let finished = job.rollout(&["run", "job.yaml", "--output", "json"]).expect(0);
    let seconds = finished.result()["total_duration_sec"].as_f64().expect("a job has a duration");
    let trial = Duration::from_secs_f64(seconds / f64::from(count));
    let rate = f64::from(count) / seconds;
    row(
        &format!("trials, no-op oracle, 8 at a time, {place}"),
        format!("{rate:.0} per second   {:.2} ms each", trial.as_secs_f64() * 1e3),
    );
    trial
}

fn bwrap(count: u32, trial: Duration) {
    if Command::new("bwrap").arg("--version").stdout(Stdio::null()).status().is_err() {
        row("bwrap --unshare-all /bin/true, 8 at a time", "not installed".to_owned());
        return;
    }
    let from = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENCY {
            scope.spawn(|| {
                for _ in 0..count as usize / CONCURRENCY {
                    let status = Command::new("bwrap")
                        .args(["--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"])
                        .args(["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"])
                        .args(["--proc", "/proc", "--dev", "/dev", "/bin/true"])
                        .status();
                    assert!(status.expect("run bwrap").success());
                }
            });
        }
    });
    let one = from.elapsed() / count;
    row("bwrap --unshare-all /bin/true, 8 at a time", format!("{:.2} ms each", one.as_secs_f64() * 1e3));
    row("whole trial in memory / bare bwrap", format!("{:.2}", trial.as_secs_f64() / one.as_secs_f64()));
}

async fn orchestration(place: &str, dir: &Path) {
    const TASKS: u32 = 20;
    const ATTEMPTS: u32 = 250;
    let root = tempfile::tempdir_in(dir).expect("make a directory");
    for number in 0..TASKS {
        TestTask::new(&format!("task-{number}")).write(&root.path().join("set"));
    }
    let job = format!(
        "name: job\njobs_dir: {}\nn_attempts: {ATTEMPTS}\nn_concurrent_trials: {CONCURRENCY}\nagents: [{{name: oracle}}]\ndatasets: [{{path: set}}]\n",
        root.path().join("jobs").display(),
    );
    fs::write(root.path().join("job.yaml"), job).expect("write a job");
    let job = Job::create(plan(root.path()).await, Arc::new(IdleProvider)).await.expect("create a job");
    let (events, mut heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move { while heard.recv().await.is_some() {} });
    let before = cpu_time();
    job.run(events, Cancel::default()).await.expect("run a job");
    let each = (cpu_time() - before) / (TASKS * ATTEMPTS);
    let what = format!("orchestration alone, CPU per trial, {place}");
    row(&what, format!("{:.2} ms", each.as_secs_f64() * 1e3));
}

async fn plan(root: &Path) -> Plan {
    let vars = |_: &str| None;
    let loaded = load_job(&root.join("job.yaml"), &[], &vars).expect("load a job");
    let sources = Sources::new(root.join("cache"));
    let datasets =
        sources.load(&loaded.config.datasets, &Resolved::default(), &|_| ()).await.expect("load a dataset");
    Plan::new(loaded, Vec::new(), datasets, &Selection::default(), &vars).expect("plan a job")
}

/// CPU time of this process, in user and system mode.
fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").expect("read the process's times");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    // The kernel reports in hundredths of a second on every architecture that Rollout runs on.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}
