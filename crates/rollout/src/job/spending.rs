//! The budget of a job: what it has spent, and whether the next trial may start.

use std::collections::HashMap;

use rollout_core::name::TrialIndex;

/// The costs of a job in US dollars, and their limit.
#[derive(Debug, Default)]
pub(super) struct Spending {
    budget: Option<f64>,
    /// The known costs of trials that ended, in earlier runs too.
    spent: f64,
    /// How many trials these are.
    ended: u64,
    /// The costs so far of trials that run.
    running: HashMap<TrialIndex, RunningCost>,
}

/// The costs so far of a trial that runs.
#[derive(Debug, Clone, Copy, Default)]
struct RunningCost {
    /// The models of the current try, or of its current step.
    model: f64,
    /// The models of tries that failed, and of steps that ended.
    earlier: f64,
    /// The environments that have ended.
    environments: f64,
}

impl RunningCost {
    fn sum(self) -> f64 {
        self.model + self.earlier + self.environments
    }
}

impl Spending {
    /// The spending of a job that has ended trials with these costs.
    pub(super) fn new(budget: Option<f64>, earlier: impl Iterator<Item = f64>) -> Self {
        let (spent, ended) = earlier.fold((0.0, 0), |(spent, ended), cost| (spent + cost, ended + 1));
        Self { budget, spent, ended, running: HashMap::new() }
    }

    pub(super) fn started(&mut self, index: TrialIndex) {
        if self.budget.is_some() {
            self.running.insert(index, RunningCost::default());
        }
    }

    /// Updates what the models of a running trial cost in its current try or step.
    pub(super) fn used(&mut self, index: TrialIndex, cost: f64) {
        if let Some(known) = self.running.get_mut(&index) {
            known.model = known.model.max(cost);
        }
    }

    /// Updates what the environments of a running trial that have ended cost.
    pub(super) fn rented(&mut self, index: TrialIndex, cost: f64) {
        if let Some(known) = self.running.get_mut(&index) {
            known.environments = known.environments.max(cost);
        }
    }

    /// A try of a running trial failed and another follows, or a step ended: what its models cost from now on is added.
    pub(super) fn tried(&mut self, index: TrialIndex) {
        if let Some(known) = self.running.get_mut(&index) {
            known.earlier += std::mem::take(&mut known.model);
        }
    }

    /// Replaces what was known of a running trial by its cost. A trial is counted once.
    pub(super) fn ended(&mut self, index: TrialIndex, cost: f64) {
        if self.running.remove(&index).is_some() {
            self.spent += cost;
            self.ended += 1;
        }
    }

    /// Adds what is known of a trial that ended without a result.
    pub(super) fn abandoned(&mut self, index: TrialIndex) {
        self.abandoned_at(index, 0.0);
    }

    /// The same for a trial that has cost at least this much.
    pub(super) fn abandoned_at(&mut self, index: TrialIndex, cost: f64) {
        if let Some(known) = self.running.remove(&index) {
            self.spent += known.sum().max(cost);
        }
    }

    /// Whether another trial fits into the budget, if it and those that run cost as much as the others on average.
    ///
    /// The first trial of a job runs alone: before it has ended, the cost of a trial is unknown.
    pub(super) fn may_start(&self) -> bool {
        let Some(budget) = self.budget else { return true };
        if self.ended == 0 {
            return self.running.is_empty();
        }
        let average = self.spent / self.ended as f64;
        let running: f64 = self.running.values().map(|cost| cost.sum().max(average)).sum();
        self.spent + running + average <= budget
    }

    /// The budget and what was spent of it, if there is a budget.
    pub(super) fn of_budget(&self) -> Option<(f64, f64)> {
        self.budget.map(|budget| (budget, self.spent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spending(budget: f64, earlier: &[f64]) -> Spending {
        Spending::new(Some(budget), earlier.iter().copied())
    }

    /// How many trials of one cost run, with so many at the same time, and what they cost together.
    fn run(budget: f64, cost: f64, concurrency: usize) -> (u64, f64) {
        let mut spending = spending(budget, &[]);
        let mut next = 0;
        let mut running = std::collections::VecDeque::new();
        loop {
            while running.len() < concurrency && next < 1000 && spending.may_start() {
                spending.started(TrialIndex(next));
                running.push_back(TrialIndex(next));
                next += 1;
            }
            let Some(first) = running.pop_front() else { break };
            spending.ended(first, cost);
        }
        (next, spending.of_budget().unwrap().1)
    }

    #[test]
    fn trials_of_equal_cost_stay_within_the_budget_at_any_concurrency() {
        for concurrency in [1, 4, 100] {
            assert_eq!(run(10.0, 1.0, concurrency), (10, 10.0));
            assert_eq!(run(10.5, 1.0, concurrency), (10, 10.0));
            // The cost of the first one is unknown.
            assert_eq!(run(0.5, 1.0, concurrency), (1, 1.0));
            assert_eq!(run(5.0, 0.0, concurrency), (1000, 0.0));
        }
    }

    #[test]
    fn a_job_without_a_budget_never_waits() {
        let mut spending = Spending::new(None, std::iter::repeat_n(1e6, 3));
        spending.started(TrialIndex(0));
        assert!(spending.may_start());
        assert_eq!(spending.of_budget(), None);
    }

    #[test]
    fn costs_of_earlier_runs_and_of_running_trials_count() {
        let mut spending = spending(10.0, &[2.0, 2.0]);
        assert!(spending.may_start());
        spending.started(TrialIndex(7));
        assert!(spending.may_start());
        spending.used(TrialIndex(7), 5.0);
        assert!(!spending.may_start());
        // Costs only grow, whatever order reports arrive in.
        spending.used(TrialIndex(7), 1.0);
        assert!(!spending.may_start());
        spending.abandoned(TrialIndex(7));
        assert_eq!(spending.of_budget(), Some((10.0, 9.0)));
    }

    #[test]
    fn failed_tries_and_ended_environments_of_a_trial_without_a_result_count() {
        let mut spending = spending(10.0, &[]);
        spending.started(TrialIndex(0));
        spending.used(TrialIndex(0), 1.0);
        spending.rented(TrialIndex(0), 0.25);
        spending.tried(TrialIndex(0));
        spending.used(TrialIndex(0), 0.5);
        spending.rented(TrialIndex(0), 0.75);
        spending.abandoned(TrialIndex(0));
        assert_eq!(spending.of_budget(), Some((10.0, 2.25)));
    }

    #[test]
    fn steps_of_a_trial_without_a_result_are_added() {
        let mut spending = spending(10.0, &[]);
        spending.started(TrialIndex(0));
        for cost in [2.0, 3.0] {
            spending.used(TrialIndex(0), cost);
            spending.tried(TrialIndex(0));
        }
        spending.used(TrialIndex(0), 1.0);
        spending.abandoned(TrialIndex(0));
        assert_eq!(spending.of_budget(), Some((10.0, 6.0)));
    }

    #[test]
    fn a_trial_without_a_result_costs_what_it_reported_or_more_and_counts_once() {
        for (known, cost, spent) in [(2.0, 0.0, 2.0), (2.0, 3.0, 3.0), (0.0, 1.0, 1.0)] {
            let mut spending = spending(10.0, &[]);
            spending.started(TrialIndex(0));
            spending.used(TrialIndex(0), known);
            spending.abandoned_at(TrialIndex(0), cost);
            spending.ended(TrialIndex(0), 7.0);
            spending.abandoned_at(TrialIndex(0), 7.0);
            assert_eq!(spending.of_budget(), Some((10.0, spent)));
        }
    }
}
