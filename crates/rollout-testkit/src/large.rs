//! Generated jobs of many trials, and measurements of commands that read them.

use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rollout::{
    event::JobKind,
    name::TaskName,
    name::TrialIndex,
    record::{
        journal::{Header, Journal, JournalEntry, JournalError, PlannedTask, VERSION},
        layout::JobDir,
        rows,
    },
    result::TrialResult,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const ATTEMPTS: u32 = 10;

const TIME: &str = "2026-01-02T03:04:05.678901Z";

/// The commands that read any number of trials: the arguments between `rollout` and the job's directory.
pub const READERS: [&[&str]; 11] = [
    &["export", "csv"],
    &["export", "parquet"],
    &["export", "verifiers"],
    &["export", "sft"],
    &["export", "rl"],
    &["export", "rl", "--format", "parquet"],
    &["export", "eval-log"],
    &["export", "inspect"],
    &["export", "atif"],
    &["export", "eee"],
    &["compare"],
];

/// A job directory with many finished trials: ten attempts at each task by one agent, in one run.
#[derive(Debug)]
pub struct LargeJob {
    root: TempDir,
}

/// The resources that a command used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measured {
    /// The wall-clock time.
    pub time: Duration,
    /// The CPU time.
    pub cpu: Duration,
    /// The peak memory, in kilobytes.
    pub peak_kilobytes: u64,
}

impl LargeJob {
    /// Rollouts of a model, with their turns and tokens.
    pub fn rollouts(trials: u32) -> Self {
        let job = Self::empty();
        job.journal(trials, true);
        let file = File::create(job.dir().join(rows::OUTPUTS)).expect("make the file of rows");
        let mut rows = BufWriter::new(file);
        for number in 0..trials {
            writeln!(rows, "{}", row(number)).expect("write a row");
        }
        rows.flush().expect("write the rows");
        job
    }

    /// Tasks in containers, attempted by a script.
    pub fn containers(trials: u32) -> Self {
        let job = Self::empty();
        job.journal(trials, false);
        let file = File::create(JobDir::new(job.dir()).tasks()).expect("make the file of tasks");
        let mut tasks = BufWriter::new(file);
        for number in 0..trials / ATTEMPTS {
            let task = json!({"dataset": "set", "name": name(number), "version_hash": format!("{number:064x}"),
                "category": "files", "difficulty": "easy", "tags": ["a", "b"], "description": null,
                "instruction": "Create the file /app/done.\n".repeat(20), "test": null});
            writeln!(tasks, "{task}").expect("write a task");
        }
        tasks.flush().expect("write the tasks");
        job
    }

    fn empty() -> Self {
        let root = tempfile::tempdir().expect("make a directory");
        fs::create_dir(root.path().join("job")).expect("make a directory");
        Self { root }
    }

    /// Its directory.
    pub fn dir(&self) -> PathBuf {
        self.root.path().join("job")
    }

    /// Runs a command on it: an export into a new directory, which is removed again, or a comparison with
    /// itself.
    ///
    /// # Panics
    ///
    /// If the command fails.
    pub fn measure(&self, rollout: &str, command: &[&str]) -> Measured {
        let out = self.root.path().join("out");
        let mut command_line = Command::new(rollout);
        command_line.args(command).arg(self.dir());
        match command[0] {
            "compare" => command_line.arg(self.dir()).arg("--svg").arg(out.join("picture.svg")),
            _ => command_line.arg("-o").arg(&out),
        };
        fs::create_dir(&out).expect("make a directory");
        let stderr_path = self.root.path().join("stderr");
        let stderr = File::create(&stderr_path).expect("make a file");
        let (measured, status) = Measured::of(command_line.stdout(Stdio::null()).stderr(stderr));
        let message = fs::read_to_string(stderr_path).unwrap_or_default();
        assert!(status.success(), "{command:?} failed with {status}: {message}");
        fs::remove_dir_all(out).expect("remove what was made");
        measured
    }

    fn journal(&self, trials: u32, are_rollouts: bool) {
        let dir = JobDir::new(self.dir());
        let task = |number: u32| PlannedTask {
            dataset: "set".to_owned(),
            name: name(number),
            content_hash: Some(format!("sha256:{number:064x}")),
            git_commit_id: None,
            example_id: are_rollouts.then_some(number.into()),
            attempts: None,
            source: None,
        };
        let header = Header {
            version: VERSION,
            kind: JobKind::Job,
            job_name: "job".to_owned(),
            directory: Some(self.dir()),
            job_file: self.root.path().join("job.yaml"),
            overrides: Vec::new(),
            config_hash: "sha256:0".to_owned(),
            config: None,
            provider: "native".to_owned(),
            agents: vec!["agent".to_owned()],
            attempts: ATTEMPTS,
            pins: Default::default(),
            selection: None,
            dataset_sizes: Default::default(),
            regrade: None,
            imported: None,
            tasks: (0..trials / ATTEMPTS).map(task).collect(),
        };
        let config = json!({"name": "job", "agents": [{"name": "agent", "model": {"name": "scripted"}}]});
        fs::write(dir.config(), config.to_string()).expect("write the configuration");
        let mut journal =
            Journal::create(&dir.journal(), header, std::iter::empty::<Result<_, JournalError>>())
                .expect("start the journal");
        journal.push(&started());
        let mut example: TrialResult = serde_json::from_value(result()).expect("it is a result");
        for number in 0..trials {
            example.task_name = TaskName::new(name(number / ATTEMPTS)).expect("it is a name");
            example.attempt = number % ATTEMPTS + 1;
            example.reward = Some(f64::from(number % 2));
            journal.push(&JournalEntry::Trial {
                index: TrialIndex(number.into()),
                result: Arc::new(example.clone()),
            });
            if number % 10_000 == 0 {
                journal.sync().expect("write the journal");
            }
        }
        journal.sync().expect("write the journal");
    }
}

/// The entry that records the source of the run's results.
fn started() -> JournalEntry {
    let provenance = json!({
        "rollout_version": "0.1.0", "config_hash": "sha256:0", "provider": "native", "seeds": null,
        "git": {"commit": "0".repeat(40), "is_dirty": false, "remote_url": "https://example.com/jobs"},
        "command": ["rollout", "run", "job.yaml"],
    });
    let entry = json!({"entry": "run_started", "at": TIME, "provenance": provenance});
    serde_json::from_value(entry).expect("it is an entry of a journal")
}

fn name(task: u32) -> String {
    format!("task-{task:06}")
}

fn result() -> Value {
    let time = TIME;
    json!({
        "task_name": "task", "dataset_name": "set", "agent_name": "agent", "attempt": 1,
        "task_git_commit_id": null, "reward": 1.0, "rewards": {"speed": 0.5, "style": 0.25},
        "cost": 0.25, "environment_cost": 0.0, "model_cost": 0.25,
        "usage": {"input_tokens": 2000, "output_tokens": 100, "cached_tokens": 1200, "cost_usd": 0.25},
        "error": null,
        "durations": {"total_sec": 4.5, "environment_setup_sec": 0.5, "agent_setup_sec": null,
            "agent_execution_sec": 3.0, "verifier_sec": 1.0},
        "timestamps": {"started_at": time, "environment_setup_started_at": time, "environment_setup_ended_at": time,
            "agent_setup_started_at": null, "agent_setup_ended_at": null, "agent_execution_started_at": time,
            "agent_execution_ended_at": time, "verifier_started_at": time, "verifier_ended_at": time,
            "ended_at": time},
        "environment": {"provider": "native", "id": "e1", "image": "sha256:0", "network": "none",
            "enforced": {"cpus": true, "memory": true, "pids": true, "storage": false}},
        "tries": 1,
    })
}

/// A rollout of two turns with a tool call, and its tokens. Each is unique.
fn row(number: u32) -> Value {
    let said = format!("I look at file {number} first, and then decide. ").repeat(4);
    let user = json!({"role": "user", "content": "What is the deadline? ".repeat(10)});
    let call = json!({"role": "assistant", "content": said,
        "tool_calls": [{"id": format!("call-{number}"), "name": "read", "arguments": "{\"path\": \"plan.md\"}"}]});
    let answer =
        json!({"role": "tool", "tool_call_id": format!("call-{number}"), "content": "In March. ".repeat(20)});
    let last = json!({"role": "assistant", "content": "in March"});
    let ids = |from: u32, to: u32| (from..to).collect::<Vec<_>>();
    let turn = |prompt: u32, completion: u32| {
        let tokens = json!({"prompt_ids": ids(0, prompt), "completion_ids": ids(prompt, prompt + completion),
            "completion_logprobs": vec![-0.5; completion as usize]});
        json!({"trajectory_id": number.to_string(), "advantage": 0.5, "tokens": tokens})
    };
    json!({
        "example_id": number / ATTEMPTS, "attempt": number % ATTEMPTS + 1, "task": "deadlines",
        "prompt": [user], "completion": [call, answer, last], "reward": f64::from(number % 2), "error": null,
        "timing": {"start_time": 1.0, "generation_ms": 3000.0, "scoring_ms": 1000.0, "total_ms": 4000.0},
        "is_completed": true, "is_truncated": false, "stop_condition": "no_tools_called",
        "metrics": {"speed": 0.5}, "speed": 0.5, "tool_defs": [],
        "token_usage": {"input_tokens": 2000.0, "output_tokens": 100.0},
        "trajectory": [turn(50, 20), turn(90, 10)],
    })
}

impl Measured {
    /// Runs a command to its end.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn of(command: &mut Command) -> (Self, ExitStatus) {
        let from = Instant::now();
        let mut child = command.spawn().expect("start the command");
        let mut last = Self::default();
        let status = loop {
            // An ended process has no figures, so the last ones before its end are used.
            last = used(child.id()).unwrap_or(last);
            if let Some(status) = child.try_wait().expect("wait for the command") {
                break status;
            }
            thread::sleep(Duration::from_millis(2));
        };
        (Self { time: from.elapsed(), ..last }, status)
    }
}

/// The resources used by a process so far; `None` if it has ended.
fn used(process: u32) -> Option<Measured> {
    let files = Path::new("/proc").join(process.to_string());
    let status = fs::read_to_string(files.join("status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let stat = fs::read_to_string(files.join("stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok());
    Some(Measured {
        time: Duration::ZERO,
        // The kernel reports hundredths of a second on every supported architecture.
        cpu: Duration::from_millis((ticks(11)? + ticks(12)?) * 10),
        peak_kilobytes: peak.trim().trim_end_matches(" kB").parse().ok()?,
    })
}
