//! Processes that a benchmark starts, and what they use.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A server that says where it is and ends with its input.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start a server");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("its output is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("read the server's address");
        let (_, url) = line.trim_end().rsplit_once(" at ").expect("a server says where it is");
        Self { url: url.to_owned(), child }
    }

    pub(crate) fn stop(&mut self) -> Usage {
        let usage = Usage::of(self.child.id()).expect("it is still there");
        drop(self.child.stdin.take());
        self.child.wait().expect("wait for a server");
        usage
    }
}

/// What a process has used so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    peak_kilobytes: u64,
}

impl Usage {
    /// Runs a command to its end, which must be a good one. Returns the seconds that it took, too.
    pub(crate) fn of_run(command: &mut Command) -> (f64, Self) {
        let from = Instant::now();
        let mut child = command.stdout(Stdio::null()).spawn().expect("start the command");
        // A process that has ended has no figures to ask, so the last ones before that are taken.
        let mut usage = Self::default();
        let status = loop {
            usage = Self::of(child.id()).unwrap_or(usage);
            if let Some(status) = child.try_wait().expect("wait for the command") {
                break status;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        assert!(status.success(), "the command failed");
        (from.elapsed().as_secs_f64(), usage)
    }

    /// The most memory that it had at a time.
    pub(crate) fn megabytes(self) -> f64 {
        self.peak_kilobytes as f64 / 1024.0
    }

    /// None of a process that is over.
    fn of(process: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok());
        Some(Self {
            // The kernel reports in hundredths of a second on every architecture that Rollout runs on.
            cpu: Duration::from_millis((ticks(11)? + ticks(12)?) * 10),
            peak_kilobytes: peak.trim().trim_end_matches(" kB").parse().ok()?,
        })
    }
}
