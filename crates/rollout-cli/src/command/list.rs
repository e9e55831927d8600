//! `rollout list`: the jobs of a directory, or the trials of a job.

use std::{
    cmp::Ordering,
    fs,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
};

use globset::{Glob, GlobSet, GlobSetBuilder};
use jiff::Timestamp;
use rollout::{
    name::TrialId,
    record::{
        layout::JobDir,
        moment,
        saved::{SavedJob, TrialStatus},
    },
    result::{ErrorType, Totals, TrialSummary},
};
use serde::Serialize;

use crate::{
    args::{List, SortBy, StatusFilter},
    exit::{Exit, Failure},
    report::{
        Align, quoted, table, terminal_size,
        text::{
            BAD, BOLD, DIM, GOOD, ODD, count, dollars, first_line, fit, fit_end, number, paint, percent, span,
        },
    },
};

/// The width of the columns beside the name of a trial, without the error.
const OTHER_COLUMNS: usize = 38;

/// The minimum width of a name.
const MIN_NAME: usize = 20;

/// What is shown for an unknown value.
const NOTHING: &str = "—";

/// Lists jobs or trials.
pub(crate) fn run(args: &List) -> Result<Exit, Failure> {
    let dir = &args.directory;
    if JobDir::new(dir).journal().is_file() {
        return trials(args);
    }
    if !args.agent.is_empty() || !args.task.is_empty() || !args.status.is_empty() || args.sort != SortBy::Plan
    {
        let failure = Failure::from(format!("{} is not a job directory", dir.display()));
        return Err(failure.hint(Some("--agent, --task, --status and --sort select trials of one job")));
    }
    jobs(dir, args.json)
}

/// The width of lines: that of the terminal, and any for a file or a pipe.
fn width() -> usize {
    if io::stdout().is_terminal() { terminal_size().0 } else { usize::MAX }
}

/// A line of the list of jobs.
#[derive(Debug, Serialize)]
struct JobLine {
    job: String,
    directory: PathBuf,
    #[serde(with = "moment::optional")]
    started_at: Option<Timestamp>,
    status: &'static str,
    planned_trials: u64,
    finished_trials: u64,
    failed_trials: u64,
    pass_rate: Option<f64>,
    mean_reward: Option<f64>,
    cost: Option<f64>,
    agents: Vec<String>,
    datasets: Vec<String>,
}

impl JobLine {
    fn read(directory: &Path) -> Result<Self, Failure> {
        let job = SavedJob::open(directory)?;
        let mut totals = Totals::default();
        for trial in job.trials()? {
            totals.add(TrialSummary::from(&trial?.result));
        }
        let headline = totals.headline();
        let (planned, finished) = (job.planned(), job.len() as u64);
        let status = match job.runs().last() {
            _ if job.is_running() => "running",
            Some(run) if run.cancelled => "cancelled",
            _ if finished < planned => "incomplete",
            _ => "finished",
        };
        let mut datasets: Vec<String> = Vec::new();
        for (_, dataset) in job.groups() {
            if !datasets.iter().any(|known| known == dataset) {
                datasets.push(dataset.to_owned());
            }
        }
        Ok(Self {
            job: job.header().job_name.clone(),
            directory: directory.to_owned(),
            started_at: job.runs().first().map(|run| run.started_at),
            status,
            planned_trials: planned,
            finished_trials: finished,
            failed_trials: totals.failed_trials,
            pass_rate: headline.pass_rate,
            mean_reward: headline.mean_reward,
            cost: (totals.known_cost_trials > 0).then_some(totals.total_cost),
            agents: job.header().agents.clone(),
            datasets,
        })
    }

    fn cells(&self) -> Vec<String> {
        let name =
            self.directory.file_name().map_or(self.job.clone(), |name| name.to_string_lossy().into_owned());
        let started = self.started_at.map(|at| at.strftime("%Y-%m-%dT%H:%MZ").to_string());
        vec![
            name,
            or_nothing(started),
            self.status.to_owned(),
            format!("{}/{}", self.finished_trials, self.planned_trials),
            self.failed_trials.to_string(),
            or_nothing(self.pass_rate.map(percent)),
            or_nothing(self.cost.map(dollars)),
            format!("{} on {}", self.agents.join(", "), self.datasets.join(", ")),
        ]
    }
}

fn or_nothing(text: Option<String>) -> String {
    text.unwrap_or_else(|| NOTHING.to_owned())
}

fn jobs(dir: &Path, json: bool) -> Result<Exit, Failure> {
    let entries = fs::read_dir(dir).map_err(|error| {
        let failure = Failure::from(format!("cannot read the directory {}: {error}", dir.display()));
        failure.hint(Some("pass a job directory, or the directory that contains jobs"))
    })?;
    let mut lines = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if !JobDir::new(&path).journal().is_file() {
            continue;
        }
        match JobLine::read(&path) {
            Ok(line) => lines.push(line),
            // One damaged job must not hide the others.
            Err(failure) => {
                failure.report();
            }
        }
    }
    lines.sort_by(|a, b| b.started_at.cmp(&a.started_at).then_with(|| a.directory.cmp(&b.directory)));
    if json {
        return print_json(&lines);
    }
    if lines.is_empty() {
        super::print(&format!("no jobs in {}", dir.display()))?;
        return Ok(Exit::Success);
    }
    let heading = ["job", "started", "status", "done", "failed", "pass rate", "cost", "agents and datasets"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(lines.iter().map(JobLine::cells));
    use Align::{Left, Right};
    print_table(&[Left, Left, Left, Right, Right, Right, Right, Left], &rows, |row, line| {
        match row[2].as_str() {
            "running" => paint(GOOD, line),
            "cancelled" | "incomplete" => paint(ODD, line),
            _ => line.to_owned(),
        }
    })?;
    let example = quoted(&lines[0].directory);
    super::print(&paint(
        DIM,
        &format!("\n{}; `rollout list {example}` lists trials", count(lines.len() as u64, "job")),
    ))?;
    Ok(Exit::Success)
}

/// A line of the list of trials.
#[derive(Debug, Serialize)]
struct TrialLine {
    trial: String,
    agent: String,
    dataset: String,
    task: String,
    attempt: u32,
    status: TrialStatus,
    reward: Option<f64>,
    seconds: Option<f64>,
    cost: Option<f64>,
    error: Option<ErrorType>,
    message: Option<String>,
}

impl TrialLine {
    fn new(id: &TrialId, status: TrialStatus) -> Self {
        Self {
            trial: id.to_string(),
            agent: id.agent.to_string(),
            dataset: id.dataset.to_string(),
            task: id.task.to_string(),
            attempt: id.attempt,
            status,
            reward: None,
            seconds: None,
            cost: None,
            error: None,
            message: None,
        }
    }

    fn cells(&self, width: usize) -> Vec<String> {
        let error = self.error.map(|kind| {
            let message = first_line(self.message.as_deref().unwrap_or_default());
            if message.is_empty() { kind.to_string() } else { format!("{kind}: {message}") }
        });
        vec![
            self.status.as_str().to_owned(),
            fit_end(&self.trial, width.saturating_sub(OTHER_COLUMNS).max(MIN_NAME)),
            or_nothing(self.reward.map(number)),
            or_nothing(self.seconds.map(span)),
            or_nothing(self.cost.map(dollars)),
            error.unwrap_or_default(),
        ]
    }
}

fn trials(args: &List) -> Result<Exit, Failure> {
    let job = SavedJob::open(&args.directory)?;
    let (agents, tasks) = (globs(&args.agent)?, globs(&args.task)?);
    let statuses: Vec<TrialStatus> = args.status.iter().map(|filter| status_of(*filter)).collect();
    let wanted = |id: &TrialId, status: TrialStatus| {
        agents.as_ref().is_none_or(|globs| globs.is_match(id.agent.as_str()))
            && tasks.as_ref().is_none_or(|globs| globs.is_match(id.task.as_str()))
            && (statuses.is_empty() || statuses.contains(&status))
    };
    let mut lines = Vec::new();
    for trial in job.trials()? {
        let trial = trial?;
        let status = TrialStatus::of(&trial.result);
        if wanted(&trial.id, status) {
            let result = &trial.result;
            lines.push((
                trial.index.0,
                TrialLine {
                    reward: result.reward,
                    seconds: Some(result.durations.total_sec),
                    cost: TrialSummary::from(result).known_cost(),
                    error: result.error.as_ref().map(|error| error.kind),
                    message: result.error.as_ref().map(|error| error.message.clone()),
                    ..TrialLine::new(&trial.id, status)
                },
            ));
        }
    }
    for (index, id, status) in job.unfinished() {
        if wanted(&id, status) {
            lines.push((index.0, TrialLine::new(&id, status)));
        }
    }
    lines.sort_by(|(a_index, a), (b_index, b)| order(args.sort, a, b).then(a_index.cmp(b_index)));
    let lines: Vec<TrialLine> = lines.into_iter().map(|(_, line)| line).collect();
    if args.json {
        return print_json(&lines);
    }
    if !lines.is_empty() {
        let heading = ["status", "trial", "reward", "time", "cost", "error"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(lines.iter().map(|line| line.cells(width())));
        use Align::{Left, Right};
        print_table(&[Left, Left, Right, Right, Right, Left], &rows, |row, line| {
            let style = match row[0].as_str() {
                "solved" => GOOD,
                "failed" => BAD,
                "running" | "missing" => ODD,
                _ => return line.to_owned(),
            };
            let (status, rest) = line.split_at(row[0].len());
            format!("{}{rest}", paint(style, status))
        })?;
        super::print("")?;
    }
    super::print(&footer(&job, &lines))?;
    Ok(Exit::Success)
}

/// Counts the listed trials by status, and names the next command.
fn footer(job: &SavedJob, lines: &[TrialLine]) -> String {
    let mut statuses: Vec<TrialStatus> = lines.iter().map(|line| line.status).collect();
    statuses.sort_unstable();
    let counts: Vec<String> =
        statuses.chunk_by(|a, b| a == b).map(|same| format!("{} {}", same.len(), same[0].as_str())).collect();
    let planned = job.planned();
    let listed = match lines.len() as u64 {
        all if all == planned => count(all, "trial"),
        some => format!("{some} of {}", count(planned, "trial")),
    };
    let mut text = listed;
    if !counts.is_empty() {
        text = format!("{text}: {}", counts.join(", "));
    }
    let finished =
        lines.iter().find(|line| !matches!(line.status, TrialStatus::Running | TrialStatus::Missing));
    if let Some(line) = finished {
        text.push_str(&format!("\n`rollout show {}` shows a trial", quoted(&job.path().join(&line.trial))));
    }
    paint(DIM, &text)
}

fn order(sort: SortBy, a: &TrialLine, b: &TrialLine) -> Ordering {
    // Values that are missing come last.
    let descending = |a: Option<f64>, b: Option<f64>| {
        b.unwrap_or(f64::NEG_INFINITY).total_cmp(&a.unwrap_or(f64::NEG_INFINITY))
    };
    match sort {
        SortBy::Plan => Ordering::Equal,
        SortBy::Status => a.status.cmp(&b.status),
        SortBy::Reward => a.reward.unwrap_or(f64::INFINITY).total_cmp(&b.reward.unwrap_or(f64::INFINITY)),
        SortBy::Time => descending(a.seconds, b.seconds),
        SortBy::Cost => descending(a.cost, b.cost),
    }
}

fn status_of(filter: StatusFilter) -> TrialStatus {
    match filter {
        StatusFilter::Solved => TrialStatus::Solved,
        StatusFilter::Unsolved => TrialStatus::Unsolved,
        StatusFilter::Unscored => TrialStatus::Unscored,
        StatusFilter::Failed => TrialStatus::Failed,
        StatusFilter::Running => TrialStatus::Running,
        StatusFilter::Missing => TrialStatus::Missing,
    }
}

/// Compiles patterns of which one has to match; None if there are none.
fn globs(patterns: &[String]) -> Result<Option<GlobSet>, Failure> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(Glob::new(pattern)?);
    }
    Ok(Some(set.build()?))
}

/// Prints one JSON object per line.
fn print_json<T: Serialize>(lines: &[T]) -> Result<Exit, Failure> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in lines {
        serde_json::to_writer(&mut out, line).map_err(io::Error::from)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(Exit::Success)
}

/// Prints a table whose first row is the heading. Lines are cut at the width of the terminal.
fn print_table(
    columns: &[Align],
    rows: &[Vec<String>],
    paint_line: impl Fn(&[String], &str) -> String,
) -> Result<(), Failure> {
    let width = width();
    let mut out = anstream::stdout().lock();
    for (number, (row, line)) in rows.iter().zip(table(columns, rows)).enumerate() {
        let line = fit(&line, width);
        let line = if number == 0 { paint(BOLD, &line) } else { paint_line(row, &line) };
        writeln!(out, "{line}")?;
    }
    Ok(())
}
