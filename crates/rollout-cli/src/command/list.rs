//! `rollout list`: the jobs of a directory, or the trials of a job.

use std::{
    cmp::Ordering,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use globset::{Glob, GlobSet, GlobSetBuilder};
use jiff::Timestamp;
use rollout::{
    name::TrialId,
    record::{
        layout::JobDir,
        moment,
        notes::{JobNotes, NoteTag, NotesError, TagExclusion, TrialNotes},
        saved::{SavedJob, TrialStatus},
    },
    result::{ErrorType, Totals, TrialSummary},
};
use serde::Serialize;

use super::note::notes_or_warning;
use crate::{
    args::{List, SortBy, StatusFilter},
    exit::{Exit, Failure, hinted},
    report::{
        Align, narrow, quoted, table,
        text::{
            BAD, BOLD, DIM, GOOD, ODD, count, dollars, first_line, fit, fit_end, number, paint, percent, span,
        },
        width,
    },
};

/// The minimum width of the name of a trial.
const MIN_NAME: usize = 20;

/// The width that is left for the error beside the name of a trial.
const MIN_ERROR: usize = 5;

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
        let job = SavedJob::open(directory)?;
        let exclusion = TagExclusion::read(&JobDir::new(directory), excluded_tags);
        let exclusion = exclusion.map_err(hinted(NotesError::hint))?;
        let mut excluded = 0;
        let mut totals = Totals::default();
        for trial in job.trials()? {
            let trial = trial?;
            match exclusion.excludes(&trial.id) {
                true => excluded += 1,
                false => totals.add(TrialSummary::from(&trial.result)),
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
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(lines.iter().map(JobLine::cells));
    use Align::{Left, Right};
    let mut columns = vec![Left, Left, Left, Right, Right, Right, Right, Left];
    narrow(&mut columns, &mut rows, width(), &["started", "cost", "failed", "agents and datasets"]);
    print_table(&columns, &rows, |row, line| match status_cell(row) {
        "running" => paint(GOOD, line),
        "cancelled" | "incomplete" => paint(ODD, line),
        _ => line.to_owned(),
    })?;
    let example = quoted(&lines[0].directory);
    let mut text = format!("\n{}; `rollout list {example}` lists trials", count(lines.len() as u64, "job"));
    let excluded: u64 = lines.iter().filter_map(|line| line.excluded_by_tag).sum();
    text.extend(excluded_note(&args.exclude_tag, excluded).map(|note| format!("\n{note}")));
    super::print(&paint(DIM, &text))?;
    Ok(Exit::Success)
}

/// The status in a row of jobs, wherever it is.
fn status_cell(row: &[String]) -> &str {
    let statuses = ["running", "cancelled", "incomplete", "finished"];
    row.iter().skip(1).map(String::as_str).find(|cell| statuses.contains(cell)).unwrap_or_default()
}

/// Says which trials are left out; None if no tag is excluded.
fn excluded_note(tags: &[NoteTag], trials: u64) -> Option<String> {
    let names: Vec<&str> = tags.iter().map(NoteTag::as_str).collect();
    (!tags.is_empty()).then(|| format!("{} left out by tag: {}", count(trials, "trial"), names.join(", ")))
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
    tags: Vec<NoteTag>,
    comments: u64,
}

impl TrialLine {
    fn new(id: &TrialId, status: TrialStatus, notes: Option<&TrialNotes>) -> Self {
        Self {
            tags: notes.iter().flat_map(|notes| &notes.tags).cloned().collect(),
            comments: notes.map_or(0, |notes| notes.comments.len() as u64),
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

    fn cells(&self) -> Vec<String> {
        let error = self.error.map(|kind| {
            let message = first_line(self.message.as_deref().unwrap_or_default());
            if message.is_empty() { kind.to_string() } else { format!("{kind}: {message}") }
        });
        let tags: Vec<&str> = self.tags.iter().map(NoteTag::as_str).collect();
        vec![
            self.status.as_str().to_owned(),
            self.trial.clone(),
            or_nothing(self.reward.map(number)),
            or_nothing(self.seconds.map(span)),
            or_nothing(self.cost.map(dollars)),
            tags.join(" "),
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
    let notes = match args.tag.is_empty() && args.exclude_tag.is_empty() {
        true => notes_or_warning(&job),
        false => JobNotes::read(&JobDir::new(job.path())).map_err(hinted(NotesError::hint))?,
    };
    let exclusion = TagExclusion::new(&args.exclude_tag, notes.clone());
    let mut excluded = 0;
    let mut wanted = |id: &TrialId, status: TrialStatus| {
        let has_tag = args.tag.is_empty() || notes.tags(id).any(|tag| args.tag.contains(tag));
        let is_wanted = wanted(id, status) && has_tag;
        let is_excluded = is_wanted && exclusion.excludes(id);
        excluded += u64::from(is_excluded);
        is_wanted && !is_excluded
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
                    ..TrialLine::new(&trial.id, status, notes.of(&trial.id))
                },
            ));
        }
    }
    for (index, id, status) in job.unfinished() {
        if wanted(&id, status) {
            lines.push((index.0, TrialLine::new(&id, status, notes.of(&id))));
        }
    }
    lines.sort_by(|(a_index, a), (b_index, b)| order(args.sort, a, b).then(a_index.cmp(b_index)));
    let lines: Vec<TrialLine> = lines.into_iter().map(|(_, line)| line).collect();
    if args.json {
        return print_json(&lines);
    }
    if !lines.is_empty() {
        let heading = ["status", "trial", "reward", "time", "cost", "tags", "error"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(lines.iter().map(TrialLine::cells));
        use Align::{Left, Right};
        let mut columns = vec![Left, Left, Right, Right, Right, Left, Left];
        if lines.iter().all(|line| line.tags.is_empty()) {
            columns.remove(5);
            rows.iter_mut().for_each(|row| drop(row.remove(5)));
        }
        fit_names(&mut rows, width());
        print_table(&columns, &rows, |row, line| {
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
    if let Some(note) = excluded_note(&args.exclude_tag, excluded) {
        super::print(&paint(DIM, &note))?;
    }
    Ok(Exit::Success)
}

/// Cuts the names of trials at their start, so that the other columns and the start of the error fit.
fn fit_names(rows: &mut [Vec<String>], width: usize) {
    let columns = rows.first().map_or(0, Vec::len);
    let widest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let others = (0..columns).filter(|column| *column != 1).map(|column| match column + 1 == columns {
        true => widest(column).min(MIN_ERROR),
        false => widest(column) + 2,
    });
    let width = width.saturating_sub(others.sum::<usize>() + 2).max(MIN_NAME);
    rows.iter_mut().for_each(|row| row[1] = fit_end(&row[1], width));
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
