//! The totals of a job's trials, and result.json.

use std::collections::HashMap;

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Serialize, Serializer, ser::SerializeSeq as _};

use super::Plan;
use rollout_core::{
    headline::Headline,
    name::{AgentName, DatasetName, TrialIndex},
    provenance::Provenance,
    result::{
        CallTotals, EarlyStop, ErrorType, JobMetric, JobResult, Standing, Totals, TrialResult, TrialSummary,
    },
};
use rollout_record::stats::report::{Report, ReportData, ReportTask, StatisticsFile};

/// The data of each trial in memory while the job runs: a few numbers, however large its record is.
#[derive(Debug)]
pub(super) struct Rows {
    all: Vec<Row>,
    /// Apart, because most trials have none.
    model_calls: HashMap<TrialIndex, CallTotals>,
}

/// The data of a trial. Its threshold is in the plan.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    reward: f64,
    environment_cost: f64,
    model_cost: f64,
    seconds: f64,
    /// None while there is no result.
    standing: Option<Standing>,
    error: Option<ErrorType>,
    has_reward: bool,
    has_model_cost: bool,
    is_restarted: bool,
    has_incomplete_logs: bool,
}

impl Rows {
    pub(super) fn new(trials: u64) -> Self {
        Self { all: vec![Row::default(); trials as usize], model_calls: HashMap::new() }
    }

    /// The known cost of each trial that has a result.
    pub(super) fn costs(&self) -> impl Iterator<Item = f64> {
        let ended = self.all.iter().filter(|row| row.standing.is_some());
        ended.map(|row| row.environment_cost + row.model_cost)
    }

    pub(super) fn get(&self, plan: &Plan, index: TrialIndex) -> Option<TrialSummary> {
        let row = self.all.get(index.0 as usize)?;
        Some(TrialSummary {
            standing: row.standing?,
            reward: row.has_reward.then_some(row.reward),
            pass_threshold: plan.parts(index).1.pass_threshold(),
            error: row.error,
            environment_cost: row.environment_cost,
            model_cost: row.has_model_cost.then_some(row.model_cost),
            seconds: row.seconds,
            is_restarted: row.is_restarted,
            has_incomplete_logs: row.has_incomplete_logs,
            model_calls: self.model_calls.get(&index).copied(),
        })
    }

    /// Stores the data of a result. False if the plan has no such trial.
    pub(super) fn set(&mut self, index: TrialIndex, result: &TrialResult) -> bool {
        let Some(row) = self.all.get_mut(index.0 as usize) else { return false };
        let summary = TrialSummary::from(result);
        match summary.model_calls {
            Some(calls) => self.model_calls.insert(index, calls),
            None => self.model_calls.remove(&index),
        };
        *row = Row {
            reward: summary.reward.unwrap_or_default(),
            environment_cost: summary.environment_cost,
            model_cost: summary.model_cost.unwrap_or_default(),
            seconds: summary.seconds,
            standing: Some(summary.standing),
            error: summary.error,
            has_reward: summary.reward.is_some(),
            has_model_cost: summary.model_cost.is_some(),
            is_restarted: summary.is_restarted,
            has_incomplete_logs: summary.has_incomplete_logs,
        };
        true
    }
}

/// The totals of each agent over the trials that will not run. Those that will run are in order.
pub(super) fn earlier(plan: &Plan, rows: &Rows, todo: &[TrialIndex]) -> IndexMap<AgentName, Totals> {
    let mut agents = IndexMap::new();
    for index in plan.indexes().filter(|index| todo.binary_search(index).is_err()) {
        if let Some(row) = rows.get(plan, index) {
            let agent = &plan.parts(index).0.name;
            agents.entry(agent.clone()).or_insert_with(Totals::default).add(row);
        }
    }
    agents
}

/// The times of a job, over all its runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) started_at: Timestamp,
    pub(super) ended_at: Timestamp,
    pub(super) total_duration_sec: f64,
}

/// The trials of a job in the form of statistics.
pub(super) fn report<'a>(plan: &'a Plan, rows: &'a Rows) -> Report<PlanReport<'a>> {
    Report::of(PlanReport { plan, rows })
}

/// The trials of a plan with their data.
#[derive(Debug)]
pub(super) struct PlanReport<'a> {
    plan: &'a Plan,
    rows: &'a Rows,
}

impl ReportData for PlanReport<'_> {
    fn agents(&self) -> impl Iterator<Item = &str> {
        self.plan.agents().map(AgentName::as_str)
    }

    fn tasks(&self) -> usize {
        self.plan.tasks().len()
    }

    fn task(&self, number: u32) -> ReportTask<'_> {
        let task = &self.plan.tasks()[number as usize];
        let (category, difficulty) = task.labels();
        ReportTask {
            dataset: task.dataset().as_str().into(),
            name: task.name().into(),
            category: category.map(|text| self.plan.redactor().text(text)),
            difficulty: difficulty.map(|text| self.plan.redactor().text(text)),
        }
    }

    fn trials(&self, agent: usize) -> impl Iterator<Item = (u32, TrialSummary)> {
        let first = agent as u64 * self.plan.per_agent();
        (first..first + self.plan.per_agent()).map(TrialIndex).map(|index| {
            let outcome = self.rows.get(self.plan, index).unwrap_or(TrialSummary::SKIPPED);
            (self.plan.place(index).1 as u32, outcome)
        })
    }
}

/// Computes the totals of a job.
pub(super) fn aggregate(
    plan: &Plan,
    rows: &Rows,
    report: &Report<PlanReport<'_>>,
    job_name: &str,
    (cancelled, stopped): (bool, Option<EarlyStop>),
    times: Times,
) -> JobResult {
    let mut totals = Totals::default();
    let mut agents: IndexMap<AgentName, Totals> = IndexMap::new();
    let mut groups: IndexMap<(AgentName, DatasetName), Totals> = IndexMap::new();
    for index in plan.indexes() {
        let (agent, task, _) = plan.parts(index);
        let row = rows.get(plan, index).unwrap_or(TrialSummary::SKIPPED);
        totals.add(row);
        agents.entry(agent.name.clone()).or_default().add(row);
        groups.entry((agent.name.clone(), task.dataset().clone())).or_default().add(row);
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
    #[serde(skip_serializing_if = "CallTotals::is_empty")]
    model_calls: CallTotals,
    restarted_trials: u64,
    incomplete_log_trials: u64,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    teardown_warnings: &'a [String],
    total_duration_sec: f64,
    #[serde(with = "rollout_core::moment")]
    started_at: Timestamp,
    #[serde(with = "rollout_core::moment")]
    ended_at: Timestamp,
    agents: IndexMap<&'a AgentName, AgentFile>,
    provenance: Option<&'a Provenance>,
    statistics: StatisticsFile<'a, PlanReport<'a>>,
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
    #[serde(skip_serializing_if = "CallTotals::is_empty")]
    model_calls: CallTotals,
    metrics: IndexMap<JobMetric, Option<f64>>,
}

impl<'a> ResultFile<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        rows: &'a Rows,
        report: &'a Report<PlanReport<'a>>,
        result: &'a JobResult,
        provenance: Option<&'a Provenance>,
        teardown_warnings: &'a [String],
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
                model_calls: totals.model_calls,
                metrics: metrics.iter().map(|metric| (*metric, totals.metric(*metric))).collect(),
            };
            (name, file)
        });
        // Not collected: that would reserve memory for as many datasets as there are tasks.
        let mut pass_thresholds = IndexMap::new();
        for task in plan.tasks() {
            pass_thresholds.insert(task.dataset(), task.pass_threshold());
        }
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
            headline: JobHeadline { headline: totals.headline(), pass_thresholds },
            total_cost: totals.total_cost,
            environment_cost: totals.environment_cost,
            model_cost: totals.model_cost,
            model_calls: totals.model_calls,
            restarted_trials: totals.restarted_trials,
            incomplete_log_trials: totals.incomplete_log_trials,
            teardown_warnings,
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
            let row = self.rows.get(self.plan, index);
            sequence.serialize_element(&ResultRow {
                task_name: task.name(),
                dataset_name: task.dataset().as_str(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_a_million_trials_takes_forty_megabytes() {
        assert!(size_of::<Row>() <= 40);
    }
}
