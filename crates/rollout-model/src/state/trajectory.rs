//! The turns of a rollout.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::State;
use rollout_core::{
    message::Messages,
    response::{Response, ResponseTokens, RoutedExperts},
};

/// One turn: the prompt, and the model's response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrajectoryStep {
    /// The messages of the prompt.
    pub prompt: Messages,
    /// The messages of the model.
    pub completion: Messages,
    /// Its response, as returned by the client.
    pub response: Arc<Response>,
    /// The tokens of the turn, if the server returns them.
    pub tokens: Option<StepTokens>,
    /// The reward of the turn. None is replaced by the reward of the rollout.
    pub reward: Option<f64>,
    /// The advantage of the turn. None is replaced by the advantage of the rollout.
    pub advantage: Option<f64>,
    /// Whether the response was cut off.
    #[serde(default)]
    pub is_truncated: bool,
    /// The id of the rollout.
    pub trajectory_id: Arc<str>,
    /// Data that an interaction stores with the turn.
    #[serde(default)]
    pub extras: Map<String, Value>,
}

impl TrajectoryStep {
    /// A turn in which the model answered `prompt` with `response`.
    pub fn new(state: &State, prompt: Messages, response: Response) -> Self {
        let tokens = response.tokens.clone().map(|tokens| StepTokens::new(tokens, state.model.max_seq_len));
        Self {
            prompt,
            completion: vec![Arc::new(response.message.clone())],
            is_truncated: response.is_truncated()
                || tokens.as_ref().is_some_and(|tokens| tokens.is_truncated),
            tokens,
            response: Arc::new(response),
            reward: None,
            advantage: None,
            trajectory_id: Arc::clone(&state.trajectory_id),
            extras: Map::new(),
        }
    }
}

/// The tokens of a turn. The masks are for the loss: 0 for the prompt, 1 for the completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepTokens {
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// A 0 for each token of the prompt.
    pub prompt_mask: Vec<u8>,
    /// The completion.
    pub completion_ids: Vec<u32>,
    /// A 1 for each token of the completion.
    pub completion_mask: Vec<u8>,
    /// The logarithm of each completion token's probability.
    pub completion_logprobs: Vec<f64>,
    /// Whether the prompt alone was longer than the longest sequence.
    pub overlong_prompt: bool,
    /// Whether the prompt or the completion was cut.
    pub is_truncated: bool,
    /// The experts that processed each token, if the model has experts.
    pub routed_experts: Option<RoutedExperts>,
}

impl StepTokens {
    /// The tokens of a response, cut so that prompt and completion fit into `max_seq_len` together.
    pub fn new(tokens: ResponseTokens, max_seq_len: Option<usize>) -> Self {
        let ResponseTokens {
            mut prompt_ids,
            mut completion_ids,
            mut completion_logprobs,
            mut routed_experts,
        } = tokens;
        let limit = max_seq_len.unwrap_or(usize::MAX);
        let overlong_prompt = prompt_ids.len() > limit;
        let is_truncated = prompt_ids.len() + completion_ids.len() > limit;
        let room = limit.saturating_sub(prompt_ids.len());
        prompt_ids.truncate(limit);
        completion_ids.truncate(room);
        completion_logprobs.truncate(room);
        if let Some(experts) = &mut routed_experts {
            experts.truncate(limit);
        }
        Self {
            prompt_mask: vec![0; prompt_ids.len()],
            completion_mask: vec![1; completion_ids.len()],
            prompt_ids,
            completion_ids,
            completion_logprobs,
            overlong_prompt,
            is_truncated,
            routed_experts,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use rollout_core::message::Message;

    fn cut(prompt: u32, completion: u32, limit: Option<usize>) -> StepTokens {
        let tokens = ResponseTokens {
            prompt_ids: (0..prompt).collect(),
            completion_ids: (0..completion).collect(),
            completion_logprobs: (0..completion).map(f64::from).collect(),
            routed_experts: None,
        };
        StepTokens::new(tokens, limit)
    }

    fn lengths(tokens: &StepTokens) -> [usize; 5] {
        [
            tokens.prompt_ids.len(),
            tokens.prompt_mask.len(),
            tokens.completion_ids.len(),
            tokens.completion_mask.len(),
            tokens.completion_logprobs.len(),
        ]
    }

    #[test]
    fn tokens_are_cut_to_the_longest_sequence() {
        for (prompt, completion, limit, expected, overlong, truncated) in [
            (3, 2, None, [3, 3, 2, 2, 2], false, false),
            (3, 2, Some(5), [3, 3, 2, 2, 2], false, false),
            (3, 4, Some(5), [3, 3, 2, 2, 2], false, true),
            (5, 1, Some(5), [5, 5, 0, 0, 0], false, true),
            (5, 0, Some(5), [5, 5, 0, 0, 0], false, false),
            (6, 2, Some(5), [5, 5, 0, 0, 0], true, true),
        ] {
            let tokens = cut(prompt, completion, limit);
            assert_eq!(lengths(&tokens), expected, "{prompt} {completion} {limit:?}");
            assert_eq!((tokens.overlong_prompt, tokens.is_truncated), (overlong, truncated));
        }
    }

    #[test]
    fn a_saved_turn_is_read_back_unchanged() {
        let response = Response {
            id: "r1".into(),
            created: 1,
            model: "m".into(),
            usage: None,
            message: Message::assistant("4"),
            finish_reason: None,
            tokens: None,
            extra: Map::new(),
        };
        let step = TrajectoryStep {
            prompt: vec![Arc::new(Message::user("2+2?"))],
            completion: vec![Arc::new(response.message.clone())],
            response: Arc::new(response),
            tokens: Some(cut(2, 1, None)),
            reward: Some(1.0),
            advantage: None,
            is_truncated: false,
            trajectory_id: "a3f9".into(),
            extras: Map::from_iter([("board".to_owned(), json!([0, 1]))]),
        };
        let saved = serde_json::to_value(&step).unwrap();
        let keys: Vec<_> = saved.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            [
                "prompt",
                "completion",
                "response",
                "tokens",
                "reward",
                "advantage",
                "is_truncated",
                "trajectory_id",
                "extras"
            ]
        );
        assert_eq!(serde_json::from_value::<TrajectoryStep>(saved).unwrap(), step);
    }

    #[test]
    fn experts_are_cut_with_the_tokens() {
        let tokens = ResponseTokens {
            prompt_ids: vec![1, 2],
            completion_ids: vec![3, 4],
            completion_logprobs: vec![-0.1, -0.2],
            routed_experts: Some((0..4).map(|token| vec![vec![token]]).collect()),
        };
        let experts = |limit| StepTokens::new(tokens.clone(), limit).routed_experts.unwrap().len();
        assert_eq!((experts(None), experts(Some(3)), experts(Some(1))), (4, 3, 1));
    }

    #[test]
    fn masks_limit_the_loss_to_the_completion() {
        let tokens = cut(2, 3, None);
        assert_eq!((tokens.prompt_mask, tokens.completion_mask), (vec![0, 0], vec![1, 1, 1]));
    }
}
