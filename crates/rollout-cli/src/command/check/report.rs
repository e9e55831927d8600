//! The report of a check, task by task.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
};

use rollout::{
    record::{journal::RecordedSource, layout::JobDir, saved::SavedJob},
    result::TrialResult,
    stats::{Confidence, wilson},
    task::cached_directory,
};
use serde::Serialize;
use serde_json::Value;

use super::{
    LOOK, leaks,
    leaks::Leak,
    pins,
    summary::{DatasetSummary, summaries},
};
use crate::{
    command::flakes::tally::{Attempts, Tally},
    command::task_trials::TaskReport,
    exit::{Exit, Failure},
    report::{
        Align, table,
        text::{BAD, BOLD, DIM, GOOD, ODD, count, fit, paint, size, span},
    },
};

/// The maximum width of a line.
const WIDTH: usize = 200;

/// How many leaks of a task are listed.
const LISTED: usize = 5;

/// The findings about the tasks of a job.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    job: PathBuf,
    /// Whether warnings count as failures.
    strict: bool,
    /// How many tasks passed the check.
    passed: usize,
    failed: usize,
    /// Trials of the agents that have no result.
    unfinished_trials: u64,
    /// Whether no environment could be started.
    nothing_ran: bool,
    datasets: Vec<DatasetSummary>,
    tasks: Vec<CheckedTask>,
}

/// The findings about a task.
#[derive(Debug, Serialize)]
pub(super) struct CheckedTask {
    task: String,
    pub(super) passed: bool,
    problems: Vec<String>,
    warnings: Vec<String>,
    oracle: Option<Passes>,
    nop: Option<Passes>,
    /// Whether the solution passes some attempts and not others.
    pub(super) flaky: bool,
    /// Files of the task in its environment; null if that was not checked.
    leaks: Option<Vec<Leak>>,
    pub(super) unpinned: Vec<String>,
    /// The longest time from the start of a trial to a ready environment: that of the build.
    pub(super) build_sec: Option<f64>,
    /// The mean time of the tests.
    tests_sec: Option<f64>,
    /// The size of the task's files.
    size_bytes: u64,
    /// The size of its image with all layers; null if the provider does not know it.
    image_bytes: Option<u64>,
}

/// The attempts of an agent.
#[derive(Debug, Clone, Copy, Serialize)]
struct Passes {
    passes: u64,
    attempts: u64,
    /// The interval of the pass rate, with 95% confidence.
    low: Option<f64>,
    high: Option<f64>,
}

/// The trial of the agent that lists the files of the environment.
struct Look {
    trial: PathBuf,
    error: Option<String>,
}

/// The times of the trials of a task.
#[derive(Debug, Default)]
struct Times {
    build: Option<f64>,
    tests: Vec<f64>,
}

impl Report {
    /// Reads a job of the agents oracle, nop and look. None if the first two have no result. `image_sizes` returns the
    /// sizes of the images of a provider by their names.
    pub(super) fn read(
        job: &SavedJob,
        cache_dir: &Path,
        strict: bool,
        image_sizes: impl FnOnce(&str) -> HashMap<String, u64>,
    ) -> Result<Option<Self>, Failure> {
        let Some(tally) = Tally::read(job)? else { return Ok(None) };
        let mut times: BTreeMap<(String, String), Times> = BTreeMap::new();
        let mut looked: BTreeMap<(String, String), Look> = BTreeMap::new();
        let mut images: BTreeMap<(String, String), String> = BTreeMap::new();
        let mut provider = None;
        let dir = JobDir::new(job.path());
        for trial in job.trials()? {
            let trial = trial?;
            let key = (trial.id.dataset.to_string(), trial.id.task.to_string());
            times.entry(key.clone()).or_default().add(&trial.result);
            if let Some(environment) = &trial.result.environment {
                images.insert(key.clone(), environment.image.clone());
                provider.get_or_insert_with(|| environment.provider.clone());
            }
            if trial.id.agent.as_str() == LOOK {
                looked.entry(key).or_insert_with(|| Look {
                    trial: dir.trial(&trial.id).path().to_owned(),
                    error: trial.result.error.map(|error| error.message),
                });
            }
        }
        let places = places(job, cache_dir);
        let sizes = provider.map(|provider| image_sizes(&provider)).unwrap_or_default();
        let nothing_ran = tally.tasks.values().all(|task| !task.ran);
        let tasks: Vec<CheckedTask> = tally
            .tasks
            .iter()
            .map(|(key, task)| {
                let mut checked = CheckedTask {
                    task: format!("{}/{}", key.0, key.1),
                    passed: true,
                    problems: Vec::new(),
                    warnings: Vec::new(),
                    oracle: Passes::of(&task.oracle),
                    nop: Passes::of(&task.nop),
                    flaky: (1..task.oracle.attempts).contains(&task.oracle.passes),
                    leaks: None,
                    unpinned: Vec::new(),
                    build_sec: times.get(key).and_then(|times| times.build),
                    tests_sec: times.get(key).and_then(Times::tests),
                    size_bytes: 0,
                    image_bytes: images.get(key).and_then(|image| sizes.get(image)).copied(),
                };
                let look = looked.get(key);
                if let Some(path) = places.get(key) {
                    checked.unpinned = pins::of_task(path);
                    checked.size_bytes = bytes_below(path);
                    checked.leaks = look.and_then(|look| leaks::find(path, &look.trial));
                }
                checked.judge(task, look.and_then(|look| look.error.as_deref()), strict);
                checked
            })
            .collect();
        let failed = tasks.iter().filter(|task| !task.passed).count();
        Ok(Some(Self {
            job: job.path().to_owned(),
            strict,
            passed: tasks.len() - failed,
            failed,
            unfinished_trials: tally.unfinished,
            nothing_ran,
            datasets: summaries(&tasks),
            tasks,
        }))
    }

    fn count(&self) -> String {
        count(self.tasks.len() as u64, "task")
    }
}

impl TaskReport for Report {
    fn exit(&self) -> Exit {
        match () {
            () if self.nothing_ran => Exit::Wrong,
            () if self.failed == 0 && self.unfinished_trials == 0 => Exit::Success,
            () => Exit::Unmet,
        }
    }

    fn render(&self) -> String {
        let heading =
            ["task", "", "oracle", "nop", "build", "tests", "size", "image"].map(str::to_owned).to_vec();
        let mut rows = vec![heading];
        let passes = |passes: Option<Passes>| match passes {
            Some(Passes { passes, attempts, .. }) => format!("{passes} of {attempts}"),
            None => "—".to_owned(),
        };
        let time = |time: Option<f64>| time.map_or_else(|| "—".to_owned(), span);
        rows.extend(self.tasks.iter().map(|task| {
            vec![
                task.task.clone(),
                if task.passed { "✓" } else { "✗" }.to_owned(),
                passes(task.oracle),
                passes(task.nop),
                time(task.build_sec),
                time(task.tests_sec),
                size(task.size_bytes),
                task.image_bytes.map_or_else(|| "—".to_owned(), size),
            ]
        }));
        let mut columns = [Align::Right; 8];
        columns[..2].fill(Align::Left);
        let mut lines = table(&columns, &rows);
        lines[0] = paint(BOLD, &lines[0]);
        lines.push(String::new());
        for task in &self.tasks {
            let found = task.problems.iter().map(|text| (paint(BAD, "✗"), text));
            let found = found.chain(task.warnings.iter().map(|text| (paint(ODD, "warning:"), text)));
            for (mark, text) in found {
                lines.push(fit(&format!("{mark} {}: {text}", task.task), WIDTH));
            }
        }
        lines.extend(self.datasets.iter().map(DatasetSummary::line));
        lines.push(match (self.nothing_ran, self.failed) {
            (true, _) => format!(
                "{} no environment could be started; use a job file to choose the environment",
                paint(BAD, "✗")
            ),
            (false, 0) => format!("{} {}: all passed the check", paint(GOOD, "✓"), self.count()),
            (false, failed) => format!("{} {}: {failed} failed the check", paint(BAD, "✗"), self.count()),
        });
        if self.unfinished_trials > 0 {
            let missing = count(self.unfinished_trials, "trial");
            let job = self.job.display();
            lines.push(paint(ODD, &format!("{missing} without a result: `rollout resume {job}` runs them")));
        }
        lines.push(format!("{} {}", paint(DIM, "results:"), self.job.display()));
        lines.join("\n")
    }
}

impl CheckedTask {
    /// The name of its dataset.
    pub(super) fn dataset(&self) -> &str {
        self.task.split('/').next().unwrap_or_default()
    }

    /// Whether its environment has its solution or its tests.
    pub(super) fn is_leaking(&self) -> bool {
        self.leaks.iter().flatten().any(|leak| leak.is_serious)
    }

    /// Collects problems and warnings. `unseen` is the reason why the files of the environment could not be listed.
    fn judge(&mut self, task: &crate::command::flakes::tally::Task, unseen: Option<&str>, strict: bool) {
        let errors = |attempts: &Attempts| {
            let errors: Vec<_> =
                attempts.errors.iter().map(|(kind, number)| format!("{kind} × {number}")).collect();
            if errors.is_empty() { String::new() } else { format!(" ({})", errors.join(", ")) }
        };
        match self.oracle {
            _ if task.no_solution => {
                self.warnings.push("it has no solution, so its tests were not checked".to_owned())
            }
            None => self.problems.push("the oracle has no result".to_owned()),
            Some(Passes { passes, attempts, .. }) if passes < attempts => {
                let what = if self.flaky { "is flaky: the solution" } else { "the solution" };
                let share = format!("{what} passes {passes} of {attempts}{}", errors(&task.oracle));
                self.problems.push(share);
            }
            Some(_) => {}
        }
        if let Some(Passes { passes, attempts, .. }) = self.nop
            && passes > 0
        {
            self.problems.push(format!("doing nothing passes {passes} of {attempts}"));
        }
        match &self.leaks {
            None => {
                let reason = unseen.map(|error| format!(": {}", error.lines().next().unwrap_or_default()));
                self.warnings.push(format!(
                    "its environment was not searched for tests and solutions{}",
                    reason.unwrap_or_default()
                ));
            }
            Some(leaks) => {
                let text = |leak: &Leak| match &leak.file {
                    Some(file) => format!("agents can read {file}, at {}", leak.path),
                    None => format!("agents can read {}", leak.path),
                };
                let serious = leaks.iter().filter(|leak| leak.is_serious);
                self.problems.extend(serious.take(LISTED).map(text));
                let others = leaks.iter().filter(|leak| !leak.is_serious);
                self.warnings.extend(others.take(LISTED).map(text));
            }
        }
        self.warnings.extend(self.unpinned.iter().cloned());
        self.passed = self.problems.is_empty() && (!strict || self.warnings.is_empty());
    }
}

impl Passes {
    fn of(attempts: &Attempts) -> Option<Self> {
        let Attempts { passes, attempts, .. } = *attempts;
        let rate = wilson(passes, attempts, Confidence::P95);
        let (low, high) = (rate.map(|rate| rate.low), rate.map(|rate| rate.high));
        (attempts > 0).then_some(Self { passes, attempts, low, high })
    }
}

impl Times {
    fn add(&mut self, result: &TrialResult) {
        let setup = result.durations.environment_setup_sec;
        self.build = match (self.build, setup) {
            (Some(known), Some(now)) => Some(known.max(now)),
            (known, now) => known.or(now),
        };
        self.tests.extend(result.durations.verifier_sec);
    }

    fn tests(&self) -> Option<f64> {
        (!self.tests.is_empty()).then(|| self.tests.iter().sum::<f64>() / self.tests.len() as f64)
    }
}

/// Where the files of the tasks are, if they are on this machine.
fn places(job: &SavedJob, cache_dir: &Path) -> BTreeMap<(String, String), PathBuf> {
    let base = job.config()["base_dir"].as_str().map(PathBuf::from).unwrap_or_default();
    let mut found = BTreeMap::new();
    for task in &job.header().tasks {
        let key = (task.dataset.clone(), task.name.clone());
        match &task.source {
            Some(RecordedSource::Directory(dir)) => {
                found.insert(key, dir.clone());
                continue;
            }
            Some(RecordedSource::Git { url, commit, path }) => {
                found.extend(cached_directory(cache_dir, url, commit, path).map(|dir| (key, dir)));
                continue;
            }
            None => {}
        }
        let of_set = |dataset: &&Value| {
            let path = dataset["path"].as_str().unwrap_or_default();
            let name = dataset["rename"].as_str().or(dataset["name"].as_str());
            let own = Path::new(path).file_name().is_some_and(|own| own.to_string_lossy() == task.dataset);
            !path.is_empty() && name.map_or(own, |name| name == task.dataset)
        };
        let dataset = job.config()["datasets"].as_array().into_iter().flatten().find(of_set);
        let Some(path) = dataset.and_then(|dataset| dataset["path"].as_str()) else { continue };
        let set = base.join(path);
        let is_task = ["instruction.md", "task.toml"].iter().any(|name| set.join(name).exists());
        let place = if is_task { set } else { set.join(&task.name) };
        if place.is_dir() {
            found.insert(key, place);
        }
    }
    found
}

/// The size of the files below a directory, without following links.
fn bytes_below(dir: &Path) -> u64 {
    let mut sum = 0;
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => pending.push(entry.path()),
                Ok(found) if found.is_file() => sum += found.len(),
                _ => {}
            }
        }
    }
    sum
}
