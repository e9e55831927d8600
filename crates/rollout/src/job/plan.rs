//! Which trials a job has, in which order.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    sync::Arc,
};

use globset::GlobMatcher;
use indexmap::IndexMap;

use crate::{
    config::{AgentConfig, Env, JobConfig, LoadedJob, TaskConfig, env_value},
    rollouts::Rollouts,
    task::{Dataset, Pins, Task, TaskProblem},
    trial::Timeouts,
};
use rollout_core::{
    event::JobKind,
    name::{AgentName, DatasetName, TaskName, TrialId, TrialIndex},
    redact::Redactor,
    text::listed,
};
use rollout_model::{Model, RolloutInput, dataset};
use rollout_record::{
    journal::{PlannedTask, TaskSelection},
    tasks::{TaskAbout, TaskLimits},
};

/// The part of a job that is asked for. An empty list selects everything.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Agents by name.
    pub agents: Vec<GlobMatcher>,
    /// Datasets by name.
    pub datasets: Vec<GlobMatcher>,
    /// Tasks by name.
    pub tasks: Vec<GlobMatcher>,
    /// At most this many tasks of each dataset.
    pub limit: Option<usize>,
}

impl Selection {
    /// How it chooses tasks; none if it takes all.
    fn of_tasks(&self) -> Option<TaskSelection> {
        let globs = self.tasks.iter().map(|glob| glob.glob().to_string()).collect();
        let chosen = TaskSelection { globs, limit: self.limit.map(|limit| limit as u64) };
        (chosen != TaskSelection::default()).then_some(chosen)
    }
}

/// Why there is nothing to run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No agent, dataset or task matches.
    #[error("the selection leaves no task; there are: {available}")]
    Empty {
        /// What could have been selected.
        available: String,
    },
    /// One of several patterns selects nothing: most likely a slip.
    #[error("no {what} matches {pattern:?}; there are: {available}")]
    NoMatch {
        /// What it was to select.
        what: &'static str,
        /// The pattern.
        pattern: String,
        /// What could have been selected.
        available: String,
    },
    /// Two tasks of a dataset share a name, and so would share a directory.
    #[error("dataset {dataset} has two tasks named {task}; rename one of them in the registry")]
    DuplicateTask {
        /// The dataset.
        dataset: DatasetName,
        /// The name.
        task: TaskName,
    },
}

/// A dataset whose tasks are containers, or one whose tasks are examples for a model.
#[derive(Debug)]
pub enum PlanDataset {
    /// Containers.
    Tasks(Dataset),
    /// Examples.
    Examples(ExampleSet),
}

impl From<Dataset> for PlanDataset {
    fn from(dataset: Dataset) -> Self {
        Self::Tasks(dataset)
    }
}

impl From<ExampleSet> for PlanDataset {
    fn from(examples: ExampleSet) -> Self {
        Self::Examples(examples)
    }
}

impl PlanDataset {
    fn name(&self) -> &DatasetName {
        match self {
            Self::Tasks(dataset) => &dataset.name,
            Self::Examples(examples) => &examples.name,
        }
    }
}

/// The examples of one dataset, and how models are led through them.
#[derive(Debug, Clone)]
pub struct ExampleSet {
    /// Names it in results and directories.
    pub name: DatasetName,
    /// Interaction, rubric and limits.
    pub rollouts: Arc<Rollouts>,
    /// The examples. Each is attempted as often as the job says; the same `example_id` more than once asks for one
    /// attempt each time instead.
    pub inputs: Vec<RolloutInput>,
    /// What their tasks are called, one name for each example. Without any, numbers name them.
    pub names: Vec<TaskName>,
}

/// The trials of a job. A trial is its place in the enumeration: agents, then datasets and their
/// tasks, then attempts.
#[derive(Debug)]
pub struct Plan {
    loaded: LoadedJob,
    overrides: Vec<String>,
    config: Arc<JobConfig>,
    pub(super) agents: Vec<PlanAgent>,
    pub(super) tasks: Vec<PlanTask>,
    /// For each task, how many trials an agent has before it; then how many it has in all.
    offsets: Vec<u64>,
    pins: Pins,
    /// How its tasks were chosen, if not all of them were wanted.
    pub(super) selection: Option<TaskSelection>,
    /// How many tasks its datasets have, chosen or not.
    pub(super) dataset_sizes: BTreeMap<String, u64>,
    redactor: Arc<Redactor>,
}

/// An agent of a plan.
#[derive(Debug, Clone)]
pub struct PlanAgent {
    /// Its name.
    pub name: AgentName,
    /// What the job file says of it. A plan that is made without a job file has only models.
    pub(super) config: Option<Arc<AgentConfig>>,
    /// The model, if it is one.
    pub(super) model: Option<Arc<Model>>,
}

/// A task of a plan.
#[derive(Debug)]
pub struct PlanTask {
    /// Its dataset.
    pub dataset: DatasetName,
    /// Its name.
    pub name: TaskName,
    /// How often each agent attempts it.
    pub attempts: u32,
    /// What is to be done.
    pub work: Work,
}

/// What a task of a plan is.
#[derive(Debug)]
pub enum Work {
    /// A task in a container.
    Container {
        /// The task, or why it cannot be run.
        task: Result<Arc<Task>, TaskProblem>,
        /// Variables for its tests.
        verifier_env: Arc<Env>,
    },
    /// An example for a model.
    Example {
        /// Interaction, rubric and limits.
        rollouts: Arc<Rollouts>,
        /// What each attempt starts from; the last one serves all further attempts.
        inputs: Vec<RolloutInput>,
    },
}

impl PlanTask {
    /// The task, if it is a container and can be run.
    pub fn container(&self) -> Option<&Arc<Task>> {
        match &self.work {
            Work::Container { task, .. } => task.as_ref().ok(),
            Work::Example { .. } => None,
        }
    }

    /// Why it cannot be run.
    pub fn problem(&self) -> Option<&TaskProblem> {
        match &self.work {
            Work::Container { task, .. } => task.as_ref().err(),
            Work::Example { .. } => None,
        }
    }

    /// The example that it is.
    pub(super) fn example_id(&self) -> Option<u64> {
        match &self.work {
            Work::Container { .. } => None,
            Work::Example { inputs, .. } => inputs.first().map(|input| input.example_id),
        }
    }

    /// What an attempt at the example starts from.
    pub(super) fn input(&self, attempt: u32) -> &RolloutInput {
        match &self.work {
            Work::Example { inputs, .. } => &inputs[inputs.len().min(attempt as usize) - 1],
            Work::Container { .. } => unreachable!("only examples have inputs"),
        }
    }

    /// The task as the journal holds it, and what it says if it is a container that can be run.
    pub(super) fn journaled(&self, config: &JobConfig) -> io::Result<(PlannedTask, Option<TaskAbout>)> {
        let (content_hash, about) = match &self.work {
            Work::Container { task: Ok(task), .. } => {
                let contents = task.contents()?;
                let about = TaskAbout {
                    name: self.name.to_string(),
                    limits: Some(task_limits(config, &task.config)),
                    ..task.about(self.dataset.as_str(), &contents)
                };
                (Some(contents.hash()), Some(about))
            }
            Work::Container { task: Err(_), .. } => (None, None),
            Work::Example { inputs, .. } => (Some(dataset::content_hash(inputs)), None),
        };
        let task = PlannedTask {
            dataset: self.dataset.to_string(),
            name: self.name.to_string(),
            content_hash,
            git_commit_id: self.container().and_then(|task| task.git_commit_id.clone()),
            example_id: self.example_id(),
        };
        Ok((task, about))
    }
}

impl Plan {
    /// Enumerates the trials of a job. `overrides` are the settings that were given beside the job
    /// file, and `vars` resolves `${VAR}` in the tasks' `[verifier.env]`.
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
        let names = || all.iter().flatten().map(|task| task.name.as_str());
        check("task", &selection.tasks, names())?;
        let available = listed(names());
        let size = |tasks: &Vec<PlanTask>| Some((tasks.first()?.dataset.to_string(), tasks.len() as u64));
        let dataset_sizes = all.iter().filter_map(size).collect();
        let mut tasks = Vec::new();
        for dataset in all {
            let wanted = dataset.into_iter().filter(|task| selects(&selection.tasks, task.name.as_str()));
            let mut seen = HashSet::new();
            for task in wanted.take(selection.limit.unwrap_or(usize::MAX)) {
                if !seen.insert(task.name.clone()) {
                    return Err(PlanError::DuplicateTask { dataset: task.dataset, task: task.name });
                }
                tasks.push(task);
            }
        }
        if tasks.is_empty() {
            return Err(PlanError::Empty { available });
        }
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
        })
    }

    /// Says what a plan without a job file is, for its record.
    pub(crate) fn describe(&mut self, record: serde_json::Value) {
        self.loaded.hash = dataset::hash(&record);
        self.loaded.record = record;
    }

    /// What its trials are.
    pub(super) fn kind(&self) -> JobKind {
        let first = self.tasks.first().map(|task| &task.work);
        match first {
            Some(Work::Example { rollouts, .. }) if rollouts.results.is_some() => JobKind::Benchmark,
            _ => JobKind::Job,
        }
    }

    /// The same plan with the models of those of its agents that are models.
    #[must_use]
    pub fn with_models(mut self, mut models: HashMap<AgentName, Arc<Model>>) -> Self {
        for agent in &mut self.agents {
            agent.model = models.remove(&agent.name);
        }
        self
    }

    /// Takes other agents and tasks, which moves the places of the trials.
    pub(super) fn rearrange(&mut self, agents: Vec<PlanAgent>, tasks: Vec<PlanTask>) {
        self.offsets = offsets(&tasks);
        self.agents = agents;
        self.tasks = tasks;
    }

    /// How many trials there are.
    pub fn len(&self) -> u64 {
        self.agents.len() as u64 * self.per_agent()
    }

    /// How many trials each agent has.
    pub(super) fn per_agent(&self) -> u64 {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Whether there are none, which a plan that could be made never has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every trial's place.
    pub fn indexes(&self) -> impl Iterator<Item = TrialIndex> + use<> {
        (0..self.len()).map(TrialIndex)
    }

    /// Which trial is at a place.
    pub fn trial(&self, index: TrialIndex) -> TrialId {
        let (agent, task, attempt) = self.parts(index);
        TrialId { agent: agent.name.clone(), dataset: task.dataset.clone(), task: task.name.clone(), attempt }
    }

    /// The parts of the trial at a place.
    pub(super) fn parts(&self, index: TrialIndex) -> (&PlanAgent, &PlanTask, u32) {
        let (agent, task, attempt) = self.place(index);
        (&self.agents[agent], &self.tasks[task], attempt)
    }

    /// The numbers of agent and task of the trial at a place, and its attempt.
    pub(super) fn place(&self, index: TrialIndex) -> (usize, usize, u32) {
        let of_agent = index.0 % self.per_agent();
        let task = self.offsets.partition_point(|offset| *offset <= of_agent) - 1;
        let attempt = (of_agent - self.offsets[task]) as u32 + 1;
        ((index.0 / self.per_agent()) as usize, task, attempt)
    }

    /// The place of a trial.
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

    /// The settings given beside the job file.
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

    /// Attempts for each pair of agent and task, where a task does not have a number of its own.
    pub fn attempts(&self) -> u32 {
        self.config.n_attempts.get()
    }

    /// What must not be written anywhere.
    pub fn redactor(&self) -> &Arc<Redactor> {
        &self.redactor
    }
}

/// The tasks of a dataset in their order.
fn planned(
    dataset: PlanDataset,
    config: &JobConfig,
    vars: &dyn Fn(&str) -> Option<String>,
    pins: &mut Pins,
) -> Vec<PlanTask> {
    let dataset = match dataset {
        PlanDataset::Tasks(dataset) => dataset,
        PlanDataset::Examples(examples) => return planned_examples(examples, config),
    };
    pins.extend(dataset.resolved);
    let mut tasks = Vec::with_capacity(dataset.tasks.len());
    for entry in dataset.tasks {
        let mut task = entry.task;
        let verifier_env = match task.as_ref().map(|task| verifier_env(config, task, vars)) {
            Ok(Ok(env)) => Arc::new(env),
            Ok(Err(problem)) => {
                task = Err(problem);
                Arc::default()
            }
            Err(_) => Arc::default(),
        };
        tasks.push(PlanTask {
            dataset: dataset.name.clone(),
            name: entry.name,
            attempts: config.n_attempts.get(),
            work: Work::Container { task, verifier_env },
        });
    }
    tasks
}

/// A task for each example, in the order in which they first come.
fn planned_examples(examples: ExampleSet, config: &JobConfig) -> Vec<PlanTask> {
    let ExampleSet { name, rollouts, inputs, names } = examples;
    let mut by_id: IndexMap<u64, Vec<RolloutInput>> = IndexMap::with_capacity(inputs.len());
    for input in inputs {
        by_id.entry(input.example_id).or_default().push(input);
    }
    let repeated = by_id.values().any(|inputs| inputs.len() > 1);
    let mut names = names.into_iter();
    let task = |(id, mut inputs): (u64, Vec<RolloutInput>)| {
        let attempts = if repeated { inputs.len() as u32 } else { config.n_attempts.get() };
        if inputs.iter().all(|input| *input == inputs[0]) {
            inputs.truncate(1);
        }
        PlanTask {
            dataset: name.clone(),
            name: names.next().unwrap_or_else(|| TaskName::new(id.to_string()).expect("a number is a name")),
            attempts,
            work: Work::Example { rollouts: Arc::clone(&rollouts), inputs },
        }
    };
    by_id.into_iter().map(task).collect()
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

/// The task's variables, with the job's on top.
fn verifier_env(
    config: &JobConfig,
    task: &Task,
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<Env, TaskProblem> {
    let mut env = Env::new();
    // What the job sets anyway, or nobody will read, needs no value here.
    let wanted = task.config.verifier_env.iter().filter(|(key, _)| !config.verifier.env.contains_key(key));
    for (key, written) in wanted.filter(|_| !config.verifier.disable) {
        let value = env_value(key, written, vars).map_err(|error| {
            TaskProblem::Invalid(format!(
                "{}: [verifier.env] {key}: {error}",
                task.dir.join("task.toml").display()
            ))
        })?;
        env.insert(key.clone(), value);
    }
    env.extend(config.verifier.env.iter().map(|(key, value)| (key.clone(), value.clone())));
    Ok(env)
}

fn redactor(loaded: &LoadedJob, tasks: &[PlanTask]) -> Redactor {
    let envs = tasks.iter().filter_map(|task| match &task.work {
        Work::Container { verifier_env, .. } => Some(verifier_env),
        Work::Example { .. } => None,
    });
    let of_tasks = envs.flat_map(|env| env.values()).filter(|value| value.secret);
    Redactor::new(loaded.secrets.iter().map(String::as_str).chain(of_tasks.map(|value| value.value.as_str())))
}

/// Refuses a pattern that selects nothing, even where another one does.
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

fn selects(globs: &[GlobMatcher], name: &str) -> bool {
    globs.is_empty() || globs.iter().any(|glob| glob.is_match(name))
}

/// What trials of a task get in a job.
fn task_limits(job: &JobConfig, task: &TaskConfig) -> TaskLimits {
    let Timeouts { build, install, execute, verify } = Timeouts::new(job, task);
    let environment = &job.environment;
    TaskLimits {
        cpus: environment.override_cpus.unwrap_or(task.cpus).millis as f64 / 1000.0,
        memory_bytes: environment.override_memory.unwrap_or(task.memory).0,
        storage_bytes: environment.override_storage.unwrap_or(task.storage).0,
        build_timeout_sec: build.as_secs_f64(),
        install_timeout_sec: install.as_secs_f64(),
        agent_timeout_sec: execute.as_secs_f64(),
        verifier_timeout_sec: verify.as_secs_f64(),
    }
}
