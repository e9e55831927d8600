//! One line of text for one event.

use std::path::Path;

use rollout::{
    benchmark::RolloutSummary,
    event::{Event, JobKind},
    name::TrialIndex,
    record::causes::TrialCause,
    result::{Standing, TrialError, TrialResult},
};

use super::{
    board::{Board, shown, trial_of, unit},
    summary::{columns, quoted},
    text::{BAD, BOLD, DIM, GOOD, ODD, count, first_line, number, paint, span},
};

/// The maximum length of an error message on a line.
const MESSAGE_CHARS: usize = 400;

/// Whether each finished trial gets a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// A line for each finished trial.
    Every,
    /// A line only for failures, because a live display shows the rest.
    Trouble,
}

/// Returns the line for an event, given the state before it, or None if the event has no line.
pub(crate) fn line(event: &Event, before: &Board, detail: Detail) -> Option<String> {
    match event {
        Event::JobStarted {
            job,
            kind,
            directory,
            provider,
            total_trials,
            resumed_trials,
            concurrency,
            ..
        } => {
            let trials = count(*total_trials, unit(*kind));
            let earlier = match resumed_trials {
                0 => String::new(),
                earlier => format!(" ({earlier} finished earlier)"),
            };
            // Model rollouts without containers have no provider.
            let place = if provider == "none" { String::new() } else { format!(", on {provider}") };
            let kept = match directory.as_os_str().is_empty() {
                true => "results are not saved".to_owned(),
                false => format!("results in {}", shown(directory).display()),
            };
            Some(format!(
                "{}: {trials}{earlier}, {concurrency} at a time{place}\n{}",
                paint(BOLD, job),
                paint(DIM, &kept),
            ))
        }
        Event::Warning { message } => Some(format!("{} {}", paint(ODD, "warning:"), clean(message))),
        Event::TrialRetried { index, failed_try, error, delay_ms } => Some(format!(
            "{} {}  try {failed_try} failed, next in {}: {}",
            paint(ODD, "↻"),
            name(*index, before),
            span(*delay_ms as f64 / 1000.0),
            TrialCause::of_error(error.kind, &error.message),
        )),
        Event::TrialFinished { result, .. } => {
            // Failures with the same cause are reported once.
            let cause = |error: &TrialError| TrialCause::of_error(error.kind, &error.message);
            let is_new = |error| !before.failed_causes.contains(&cause(error));
            let trouble = result.standing() == Standing::Failed && result.error.as_ref().is_some_and(is_new);
            (trouble || detail == Detail::Every).then(|| finished(result, before))
        }
        Event::TrialSkipped { index } => (detail == Detail::Every)
            .then(|| format!("{} {}  skipped", paint(DIM, "–"), name(*index, before))),
        Event::Cancelling => Some(format!(
            "{} cleaning up running {}s; press Ctrl-C again to stop immediately",
            paint(ODD, "stopping:"),
            unit(before.kind),
        )),
        Event::TrialStarted { .. }
        | Event::PhaseStarted { .. }
        | Event::TrialWaiting { .. }
        | Event::ModelUsed { .. }
        | Event::JobFinished { .. } => None,
        Event::BenchmarkFinished { summary } => Some(benchmark(summary)),
    }
}

/// Renders the summary of a benchmark.
fn benchmark(summary: &RolloutSummary) -> String {
    let RolloutSummary { total_tasks, successful_tasks, failed_tasks, .. } = summary;
    let answered = format!("{total_tasks}: {successful_tasks} answered, {failed_tasks} failed");
    let mut lines = vec![("benchmark", summary.benchmark_name.clone()), ("questions", answered)];
    if let (Some(metric), Some(score)) = (&summary.metric, summary.average_score) {
        lines.push((
            "score",
            match summary.evaluated_tasks {
                0 => "—, no answer was evaluated".to_owned(),
                _ => format!("{} on average, by {metric}", number(score)),
            },
        ));
    }
    let files = [
        ("results", &summary.results_file),
        ("evaluation", &summary.evaluation_file),
        ("summary", &summary.summary_file),
    ];
    let written = files.into_iter().filter_map(|(what, file)| Some((what, file.as_deref()?)));
    lines.extend(written.map(|(what, file)| (what, shown(file).display().to_string())));
    let dir = summary.results_file.as_deref().and_then(Path::parent).map(|dir| quoted(&shown(dir)));
    if summary.judge_failures > 0 {
        let answers = count(summary.judge_failures, "answer");
        let again =
            dir.as_ref().map(|dir| format!("; `rollout score {dir} --config FILE` judges them again"));
        lines.push(("judge", format!("failed for {answers}, scored as 0{}", again.unwrap_or_default())));
    }
    if let (Some(dir), 1..) = (&dir, summary.failed_tasks) {
        lines.push(("rerun", format!("rollout resume {dir} --rerun error")));
    }
    columns(&lines).join("\n")
}

fn finished(result: &TrialResult, before: &Board) -> String {
    let place = format!("[{}/{}]", before.finished() + 1, before.total);
    let trial = before.name(&trial_of(result));
    let time = span(result.durations.total_sec);
    let outcome = match (result.standing(), result.reward, &result.error) {
        (Standing::Failed, _, Some(error)) => {
            let why = TrialCause::of_error(error.kind, &error.message);
            let why = match before.failed_causes.contains(&why) {
                true => format!("{} (same cause)", error.kind),
                false => why.to_string(),
            };
            return format!("{place} {} {trial}  {why}  {}", paint(BAD, "✗"), paint(DIM, &time));
        }
        (_, Some(reward), error) => {
            let aside = error.as_ref().map(|error| format!(" ({})", error.kind)).unwrap_or_default();
            match before.kind {
                JobKind::Job => format!("reward {}{aside}", number(reward)),
                JobKind::Benchmark => {
                    let mut totals = before.agents.get(&result.agent_name).cloned().unwrap_or_default();
                    totals.add(result.into());
                    format!("score {}, {} on average{aside}", number(reward), number(totals.mean_reward()))
                }
            }
        }
        (_, None, Some(error)) => format!("no reward ({})", error.kind),
        (_, None, None) if before.kind == JobKind::Benchmark => "answered".to_owned(),
        (_, None, None) => "no reward".to_owned(),
    };
    let mark = match result.is_solved() {
        Some(false) => paint(ODD, "○"),
        _ => paint(GOOD, "✓"),
    };
    format!("{place} {mark} {trial}  {outcome}  {}", paint(DIM, &time))
}

fn name(index: TrialIndex, board: &Board) -> String {
    match board.running.get(&index) {
        Some(running) => board.name(&running.trial),
        None => format!("{} {}", unit(board.kind), index.0),
    }
}

fn clean(message: &str) -> String {
    super::text::fit(&first_line(message), MESSAGE_CHARS)
}
