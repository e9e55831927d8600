//! `rollout show`: one trial on one screen.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
};

use rollout::{
    benchmark::PREDICTED_ANSWER,
    event::ModelProgress,
    model::{Message, Role},
    name::TrialId,
    record::{
        layout::{TrialDir, open_below},
        moment,
        notes::JobNotes,
        saved::{self, Conversation, SavedTrial, TrialStatus, live::LiveUsage},
    },
    result::{AgentUsage, Durations, StepResult, TrialResult, TrialSummary},
};

use super::{
    logs,
    note::{comment_lines, notes_or_warning, tag_list},
    trial_path::{self, FoundTrial, TrialPathError},
};
use crate::{
    args::Show,
    exit::{Exit, Failure, hinted},
    report::{
        columns, quoted,
        text::{
            BAD, BOLD, DIM, GOOD, ODD, count, dollars, first_line, fit, number, paint, printable, span, wrap,
        },
        width,
    },
};

/// How many lines of an output are shown.
const LINES: usize = 10;

/// How many bytes at the end of an output are read.
const TAIL_BYTES: u64 = 16 * 1024;

/// The maximum width of a line of an output, and of the last text of a conversation.
const WIDTH: usize = 160;

/// The maximum length of an answer.
const ANSWER: usize = 400;

/// The width of the longest label and the space behind it.
const LABELS: usize = "conversation  ".len();

/// Shows one trial.
pub(crate) fn run(args: &Show) -> Result<Exit, Failure> {
    let found = trial_path::find(&args.trial).map_err(hinted(TrialPathError::hint))?;
    let text = match found.job.trial(found.index)? {
        Some(trial) => finished(&found, &trial)?,
        None => unfinished(&found),
    };
    super::print(&text)?;
    Ok(Exit::Success)
}

fn finished(found: &FoundTrial, trial: &SavedTrial) -> Result<String, Failure> {
    let result = &trial.result;
    let conversation = found.job.conversation(trial)?;
    let mut lines = vec![headline(found, result)];
    let notes = notes_or_warning(&found.job);
    let mut facts = facts(result, conversation.as_ref());
    facts.extend(noted(&notes, &found.id));
    lines.extend(columns(&facts));
    let dir = TrialDir::new(found.dir());
    let step = dir.deciding_step(result);
    let has_executed = result.durations.agent_execution_sec.is_some();
    for (number, (title, files)) in outputs(&dir, &step).into_iter().enumerate() {
        if has_executed && number < PREPARATIONS {
            continue;
        }
        let is_shown = |file: &&PathBuf| !is_quoted(result, &step, file);
        lines.extend(files.iter().filter(is_shown).flat_map(|file| tail(found.job.path(), file, &title)));
    }
    lines.push(String::new());
    lines.extend(columns(&pointers(found, result, conversation.is_some())));
    Ok(lines.join("\n"))
}

/// How many of the outputs are those of phases before the agent.
const PREPARATIONS: usize = 2;

/// The output files of the phases of a step, in their order, with titles.
fn outputs(trial: &TrialDir, step: &TrialDir) -> [(String, Vec<PathBuf>); 4] {
    let name = step.path().file_name().filter(|_| step != trial);
    let of_step = name.map(|name| format!(" of step {}", printable(&name.to_string_lossy())));
    let title = |what: &str| format!("{what} output{}", of_step.as_deref().unwrap_or_default());
    [
        ("build output".to_owned(), vec![trial.build_log()]),
        (title("install"), both(&step.setup())),
        (title("agent"), both(&step.command())),
        (title("verifier"), both(&step.verifier())),
    ]
}

fn unfinished(found: &FoundTrial) -> String {
    let is_running = found.job.is_running() && found.dir().is_dir();
    let status = if is_running { TrialStatus::Running } else { TrialStatus::Missing };
    let mut lines = vec![format!("{}  {}", paint(BOLD, &found.id.to_string()), paint(ODD, status.as_str()))];
    let mut facts = noted(&notes_or_warning(&found.job), &found.id);
    if !is_running {
        if !found.job.is_running() {
            facts.push(("run it", format!("rollout resume {}", quoted(found.job.path()))));
        }
        lines.extend(columns(&facts));
        return lines.join("\n");
    }
    let dir = TrialDir::new(found.dir());
    facts.push(("phase", saved::live::phase(&dir).as_str().to_owned()));
    facts.extend(saved::live::age(&dir).map(|age| ("running for", span(age.as_secs_f64()))));
    let used = LiveUsage::default().update(found.job.path(), &dir).unwrap_or_default();
    facts.extend(used.into_iter().flat_map(|used| wrapped("model", &so_far(&used))));
    let messages = logs::messages(found).unwrap_or_default();
    if !messages.is_empty() {
        facts.extend(wrapped("conversation", &said(messages.iter(), None)));
    }
    lines.extend(columns(&facts));
    // The phase that runs now is the last one with output.
    let shown = outputs(&dir, &dir.current_step()).iter().rev().find_map(|(title, files)| {
        let tails = files.iter().flat_map(|file| tail(found.job.path(), file, title)).collect::<Vec<_>>();
        (!tails.is_empty()).then_some(tails)
    });
    lines.extend(shown.into_iter().flatten());
    let path = quoted(&found.path());
    let mut pointers = vec![("output", format!("rollout logs {path} -f"))];
    if !messages.is_empty() {
        pointers.push(("messages", format!("rollout logs {path} --conversation -f")));
    }
    lines.push(String::new());
    lines.extend(columns(&pointers));
    lines.join("\n")
}

/// The tags and comments of people.
fn noted(notes: &JobNotes, trial: &TrialId) -> Vec<(&'static str, String)> {
    let Some(notes) = notes.of(trial) else { return Vec::new() };
    let mut facts = Vec::new();
    if !notes.tags.is_empty() {
        facts.push(("tags", tag_list(&notes.tags)));
    }
    let lines = comment_lines(notes, width().saturating_sub(LABELS));
    facts.extend(
        lines.into_iter().enumerate().map(|(number, line)| (if number == 0 { "comments" } else { "" }, line)),
    );
    facts
}

/// A fact whose text is wrapped to the width of the terminal.
fn wrapped(label: &'static str, text: &str) -> impl Iterator<Item = (&'static str, String)> + use<> {
    let lines = wrap(text, width().saturating_sub(LABELS)).into_iter().enumerate();
    lines.map(move |(number, line)| (if number == 0 { label } else { "" }, line))
}

fn headline(found: &FoundTrial, result: &TrialResult) -> String {
    let status = TrialStatus::of(result);
    let style = match status {
        TrialStatus::Solved => GOOD,
        TrialStatus::Failed => BAD,
        _ => ODD,
    };
    let mut text = format!("{}  {}", paint(BOLD, &found.id.to_string()), paint(style, status.as_str()));
    if let Some(reward) = result.reward {
        text.push_str(&format!(", reward {}", number(reward)));
    }
    text
}

/// The facts about a trial, as pairs of a label and a text.
fn facts(result: &TrialResult, conversation: Option<&Conversation>) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(error) = &result.error {
        facts.push(("error", paint(BAD, error.kind.as_str())));
        let message: Vec<&str> = error.message.lines().collect();
        // Rollouts have no file with the rest.
        let shown = if result.environment.is_some() { LINES } else { message.len() };
        facts.extend(message.iter().take(shown).flat_map(|line| wrapped("", &printable(line))));
        if message.len() > shown {
            facts.push(("", paint(DIM, "more in error.txt")));
        }
    }
    let others: Vec<String> = result
        .rewards
        .iter()
        .map(|(name, value)| format!("{} {}", printable(name), number(*value)))
        .collect();
    if !others.is_empty() {
        facts.extend(wrapped("rewards", &others.join(", ")));
    }
    let steps: Vec<String> = result.steps.iter().map(step).collect();
    if !steps.is_empty() {
        facts.extend(wrapped("steps", &steps.join(", ")));
    }
    facts.push(("started", moment::text(result.timestamps.started_at)));
    facts.extend(wrapped("phases", &phases(&result.durations)));
    if result.tries > 1 {
        facts.push(("tries", format!("{}, the agent started in {}", result.tries, result.agent_starts)));
    }
    if let Some(environment) = &result.environment {
        facts.push(("environment", format!("{}, network {}", environment.provider, environment.network)));
    }
    facts.extend(model(result).into_iter().flat_map(|text| wrapped("model", &text)));
    if let Some(conversation) = conversation {
        let text = said(conversation.messages(), conversation.stop_condition.as_deref());
        facts.extend(wrapped("conversation", &text));
        facts.extend(answers(conversation));
    }
    for (label, lines) in
        [("tampering", &result.tampering), ("survivors", &result.survivors), ("notes", &result.notes)]
    {
        for (number, line) in lines.iter().take(LINES).enumerate() {
            facts.extend(wrapped(if number == 0 { label } else { "" }, &first_line(line)));
        }
        if lines.len() > LINES {
            facts.push(("", paint(DIM, &format!("and {} more in result.json", lines.len() - LINES))));
        }
    }
    facts
}

/// How a step ended.
fn step(step: &StepResult) -> String {
    let end = match (step.reward, &step.error) {
        (Some(reward), _) => format!("reward {}", number(reward)),
        (None, Some(error)) => error.kind.as_str().to_owned(),
        (None, None) => "no reward".to_owned(),
    };
    format!("{}: {end}", printable(&step.name))
}

fn phases(durations: &Durations) -> String {
    let parts = [
        ("environment", durations.environment_setup_sec),
        ("install", durations.agent_setup_sec),
        ("agent", durations.agent_execution_sec),
        ("verifier", durations.verifier_sec),
    ];
    let ran = parts.iter().filter_map(|(name, seconds)| Some(format!("{name} {}", span((*seconds)?))));
    format!("{}, in all {}", ran.collect::<Vec<_>>().join(", "), span(durations.total_sec))
}

/// What a running agent used of its model until now.
fn so_far(used: &ModelProgress) -> String {
    let mut parts = vec![
        count(used.turns, "call"),
        format!("{} tokens in", used.input_tokens),
        format!("{} tokens out", used.output_tokens),
    ];
    parts.extend(used.cost.map(dollars));
    parts.join(", ")
}

/// What the agent's model was asked and cost.
fn model(result: &TrialResult) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(calls) = &result.model_calls {
        parts.extend(
            (!calls.models.is_empty())
                .then(|| calls.models.iter().map(|name| printable(name)).collect::<Vec<_>>().join(", ")),
        );
        parts.push(count(calls.calls, "call"));
        parts.extend(
            calls.errors.iter().map(|(kind, calls)| format!("{calls} failed with {}", printable(kind))),
        );
    }
    parts.extend(result.usage.iter().flat_map(tokens));
    parts.extend(TrialSummary::from(result).known_cost().map(dollars));
    if let Some(reported) = &result.reported_usage {
        let said: Vec<String> = tokens(reported).chain(reported.cost_usd.map(dollars)).collect();
        parts.push(format!("the agent reports {}", said.join(", ")));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn tokens(usage: &AgentUsage) -> impl Iterator<Item = String> + use<> {
    let read = match (usage.input_tokens, usage.cached_tokens) {
        (Some(tokens), Some(cached)) => Some(format!("{tokens} tokens in ({cached} cached)")),
        (Some(tokens), None) => Some(format!("{tokens} tokens in")),
        (None, cached) => cached.map(|cached| format!("{cached} cached tokens")),
    };
    read.into_iter().chain(usage.output_tokens.map(|tokens| format!("{tokens} tokens out")))
}

/// A summary of messages, with the end of the last text of the model.
fn said<'m>(messages: impl Iterator<Item = &'m Arc<Message>>, stop: Option<&str>) -> String {
    let (mut spoken, mut calls, mut last) = (0, 0, String::new());
    for message in messages {
        spoken += 1;
        calls += message.tool_calls.len() as u64;
        if message.role == Role::Assistant {
            last = Some(last_text_line(&message.text())).filter(|line| !line.is_empty()).unwrap_or(last);
        }
    }
    let mut text = format!("{}, {}", count(spoken, "message"), count(calls, "tool call"));
    if let Some(stop) = stop {
        text.push_str(&format!(", ended by {}", printable(stop)));
    }
    if !last.is_empty() {
        text.push_str(&format!("; last: {}", fit(&last, WIDTH / 2)));
    }
    text
}

/// The last line of a text with any words.
fn last_text_line(text: &str) -> String {
    let mut lines = text.lines().rev().map(|line| printable(line.trim()));
    lines.find(|line| line.chars().any(char::is_alphanumeric)).unwrap_or_default()
}

/// The answer to a question, and the expected answer of an example.
fn answers(conversation: &Conversation) -> Vec<(&'static str, String)> {
    let Some(row) = &conversation.row else { return Vec::new() };
    let answer = row.columns.get(PREDICTED_ANSWER).and_then(|answer| answer.as_str());
    let answers = [("answer", answer), ("expected", row.answer.as_deref())];
    let shown = answers.into_iter().filter_map(|(label, text)| {
        let text = text.map(|text| printable(text.trim())).filter(|text| !text.is_empty())?;
        Some(wrapped(label, &fit(&text, ANSWER)))
    });
    shown.flatten().collect()
}

/// Whether the message of the error contains the end of the file. It names the file relative to the step.
fn is_quoted(result: &TrialResult, step: &TrialDir, file: &Path) -> bool {
    let name = file.strip_prefix(step.path()).unwrap_or(file).display().to_string();
    result.error.as_ref().is_some_and(|error| error.message.contains(&name))
}

/// The files with the output of a command.
fn both(dir: &Path) -> Vec<PathBuf> {
    vec![dir.join("stdout.txt"), dir.join("stderr.txt")]
}

/// The last lines of a file, with a title. Empty for files that are missing, empty, or not inside the job.
fn tail(job: &Path, path: &Path, title: &str) -> Vec<String> {
    let Ok(text) = open_below(job, path).and_then(read_tail) else { return Vec::new() };
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if all.is_empty() {
        return Vec::new();
    }
    let shown = &all[all.len().saturating_sub(LINES)..];
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut lines =
        vec![String::new(), format!("{} {}", paint(BOLD, title), paint(DIM, &format!("(end of {name})")))];
    let width = width().saturating_sub(2).min(WIDTH);
    lines.extend(shown.iter().map(|line| format!("  {}", fit(&printable(line), width))));
    lines
}

fn read_tail(mut file: File) -> io::Result<String> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The commands to go deeper.
fn pointers(found: &FoundTrial, result: &TrialResult, has_conversation: bool) -> Vec<(&'static str, String)> {
    let path = quoted(&found.path());
    let mut pointers = Vec::new();
    let dir = found.dir();
    if dir.is_dir() {
        pointers.push(("files", dir.display().to_string()));
        pointers.push(("output", format!("rollout logs {path}")));
    }
    if has_conversation {
        pointers.push(("messages", format!("rollout logs {path} --conversation")));
    }
    if result.environment.as_ref().is_some_and(|environment| environment.preserved.is_some()) {
        pointers.push(("shell", format!("rollout attach {path}")));
    }
    pointers.push(("run again", format!("rollout reproduce {path}")));
    pointers.push(("comment", format!("rollout note {path} 'a comment' --tag broken")));
    pointers
}
