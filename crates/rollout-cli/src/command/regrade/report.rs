//! What changed when the tests of a job ran again.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use rollout::{
    record::{saved::SavedJob, tasks::TaskRecord},
    result::{ErrorType, RegradeSource, Standing, Totals, TrialResult, TrialSummary},
};
use serde::Serialize;

use crate::{
    exit::{Exit, Failure},
    report::{
        Align, table,
        text::{BOLD, DIM, ODD, count, first_line, fit, number, paint, percent},
    },
};

/// How many trials, tasks and reasons are listed.
const LISTED: usize = 10;

/// The maximum width of a line.
const WIDTH: usize = 200;

/// The comparison of a job with its regrade.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    job: PathBuf,
    regraded_in: PathBuf,
    /// The number of trials in the regrade.
    trials: u64,
    /// The number of trials by what their tests ran on.
    on: BTreeMap<RegradeSource, u64>,
    /// The number of trials that could not be graded again, or whose tests failed.
    failed_trials: u64,
    /// The differences of the tests, task by task.
    tests: Vec<TestDifference>,
    /// The number of tasks whose tests are the same.
    unchanged_tests: u64,
    /// Tasks of which an older version recorded too little to compare their tests.
    unknown_tests: u64,
    /// The trials that count before and now.
    before: Rates,
    after: Rates,
    /// The trials whose reward or error is another.
    changed: Vec<Change>,
    /// The trials that could not be graded again, by reason.
    not_regraded: Vec<NotRegraded>,
}

/// The files that define the tests of a task, where they differ.
#[derive(Debug, Serialize)]
struct TestDifference {
    task: String,
    changed: Vec<String>,
    added: Vec<String>,
    removed: Vec<String>,
}

/// The rates over the same trials.
#[derive(Debug, Serialize)]
struct Rates {
    counted_trials: u64,
    solved_trials: u64,
    pass_rate: Option<f64>,
    mean_reward: Option<f64>,
}

/// A trial whose outcome has changed.
#[derive(Debug, Serialize)]
struct Change {
    trial: String,
    before: Outcome,
    after: Outcome,
}

/// The reward and the error of a trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Outcome {
    reward: Option<f64>,
    error: Option<ErrorType>,
}

/// Trials that could not be graded again.
#[derive(Debug, Serialize)]
struct NotRegraded {
    reason: String,
    trials: Vec<String>,
}

impl Report {
    /// Reads a regrade and the job that it is of.
    pub(super) fn read(directory: &Path) -> Result<Self, Failure> {
        let regraded = SavedJob::open(directory)?;
        let finished = super::finished_job(&regraded)?;
        let mut on: BTreeMap<RegradeSource, u64> = BTreeMap::new();
        let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let [mut before, mut after] = [Totals::default(), Totals::default()];
        let (mut trials, mut failed_trials, mut changed) = (0, 0, Vec::new());
        for trial in regraded.trials()? {
            let trial = trial?;
            let Some(earlier) = &trial.result.regraded else { continue };
            trials += 1;
            *on.entry(earlier.on).or_default() += 1;
            let is_failed = trial.result.standing() == Standing::Failed;
            failed_trials += u64::from(is_failed && earlier.on != RegradeSource::Unchanged);
            let error = trial.result.error.as_ref();
            if let Some(error) = error.filter(|error| error.kind == ErrorType::NotRegraded) {
                reasons.entry(error.message.clone()).or_default().push(trial.id.to_string());
                continue;
            }
            let outcome = |reward, kind: Option<ErrorType>| Outcome { reward, error: kind };
            let old = outcome(earlier.reward, earlier.error.as_ref().map(|error| error.kind));
            let new = outcome(trial.result.reward, error.map(|error| error.kind));
            let was =
                TrialResult { reward: earlier.reward, error: earlier.error.clone(), ..trial.result.clone() };
            let [was, is] = [&was, &trial.result].map(TrialSummary::from);
            // Both rates are over the same trials.
            if counts(&was) || counts(&is) {
                before.add(was);
                after.add(is);
            }
            if old != new {
                changed.push(Change { trial: trial.id.to_string(), before: old, after: new });
            }
        }
        let (mut tests, mut unchanged_tests, mut unknown_tests) = (Vec::new(), 0, 0);
        for number in 0..regraded.header().tasks.len() {
            let task = &regraded.header().tasks[number];
            let same = |known: &rollout::record::journal::PlannedTask| {
                (&known.dataset, &known.name) == (&task.dataset, &task.name)
            };
            let old = finished.header().tasks.iter().position(same);
            let old = old.map(|old| finished.about(old)).transpose()?.flatten();
            match (old, regraded.about(number)?) {
                (Some(old), Some(new)) if !old.test_files.is_empty() => {
                    match TestDifference::new(format!("{}/{}", task.dataset, task.name), &old, &new) {
                        Some(difference) => tests.push(difference),
                        None => unchanged_tests += 1,
                    }
                }
                _ => unknown_tests += 1,
            }
        }
        Ok(Self {
            job: finished.path().to_owned(),
            regraded_in: regraded.path().to_owned(),
            trials,
            on,
            failed_trials,
            tests,
            unchanged_tests,
            unknown_tests,
            before: Rates::of(&before),
            after: Rates::of(&after),
            changed,
            not_regraded: reasons
                .into_iter()
                .map(|(reason, trials)| NotRegraded { reason, trials })
                .collect(),
        })
    }

    /// The exit status of the command, unless it was cancelled.
    pub(super) fn exit(&self) -> Exit {
        if self.failed_trials == 0 { Exit::Success } else { Exit::Unmet }
    }

    /// Renders the report as text.
    pub(super) fn render(&self) -> String {
        let mut lines = vec![format!("{} {}", paint(BOLD, "regraded:"), sources(&self.on))];
        lines.extend(self.render_tests());
        lines.push(String::new());
        let rate = |rate: Option<f64>| rate.map_or_else(|| "—".to_owned(), percent);
        let mean = |mean: Option<f64>| mean.map_or_else(|| "—".to_owned(), number);
        let row = |name: &str, rates: &Rates| {
            let solved = format!("{} of {}", rates.solved_trials, rates.counted_trials);
            vec![name.to_owned(), rate(rates.pass_rate), solved, mean(rates.mean_reward)]
        };
        let heading = ["", "pass rate", "solved", "mean reward"].map(str::to_owned).to_vec();
        let rows = vec![heading, row("before", &self.before), row("now", &self.after)];
        lines.extend(table(&[Align::Left, Align::Right, Align::Right, Align::Right], &rows));
        lines.push(String::new());
        match self.changed.len() {
            0 => lines.push("no outcome has changed".to_owned()),
            changed => {
                lines.push(format!("{} with a changed outcome", count(changed as u64, "trial")));
                let outcome = |outcome: &Outcome| match (outcome.reward, outcome.error) {
                    (Some(reward), None) => number(reward),
                    (Some(reward), Some(error)) => format!("{} ({error})", number(reward)),
                    (None, Some(error)) => error.to_string(),
                    (None, None) => "no reward".to_owned(),
                };
                lines.extend(self.changed.iter().take(LISTED).map(|change| {
                    format!("  {}: {} → {}", change.trial, outcome(&change.before), outcome(&change.after))
                }));
                lines.extend(more(changed));
            }
        }
        let reasons = self.not_regraded.iter().map(|found| (found.reason.clone(), found.trials.clone()));
        lines.extend(self::reasons(&reasons.collect()));
        lines.push(format!("{} {}", paint(DIM, "results:"), self.regraded_in.display()));
        lines.join("\n")
    }

    fn render_tests(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.tests.is_empty() {
            lines.push(match self.unknown_tests {
                0 => format!("{} the tests are the same as in the job", paint(ODD, "note:")),
                tasks => format!(
                    "{} the job has no record of the test files of {}",
                    paint(ODD, "note:"),
                    count(tasks, "task")
                ),
            });
            return lines;
        }
        lines.push(format!("tests of {} differ:", count(self.tests.len() as u64, "task")));
        for TestDifference { task, changed, added, removed } in self.tests.iter().take(LISTED) {
            let parts = [("changed", changed), ("added", added), ("removed", removed)];
            let parts = parts.iter().filter(|(_, files)| !files.is_empty());
            let parts: Vec<_> = parts.map(|(what, files)| format!("{} {what}", files.join(", "))).collect();
            lines.push(fit(&format!("  {}: {}", first_line(task), first_line(&parts.join("; "))), WIDTH));
        }
        lines.extend(more(self.tests.len()));
        lines
    }
}

impl TestDifference {
    /// Compares the recorded files; None if they are the same.
    fn new(task: String, old: &TaskRecord, new: &TaskRecord) -> Option<Self> {
        let (old, new) = (&old.test_files, &new.test_files);
        let only = |some: &BTreeMap<String, String>, others: &BTreeMap<String, String>| {
            some.keys().filter(|file| !others.contains_key(*file)).cloned().collect::<Vec<_>>()
        };
        let differs = |(file, hash): &(&String, &String)| new.get(*file).is_some_and(|new| new != *hash);
        let found = Self {
            task,
            changed: old.iter().filter(differs).map(|(file, _)| file.clone()).collect(),
            added: only(new, old),
            removed: only(old, new),
        };
        let is_same = found.changed.is_empty() && found.added.is_empty() && found.removed.is_empty();
        (!is_same).then_some(found)
    }
}

impl Rates {
    fn of(totals: &Totals) -> Self {
        let headline = totals.headline();
        Self {
            counted_trials: headline.counted_trials,
            solved_trials: headline.solved_trials,
            pass_rate: headline.pass_rate,
            mean_reward: headline.mean_reward,
        }
    }
}

fn counts(trial: &TrialSummary) -> bool {
    trial.standing != Standing::Skipped && trial.headline_reward().is_some()
}

/// Renders the number of trials by what their tests run on.
pub(super) fn sources(on: &BTreeMap<RegradeSource, u64>) -> String {
    let parts: Vec<_> = on
        .iter()
        .map(|(source, trials)| match source {
            RegradeSource::Environment => format!("{trials} on preserved environments"),
            RegradeSource::Artifacts => format!("{trials} on collected artifacts"),
            RegradeSource::Unchanged => format!("{trials} failed before the tests and keep their result"),
            RegradeSource::Nothing => format!("{trials} cannot be graded again"),
        })
        .collect();
    parts.join(", ")
}

/// Renders the reasons why trials cannot be graded again.
pub(super) fn reasons(reasons: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut sorted: Vec<_> = reasons.iter().collect();
    sorted.sort_by_key(|(_, trials)| std::cmp::Reverse(trials.len()));
    let mut lines = Vec::new();
    for (reason, trials) in sorted.into_iter().take(LISTED) {
        lines.push(format!(
            "{} {}, such as {}: {}",
            paint(ODD, "not graded again:"),
            count(trials.len() as u64, "trial"),
            first_line(trials.first().map(String::as_str).unwrap_or_default()),
            first_line(reason)
        ));
    }
    lines.extend(more(reasons.len()));
    lines
}

fn more(all: usize) -> Option<String> {
    (all > LISTED).then(|| format!("  and {} more; `--output json` lists all", all - LISTED))
}
