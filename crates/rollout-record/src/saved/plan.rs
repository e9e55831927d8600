//! The indexes of trials in the plan of a job, without a list of all trials.

use super::SavedJob;
use crate::journal::Header;
use rollout_core::name::{AgentName, DatasetName, TaskName, TrialId, TrialIndex};

/// Where the attempts at each task begin.
#[derive(Debug)]
pub(super) struct PlanIndex {
    /// The number of attempts of one agent at the tasks before each task.
    starts: Vec<u64>,
    /// The number of attempts of one agent.
    per_agent: u64,
}

impl PlanIndex {
    pub(super) fn new(header: &Header) -> Self {
        let mut starts = Vec::with_capacity(header.tasks.len());
        let mut per_agent = 0;
        for task in &header.tasks {
            starts.push(per_agent);
            per_agent += u64::from(header.attempts_of(task));
        }
        Self { starts, per_agent }
    }

    /// The index of an attempt, which is counted from 1.
    pub(super) fn index(&self, agent: usize, task: usize, attempt: u32) -> TrialIndex {
        let attempt = u64::from(attempt.saturating_sub(1));
        TrialIndex(agent as u64 * self.per_agent + self.starts[task] + attempt)
    }

    /// The agent, the task and the attempt of an index.
    fn parts(&self, index: TrialIndex) -> Option<(usize, usize, u32)> {
        let agent = index.0.checked_div(self.per_agent)?;
        let place = index.0 % self.per_agent;
        let task = self.starts.partition_point(|start| *start <= place).checked_sub(1)?;
        Some((agent as usize, task, (place - self.starts[task]) as u32 + 1))
    }
}

impl SavedJob {
    /// The indexes of the agent and the task of a planned trial, and its attempt.
    pub fn parts(&self, index: TrialIndex) -> Option<(usize, usize, u32)> {
        self.plan.parts(index).filter(|(agent, ..)| *agent < self.header.agents.len())
    }

    /// The index of a planned trial.
    pub fn index(&self, agent: &str, dataset: &str, task: &str, attempt: u32) -> Option<TrialIndex> {
        let agent = self.header.agents.iter().position(|known| known == agent)?;
        let task = self.tasks.get(dataset, task)?;
        let attempts = self.header.attempts_of(&self.header.tasks[task]);
        (1..=attempts).contains(&attempt).then(|| self.plan.index(agent, task, attempt))
    }

    /// The index of a planned trial by its name, which is `<agent>/<dataset>/<task>__<attempt>`.
    pub fn index_of(&self, trial: &str) -> Option<TrialIndex> {
        let (agent, rest) = trial.split_once('/')?;
        let (dataset, rest) = rest.split_once('/')?;
        let (task, attempt) = rest.rsplit_once("__")?;
        self.index(agent, dataset, task, attempt.parse().ok()?)
    }

    /// The name of a planned trial; None if the journal was changed by hand and a name is invalid.
    pub fn id(&self, index: TrialIndex) -> Option<TrialId> {
        let (agent, task, attempt) = self.parts(index)?;
        let task = &self.header.tasks[task];
        Some(TrialId {
            agent: AgentName::new(&*self.header.agents[agent]).ok()?,
            dataset: DatasetName::new(&*task.dataset).ok()?,
            task: TaskName::new(&*task.name).ok()?,
            attempt,
        })
    }
}
