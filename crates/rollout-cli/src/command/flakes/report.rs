//! The report of flaky tasks.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use rollout::{
    record::{layout::JobDir, saved::SavedJob},
    result::ErrorType,
    stats::{Confidence, Interval, wilson},
};
use serde::Serialize;

use super::tally::{Attempts, Evidence, Tally};
use crate::command::task_trials::TaskReport;
use crate::exit::Exit;
use crate::report::text::{BAD, BOLD, DIM, GOOD, ODD, count, first_line, fit, number, paint, percent};

/// How many lines of test output are shown.
const LINES: usize = 3;

/// How many bytes of test output are read.
const READ_BYTES: u64 = 4096;

/// The maximum width of a line.
const WIDTH: usize = 160;

/// The findings.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    job: PathBuf,
    /// The number of tasks of the job.
    tasks: usize,
    /// Tasks that the oracle does not always pass.
    oracle_unsolved: Vec<Found>,
    /// Tasks that gave nop a reward of 1.
    nop_passes: Vec<Found>,
    /// Tasks without a solution.
    without_solution: Vec<String>,
    /// Whether no environment could be started, so that no task was tested.
    nothing_ran: bool,
    /// Trials of the two agents that have no result.
    unfinished_trials: u64,
    /// The minimum number of oracle attempts over all tasks with a solution.
    oracle_attempts: Option<u64>,
    /// The lower bound of the pass rate of a task that passes all of these attempts.
    pass_rate_at_least: Option<f64>,
    /// The minimum number of nop attempts over the tasks that it attempted.
    nop_attempts: Option<u64>,
    confidence: f64,
}

/// A flaky task, with trials as evidence.
#[derive(Debug, Serialize)]
struct Found {
    task: String,
    passes: u64,
    attempts: u64,
    pass_rate: Option<Interval>,
    errors: BTreeMap<ErrorType, u64>,
    trials: Vec<Shown>,
}

/// A trial as evidence.
#[derive(Debug, Serialize)]
struct Shown {
    directory: PathBuf,
    reward: Option<f64>,
    error: Option<ErrorType>,
    message: Option<String>,
    /// The first lines of the tests' output.
    output: Vec<String>,
}

impl Report {
    pub(super) fn new(job: &SavedJob, tally: &Tally) -> Self {
        let dir = JobDir::new(job.path());
        let name = |(dataset, task): &(String, String)| format!("{dataset}/{task}");
        let attempted = tally.tasks.iter().filter(|(_, task)| task.oracle.attempts > 0);
        let fails = attempted.clone().filter(|(_, task)| task.oracle.passes < task.oracle.attempts);
        let passes = tally.tasks.iter().filter(|(_, task)| task.nop.passes > 0);
        let fewest = attempted.map(|(_, task)| task.oracle.attempts).min();
        Self {
            job: job.path().to_owned(),
            tasks: tally.tasks.len(),
            oracle_unsolved: fails.map(|(key, task)| Found::new(name(key), &task.oracle, &dir)).collect(),
            nop_passes: passes.map(|(key, task)| Found::new(name(key), &task.nop, &dir)).collect(),
            without_solution: tally
                .tasks
                .iter()
                .filter(|(_, task)| task.no_solution)
                .map(|(key, _)| name(key))
                .collect(),
            nothing_ran: tally.tasks.values().all(|task| !task.ran),
            unfinished_trials: tally.unfinished,
            oracle_attempts: fewest,
            nop_attempts: tally.tasks.values().map(|task| task.nop.attempts).filter(|all| *all > 0).min(),
            pass_rate_at_least: fewest.and_then(|all| wilson(all, all, Confidence::P95)).map(|rate| rate.low),
            confidence: Confidence::P95.level(),
        }
    }

    /// Whether no task is flaky.
    fn is_clean(&self) -> bool {
        self.oracle_unsolved.is_empty() && self.nop_passes.is_empty()
    }

    fn verdict(&self) -> String {
        let tasks = count(self.tasks as u64, "task");
        let results = format!("{} {}", paint(DIM, "results:"), self.job.display());
        if self.nothing_ran {
            let why = "not tested, because no environment could be started; \
                       use a job file to choose the environment";
            return format!("{} {tasks}: {why}\n{results}", paint(BAD, "✗"));
        }
        let is_whole =
            self.unfinished_trials == 0 && self.oracle_attempts.is_some() && self.nop_attempts.is_some();
        let mut lines = vec![match self.is_clean() {
            true if is_whole => format!("{} {tasks}: no flakes", paint(GOOD, "✓")),
            true => format!("{} {tasks}: no flakes so far", paint(ODD, "–")),
            false => format!(
                "{} {tasks}: {} not always passed by the oracle, {} passed by nop",
                paint(BAD, "✗"),
                self.oracle_unsolved.len(),
                self.nop_passes.len(),
            ),
        }];
        if let (Some(attempts), Some(rate)) = (self.oracle_attempts, self.pass_rate_at_least) {
            lines.push(paint(
                DIM,
                &format!(
                    "a task that passes {attempts} of {attempts} passes at least {} of the time (at {} confidence); \
                     more attempts give a better bound",
                    percent(rate),
                    percent(self.confidence),
                ),
            ));
        } else {
            lines.push(paint(ODD, "the oracle attempted no task, so flaky tests were not checked"));
        }
        if self.nop_attempts.is_none() {
            lines.push(paint(ODD, "nop attempted no task, so rewards for doing nothing were not checked"));
        }
        if self.unfinished_trials > 0 {
            let missing = count(self.unfinished_trials, "trial");
            let job = self.job.display();
            lines.push(paint(ODD, &format!("{missing} without a result: `rollout resume {job}` runs them")));
        }
        lines.push(results);
        lines.join("\n")
    }
}

impl TaskReport for Report {
    fn exit(&self) -> Exit {
        match () {
            () if self.nothing_ran => Exit::Wrong,
            () if self.is_clean() && self.unfinished_trials == 0 => Exit::Success,
            () => Exit::Unmet,
        }
    }

    fn render(&self) -> String {
        let mut parts = Vec::new();
        let lists = [
            ("tasks that the oracle does not always pass", &self.oracle_unsolved),
            ("tasks that the nop agent passes", &self.nop_passes),
        ];
        for (heading, found) in lists.into_iter().filter(|(_, found)| !found.is_empty()) {
            let tasks = found.iter().map(Found::render);
            parts.push([paint(BOLD, heading)].into_iter().chain(tasks).collect::<Vec<_>>().join("\n"));
        }
        if !self.without_solution.is_empty() {
            let heading = paint(BOLD, "tasks without a solution, not tested with the oracle");
            let tasks = self.without_solution.iter().map(|task| format!("  {} {task}", paint(ODD, "–")));
            parts.push([heading].into_iter().chain(tasks).collect::<Vec<_>>().join("\n"));
        }
        parts.push(self.verdict());
        parts.join("\n\n")
    }
}

impl Found {
    fn new(task: String, attempts: &Attempts, dir: &JobDir) -> Self {
        Self {
            task,
            passes: attempts.passes,
            attempts: attempts.attempts,
            pass_rate: wilson(attempts.passes, attempts.attempts, Confidence::P95),
            errors: attempts.errors.clone(),
            trials: attempts.evidence.iter().map(|evidence| Shown::new(evidence, dir)).collect(),
        }
    }

    fn render(&self) -> String {
        let mut facts = vec![format!("passed {} of {}", self.passes, self.attempts)];
        if let Some(Interval { low, high }) = self.pass_rate {
            facts.push(format!("pass rate {} to {}", percent(low), percent(high)));
        }
        facts.extend(self.errors.iter().map(|(kind, number)| format!("{kind} × {number}")));
        let mut lines = vec![format!("  {} {}: {}", paint(BAD, "✗"), self.task, facts.join(", "))];
        for trial in &self.trials {
            let outcome = match (trial.reward, trial.error) {
                (_, Some(error)) => error.to_string(),
                (Some(reward), None) => format!("reward {}", number(reward)),
                (None, None) => "no reward".to_owned(),
            };
            lines.push(format!("    {} ({outcome})", trial.directory.display()));
            let said = trial.message.iter().chain(&trial.output);
            lines.extend(said.map(|line| format!("      {}", paint(DIM, line))));
        }
        lines.join("\n")
    }
}

impl Shown {
    fn new(evidence: &Evidence, dir: &JobDir) -> Self {
        let trial = dir.trial(&evidence.trial);
        let said = ["stdout.txt", "stderr.txt"].map(|name| first_lines(&evidence.tests.join(name)));
        Self {
            directory: trial.path().to_owned(),
            reward: evidence.reward,
            error: evidence.error.as_ref().map(|(kind, _)| *kind),
            message: evidence.error.as_ref().map(|(_, message)| fit(&first_line(message), WIDTH)),
            output: said.into_iter().flatten().take(LINES).collect(),
        }
    }
}

/// Returns the first lines of a file that are not empty. An unreadable file has none.
fn first_lines(path: &Path) -> Vec<String> {
    let is_file = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    let Some(file) = is_file.then(|| File::open(path).ok()).flatten() else { return Vec::new() };
    let mut bytes = Vec::new();
    if file.take(READ_BYTES).read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().map(first_line).filter(|line| !line.is_empty());
    lines.take(LINES).map(|line| fit(&line, WIDTH)).collect()
}
