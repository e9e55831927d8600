//! The page of a trial: outcome, phases, conversation, outputs and files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use askama::Template;
use rollout_core::{
    display::{count, dollars, fine_span, number, size, span},
    name::{TrialId, TrialIndex},
    result::{Timestamps, TrialResult, TrialSummary},
    text::{printable, shell_quoted},
};
use rollout_record::{
    layout::{JobDir, TrialDir},
    notes::{NoteTag, TrialNotes},
    saved::{ConversationPages, ConversationStep, SavedTrial, TrialStatus, live},
};

use super::{
    Frame, Here, Link, Pager,
    conversation::{self, StepView},
    or_nothing, render, time,
};
use crate::{
    ansi,
    error::ViewError,
    files,
    html::Html,
    job::JobView,
    links::{Address, TrialFilter},
    svg::{self, Phase},
};

/// The maximum length of an answer.
const ANSWER_CHARS: usize = 200;

/// The most links to other trials of the task.
const MAX_LINKS: usize = 64;

#[derive(Debug, Template)]
#[template(path = "trial.html")]
struct TrialPage {
    frame: Frame,
    name: String,
    agent: String,
    status: &'static str,
    error: Option<ErrorView>,
    /// The trials with the same cause, and the cause.
    same: Option<(Link, String)>,
    facts: Vec<(&'static str, String)>,
    notes: Vec<(&'static str, String)>,
    timeline: Html,
    has_conversation: bool,
    steps: Vec<StepView>,
    conversation: String,
    pager: Pager,
    outputs: Vec<OutputView>,
    files: Vec<FileRow>,
    attempts: Vec<AttemptLink>,
    previous: Option<Link>,
    next: Option<Link>,
    next_problem: Option<Link>,
    command: String,
    tags: Vec<Link>,
    comments: Vec<(String, String)>,
    known_tags: Vec<NoteTag>,
}

#[derive(Debug)]
struct ErrorView {
    kind: &'static str,
    message: Html,
}

#[derive(Debug)]
struct OutputView {
    title: String,
    name: &'static str,
    text: Html,
    is_cut: bool,
    href: String,
    is_open: bool,
}

#[derive(Debug)]
struct FileRow {
    link: Link,
    size: String,
}

/// A trial of the same task.
#[derive(Debug)]
struct AttemptLink {
    link: Link,
    status: &'static str,
    is_this: bool,
}

/// Where the pages of a trial are.
struct Place<'a> {
    job: &'a JobView,
    index: TrialIndex,
    trial: &'a TrialId,
    dir: TrialDir,
    here: &'a Here,
}

/// Renders a page of the trial. The conversation has pages, counted from 1.
pub(crate) fn page(job: &JobView, index: TrialIndex, page: usize, here: &Here) -> Result<String, ViewError> {
    let Some(trial) = job.id(index) else { return Err(ViewError::NotFound("the trial".to_owned())) };
    let dir = JobDir::new(job.saved.path()).trial(&trial).of_last_result();
    let place = Place { job, index, trial: &trial, dir, here };
    let saved = job.saved.trial(index)?;
    let (mut problems, mut steps, mut said) = (Vec::new(), Vec::new(), None);
    // A damaged conversation must not hide the rest of the trial.
    match conversation(&place, saved.as_ref(), page) {
        Ok(found) => (said, steps) = found,
        Err(error) => problems.push(("conversation", error.to_string())),
    }
    problems.extend(job.notes_problem().map(|problem| ("notes", problem.to_owned())));
    let said = said.as_deref();
    let pages = said.map_or(1, ConversationPages::len).max(1);
    if page > pages {
        return Err(ViewError::NotFound(format!("page {page} of the conversation")));
    }
    let result = saved.as_ref().map(|saved| &saved.result);
    let status = job.status(index);
    let above = vec![
        here.link("Jobs", &Address::Jobs),
        here.link(job.name.clone(), &Address::Job { job: job.name.clone(), grid: 1 }),
    ];
    let neighbour = |index: Option<u64>| index.and_then(|index| place.link(TrialIndex(index)));
    let next_problem = job
        .indexes()
        .skip(index.0 as usize + 1)
        .find(|index| matches!(job.status(*index), TrialStatus::Failed | TrialStatus::Unsolved));
    problems.extend(result.map(notes).unwrap_or_default());
    let path = job.given.join(trial.to_string());
    render(&TrialPage {
        frame: here.frame(trial.to_string(), above, job.is_running()),
        name: format!("{}/{}__{}", trial.dataset, trial.task, trial.attempt),
        agent: trial.agent.to_string(),
        status: status.as_str(),
        error: result.and_then(error),
        same: same_cause(&place),
        facts: match (result, status) {
            (Some(result), _) => facts(result, said),
            (None, TrialStatus::Running) => running_facts(&place),
            (None, _) => Vec::new(),
        },
        notes: problems,
        timeline: result.map(timeline).unwrap_or_default(),
        has_conversation: said.is_some(),
        steps: conversation::steps(&steps),
        conversation: said.map(|said| range(said, page)).unwrap_or_default(),
        pager: Pager::new(page, pages, |page| place.to(page)),
        outputs: outputs(&place, result, status),
        files: file_rows(&place),
        attempts: attempts(&place),
        previous: neighbour(index.0.checked_sub(1)),
        next: neighbour(Some(index.0 + 1).filter(|next| *next < job.planned() as u64)),
        next_problem: neighbour(next_problem.map(|index| index.0)),
        command: format!("rollout show {}", shell_quoted(&path.display().to_string())),
        tags: tags(&place),
        comments: job.notes(index).map(comments).unwrap_or_default(),
        known_tags: job.tags().into_keys().cloned().collect(),
    })
}

type Found = (Option<Arc<ConversationPages>>, Vec<ConversationStep>);

fn conversation(place: &Place<'_>, saved: Option<&SavedTrial>, page: usize) -> Result<Found, ViewError> {
    let Some(pages) = place.job.conversation(place.index, place.trial, saved)? else {
        return Ok((None, Vec::new()));
    };
    let steps = pages.read(page.max(1) - 1)?;
    Ok((Some(pages), steps))
}

/// The tags of the trial, each with the list of its trials.
fn tags(place: &Place<'_>) -> Vec<Link> {
    let tags = place.job.notes(place.index).into_iter().flat_map(|notes| &notes.tags);
    tags.map(|tag| {
        let filter = TrialFilter { tag: Some(tag.clone()), ..TrialFilter::default() };
        let address = Address::Trials { job: place.job.name.clone(), filter, page: 1 };
        place.here.link(tag.as_str(), &address)
    })
    .collect()
}

fn comments(notes: &TrialNotes) -> Vec<(String, String)> {
    let comments = notes.comments.iter();
    comments.map(|comment| (time(comment.at), printable(&comment.text))).collect()
}

fn range(said: &ConversationPages, page: usize) -> String {
    let numbers = said.numbers(page.max(1) - 1);
    match said.len() {
        0 | 1 => count(said.steps() as u64, "step"),
        _ => format!("steps {}–{} of {}", numbers.start, numbers.end - 1, said.steps()),
    }
}

impl Place<'_> {
    fn to(&self, page: usize) -> String {
        self.here.to(&Address::Trial { job: self.job.name.clone(), trial: self.trial.clone(), page })
    }

    fn link(&self, index: TrialIndex) -> Option<Link> {
        let trial = self.job.id(index)?;
        let text = trial.to_string();
        Some(self.here.link(text, &Address::Trial { job: self.job.name.clone(), trial, page: 1 }))
    }

    fn file(&self, path: &Path) -> Option<String> {
        let parts = path.strip_prefix(self.dir.path()).ok()?;
        let path = parts.iter().map(|part| part.to_str().map(str::to_owned)).collect::<Option<Vec<_>>>()?;
        let (job, trial) = (self.job.name.clone(), self.trial.clone());
        Some(self.here.to(&Address::File { job, trial, path, page: 1 }))
    }
}

fn error(result: &TrialResult) -> Option<ErrorView> {
    let error = result.error.as_ref()?;
    Some(ErrorView { kind: error.kind.as_str(), message: ansi::render(&error.message) })
}

/// The list of the trials that have the same cause, if there are several, and the cause.
fn same_cause(place: &Place<'_>) -> Option<(Link, String)> {
    let groups = place.job.causes();
    let (number, group) = groups.into_iter().find(|(_, group)| group.trials.contains(&place.index))?;
    let filter = TrialFilter { cause: Some(number), ..TrialFilter::default() };
    let text = format!("{} with this cause", count(group.trials.len() as u64, "trial"));
    let address = Address::Trials { job: place.job.name.clone(), filter, page: 1 };
    (group.trials.len() > 1).then(|| (place.here.link(text, &address), group.cause.to_string()))
}

/// What is known of a trial that runs now.
fn running_facts(place: &Place<'_>) -> Vec<(&'static str, String)> {
    let mut facts = vec![("phase", live::phase(&place.dir).as_str().to_owned())];
    facts.extend(live::age(&place.dir).map(|age| ("running for", span(age.as_secs_f64()))));
    if let Some(used) = place.job.used(place.index, place.trial) {
        facts.push(("model calls", used.turns.to_string()));
        facts.push(("tokens in", used.input_tokens.to_string()));
        facts.push(("tokens out", used.output_tokens.to_string()));
        facts.extend(used.cost.map(|cost| ("cost", dollars(cost))));
    }
    facts
}

fn facts(result: &TrialResult, said: Option<&ConversationPages>) -> Vec<(&'static str, String)> {
    let mut facts = vec![("reward", or_nothing(result.reward.map(number)))];
    for (name, value) in &result.rewards {
        facts.push(("", format!("{name} {}", number(*value))));
    }
    facts.push(("time", fine_span(result.durations.total_sec)));
    facts.extend(TrialSummary::from(result).known_cost().map(|cost| ("cost", dollars(cost))));
    if let Some(usage) = &result.usage {
        let cached = usage.cached_tokens.map(|tokens| format!(" ({tokens} cached)")).unwrap_or_default();
        facts.extend(usage.input_tokens.map(|tokens| ("tokens in", format!("{tokens}{cached}"))));
        facts.extend(usage.output_tokens.map(|tokens| ("tokens out", tokens.to_string())));
    } else if let Some(usage) = said.and_then(|said| said.token_usage) {
        facts.push(("tokens in", number(usage.input_tokens)));
        facts.push(("tokens out", number(usage.output_tokens)));
    }
    if let Some(reported) = &result.reported_usage {
        let counts = [
            ("tokens in", reported.input_tokens),
            ("cached tokens", reported.cached_tokens),
            ("tokens out", reported.output_tokens),
        ];
        let counts = counts.into_iter().filter_map(|(what, tokens)| Some(format!("{} {what}", tokens?)));
        let said: Vec<String> = counts.chain(reported.cost_usd.map(dollars)).collect();
        facts.push(("the agent reports", said.join(", ")));
    }
    if let Some(calls) = &result.model_calls {
        facts.push(("model calls", calls.calls.to_string()));
    }
    if let Some(said) = said {
        facts.extend(said.model.clone().map(|model| ("model", model)));
        facts.extend(said.stop_condition.clone().map(|stop| ("ended by", stop)));
        let answers = [("answer", &said.predicted_answer), ("expected answer", &said.answer)];
        for (label, answer) in answers {
            let answer = answer.as_ref().filter(|answer| !answer.trim().is_empty());
            facts.extend(answer.map(|answer| (label, rollout_core::text::cut(answer, ANSWER_CHARS))));
        }
        if said.is_truncated {
            facts.push(("truncated", "yes".to_owned()));
        }
    }
    if result.tries > 1 {
        facts.push(("tries", result.tries.to_string()));
    }
    if let Some(environment) = &result.environment {
        facts.push(("environment", format!("{}, network {}", environment.provider, environment.network)));
    }
    facts.push(("started", time(result.timestamps.started_at)));
    facts
}

/// What was noticed beside the error.
fn notes(result: &TrialResult) -> Vec<(&'static str, String)> {
    let lists = [("tampering", &result.tampering), ("still ran", &result.survivors), ("note", &result.notes)];
    let lines =
        lists.into_iter().flat_map(|(label, lines)| lines.iter().map(move |line| (label, line.clone())));
    let steps = result.steps.iter().map(|step| {
        let reward = or_nothing(step.reward.map(number));
        ("step", format!("{}: reward {reward}", step.name))
    });
    lines.chain(steps).collect()
}

fn timeline(result: &TrialResult) -> Html {
    let Timestamps { started_at, .. } = result.timestamps;
    let times = &result.timestamps;
    let phases = [
        ("environment", times.environment_setup_started_at, times.environment_setup_ended_at),
        ("install", times.agent_setup_started_at, times.agent_setup_ended_at),
        ("agent", times.agent_execution_started_at, times.agent_execution_ended_at),
        ("verifier", times.verifier_started_at, times.verifier_ended_at),
    ];
    let since = |at: jiff::Timestamp| at.duration_since(started_at).as_secs_f64();
    let phases: Vec<Phase> = phases
        .into_iter()
        .filter_map(|(name, start, end)| Some(Phase { name, start: since(start?), end: since(end?) }))
        .collect();
    if phases.is_empty() { Html::default() } else { svg::timeline(&phases, result.durations.total_sec) }
}

/// The outputs of the phases. Of a task with steps, those of the newest step are first, and unfolded are those of the
/// step that explains the result, or that runs.
fn outputs(place: &Place<'_>, result: Option<&TrialResult>, status: TrialStatus) -> Vec<OutputView> {
    let both =
        |dir: PathBuf| [(dir.join("stdout.txt"), "stdout.txt"), (dir.join("stderr.txt"), "stderr.txt")];
    let dir = &place.dir;
    let (steps, shown) = match result {
        Some(result) => (dir.steps(result), dir.deciding_step(result)),
        None => (dir.steps_so_far(), dir.current_step()),
    };
    let mut groups = Vec::new();
    for step in steps.iter().rev() {
        let name = step.path().file_name().filter(|_| step != dir);
        let name = name.map(|name| format!(", step {}", printable(&name.to_string_lossy())));
        let title = |what: &str| format!("{what}{}", name.as_deref().unwrap_or_default());
        let is_shown = *step == shown;
        groups.extend([
            (title("Verifier"), both(step.verifier()).to_vec(), is_shown),
            (title("Agent"), both(step.command()).to_vec(), is_shown),
            (title("Install"), both(step.setup()).to_vec(), is_shown && status == TrialStatus::Failed),
        ]);
    }
    groups.push(("Image build".to_owned(), vec![(dir.build_log(), "build.txt")], false));
    let mut outputs = Vec::new();
    for (title, paths, is_open) in groups {
        for (path, name) in paths {
            let Some((text, is_cut)) = files::tail(place.job.saved.path(), &path) else { continue };
            let Some(href) = place.file(&path) else { continue };
            let text = ansi::render(&text);
            outputs.push(OutputView { title: title.clone(), name, text, is_cut, href, is_open });
        }
    }
    outputs
}

fn file_rows(place: &Place<'_>) -> Vec<FileRow> {
    let (job, trial) = (&place.job.name, place.trial);
    let row = |file: files::TrialFile| {
        let text = file.path.join("/");
        let address = Address::File { job: job.clone(), trial: trial.clone(), path: file.path, page: 1 };
        FileRow { link: place.here.link(text, &address), size: size(file.bytes) }
    };
    files::list(place.dir.path()).into_iter().map(row).collect()
}

/// The attempts of all agents at the same task.
fn attempts(place: &Place<'_>) -> Vec<AttemptLink> {
    let (saved, trial) = (&place.job.saved, place.trial);
    let Some((_, task, _)) = saved.parts(place.index) else { return Vec::new() };
    let planned = &saved.header().tasks[task];
    let mut links = Vec::new();
    for agent in &saved.header().agents {
        for attempt in 1..=saved.header().attempts_of(planned) {
            let index = saved.index(agent, &planned.dataset, &planned.name, attempt);
            let Some((index, link)) = index.and_then(|index| Some((index, place.link(index)?))) else {
                continue;
            };
            let text = format!("{agent} #{attempt}");
            links.push(AttemptLink {
                link: Link { text, ..link },
                status: place.job.status(index).as_str(),
                is_this: agent == trial.agent.as_str() && attempt == trial.attempt,
            });
        }
    }
    links.truncate(MAX_LINKS);
    if links.len() > 1 { links } else { Vec::new() }
}
