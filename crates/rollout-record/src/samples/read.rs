//! Reads samples from saved rows, one row at a time.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, BufRead},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::Value;

use crate::lines::Lines;
use rollout_core::{
    response::{Response, RoutedExperts},
    row::{OutputError, STOPPED_BY_TIMEOUT, TaskResult},
    sample::{self, Sample, SampleError, SampleTokens, SampleTurn, SampledRollout},
};

/// Reads the samples of saved rows. It holds one row at a time.
///
/// A line without samples is an error; reading continues with the next line, and the caller decides. Rollouts that
/// failed or timed out are left out and counted, unless [`include_errors`](Self::include_errors) is set.
#[derive(Debug)]
pub struct SampleReader<R> {
    rows: Lines<R>,
    line: u64,
    ready: VecDeque<Sample>,
    includes_errors: bool,
    left_out: BTreeMap<String, u64>,
}

/// Why a line has no samples.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read. Reading ends here.
    #[error("cannot read the rows after line {line}")]
    Io {
        /// The last line that was read.
        line: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The line is not a row.
    #[error("line {line} is not a saved rollout")]
    NotARow {
        /// The line, counted from 1.
        line: u64,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The line is a benchmark answer.
    #[error("line {line} is a benchmark answer, which has no tokens")]
    Benchmark {
        /// The line, counted from 1.
        line: u64,
    },
    /// The line has no turns.
    #[error("line {line} has no `trajectory`; add it to `state_columns`")]
    NoTrajectory {
        /// The line, counted from 1.
        line: u64,
    },
    /// The turns cannot be converted to samples.
    #[error("line {line} has no samples")]
    NoSamples {
        /// The line, counted from 1.
        line: u64,
        /// Why.
        #[source]
        source: SampleError,
    },
}

#[derive(Deserialize)]
#[serde(expecting = "an object with an `example_id`")]
struct Row {
    example_id: u64,
    #[serde(default)]
    task: String,
    reward: Option<f64>,
    advantage: Option<f64>,
    #[serde(default)]
    error: Option<OutputError>,
    #[serde(default)]
    stop_condition: Option<String>,
    trajectory: Option<Vec<Step>>,
}

/// A saved turn.
#[derive(Deserialize)]
pub(super) struct Step {
    tokens: Option<StepTokens>,
    #[serde(default)]
    reward: Option<f64>,
    advantage: Option<f64>,
    #[serde(default)]
    is_truncated: bool,
    #[serde(default)]
    trajectory_id: Arc<str>,
    #[serde(default)]
    response: Option<Value>,
}

#[derive(Deserialize)]
struct StepTokens {
    prompt_ids: Vec<u32>,
    completion_ids: Vec<u32>,
    completion_mask: Option<Vec<u8>>,
    completion_logprobs: Vec<f64>,
    #[serde(default)]
    routed_experts: Option<RoutedExperts>,
}

impl Step {
    /// Returns the version of the policy that sampled the turn.
    fn policy_version(&self) -> Option<Arc<str>> {
        let response = Response::deserialize(self.response.as_ref()?).ok()?;
        response.policy_version().map(Into::into)
    }
}

/// Returns why a rollout is excluded from training: the names of its error and causes, or the stop condition of a
/// timeout. None if it is not excluded.
pub(super) fn cut_short(error: Option<&OutputError>, stop_condition: Option<&str>) -> Option<String> {
    match error.filter(|error| !error.is_counted()) {
        Some(error) => Some(error.error_chain_str.clone()),
        None => stop_condition.filter(|name| *name == STOPPED_BY_TIMEOUT).map(str::to_owned),
    }
}

impl<R: BufRead> SampleReader<R> {
    /// Creates a reader of `outputs.jsonl`.
    pub fn new(rows: R) -> Self {
        Self {
            rows: Lines::new(rows),
            line: 0,
            ready: VecDeque::new(),
            includes_errors: false,
            left_out: BTreeMap::new(),
        }
    }

    /// Sets whether rollouts that failed or timed out are included.
    #[must_use]
    pub fn include_errors(self, includes_errors: bool) -> Self {
        Self { includes_errors, ..self }
    }

    /// Returns the number of rollouts left out so far by cause: the names of an error and its causes, or a stop
    /// condition.
    pub fn left_out(&self) -> &BTreeMap<String, u64> {
        &self.left_out
    }

    /// Reads the samples of the next row. Returns false at the end.
    fn advance(&mut self) -> Result<bool, ReadError> {
        let read = self.rows.next_line().map_err(|source| ReadError::Io { line: self.line, source })?;
        let Some(line) = read else { return Ok(false) };
        self.line = line.number;
        if !line.is_blank() {
            let row = row(line.bytes, line.number)?;
            match cut_short(row.error.as_ref(), row.stop_condition.as_deref()) {
                Some(cause) if !self.includes_errors => *self.left_out.entry(cause).or_default() += 1,
                _ => self.ready = samples(row, line.number)?.into(),
            }
        }
        Ok(true)
    }
}

impl<R: BufRead> Iterator for SampleReader<R> {
    type Item = Result<Sample, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(sample) = self.ready.pop_front() {
                return Some(Ok(sample));
            }
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn row(row: &[u8], line: u64) -> Result<Row, ReadError> {
    serde_json::from_slice(row).map_err(|source| match is_answer(row) {
        true => ReadError::Benchmark { line },
        false => ReadError::NotARow { line, source },
    })
}

fn samples(row: Row, line: u64) -> Result<Vec<Sample>, ReadError> {
    let steps = row.trajectory.ok_or(ReadError::NoTrajectory { line })?;
    let rollout = SampledRollout {
        example_id: row.example_id,
        task: row.task.into(),
        reward: row.reward.unwrap_or(0.0),
        advantage: row.advantage,
        error: row.error.map(|error| error.error_chain_str.into()),
        stop_condition: row.stop_condition.map(Into::into),
    };
    of_steps(rollout, &steps).map_err(|source| ReadError::NoSamples { line, source })
}

/// Converts the saved turns of a rollout to samples.
pub(super) fn of_steps(mut rollout: SampledRollout, steps: &[Step]) -> Result<Vec<Sample>, SampleError> {
    rollout.advantage = rollout.advantage.or_else(|| steps.iter().find_map(|step| step.advantage));
    let turns = steps.iter().map(|step| SampleTurn {
        tokens: step.tokens.as_ref().map(|tokens| SampleTokens {
            prompt_ids: &tokens.prompt_ids,
            completion_ids: &tokens.completion_ids,
            completion_mask: tokens.completion_mask.as_deref(),
            completion_logprobs: &tokens.completion_logprobs,
            routed_experts: tokens.routed_experts.as_ref(),
        }),
        reward: step.reward,
        advantage: step.advantage,
        policy_version: step.policy_version(),
        is_truncated: step.is_truncated,
        trajectory_id: &step.trajectory_id,
    });
    sample::samples(&rollout, turns)
}

/// Whether a row is a benchmark answer.
fn is_answer(row: &[u8]) -> bool {
    serde_json::from_slice(row).is_ok_and(|row| TaskResult::is_in(&row))
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    const ROW: &str = r#"{"example_id": 1, "task": "t", "reward": 2.0, "prompt": [], "trajectory": [{"prompt": [],
        "trajectory_id": "x", "advantage": 0.5, "is_truncated": true, "tokens": {"prompt_ids": [1], "prompt_mask": [0],
        "completion_ids": [2], "completion_mask": [1], "completion_logprobs": [-0.5]}}]}"#;

    fn read(text: &str) -> Vec<Result<Sample, String>> {
        let message = |error: ReadError| match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        SampleReader::new(text.as_bytes()).map(|sample| sample.map_err(message)).collect()
    }

    #[test]
    fn a_line_that_is_no_row_does_not_keep_others_from_being_read() {
        let row = ROW.replace('\n', "");
        let text = format!("{row}\n\n[1]\n{{\"example_id\": 1}}\n{row}\n{}", &row[..50]);
        let read = read(&text);
        assert_eq!(read.iter().filter(|sample| sample.is_ok()).count(), 2);
        let errors: Vec<_> = read.into_iter().filter_map(Result::err).collect();
        insta::assert_snapshot!(errors.join("\n"), @"
        line 3 is not a saved rollout: invalid length 2, expected an object with an `example_id` at line 1 column 3
        line 4 has no `trajectory`; add it to `state_columns`
        line 6 is not a saved rollout: EOF while parsing a string at line 1 column 50
        ");
    }

    #[test]
    fn samples_have_the_ids_of_their_row() {
        let sample = read(&ROW.replace('\n', "")).remove(0).unwrap();
        assert_eq!((sample.example_id, &*sample.task, &*sample.trajectory_id), (1, "t", "x"));
        assert_eq!((sample.reward, sample.advantage, sample.is_truncated), (2.0, Some(0.5), true));
    }

    #[test]
    fn rollouts_that_failed_or_timed_out_are_left_out_and_counted() {
        let row = |more: &str| ROW.replace('\n', "").replacen('{', &format!("{{{more}, "), 1);
        let failed =
            r#""error": {"error": "ModelError", "error_chain_str": "ModelError -> HTTPStatusError"}"#;
        let text = [
            row(r#""stop_condition": "max_turns_reached", "error": null"#),
            row(failed),
            row(r#""stop_condition": "timeout_reached""#),
            row(failed),
        ]
        .join("\n");
        let mut reader = SampleReader::new(text.as_bytes());
        assert_eq!(reader.by_ref().map(Result::unwrap).count(), 1);
        let left_out: Vec<_> =
            reader.left_out().iter().map(|(cause, number)| (cause.as_str(), *number)).collect();
        assert_eq!(left_out, [("ModelError -> HTTPStatusError", 2), ("timeout_reached", 1)]);

        let mut all = SampleReader::new(text.as_bytes()).include_errors(true);
        let samples: Vec<_> = all.by_ref().map(Result::unwrap).collect();
        let ends: Vec<_> =
            samples.iter().map(|s| (s.error.as_deref(), s.stop_condition.as_deref())).collect();
        assert_eq!(ends[0], (None, Some("max_turns_reached")));
        assert_eq!(ends[1], (Some("ModelError -> HTTPStatusError"), None));
        assert_eq!(ends[2], (None, Some("timeout_reached")));
        assert!(all.left_out().is_empty());
    }

    #[test]
    fn turns_have_their_rewards_and_the_version_of_the_policy() {
        let row = ROW.replace('\n', "").replace(
            r#""trajectory_id": "x","#,
            r#""trajectory_id": "x", "reward": 0.25, "response": {"model": "m", "policy_version": 7,
                "message": {"role": "assistant", "content": "hi"}},"#,
        );
        let sample = read(&row.replace('\n', "")).remove(0).unwrap();
        assert_eq!(
            (sample.turns[0].reward, sample.turns[0].policy_version.as_deref()),
            (Some(0.25), Some("7"))
        );
    }

    #[test]
    fn a_rollout_without_turns_has_no_samples() {
        assert!(read(r#"{"example_id": 1, "reward": 0.0, "trajectory": []}"#).is_empty());
    }

    #[test]
    fn the_error_of_a_row_without_tokens_explains_how_to_get_them() {
        let errors = read(r#"{"example_id": 1, "reward": 0.0, "trajectory": [{"tokens": null}]}"#);
        insta::assert_snapshot!(errors[0].as_ref().unwrap_err(), @"line 1 has no samples: no turn has tokens; set `token_ids: true` for the model, and use a server that returns token ids");
    }

    /// Endless rows, generated while reading.
    struct Rows(io::Cursor<Vec<u8>>, u32);

    impl io::Read for Rows {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let length = self.0.read(to)?;
            if length > 0 || self.1 == 0 {
                return Ok(length);
            }
            self.1 -= 1;
            self.0.set_position(0);
            self.0.read(to)
        }
    }

    #[test]
    fn rows_are_read_as_samples_are_asked_for() {
        let row = ROW.replace('\n', "") + "\n";
        let length = row.len();
        let mut reader =
            SampleReader::new(io::BufReader::with_capacity(64, Rows(io::Cursor::new(row.into()), 9_999)));
        let count = reader.by_ref().map(Result::unwrap).count();
        assert_eq!(count, 10_000);
        assert!(reader.rows.bytes.capacity() < 4 * length && reader.ready.capacity() <= 8);
    }
}
