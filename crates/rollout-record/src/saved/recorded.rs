//! The trials of a journal while it is read: the last line of each, found by its names.

use std::collections::HashMap;

use super::{Place, plan::PlanIndex};
use crate::journal::{Header, TrialOutline};

/// Numbers of tasks by dataset and name.
#[derive(Debug, Default)]
pub(super) struct TaskNumbers(HashMap<String, HashMap<String, usize>>);

impl TaskNumbers {
    /// The tasks of a plan, in its order.
    pub(super) fn new(header: &Header) -> Self {
        let mut numbers = Self::default();
        for (number, task) in header.tasks.iter().enumerate() {
            // There are few datasets and many tasks.
            let tasks = match numbers.0.get_mut(&task.dataset) {
                Some(tasks) => tasks,
                None => numbers.0.entry(task.dataset.clone()).or_default(),
            };
            tasks.insert(task.name.clone(), number);
        }
        numbers
    }

    pub(super) fn get(&self, dataset: &str, name: &str) -> Option<usize> {
        self.0.get(dataset)?.get(name).copied()
    }
}

/// The trials that were read. Names are numbered in the order of their appearance, so that each trial needs only a few
/// bytes: the plan is known only at the end of the journal, because a job can grow.
#[derive(Debug)]
pub(super) struct RecordedTrials<T> {
    agents: HashMap<String, usize>,
    tasks: TaskNumbers,
    /// How many tasks have a number.
    known_tasks: usize,
    /// Indexes of `trials` by agent, task and attempt.
    numbers: HashMap<(usize, usize, u32), usize>,
    trials: Vec<(Place, T)>,
}

impl<T> Default for RecordedTrials<T> {
    fn default() -> Self {
        Self {
            agents: HashMap::new(),
            tasks: TaskNumbers::default(),
            known_tasks: 0,
            numbers: HashMap::new(),
            trials: Vec::new(),
        }
    }
}

/// The trials in the order of the plan.
#[derive(Debug)]
pub(super) struct PlacedTrials<T> {
    pub(super) trials: Vec<(Place, T)>,
    /// A trial that is not in the plan, if there is one.
    pub(super) unknown: Option<String>,
}

impl<T> RecordedTrials<T> {
    /// Adds a trial. If it has run before, the new line replaces the old one.
    pub(super) fn put(&mut self, result: &TrialOutline<'_>, place: Place, made: T) {
        let next = self.agents.len();
        let agent = match self.agents.get(&*result.agent_name) {
            Some(known) => *known,
            None => *self.agents.entry(result.agent_name.clone().into_owned()).or_insert(next),
        };
        let task = match self.tasks.get(&result.dataset_name, &result.task_name) {
            Some(known) => known,
            None => {
                let of_dataset = self.tasks.0.entry(result.dataset_name.clone().into_owned()).or_default();
                of_dataset.insert(result.task_name.clone().into_owned(), self.known_tasks);
                self.known_tasks += 1;
                self.known_tasks - 1
            }
        };
        let next = self.trials.len();
        match *self.numbers.entry((agent, task, result.attempt)).or_insert(next) {
            new if new == next => self.trials.push((place, made)),
            known => self.trials[known] = (place, made),
        }
    }

    /// Returns the trials with their indexes in the current plan. The index of a trial changes if the job has grown
    /// since. A trial that is not in the plan keeps its recorded index.
    pub(super) fn placed(self, header: &Header, plan: &PlanIndex, planned: &TaskNumbers) -> PlacedTrials<T> {
        let mut agents = vec![(None, ""); self.agents.len()];
        for (name, number) in &self.agents {
            agents[*number] = (header.agents.iter().position(|agent| agent == name), name);
        }
        let mut tasks = vec![(None, "", ""); self.known_tasks];
        for (dataset, of_dataset) in &self.tasks.0 {
            for (name, number) in of_dataset {
                tasks[*number] = (planned.get(dataset, name), dataset, name);
            }
        }
        let mut trials = self.trials;
        let mut unknown = None;
        for ((agent, task, attempt), number) in self.numbers {
            match (agents[agent], tasks[task]) {
                ((Some(agent), _), (Some(task), ..)) => {
                    trials[number].0.index = plan.index(agent, task, attempt);
                }
                ((_, agent), (_, dataset, task)) => {
                    unknown = Some(format!("{agent}/{dataset}/{task}__{attempt}"));
                }
            }
        }
        trials.sort_unstable_by_key(|(place, _)| place.index);
        PlacedTrials { trials, unknown }
    }
}
