//! Two or more agents or jobs side by side, task by task: who is better, and whether that can be chance.
//!
//! Tasks are the same if dataset and name are. Attempts at a task are averaged first, so that every task counts once.
//! The functions block, and keep a few numbers of each task, never trials.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rollout::{compare::{Comparison, read}, record::saved::SavedJob};
//!
//! let mut sides = Vec::new();
//! for job in ["jobs/before", "jobs/after"] {
//!     sides.extend(read(&SavedJob::open(job)?, &["model".to_owned()])?);
//! }
//! let comparison = Comparison::new(sides)?;
//! let difference = &comparison.contrasts[0].headline.mean_reward;
//! println!("{:+} (p = {:?})", difference.mean, difference.p);
//! # Ok(())
//! # }
//! ```

mod contrast;
mod side;
mod svg;

#[cfg(test)]
mod tests;

use serde::Serialize;

pub use contrast::{Contrast, Difference, Differences, Flip, McNemarTest, TaskId};
pub use side::{Side, read};
pub use svg::svg;

use crate::{
    saved::SavedError,
    stats::{Confidence, holm},
};
use rollout_core::statistics::{Figures, Resampling};

/// Why there is nothing to compare.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A job directory cannot be read.
    #[error(transparent)]
    Saved(#[from] SavedError),
    /// An agent is in none of the jobs.
    #[error("no agent is named {agent:?}; there are: {available}")]
    NoAgent {
        /// The agent.
        agent: String,
        /// Those there are.
        available: String,
    },
    /// One alone cannot be compared.
    #[error("there is only {0}, and nothing to compare it with")]
    Alone(String),
    /// No task is on both sides.
    #[error("{baseline} and {others} have no finished task in common")]
    NothingInCommon {
        /// The first side.
        baseline: String,
        /// All others.
        others: String,
    },
    /// There are no trials at all.
    #[error("there are no trials to compare")]
    Nothing,
}

impl CompareError {
    /// What the reader can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Alone(_) => Some("give two job directories, or a job with two agents"),
            Self::NothingInCommon { .. } => Some(
                "tasks are the same if dataset and name are: `name` of a dataset in the job file can make them so",
            ),
            Self::Saved(SavedError::NotAJob(_) | SavedError::Missing(_)) => {
                Some("give directories that `rollout run` printed")
            }
            Self::Saved(_) | Self::NoAgent { .. } | Self::Nothing => None,
        }
    }
}

/// Agents and jobs side by side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// How often an interval made this way holds what it is about.
    pub confidence: f64,
    /// How permutation tests were done where not every way could be tried.
    pub permutation: Resampling,
    /// All sides.
    pub sides: Vec<SideFigures>,
    /// Each agent of a later job against the agent of the same name in an earlier one; an agent whose name is in no other
    /// job against the first side.
    pub contrasts: Vec<Contrast>,
}

/// What one side comes to by itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SideFigures {
    /// Tells it from the others.
    pub name: String,
    /// Its job.
    pub job: String,
    /// Its agent.
    pub agent: String,
    /// Over all its trials, without a bootstrap.
    #[serde(flatten)]
    pub figures: Figures,
}

const SEED: u64 = 1;

impl Comparison {
    /// Compares like with like: the same agent in several jobs, and what has no counterpart with the first side.
    pub fn new(mut sides: Vec<Side>) -> Result<Self, CompareError> {
        side::name(&mut sides);
        match &sides[..] {
            [] => return Err(CompareError::Nothing),
            [alone] => return Err(CompareError::Alone(alone.name.clone())),
            _ => {}
        }
        let confidence = Confidence::P95;
        let most_tasks = sides.iter().map(|side| side.tasks.len()).max().unwrap_or_default();
        let permutation = Resampling { resamples: resamples(most_tasks), seed: SEED };
        let mut contrasts: Vec<Contrast> = pairs(&sides)
            .map(|(baseline, other)| Contrast::new(baseline, other, confidence, permutation))
            .collect();
        if contrasts.iter().all(|contrast| contrast.tasks_in_both == 0) {
            let others: Vec<&str> = contrasts.iter().map(|contrast| contrast.other.as_str()).collect();
            let (baseline, others) = (contrasts[0].baseline.clone(), others.join(", "));
            return Err(CompareError::NothingInCommon { baseline, others });
        }
        if contrasts.len() > 1 {
            for p in PROBABILITIES {
                adjust(&mut contrasts, p);
            }
        }
        let side = |side: Side| SideFigures {
            name: side.name,
            job: side.job,
            agent: side.agent,
            figures: side.figures,
        };
        Ok(Self {
            confidence: confidence.level(),
            permutation,
            contrasts,
            sides: sides.into_iter().map(side).collect(),
        })
    }
}

/// Which side is compared with which, the baseline first.
fn pairs(sides: &[Side]) -> impl Iterator<Item = (&Side, &Side)> {
    sides.iter().enumerate().filter_map(|(number, side)| {
        let namesake = |other: &&Side| other.agent == side.agent;
        match sides[..number].iter().find(namesake) {
            Some(earlier) => Some((earlier, side)),
            // The first of several with one name is what the others are compared with.
            None if number == 0 || sides[number + 1..].iter().any(|later| namesake(&later)) => None,
            None => Some((&sides[0], side)),
        }
    })
}

/// Ten thousand, and less where there are very many tasks.
fn resamples(tasks: usize) -> u64 {
    const MOST_DRAWS: u64 = 100_000_000;
    (MOST_DRAWS / tasks.max(1) as u64).clamp(1_000, 10_000)
}

/// A probability, and the place of the one made larger because there are several.
type Probability = fn(&mut Contrast) -> (Option<f64>, &mut Option<f64>);

/// The tests of a contrast. Those of different contrasts are adjusted for each other, test by test.
const PROBABILITIES: [Probability; 6] = [
    |contrast| contrast.failed_excluded.mean_reward.probability(),
    |contrast| contrast.failed_excluded.pass_rate.probability(),
    |contrast| contrast.failed_excluded.mcnemar.probability(),
    |contrast| contrast.headline.mean_reward.probability(),
    |contrast| contrast.headline.pass_rate.probability(),
    |contrast| contrast.headline.mcnemar.probability(),
];

fn adjust(contrasts: &mut [Contrast], probability: Probability) {
    let told: Vec<f64> =
        contrasts.iter_mut().map(|contrast| probability(contrast).0.unwrap_or(f64::NAN)).collect();
    for (contrast, adjusted) in contrasts.iter_mut().zip(holm(&told)) {
        *probability(contrast).1 = adjusted.is_finite().then_some(adjusted);
    }
}
