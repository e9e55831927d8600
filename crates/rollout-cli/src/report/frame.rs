//! The live display as lines of text: running trials, a progress bar, and metrics.

use std::time::Duration;

use rollout::event::{JobKind, ModelProgress};

use super::{
    board::{Board, Running},
    text::{BAD, DIM, GOOD, ODD, clock, count, dollars, fit, number, paint},
};

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// The interval between updates of the display.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// The maximum width of the progress bar.
const BAR_CHARS: usize = 30;

/// The minimum width for showing the step of a build.
const SHORTEST_STEP: usize = 8;

/// The width of the spinner, the phase, the time and the gaps between them and the name.
const FIXED: usize = 21;

/// What is between an agent and a task.
const SEPARATOR: &str = " · ";

/// The gap in front of what an agent used of its model.
const GAP: usize = 2;

/// The minimum width of names, if there is more to show.
const MIN_NAME: usize = 20;

/// Lines that are not trials: the bar, the metrics, and an empty line for messages above.
const OTHER_ROWS: usize = 3;

/// Draws the state of the job in at most `width` columns and `height` rows.
pub(crate) fn frame(board: &Board, now: Duration, width: usize, height: usize) -> Vec<String> {
    let mut lines = running(board, now, width, height.saturating_sub(OTHER_ROWS).max(1));
    lines.push(bar(board, now, width));
    lines.extend(metrics(board, width));
    lines
}

fn running(board: &Board, now: Duration, width: usize, room: usize) -> Vec<String> {
    let shown = if board.running.len() <= room { room } else { room - 1 };
    let trials: Vec<&Running> = board.running.values().take(shown).collect();
    let has_attempts = trials.iter().any(|running| running.trial.attempt > 1);
    let names: Vec<TrialName<'_>> =
        trials.iter().map(|running| TrialName::new(board.kind, running, has_attempts)).collect();
    let longest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0);
    let details_width = longest(&mut trials.iter().map(|running| match (&running.step, &running.used) {
        (None, Some(used)) => used_forms(used)[0].chars().count() + GAP,
        _ => 0,
    }));
    // What an agent used matters more than the end of a long name.
    let names_width =
        width.saturating_sub(FIXED + details_width).max(MIN_NAME).min(width.saturating_sub(FIXED));
    let names_width = names_width.min(longest(&mut names.iter().map(TrialName::width)));
    let spinner = SPINNER[(now.as_millis() / TICK.as_millis()) as usize % SPINNER.len()];
    let mut lines: Vec<String> = names
        .into_iter()
        .zip(trials)
        .map(|(name, running)| {
            let phase = running.phase.map_or("queue", |phase| phase.as_str());
            let time = clock(now.saturating_sub(running.since));
            let name = name.fit(names_width);
            let line = format!("{spinner} {name:<names_width$}  {phase:<8}  {time:>7}");
            let room = width.saturating_sub(line.chars().count() + GAP);
            let detail = match (&running.step, &running.used) {
                (Some(step), _) => (room >= SHORTEST_STEP).then(|| fit(step, room)),
                (None, Some(used)) => used_forms(used).into_iter().find(|text| text.chars().count() <= room),
                (None, None) => None,
            };
            match detail {
                Some(detail) => format!("{line}  {}", paint(DIM, &detail)),
                None => line,
            }
        })
        .collect();
    if board.running.len() > shown {
        lines.push(paint(DIM, &format!("  and {} more", board.running.len() - shown)));
    }
    lines
}

/// The parts of the name of a running trial.
struct TrialName<'b> {
    /// Empty if all trials have the same.
    agent: &'b str,
    task: &'b str,
    /// Empty if all trials are first attempts.
    attempt: String,
}

impl<'b> TrialName<'b> {
    fn new(kind: JobKind, running: &'b Running, has_attempts: bool) -> Self {
        let trial = &running.trial;
        let agent = match kind {
            JobKind::Job => trial.agent.as_str(),
            JobKind::Benchmark => "",
        };
        let attempt = if has_attempts { format!(" #{}", trial.attempt) } else { String::new() };
        Self { agent, task: trial.task.as_str(), attempt }
    }

    /// The width of the whole name.
    fn width(&self) -> usize {
        let agent =
            if self.agent.is_empty() { 0 } else { self.agent.chars().count() + SEPARATOR.chars().count() };
        agent + self.task.chars().count() + self.attempt.len()
    }

    /// The name in at most `width` columns. The agent is cut first, to a third, and the attempt never.
    fn fit(&self, width: usize) -> String {
        let Self { agent, task, attempt } = self;
        let room = width.saturating_sub(attempt.len());
        if agent.is_empty() {
            return format!("{}{attempt}", fit(task, room));
        }
        let room = room.saturating_sub(SEPARATOR.chars().count());
        let agent_width = (room / 3).max(room.saturating_sub(task.chars().count()));
        let agent = fit(agent, agent_width);
        let task = fit(task, room.saturating_sub(agent.chars().count()));
        format!("{agent}{SEPARATOR}{task}{attempt}")
    }
}

fn bar(board: &Board, now: Duration, width: usize) -> String {
    let done = board.finished();
    let mut counts = vec![(GOOD, format!("{} completed", board.completed))];
    if board.resumed > 0 {
        counts.insert(0, (DIM, format!("{} earlier", board.resumed)));
    }
    counts.push((if board.failed > 0 { BAD } else { DIM }, format!("{} failed", board.failed)));
    if board.skipped > 0 {
        counts.push((ODD, format!("{} skipped", board.skipped)));
    }
    let head = format!("{done}/{}", board.total);
    let mut time = clock(now);
    let counts_width = counts.iter().map(|(_, text)| text.chars().count() + 3).sum::<usize>();
    let mut text_width = head.len() + time.len() + 4 + counts_width;
    if let Some(left) = board.remaining(now) {
        let left = format!(", about {} left", rough(left));
        if text_width + left.len() <= width {
            text_width += left.len();
            time.push_str(&left);
        }
    }
    let bar_width = width.saturating_sub(text_width).min(BAR_CHARS);
    let filled = match board.total {
        0 => 0,
        total => (bar_width as u64 * done / total) as usize,
    };
    let bar = format!(
        "{}{}",
        paint(GOOD, &"━".repeat(filled)),
        paint(DIM, &"─".repeat(bar_width.saturating_sub(filled)))
    );
    let counts: Vec<String> = counts.iter().map(|(style, text)| paint(*style, text)).collect();
    format!("{bar} {head} · {} · {time}", counts.join(" · "))
}

/// What an agent used of its model, the longest form first: `turn 12 · 34k tokens · $0.12`.
fn used_forms(used: &ModelProgress) -> [String; 4] {
    let tokens = used.input_tokens.saturating_add(used.output_tokens);
    let tokens = match tokens {
        0..1000 => tokens.to_string(),
        1000..1_000_000 => format!("{}k", tokens / 1000),
        _ => format!("{:.1}M", tokens as f64 / 1e6),
    };
    let cost = used.cost.filter(|cost| *cost > 0.0).map(|cost| format!(" · {}", dollars(cost)));
    let (turns, cost) = (format!("turn {}", used.turns), cost.unwrap_or_default());
    [
        format!("{turns} · {tokens} tokens{cost}"),
        format!("{turns} · {tokens}{cost}"),
        format!("{turns}{cost}"),
        turns,
    ]
}

/// An estimate, without digits that it does not have: `40s`, `12m`, `3h`.
fn rough(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{}s", seconds.div_ceil(10) * 10),
        seconds @ 60..7200 => format!("{}m", seconds.div_ceil(60)),
        seconds => format!("{}h", seconds.div_ceil(3600)),
    }
}

/// Returns the current metrics of each agent, with the tokens and the cost of its model; None before the first of
/// them.
pub(crate) fn metrics(board: &Board, width: usize) -> Option<String> {
    let mut parts = Vec::new();
    for (agent, totals) in &board.agents {
        let mut values: Vec<String> = board
            .metrics
            .iter()
            .filter_map(|metric| Some(format!("{} {}", metric.as_str(), number(totals.metric(*metric)?))))
            .collect();
        let calls = &totals.model_calls;
        if !calls.is_empty() {
            values.push(count(calls.input_tokens.saturating_add(calls.output_tokens), "token"));
        }
        values.extend(totals.model_cost.filter(|cost| *cost > 0.0 || !calls.is_empty()).map(dollars));
        if !values.is_empty() {
            parts.push(format!("{agent} {}", values.join(" ")));
        }
    }
    (!parts.is_empty()).then(|| fit(&parts.join(" · "), width))
}
