//! The statistics of a job: figures of each agent, over all its tasks and over groups of them.
//!
//! ```
//! use rollout::{result::{Standing, TrialSummary}, stats::report::{Report, ReportTask, ReportTrial}};
//!
//! let task = |name: &'static str| ReportTask {
//!     dataset: "sums".into(),
//!     name: name.into(),
//!     category: Some("easy".into()),
//!     difficulty: None,
//! };
//! let trial = |task, reward| {
//!     let outcome = TrialSummary { standing: Standing::Completed, reward: Some(reward), ..TrialSummary::SKIPPED };
//!     ReportTrial { agent: 0, task, outcome }
//! };
//! let trials = [trial(0, 1.0), trial(0, 0.0), trial(1, 1.0)];
//! let report = Report::new(vec!["model".into()], vec![task("a"), task("b")], trials);
//! let model = &report.statistics().agents["model"];
//! assert_eq!(model.figures.headline.solved, 2);
//! assert_eq!(model.categories["easy"], model.figures);
//! assert_eq!(report.tasks(0).map(|task| task.trials).collect::<Vec<_>>(), [2, 1]);
//! ```

use std::borrow::Cow;

use indexmap::IndexMap;
use serde::{Serialize, Serializer, ser::SerializeSeq as _};
use serde_json::value::RawValue;

use super::{
    Confidence, Moments,
    figures::{Gather, MOST_TRIES},
    pass_all_k, pass_at_k, wilson,
};
use rollout_core::result::{Standing, TrialSummary};
use rollout_core::statistics::{AgentStatistics, Figures, Interval, Resampling, Statistics};

/// The maximum number of groups of tasks. More groups would contain few tasks each, and make the report too long.
const MOST_PARTS: usize = 1_000;

/// The confidence of all intervals.
const CONFIDENCE: Confidence = Confidence::P95;

const SEED: u64 = 1;

/// A task of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportTask<'a> {
    /// Its dataset.
    pub dataset: Cow<'a, str>,
    /// Its name.
    pub name: Cow<'a, str>,
    /// The category in its metadata.
    pub category: Option<Cow<'a, str>>,
    /// The difficulty in its metadata.
    pub difficulty: Option<Cow<'a, str>>,
}

/// A trial of a report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReportTrial {
    /// The index of its agent.
    pub agent: u32,
    /// The index of its task.
    pub task: u32,
    /// Its outcome.
    pub outcome: TrialSummary,
}

/// The figures of one agent on one task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskFigures<'a> {
    /// The task.
    pub task_name: Cow<'a, str>,
    /// Its dataset.
    pub dataset_name: Cow<'a, str>,
    /// The category in its metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<Cow<'a, str>>,
    /// The difficulty in its metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difficulty: Option<Cow<'a, str>>,
    /// The number of planned trials.
    pub trials: u64,
    /// Trials with a reward, or without an error if verification is disabled.
    pub completed: u64,
    /// Trials without a reward because of an error.
    pub failed: u64,
    /// Trials that a cancelled job did not finish.
    pub skipped: u64,
    /// Failed trials that are excluded from all rates, because the infrastructure or the task failed.
    pub excluded: u64,
    /// Over trials with a reward. Trials that failed because of the agent or the tests count as 0.
    pub headline: TaskScores,
    /// Over trials with a reward only; absent if it is the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_excluded: Option<TaskScores>,
    /// The mean duration of finished trials, in seconds.
    pub mean_duration_sec: Option<f64>,
    /// The mean cost of finished trials with a known cost, in US dollars.
    pub mean_cost_usd: Option<f64>,
}

/// The scores of one task over the trials that count.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskScores {
    /// The number of trials that count.
    pub trials: u64,
    /// Trials whose reward reaches the threshold of their dataset.
    pub solved: u64,
    /// The fraction of solved trials.
    pub pass_rate: Option<f64>,
    /// Wilson's interval of the pass rate.
    pub interval: Option<Interval>,
    /// The mean reward.
    pub mean_reward: Option<f64>,
    /// Its standard error.
    pub standard_error: Option<f64>,
    /// The probability that at least one of k tries is solved, from k = 1.
    pub pass_at_k: Vec<f64>,
    /// The probability that all of k tries are solved, from k = 1.
    pub pass_all_k: Vec<f64>,
}

/// The trials of a job as a report takes them. There may be a million: each is asked for when it is its turn.
pub trait ReportData {
    /// The names of the agents.
    fn agents(&self) -> impl Iterator<Item = &str>;

    /// How many tasks there are.
    fn tasks(&self) -> usize;

    /// The task of that number, from 0.
    fn task(&self, number: u32) -> ReportTask<'_>;

    /// How the trials of the agent of that number went, each with the number of its task, in the order of the tasks.
    fn trials(&self, agent: usize) -> impl Iterator<Item = (u32, TrialSummary)>;
}

/// The trials of a job, in memory.
#[derive(Debug, Clone)]
pub struct TrialList {
    agents: Vec<String>,
    tasks: Vec<ReportTask<'static>>,
    /// By agent, then by task.
    trials: Vec<ReportTrial>,
}

impl ReportData for TrialList {
    fn agents(&self) -> impl Iterator<Item = &str> {
        self.agents.iter().map(String::as_str)
    }

    fn tasks(&self) -> usize {
        self.tasks.len()
    }

    fn task(&self, number: u32) -> ReportTask<'_> {
        let ReportTask { dataset, name, category, difficulty } = &self.tasks[number as usize];
        ReportTask {
            dataset: (&**dataset).into(),
            name: (&**name).into(),
            category: category.as_deref().map(Cow::Borrowed),
            difficulty: difficulty.as_deref().map(Cow::Borrowed),
        }
    }

    fn trials(&self, agent: usize) -> impl Iterator<Item = (u32, TrialSummary)> {
        let start = self.trials.partition_point(|trial| (trial.agent as usize) < agent);
        let end = self.trials.partition_point(|trial| trial.agent as usize <= agent);
        self.trials[start..end].iter().map(|trial| (trial.task, trial.outcome))
    }
}

/// The trials of a job, ready to be summed up.
#[derive(Debug, Clone)]
pub struct Report<D = TrialList> {
    data: D,
}

impl Report {
    /// Creates a report of the trials of a job, in any order.
    ///
    /// # Panics
    ///
    /// If a trial has an invalid index of an agent or a task.
    pub fn new(
        agents: Vec<String>,
        tasks: Vec<ReportTask<'static>>,
        trials: impl IntoIterator<Item = ReportTrial>,
    ) -> Self {
        let mut trials: Vec<ReportTrial> = trials.into_iter().collect();
        trials.sort_by_key(|trial| (trial.agent, trial.task));
        let there = |trial: &ReportTrial| {
            (trial.agent as usize) < agents.len() && (trial.task as usize) < tasks.len()
        };
        assert!(trials.iter().all(there), "a trial has an agent and a task of the report");
        Self::of(TrialList { agents, tasks, trials })
    }
}

impl<D: ReportData> Report<D> {
    /// Takes the trials of a job from where they are.
    pub fn of(data: D) -> Self {
        Self { data }
    }

    /// Computes the statistics.
    pub fn statistics(&self) -> Statistics {
        let bootstrap = Resampling { resamples: self.resamples(), seed: SEED };
        let agent = |(number, name): (usize, &str)| (name.to_owned(), self.agent(number, bootstrap));
        Statistics {
            confidence: CONFIDENCE.level(),
            bootstrap,
            agents: self.data.agents().enumerate().map(agent).collect(),
        }
    }

    /// Computes the figures of an agent over all its trials without a bootstrap, which takes most of the time of the
    /// statistics.
    pub fn figures(&self, agent: usize) -> Figures {
        let mut all = Gather::default();
        self.data.trials(agent).for_each(|(task, outcome)| all.add(task, &outcome));
        all.finish(CONFIDENCE, Resampling { resamples: 0, seed: 0 })
    }

    /// Returns the figures of an agent for each task, in the order of the tasks. Tasks without a trial are skipped.
    pub fn tasks(&self, agent: usize) -> impl Iterator<Item = TaskFigures<'_>> {
        let mut trials = self.data.trials(agent).peekable();
        std::iter::from_fn(move || {
            let (task, outcome) = trials.next()?;
            let mut outcomes = vec![outcome];
            while let Some((_, outcome)) = trials.next_if(|(other, _)| *other == task) {
                outcomes.push(outcome);
            }
            Some(TaskFigures::new(self.data.task(task), &outcomes))
        })
    }

    /// Returns the statistics with the figures of each task, as in the job's result.json.
    pub fn file<'a>(&'a self, statistics: &'a Statistics) -> StatisticsFile<'a, D> {
        let agent = |(number, (name, agent)): (usize, (&'a String, &'a AgentStatistics))| {
            (name.as_str(), AgentFile { agent, by_task: Tasks { report: self, agent: number } })
        };
        StatisticsFile {
            confidence: statistics.confidence,
            bootstrap: statistics.bootstrap,
            agents: statistics.agents.iter().enumerate().map(agent).collect(),
        }
    }

    /// Returns a thousand, or less for a large number of tasks.
    fn resamples(&self) -> u64 {
        const MOST_DRAWS: u64 = 20_000_000;
        let clusters = (self.data.agents().count() * self.data.tasks()).max(1) as u64;
        (MOST_DRAWS / clusters).clamp(200, 1_000)
    }

    fn agent(&self, agent: usize, bootstrap: Resampling) -> AgentStatistics {
        let mut all = Gather::default();
        self.data.trials(agent).for_each(|(task, outcome)| all.add(task, &outcome));
        let figures = all.finish(CONFIDENCE, bootstrap);
        // One kind of group at a time, to limit the memory.
        let by = |part: fn(ReportTask<'_>) -> Option<Cow<'_, str>>| {
            let mut parts: IndexMap<String, Gather> = IndexMap::new();
            for (task, outcome) in self.data.trials(agent) {
                if let Some(part) = part(self.data.task(task)) {
                    match parts.get_mut(&*part) {
                        Some(known) => known.add(task, &outcome),
                        None => parts.entry(part.into_owned()).or_default().add(task, &outcome),
                    }
                }
                if parts.len() > MOST_PARTS {
                    return IndexMap::new();
                }
            }
            let alone = parts.len() == 1;
            let finish = |(name, part): (String, Gather)| {
                let figures = match alone && part.trials() == figures.trials {
                    true => figures.clone(),
                    false => part.finish(CONFIDENCE, bootstrap),
                };
                (name, figures)
            };
            parts.into_iter().map(finish).collect()
        };
        AgentStatistics {
            datasets: by(|task| Some(task.dataset)),
            categories: by(|task| task.category),
            difficulties: by(|task| task.difficulty),
            figures,
        }
    }
}

impl<'a> TaskFigures<'a> {
    fn new(task: ReportTask<'a>, trials: &[TrialSummary]) -> Self {
        let outcomes = || trials.iter();
        let count = |standing| outcomes().filter(|trial| trial.standing == standing).count() as u64;
        let finished = || outcomes().filter(|trial| trial.standing != Standing::Skipped);
        let failed = count(Standing::Failed);
        let scored =
            outcomes().filter(|trial| trial.standing == Standing::Completed && trial.reward.is_some());
        let solved = scored.clone().filter(|trial| trial.is_solved()).count() as u64;
        let counted: Moments = outcomes().filter_map(TrialSummary::headline_reward).collect();
        let rewards: Moments = scored.filter_map(|trial| trial.reward).collect();
        let counted_failures = counted.count() - rewards.count();
        Self {
            task_name: task.name,
            dataset_name: task.dataset,
            category: task.category,
            difficulty: task.difficulty,
            trials: trials.len() as u64,
            completed: count(Standing::Completed),
            failed,
            skipped: count(Standing::Skipped),
            excluded: failed - counted_failures,
            headline: TaskScores::new(counted, solved),
            failed_excluded: (counted_failures > 0).then(|| TaskScores::new(rewards, solved)),
            mean_duration_sec: finished().map(|trial| trial.seconds).collect::<Moments>().mean(),
            mean_cost_usd: finished().filter_map(TrialSummary::known_cost).collect::<Moments>().mean(),
        }
    }
}

impl TaskScores {
    fn new(rewards: Moments, solved: u64) -> Self {
        let trials = rewards.count();
        let tries = 1..=trials.min(MOST_TRIES as u64);
        Self {
            trials,
            solved,
            pass_rate: (trials > 0).then(|| solved as f64 / trials as f64),
            interval: wilson(solved, trials, CONFIDENCE),
            mean_reward: rewards.mean(),
            standard_error: rewards.standard_error(),
            pass_at_k: tries.clone().map(|k| pass_at_k(trials, solved, k)).collect(),
            pass_all_k: tries.map(|k| pass_all_k(trials, solved, k)).collect(),
        }
    }
}

/// The statistics in a file. The figures of tasks are computed while they are written.
#[derive(Debug, Serialize)]
#[serde(bound = "D: ReportData")]
pub struct StatisticsFile<'a, D> {
    confidence: f64,
    bootstrap: Resampling,
    agents: IndexMap<&'a str, AgentFile<'a, D>>,
}

#[derive(Debug, Serialize)]
#[serde(bound = "D: ReportData")]
struct AgentFile<'a, D> {
    #[serde(flatten)]
    agent: &'a AgentStatistics,
    by_task: Tasks<'a, D>,
}

#[derive(Debug)]
struct Tasks<'a, D> {
    report: &'a Report<D>,
    agent: usize,
}

impl<D: ReportData> Serialize for Tasks<'_, D> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sequence = serializer.serialize_seq(None)?;
        for task in self.report.tasks(self.agent) {
            // One line each, because there may be as many tasks as trials.
            let line = serde_json::to_string(&task).and_then(RawValue::from_string);
            sequence.serialize_element(&line.map_err(serde::ser::Error::custom)?)?;
        }
        sequence.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_core::result::ErrorType;

    fn task(name: &str, category: Option<&str>) -> ReportTask<'static> {
        let (name, category) = (name.to_owned().into(), category.map(|text| text.to_owned().into()));
        ReportTask { dataset: "set".into(), name, category, difficulty: None }
    }

    fn trial(agent: u32, task: u32, reward: Option<f64>, standing: Standing) -> ReportTrial {
        let outcome =
            TrialSummary { standing, reward, seconds: 2.0, model_cost: reward, ..TrialSummary::SKIPPED };
        ReportTrial { agent, task, outcome }
    }

    fn scored(agent: u32, task: u32, reward: f64) -> ReportTrial {
        trial(agent, task, Some(reward), Standing::Completed)
    }

    /// A trial that failed because of the infrastructure.
    fn lost(agent: u32, task: u32) -> ReportTrial {
        let mut lost = trial(agent, task, None, Standing::Failed);
        lost.outcome.error = Some(ErrorType::EnvironmentStartFailed);
        lost
    }

    #[test]
    fn agents_failures_count_as_zero_and_those_of_the_infrastructure_do_not_count() {
        let trials = [
            scored(0, 0, 1.0),
            trial(0, 0, None, Standing::Failed),
            trial(0, 1, None, Standing::Completed),
            trial(0, 1, None, Standing::Skipped),
            scored(0, 2, 0.5),
            lost(0, 2),
        ];
        let tasks = vec![task("a", None), task("b", None), task("c", None)];
        let figures = Report::new(vec!["x".into()], tasks, trials).statistics().agents["x"].figures.clone();
        assert_eq!((figures.tasks, figures.trials, figures.completed), (3, 6, 3));
        assert_eq!((figures.failed, figures.excluded), (2, 1));
        assert_eq!((figures.skipped, figures.unscored), (1, 1));
        let rates = |scores: &rollout_core::statistics::Scores| {
            let (rate, mean) = (scores.pass_rate.unwrap().rate, scores.mean_reward.unwrap().mean);
            (scores.trials, scores.solved, rate, mean)
        };
        assert_eq!(rates(&figures.failed_excluded), (2, 1, 0.5, 0.75));
        assert_eq!(rates(&figures.headline), (3, 1, 1.0 / 3.0, 0.5));
        // Only the first task was tried twice, and only if the failure counts.
        assert_eq!(figures.failed_excluded.pass_k.len(), 1);
        let twice = figures.headline.pass_k[1];
        assert_eq!((twice.tasks, twice.at_k, twice.all_k), (1, 1.0, 0.0));
        // Every finished trial has a duration; only known costs are included.
        assert_eq!(figures.duration_sec.unwrap().n, 5);
        assert_eq!(figures.cost_usd.map(|cost| (cost.n, cost.max)), Some((2, 1.0)));
    }

    #[test]
    fn trials_in_any_order_give_the_same_to_the_last_bit() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut trials: Vec<ReportTrial> = (0..2)
            .flat_map(|agent| (0..40).map(move |task| (agent, task)))
            .map(|(agent, task)| scored(agent, task, random.f64()))
            .collect();
        let report = |trials: &[ReportTrial]| {
            let tasks = (0..40).map(|task_number| task(&task_number.to_string(), Some("c"))).collect();
            Report::new(vec!["x".into(), "y".into()], tasks, trials.iter().copied())
        };
        let statistics = report(&trials).statistics();
        random.shuffle(&mut trials);
        assert_eq!(report(&trials).statistics(), statistics);
        assert_eq!(statistics.bootstrap, Resampling { resamples: 1_000, seed: 1 });
    }

    #[test]
    fn parts_are_those_that_tasks_name_unless_there_are_too_many() {
        let tasks = vec![task("a", Some("math")), task("b", None), task("c", Some("code"))];
        let trials = (0..3).map(|task| scored(0, task, 1.0));
        let statistics = Report::new(vec!["x".into()], tasks, trials).statistics();
        let agent = &statistics.agents["x"];
        assert_eq!(agent.categories.keys().collect::<Vec<_>>(), ["math", "code"]);
        assert_eq!(agent.categories["math"].trials, 1);
        assert_eq!(agent.datasets["set"], agent.figures);
        assert!(agent.difficulties.is_empty());
        let many = MOST_PARTS as u32 + 1;
        let tasks = (0..many).map(|number| task("t", Some(&number.to_string()))).collect();
        let trials = (0..many).map(|task| scored(0, task, 1.0));
        assert!(Report::new(vec!["x".into()], tasks, trials).statistics().agents["x"].categories.is_empty());
    }

    #[test]
    fn nothing_finished_is_no_number() {
        let trials = [trial(0, 0, None, Standing::Skipped)];
        let report = Report::new(vec!["x".into()], vec![task("a", None)], trials);
        let figures = &report.statistics().agents["x"].figures;
        assert_eq!((figures.trials, figures.skipped), (1, 1));
        assert_eq!(figures.headline, rollout_core::statistics::Scores::default());
        assert_eq!((figures.duration_sec, figures.cost_usd), (None, None));
        assert_eq!(report.tasks(0).next().unwrap().headline.pass_rate, None);
    }

    #[test]
    fn a_file_has_a_line_for_each_task() {
        let trials = [scored(0, 0, 1.0), scored(0, 0, 0.0), trial(0, 1, None, Standing::Failed)];
        let report = Report::new(vec!["x".into()], vec![task("a", Some("math")), task("b", None)], trials);
        let statistics = report.statistics();
        let text = serde_json::to_string_pretty(&report.file(&statistics)).unwrap();
        let lines: Vec<&str> =
            text.lines().map(str::trim).filter(|line| line.contains("task_name")).collect();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        {"task_name":"a","dataset_name":"set","category":"math","trials":2,"completed":2,"failed":0,"skipped":0,"excluded":0,"headline":{"trials":2,"solved":1,"pass_rate":0.5,"interval":{"low":0.09453120573423088,"high":0.9054687942657691},"mean_reward":0.5,"standard_error":0.5,"pass_at_k":[0.5,1.0],"pass_all_k":[0.5,0.0]},"mean_duration_sec":2.0,"mean_cost_usd":0.5},
        {"task_name":"b","dataset_name":"set","trials":1,"completed":0,"failed":1,"skipped":0,"excluded":0,"headline":{"trials":1,"solved":0,"pass_rate":0.0,"interval":{"low":0.0,"high":0.7934506856227623},"mean_reward":0.0,"standard_error":null,"pass_at_k":[0.0],"pass_all_k":[0.0]},"failed_excluded":{"trials":0,"solved":0,"pass_rate":null,"interval":null,"mean_reward":null,"standard_error":null,"pass_at_k":[],"pass_all_k":[]},"mean_duration_sec":2.0,"mean_cost_usd":null}
        "#);
        let read: Statistics = serde_json::from_str(&text).unwrap();
        assert_eq!(read, statistics);
    }
}
