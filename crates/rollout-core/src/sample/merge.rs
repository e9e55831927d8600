//! Merges turns into samples.

use std::sync::Arc;

use super::{Sample, SampleError, SampledTurn};
use crate::response::RoutedExperts;

/// Data that all samples of a rollout share.
pub struct SampledRollout {
    /// The example.
    pub example_id: u64,
    /// The kind of task.
    pub task: Arc<str>,
    /// The reward of the rollout.
    pub reward: f64,
    /// Its advantage; None if it was scored without a group.
    pub advantage: Option<f64>,
    /// The error that ended it, as the names of its causes.
    pub error: Option<Arc<str>>,
    /// The stop condition that ended it.
    pub stop_condition: Option<Arc<str>>,
}

/// The data of a turn that a sample needs.
pub struct SampleTurn<'a> {
    /// Its tokens, if the server returned them.
    pub tokens: Option<SampleTokens<'a>>,
    /// Its own reward, which replaces that of the rollout.
    pub reward: Option<f64>,
    /// Its own advantage, which replaces that of the rollout.
    pub advantage: Option<f64>,
    /// The version of the policy that sampled it.
    pub policy_version: Option<Arc<str>>,
    /// Whether the response was truncated.
    pub is_truncated: bool,
    /// The id of its rollout.
    pub trajectory_id: &'a Arc<str>,
}

/// The tokens of a turn.
#[derive(Clone, Copy)]
pub struct SampleTokens<'a> {
    /// The prompt.
    pub prompt_ids: &'a [u32],
    /// The completion.
    pub completion_ids: &'a [u32],
    /// The mask of the completion; all ones if None.
    pub completion_mask: Option<&'a [u8]>,
    /// The log-probability of each completion token.
    pub completion_logprobs: &'a [f64],
    /// The experts of the prompt and the completion, if the server reported them.
    pub routed_experts: Option<&'a RoutedExperts>,
}

/// Merges the turns of a rollout into samples.
pub fn samples<'a>(
    rollout: &SampledRollout,
    turns: impl Iterator<Item = SampleTurn<'a>>,
) -> Result<Vec<Sample>, SampleError> {
    let mut samples: Vec<Sample> = Vec::new();
    let (mut any_turn, mut any_tokens) = (false, false);
    for (number, turn) in (0..).zip(turns) {
        any_turn = true;
        let Some(tokens) = turn.tokens else { continue };
        any_tokens = true;
        tokens.check(number)?;
        // A turn whose whole completion was removed has nothing to train on.
        if tokens.completion_ids.is_empty() {
            continue;
        }
        let known = samples.last().map_or(0, |sample| sample.token_ids.len());
        let goes_on = samples.last().is_some_and(|sample| tokens.prompt_ids.starts_with(&sample.token_ids));
        match samples.last_mut() {
            Some(sample) if goes_on => sample.extend(number, &turn, tokens, known),
            _ => {
                let mut sample = rollout.sample(number, turn.trajectory_id);
                sample.extend(number, &turn, tokens, 0);
                samples.push(sample);
            }
        }
    }
    if any_turn && !any_tokens { Err(SampleError::NoTokens) } else { Ok(samples) }
}

impl SampledRollout {
    fn sample(&self, first_turn: u32, trajectory_id: &Arc<str>) -> Sample {
        Sample {
            example_id: self.example_id,
            task: Arc::clone(&self.task),
            trajectory_id: Arc::clone(trajectory_id),
            first_turn,
            last_turn: first_turn,
            reward: self.reward,
            advantage: self.advantage,
            is_truncated: false,
            error: self.error.clone(),
            stop_condition: self.stop_condition.clone(),
            turns: Vec::new(),
            token_ids: Vec::new(),
            loss_mask: Vec::new(),
            logprobs: Vec::new(),
            advantages: Vec::new(),
            routed_experts: None,
        }
    }
}

impl SampleTokens<'_> {
    fn check(&self, turn: u32) -> Result<(), SampleError> {
        let tokens = self.completion_ids.len();
        let lists = [
            (Some(self.completion_logprobs.len()), "probabilities"),
            (self.completion_mask.map(<[u8]>::len), "masks"),
        ];
        for (others, what) in lists {
            if let Some(others) = others.filter(|&others| others != tokens) {
                return Err(SampleError::Misaligned { turn, tokens, others, what });
            }
        }
        Ok(())
    }
}

impl Sample {
    /// Adds a turn. The first `known` tokens of its prompt are already in the sample.
    fn extend(&mut self, number: u32, turn: &SampleTurn<'_>, tokens: SampleTokens<'_>, known: usize) {
        self.last_turn = number;
        self.is_truncated |= turn.is_truncated;
        let shown = &tokens.prompt_ids[known..];
        self.token_ids.extend_from_slice(shown);
        let length = self.token_ids.len();
        self.loss_mask.resize(length, 0);
        self.logprobs.resize(length, 0.0);
        self.advantages.resize(length, 0.0);

        self.turns.push(SampledTurn {
            turn: number,
            first_token: length as u32,
            tokens: tokens.completion_ids.len() as u32,
            reward: turn.reward.or(Some(self.reward)),
            policy_version: turn.policy_version.clone(),
        });
        self.token_ids.extend_from_slice(tokens.completion_ids);
        let advantage = turn.advantage.or(self.advantage).unwrap_or(0.0);
        for (place, &logprob) in tokens.completion_logprobs.iter().enumerate() {
            let is_sampled = tokens.completion_mask.is_none_or(|mask| mask[place] != 0);
            self.loss_mask.push(u8::from(is_sampled));
            self.logprobs.push(if is_sampled { logprob } else { 0.0 });
            self.advantages.push(if is_sampled { advantage } else { 0.0 });
        }
        self.extend_experts(tokens.routed_experts);
    }

    /// Adds the experts of the new tokens. Experts that an earlier turn reported are kept, because its tokens were
    /// sampled with them.
    fn extend_experts(&mut self, reported: Option<&RoutedExperts>) {
        let all = self.token_ids.len();
        let Some(reported) = reported.filter(|reported| reported.len() <= all) else {
            if let Some(known) = &mut self.routed_experts {
                let unknown = unknown_experts(known);
                known.resize(all, unknown);
            }
            return;
        };
        let unknown = unknown_experts(reported);
        let known = self.routed_experts.get_or_insert_default();
        known.resize(all, unknown.clone());
        for (place, reported) in known.iter_mut().zip(reported) {
            if *place == unknown && !reported.is_empty() {
                place.clone_from(reported);
            }
        }
    }
}

/// Returns zeros in the shape of the experts of one token.
fn unknown_experts(like: &RoutedExperts) -> Vec<Vec<u32>> {
    let shape = like.iter().find(|token| !token.is_empty());
    shape.into_iter().flatten().map(|layer| vec![0; layer.len()]).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    struct Owned {
        prompt: Vec<u32>,
        completion: Vec<u32>,
        mask: Vec<u8>,
        logprobs: Vec<f64>,
        experts: Option<RoutedExperts>,
    }

    fn turn(prompt: &[u32], completion: &[u32]) -> Option<Owned> {
        let logprobs = completion.iter().map(|&id| -f64::from(id) / 10.0).collect();
        Some(Owned {
            prompt: prompt.into(),
            completion: completion.into(),
            mask: vec![1; completion.len()],
            logprobs,
            experts: None,
        })
    }

    fn rollout() -> SampledRollout {
        SampledRollout {
            example_id: 7,
            task: "math".into(),
            reward: 1.0,
            advantage: Some(0.5),
            error: None,
            stop_condition: Some("max_turns_reached".into()),
        }
    }

    fn merged(turns: &[Option<Owned>]) -> Result<Vec<Sample>, SampleError> {
        let id: Arc<str> = "a3f9".into();
        let turns = turns.iter().map(|turn| SampleTurn {
            tokens: turn.as_ref().map(|turn| SampleTokens {
                prompt_ids: &turn.prompt,
                completion_ids: &turn.completion,
                completion_mask: Some(&turn.mask),
                completion_logprobs: &turn.logprobs,
                routed_experts: turn.experts.as_ref(),
            }),
            reward: None,
            advantage: None,
            policy_version: Some("step-1".into()),
            is_truncated: false,
            trajectory_id: &id,
        });
        samples(&rollout(), turns)
    }

    #[test]
    fn turns_that_extend_each_other_are_one_sample() {
        let samples =
            merged(&[turn(&[1, 2], &[3]), turn(&[1, 2, 3, 4], &[5, 6]), turn(&[1, 2, 3, 4, 5, 6], &[7])]);
        let [sample] = samples.unwrap().try_into().unwrap();
        assert_eq!(sample.token_ids, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(sample.loss_mask, [0, 0, 1, 0, 1, 1, 1]);
        assert_eq!(sample.logprobs, [0.0, 0.0, -0.3, 0.0, -0.5, -0.6, -0.7]);
        assert_eq!(sample.advantages, [0.0, 0.0, 0.5, 0.0, 0.5, 0.5, 0.5]);
        assert_eq!((sample.first_turn, sample.last_turn), (0, 2));
        assert_eq!((sample.example_id, sample.reward, sample.advantage), (7, 1.0, Some(0.5)));
        assert_eq!((&*sample.task, &*sample.trajectory_id), ("math", "a3f9"));
    }

    #[test]
    fn a_sample_contains_its_turns_and_how_its_rollout_ended() {
        let sample = merged(&[turn(&[1, 2], &[3]), turn(&[1, 2, 3, 4], &[5, 6])]).unwrap().remove(0);
        let places: Vec<_> = sample.turns.iter().map(|t| (t.turn, t.first_token, t.tokens)).collect();
        assert_eq!(places, [(0, 2, 1), (1, 4, 2)]);
        assert!(sample.turns.iter().all(|turn| turn.reward == Some(1.0)));
        assert!(sample.turns.iter().all(|turn| turn.policy_version.as_deref() == Some("step-1")));
        assert_eq!((sample.error, sample.stop_condition.as_deref()), (None, Some("max_turns_reached")));
    }

    #[test]
    fn another_advantage_takes_the_place_of_the_rollouts_and_not_of_a_turns_own() {
        let mut sample = merged(&[turn(&[1, 2], &[3]), turn(&[1, 2, 3, 4], &[5, 6])]).unwrap().remove(0);
        sample.advantages[2] = 9.0;
        sample.replace_advantage(Some(-2.0));
        assert_eq!(sample.advantages, [0.0, 0.0, 9.0, 0.0, -2.0, -2.0]);
        assert_eq!(sample.advantage, Some(-2.0));
    }

    #[test]
    fn experts_are_those_of_the_turn_that_sampled_the_token() {
        let layers = |number: u32| vec![vec![number, 1]];
        let mut first = turn(&[1, 2], &[3]).unwrap();
        // Servers report no experts for the last token, because it was not processed yet.
        first.experts = Some(vec![layers(5), layers(6)]);
        let mut second = turn(&[1, 2, 3, 4], &[7]).unwrap();
        second.experts = Some(vec![layers(9), layers(9), layers(10), layers(11)]);
        let sample = merged(&[Some(first.clone()), Some(second)]).unwrap().remove(0);
        let known = [layers(5), layers(6), layers(10), layers(11), vec![vec![0, 0]]];
        assert_eq!(sample.routed_experts.as_deref(), Some(&known[..]));
        let sample = merged(&[Some(first), turn(&[1, 2, 3, 4], &[7])]).unwrap().remove(0);
        assert_eq!(sample.routed_experts.map(|experts| experts.len()), Some(5));
        assert_eq!(merged(&[turn(&[1], &[2])]).unwrap()[0].routed_experts, None);
    }

    #[test]
    fn a_turn_whose_past_was_changed_begins_a_sample() {
        let turns = [turn(&[1, 2], &[3]), turn(&[1, 9, 3, 4], &[5]), turn(&[1, 9, 3, 4, 5], &[6])];
        let samples = merged(&turns).unwrap();
        let summary: Vec<_> = samples.iter().map(|s| (s.first_turn, s.last_turn, &s.token_ids[..])).collect();
        assert_eq!(summary, [(0, 0, &[1, 2, 3][..]), (1, 2, &[1, 9, 3, 4, 5, 6][..])]);
        assert_eq!(samples[1].loss_mask, [0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn a_prompt_that_lost_the_end_of_a_completion_begins_a_sample() {
        assert_eq!(merged(&[turn(&[1], &[2, 3]), turn(&[1, 2], &[4])]).unwrap().len(), 2);
    }

    #[test]
    fn turns_without_tokens_or_completion_are_left_out() {
        let samples =
            merged(&[turn(&[1], &[2]), None, turn(&[1, 2, 3], &[]), turn(&[1, 2, 3], &[4])]).unwrap();
        assert_eq!(samples.len(), 1);
        assert_eq!((samples[0].last_turn, &samples[0].loss_mask[..]), (3, &[0, 1, 0, 1][..]));
        assert_eq!(merged(&[]), Ok(vec![]));
    }

    #[test]
    fn turns_that_all_lack_tokens_are_an_error_with_a_next_step() {
        let error = merged(&[None, None]).unwrap_err();
        insta::assert_snapshot!(error, @"no turn has tokens; set `token_ids: true` for the model, and use a server that returns token ids");
    }

    #[test]
    fn lists_that_do_not_fit_are_refused() {
        let mut wrong = turn(&[1], &[2, 3]).unwrap();
        wrong.logprobs.pop();
        let error = merged(&[turn(&[1], &[2]), Some(wrong)]).unwrap_err();
        insta::assert_snapshot!(error, @"turn 1 has 2 completion tokens with 1 probabilities");
        let mut wrong = turn(&[1], &[2, 3]).unwrap();
        wrong.mask.clear();
        insta::assert_snapshot!(merged(&[Some(wrong)]).unwrap_err(), @"turn 0 has 2 completion tokens with 0 masks");
    }

    #[test]
    fn masked_tokens_are_not_trained_on() {
        let mut masked = turn(&[1], &[2, 3]).unwrap();
        masked.mask = vec![0, 1];
        let sample = merged(&[Some(masked)]).unwrap().remove(0);
        assert_eq!(
            (sample.loss_mask, sample.logprobs, sample.advantages),
            (vec![0, 0, 1], vec![0.0, 0.0, -0.3], vec![0.0, 0.0, 0.5])
        );
    }

    proptest! {
        #[test]
        fn every_sampled_token_is_in_one_sample_in_its_own_context(
            turns in prop::collection::vec(
                (prop::collection::vec(0_u32..3, 0..4), prop::collection::vec(0_u32..3, 0..4), any::<bool>()), 0..8),
        ) {
            let mut past: Vec<u32> = Vec::new();
            let turns: Vec<_> = turns.into_iter().map(|(new, completion, forgets)| {
                if forgets { past.clear(); }
                past.extend(new);
                let turn = turn(&past, &completion);
                past.extend(completion);
                turn
            }).collect();
            let samples = merged(&turns).unwrap();
            let sampled: usize = samples.iter().flat_map(|s| &s.loss_mask).map(|&mask| usize::from(mask)).sum();
            let said: usize = turns.iter().flatten().map(|turn| turn.completion.len()).sum();
            prop_assert_eq!(sampled, said);
            for sample in &samples {
                let length = sample.token_ids.len();
                prop_assert_eq!((sample.loss_mask.len(), sample.logprobs.len(), sample.advantages.len()), (length, length, length));
            }
            for (number, turn) in (0..).zip(turns.iter().flatten()).filter(|(_, turn)| !turn.completion.is_empty()) {
                let whole = [&turn.prompt[..], &turn.completion].concat();
                let mut homes = samples.iter().filter(|s| (s.first_turn..=s.last_turn).contains(&number));
                prop_assert!(homes.next().is_some_and(|s| s.token_ids.starts_with(&whole)));
                prop_assert!(homes.next().is_none());
            }
        }
    }
}
