//! What the trials of a job come to, and the result.json that says it.

use std::collections::HashSet;

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Serialize, Serializer, ser::SerializeSeq as _};

use super::{Plan, PlanTask};
use rollout_core::{
    headline::Headline,
    name::{AgentName, DatasetName, TrialIndex},
    provenance::Provenance,
    result::{EarlyStop, ErrorType, JobMetric, JobResult, Totals, TrialResult, TrialSummary},
};
use rollout_record::stats::report::{Report, ReportTask, ReportTrial, StatisticsFile};

/// What is kept of each trial while the job runs: a few numbers, however large its record is.
#[derive(Debug)]
pub(super) struct Rows(Vec<Option<TrialSummary>>);

impl Rows {
    pub(super) fn new(trials: u64) -> Self {
        Self(vec![None; trials as usize])
    }

    pub(super) fn get(&self, index: TrialIndex) -> Option<TrialSummary> {
        self.0.get(index.0 as usize).copied().flatten()
    }

    /// Keeps what matters of a result. False: the plan has no such trial.
    pub(super) fn set(&mut self, index: TrialIndex, result: &TrialResult) -> bool {
        let Some(slot) = self.0.get_mut(index.0 as usize) else { return false };
        *slot = Some(result.into());
        true
    }
}

/// The totals of each agent over the trials that are not to be run.
pub(super) fn earlier(plan: &Plan, rows: &Rows, todo: &[TrialIndex]) -> IndexMap<AgentName, Totals> {
    let todo: HashSet<_> = todo.iter().collect();
    let mut agents = IndexMap::new();
    for index in plan.indexes().filter(|index| !todo.contains(index)) {
        if let Some(row) = rows.get(index) {
            let agent = &plan.parts(index).0.name;
            agents.entry(agent.clone()).or_insert_with(Totals::default).add(row);
        }
    }
    agents
}

/// When a job ran, over all its runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) started_at: Timestamp,
    pub(super) ended_at: Timestamp,
    pub(super) total_duration_sec: f64,
}

/// The trials of a job as statistics take them.
pub(super) fn report(plan: &Plan, rows: &Rows) -> Report {
    let task = |task: &PlanTask| {
        let (category, difficulty) = task.labels();
        let clean = |text: Option<&str>| text.map(|text| plan.redactor().text(text).into_owned());
        ReportTask {
            dataset: task.dataset.to_string(),
            name: task.name.to_string(),
            category: clean(category),
            difficulty: clean(difficulty),
        }
    };
    let trial = |index| {
        let (agent, task, _) = plan.place(index);
        let outcome = rows.get(index).unwrap_or(TrialSummary::SKIPPED);
        ReportTrial { agent: agent as u32, task: task as u32, outcome }
    };
    Report::new(
        plan.agents().map(ToString::to_string).collect(),
        plan.tasks().iter().map(task).collect(),
        plan.indexes().map(trial),
    )
}

/// Adds up the rows of a job.
pub(super) fn aggregate(
    plan: &Plan,
    rows: &Rows,
    report: &Report,
    job_name: &str,
    (cancelled, stopped): (bool, Option<EarlyStop>),
    times: Times,
) -> JobResult {
    let mut totals = Totals::default();
    let mut agents: IndexMap<AgentName, Totals> = IndexMap::new();
    let mut groups: IndexMap<(AgentName, DatasetName), Totals> = IndexMap::new();
    for index in plan.indexes() {
        let (agent, task, _) = plan.parts(index);
        let row = rows.get(index).unwrap_or(TrialSummary::SKIPPED);
        totals.add(row);
        agents.entry(agent.name.clone()).or_default().add(row);
        groups.entry((agent.name.clone(), task.dataset.clone())).or_default().add(row);
    }
    let groups = groups.into_iter().map(|((agent, dataset), totals)| (agent, dataset, totals)).collect();
    JobResult {
        job_name: job_name.to_owned(),
        cancelled,
        stopped,
        totals,
        total_duration_sec: times.total_duration_sec,
        started_at: times.started_at,
        ended_at: times.ended_at,
        agents,
        groups,
        statistics: report.statistics(),
    }
}

/// A job's result.json, written row by row.
#[derive(Serialize)]
pub(super) struct ResultFile<'a> {
    job_name: &'a str,
    cancelled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<&'a EarlyStop>,
    total_trials: u64,
    completed_trials: u64,
    failed_trials: u64,
    skipped_trials: u64,
    pass_rate: f64,
    mean_reward: f64,
    headline: JobHeadline<'a>,
    total_cost: f64,
    environment_cost: f64,
    model_cost: Option<f64>,
    restarted_trials: u64,
    total_duration_sec: f64,
    #[serde(with = "rollout_core::moment")]
    started_at: Timestamp,
    #[serde(with = "rollout_core::moment")]
    ended_at: Timestamp,
    agents: IndexMap<&'a AgentName, AgentFile>,
    provenance: Option<&'a Provenance>,
    statistics: StatisticsFile<'a>,
    results: ResultRows<'a>,
}

/// The headline of a job, with the threshold of each dataset.
#[derive(Serialize)]
struct JobHeadline<'a> {
    #[serde(flatten)]
    headline: Headline,
    pass_thresholds: IndexMap<&'a DatasetName, f64>,
}

#[derive(Serialize)]
struct AgentFile {
    total_trials: u64,
    completed_trials: u64,
    failed_trials: u64,
    skipped_trials: u64,
    pass_rate: f64,
    mean_reward: f64,
    headline: Headline,
    total_cost: f64,
    environment_cost: f64,
    model_cost: Option<f64>,
    metrics: IndexMap<JobMetric, Option<f64>>,
}

impl<'a> ResultFile<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        rows: &'a Rows,
        report: &'a Report,
        result: &'a JobResult,
        provenance: Option<&'a Provenance>,
    ) -> Self {
        let totals = &result.totals;
        let metrics = &plan.config().metrics;
        let agents = result.agents.iter().map(|(name, totals)| {
            let file = AgentFile {
                total_trials: totals.total_trials,
                completed_trials: totals.completed_trials,
                failed_trials: totals.failed_trials,
                skipped_trials: totals.skipped_trials,
                pass_rate: totals.pass_rate(),
                mean_reward: totals.mean_reward(),
                headline: totals.headline(),
                total_cost: totals.total_cost,
                environment_cost: totals.environment_cost,
                model_cost: totals.model_cost,
                metrics: metrics.iter().map(|metric| (*metric, totals.metric(*metric))).collect(),
            };
            (name, file)
        });
        Self {
            job_name: &result.job_name,
            cancelled: result.cancelled,
            stopped: result.stopped.as_ref(),
            total_trials: totals.total_trials,
            completed_trials: totals.completed_trials,
            failed_trials: totals.failed_trials,
            skipped_trials: totals.skipped_trials,
            pass_rate: totals.pass_rate(),
            mean_reward: totals.mean_reward(),
            headline: JobHeadline {
                headline: totals.headline(),
                pass_thresholds: plan
                    .tasks()
                    .iter()
                    .map(|task| (&task.dataset, task.pass_threshold))
                    .collect(),
            },
            total_cost: totals.total_cost,
            environment_cost: totals.environment_cost,
            model_cost: totals.model_cost,
            restarted_trials: totals.restarted_trials,
            total_duration_sec: result.total_duration_sec,
            started_at: result.started_at,
            ended_at: result.ended_at,
            agents: agents.collect(),
            provenance,
            statistics: report.file(&result.statistics),
            results: ResultRows { plan, rows },
        }
    }
}

struct ResultRows<'a> {
    plan: &'a Plan,
    rows: &'a Rows,
}

#[derive(Serialize)]
struct ResultRow<'a> {
    task_name: &'a str,
    dataset_name: &'a str,
    agent_name: &'a str,
    attempt: u32,
    task_git_commit_id: Option<&'a str>,
    reward: Option<f64>,
    error: Option<ErrorType>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    skipped: bool,
}

impl Serialize for ResultRows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sequence = serializer.serialize_seq(Some(self.plan.len() as usize))?;
        for index in self.plan.indexes() {
            let (agent, task, attempt) = self.plan.parts(index);
            let row = self.rows.get(index);
            sequence.serialize_element(&ResultRow {
                task_name: task.name.as_str(),
                dataset_name: task.dataset.as_str(),
                agent_name: agent.name.as_str(),
                attempt,
                task_git_commit_id: task.container().and_then(|task| task.git_commit_id.as_deref()),
                reward: row.and_then(|row| row.reward),
                error: row.and_then(|row| row.error),
                skipped: row.is_none(),
            })?;
        }
        sequence.end()
    }
}
