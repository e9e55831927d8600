//! Statistics over many rollouts, as pure functions: means, uncertainty, and comparisons.
//!
//! No function returns NaN or infinity: with too few values, or a value that is not finite, the result is None. Data of
//! many trials is kept as sums of each task, never as trials.
//!
//! ```
//! use rollout::stats::{Clusters, Confidence, Pairs, seeded, wilson};
//!
//! let mut rewards = Clusters::new();
//! for (task, reward) in [("a", 1.0), ("a", 0.0), ("b", 1.0), ("b", 1.0)] {
//!     rewards.add(task, reward);
//! }
//! assert_eq!(rewards.all().mean(), Some(0.75));
//! assert_eq!(rewards.standard_error(), Some(0.25));
//! assert!(rewards.bootstrap(1_000, Confidence::P95, seeded(1)).is_some());
//! assert!(wilson(3, 4, Confidence::P95).is_some_and(|interval| interval.low < 0.75));
//! assert_eq!(Pairs::of(&rewards, &rewards).mean_difference(Confidence::P95).map(|difference| difference.mean), Some(0.0));
//! ```

mod clusters;
mod distribution;
mod figures;
mod holm;
mod interval;
mod mcnemar;
mod pairs;
mod pass;
mod pass_curve;
mod quantile;
pub mod report;
mod resample;
mod sample;

pub use clusters::Clusters;
pub(crate) use figures::Gather;
pub use figures::spread;
pub use holm::holm;
pub use interval::{Confidence, wilson};
pub use mcnemar::{ChiSquare, McNemar};
pub use pairs::{MeanDifference, Pairs, SignFlip};
pub use pass::{PassK, pass_all_k, pass_at_k};
pub use pass_curve::PassCurve;
pub use quantile::Sorted;
pub use resample::seeded;
pub use rollout_core::statistics::{
    AgentStatistics, Estimate, Figures, Interval, MeanReward, PassPoint, PassRate, Resampling, Scores,
    Spread, Statistics,
};
pub use sample::Moments;

/// Returns the number if it is finite.
pub(crate) fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}
