//! Advantages: how much better a rollout is than the other rollouts of its example.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Computes the advantages of a group from its rewards.
///
/// A closure is an estimator too:
///
/// ```
/// use rollout_core::advantage::AdvantageEstimator;
///
/// let best_only = |rewards: &[f64]| {
///     let best = rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
///     rewards.iter().map(|reward| f64::from(*reward == best)).collect()
/// };
/// assert_eq!(best_only.advantages(&[0.0, 2.0, 1.0]), [0.0, 1.0, 0.0]);
/// ```
pub trait AdvantageEstimator: Send + Sync {
    /// Returns one advantage for each reward, in the same order.
    fn advantages(&self, rewards: &[f64]) -> Vec<f64>;
}

impl<F: Fn(&[f64]) -> Vec<f64> + Send + Sync> AdvantageEstimator for F {
    fn advantages(&self, rewards: &[f64]) -> Vec<f64> {
        self(rewards)
    }
}

/// The estimators that have a name in job files and commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advantage {
    /// The reward minus the mean of the group.
    #[default]
    GroupMean,
    /// The reward minus the mean of the other members; 0 in a group of one.
    LeaveOneOut,
    /// The reward minus the mean of the group, divided by the standard deviation of the group; 0 if all rewards are
    /// equal.
    Normalised,
}

/// A smaller standard deviation is a rounding error, not a difference between rewards.
const LEAST_DEVIATION: f64 = 1e-8;

impl Advantage {
    /// All estimators.
    pub const ALL: [Self; 3] = [Self::GroupMean, Self::LeaveOneOut, Self::Normalised];

    /// The name in job files and commands.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GroupMean => "group_mean",
            Self::LeaveOneOut => "leave_one_out",
            Self::Normalised => "normalised",
        }
    }
}

impl fmt::Display for Advantage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl AdvantageEstimator for Advantage {
    fn advantages(&self, rewards: &[f64]) -> Vec<f64> {
        let count = rewards.len() as f64;
        let mean = rewards.iter().sum::<f64>() / count;
        let above: Vec<f64> = rewards.iter().map(|reward| reward - mean).collect();
        let scale = match self {
            Self::GroupMean => 1.0,
            // The mean of the other members is (count·mean − reward) / (count − 1).
            Self::LeaveOneOut if rewards.len() < 2 => 0.0,
            Self::LeaveOneOut => count / (count - 1.0),
            Self::Normalised => {
                let deviation = (above.iter().map(|above| above * above).sum::<f64>() / count).sqrt();
                if deviation > LEAST_DEVIATION { 1.0 / deviation } else { 0.0 }
            }
        };
        match self {
            // Without a multiplication, the result is exactly the difference.
            Self::GroupMean => above,
            _ => above.into_iter().map(|above| above * scale).collect(),
        }
    }
}

/// Why the result of an estimator is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdvantageError {
    /// It returned the wrong number of values.
    #[error(
        "the advantage estimator returned {returned} numbers for {rewards} rewards; return one for each reward"
    )]
    WrongNumber {
        /// The number of rewards.
        rewards: usize,
        /// The number of returned values.
        returned: usize,
    },
    /// It returned NaN or an infinity.
    #[error(
        "the advantage estimator returned a number that is not finite; return 0 if there is no advantage"
    )]
    NotFinite,
}

/// A member of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupMember {
    /// Its reward.
    pub reward: f64,
    /// Whether it is excluded from the baseline. A rollout that failed or timed out has no meaningful reward.
    pub is_excluded: bool,
}

/// Returns the advantages of a group. An excluded member has none, and does not count in the baseline of the others.
pub fn group_advantages(
    estimator: &dyn AdvantageEstimator,
    members: &[GroupMember],
) -> Result<Vec<Option<f64>>, AdvantageError> {
    let rewards: Vec<f64> =
        members.iter().filter(|member| !member.is_excluded).map(|member| member.reward).collect();
    if rewards.is_empty() {
        return Ok(vec![None; members.len()]);
    }
    let advantages = estimator.advantages(&rewards);
    if advantages.len() != rewards.len() {
        return Err(AdvantageError::WrongNumber { rewards: rewards.len(), returned: advantages.len() });
    }
    if advantages.iter().any(|advantage| !advantage.is_finite()) {
        return Err(AdvantageError::NotFinite);
    }
    let mut advantages = advantages.into_iter();
    Ok(members.iter().map(|member| if member.is_excluded { None } else { advantages.next() }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_named_estimator_compares_a_reward_with_its_group() {
        let of = |advantage: Advantage| advantage.advantages(&[2.0, 0.0, 0.0, 2.0]);
        assert_eq!(of(Advantage::GroupMean), [1.0, -1.0, -1.0, 1.0]);
        assert_eq!(of(Advantage::LeaveOneOut), [4.0 / 3.0, -4.0 / 3.0, -4.0 / 3.0, 4.0 / 3.0]);
        assert_eq!(of(Advantage::Normalised), [1.0, -1.0, -1.0, 1.0]);
    }

    #[test]
    fn equal_rewards_and_a_group_of_one_have_no_advantage() {
        for advantage in Advantage::ALL {
            assert_eq!(advantage.advantages(&[0.5; 4]), [0.0; 4], "{advantage}");
            assert_eq!(advantage.advantages(&[0.5]), [0.0], "{advantage}");
        }
    }

    #[test]
    fn excluded_members_have_no_advantage_and_do_not_move_the_baseline() {
        let member = |reward, is_excluded| GroupMember { reward, is_excluded };
        let group = [member(1.0, false), member(0.0, true), member(0.0, false), member(0.0, true)];
        let advantages = group_advantages(&Advantage::GroupMean, &group);
        assert_eq!(advantages, Ok(vec![Some(0.5), None, Some(-0.5), None]));
        assert_eq!(group_advantages(&Advantage::GroupMean, &[member(1.0, true)]), Ok(vec![None]));
    }

    #[test]
    fn an_estimator_that_returns_something_else_is_an_error() {
        let group = [GroupMember { reward: 1.0, is_excluded: false }; 2];
        let short = |_: &[f64]| vec![1.0];
        let error = group_advantages(&short, &group).unwrap_err();
        assert_eq!(error, AdvantageError::WrongNumber { rewards: 2, returned: 1 });
        let endless = |rewards: &[f64]| vec![f64::NAN; rewards.len()];
        assert_eq!(group_advantages(&endless, &group).unwrap_err(), AdvantageError::NotFinite);
    }
}
