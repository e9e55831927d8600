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

/// The reward of a trial whose steps that ran have these rewards; none for a step that was not graded. There is no mean
/// if no step was graded.
///
/// A step that was not graded counts as 0, so that an agent gains nothing by making a step fail. Harbor leaves it out.
pub(super) fn combine(rule: StepRewards, is_harbor: bool, steps: &[Option<Reward>]) -> Option<Reward> {
    match rule {
        StepRewards::Final => steps.last().cloned().flatten(),
        StepRewards::Mean => {
            let graded: Vec<_> = steps.iter().flatten().map(Reward::by_name).collect();
            let mut sums: IndexMap<String, f64> = IndexMap::new();
            for (name, score) in graded.iter().flatten() {
                *sums.entry(name.clone()).or_default() += score;
            }
            // A score that a step does not have counts as 0.
            let count = if is_harbor { graded.len() } else { steps.len() };
            sums.values_mut().for_each(|sum| *sum /= count as f64);
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
    fn a_missing_score_is_0_and_so_is_a_step_without_a_reward_except_by_the_rules_of_harbor() {
        let steps = [reward("1"), reward(r#"{"reward": 0, "style": 1}"#), None, None];
        for (is_harbor, expected) in [(false, 0.25), (true, 0.5)] {
            let mean = combine(StepRewards::Mean, is_harbor, &steps).unwrap();
            assert_eq!((mean.reward, mean.named["style"]), (expected, expected));
            assert_eq!(combine(StepRewards::Mean, is_harbor, &[None]), None);
            assert_eq!(combine(StepRewards::Mean, is_harbor, &[]), None);
        }
    }

    #[test]
    fn the_final_reward_is_that_of_the_last_step() {
        let steps = [reward("0"), reward("1")];
        assert_eq!(combine(StepRewards::Final, false, &steps).unwrap().reward, 1.0);
        assert_eq!(combine(StepRewards::Final, false, &[reward("1"), None]), None);
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
