//! The tasks of a plan: container tasks and examples, each with what is needed to attempt it.

use std::{io, sync::Arc};

use serde_json::Value;

use super::examples::{ExampleSet, InputPlaces};
use crate::{
    config::{Compat, Env, JobConfig, TestsEnvironment, env_value},
    task::{Dataset, Pins, Task, TaskProblem, compose_file},
    trial::{StepEnv, TaskEnv, Timeouts},
};
use rollout_core::{
    name::{DatasetName, TaskName},
    result::DEFAULT_PASS_THRESHOLD,
};
use rollout_env::compose::{ComposeFile, ComposeSource};
use rollout_record::{
    journal::{PlannedTask, RecordedSource},
    tasks::{TaskLimits, TaskRecord},
};

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
    pub(super) fn name(&self) -> &DatasetName {
        match self {
            Self::Tasks(dataset) => &dataset.name,
            Self::Examples(examples) => &examples.name,
        }
    }
}

/// A task of a plan. There may be a million, so common data is shared.
#[derive(Debug, Clone)]
pub struct PlanTask {
    /// How often each agent attempts it.
    pub attempts: u32,
    /// The kind of task.
    pub work: Work,
}

/// The kind of a task.
#[derive(Debug, Clone)]
pub enum Work {
    /// A task in a container.
    Container(Box<ContainerWork>),
    /// An example for a model.
    Example {
        /// The examples of its dataset, and the interaction for them.
        set: Arc<ExampleSet>,
        /// The inputs of its attempts; further attempts use the last one.
        inputs: InputPlaces,
    },
}

/// A task in a container.
#[derive(Debug, Clone)]
pub struct ContainerWork {
    /// Its dataset.
    pub dataset: DatasetName,
    /// Its name.
    pub name: TaskName,
    /// The lowest reward that counts as solved.
    pub pass_threshold: f64,
    /// The task, or why it cannot be run.
    pub task: Result<Arc<Task>, TaskProblem>,
    /// Its variables.
    pub env: Arc<TaskEnv>,
    /// The location of its files in a registry.
    pub source: Option<RecordedSource>,
}

impl PlanTask {
    /// Its dataset.
    pub fn dataset(&self) -> &DatasetName {
        match &self.work {
            Work::Container(work) => &work.dataset,
            Work::Example { set, .. } => &set.name,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match &self.work {
            Work::Container(work) => work.name.as_str(),
            Work::Example { set, inputs } => set.examples.name(inputs),
        }
    }

    /// Its name, owned.
    pub(super) fn task_name(&self) -> TaskName {
        match &self.work {
            Work::Container(work) => work.name.clone(),
            Work::Example { set, inputs } => {
                TaskName::new(set.examples.name(inputs)).expect("numbers are names, and others were checked")
            }
        }
    }

    /// The lowest reward that counts as solved.
    pub fn pass_threshold(&self) -> f64 {
        match &self.work {
            Work::Container(work) => work.pass_threshold,
            Work::Example { set, .. } => set.rollouts.pass_threshold,
        }
    }

    /// The task, if it is a container and can be run.
    pub fn container(&self) -> Option<&Arc<Task>> {
        match &self.work {
            Work::Container(work) => work.task.as_ref().ok(),
            Work::Example { .. } => None,
        }
    }

    /// Why it cannot be run.
    pub fn problem(&self) -> Option<&TaskProblem> {
        match &self.work {
            Work::Container(work) => work.task.as_ref().err(),
            Work::Example { .. } => None,
        }
    }

    /// The number of its example.
    pub(super) fn example_id(&self) -> Option<u64> {
        match &self.work {
            Work::Container(_) => None,
            Work::Example { set, inputs } => Some(set.examples.example_id(inputs)),
        }
    }

    /// Its category and difficulty, if it has them.
    pub(super) fn labels(&self) -> (Option<&str>, Option<&str>) {
        match &self.work {
            Work::Container(work) => {
                let about = work.task.as_ref().ok().map(|task| &task.config.metadata);
                let label = |key: &str| {
                    // Some formats have them one level deeper.
                    let said = about?.get(key).or_else(|| about?.get("metadata")?.get(key));
                    said.and_then(Value::as_str).filter(|text| !text.is_empty())
                };
                (label("category"), label("difficulty"))
            }
            Work::Example { set, inputs } => (set.examples.category(inputs), set.examples.difficulty(inputs)),
        }
    }

    /// The task in the form of the journal, and its record in `tasks.jsonl`.
    pub(super) fn journaled(&self, config: &JobConfig) -> io::Result<(PlannedTask, Option<TaskRecord>)> {
        let (content_hash, about, source) = match &self.work {
            Work::Container(work) => match &work.task {
                Ok(task) => {
                    let contents = task.contents()?;
                    let about = TaskRecord {
                        name: work.name.to_string(),
                        limits: Some(task_limits(config, task)),
                        ..task.about(work.dataset.as_str(), &contents)
                    };
                    (Some(contents.hash()), Some(about), work.source.clone())
                }
                Err(_) => (None, None, work.source.clone()),
            },
            Work::Example { set, inputs } => {
                (Some(set.examples.content_hash(inputs)?), set.examples.about(inputs)?, None)
            }
        };
        let task = PlannedTask {
            dataset: self.dataset().to_string(),
            name: self.name().to_owned(),
            content_hash,
            git_commit_id: self.container().and_then(|task| task.git_commit_id.clone()),
            example_id: self.example_id(),
            attempts: (self.attempts != config.n_attempts.get()).then_some(self.attempts),
            source,
        };
        Ok((task, about))
    }
}

/// The tasks of a dataset, in order.
pub(super) fn planned(
    dataset: PlanDataset,
    config: &JobConfig,
    vars: &dyn Fn(&str) -> Option<String>,
    pins: &mut Pins,
) -> Vec<PlanTask> {
    let dataset = match dataset {
        PlanDataset::Tasks(dataset) => dataset,
        PlanDataset::Examples(mut examples) => {
            pins.append(&mut examples.resolved);
            return planned_examples(examples, config);
        }
    };
    pins.extend(dataset.resolved);
    let configured = config.datasets.iter().find(|entry| entry.name == dataset.name);
    let pass_threshold = configured.map_or(DEFAULT_PASS_THRESHOLD, |entry| entry.pass_threshold);
    let compat = config.compat.or(configured.and_then(|entry| entry.compat)).or(dataset.compat);
    let mut tasks = Vec::with_capacity(dataset.tasks.len());
    for entry in dataset.tasks {
        let mut task = entry.task;
        if compat == Some(Compat::Harbor)
            && let Ok(task) = &mut task
        {
            Arc::make_mut(task).is_harbor = true;
        }
        if let Some(problem) = task.as_ref().ok().and_then(|task| task.missing()) {
            task = Err(problem);
        }
        let env = match task.as_ref().map(|task| task_env(config, task, vars)) {
            Ok(Ok(env)) => Arc::new(env),
            Ok(Err(problem)) => {
                task = Err(problem);
                Arc::default()
            }
            Err(_) => Arc::default(),
        };
        let (dataset, name) = (dataset.name.clone(), entry.name);
        let source = entry.source;
        let work = ContainerWork { dataset, name, pass_threshold, task, env, source };
        tasks.push(PlanTask { attempts: config.n_attempts.get(), work: Work::Container(Box::new(work)) });
    }
    tasks
}

/// A task for each example, in the order of their first occurrence.
pub(super) fn planned_examples(set: ExampleSet, config: &JobConfig) -> Vec<PlanTask> {
    let set = Arc::new(set);
    let repeated = set.examples.tasks().any(|(_, count)| count > 1);
    let task = |(inputs, count)| PlanTask {
        attempts: if repeated { count } else { config.n_attempts.get() },
        work: Work::Example { set: Arc::clone(&set), inputs },
    };
    set.examples.tasks().map(task).collect()
}

/// The variables of a task, expanded. Those of the tests are overridden by the job's.
fn task_env(
    config: &JobConfig,
    task: &Task,
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<TaskEnv, TaskProblem> {
    let file = task.dir.join("task.toml");
    let expand = |section: &str, written: &mut dyn Iterator<Item = &(String, String)>| {
        let mut env = Env::new();
        for (key, written) in written {
            let value = env_value(key, written, vars)
                .map_err(|error| format!("{}: [{section}] {key}: {error}", file.display()))?;
            env.insert(key.clone(), value);
        }
        Ok::<_, String>(env)
    };
    let invalid = TaskProblem::Invalid;
    let (whole, task) = (task, &task.config);
    // Variables that the job overrides, or that are not used, need no value here.
    let job = &config.verifier;
    let used = |entry: &&(String, String)| !job.disable && !job.env.contains_key(&entry.0);
    let tests = |section: &str, written: &[(String, String)]| {
        expand(section, &mut written.iter().filter(used)).map_err(invalid)
    };
    let verifier = tests("verifier.env", &task.verifier_env)?;
    let of_job = || job.env.iter().map(|(key, value)| (key.clone(), value.clone()));
    let of_environment = |table: &str, own: &Option<TestsEnvironment>| match own {
        Some(own) => tests(table, &own.env),
        None => Ok(Env::new()),
    };
    let steps = task.steps.iter().map(|step| {
        let own = tests("steps.verifier.env", &step.verifier_env)?;
        Ok(StepEnv {
            verifier: verifier.clone().into_iter().chain(own).chain(of_job()).collect(),
            tests: of_environment("steps.verifier.environment.env", &step.verifier_own_environment)?,
        })
    });
    // Only the oracle needs them, so a missing one concerns no other agent.
    let (solution, solution_problem) = match expand("solution.env", &mut task.solution_env.iter()) {
        Ok(env) => (env, None),
        Err(problem) => (Env::new(), Some(problem)),
    };
    let own = expand("environment.env", &mut task.environment_env.iter()).map_err(invalid)?;
    let compose = compose(whole, "environment", whole.compose.is_some(), &own, vars)?;
    let of_main =
        compose.iter().filter_map(|compose| compose.main()).flat_map(|main| main.environment.clone());
    Ok(TaskEnv {
        environment: of_main.chain(own.clone()).collect(),
        tests_compose: self::compose(whole, "tests", whole.tests_compose.is_some(), &own, vars)?,
        compose,
        solution,
        solution_problem,
        tests: of_environment("verifier.environment.env", &task.verifier_own_environment)?,
        steps: steps.collect::<Result<_, TaskProblem>>()?,
        verifier: verifier.clone().into_iter().chain(of_job()).collect(),
    })
}

/// A compose file of a task, with its variables expanded: those of the task's environment, those that Harbor sets, and
/// those of the user.
fn compose(
    task: &Task,
    dir: &str,
    exists: bool,
    own: &Env,
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<Arc<ComposeFile>>, TaskProblem> {
    let dir = task.dir.join(dir);
    let Some(file) = compose_file(&dir).filter(|_| exists) else { return Ok(None) };
    let bounds = task.bounds();
    let known = |name: &str| -> Option<String> {
        if let Some(value) = own.get(name) {
            return Some(value.value.clone());
        }
        match name {
            "CONTEXT_DIR" => Some(".".to_owned()),
            "MAIN_IMAGE_NAME" | "PREBUILT_IMAGE_NAME" => Some("main".to_owned()),
            "CPUS" => bounds.cpus.map(|cpus| (cpus.millis as f64 / 1000.0).to_string()),
            "MEMORY" => bounds.memory.map(|memory| memory.0.to_string()),
            "TEST_DIR" => Some("/tests".to_owned()),
            "ENV_VERIFIER_LOGS_PATH" | "HOST_VERIFIER_LOGS_PATH" => Some("/logs/verifier".to_owned()),
            "ENV_AGENT_LOGS_PATH" | "HOST_AGENT_LOGS_PATH" => Some("/logs/agent".to_owned()),
            "ENV_ARTIFACTS_PATH" | "HOST_ARTIFACTS_PATH" => Some("/logs/artifacts".to_owned()),
            _ => vars(name),
        }
    };
    let source = ComposeSource { file: &file, task_dir: &task.dir, vars: Some(&known) };
    match ComposeFile::load(&source) {
        Ok(compose) => Ok(Some(Arc::new(compose))),
        Err(problems) => Err(TaskProblem::Invalid(problems.render(false))),
    }
}

/// The limits of trials of a task in a job.
fn task_limits(job: &JobConfig, task: &Task) -> TaskLimits {
    let Timeouts { build, install, execute, verify } = Timeouts::new(job, task);
    let (environment, bounds) = (&job.environment, task.bounds());
    TaskLimits {
        cpus: environment.override_cpus.or(bounds.cpus).map(|cpus| cpus.millis as f64 / 1000.0),
        memory_bytes: environment.override_memory.or(bounds.memory).map(|memory| memory.0),
        storage_bytes: environment.override_storage.or(bounds.storage).map(|storage| storage.0),
        build_timeout_sec: build.as_secs_f64(),
        install_timeout_sec: install.as_secs_f64(),
        agent_timeout_sec: (execute < Timeouts::UNLIMITED).then_some(execute.as_secs_f64()),
        verifier_timeout_sec: verify.as_secs_f64(),
    }
}
