//! One side of a comparison: an agent of a job.

use indexmap::IndexMap;
use serde_json::Value;

use super::{CompareError, TaskId};
use crate::{
    notes::TagExclusion,
    saved::{SavedJob, SavedTrial},
    stats::{Confidence, Gather, Moments, finite},
};
use rollout_core::{
    result::{Standing, TrialSummary},
    statistics::{Figures, Resampling},
};

/// One agent of one job.
#[derive(Debug)]
pub struct Side {
    pub(super) name: String,
    pub(super) job: String,
    pub(super) agent: String,
    directory: String,
    pub(super) figures: Figures,
    pub(super) tasks: IndexMap<TaskId, Sums>,
    /// The number of attempts per task.
    pub(super) attempts: u32,
    /// Settings that should be the same on both sides, by name.
    pub(super) settings: IndexMap<&'static str, String>,
    /// The tags whose trials are left out.
    pub(super) excluded_tags: Vec<String>,
    /// The number of trials that are left out because of a tag.
    pub(super) excluded_by_tag: u64,
}

/// The sums over the attempts at a task.
#[derive(Debug, Default)]
pub(super) struct Sums {
    rewards: Moments,
    /// 1 for each solved trial with a reward, 0 for each unsolved one.
    solved: Moments,
    /// Failed trials that count as unsolved.
    counted_failures: u64,
    pub(super) seconds: Moments,
    pub(super) costs: Moments,
    pub(super) content_hash: Option<Box<str>>,
}

/// Which trials count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// Trials with a reward. Trials that failed because of the agent or the tests count as 0.
    Headline,
    /// Trials with a reward only.
    Scored,
}

impl Sums {
    pub(super) fn mean_reward(&self, counted: Counted) -> Option<f64> {
        self.mean(&self.rewards, counted)
    }

    pub(super) fn pass_rate(&self, counted: Counted) -> Option<f64> {
        self.mean(&self.solved, counted)
    }

    fn mean(&self, values: &Moments, counted: Counted) -> Option<f64> {
        let zeros = if counted == Counted::Headline { self.counted_failures } else { 0 };
        match (values.count(), zeros) {
            (0, 0) => None,
            (count, zeros) => finite(values.sum() / (count + zeros) as f64),
        }
    }

    pub(super) fn add(&mut self, trial: &TrialSummary) {
        match (trial.standing, trial.reward) {
            (Standing::Completed, Some(reward)) => {
                self.rewards.add(reward);
                self.solved.add(f64::from(u8::from(trial.is_solved())));
            }
            (Standing::Failed, _) if trial.headline_reward().is_some() => self.counted_failures += 1,
            (Standing::Completed, None) | (Standing::Failed | Standing::Skipped, _) => return,
        }
        self.seconds.add(trial.seconds);
        self.costs.extend(trial.known_cost());
    }
}

impl Side {
    /// Counts the planned trials without a result as skipped.
    fn plan(&mut self, tasks: u64) {
        let Figures { trials, skipped, .. } = &mut self.figures;
        let planned = (tasks * u64::from(self.attempts)).saturating_sub(self.excluded_by_tag);
        let missing = planned.saturating_sub(*trials);
        *trials += missing;
        *skipped += missing;
        self.figures.tasks = self.figures.tasks.max(tasks);
    }
}

#[cfg(test)]
impl Side {
    /// Creates an agent of a job named `job` with these tasks.
    pub(super) fn of(agent: &str, tasks: IndexMap<TaskId, Sums>) -> Self {
        Self {
            name: String::new(),
            job: "job".to_owned(),
            agent: agent.to_owned(),
            directory: "jobs/job".to_owned(),
            figures: Figures::default(),
            tasks,
            attempts: 1,
            settings: IndexMap::new(),
            excluded_tags: Vec::new(),
            excluded_by_tag: 0,
        }
    }
}

/// A side that is being read.
struct Reading {
    side: Side,
    gather: Gather,
    limits: Vec<String>,
    versions: Vec<String>,
}

/// Reads agents of a job in the given order, or all agents if none is given.
pub fn read(job: &SavedJob, agents: &[String]) -> Result<Vec<Side>, CompareError> {
    read_without(job, agents, &TagExclusion::default())
}

/// Reads agents of a job like [`read`], and leaves out trials by their tags.
pub fn read_without(
    job: &SavedJob,
    agents: &[String],
    exclusion: &TagExclusion,
) -> Result<Vec<Side>, CompareError> {
    let header = job.header();
    let wanted: Vec<&String> = match agents {
        [] => header.agents.iter().collect(),
        _ => agents.iter().filter(|agent| header.agents.contains(agent)).collect(),
    };
    let mut readings: Vec<Reading> = wanted.into_iter().map(|agent| Reading::new(job, agent)).collect();
    let tags: Vec<String> = exclusion.tags().iter().map(ToString::to_string).collect();
    readings.iter_mut().for_each(|reading| reading.side.excluded_tags.clone_from(&tags));
    for trial in job.trials()? {
        let trial = trial?;
        if let Some(reading) = readings.iter_mut().find(|one| one.side.agent == trial.id.agent.as_str()) {
            match exclusion.excludes(&trial.id) {
                true => reading.side.excluded_by_tag += 1,
                false => reading.add(job, &trial),
            }
        }
    }
    let tasks = header.tasks.len() as u64;
    Ok(readings.into_iter().map(|reading| reading.finish(tasks)).collect())
}

impl Reading {
    fn new(job: &SavedJob, agent: &str) -> Self {
        let side = empty(job, agent);
        Self { side, gather: Gather::default(), limits: Vec::new(), versions: Vec::new() }
    }

    fn add(&mut self, job: &SavedJob, trial: &SavedTrial) {
        let outcome = TrialSummary::from(&trial.result);
        self.gather.add(trial.task as u32, &outcome);
        let planned = job.task(trial);
        let id = TaskId { dataset_name: planned.dataset.clone(), task_name: planned.name.clone() };
        let sums = self.side.tasks.entry(id).or_insert_with(|| Sums {
            content_hash: planned.content_hash.as_deref().map(Into::into),
            ..Sums::default()
        });
        sums.add(&outcome);
        if let Some(environment) = &trial.result.environment {
            note(&mut self.limits, environment.enforced.to_string());
        }
        if let Some(provenance) = job.runs().get(trial.run).and_then(|run| run.provenance.as_ref()) {
            note(&mut self.versions, provenance.rollout_version.clone());
        }
    }

    fn finish(self, planned_tasks: u64) -> Side {
        let Self { mut side, gather, limits, versions } = self;
        for (name, mut found) in [("enforced limits", limits), ("version of Rollout", versions)] {
            if !found.is_empty() {
                found.sort_unstable();
                side.settings.insert(name, found.join(" and "));
            }
        }
        // The differences are resampled, not the sides.
        side.figures = gather.finish(Confidence::P95, Resampling { resamples: 0, seed: 0 });
        side.plan(planned_tasks);
        side
    }
}

/// Adds a value that trials of a side have, up to a maximum number of values.
fn note(found: &mut Vec<String>, text: String) {
    const MOST: usize = 8;
    if found.len() < MOST && !found.contains(&text) {
        found.push(text);
    }
}

fn empty(job: &SavedJob, agent: &str) -> Side {
    let header = job.header();
    let mut settings = IndexMap::from([("provider", header.provider.clone())]);
    let config = job.config();
    let environment = config.get("environment");
    let of = |section: Option<&Value>, key: &str| section.and_then(|section| section.get(key)).cloned();
    for (name, value) in [
        ("override_cpus", of(environment, "override_cpus")),
        ("override_memory", of(environment, "override_memory")),
        ("override_storage", of(environment, "override_storage")),
        ("timeout_multiplier", of(Some(config), "timeout_multiplier")),
        ("verifier timeout", of(config.get("verifier"), "override_timeout_sec")),
    ] {
        let text = match value {
            None | Some(Value::Null) => "none".to_owned(),
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
        };
        settings.insert(name, text);
    }
    Side {
        name: agent.to_owned(),
        job: header.job_name.clone(),
        agent: agent.to_owned(),
        directory: job.path().display().to_string(),
        figures: Figures::default(),
        tasks: IndexMap::new(),
        attempts: header.attempts,
        settings,
        excluded_tags: Vec::new(),
        excluded_by_tag: 0,
    }
}

/// Gives every side a unique name that is as short as possible: the agent, with its job, with its directory.
pub(super) fn name(sides: &mut [Side]) {
    let forms: [fn(&Side) -> String; 3] = [
        |side| side.agent.clone(),
        |side| format!("{}/{}", side.job, side.agent),
        |side| format!("{}/{}", side.directory, side.agent),
    ];
    let one_job = sides.iter().all(|side| side.directory == sides[0].directory);
    for form in &forms[usize::from(!one_job)..] {
        sides.iter_mut().for_each(|side| side.name = form(side));
        let distinct: std::collections::HashSet<_> = sides.iter().map(|side| &side.name).collect();
        if distinct.len() == sides.len() {
            return;
        }
    }
}
