//! Entries of a journal, parsed as far as they are needed. A job may have 100,000 trials, and a list needs only a few
//! values of each.

use std::{borrow::Cow, sync::Arc};

use serde::{Deserialize, de::Error as _};
use serde_json::value::RawValue;

use super::JournalEntry;
use rollout_core::{
    name::TrialIndex,
    result::{
        CallTotals, DEFAULT_PASS_THRESHOLD, ErrorType, ModelCalls, Standing, TrialResult, TrialSummary,
    },
};

/// What lists and totals need of a trial's result.
#[derive(Debug, Deserialize)]
pub struct TrialOutline<'a> {
    /// The agent.
    #[serde(borrow)]
    pub agent_name: Cow<'a, str>,
    /// The dataset of the task.
    #[serde(borrow)]
    pub dataset_name: Cow<'a, str>,
    /// The task that was attempted.
    #[serde(borrow)]
    pub task_name: Cow<'a, str>,
    /// The attempt, counted from 1.
    pub attempt: u32,
    /// The error.
    #[serde(borrow)]
    pub error: Option<ErrorOutline<'a>>,
    reward: Option<f64>,
    #[serde(default = "default_pass_threshold")]
    pass_threshold: f64,
    environment_cost: f64,
    model_cost: Option<f64>,
    /// Needed only with calls through the gateway, so it is parsed only then.
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    model_calls: Option<ModelCalls>,
    durations: DurationOutline,
    #[serde(default)]
    agent_starts: u32,
    #[serde(default)]
    leaves_out_step: bool,
    #[serde(default)]
    incomplete_logs: bool,
}

/// The error of a trial.
#[derive(Debug, Deserialize)]
pub struct ErrorOutline<'a> {
    /// The type of the failure.
    #[serde(rename = "type")]
    pub kind: ErrorType,
    /// The message.
    #[serde(borrow)]
    pub message: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
struct DurationOutline {
    total_sec: f64,
}

fn default_pass_threshold() -> f64 {
    DEFAULT_PASS_THRESHOLD
}

impl TrialOutline<'_> {
    /// The values that totals need.
    pub fn summary(&self) -> TrialSummary {
        let error = self.error.as_ref().map(|error| error.kind);
        TrialSummary {
            standing: Standing::of(self.reward.filter(|_| !self.leaves_out_step), error),
            reward: self.reward,
            pass_threshold: self.pass_threshold,
            error,
            environment_cost: self.environment_cost,
            model_cost: self.model_cost,
            seconds: self.durations.total_sec,
            is_restarted: self.agent_starts > 1,
            has_incomplete_logs: self.incomplete_logs,
            model_calls: self.model_calls.as_ref().map(|calls| {
                let usage = self.usage.and_then(|usage| serde_json::from_str(usage.get()).ok());
                CallTotals::new(calls, usage.unwrap_or_default())
            }),
        }
    }
}

/// One line of the journal.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time is on the stack; a box would cost an allocation per trial"
)]
pub(crate) enum OutlinedEntry<'a> {
    /// A trial ended, with its place in the plan of that time.
    Trial(TrialIndex, TrialOutline<'a>),
    /// Anything else.
    Other(JournalEntry),
}

impl<'a> OutlinedEntry<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Line<'a> {
            #[serde(borrow)]
            entry: Cow<'a, str>,
            index: Option<TrialIndex>,
            #[serde(borrow)]
            result: Option<TrialOutline<'a>>,
        }
        // Checking the text at once costs less than checking each of its strings.
        let text = std::str::from_utf8(bytes).map_err(serde_json::Error::custom)?;
        match serde_json::from_str(text)? {
            Line { entry, index: Some(index), result: Some(result) } if entry == TRIAL => {
                Ok(Self::Trial(index, result))
            }
            _ => serde_json::from_slice(bytes).map(Self::Other),
        }
    }
}

/// The name of the entry of a trial.
const TRIAL: &str = "trial";

/// Parses an entry. Most are trials. They are read without the derived code, which first makes a tree of the whole line
/// to find out what it is.
pub(crate) fn parse(bytes: &[u8]) -> Result<JournalEntry, serde_json::Error> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(borrow)]
        entry: Cow<'a, str>,
        index: Option<TrialIndex>,
        result: Option<Arc<TrialResult>>,
    }
    match serde_json::from_slice(bytes)? {
        Line { entry, index: Some(index), result: Some(result) } if entry == TRIAL => {
            Ok(JournalEntry::Trial { index, result })
        }
        _ => serde_json::from_slice(bytes),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rollout_core::{
        name::{AgentName, DatasetName, TaskName, TrialId},
        result::{AgentUsage, TrialError},
    };

    use super::*;

    fn result() -> TrialResult {
        let id = TrialId {
            agent: AgentName::new("agent \"x\"").unwrap(),
            dataset: DatasetName::new("日本").unwrap(),
            task: TaskName::new("task").unwrap(),
            attempt: 7,
        };
        TrialResult::empty(&id, Timestamp::UNIX_EPOCH)
    }

    fn line(result: &TrialResult) -> Vec<u8> {
        let entry = JournalEntry::Trial { index: TrialIndex(5), result: Arc::new(result.clone()) };
        serde_json::to_vec(&entry).unwrap()
    }

    #[test]
    fn an_outline_has_the_summary_and_the_error_of_a_result() {
        let mut results = vec![result()];
        for (reward, kind, leaves_out_step) in [
            (Some(0.5), None, false),
            (Some(1.0), Some(ErrorType::ModelFailed), false),
            (Some(1.0), Some(ErrorType::VerifierFailed), true),
            (None, Some(ErrorType::TaskInvalid), false),
        ] {
            let error = kind.map(|kind| TrialError { kind, message: "no\nsuch \"file\"".to_owned() });
            let result = TrialResult { reward, error, leaves_out_step, ..result() };
            results.push(TrialResult { pass_threshold: 0.5, agent_starts: 2, ..result });
        }
        results.push(TrialResult {
            model_cost: Some(0.25),
            environment_cost: 0.5,
            usage: Some(AgentUsage { input_tokens: Some(3), output_tokens: None, ..AgentUsage::default() }),
            model_calls: Some(ModelCalls { calls: 4, turns: 3, ..ModelCalls::default() }),
            incomplete_logs: true,
            ..result()
        });
        for result in results {
            let line = line(&result);
            let OutlinedEntry::Trial(index, outline) = OutlinedEntry::parse(&line).unwrap() else {
                panic!("it is a trial");
            };
            assert_eq!((index, outline.summary()), (TrialIndex(5), TrialSummary::from(&result)));
            assert_eq!((&*outline.agent_name, &*outline.dataset_name), ("agent \"x\"", "日本"));
            assert_eq!((&*outline.task_name, outline.attempt), ("task", 7));
            let error = outline
                .error
                .map(|error| TrialError { kind: error.kind, message: error.message.into_owned() });
            assert_eq!(error, result.error);
            let JournalEntry::Trial { index, result: whole } = parse(&line).unwrap() else {
                panic!("it is a trial");
            };
            assert_eq!((index, &*whole), (TrialIndex(5), &result));
        }
    }

    #[test]
    fn entries_are_read_in_any_order_of_their_keys_and_older_ones_too() {
        let trial = r#"{"result":{"task_name":"t","dataset_name":"d","agent_name":"a","attempt":1,
            "environment_cost":0.0,"durations":{"total_sec":1.5}},"index":3,"entry":"trial"}"#;
        let OutlinedEntry::Trial(TrialIndex(3), outline) = OutlinedEntry::parse(trial.as_bytes()).unwrap()
        else {
            panic!("it is a trial");
        };
        assert_eq!((outline.summary().pass_threshold, outline.summary().seconds), (1.0, 1.5));
        let ended = br#"{"cancelled":true,"at":"2026-01-02T03:04:05Z","entry":"run_ended"}"#;
        let is_ended = |entry: &JournalEntry| matches!(entry, JournalEntry::RunEnded { cancelled: true, .. });
        assert!(is_ended(&parse(ended).unwrap()));
        assert!(
            matches!(OutlinedEntry::parse(ended).unwrap(), OutlinedEntry::Other(entry) if is_ended(&entry))
        );
    }

    #[test]
    fn a_line_that_is_no_entry_is_an_error() {
        for line in [&b"{}"[..], br#"{"entry":"trial","index":1}"#, b"{\"entry\":\"\xff\"}", b"\0\0"] {
            assert!(OutlinedEntry::parse(line).is_err() && parse(line).is_err(), "{line:?}");
        }
        let problem = parse(br#"{"entry":"trial","index":1}"#).unwrap_err().to_string();
        assert!(problem.contains("missing field `result`"), "{problem}");
    }
}
