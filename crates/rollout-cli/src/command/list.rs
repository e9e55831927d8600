//! `rollout list`: the jobs of a directory, or the trials of a job.

use std::{
    borrow::Cow,
    cmp::Ordering,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use globset::{Glob, GlobSet, GlobSetBuilder};
use jiff::Timestamp;
use rollout::{
    name::TrialIndex,
    record::{
        causes::TrialCause,
        journal::PlannedTask,
        layout::JobDir,
        moment,
        notes::{JobNotes, NoteTag, NotesError, TagExclusion},
        saved::{SavedJob, TrialStatus},
    },
    result::{ErrorType, Totals},
};
use serde::Serialize;

use super::note::notes_or_warning;
use crate::{
    args::{List, SortBy, StatusFilter},
    exit::{Exit, Failure, hinted},
    report::{
        Align, Row, Table, fits, narrow, quoted,
        text::{BAD, BOLD, DIM, GOOD, ODD, count, dollars, fit, number, paint, percent, span},
        width,
    },
};

/// The minimum width of the name of a trial.
const MIN_NAME: usize = 20;

/// The width that is left for the evidence beside the name of a trial.
const MIN_EVIDENCE: usize = 8;

/// The most trials of a list for which files are read. A longer list has only the evidence of errors.
const MAX_READ: usize = 500;

/// How much of a table is written at a time.
const OUTPUT_BYTES: usize = 1 << 16;

/// The date of a job in UTC, and its form on a narrow terminal.
const DATE: &str = "%Y-%m-%dT%H:%MZ";
const SHORT_DATE: &str = "%m-%d %H:%M";

/// What is shown for an unknown value.
const NOTHING: &str = "—";

/// Lists jobs or trials.
pub(crate) fn run(args: &List) -> Result<Exit, Failure> {
    let dir = &args.directory;
    if JobDir::new(dir).journal().is_file() {
        return trials(args);
    }
    let selects_status = !args.status.is_empty() || !args.tag.is_empty();
    if !args.agent.is_empty() || !args.task.is_empty() || selects_status || args.sort != SortBy::Plan {
        let failure = Failure::from(format!("{} is not a job directory", dir.display()));
        return Err(
            failure.hint(Some("--agent, --task, --status, --tag and --sort select trials of one job"))
        );
    }
    jobs(dir, args)
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
    #[serde(skip_serializing_if = "Option::is_none")]
    excluded_by_tag: Option<u64>,
}

impl JobLine {
    fn read(directory: &Path, excluded_tags: &[NoteTag]) -> Result<Self, Failure> {
        let (job, trials) = SavedJob::open_with(directory, |outline| outline.summary())?;
        let exclusion = TagExclusion::read(&JobDir::new(directory), excluded_tags);
        let exclusion = exclusion.map_err(hinted(NotesError::hint))?;
        let mut excluded = 0;
        let mut totals = Totals::default();
        for (index, summary) in trials {
            let is_excluded = || job.id(index).is_some_and(|id| exclusion.excludes(&id));
            match !excluded_tags.is_empty() && is_excluded() {
                true => excluded += 1,
                false => totals.add(summary),
            }
        }
        let headline = totals.headline();
        let (planned, finished) = (job.planned(), job.len() as u64);
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
            status: job.status_name(),
            planned_trials: planned,
            finished_trials: finished,
            failed_trials: totals.failed_trials,
            pass_rate: headline.pass_rate,
            mean_reward: headline.mean_reward,
            cost: (totals.known_cost_trials > 0).then_some(totals.total_cost),
            agents: job.header().agents.clone(),
            datasets,
            excluded_by_tag: (!excluded_tags.is_empty()).then_some(excluded),
        })
    }

    /// The cells of the table, with the date in this form.
    fn cells(&self, date: &str) -> Vec<String> {
        let name =
            self.directory.file_name().map_or(self.job.clone(), |name| name.to_string_lossy().into_owned());
        let started = self.started_at.map(|at| at.strftime(date).to_string());
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

fn jobs(dir: &Path, args: &List) -> Result<Exit, Failure> {
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
        match JobLine::read(&path, &args.exclude_tag) {
            Ok(line) => lines.push(line),
            // One damaged job must not hide the others.
            Err(failure) => {
                failure.report();
            }
        }
    }
    lines.sort_by(|a, b| b.started_at.cmp(&a.started_at).then_with(|| a.directory.cmp(&b.directory)));
    if args.json {
        return print_json(&lines);
    }
    if lines.is_empty() {
        super::print(&format!("no jobs in {}", dir.display()))?;
        return Ok(Exit::Success);
    }
    let heading = ["job", "started", "status", "done", "failed", "pass rate", "cost", "agents and datasets"];
    let table = |date| {
        let heading = std::iter::once(heading.map(str::to_owned).to_vec());
        heading.chain(lines.iter().map(|line| line.cells(date))).collect::<Vec<_>>()
    };
    let mut rows = table(DATE);
    if !fits(&rows, width()) {
        rows = table(SHORT_DATE);
    }
    use Align::{Left, Right};
    let mut columns = vec![Left, Left, Left, Right, Right, Right, Right, Left];
    narrow(&mut columns, &mut rows, width(), &["failed", "agents and datasets", "started", "cost"]);
    let mut table = Table::new(columns);
    rows.iter().for_each(|row| table.push(row.iter().map(String::as_str)));
    print_table(&table, |row, line| match status_cell(row) {
        "running" => paint(GOOD, &line),
        "cancelled" | "incomplete" => paint(ODD, &line),
        _ => line,
    })?;
    let example = quoted(&lines[0].directory);
    let mut text = format!("\n{}; `rollout list {example}` lists trials", count(lines.len() as u64, "job"));
    let excluded: u64 = lines.iter().filter_map(|line| line.excluded_by_tag).sum();
    text.extend(excluded_note(&args.exclude_tag, excluded).map(|note| format!("\n{note}")));
    super::print(&paint(DIM, &text))?;
    Ok(Exit::Success)
}

/// The status in a row of jobs, wherever it is.
fn status_cell(row: Row<'_>) -> &str {
    let statuses = ["running", "cancelled", "incomplete", "finished"];
    row.cells().skip(1).find(|cell| statuses.contains(cell)).unwrap_or_default()
}

/// Says which trials are left out; None if no tag is excluded.
fn excluded_note(tags: &[NoteTag], trials: u64) -> Option<String> {
    let names: Vec<&str> = tags.iter().map(NoteTag::as_str).collect();
    (!tags.is_empty()).then(|| format!("{} left out by tag: {}", count(trials, "trial"), names.join(", ")))
}

/// A line of the list of trials.
#[derive(Debug, Serialize)]
struct TrialLine<'j> {
    trial: String,
    agent: &'j str,
    dataset: &'j str,
    task: &'j str,
    attempt: u32,
    status: TrialStatus,
    reward: Option<f64>,
    seconds: Option<f64>,
    cost: Option<f64>,
    error: Option<ErrorType>,
    message: Option<String>,
    tags: Vec<&'j NoteTag>,
    comments: u64,
}

impl<'j> TrialLine<'j> {
    /// A line without a result. None if the trial is not in the plan.
    fn new(job: &'j SavedJob, index: TrialIndex, status: TrialStatus, notes: &'j JobNotes) -> Option<Self> {
        let (agent, task, attempt) = job.parts(index)?;
        let (agent, PlannedTask { dataset, name, .. }) =
            (&job.header().agents[agent], &job.header().tasks[task]);
        let trial = format!("{agent}/{dataset}/{name}__{attempt}");
        let notes = notes.of_name(&trial);
        Some(Self {
            tags: notes.iter().flat_map(|notes| &notes.tags).collect(),
            comments: notes.map_or(0, |notes| notes.comments.len() as u64),
            trial,
            agent,
            dataset,
            task: name,
            attempt,
            status,
            reward: None,
            seconds: None,
            cost: None,
            error: None,
            message: None,
        })
    }

    /// The cells of the table. With a job, the evidence of an unsolved trial is read from its files.
    fn cells(&self, job: Option<&SavedJob>) -> [Cow<'_, str>; COLUMNS.len()] {
        let message = self.message.as_deref().unwrap_or_default();
        let evidence = match (self.error, job) {
            (Some(kind), _) if message.is_empty() => kind.to_string(),
            (Some(kind), _) => format!("{kind}: {message}"),
            (None, Some(job)) if self.status == TrialStatus::Unsolved => {
                self.evidence(job).unwrap_or_default()
            }
            (None, _) => String::new(),
        };
        let tags: Vec<&str> = self.tags.iter().map(|tag| tag.as_str()).collect();
        let or_nothing = |text: Option<String>| text.map_or(Cow::Borrowed(NOTHING), Cow::Owned);
        [
            self.status.as_str().into(),
            self.trial.as_str().into(),
            or_nothing(self.reward.map(number)),
            or_nothing(self.seconds.map(span)),
            or_nothing(self.cost.map(dollars)),
            tags.join(" ").into(),
            evidence.into(),
        ]
    }

    /// What the tests printed last, or what a rollout ended with.
    fn evidence(&self, job: &SavedJob) -> Option<String> {
        let trial = job.trial(job.index(self.agent, self.dataset, self.task, self.attempt)?).ok()??;
        Some(job.evidence(&trial)?.text)
    }
}

/// What a line has of the result of a trial.
struct FinishedTrial {
    status: TrialStatus,
    reward: Option<f64>,
    seconds: f64,
    cost: Option<f64>,
    error: Option<ErrorType>,
    message: Option<String>,
}

/// Which trials are listed.
struct Wanted<'a> {
    args: &'a List,
    agents: Option<GlobSet>,
    tasks: Option<GlobSet>,
    statuses: Vec<TrialStatus>,
    /// How many were left out by their tags.
    excluded: u64,
}

impl<'a> Wanted<'a> {
    fn new(args: &'a List) -> Result<Self, Failure> {
        Ok(Self {
            args,
            agents: globs(&args.agent)?,
            tasks: globs(&args.task)?,
            statuses: args.status.iter().map(|filter| status_of(*filter)).collect(),
            excluded: 0,
        })
    }

    /// Whether a trial is listed. It is counted if its tags exclude it.
    fn contains(&mut self, line: &TrialLine<'_>) -> bool {
        let has_tag = |tags: &[NoteTag]| line.tags.iter().any(|tag| tags.contains(tag));
        let is_wanted = self.agents.as_ref().is_none_or(|globs| globs.is_match(line.agent))
            && self.tasks.as_ref().is_none_or(|globs| globs.is_match(line.task))
            && (self.statuses.is_empty() || self.statuses.contains(&line.status))
            && (self.args.tag.is_empty() || has_tag(&self.args.tag));
        let is_excluded = is_wanted && has_tag(&self.args.exclude_tag);
        self.excluded += u64::from(is_excluded);
        is_wanted && !is_excluded
    }
}

fn trials(args: &List) -> Result<Exit, Failure> {
    let (job, finished) = SavedJob::open_with(&args.directory, |outline| {
        // Messages can be long, and a table has only one line of each.
        let message = outline.error.as_ref().map(|error| match args.json {
            true => error.message.clone().into_owned(),
            false => TrialCause::of_error(error.kind, &error.message).text,
        });
        let summary = outline.summary();
        let status = TrialStatus::of_summary(&summary);
        FinishedTrial {
            status,
            reward: summary.reward,
            seconds: summary.seconds,
            cost: summary.known_cost(),
            error: summary.error,
            message,
        }
    })?;
    let mut wanted = Wanted::new(args)?;
    let notes = match args.tag.is_empty() && args.exclude_tag.is_empty() {
        true => notes_or_warning(&job),
        false => JobNotes::read(&JobDir::new(job.path())).map_err(hinted(NotesError::hint))?,
    };
    let finished = finished.into_iter().filter_map(|(index, trial)| {
        let FinishedTrial { status, reward, seconds, cost, error, message } = trial;
        let line = TrialLine::new(&job, index, status, &notes)?;
        Some((index, TrialLine { reward, seconds: Some(seconds), cost, error, message, ..line }))
    });
    let unfinished = job
        .unfinished()
        .filter_map(|(index, _, status)| Some((index, TrialLine::new(&job, index, status, &notes)?)));
    let mut lines: Vec<_> = finished.chain(unfinished).filter(|(_, line)| wanted.contains(line)).collect();
    lines.sort_by(|(a_index, a), (b_index, b)| order(args.sort, a, b).then(a_index.cmp(b_index)));
    let lines: Vec<TrialLine<'_>> = lines.into_iter().map(|(_, line)| line).collect();
    if args.json {
        return print_json(&lines);
    }
    if !lines.is_empty() {
        print_table(&trial_table(&job, &lines, width()), |row, line| {
            let status = row.cells().next().unwrap_or_default();
            let style = match status {
                "solved" => GOOD,
                "failed" => BAD,
                "running" | "missing" => ODD,
                _ => return line,
            };
            match line.strip_prefix(status) {
                Some(rest) => format!("{}{rest}", paint(style, status)),
                None => line,
            }
        })?;
        super::print("")?;
    }
    super::print(&footer(&job, &lines))?;
    if let Some(note) = excluded_note(&args.exclude_tag, wanted.excluded) {
        super::print(&paint(DIM, &note))?;
    }
    Ok(Exit::Success)
}

/// The columns of the table of trials.
const COLUMNS: [(&str, Align); 7] = [
    ("status", Align::Left),
    ("trial", Align::Left),
    ("reward", Align::Right),
    ("time", Align::Right),
    ("cost", Align::Right),
    ("tags", Align::Left),
    ("evidence", Align::Left),
];
const TRIAL: usize = 1;
const TIME: usize = 3;
const COST: usize = 4;
const TAGS: usize = 5;
const EVIDENCE: usize = 6;

/// The table of trials. On a narrow terminal, names are cut at the start, so that the start of the evidence fits. If that
/// is not enough, times and costs are left out.
fn trial_table(job: &SavedJob, lines: &[TrialLine<'_>], width: usize) -> Table {
    let mut table = Table::new(COLUMNS.map(|(_, align)| align));
    table.push(COLUMNS.map(|(name, _)| name));
    for line in lines {
        let cells = line.cells((lines.len() <= MAX_READ).then_some(job));
        table.push(cells.iter().map(|cell| &**cell));
    }
    if lines.iter().all(|line| line.tags.is_empty()) {
        table.hide(TAGS);
    }
    let room = |table: &Table| {
        let evidence = table.width(EVIDENCE);
        let others = table.line_width() - table.width(TRIAL) - evidence;
        width.saturating_sub(others + evidence.min(MIN_EVIDENCE))
    };
    for column in [COST, TIME] {
        if room(&table) < table.width(TRIAL).min(MIN_NAME) {
            table.hide(column);
        }
    }
    let name = room(&table).max(MIN_NAME);
    table.cut(TRIAL, name);
    table
}

/// Counts the listed trials by status, and names the next command.
fn footer(job: &SavedJob, lines: &[TrialLine<'_>]) -> String {
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

fn order(sort: SortBy, a: &TrialLine<'_>, b: &TrialLine<'_>) -> Ordering {
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
fn print_table(table: &Table, paint_line: impl Fn(Row<'_>, String) -> String) -> Result<(), Failure> {
    let width = width();
    // A table can have 100,000 lines. They are painted only if it is seen, and written many at once.
    let has_colors = anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
    let mut out = io::BufWriter::with_capacity(OUTPUT_BYTES, io::stdout().lock());
    for (number, row) in table.rows().enumerate() {
        let line = fit(&row.line(), width);
        let line = match number {
            _ if !has_colors => line,
            0 => paint(BOLD, &line),
            _ => paint_line(row, line),
        };
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}
