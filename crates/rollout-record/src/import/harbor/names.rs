//! Names of imported trials. Harbor names a trial by its task and a random text; Rollout by agent, dataset, task and
//! attempt.

use std::collections::{BTreeMap, BTreeSet};

use super::format::HarborTrial;
use rollout_core::name::{AgentName, DatasetName, TaskName, TrialId};

/// The dataset of tasks without one, as Harbor calls it.
const NO_DATASET: &str = "adhoc";

/// The names of a trial.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) id: TrialId,
    /// Its name in Harbor.
    pub(super) original: String,
}

/// Names the trials of a job, in their order. Attempts are numbered by their start.
pub(super) fn named(trials: &[HarborTrial]) -> Vec<Named> {
    // An agent with several models is several agents.
    let mut models: BTreeMap<&str, BTreeSet<Option<String>>> = BTreeMap::new();
    // Tasks of packages are called `org/name`. Their last part is the name of their directory.
    let mut tasks: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for trial in trials {
        let result = &trial.result;
        models.entry(&result.agent_info.name).or_default().insert(result.agent_info.model());
        let dataset = result.source.as_deref().unwrap_or(NO_DATASET);
        tasks.entry((dataset, last(&result.task_name))).or_default().insert(&result.task_name);
    }
    let mut attempts: BTreeMap<(String, String, String), u32> = BTreeMap::new();
    trials
        .iter()
        .map(|trial| {
            let result = &trial.result;
            let info = &result.agent_info;
            let agent = match info.model() {
                Some(model) if models[info.name.as_str()].len() > 1 => format!("{}-{model}", info.name),
                _ => info.name.clone(),
            };
            let dataset = result.source.as_deref().unwrap_or(NO_DATASET);
            let short = last(&result.task_name);
            let task = if tasks[&(dataset, short)].len() > 1 { &result.task_name } else { short };
            let [agent, dataset, task] = [agent.as_str(), dataset, task].map(clean);
            let number = attempts.entry((agent.clone(), dataset.clone(), task.clone())).or_default();
            *number += 1;
            let id = TrialId {
                agent: AgentName::new(&agent).expect("cleaned names are valid"),
                dataset: DatasetName::new(&dataset).expect("cleaned names are valid"),
                task: TaskName::new(&task).expect("cleaned names are valid"),
                attempt: *number,
            };
            Named { id, original: trial.directory.to_string_lossy().into_owned() }
        })
        .collect()
}

fn last(name: &str) -> &str {
    name.rsplit('/').find(|part| !part.is_empty()).unwrap_or(name)
}

/// A name without what names of directories must not have.
fn clean(name: &str) -> String {
    const MAX_BYTES: usize = 180;
    let mut clean: String =
        name.chars().map(|c| if matches!(c, '/' | '\\') || c.is_control() { '-' } else { c }).collect();
    while clean.len() > MAX_BYTES {
        clean.pop();
    }
    match TaskName::new(&clean) {
        Ok(_) => clean,
        // Reserved names, dots and the empty name.
        Err(_) => format!("harbor-{}", clean.trim_matches('.')),
    }
}
