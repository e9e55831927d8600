//! Why trials failed or were not solved: the evidence of a trial on one line, and trials grouped by it.

use std::{
    cmp::Reverse,
    collections::HashMap,
    fmt,
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
};

use rollout_core::{
    message::Message,
    name::{TrialId, TrialIndex},
    redact::Redactor,
    result::ErrorType,
    row::{PREDICTED_ANSWER, RolloutOutput},
    text::{cut, first_line, fit, without_controls},
};
use serde_json::Value;

use crate::layout::{TrialDir, open_below};

/// How many causes are known. Trials with further causes are only counted.
const MAX_CAUSES: usize = 1_000;

/// How many bytes at the end of an output are read.
const TAIL_BYTES: u64 = 4096;

/// The maximum length of what failed, in front of the line that says why.
const WHAT_CHARS: usize = 120;

/// The maximum length of the line that says why.
const WHY_CHARS: usize = 280;

/// How many bytes of a message or an answer are looked at. It may be a megabyte long.
const PART_BYTES: usize = 8 << 10;

/// The maximum lengths of an answer, of an expected answer, and of the end of a message.
const ANSWER_CHARS: usize = 120;
const EXPECTED_CHARS: usize = 80;
const END_CHARS: usize = 100;

/// What is shown of unsolved trials whose tests printed nothing.
const NO_OUTPUT: &str = "the tests printed nothing";

/// What is shown of unsolved rollouts without a recorded end.
const NO_ANSWER: &str = "no answer is recorded";

/// The evidence of one trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialCause {
    /// The type of the error; None for a trial that is not solved.
    pub kind: Option<ErrorType>,
    /// What happened, on one line.
    pub text: String,
    /// Whether trials have this cause only if their numbers are the same too, as in answers.
    has_values: bool,
}

/// How a rollout or a question ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct RolloutEnding<'a> {
    /// The answer to a question.
    pub answer: Option<&'a str>,
    /// The expected answer.
    pub expected: Option<&'a str>,
    /// The last message with a text.
    pub last: Option<&'a Message>,
    /// The stop condition.
    pub stop_condition: Option<&'a str>,
}

impl<'a> From<&'a RolloutOutput> for RolloutEnding<'a> {
    fn from(output: &'a RolloutOutput) -> Self {
        let messages = output.completion.iter().flatten().map(|message| &**message);
        Self {
            answer: output.columns.get(PREDICTED_ANSWER).and_then(Value::as_str),
            expected: output.answer.as_deref(),
            last: messages.rev().find(|message| !message.text().trim().is_empty()),
            stop_condition: output.stop_condition.as_deref(),
        }
    }
}

impl TrialCause {
    /// The cause of an error: what failed, and the last line of the output that its message quotes.
    pub fn of_error(kind: ErrorType, message: &str) -> Self {
        let what = first_line(message);
        let mut lines = message.lines().map(without_controls).filter(|line| !line.trim().is_empty());
        let why = lines.next_back().filter(|_| lines.next_back().is_some());
        let text = match why.as_deref().map(str::trim).filter(|why| !what.ends_with(why)) {
            Some(why) => format!("{} — {}", fit(&what, WHAT_CHARS), fit(why, WHY_CHARS)),
            None => fit(&what, WHAT_CHARS + WHY_CHARS),
        };
        Self { kind: Some(kind), text, has_values: false }
    }

    /// The cause of a trial that is not solved. Times and counts in the text may differ between trials.
    pub fn unsolved(text: impl Into<String>) -> Self {
        Self { kind: None, text: text.into(), has_values: false }
    }

    /// The cause of a rollout or a question that is not solved, from the text of [`of_ending`](Self::of_ending).
    pub fn of_evidence(text: impl Into<String>) -> Self {
        Self { has_values: true, ..Self::unsolved(text) }
    }

    /// What an unsolved rollout or question ended with: its answer, or the end of its last message, and what was
    /// expected.
    pub fn of_ending(ending: &RolloutEnding<'_>, redactor: &Redactor) -> Self {
        let start = |text: &str, most| cut(&on_one_line(&head(redactor, text)), most);
        let with_text = |text: &&str| !text.trim().is_empty();
        let expected = ending.expected.filter(with_text);
        let expected = expected.map(|text| format!(" (expected: {})", start(text, EXPECTED_CHARS)));
        let last = || {
            let message = ending.last?;
            let text = on_one_line(&tail(redactor, &message.text()));
            (!text.is_empty()).then(|| format!("{}: {}", message.role.as_str(), end(&text, END_CHARS)))
        };
        let answer = ending.answer.filter(with_text);
        let ended = answer.map(|answer| format!("answered: {}", start(answer, ANSWER_CHARS)));
        Self::of_evidence(match (ended.or_else(last), ending.stop_condition) {
            (Some(ended), _) => format!("{ended}{}", expected.unwrap_or_default()),
            (None, Some(stop)) => format!("no answer, ended by {}", start(stop, EXPECTED_CHARS)),
            (None, None) => "no answer".to_owned(),
        })
    }

    /// The last line that the tests of an unsolved trial printed; None without output.
    pub fn of_tests(job: &Path, trial: &TrialDir) -> Option<Self> {
        let dir = trial.verifier();
        let line = ["stdout.txt", "stderr.txt"].iter().find_map(|file| last_line(job, &dir.join(file)))?;
        Some(Self::unsolved(fit(&line, WHY_CHARS)))
    }

    /// The cause of an unsolved trial of which nothing more is known: its tests printed nothing, or no answer of a rollout
    /// or a question is recorded.
    pub fn unknown(is_rollout: bool) -> Self {
        Self::unsolved(if is_rollout { NO_ANSWER } else { NO_OUTPUT })
    }

    /// The same for all trials that have the cause. Times, counts and ids differ between them.
    fn key(&self) -> (Option<ErrorType>, String) {
        if self.has_values {
            return (self.kind, self.text.clone());
        }
        let mut key = String::with_capacity(self.text.len());
        for c in self.text.chars() {
            match c.is_ascii_digit() {
                true if key.ends_with('0') => {}
                true => key.push('0'),
                false => key.push(c),
            }
        }
        (self.kind, key)
    }
}

impl fmt::Display for TrialCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(f, "{kind}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// The beginning of a text without secrets. Twice as much is searched, because a secret that is cut is not found.
fn head(redactor: &Redactor, text: &str) -> String {
    let searched = redactor.text(&text[..text.floor_char_boundary(2 * PART_BYTES)]);
    searched[..searched.floor_char_boundary(PART_BYTES)].to_owned()
}

/// The end of a text without secrets.
fn tail(redactor: &Redactor, text: &str) -> String {
    let last = |text: &str, most: usize| text.floor_char_boundary(text.len().saturating_sub(most));
    let searched = redactor.text(&text[last(text, 2 * PART_BYTES)..]);
    searched[last(&searched, PART_BYTES)..].to_owned()
}

/// A text without line breaks and control characters.
fn on_one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    without_controls(&words.join(" "))
}

/// The last characters of a text, with an ellipsis if there are more.
fn end(text: &str, most: usize) -> String {
    match text.char_indices().rev().nth(most) {
        Some((before, c)) => format!("…{}", &text[before + c.len_utf8()..]),
        None => text.to_owned(),
    }
}

/// The last line of a file inside a job that has any words in it. Lines of summaries, such as pytest's
/// `=== 1 failed in 0.12s ===`, come after what is worth knowing.
pub fn last_line(job: &Path, path: &Path) -> Option<String> {
    let mut file = open_below(job, path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES))).ok()?;
    let mut end = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut end).ok()?;
    let end = String::from_utf8_lossy(&end);
    let lines = end.lines().rev().map(|line| without_controls(line.trim()));
    let mut lines = lines.filter(|line| line.chars().any(char::is_alphanumeric));
    let last = lines.next()?;
    let is_rule = |line: &str| line.starts_with("==") && line.ends_with("==");
    if !is_rule(&last) {
        return Some(last);
    }
    Some(lines.find(|line| !is_rule(line)).unwrap_or(last))
}

/// Trials that have one cause.
#[derive(Debug, Clone, PartialEq)]
pub struct CauseGroup {
    /// The cause, as the first trial shows it.
    pub cause: TrialCause,
    /// The first trial of the plan that was added.
    pub first: TrialId,
    /// The trials, in the order in which they were added.
    pub trials: Vec<TrialIndex>,
    lowest: TrialIndex,
}

/// The causes of trials, each with its trials.
#[derive(Debug, Default)]
pub struct CauseGroups {
    groups: Vec<CauseGroup>,
    numbers: HashMap<(Option<ErrorType>, String), usize>,
    others: u64,
}

impl CauseGroups {
    /// Adds a trial.
    pub fn add(&mut self, cause: TrialCause, index: TrialIndex, trial: TrialId) {
        let key = cause.key();
        if let Some(number) = self.numbers.get(&key) {
            let group = &mut self.groups[*number];
            group.trials.push(index);
            // The same one in every run, whichever ended first.
            if index < group.lowest {
                (group.cause, group.first, group.lowest) = (cause, trial, index);
            }
        } else if self.groups.len() < MAX_CAUSES {
            self.numbers.insert(key, self.groups.len());
            self.groups.push(CauseGroup { cause, first: trial, trials: vec![index], lowest: index });
        } else {
            self.others += 1;
        }
    }

    /// Removes a trial that has run again.
    pub fn remove(&mut self, index: TrialIndex) {
        self.groups.iter_mut().for_each(|group| group.trials.retain(|known| *known != index));
    }

    /// Whether an earlier trial had the same cause.
    pub fn contains(&self, cause: &TrialCause) -> bool {
        self.numbers.contains_key(&cause.key())
    }

    /// A group by its number, which stays the same while trials are added.
    pub fn get(&self, number: usize) -> Option<&CauseGroup> {
        self.groups.get(number)
    }

    /// The groups that have trials, the largest first, each with its number.
    pub fn most_frequent(&self) -> Vec<(usize, &CauseGroup)> {
        let mut groups: Vec<_> =
            self.groups.iter().enumerate().filter(|(_, group)| !group.trials.is_empty()).collect();
        groups.sort_by_key(|(_, group)| (Reverse(group.trials.len()), group.lowest));
        groups
    }

    /// The number of trials with causes beyond those that are known.
    pub fn others(&self) -> u64 {
        self.others
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rollout_core::name::{AgentName, DatasetName, TaskName};

    use super::*;

    fn trial(attempt: u32) -> TrialId {
        TrialId {
            agent: AgentName::new("shell").unwrap(),
            dataset: DatasetName::new("set").unwrap(),
            task: TaskName::new("task").unwrap(),
            attempt,
        }
    }

    #[test]
    fn trials_are_grouped_by_cause_whatever_numbers_it_has() {
        let mut causes = CauseGroups::default();
        for (index, text) in [(1, "no such file"), (3, "12 failed in 3.4s"), (2, "1 failed in 0.12s")] {
            causes.add(TrialCause::unsolved(text), TrialIndex(index), trial(index as u32));
        }
        assert!(causes.contains(&TrialCause::unsolved("7 failed in 10.0s")));
        assert!(!causes.contains(&TrialCause::unsolved("failed")));
        let of_error = TrialCause::of_error(ErrorType::InternalError, "no such file");
        assert!(!causes.contains(&of_error), "an error is another cause");
        let (number, group) = causes.most_frequent()[0];
        assert_eq!((group.trials.len(), group.cause.text.as_str()), (2, "1 failed in 0.12s"));
        assert_eq!(group.first, trial(2));
        causes.remove(TrialIndex(2));
        assert_eq!(causes.get(number).unwrap().trials, [TrialIndex(3)]);
    }

    #[test]
    fn an_error_is_shown_with_the_last_line_of_its_output() {
        let shown =
            |message: &str| TrialCause::of_error(ErrorType::AgentExecutionFailed, message).to_string();
        assert_eq!(
            shown(
                "execute exited with code 127\nlast lines of stderr.txt:\n+ pip\n\u{1b}[31mpip: not found\n"
            ),
            "agent_execution_failed: execute exited with code 127 — pip: not found",
        );
        assert_eq!(shown("out of memory"), "agent_execution_failed: out of memory");
        assert_eq!(shown("ended:\nby hand"), "agent_execution_failed: ended: by hand");
    }

    #[test]
    fn an_unsolved_rollout_is_shown_with_what_it_ended_with() {
        let shown = |output: &RolloutOutput| {
            TrialCause::of_ending(&output.into(), &Redactor::new(["s3cret-key"])).text
        };
        let mut output = RolloutOutput { answer: Some("in\nMarch".to_owned()), ..RolloutOutput::default() };
        assert_eq!(shown(&output), "no answer");
        output.stop_condition = Some("max_turns_reached".to_owned());
        assert_eq!(shown(&output), "no answer, ended by max_turns_reached");
        let said = |text: &str| Arc::new(Message::assistant(text));
        output.completion = Some(vec![said(&"x".repeat(200)), said("  ")]);
        assert_eq!(shown(&output), format!("assistant: …{} (expected: in March)", "x".repeat(100)));
        output.completion = Some(vec![said("the key is s3cret-key\u{1b}[31m")]);
        assert_eq!(shown(&output), "assistant: the key is [redacted] (expected: in March)");
        // Where the part that is read begins, a secret may be cut.
        let blank = " ".repeat(2 * PART_BYTES - 12);
        output.completion = Some(vec![said(&format!("s3cret-key{blank}no idea"))]);
        assert_eq!(shown(&output), "assistant: no idea (expected: in March)");
        output.columns.insert(PREDICTED_ANSWER.to_owned(), "April".into());
        assert_eq!(shown(&output), "answered: April (expected: in March)");
    }

    #[test]
    fn answers_that_differ_in_numbers_are_different_causes() {
        let mut causes = CauseGroups::default();
        for (index, text) in [(0, "answered: 41"), (1, "answered: 7"), (2, "answered: 41")] {
            causes.add(TrialCause::of_evidence(text), TrialIndex(index), trial(1));
        }
        let sizes: Vec<_> = causes.most_frequent().iter().map(|(_, group)| group.trials.len()).collect();
        assert_eq!(sizes, [2, 1]);
    }

    #[test]
    fn the_line_of_a_test_run_is_the_one_before_its_summary() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("stdout.txt");
        let line = |text: &str| {
            std::fs::write(&file, text).unwrap();
            last_line(dir.path(), &file)
        };
        let pytest = "FAILED test_x.py::test - assert 1 == 2\n======= 1 failed in 0.12s =======\n\n";
        assert_eq!(line(pytest).as_deref(), Some("FAILED test_x.py::test - assert 1 == 2"));
        assert_eq!(line("== only ==\n---\n").as_deref(), Some("== only =="));
        assert_eq!(line("\n----\n"), None);
    }
}
