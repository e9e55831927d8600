//! What a finished trial left that its tests can run on again.

use std::{fs, path::Path};

use indexmap::IndexMap;
use serde::Deserialize;

use super::{
    artifacts::{ALWAYS_COPIED, Artifact, MANIFEST},
    services,
    step::Step,
};
use crate::{
    config::{AfterAgentError, JobConfig, StepRewards},
    task::Task,
};
use rollout_core::{
    result::{ErrorType, FailureCause, RegradeSource, TrialResult},
    text::listed,
};
use rollout_env::{EnvironmentKind, compose::ComposeFile};
use rollout_record::layout::TrialDir;

/// How a trial of a finished job is graded again.
#[derive(Debug, Clone)]
pub struct Regrade {
    /// The directory of the finished trial.
    pub earlier: TrialDir,
    /// Grades also if the agent had left processes running beside the tests, which are not kept.
    pub ignores_processes: bool,
}

/// What the tests of a finished trial can run on.
#[derive(Debug)]
pub(crate) enum Basis {
    /// The trial ended before the tests, so its result stays.
    Unchanged,
    /// A copy of the preserved environment at this place, and of its services. Only the last step is graded.
    Environment { place: String, services: IndexMap<String, String> },
    /// The artifacts of each step that ran.
    Artifacts(Vec<Vec<Artifact>>),
    /// Nothing, for this reason.
    Nothing(String),
}

impl Basis {
    /// Its form in results.
    pub(crate) fn source(&self) -> RegradeSource {
        match self {
            Self::Unchanged => RegradeSource::Unchanged,
            Self::Environment { .. } => RegradeSource::Environment,
            Self::Artifacts(_) => RegradeSource::Artifacts,
            Self::Nothing(_) => RegradeSource::Nothing,
        }
    }
}

/// What to set so that the next job can be graded again.
const HINT: &str = "set `environment.preserve_env: always` in the next job, or let the tests run in a separate \
                    environment, with `verifier.environment: separate` and `verifier.artifacts`";

/// The same, for what a preserved environment does not have.
const SEPARATE_HINT: &str = "let the tests run in a separate environment, with `verifier.environment: separate` and \
                             `verifier.artifacts`";

/// Reads the result of a finished trial. The error is the reason why there is none.
pub(crate) fn read_result(dir: &TrialDir) -> Result<TrialResult, String> {
    let dir = dir.of_last_result();
    let bytes = fs::read(dir.result()).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "the trial has no result; `rollout resume` runs it".to_owned(),
        _ => format!("cannot read {}: {error}", dir.result().display()),
    })?;
    serde_json::from_slice(&bytes)
        .map_err(|error| format!("{} is not a valid result: {error}", dir.result().display()))
}

/// Finds what the tests of a finished trial can run on. Blocks.
pub(crate) fn basis(
    config: &JobConfig,
    task: &Task,
    steps: &[Step],
    regrade: &Regrade,
    result: &TrialResult,
) -> Basis {
    if is_decided(config, task, result) {
        return Basis::Unchanged;
    }
    let is_separate = |step: &Step| step.is_separate;
    let collected = match &task.config.verifier_agent_hostname {
        Some(name) if steps.iter().any(is_separate) => {
            return Basis::Nothing(format!(
                "the tests connect to the agent's running environment as {name}, and processes are not kept"
            ));
        }
        _ => collected(steps, &regrade.earlier.of_last_result(), result),
    };
    if steps.iter().all(is_separate)
        && let Ok(artifacts) = collected
    {
        return Basis::Artifacts(artifacts);
    }
    if !task.config.steps.is_empty() && !is_last_alone(task, steps, result) {
        let reason = collected.err().unwrap_or_else(|| {
            "a preserved environment has only the state after the last step, and the rewards of all steps count"
                .to_owned()
        });
        return Basis::Nothing(format!("{reason}; let its tests run in separate environments"));
    }
    let preserved = result.environment.as_ref().and_then(|environment| environment.preserved.clone());
    let services = result.environment.as_ref().map(|environment| environment.preserved_services.clone());
    let services = services.unwrap_or_default();
    if let Some(reason) = task.compose.as_deref().and_then(|compose| lost_services(compose, &services))
        && preserved.is_some()
    {
        return Basis::Nothing(format!("{reason}; {SEPARATE_HINT}"));
    }
    let provider = result.environment.as_ref().map_or("", |environment| &environment.provider);
    let is_copied = EnvironmentKind::from_name(provider).is_none_or(EnvironmentKind::copies_preserved);
    match preserved {
        Some(_) if !is_copied => {
            let reason = format!("the {provider} provider cannot copy a preserved environment");
            Basis::Nothing(format!("{reason}; {SEPARATE_HINT}"))
        }
        Some(place) if is_removed(result, &place) => Basis::Nothing(format!(
            "its preserved environment {place} was removed, for example by `rollout clean --preserved`"
        )),
        Some(_)
            if !result.survivors.is_empty()
                && !steps.iter().all(is_separate)
                && !regrade.ignores_processes =>
        {
            Basis::Nothing(format!(
                "processes of the agent were still running during the first tests, and are not kept ({}); \
                 `--ignore-processes` grades without them",
                listed(&result.survivors)
            ))
        }
        Some(place) => Basis::Environment { place, services },
        None => {
            let separate = steps.iter().any(is_separate).then(|| collected.err()).flatten();
            let reason = separate.unwrap_or_else(|| "its environment was not preserved".to_owned());
            Basis::Nothing(format!("{reason}; {HINT}"))
        }
    }
}

/// Whether the reward of a task with steps is that of the last one, which ran and whose tests are not separate.
fn is_last_alone(task: &Task, steps: &[Step], result: &TrialResult) -> bool {
    let last = steps.last();
    let ran = result.steps.last().map(|ran| ran.name.as_str());
    task.config.step_rewards == StepRewards::Final
        && last.is_some_and(|last| !last.is_separate && last.name.as_deref() == ran)
}

/// Why the services of a compose file cannot be started again as they were.
fn lost_services(compose: &ComposeFile, preserved: &IndexMap<String, String>) -> Option<String> {
    if services::has_volumes(compose) {
        return Some("the content of the volumes of its compose file is not kept".to_owned());
    }
    let lost = compose.sidecars().find(|service| !preserved.contains_key(&service.name))?;
    Some(format!("the service {} of its compose file was not preserved", lost.name))
}

/// Whether the trial ended before the tests, so that its result does not depend on them.
fn is_decided(config: &JobConfig, task: &Task, result: &TrialResult) -> bool {
    let Some(error) = result.error.as_ref().filter(|_| result.reward.is_none()) else { return false };
    // The tests can fail for the same reasons as the start of the agent's environment, for example because of their
    // Dockerfile. If the trial was graded again, its agent had worked.
    let began = result.timestamps.verifier_started_at.is_some();
    let was_graded_again = result.regraded.as_ref().is_some_and(|how| how.on != RegradeSource::Unchanged);
    match error.kind {
        // The tests may have run, or were not asked for.
        ErrorType::NotRegraded | ErrorType::EnvironmentTeardownFailed => false,
        kind => match kind.fault() {
            FailureCause::Verifier => false,
            FailureCause::Agent => config.verifier.after_agent_error(task.is_harbor) != AfterAgentError::Run,
            FailureCause::Infrastructure | FailureCause::Task => !began && !was_graded_again,
        },
    }
}

/// Whether the directory of a native environment is gone. Other providers find out when they open it.
fn is_removed(result: &TrialResult, place: &str) -> bool {
    let is_native = result.environment.as_ref().is_some_and(|environment| environment.provider == "native");
    is_native && !Path::new(place).exists()
}

/// An entry in the list of artifacts.
#[derive(Debug, Deserialize)]
struct Collected {
    source: String,
    destination: String,
    status: String,
    #[serde(default)]
    service: Option<String>,
    #[serde(default)]
    exclude: Vec<String>,
}

/// The artifacts of the steps that ran. The error is the reason why they are incomplete.
fn collected(steps: &[Step], earlier: &TrialDir, result: &TrialResult) -> Result<Vec<Vec<Artifact>>, String> {
    let ran = |step: &&Step| match &step.name {
        Some(name) => result.steps.iter().any(|ran| &ran.name == name),
        None => true,
    };
    steps.iter().filter(ran).map(|step| of_step(step, earlier)).collect()
}

fn of_step(step: &Step, earlier: &TrialDir) -> Result<Vec<Artifact>, String> {
    let dir = match &step.name {
        Some(name) => earlier.step(name).artifacts(),
        None => earlier.artifacts(),
    };
    let listed: Vec<Collected> = match fs::read(dir.join(MANIFEST)) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| format!("{} is damaged: {error}", dir.join(MANIFEST).display()))?,
        Err(_) => return Err("its artifacts were not collected".to_owned()),
    };
    let mut found = Vec::new();
    for wanted in &step.artifacts {
        let Some(entry) =
            listed.iter().find(|entry| (&entry.source, &entry.service) == (&wanted.source, &wanted.service))
        else {
            return Err(format!("the artifact {} was not collected by the trial", wanted.source));
        };
        if entry.exclude != wanted.exclude {
            return Err(format!("the artifact {} was collected with another `exclude`", wanted.source));
        }
        found.push(entry);
    }
    found.extend(listed.iter().filter(|entry| entry.source == ALWAYS_COPIED));
    // What was excluded or skipped as a whole, or never existed, is empty too, and has no copy.
    let is_copied = |entry: &&Collected| {
        entry.status == "ok" || entry.status == "empty" && dir.join(&entry.destination).is_dir()
    };
    let copied = found.into_iter().filter(is_copied).map(|entry| {
        let copy = dir.join(&entry.destination);
        match copy.exists() {
            true => Ok(Artifact {
                source: entry.source.clone(),
                service: entry.service.clone(),
                copy,
                is_empty: entry.status == "empty",
            }),
            false => Err(format!("the copy of the artifact {} was removed", entry.source)),
        }
    });
    copied.collect()
}
