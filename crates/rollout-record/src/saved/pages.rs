//! A conversation in pages, so that a long one is shown without parsing all of it.
//!
//! The file is scanned once for the places of messages, which takes a small part of the time of parsing them. A page is
//! then read and parsed on its own.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{SavedError, SavedJob, SavedTrial, once, rows};
use crate::layout::open_below;
use rollout_core::{
    message::{Message, Messages, Role},
    name::TrialId,
    response::{Response, TokenUsage},
    row::{OutputError, OutputUsage},
};

/// The most steps of a page.
const MAX_STEPS: usize = 40;

/// The size from which a page has no further step.
const PAGE_BYTES: u64 = 256 * 1024;

/// Where the steps of a page come from.
#[derive(Debug)]
enum PageSource {
    /// Files of the job.
    Files { job: PathBuf, paths: Vec<PathBuf> },
    /// Messages in memory, each of which is a step.
    Messages(Messages),
}

/// The places of the steps of a conversation.
#[derive(Debug)]
pub struct ConversationPages {
    source: PageSource,
    /// The model, if recorded.
    pub model: Option<String>,
    /// The stop condition; None if the conversation was interrupted.
    pub stop_condition: Option<String>,
    /// Whether a response was truncated, or the conversation became too long.
    pub is_truncated: bool,
    /// The error of the conversation.
    pub error: Option<OutputError>,
    /// The expected answer of an example, if there is one.
    pub answer: Option<String>,
    /// The answer to a question.
    pub predicted_answer: Option<String>,
    /// The usage of tokens in the row of a rollout or a question.
    pub token_usage: Option<OutputUsage>,
    steps: Vec<StepPlace>,
    /// The steps of each page.
    pages: Vec<Range<usize>>,
}

#[derive(Debug, Clone, Copy)]
struct StepPlace {
    /// The number of its file.
    file: usize,
    start: u64,
    length: u64,
    is_turn: bool,
}

/// A step of a conversation: one message, or a response of a model with the results of its tool calls.
#[derive(Debug, Clone, PartialEq)]
pub struct ConversationStep {
    /// Its number in the conversation, from 1.
    pub number: usize,
    /// The first message of the step.
    pub message: Arc<Message>,
    /// The messages that answer it.
    pub answers: Messages,
    /// The details of a response; None for other messages, and for rows, which have none.
    pub details: Option<StepDetails>,
}

impl ConversationStep {
    fn of_message(number: usize, message: Arc<Message>) -> Self {
        Self { number, message, answers: Messages::new(), details: None }
    }
}

/// The details of a response of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct StepDetails {
    /// Usage of tokens, if the server reported it.
    pub usage: Option<TokenUsage>,
    /// Why the model stopped, if the server reported it.
    pub finish_reason: Option<String>,
    /// Duration of the response in seconds.
    pub model_sec: f64,
    /// Duration of its tool calls in seconds.
    pub tools_sec: Option<f64>,
}

/// A `trajectory.json` with steps that are not parsed.
#[derive(Deserialize)]
struct RawTrajectory<'a> {
    model: Option<String>,
    stop_condition: Option<String>,
    #[serde(default)]
    is_truncated: bool,
    error: Option<OutputError>,
    #[serde(borrow, default)]
    prompt: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    turns: Vec<&'a RawValue>,
}

/// A row with messages that are not parsed.
#[derive(Deserialize)]
struct RawRow<'a> {
    #[serde(borrow, default)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, default)]
    completion: Option<&'a RawValue>,
    #[serde(borrow, default)]
    trajectory: Option<&'a RawValue>,
    stop_condition: Option<String>,
    #[serde(default)]
    is_truncated: bool,
    #[serde(default)]
    answer: Option<Value>,
    #[serde(default)]
    ground_truth: Option<Value>,
    #[serde(default)]
    predicted_answer: Option<Value>,
    #[serde(borrow, default)]
    token_usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawMessages<'a> {
    #[serde(borrow, default)]
    messages: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct TurnStep {
    response: Response,
    #[serde(default)]
    model_sec: f64,
    #[serde(default)]
    answers: Messages,
    tools_sec: Option<f64>,
}

impl SavedJob {
    /// Finds the steps of a trial's conversation; None if nothing was recorded.
    pub fn conversation_pages(&self, trial: &SavedTrial) -> Result<Option<ConversationPages>, SavedError> {
        let Some(example) = self.task(trial).example_id else {
            return of_container(self.path(), self.trajectories(trial));
        };
        let pair = (trial.id.agent.to_string(), trial.id.dataset.to_string());
        let section = self.section(&pair.0, &pair.1);
        let index = once(&self.rows[&pair], || rows::index(self.path(), &section))?;
        let Some((offset, line)) = index.line(&(example, trial.id.attempt))? else { return Ok(None) };
        of_row(self.path(), crate::rows::file_in(&section), offset, &line)
    }
}

impl SavedJob {
    /// Finds the messages of a trial that still runs; None if nothing was recorded yet. Each is a step. Of a task with
    /// steps, they are those of the newest step.
    pub fn live_conversation_pages(&self, trial: &TrialId) -> Result<Option<ConversationPages>, SavedError> {
        let dir = self.dir.trial(trial).current_step();
        let path = dir.live_conversation();
        // While the tests run, the conversation has its final form.
        let Some(bytes) = read(self.path(), &path)? else {
            return of_container(self.path(), vec![dir.trajectory()]);
        };
        let mut steps = Vec::new();
        let mut start = 0;
        // The last line may be incomplete.
        for line in bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            steps.push(StepPlace { file: 0, start, length: line.len() as u64, is_turn: false });
            start += line.len() as u64;
        }
        let source = PageSource::Files { job: self.path().to_owned(), paths: vec![path] };
        Ok(Some(ConversationPages::unfinished(source, steps)))
    }
}

/// Reads a file of a job; None if it does not exist.
fn read(job: &Path, path: &Path) -> Result<Option<Vec<u8>>, SavedError> {
    let mut bytes = Vec::new();
    match open_below(job, path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SavedError::Read { path: path.to_owned(), source }),
    }
}

/// The conversations in these files as one, as [`Conversation`](super::Conversation) joins them. None if all files are
/// missing.
fn of_container(job: &Path, paths: Vec<PathBuf>) -> Result<Option<ConversationPages>, SavedError> {
    let mut joined: Option<ConversationPages> = None;
    let mut first_prompt: Vec<String> = Vec::new();
    for (file, path) in paths.iter().enumerate() {
        let Some(bytes) = read(job, path)? else { continue };
        let raw: RawTrajectory<'_> = serde_json::from_slice(&bytes)
            .map_err(|source| SavedError::Damaged { path: path.clone(), source })?;
        let place = |raw: &RawValue, is_turn| StepPlace { file, ..place(&bytes, 0, raw, is_turn) };
        let is_repeated = |message: &RawValue| {
            first_prompt.iter().any(|known| known == message.get())
                && serde_json::from_str::<Message>(message.get())
                    .is_ok_and(|message| message.role == Role::System)
        };
        let prompt = raw.prompt.iter().filter(|message| !is_repeated(message));
        let prompt = prompt.map(|message| place(message, false));
        let steps: Vec<_> = prompt.chain(raw.turns.iter().map(|turn| place(turn, true))).collect();
        let whole = joined.get_or_insert_with(|| {
            first_prompt = raw.prompt.iter().map(|message| message.get().to_owned()).collect();
            let source = PageSource::Files { job: job.to_owned(), paths: paths.clone() };
            ConversationPages { model: raw.model, ..ConversationPages::unfinished(source, Vec::new()) }
        });
        whole.stop_condition = raw.stop_condition;
        whole.is_truncated |= raw.is_truncated;
        whole.error = raw.error.or(whole.error.take());
        whole.steps.extend(steps);
    }
    if let Some(whole) = &mut joined {
        whole.pages = pages(&whole.steps);
    }
    Ok(joined)
}

fn of_row(
    job: &Path,
    path: PathBuf,
    offset: u64,
    line: &[u8],
) -> Result<Option<ConversationPages>, SavedError> {
    let damaged = |source| SavedError::Damaged { path: path.clone(), source };
    let raw: RawRow<'_> = serde_json::from_slice(line).map_err(damaged)?;
    let mut found = list(raw.prompt).map_err(damaged)?;
    found.extend(list(raw.completion).map_err(damaged)?);
    if let Some(trajectory) = raw.trajectory.filter(|value| value.get().starts_with('{')) {
        let messages: RawMessages<'_> = serde_json::from_str(trajectory.get()).map_err(damaged)?;
        found.extend(messages.messages);
    }
    let steps: Vec<_> = found.iter().map(|raw| place(line, offset, raw, false)).collect();
    Ok(Some(ConversationPages {
        source: PageSource::Files { job: job.to_owned(), paths: vec![path] },
        model: None,
        stop_condition: raw.stop_condition,
        is_truncated: raw.is_truncated,
        error: None,
        answer: raw.answer.or(raw.ground_truth).map(text),
        predicted_answer: raw.predicted_answer.map(text),
        token_usage: raw.token_usage.and_then(|usage| serde_json::from_str(usage.get()).ok()),
        pages: pages(&steps),
        steps,
    }))
}

/// A value as text, without the quotes of a string.
fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// The items of an array; none of another value.
fn list(part: Option<&RawValue>) -> serde_json::Result<Vec<&RawValue>> {
    match part {
        Some(part) if part.get().starts_with('[') => serde_json::from_str(part.get()),
        _ => Ok(Vec::new()),
    }
}

/// The place of a part of a text that begins at an offset of its file.
fn place(text: &[u8], offset: u64, part: &RawValue, is_turn: bool) -> StepPlace {
    let part = part.get();
    let before = part.as_ptr() as usize - text.as_ptr() as usize;
    StepPlace { file: 0, start: offset + before as u64, length: part.len() as u64, is_turn }
}

fn pages(steps: &[StepPlace]) -> Vec<Range<usize>> {
    let mut pages = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    for (number, step) in steps.iter().enumerate() {
        if number > first && (number - first == MAX_STEPS || bytes + step.length > PAGE_BYTES) {
            pages.push(first..number);
            (first, bytes) = (number, 0);
        }
        bytes += step.length;
    }
    if first < steps.len() {
        pages.push(first..steps.len());
    }
    pages
}

impl ConversationPages {
    /// The pages of messages that are in memory; None if there are none.
    pub fn of_messages(messages: Messages) -> Option<Self> {
        if messages.is_empty() {
            return None;
        }
        let length = |message: &Arc<Message>| {
            let calls: usize = message.tool_calls.iter().map(|call| call.arguments.len()).sum();
            (message.text().len() + calls) as u64
        };
        let place = |message| StepPlace { file: 0, start: 0, length: length(message), is_turn: false };
        let steps = messages.iter().map(place).collect();
        Some(Self::unfinished(PageSource::Messages(messages), steps))
    }

    fn unfinished(source: PageSource, steps: Vec<StepPlace>) -> Self {
        Self {
            source,
            model: None,
            stop_condition: None,
            is_truncated: false,
            error: None,
            answer: None,
            predicted_answer: None,
            token_usage: None,
            pages: pages(&steps),
            steps,
        }
    }

    /// The number of pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether the conversation has no step.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The number of steps.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// The numbers of the steps of a page, from 1. Pages are counted from 0.
    pub fn numbers(&self, page: usize) -> Range<usize> {
        self.pages.get(page).map_or(0..0, |steps| steps.start + 1..steps.end + 1)
    }

    /// Reads the steps of a page, counted from 0.
    pub fn read(&self, page: usize) -> Result<Vec<ConversationStep>, SavedError> {
        let steps = self.pages.get(page).cloned().unwrap_or_default();
        let (job, paths) = match &self.source {
            PageSource::Files { job, paths } => (job, paths),
            PageSource::Messages(messages) => {
                let step =
                    |number: usize| ConversationStep::of_message(number + 1, Arc::clone(&messages[number]));
                return Ok(steps.map(step).collect());
            }
        };
        let mut open: Option<(usize, File)> = None;
        steps
            .map(|number| {
                let place = self.steps[number];
                let path = &paths[place.file];
                let failed = |source| SavedError::Read { path: path.clone(), source };
                let file = match open.take() {
                    Some((known, file)) if known == place.file => file,
                    _ => open_below(job, path).map_err(failed)?,
                };
                let (_, file) = open.insert((place.file, file));
                let bytes = part(file, place).map_err(failed)?;
                let damaged = |source| SavedError::Damaged { path: path.clone(), source };
                step(number + 1, &bytes, place.is_turn).map_err(damaged)
            })
            .collect()
    }
}

fn part(file: &mut File, place: StepPlace) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(place.start))?;
    let mut bytes = Vec::new();
    file.take(place.length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn step(number: usize, bytes: &[u8], is_turn: bool) -> serde_json::Result<ConversationStep> {
    if !is_turn {
        return Ok(ConversationStep::of_message(number, serde_json::from_slice(bytes)?));
    }
    let TurnStep { response, model_sec, answers, tools_sec } = serde_json::from_slice(bytes)?;
    let details = StepDetails {
        usage: response.usage,
        finish_reason: response.finish_reason.map(|reason| reason.as_str().to_owned()),
        model_sec,
        tools_sec,
    };
    Ok(ConversationStep { number, message: Arc::new(response.message), answers, details: Some(details) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(length: u64) -> StepPlace {
        StepPlace { file: 0, start: 0, length, is_turn: false }
    }

    #[test]
    fn a_page_is_limited_in_steps_and_in_bytes() {
        assert!(pages(&[]).is_empty());
        assert_eq!(pages(&[of(10); MAX_STEPS + 1]), [0..MAX_STEPS, MAX_STEPS..MAX_STEPS + 1]);
        assert_eq!(pages(&[of(10), of(PAGE_BYTES * 9), of(10), of(10)]), [0..1, 1..2, 2..4]);
    }

    #[test]
    fn the_steps_of_a_row_are_read_from_their_places() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("outputs.jsonl");
        let line = r#"{"prompt":[{"role":"user","content":"2+2?"}],"completion":[{"role":"assistant","content":"4 \"é\""}],"answer":"4"}"#;
        std::fs::write(&path, format!("{{}}\n{line}\n")).unwrap();
        let pages = of_row(dir.path(), path, 3, line.as_bytes()).unwrap().unwrap();
        let steps = pages.read(0).unwrap();
        let texts: Vec<_> = steps.iter().map(|step| step.message.text().into_owned()).collect();
        assert_eq!(texts, ["2+2?", "4 \"é\""]);
        assert_eq!((pages.answer.as_deref(), pages.numbers(0)), (Some("4"), 1..3));
    }

    #[test]
    fn messages_in_memory_have_pages_too() {
        assert!(ConversationPages::of_messages(Messages::new()).is_none());
        let message: Arc<Message> = serde_json::from_str(r#"{"role":"user","content":"go"}"#).unwrap();
        let pages = ConversationPages::of_messages(vec![message; MAX_STEPS + 1]).unwrap();
        assert_eq!((pages.len(), pages.numbers(1)), (2, MAX_STEPS + 1..MAX_STEPS + 2));
        let last = &pages.read(1).unwrap()[0];
        assert_eq!((last.number, last.message.text().as_ref()), (MAX_STEPS + 1, "go"));
    }

    #[test]
    fn a_turn_is_a_response_with_the_results_of_its_calls() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trajectory.json");
        let text = r#"{"model":"m","prompt":[{"role":"user","content":"go"}],"turns":[
            {"response":{"message":{"role":"assistant","content":null,"finish_reason":"tool_calls",
             "tool_calls":[{"id":"1","name":"bash","arguments":"{}"}]}},"model_sec":1.5,
             "answers":[{"role":"tool","tool_call_id":"1","content":"done"}],"tools_sec":0.5}]}"#;
        std::fs::write(&path, text).unwrap();
        let pages = of_container(dir.path(), vec![path]).unwrap().unwrap();
        let steps = pages.read(0).unwrap();
        assert_eq!((steps.len(), steps[1].number, steps[1].answers[0].text().as_ref()), (2, 2, "done"));
        let details = steps[1].details.as_ref().unwrap();
        assert_eq!((details.finish_reason.as_deref(), details.model_sec), (Some("tool_calls"), 1.5));
    }

    #[test]
    fn conversations_of_steps_follow_each_other_as_in_exports() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, asked: &str, said: &str, stop: &str| {
            let path = dir.path().join(name);
            let text = format!(
                r#"{{"model":"m","started_at":"2026-01-02T03:04:05Z","stop_condition":"{stop}","is_truncated":false,
                "error":null,"prompt":[{{"role":"system","content":"Be brief."}},{{"role":"user","content":"{asked}"}}],
                "turns":[{{"response":{{"message":{{"role":"assistant","content":"{said}"}}}},"model_sec":1,"answers":[]}}]}}"#
            );
            std::fs::write(&path, text).unwrap();
            path
        };
        let one = write("one.json", "Go on.", "first", "limit");
        let two = write("two.json", "Go on.", "second", "done");
        let paths = vec![one, dir.path().join("missing.json"), two];
        let pages = of_container(dir.path(), paths.clone()).unwrap().unwrap();
        assert_eq!((pages.model.as_deref(), pages.stop_condition.as_deref()), (Some("m"), Some("done")));
        let steps = pages.read(0).unwrap();
        let texts: Vec<_> = steps.iter().map(|step| step.message.text().into_owned()).collect();
        assert_eq!(texts, ["Be brief.", "Go on.", "first", "Go on.", "second"]);
        let whole = super::super::conversation::of_container(dir.path(), &paths).unwrap().unwrap();
        assert_eq!(whole.messages().map(|message| message.text().into_owned()).collect::<Vec<_>>(), texts);
    }
}
