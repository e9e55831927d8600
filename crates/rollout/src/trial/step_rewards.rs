//! The rewards of steps: when the next step starts, and how they become the reward of the trial.

use indexmap::IndexMap;

use super::reward::Reward;
use crate::config::StepRewards;

/// Why no further step starts after one with this reward.
pub(super) fn shortfall(min_reward: &[(String, f64)], reward: Option<&Reward>) -> Option<String> {
    let found = reward.map(Reward::by_name).unwrap_or_default();
    min_reward.iter().find_map(|(name, least)| match found.get(name) {
        Some(score) if score >= least => None,
        Some(score) => Some(format!("`{name}` is {score}, and min_reward is {least}")),
        None => Some(format!("`{name}` is missing, and min_reward is {least}")),
    })
}

/// The reward of a trial whose steps that ran have these rewards; none for a step that was not graded.
pub(super) fn combine(rule: StepRewards, steps: &[Option<Reward>]) -> Option<Reward> {
    match rule {
        StepRewards::Final => steps.last().cloned().flatten(),
        StepRewards::Mean => {
            let graded: Vec<_> = steps.iter().flatten().map(Reward::by_name).collect();
            let mut sums: IndexMap<String, f64> = IndexMap::new();
            for (name, score) in graded.iter().flatten() {
                *sums.entry(name.clone()).or_default() += score;
            }
            // A score that a step does not have counts as 0.
            sums.values_mut().for_each(|sum| *sum /= graded.len() as f64);
            Reward::of_names(sums)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(json: &str) -> Option<Reward> {
        Reward::from_harbor_json(json.as_bytes()).ok()
    }

    #[test]
    fn the_mean_is_over_graded_steps_and_a_missing_score_is_0() {
        let steps = [reward("1"), None, reward(r#"{"reward": 0, "style": 1}"#)];
        let mean = combine(StepRewards::Mean, &steps).unwrap();
        assert_eq!((mean.reward, mean.named["style"]), (0.5, 0.5));
        assert_eq!(combine(StepRewards::Mean, &[None]), None);
        assert_eq!(combine(StepRewards::Mean, &[]), None);
    }

    #[test]
    fn the_final_reward_is_that_of_the_last_step() {
        let steps = [reward("0"), reward("1")];
        assert_eq!(combine(StepRewards::Final, &steps).unwrap().reward, 1.0);
        assert_eq!(combine(StepRewards::Final, &[reward("1"), None]), None);
    }

    #[test]
    fn a_reward_below_the_minimum_or_missing_ends_the_steps() {
        let least = |name: &str| vec![(name.to_owned(), 0.5)];
        for (min, found, ends) in [
            (vec![], reward("0"), false),
            (least("reward"), reward("0.5"), false),
            (least("reward"), reward("0.4"), true),
            (least("reward"), None, true),
            (least("style"), reward(r#"{"reward": 1, "style": 0.5}"#), false),
            (least("style"), reward("1"), true),
        ] {
            assert_eq!(shortfall(&min, found.as_ref()).is_some(), ends, "{min:?} {found:?}");
        }
    }
}
