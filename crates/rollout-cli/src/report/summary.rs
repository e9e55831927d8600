//! The summary at the end of a job.

use std::path::Path;

use rollout::{
    config::JobMetric,
    event::JobKind,
    result::{CallTotals, EarlyStop, JobResult, Totals},
    stats::{Figures, PassPoint},
};

use super::{
    board::{Board, shown, unit},
    table::{self, Align},
    text::{BAD, BOLD, DIM, ODD, count, dollars, number, paint, percent, span, wrap},
};

/// How many causes of failures, and of unsolved trials, are shown. One more is shown instead of a line that counts it.
const SHOWN_CAUSES: usize = 4;

/// Printed instead of a figure that cannot be computed.
const NOTHING: &str = "—";

const COLUMNS: [(&str, Align); 11] = [
    ("agent", Align::Left),
    ("dataset", Align::Left),
    ("trials", Align::Right),
    ("completed", Align::Right),
    ("failed", Align::Right),
    ("excluded", Align::Right),
    ("solved", Align::Right),
    ("pass rate", Align::Right),
    ("mean reward", Align::Right),
    ("cost", Align::Right),
    ("time", Align::Right),
];

/// Renders the results, the failures, the paths of the files, and the next commands.
pub(crate) fn summary(result: &JobResult, board: &Board, width: usize) -> String {
    let mut lines = vec![String::new()];
    lines.extend(results(result, width));
    lines.extend(uncertainty(result, width));
    lines.extend(metrics(result, &board.metrics));
    lines.extend(model_calls(&result.totals.model_calls));
    lines.extend(causes(board, width));
    lines.push(String::new());
    lines.push(outcome(result, board));
    lines.extend(stopped(result, board));
    lines.extend(restarts(result));
    lines.extend(incomplete_logs(result));
    lines.extend(pointers(result, board));
    lines.join("\n")
}

/// The columns that give way on a narrow terminal, the first one first.
const EXPENDABLE: [&str; 8] =
    ["completed", "excluded", "time", "solved", "mean reward", "cost", "trials", "dataset"];

fn results(result: &JobResult, width: usize) -> Vec<String> {
    let mut rows = vec![COLUMNS.map(|(name, _)| name.to_owned()).to_vec()];
    for (agent, dataset, totals) in &result.groups {
        rows.push(row(agent.as_str(), dataset.as_str(), totals));
    }
    if result.groups.len() > 1 {
        rows.push(row("all", "", &result.totals));
    }
    let mut columns = COLUMNS.map(|(_, align)| align).to_vec();
    table::narrow(&mut columns, &mut rows, width, &EXPENDABLE);
    let mut lines = table::lines(&columns, &rows);
    lines[0] = paint(BOLD, &lines[0]);
    lines.extend(excluded(result));
    lines
}

fn row(agent: &str, dataset: &str, totals: &Totals) -> Vec<String> {
    let headline = totals.headline();
    let excluded = headline.excluded.failed_by_infrastructure + headline.excluded.failed_by_task;
    let or_nothing = |text: Option<String>| text.unwrap_or_else(|| NOTHING.to_owned());
    vec![
        agent.to_owned(),
        dataset.to_owned(),
        totals.total_trials.to_string(),
        totals.completed_trials.to_string(),
        totals.failed_trials.to_string(),
        excluded.to_string(),
        or_nothing(headline.pass_rate.map(|_| headline.solved_trials.to_string())),
        or_nothing(headline.pass_rate.map(percent)),
        or_nothing(headline.mean_reward.map(number)),
        cost(totals),
        span(totals.trial_seconds),
    ]
}

/// Returns the cost of trials: a dash if it is unknown, and a lower bound if it is known only for some trials.
fn cost(totals: &Totals) -> String {
    let finished = totals.completed_trials + totals.failed_trials;
    match (totals.known_cost_trials, totals.total_cost > 0.0) {
        (known, _) if known > 0 && known >= finished => dollars(totals.total_cost),
        (_, true) => format!("≥{}", dollars(totals.total_cost)),
        (_, false) => NOTHING.to_owned(),
    }
}

/// Renders the calls to models through the gateway, if there were any.
fn model_calls(calls: &CallTotals) -> Option<String> {
    if calls.is_empty() {
        return None;
    }
    let failed = match calls.failed_calls {
        0 => String::new(),
        failed => format!(", {failed} of them failed"),
    };
    Some(format!(
        "\n{}{failed}; {}; {} tokens read ({} from a cache), {} written",
        count(calls.calls, "model call"),
        count(calls.tool_calls, "tool call"),
        calls.input_tokens,
        calls.cached_tokens,
        calls.output_tokens,
    ))
}

/// Explains the column of excluded trials, if there are any.
fn excluded(result: &JobResult) -> Option<String> {
    let excluded = result.totals.headline().excluded;
    let parts = [
        (excluded.failed_by_infrastructure, "infrastructure failure"),
        (excluded.failed_by_task, "task failure"),
    ];
    let parts: Vec<String> =
        parts.iter().filter(|(trials, _)| *trials > 0).map(|(trials, what)| count(*trials, what)).collect();
    let text = format!("excluded from the pass rate: {}", parts.join(", "));
    (!parts.is_empty()).then(|| paint(DIM, &text))
}

/// Explains why the job stopped before all trials ran.
fn stopped(result: &JobResult, board: &Board) -> Option<String> {
    let why = match result.stopped.as_ref()? {
        EarlyStop::Failures { failures, .. } => {
            format!("{} in a row failed with the same cause", count(*failures, unit(board.kind)))
        }
        EarlyStop::Budget { budget_usd, spent_usd } => {
            let (spent, budget) = (dollars(*spent_usd), dollars(*budget_usd));
            format!("{spent} of the budget of {budget} is spent, and another trial would exceed it")
        }
    };
    let left = count(result.totals.skipped_trials, unit(board.kind));
    let were = if result.totals.skipped_trials == 1 { "was" } else { "were" };
    Some(format!("{} {why}, so {left} {were} not run", paint(BAD, "stopped:")))
}

/// Reports how many trials started their agent more than once.
fn restarts(result: &JobResult) -> Option<String> {
    let trials = result.totals.restarted_trials;
    (trials > 0).then(|| {
        let trials = count(trials, "trial");
        let text = "started the agent more than once, because an earlier try failed";
        format!("{} {trials} {text}; see `agent_starts` in result.json", paint(ODD, "restarted:"))
    })
}

/// Reports how many trials have logs that were cut or left out.
fn incomplete_logs(result: &JobResult) -> Option<String> {
    let trials = result.totals.incomplete_log_trials;
    (trials > 0).then(|| {
        let have = if trials == 1 { "has" } else { "have" };
        let trials = count(trials, "trial");
        let text = "logs that were cut or left out; see `notes` in result.json";
        format!("{} {trials} {have} {text}", paint(ODD, "logs:"))
    })
}

/// Renders confidence intervals, times and costs. Columns without any value are omitted.
fn uncertainty(result: &JobResult, width: usize) -> Vec<String> {
    let figures: Vec<_> = result
        .groups
        .iter()
        .filter_map(|(agent, dataset, _)| {
            let agent_statistics = result.statistics.agents.get(agent.as_str())?;
            Some((agent, dataset, agent_statistics.datasets.get(dataset.as_str())?))
        })
        .collect();
    let scored = |figures: &Figures| figures.headline.trials > 0;
    if !figures.iter().any(|(_, _, figures)| scored(figures)) {
        return Vec::new();
    }
    let mut table: Vec<Vec<String>> =
        figures.iter().map(|(agent, dataset, _)| vec![agent.to_string(), dataset.to_string()]).collect();
    let mut heading = vec!["agent".to_owned(), "dataset".to_owned()];
    for (name, cell) in UNCERTAINTY {
        let cells: Vec<_> = figures.iter().map(|(_, _, figures)| cell(figures)).collect();
        if cells.iter().any(Option::is_some) {
            heading.push(name.to_owned());
            for (row, cell) in table.iter_mut().zip(cells) {
                row.push(cell.unwrap_or_else(|| NOTHING.to_owned()));
            }
        }
    }
    let mut columns = vec![Align::Left; 2];
    columns.resize(heading.len(), Align::Right);
    table.insert(0, heading);
    let expendable = ["cost p90", "cost p50", "time p90", "time p50", "k", "pass^k", "dataset"];
    table::narrow(&mut columns, &mut table, width, &expendable);
    let lines = table::lines(&columns, &table);
    std::iter::once(String::new()).chain(lines.iter().map(|line| paint(DIM, line))).collect()
}

/// Returns the value of a cell, if there is one.
type Cell = fn(&Figures) -> Option<String>;

/// The columns of the second table.
const UNCERTAINTY: [(&str, Cell); 9] = [
    ("pass rate, 95%", |figures| {
        let interval = figures.headline.pass_rate?.interval;
        Some(format!("{:.1}–{}", interval.low * 100.0, percent(interval.high)))
    }),
    ("mean reward ± se", |figures| {
        let mean = figures.headline.mean_reward?;
        Some(format!("{} ± {}", number(mean.mean), number(mean.clustered?.standard_error)))
    }),
    ("k", |figures| Some(most_tries(figures)?.k.to_string())),
    ("pass@k", |figures| Some(percent(most_tries(figures)?.at_k))),
    ("pass^k", |figures| Some(percent(most_tries(figures)?.all_k))),
    ("time p50", |figures| Some(span(figures.duration_sec?.p50))),
    ("time p90", |figures| Some(span(figures.duration_sec?.p90))),
    ("cost p50", |figures| Some(dollars(figures.cost_usd?.p50))),
    ("cost p90", |figures| Some(dollars(figures.cost_usd?.p90))),
];

/// Returns pass@k and pass^k for the largest k above 1 that all tasks have attempts for.
fn most_tries(figures: &Figures) -> Option<PassPoint> {
    let points = &figures.headline.pass_k;
    let all = points.first()?.tasks;
    points.iter().rev().find(|point| point.tasks == all && point.k > 1).copied()
}

/// Renders the job's metrics by agent. A single mean is omitted, because the first table shows it.
fn metrics(result: &JobResult, metrics: &[JobMetric]) -> Vec<String> {
    if metrics.is_empty() || metrics == [JobMetric::Mean] {
        return Vec::new();
    }
    let mut rows = vec![vec!["metrics".to_owned()]];
    rows[0].extend(metrics.iter().map(|metric| metric.as_str().to_owned()));
    for (agent, totals) in &result.agents {
        let value = |metric: &JobMetric| totals.metric(*metric).map_or(NOTHING.to_owned(), number);
        rows.push([agent.to_string()].into_iter().chain(metrics.iter().map(value)).collect());
    }
    let mut columns = vec![Align::Left];
    columns.resize(metrics.len() + 1, Align::Right);
    let mut lines = table::lines(&columns, &rows);
    lines[0] = paint(BOLD, &lines[0]);
    lines.insert(0, String::new());
    lines
}

/// Names failed and unsolved trials by their most frequent causes, each with the command that shows the first of them.
fn causes(board: &Board, width: usize) -> Vec<String> {
    let kinds = [
        (paint(BAD, "failed"), &board.failed_causes, "failed"),
        (paint(ODD, "unsolved"), &board.unsolved_causes, "unsolved"),
    ];
    let mut lines = Vec::new();
    for (title, causes, status) in kinds {
        let mut shown = causes.most_frequent();
        let is_short = shown.len() == SHOWN_CAUSES + 1 && causes.others() == 0;
        let rest = shown.split_off(if is_short { shown.len() } else { SHOWN_CAUSES.min(shown.len()) });
        let more = rest.iter().map(|(_, group)| group.trials.len() as u64).sum::<u64>() + causes.others();
        if shown.is_empty() {
            continue;
        }
        lines.extend([String::new(), title]);
        for (_, group) in shown {
            let trials = count(group.trials.len() as u64, unit(board.kind));
            let text = wrap(&format!("{trials}: {}", group.cause), width.saturating_sub(4));
            let indents = std::iter::once("  ").chain(std::iter::repeat("    "));
            lines.extend(indents.zip(text).map(|(indent, line)| format!("{indent}{line}")));
            lines.extend(command(board, |dir| {
                format!("rollout show {}", quoted(&dir.join(group.first.to_string())))
            }));
        }
        if more > 0 {
            lines.push(format!("  {} with other causes", count(more, unit(board.kind))));
            lines.extend(command(board, |dir| format!("rollout list {} --status {status}", quoted(dir))));
        }
    }
    lines
}

/// A command about the job; None if nothing is saved.
fn command(board: &Board, text: impl FnOnce(&Path) -> String) -> Option<String> {
    let is_saved = !board.directory.as_os_str().is_empty();
    is_saved.then(|| paint(DIM, &format!("    {}", text(&shown(&board.directory)))))
}

fn outcome(result: &JobResult, board: &Board) -> String {
    let totals = &result.totals;
    let mut text = format!(
        "{} in {}: {} completed, {} failed",
        count(totals.total_trials, unit(board.kind)),
        span(result.total_duration_sec),
        totals.completed_trials,
        totals.failed_trials,
    );
    if totals.skipped_trials > 0 {
        text.push_str(&format!(", {} skipped", totals.skipped_trials));
    }
    if result.cancelled {
        text = format!("{} {text}", paint(ODD, "cancelled."));
    }
    text
}

fn pointers(result: &JobResult, board: &Board) -> Vec<String> {
    let directory = shown(&board.directory);
    let mut pointers = Vec::new();
    if board.kind == JobKind::Job {
        pointers.push(("results", directory.join("result.json").display().to_string()));
    }
    if let Some(kept) = &board.preserved {
        pointers.push(("inspect", format!("rollout attach {}", quoted(&board.trial_dir(&kept.trial)))));
        if let Some(container) = &kept.container {
            pointers.push(("", format!("docker exec -it {container} bash")));
        }
    }
    if board.directory.as_os_str().is_empty() {
        return columns(&pointers);
    }
    let directory = quoted(&directory);
    match &result.stopped {
        Some(EarlyStop::Failures { .. }) => pointers.push((
            "continue",
            format!("fix the cause, then run `rollout resume {directory} --rerun error`"),
        )),
        Some(EarlyStop::Budget { .. }) => {
            pointers.push(("continue", format!("rollout resume {directory} --budget USD")));
        }
        None if result.cancelled => {
            pointers.push(("continue", format!("rollout resume {directory}")));
        }
        None if result.totals.failed_trials > 0 && board.kind == JobKind::Job => {
            pointers.push(("rerun", format!("rollout resume {directory} --rerun error")));
        }
        None => {}
    }
    columns(&pointers)
}

/// Renders lines of a label and a text, with aligned texts.
pub(crate) fn columns(lines: &[(&str, String)]) -> Vec<String> {
    let width = lines.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    lines.iter().map(|(what, text)| format!("{}  {text}", paint(DIM, &format!("{what:<width$}")))).collect()
}

/// Quotes a path for a shell.
pub(crate) fn quoted(path: &Path) -> String {
    rollout::text::shell_quoted(&path.display().to_string())
}
