//! Compares the tasks in the journal of a job with a plan that continues it.

use std::{collections::HashMap, io};

use super::{JobError, Plan, PlanAgent, ResumeError, journaled::Journaled, planned::PlanTask};
use rollout_core::{
    name::{AgentName, TrialIndex},
    result::TrialResult,
};
use rollout_record::journal::{Header, PlanHeader, PlannedTask};

/// Whether a job may get more tasks than it was started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// It keeps the tasks that it was started with.
    Refused,
    /// New tasks may be added after them.
    Allowed,
}

/// The tasks in the journal of a job.
pub(super) enum Before {
    /// They are those of the plan. There may be a million, so they stay in the file.
    Same(PlanHeader),
    /// The plan has others, or another order.
    Other(Header),
}

impl Before {
    /// Compares a job with a plan, and reduces the plan to the tasks of the job, unless it may grow.
    pub(super) fn new(header: PlanHeader, plan: Plan, growth: Growth) -> Result<(Self, Plan), ResumeError> {
        let agents = header.header().agents.iter().map(String::as_str);
        let mut is_same = plan.agents().map(AgentName::as_str).eq(agents);
        let mut tasks = plan.tasks.iter();
        header
            .each_task(|task| {
                is_same &= tasks.next().is_some_and(|planned| {
                    (planned.dataset().as_str(), planned.name()) == (&*task.dataset, &*task.name)
                        && planned.attempts == header.header().attempts_of(&task)
                });
            })
            .map_err(ResumeError::Journal)?;
        if is_same && tasks.next().is_none() {
            return Ok((Self::Same(header), plan));
        }
        let header = header.whole().map_err(ResumeError::Journal)?;
        let plan = restrict(plan, &header, growth).map_err(ResumeError::TasksChanged)?;
        Ok((Self::Other(header), plan))
    }

    /// The header. Some of its tasks may be left out.
    pub(super) fn header(&self) -> &Header {
        match self {
            Self::Same(header) => header.header(),
            Self::Other(header) => header,
        }
    }

    /// The tasks whose files or inputs have changed.
    pub(super) fn changed(&self, plan: &Plan, journaled: &Journaled) -> Result<Vec<String>, ResumeError> {
        let mut now = journaled.tasks(plan);
        let header = match self {
            Self::Other(header) => return Ok(changed(&header.tasks, now).map_err(JobError::Tasks)?),
            Self::Same(header) => header,
        };
        let mut found = Vec::new();
        let mut failed = None;
        let each = |task: PlannedTask| match now.next() {
            Some(Ok(now)) => found.extend(change(&task, &now)),
            Some(Err(error)) => failed = Some(error),
            None => {}
        };
        header.each_task(each).map_err(ResumeError::Journal)?;
        match failed {
            Some(error) => Err(JobError::Tasks(error).into()),
            None => Ok(found),
        }
    }
}

/// The numbers of agents and tasks by their names. Trials in the journal are found by name, because the indexes of the
/// trials change when a job grows.
pub(super) struct Places<'p> {
    agents: HashMap<&'p str, usize>,
    tasks: HashMap<(&'p str, &'p str), usize>,
}

impl<'p> Places<'p> {
    pub(super) fn new(plan: &'p Plan) -> Self {
        let agents = plan.agents.iter().enumerate().map(|(number, agent)| (agent.name.as_str(), number));
        let key = |task: &'p PlanTask| (task.dataset().as_str(), task.name());
        let tasks = plan.tasks.iter().enumerate().map(|(number, task)| (key(task), number));
        Self { agents: agents.collect(), tasks: tasks.collect() }
    }

    pub(super) fn of(&self, plan: &Plan, result: &TrialResult) -> Option<TrialIndex> {
        let agent = *self.agents.get(result.agent_name.as_str())?;
        let task = *self.tasks.get(&(result.dataset_name.as_str(), result.task_name.as_str()))?;
        let is_planned = (1..=plan.tasks[task].attempts).contains(&result.attempt);
        is_planned.then(|| plan.index(agent, task, result.attempt))
    }
}

/// Whether a result belongs to the trial at an index.
pub(super) fn is_of(plan: &Plan, index: TrialIndex, result: &TrialResult) -> bool {
    if index.0 >= plan.len() {
        return false;
    }
    let (agent, task, attempt) = plan.parts(index);
    (agent.name.as_str(), task.dataset().as_str(), task.name(), attempt)
        == (
            result.agent_name.as_str(),
            result.dataset_name.as_str(),
            result.task_name.as_str(),
            result.attempt,
        )
}

/// Reduces a plan to the agents and tasks that the job was started with, in their order. If the job may grow, the plan
/// stays as it is, provided that nothing of the job is missing.
fn restrict(mut plan: Plan, header: &Header, growth: Growth) -> Result<Plan, Vec<String>> {
    let agents = plan.agents().map(AgentName::as_str).eq(header.agents.iter().map(String::as_str));
    let planned = plan.tasks.iter().map(|task| (task.dataset().as_str(), task.name()));
    if agents && planned.eq(header.tasks.iter().map(|task| (task.dataset.as_str(), task.name.as_str()))) {
        return Ok(plan);
    }
    let mut missing = Vec::new();
    if growth == Growth::Allowed {
        let places = Places::new(&plan);
        let gone = |name: &&String| !places.agents.contains_key(name.as_str());
        missing.extend(header.agents.iter().filter(gone).map(|name| format!("agent {name} is missing")));
        for PlannedTask { dataset, name, .. } in &header.tasks {
            if !places.tasks.contains_key(&(dataset.as_str(), name.as_str())) {
                missing.push(format!("task {dataset}/{name} is missing"));
            }
        }
        return if missing.is_empty() { Ok(plan) } else { Err(missing) };
    }
    let mut by_name: HashMap<String, PlanAgent> =
        plan.agents.drain(..).map(|agent| (agent.name.to_string(), agent)).collect();
    let mut agents = Vec::new();
    for name in &header.agents {
        match by_name.remove(name) {
            Some(agent) => agents.push(agent),
            None => missing.push(format!("agent {name} is missing")),
        }
    }
    let key = |task: &PlanTask| (task.dataset().to_string(), task.name().to_owned());
    let mut by_name: HashMap<_, PlanTask> = plan.tasks.drain(..).map(|task| (key(&task), task)).collect();
    let mut tasks = Vec::new();
    for task in &header.tasks {
        match by_name.remove(&(task.dataset.clone(), task.name.clone())) {
            Some(found) => tasks.push(found),
            None => missing.push(format!("task {}/{} is missing", task.dataset, task.name)),
        }
    }
    if !missing.is_empty() {
        return Err(missing);
    }
    plan.rearrange(agents, tasks);
    Ok(plan)
}

/// The tasks whose files or inputs have changed.
fn changed(
    before: &[PlannedTask],
    now: impl Iterator<Item = io::Result<PlannedTask>>,
) -> io::Result<Vec<String>> {
    let known: HashMap<_, _> = before.iter().map(|task| ((&*task.dataset, &*task.name), task)).collect();
    let mut changed = Vec::new();
    for task in now {
        let task = task?;
        let known = known.get(&(&*task.dataset, &*task.name));
        changed.extend(known.and_then(|known| change(known, &task)));
    }
    Ok(changed)
}

/// The message about a task whose files or inputs have changed.
fn change(before: &PlannedTask, now: &PlannedTask) -> Option<String> {
    // A task that could not be loaded before has no results, so a repair is harmless.
    if before.content_hash.is_none() || before.content_hash == now.content_hash {
        return None;
    }
    Some(match before.example_id {
        Some(_) => format!("example {} of {} has changed", before.name, before.dataset),
        None => format!("the files of task {}/{} have changed", before.dataset, before.name),
    })
}
