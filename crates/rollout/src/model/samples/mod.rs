//! Training samples from the turns of rollouts.
//!
//! A turn becomes part of the sample before it if its prompt begins with exactly the tokens of that sample; the tokens
//! that are new in the prompt were said by others, and the loss is not to see them. If anything before was changed, as by
//! a template that drops old thoughts, the turn begins a sample of its own. So no token is trained on in a context
//! other than that in which it was sampled, and few are repeated.
//!
//! Samples come from a [`State`] or, one row at a time, from saved outputs that have the column `trajectory`:
//!
//! ```
//! use rollout::model::samples::SampleReader;
//!
//! let outputs = r#"{"example_id": 7, "task": "math", "reward": 1.0, "trajectory": [
//!     {"trajectory_id": "a3f9", "advantage": 0.5, "tokens":
//!         {"prompt_ids": [1, 2], "completion_ids": [3], "completion_logprobs": [-0.1]}},
//!     {"trajectory_id": "a3f9", "advantage": 0.5, "tokens":
//!         {"prompt_ids": [1, 2, 3, 4], "completion_ids": [5], "completion_logprobs": [-0.2]}}]}"#;
//! let line = outputs.replace('\n', "");
//! for sample in SampleReader::new(line.as_bytes()) {
//!     let sample = sample?;
//!     assert_eq!(sample.token_ids, [1, 2, 3, 4, 5]);
//!     assert_eq!(sample.loss_mask, [0, 0, 1, 0, 1]);
//!     sample.write_jsonl(&mut std::io::sink())?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading and writing block; a service does them on threads of their own.

mod merge;
#[cfg(feature = "parquet")]
mod parquet;
mod read;
mod saved;

use std::{io, sync::Arc};

use serde::{Deserialize, Serialize};

#[cfg(feature = "parquet")]
pub use self::parquet::{ParquetWriteError, ParquetWriter};
pub use self::read::{ReadError, SampleReader};
pub use self::saved::TrialSampleError;
use super::State;

/// A sequence of tokens to train on. All its lists are of one length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The example.
    pub example_id: u64,
    /// What kind of task it is.
    pub task: Arc<str>,
    /// The rollout.
    pub trajectory_id: Arc<str>,
    /// The first turn in it, counted from 0.
    pub first_turn: u32,
    /// The last turn in it.
    pub last_turn: u32,
    /// The reward of the rollout.
    pub reward: f64,
    /// The advantage of the rollout. None if it was scored without a group.
    pub advantage: Option<f64>,
    /// Whether the model was cut off in any of the turns.
    pub is_truncated: bool,
    /// The tokens.
    pub token_ids: Vec<u32>,
    /// 1 on what the model sampled, 0 on what it was shown.
    pub loss_mask: Vec<u8>,
    /// The logarithm of each sampled token's probability; 0 elsewhere.
    pub logprobs: Vec<f64>,
    /// The advantage of each sampled token: that of its turn, which is the rollout's unless the interaction set another
    /// one; 0 elsewhere, and where there is none.
    pub advantages: Vec<f64>,
}

/// Why turns make no samples.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// No turn has tokens.
    #[error("no turn has tokens; set `token_ids: true` for the model, whose server has to give token ids")]
    NoTokens,
    /// Lists that belong together are not of one length.
    #[error("turn {turn} has {tokens} completion tokens with {others} {what}")]
    Misaligned {
        /// The turn, counted from 0.
        turn: u32,
        /// How many tokens there are.
        tokens: usize,
        /// How many of the others there are.
        others: usize,
        /// What the others are.
        what: &'static str,
    },
}

impl Sample {
    /// The samples of a scored rollout. A rollout without any turn has none.
    pub fn of_state(state: &State) -> Result<Vec<Self>, SampleError> {
        let rollout = merge::Rollout {
            example_id: state.input.example_id,
            task: state.input.task.as_str().into(),
            reward: state.reward.unwrap_or(0.0),
            advantage: state.advantage,
        };
        let turns = state.trajectory.iter().map(|step| merge::Turn {
            tokens: step.tokens.as_ref().map(|tokens| merge::Tokens {
                prompt_ids: &tokens.prompt_ids,
                completion_ids: &tokens.completion_ids,
                completion_mask: Some(&tokens.completion_mask),
                completion_logprobs: &tokens.completion_logprobs,
            }),
            advantage: step.advantage,
            is_truncated: step.is_truncated,
            trajectory_id: &step.trajectory_id,
        });
        merge::samples(&rollout, turns)
    }

    /// Writes the sample as a line of JSON.
    pub fn write_jsonl(&self, to: &mut impl io::Write) -> io::Result<()> {
        serde_json::to_writer(&mut *to, self)?;
        to.write_all(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::model::{
        Client, Message, Model, Response, ResponseTokens, RolloutInput, Rubric, TrajectoryStep,
        client::ClientConfig,
    };

    fn step(state: &State, prompt_ids: Vec<u32>, completion_ids: Vec<u32>) -> TrajectoryStep {
        let response = Response {
            id: String::new(),
            created: 0,
            model: String::new(),
            usage: None,
            message: Message::assistant("so"),
            finish_reason: None,
            tokens: Some(ResponseTokens {
                completion_logprobs: completion_ids.iter().map(|&id| -f64::from(id)).collect(),
                prompt_ids,
                completion_ids,
                routed_experts: None,
            }),
            extra: Map::new(),
        };
        TrajectoryStep::new(state, vec![Arc::new(Message::user("and?"))], response)
    }

    fn state(max_seq_len: Option<usize>) -> State {
        let client = Client::new(ClientConfig::new("http://127.0.0.1:9/v1")).unwrap();
        let model = Model { client, name: "m".to_owned(), sampling: Map::new(), max_seq_len };
        let input = RolloutInput { example_id: 7, task: "sums".to_owned(), ..RolloutInput::default() };
        State::new(input, Arc::new(model), Arc::new([]))
    }

    async fn scored(state: State) -> State {
        let mut states = [state, self::state(None)];
        let rubric = Rubric::new().reward("turns", 1.0, |scene| scene.state.trajectory.len());
        rubric.score_group(&mut states).await;
        let [state, _] = states;
        state
    }

    #[tokio::test]
    async fn a_state_gives_the_same_samples_as_its_saved_row() {
        let mut state = state(None);
        state.trajectory = vec![step(&state, vec![1], vec![2, 3]), step(&state, vec![1, 2, 3, 4], vec![5])];
        state.trajectory[1].advantage = Some(9.0);
        let state = scored(state).await;
        let samples = Sample::of_state(&state).unwrap();
        assert_eq!(samples.len(), 1);
        assert_eq!((samples[0].reward, samples[0].advantage), (2.0, Some(1.0)));
        assert_eq!(samples[0].advantages, [0.0, 1.0, 1.0, 0.0, 9.0]);
        let row = json!({
            "example_id": 7, "task": "sums", "reward": state.reward, "trajectory": state.trajectory,
        });
        let read: Vec<_> = SampleReader::new(row.to_string().as_bytes()).map(Result::unwrap).collect();
        assert_eq!(read, samples);
    }

    #[tokio::test]
    async fn a_line_of_json_is_the_whole_sample() {
        let mut state = state(None);
        state.trajectory = vec![step(&state, vec![1], vec![2])];
        state.trajectory[0].trajectory_id = "a3f9".into();
        let sample = Sample::of_state(&scored(state).await).unwrap().remove(0);
        let mut line = Vec::new();
        sample.write_jsonl(&mut line).unwrap();
        let line = String::from_utf8(line).unwrap();
        insta::assert_snapshot!(line, @r#"{"example_id":7,"task":"sums","trajectory_id":"a3f9","first_turn":0,"last_turn":0,"reward":1.0,"advantage":0.5,"is_truncated":false,"token_ids":[1,2],"loss_mask":[0,1],"logprobs":[0.0,-2.0],"advantages":[0.0,0.5]}"#);
        assert_eq!(serde_json::from_str::<Sample>(&line).unwrap(), sample);
    }

    #[tokio::test]
    async fn turns_that_were_cut_say_so_and_those_without_a_completion_are_left_out() {
        let mut state = state(Some(3));
        state.trajectory =
            vec![step(&state, vec![1], vec![2, 3, 4]), step(&state, vec![1, 2, 3, 4, 5], vec![6])];
        let samples = Sample::of_state(&scored(state).await).unwrap();
        assert_eq!(samples.len(), 1);
        assert_eq!(
            (&samples[0].token_ids[..], samples[0].last_turn, samples[0].is_truncated),
            (&[1, 2, 3][..], 0, true)
        );
    }
}
