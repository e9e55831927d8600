//! Compares agents or jobs task by task, with statistical tests.
//!
//! Tasks are the same if their dataset and name are the same. The attempts at a task are averaged first, so that every
//! task counts once. The functions block. They keep a few numbers of each task in memory, never trials.
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
pub use side::{Side, read, read_without};
pub use svg::svg;

use crate::{
    notes::NotesError,
    saved::SavedError,
    stats::{Confidence, holm},
};
use rollout_core::statistics::{Figures, Resampling};

/// Why a comparison failed.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A job directory cannot be read.
    #[error(transparent)]
    Saved(#[from] SavedError),
    /// An agent is in none of the jobs.
    #[error("no agent is named {agent:?}; available agents: {available}")]
    NoAgent {
        /// The agent.
        agent: String,
        /// The available agents.
        available: String,
    },
    /// There is only one side.
    #[error("nothing to compare {0} with")]
    Alone(String),
    /// No task is in both sides.
    #[error("{baseline} and {others} have no finished task in common")]
    NothingInCommon {
        /// The first side.
        baseline: String,
        /// The other sides.
        others: String,
    },
    /// There are no trials.
    #[error("there are no trials to compare")]
    Nothing,
    /// The tags of trials cannot be read.
    #[error(transparent)]
    Notes(#[from] NotesError),
}

impl CompareError {
    /// Returns advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Alone(_) => Some("pass two job directories, or a job with two agents"),
            Self::NothingInCommon { .. } => Some(
                "tasks are the same if their dataset and name are; set `name` of a dataset in the job file to match them",
            ),
            Self::Saved(SavedError::NotAJob(_) | SavedError::Missing(_)) => {
                Some("pass directories that `rollout run` printed")
            }
            Self::Saved(_) | Self::NoAgent { .. } | Self::Nothing | Self::Notes(_) => None,
        }
    }
}

/// A comparison of agents and jobs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The confidence level of the intervals.
    pub confidence: f64,
    /// The parameters of permutation tests that are not exact.
    pub permutation: Resampling,
    /// The tags whose trials were left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded_tags: Vec<String>,
    /// All sides.
    pub sides: Vec<SideFigures>,
    /// Each agent of a later job against the agent of the same name in an earlier one. An agent whose name is in no
    /// other job is compared with the first side.
    pub contrasts: Vec<Contrast>,
}

/// The figures of one side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SideFigures {
    /// The unique name of the side.
    pub name: String,
    /// Its job.
    pub job: String,
    /// Its agent.
    pub agent: String,
    /// The number of trials that were left out because of a tag; None if no tag was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded_by_tag: Option<u64>,
    /// Over all its other trials, without a bootstrap.
    #[serde(flatten)]
    pub figures: Figures,
}

const SEED: u64 = 1;

impl Comparison {
    /// Compares the same agent in several jobs. An agent without a counterpart is compared with the first side.
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
        let mut excluded_tags: Vec<String> = Vec::new();
        for tag in sides.iter().flat_map(|side| &side.excluded_tags) {
            if !excluded_tags.contains(tag) {
                excluded_tags.push(tag.clone());
            }
        }
        let side = |side: Side| SideFigures {
            excluded_by_tag: (!side.excluded_tags.is_empty()).then_some(side.excluded_by_tag),
            name: side.name,
            job: side.job,
            agent: side.agent,
            figures: side.figures,
        };
        Ok(Self {
            confidence: confidence.level(),
            permutation,
            excluded_tags,
            contrasts,
            sides: sides.into_iter().map(side).collect(),
        })
    }
}

/// Returns the pairs to compare, the baseline first.
fn pairs(sides: &[Side]) -> impl Iterator<Item = (&Side, &Side)> {
    sides.iter().enumerate().filter_map(|(number, side)| {
        let namesake = |other: &&Side| other.agent == side.agent;
        match sides[..number].iter().find(namesake) {
            Some(earlier) => Some((earlier, side)),
            // The first side with a name is the baseline of the others.
            None if number == 0 || sides[number + 1..].iter().any(|later| namesake(&later)) => None,
            None => Some((&sides[0], side)),
        }
    })
}

/// Returns ten thousand, or less for a very large number of tasks.
fn resamples(tasks: usize) -> u64 {
    const MOST_DRAWS: u64 = 100_000_000;
    (MOST_DRAWS / tasks.max(1) as u64).clamp(1_000, 10_000)
}

/// Returns a p-value, and the field of the adjusted one.
type Probability = fn(&mut Contrast) -> (Option<f64>, &mut Option<f64>);

/// The tests of a contrast. Each test is adjusted for the number of contrasts.
const PROBABILITIES: [Probability; 6] = [
    |contrast| contrast.failed_excluded.mean_reward.probability(),
    |contrast| contrast.failed_excluded.pass_rate.probability(),
    |contrast| contrast.failed_excluded.mcnemar.probability(),
    |contrast| contrast.headline.mean_reward.probability(),
    |contrast| contrast.headline.pass_rate.probability(),
    |contrast| contrast.headline.mcnemar.probability(),
];

fn adjust(contrasts: &mut [Contrast], probability: Probability) {
    let known: Vec<f64> =
        contrasts.iter_mut().map(|contrast| probability(contrast).0.unwrap_or(f64::NAN)).collect();
    for (contrast, adjusted) in contrasts.iter_mut().zip(holm(&known)) {
        *probability(contrast).1 = adjusted.is_finite().then_some(adjusted);
    }
}
