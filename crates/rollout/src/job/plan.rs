//! The trials of a job, and their order.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    num::NonZeroU32,
    sync::Arc,
};

use globset::GlobMatcher;

use super::{
    examples::ExampleSet,
    planned::{PlanDataset, PlanTask, Work, planned, planned_examples},
};
use crate::{
    config::{AgentConfig, JobConfig, LoadedJob},
    packages::Packages,
    task::Pins,
};
use rollout_core::{
    event::JobKind,
    name::{AgentName, DatasetName, TaskName, TrialId, TrialIndex},
    redact::Redactor,
    text::listed,
};
use rollout_model::{Model, RolloutInput, dataset};
use rollout_record::journal::{RegradeRecord, TaskSelection};

/// The maximum number of trials of a job. A few numbers of each are in memory while it runs.
const MAX_TRIALS: u64 = 1_000_000;

impl PlanError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::TooMany { .. } => Some("lower `n_attempts`, or split the job"),
            Self::Empty { .. } | Self::NoMatch { .. } | Self::DuplicateTask { .. } => None,
        }
    }
}

/// The selected part of a job. An empty list selects everything.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Agents by name.
    pub agents: Vec<GlobMatcher>,
    /// Datasets by name.
    pub datasets: Vec<GlobMatcher>,
    /// Tasks by name.
    pub tasks: Vec<GlobMatcher>,
    /// The maximum number of tasks of each dataset.
    pub limit: Option<usize>,
}

impl Selection {
    /// The selection of tasks; none if all are selected.
    fn of_tasks(&self) -> Option<TaskSelection> {
        let globs = self.tasks.iter().map(|glob| glob.glob().to_string()).collect();
        let chosen = TaskSelection { globs, limit: self.limit.map(|limit| limit as u64) };
        (chosen != TaskSelection::default()).then_some(chosen)
    }
}

/// Why a plan cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No agent, dataset or task matches.
    #[error("no task is selected; available tasks: {available}")]
    Empty {
        /// The available tasks.
        available: String,
    },
    /// A pattern selects nothing: most likely a mistake.
    #[error("no {what} matches {pattern:?}; available: {available}")]
    NoMatch {
        /// The kind that it selects.
        what: &'static str,
        /// The pattern.
        pattern: String,
        /// The available names.
        available: String,
    },
    /// There are more trials than a job supports.
    #[error(
        "the job has {trials} trials ({agents} agents × {tasks} tasks × attempts), and the limit is {MAX_TRIALS}"
    )]
    TooMany {
        /// The number of trials.
        trials: u128,
        /// The number of agents.
        agents: usize,
        /// The number of tasks.
        tasks: usize,
    },
    /// Two tasks of a dataset have the same name, and so would have the same directory.
    #[error("dataset {dataset} has two tasks named {task}; rename one of them in the registry")]
    DuplicateTask {
        /// The dataset.
        dataset: DatasetName,
        /// The name.
        task: TaskName,
    },
}

/// The trials of a job. A trial is identified by its index in the enumeration: agents, then datasets and their tasks,
/// then attempts.
#[derive(Debug)]
pub struct Plan {
    loaded: LoadedJob,
    overrides: Vec<String>,
    config: Arc<JobConfig>,
    pub(super) agents: Vec<PlanAgent>,
    pub(super) tasks: Vec<PlanTask>,
    /// For each task, how many trials an agent has before it; at the end, the number of all.
    offsets: Vec<u64>,
    pins: Pins,
    /// The selection of tasks, if not all were selected.
    pub(super) selection: Option<TaskSelection>,
    /// How many tasks its datasets have, selected or not.
    pub(super) dataset_sizes: BTreeMap<String, u64>,
    redactor: Arc<Redactor>,
    /// Where the agents of presets come from.
    pub(super) packages: Option<Arc<Packages>>,
    /// The finished job whose trials are graded again, if the plan does that.
    pub(super) regrade: Option<RegradeRecord>,
}

/// An agent of a plan.
#[derive(Debug, Clone)]
pub struct PlanAgent {
    /// Its name.
    pub name: AgentName,
    /// Its settings in the job file. A plan without a job file has only models.
    pub(super) config: Option<Arc<AgentConfig>>,
    /// The model, if it is one.
    pub(super) model: Option<Arc<Model>>,
}

impl Plan {
    /// Enumerates the trials of a job. `overrides` are the settings given in addition to the job file, and `vars`
    /// resolves `${VAR}` in the tasks' `[verifier.env]`.
    pub fn new<D: Into<PlanDataset>>(
        loaded: LoadedJob,
        overrides: Vec<String>,
        datasets: impl IntoIterator<Item = D>,
        selection: &Selection,
        vars: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, PlanError> {
        let config = Arc::new(loaded.config.clone());
        let datasets: Vec<PlanDataset> = datasets.into_iter().map(Into::into).collect();
        let agents: Vec<_> = config
            .agents
            .iter()
            .filter(|agent| selects(&selection.agents, agent.name.as_str()))
            .map(|agent| PlanAgent {
                name: agent.name.clone(),
                config: Some(Arc::new(agent.clone())),
                model: None,
            })
            .collect();
        check("agent", &selection.agents, config.agents.iter().map(|agent| agent.name.as_str()))?;
        check("dataset", &selection.datasets, datasets.iter().map(|dataset| dataset.name().as_str()))?;
        let mut all = Vec::new();
        let mut pins = Pins::new();
        for dataset in datasets {
            if selects(&selection.datasets, dataset.name().as_str()) {
                all.push(planned(dataset, &config, vars, &mut pins));
            }
        }
        let size = |tasks: &Vec<PlanTask>| Some((tasks.first()?.dataset().to_string(), tasks.len() as u64));
        let dataset_sizes = all.iter().filter_map(size).collect();
        all.iter_mut().for_each(|tasks| filter(tasks, &config));
        let names = || all.iter().flatten().map(PlanTask::name);
        check("task", &selection.tasks, names())?;
        let available = listed(names());
        let mut tasks = Vec::new();
        for mut dataset in all {
            dataset.retain(|task| selects(&selection.tasks, task.name()));
            dataset.truncate(selection.limit.unwrap_or(usize::MAX));
            check_names(&dataset)?;
            tasks.append(&mut dataset);
        }
        if tasks.is_empty() {
            return Err(PlanError::Empty { available });
        }
        check_size(agents.len(), &tasks)?;
        let redactor = Arc::new(redactor(&loaded, &tasks));
        let offsets = offsets(&tasks);
        let selection = selection.of_tasks();
        Ok(Self {
            loaded,
            overrides,
            config,
            agents,
            tasks,
            offsets,
            pins,
            selection,
            dataset_sizes,
            redactor,
            packages: None,
            regrade: None,
        })
    }

    /// A plan without a job file: one model, one set of examples.
    pub(crate) fn of_examples(
        loaded: LoadedJob,
        overrides: Vec<String>,
        agent: AgentName,
        model: Arc<Model>,
        examples: ExampleSet,
    ) -> Result<Self, PlanError> {
        let config = Arc::new(loaded.config.clone());
        let tasks = planned_examples(examples, &config);
        if tasks.is_empty() {
            return Err(PlanError::Empty { available: "none".to_owned() });
        }
        check_size(1, &tasks)?;
        let offsets = offsets(&tasks);
        let redactor = Arc::new(redactor(&loaded, &tasks));
        Ok(Self {
            loaded,
            overrides,
            config,
            agents: vec![PlanAgent { name: agent, config: None, model: Some(model) }],
            tasks,
            offsets,
            pins: Pins::new(),
            selection: None,
            dataset_sizes: BTreeMap::new(),
            redactor,
            packages: None,
            regrade: None,
        })
    }

    /// A plan of one task of this one, which a model attempts instead of the first agent. The given secrets are masked
    /// too.
    pub(crate) fn of_task(
        &self,
        task: usize,
        attempts: NonZeroU32,
        model: Arc<Model>,
        secrets: &[String],
    ) -> Self {
        let config = JobConfig { n_attempts: attempts, ..JobConfig::clone(&self.config) };
        let secrets = self.loaded.secrets.iter().chain(secrets).cloned().collect();
        let loaded = LoadedJob { secrets, ..LoadedJob::unwritten(config.clone()) };
        let tasks = vec![PlanTask { attempts: attempts.get(), ..self.tasks[task].clone() }];
        let agent = PlanAgent { model: Some(model), ..self.agents[0].clone() };
        Self {
            redactor: Arc::new(redactor(&loaded, &tasks)),
            loaded,
            overrides: Vec::new(),
            config: Arc::new(config),
            agents: vec![agent],
            offsets: offsets(&tasks),
            tasks,
            pins: Pins::new(),
            selection: None,
            dataset_sizes: BTreeMap::new(),
            packages: self.packages.clone(),
            regrade: None,
        }
    }

    /// Records how the questions of a benchmark were selected.
    pub(crate) fn selected(&mut self, selection: Option<TaskSelection>, questions: u64) {
        if let Some(task) = self.tasks.first() {
            self.dataset_sizes.insert(task.dataset().to_string(), questions);
        }
        self.selection = selection;
    }

    /// Records the configuration of a plan without a job file.
    pub(crate) fn describe(&mut self, record: serde_json::Value) {
        self.loaded.hash = dataset::hash(&record);
        self.loaded.record = record;
    }

    /// The kind of its trials.
    pub(super) fn kind(&self) -> JobKind {
        let first = self.tasks.first().map(|task| &task.work);
        match first {
            Some(Work::Example { set, .. }) if set.rollouts.results.is_some() => JobKind::Benchmark,
            _ => JobKind::Job,
        }
    }

    /// The same plan with the models of its model agents.
    #[must_use]
    pub fn with_models(mut self, mut models: HashMap<AgentName, Arc<Model>>) -> Self {
        for agent in &mut self.agents {
            agent.model = models.remove(&agent.name);
        }
        self
    }

    /// The same plan with the source of the packages of presets.
    #[must_use]
    pub fn with_packages(mut self, packages: Arc<Packages>) -> Self {
        self.packages = Some(packages);
        self
    }

    /// Replaces agents and tasks, which changes the indexes of the trials.
    pub(super) fn rearrange(&mut self, agents: Vec<PlanAgent>, tasks: Vec<PlanTask>) {
        self.offsets = offsets(&tasks);
        self.agents = agents;
        self.tasks = tasks;
    }

    /// The number of trials.
    pub fn len(&self) -> u64 {
        self.agents.len() as u64 * self.per_agent()
    }

    /// The number of trials of each agent.
    pub(super) fn per_agent(&self) -> u64 {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Whether there are no trials, which is never the case for a valid plan.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index of every trial.
    pub fn indexes(&self) -> impl Iterator<Item = TrialIndex> + use<> {
        (0..self.len()).map(TrialIndex)
    }

    /// The trial at an index.
    pub fn trial(&self, index: TrialIndex) -> TrialId {
        let (agent, task, attempt) = self.parts(index);
        let (agent, dataset) = (agent.name.clone(), task.dataset().clone());
        TrialId { agent, dataset, task: task.task_name(), attempt }
    }

    /// The parts of the trial at an index.
    pub(super) fn parts(&self, index: TrialIndex) -> (&PlanAgent, &PlanTask, u32) {
        let (agent, task, attempt) = self.place(index);
        (&self.agents[agent], &self.tasks[task], attempt)
    }

    /// The input of the rollout at an index.
    ///
    /// # Panics
    ///
    /// If the trial is a container task.
    pub(super) async fn input(&self, index: TrialIndex) -> io::Result<RolloutInput> {
        let (_, task, attempt) = self.parts(index);
        let Work::Example { set, inputs } = &task.work else { unreachable!("only examples have inputs") };
        let place = (inputs.start + attempt - 1).min(inputs.end - 1);
        set.examples.input(place).await
    }

    /// The numbers of agent and task of the trial at an index, and its attempt.
    pub(super) fn place(&self, index: TrialIndex) -> (usize, usize, u32) {
        let of_agent = index.0 % self.per_agent();
        let task = self.offsets.partition_point(|offset| *offset <= of_agent) - 1;
        let attempt = (of_agent - self.offsets[task]) as u32 + 1;
        ((index.0 / self.per_agent()) as usize, task, attempt)
    }

    /// The index of a trial.
    pub(super) fn index(&self, agent: usize, task: usize, attempt: u32) -> TrialIndex {
        TrialIndex(agent as u64 * self.per_agent() + self.offsets[task] + u64::from(attempt) - 1)
    }

    /// The whole job's configuration.
    pub fn config(&self) -> &Arc<JobConfig> {
        &self.config
    }

    /// The job file.
    pub fn loaded(&self) -> &LoadedJob {
        &self.loaded
    }

    /// The settings given in addition to the job file.
    pub fn overrides(&self) -> &[String] {
        &self.overrides
    }

    /// The agents of the plan, in order.
    pub fn agents(&self) -> impl Iterator<Item = &AgentName> {
        self.agents.iter().map(|agent| &agent.name)
    }

    /// The tasks of the plan, in order.
    pub fn tasks(&self) -> &[PlanTask] {
        &self.tasks
    }

    /// The commits that were resolved when the datasets were loaded.
    pub(super) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Attempts for each pair of agent and task, unless a task has its own number.
    pub fn attempts(&self) -> u32 {
        self.config.n_attempts.get()
    }

    /// Masks secrets.
    pub fn redactor(&self) -> &Arc<Redactor> {
        &self.redactor
    }
}

fn check_size(agents: usize, tasks: &[PlanTask]) -> Result<(), PlanError> {
    let trials = agents as u128 * tasks.iter().map(|task| u128::from(task.attempts)).sum::<u128>();
    if trials > u128::from(MAX_TRIALS) {
        return Err(PlanError::TooMany { trials, agents, tasks: tasks.len() });
    }
    Ok(())
}

/// Rejects two tasks of the same name in a dataset.
fn check_names(tasks: &[PlanTask]) -> Result<(), PlanError> {
    let mut seen = HashSet::new();
    match tasks.iter().find(|task| !seen.insert(task.name())) {
        None => Ok(()),
        Some(task) => {
            Err(PlanError::DuplicateTask { dataset: task.dataset().clone(), task: task.task_name() })
        }
    }
}

fn offsets(tasks: &[PlanTask]) -> Vec<u64> {
    let mut offsets = Vec::with_capacity(tasks.len() + 1);
    let mut sum = 0;
    offsets.push(sum);
    for task in tasks {
        sum += u64::from(task.attempts);
        offsets.push(sum);
    }
    offsets
}

fn redactor(loaded: &LoadedJob, tasks: &[PlanTask]) -> Redactor {
    let envs = tasks.iter().filter_map(|task| match &task.work {
        Work::Container(work) => Some(&work.env),
        Work::Example { .. } => None,
    });
    let of_files = envs.clone().flat_map(|env| env.secrets()).map(String::as_str);
    let of_tasks = envs.flat_map(|env| env.values()).filter(|value| value.secret);
    let of_tasks = of_tasks.map(|value| value.value.as_str());
    Redactor::new(loaded.secrets.iter().map(String::as_str).chain(of_tasks).chain(of_files))
}

/// Rejects a pattern that selects nothing, even if another one selects something.
fn check<'a>(
    what: &'static str,
    globs: &[GlobMatcher],
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), PlanError> {
    match globs.iter().find(|glob| !names.clone().any(|name| glob.is_match(name))) {
        None => Ok(()),
        Some(glob) => {
            Err(PlanError::NoMatch { what, pattern: glob.glob().to_string(), available: listed(names) })
        }
    }
}

/// Keeps the tasks that the job file selects in their dataset.
fn filter(tasks: &mut Vec<PlanTask>, config: &JobConfig) {
    let Some(dataset) = tasks.first().map(PlanTask::dataset) else { return };
    let Some(entry) = config.datasets.iter().find(|entry| entry.name == *dataset) else { return };
    tasks.retain(|task| entry.filter.selects(task.name()));
    tasks.truncate(entry.filter.limit.map_or(usize::MAX, |limit| limit.get() as usize));
}

fn selects(globs: &[GlobMatcher], name: &str) -> bool {
    globs.is_empty() || globs.iter().any(|glob| glob.is_match(name))
}
