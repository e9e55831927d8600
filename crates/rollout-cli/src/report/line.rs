//! One line of text for one event.

use rollout::{
    event::{Event, TrialIndex},
    result::{Standing, TrialError, TrialResult},
};

use super::{
    board::{Board, shown, trial_of},
    text::{BAD, BOLD, DIM, GOOD, ODD, count, first_line, number, paint, span},
};

/// How much of an error's message a line holds.
const MESSAGE_CHARS: usize = 400;

/// Whether each finished trial gets a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// A line per finished trial: nothing else shows how far the job is.
    Every,
    /// Only what went wrong: a live display shows the rest.
    Trouble,
}

/// The line for an event, given the state before it. None where the event has nothing to say.
pub(crate) fn line(event: &Event, before: &Board, detail: Detail) -> Option<String> {
    match event {
        Event::JobStarted { job, directory, provider, total_trials, resumed_trials, concurrency, .. } => {
            let trials = count(*total_trials, "trial");
            let earlier = match resumed_trials {
                0 => String::new(),
                earlier => format!(" ({earlier} finished earlier)"),
            };
            // A job whose models need no containers runs nowhere in particular.
            let place = if provider == "none" { String::new() } else { format!(", on {provider}") };
            Some(format!(
                "{}: {trials}{earlier}, {concurrency} at a time{place}\n{}",
                paint(BOLD, job),
                paint(DIM, &format!("results in {}", shown(directory).display())),
            ))
        }
        Event::Warning { message } => Some(format!("{} {}", paint(ODD, "warning:"), clean(message))),
        Event::TrialRetried { index, failed_try, error, delay_ms } => Some(format!(
            "{} {}  try {failed_try} failed, next in {}: {}",
            paint(ODD, "↻"),
            name(*index, before),
            span(*delay_ms as f64 / 1000.0),
            short(error),
        )),
        Event::TrialFinished { result, .. } => {
            let trouble = result.standing() == Standing::Failed;
            (trouble || detail == Detail::Every).then(|| finished(result, before))
        }
        Event::TrialSkipped { index } => (detail == Detail::Every)
            .then(|| format!("{} {}  skipped", paint(DIM, "–"), name(*index, before))),
        Event::Cancelling => Some(format!(
            "{} running trials are torn down; press Ctrl-C again to stop at once",
            paint(ODD, "stopping:")
        )),
        Event::TrialStarted { .. } | Event::PhaseStarted { .. } | Event::JobFinished { .. } => None,
    }
}

fn finished(result: &TrialResult, before: &Board) -> String {
    let place = format!("[{}/{}]", before.finished() + 1, before.total);
    let trial = trial_of(result);
    let time = span(result.durations.total_sec);
    let outcome = match (result.standing(), result.reward, &result.error) {
        (Standing::Failed, _, Some(error)) => {
            return format!("{place} {} {trial}  {}  {}", paint(BAD, "✗"), short(error), paint(DIM, &time));
        }
        (_, Some(reward), error) => {
            let aside = error.as_ref().map(|error| format!(" ({})", error.kind)).unwrap_or_default();
            format!("reward {}{aside}", number(reward))
        }
        (_, None, Some(error)) => format!("no reward ({})", error.kind),
        (_, None, None) => "no reward".to_owned(),
    };
    let mark = match result.reward {
        Some(reward) if reward < 1.0 => paint(ODD, "○"),
        _ => paint(GOOD, "✓"),
    };
    format!("{place} {mark} {trial}  {outcome}  {}", paint(DIM, &time))
}

fn name(index: TrialIndex, board: &Board) -> String {
    match board.running.get(&index) {
        Some(running) => running.trial.to_string(),
        None => format!("trial {}", index.0),
    }
}

/// The kind of an error and the first line of its message.
pub(crate) fn short(error: &TrialError) -> String {
    format!("{}: {}", error.kind, clean(&error.message))
}

fn clean(message: &str) -> String {
    super::text::fit(&first_line(message), MESSAGE_CHARS)
}
