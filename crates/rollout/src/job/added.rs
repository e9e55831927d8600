//! The trials that a plan adds to a job that has run.

use std::collections::HashSet;

use super::Plan;
use rollout_record::journal::{JournalError, PlanHeader};

/// The trials of a plan whose agent or task the job did not have, by the numbers of the plan.
///
/// More attempts of a known agent at a known task are not among them: they need nothing that was not checked before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddedTrials {
    /// Whether these are all trials of the plan. The plan may be large, so they are not listed.
    is_whole: bool,
    agents: HashSet<usize>,
    tasks: HashSet<usize>,
}

impl AddedTrials {
    /// All trials of a plan, as for a job that does not exist yet.
    pub(crate) fn all() -> Self {
        Self { is_whole: true, ..Self::default() }
    }

    /// Compares a plan with a job. Blocks while it reads the tasks of the job.
    pub(super) fn new(header: &PlanHeader, plan: &Plan) -> Result<Self, JournalError> {
        let known = &header.header().agents;
        let is_new = |name: &str| !known.iter().any(|known| known == name);
        let agents = plan.agents().enumerate().filter(|(_, name)| is_new(name.as_str()));
        let mut known = HashSet::new();
        header.each_task(|task| {
            known.insert((task.dataset, task.name));
        })?;
        let is_new = |name: (String, String)| !known.contains(&name);
        let tasks = plan.tasks().iter().enumerate();
        let tasks = tasks.filter(|(_, task)| is_new((task.dataset().to_string(), task.name().to_owned())));
        Ok(Self {
            is_whole: false,
            agents: agents.map(|(number, _)| number).collect(),
            tasks: tasks.map(|(number, _)| number).collect(),
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        !self.is_whole && self.agents.is_empty() && self.tasks.is_empty()
    }

    /// Whether the task is new.
    pub fn has_task(&self, task: usize) -> bool {
        self.is_whole || self.tasks.contains(&task)
    }

    /// Whether the trials of this agent at this task are among them.
    pub(crate) fn contains(&self, agent: usize, task: usize) -> bool {
        self.is_whole || self.agents.contains(&agent) || self.tasks.contains(&task)
    }

    /// Whether a trial of this agent is among them.
    pub(crate) fn uses_agent(&self, agent: usize) -> bool {
        self.is_whole || self.agents.contains(&agent) || !self.tasks.is_empty()
    }

    /// Whether a trial at this task is among them.
    pub(crate) fn uses_task(&self, task: usize) -> bool {
        self.is_whole || self.tasks.contains(&task) || !self.agents.is_empty()
    }
}
