//! The comparison of one side with a baseline: differences, tests, and tasks that only one side solves.

use serde::Serialize;

use super::side::{Counted, Side, Sums};
use crate::stats::{Confidence, McNemar, Moments, Pairs, seeded};
use rollout_core::statistics::{Figures, Interval, Resampling};

/// The fraction of solved attempts from which a task counts as solved.
const SOLVED: f64 = 0.5;

/// A task, by the names that identify it in two jobs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct TaskId {
    /// Its dataset.
    pub dataset_name: String,
    /// Its name.
    pub task_name: String,
}

impl std::fmt::Display for TaskId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.dataset_name, self.task_name)
    }
}

/// The comparison of a side with the baseline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Contrast {
    /// The baseline.
    pub baseline: String,
    /// The other side.
    pub other: String,
    /// Tasks with a finished trial on both sides.
    pub tasks_in_both: u64,
    /// Tasks that have a finished trial only in the baseline.
    pub only_in_baseline: Vec<TaskId>,
    /// Tasks that have a finished trial only in the other side.
    pub only_in_other: Vec<TaskId>,
    /// Over trials with a reward. Trials that failed because of the agent or the tests count as 0.
    pub headline: Differences,
    /// Over trials with a reward only.
    pub failed_excluded: Differences,
    /// The cost of the other side divided by that of the baseline, over tasks with a known cost on both sides.
    pub cost_ratio: Option<f64>,
    /// The duration of the other side divided by that of the baseline, over the tasks in both.
    pub duration_ratio: Option<f64>,
    /// Other differences between the sides, which may explain the numbers.
    pub warnings: Vec<String>,
}

/// The differences of the other side from the baseline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Differences {
    /// Tasks that count on both sides.
    pub tasks: u64,
    /// The difference of the mean reward.
    pub mean_reward: Difference,
    /// The difference of the pass rate.
    pub pass_rate: Difference,
    /// Whether one side solves more tasks. A task is solved if at least half of its attempts are.
    pub mcnemar: McNemarTest,
    /// The tasks that only one side solves, in the order of the baseline.
    pub flipped: Vec<Flip>,
}

/// The mean over tasks of the other side's value minus the baseline's.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Difference {
    /// The difference; 0 without tasks.
    pub mean: f64,
    /// The standard error; requires two tasks.
    pub standard_error: Option<f64>,
    /// The confidence interval by Student's distribution; requires two tasks.
    pub interval: Option<Interval>,
    /// The p-value of a permutation test that swaps the sides task by task.
    pub p: Option<f64>,
    /// Whether all permutations were computed; otherwise `p` is an estimate.
    pub exact: bool,
    /// The p-value, adjusted by Holm's method for the number of contrasts; absent if there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p_holm: Option<f64>,
}

/// McNemar's test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct McNemarTest {
    /// Tasks that only the baseline solves.
    pub only_baseline: u64,
    /// Tasks that only the other side solves.
    pub only_other: u64,
    /// The exact p-value. None without tasks, or if the sides have different numbers of attempts at tasks, because then
    /// half of the attempts is not equally easy to reach.
    pub p: Option<f64>,
    /// The p-value, adjusted by Holm's method for the number of contrasts; absent if there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p_holm: Option<f64>,
}

/// A task that only one side solves.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Flip {
    /// The task.
    #[serde(flatten)]
    pub task: TaskId,
    /// The fraction of the baseline's attempts that are solved.
    pub baseline_pass_rate: f64,
    /// The fraction of the other side's attempts that are solved.
    pub other_pass_rate: f64,
}

impl Flip {
    /// Whether the other side solves it.
    pub fn is_won(&self) -> bool {
        self.other_pass_rate >= SOLVED
    }
}

impl Difference {
    fn new(pairs: &Pairs, confidence: Confidence, permutation: Resampling) -> Self {
        let differences: Moments = pairs.values().iter().map(|(first, second)| second - first).collect();
        let known = pairs.mean_difference(confidence);
        let test = pairs.sign_flip(permutation.resamples as usize, seeded(permutation.seed));
        Self {
            mean: differences.mean().unwrap_or(0.0),
            standard_error: known.map(|known| known.standard_error),
            interval: known.map(|known| known.interval),
            p: test.map(|test| test.p),
            exact: test.is_none_or(|test| test.exact),
            p_holm: None,
        }
    }

    /// Limits the interval to the possible range of a difference of fractions.
    fn of_shares(self) -> Self {
        let cut = |interval: Interval| Interval { low: interval.low.max(-1.0), high: interval.high.min(1.0) };
        Self { interval: self.interval.map(cut), ..self }
    }

    pub(super) fn probability(&mut self) -> (Option<f64>, &mut Option<f64>) {
        (self.p, &mut self.p_holm)
    }
}

impl McNemarTest {
    pub(super) fn probability(&mut self) -> (Option<f64>, &mut Option<f64>) {
        (self.p, &mut self.p_holm)
    }
}

/// A task that both sides have.
type Both<'a> = (&'a TaskId, &'a Sums, &'a Sums);

impl Contrast {
    pub(super) fn new(
        baseline: &Side,
        other: &Side,
        confidence: Confidence,
        permutation: Resampling,
    ) -> Self {
        let both: Vec<Both<'_>> = baseline
            .tasks
            .iter()
            .filter_map(|(task, first)| Some((task, first, other.tasks.get(task)?)))
            .collect();
        let only = |one: &Side, two: &Side| -> Vec<TaskId> {
            one.tasks.keys().filter(|task| !two.tasks.contains_key(*task)).cloned().collect()
        };
        let ratio = |values: fn(&Sums) -> &Moments| {
            let pair = |(_, first, second): &Both<'_>| Some((values(first).mean()?, values(second).mean()?));
            Pairs::new(both.iter().filter_map(pair)).and_then(|pairs| pairs.ratio_of_totals())
        };
        let of = |counted| {
            let mut differences = differences(&both, counted, confidence, permutation);
            differences.mcnemar.p = differences.mcnemar.p.filter(|_| baseline.attempts == other.attempts);
            differences
        };
        Self {
            baseline: baseline.name.clone(),
            other: other.name.clone(),
            tasks_in_both: both.len() as u64,
            only_in_baseline: only(baseline, other),
            only_in_other: only(other, baseline),
            headline: of(Counted::Headline),
            failed_excluded: of(Counted::Scored),
            cost_ratio: ratio(|sums| &sums.costs),
            duration_ratio: ratio(|sums| &sums.seconds),
            warnings: warnings(baseline, other, &both),
        }
    }
}

fn differences(
    both: &[Both<'_>],
    counted: Counted,
    confidence: Confidence,
    permutation: Resampling,
) -> Differences {
    let pairs = |value: fn(&Sums, Counted) -> Option<f64>| {
        let pair = |(_, first, second): &Both<'_>| Some((value(first, counted)?, value(second, counted)?));
        Pairs::new(both.iter().filter_map(pair)).expect("a mean is always finite")
    };
    let (rewards, passes) = (pairs(Sums::mean_reward), pairs(Sums::pass_rate));
    let solved: McNemar =
        passes.values().iter().map(|(first, second)| (*first >= SOLVED, *second >= SOLVED)).collect();
    let flip = |(task, first, second): &Both<'_>| {
        let (first, second) = (first.pass_rate(counted)?, second.pass_rate(counted)?);
        let flip = Flip { task: (*task).clone(), baseline_pass_rate: first, other_pass_rate: second };
        ((first >= SOLVED) != (second >= SOLVED)).then_some(flip)
    };
    let tasks = passes.values().len() as u64;
    Differences {
        tasks,
        mean_reward: Difference::new(&rewards, confidence, permutation),
        pass_rate: Difference::new(&passes, confidence, permutation).of_shares(),
        mcnemar: McNemarTest {
            only_baseline: solved.only_first,
            only_other: solved.only_second,
            p: (tasks > 0).then(|| solved.exact_p()),
            p_holm: None,
        },
        flipped: both.iter().filter_map(flip).collect(),
    }
}

fn warnings(baseline: &Side, other: &Side, both: &[Both<'_>]) -> Vec<String> {
    let mut warnings = Vec::new();
    if both.is_empty() {
        warnings.push("no task in common".to_owned());
    }
    for side in [baseline, other] {
        let Figures { trials, skipped, .. } = side.figures;
        if skipped > 0 {
            warnings.push(format!("{skipped} of {trials} trials of {} have no result", side.name));
        }
    }
    if baseline.attempts != other.attempts {
        warnings.push(format!(
            "attempts: {} in {}, {} in {}; McNemar's test is not computed",
            baseline.attempts, baseline.name, other.attempts, other.name
        ));
    }
    for (name, first) in &baseline.settings {
        if let Some(second) = other.settings.get(name)
            && first != second
        {
            warnings.push(format!("{name}: {first} in {}, {second} in {}", baseline.name, other.name));
        }
    }
    let changed: Vec<_> = both
        .iter()
        .filter(|(_, first, second)| {
            matches!((&first.content_hash, &second.content_hash), (Some(one), Some(two)) if one != two)
        })
        .map(|(task, ..)| task.to_string())
        .collect();
    if !changed.is_empty() {
        let more = if changed.len() > MOST_NAMED { ", …" } else { "" };
        let named = changed[..changed.len().min(MOST_NAMED)].join(", ");
        warnings.push(format!(
            "the files of {} of {} tasks differ: {named}{more}",
            changed.len(),
            both.len()
        ));
    }
    warnings
}

/// How many tasks are named in a warning.
const MOST_NAMED: usize = 5;
