//! Checks of a job before its first trial: images that cannot be built, and scripts that do not parse.
//!
//! [`check`] reads the files of every task and the scripts of every agent, each distinct file once. A problem that many
//! trials share is one [`Finding`]. `rollout validate`, `--dry-run` and a run use the same checks. [`check_added`] does
//! the same for the trials that a resume adds to a job.

mod endpoint;
mod script;

use std::{
    collections::{HashMap, HashSet},
    num::NonZeroUsize,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use indexmap::IndexMap;

pub use self::endpoint::{unreachable_models, unreachable_models_of_benchmark};
use self::script::{Parsed, ScriptText};
use crate::{
    config::{AgentKind, JobConfig},
    job::{AddedTrials, Plan},
    task::{Task, unsupported},
    trial::Timeouts,
};
use rollout_core::{display::span, name::AgentName};
use rollout_env::{ImageProblem, Provider};

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingKind {
    /// The provider does not have an image.
    UnknownImage,
    /// A Dockerfile cannot be built.
    Dockerfile,
    /// A script is not valid bash.
    Script,
    /// A setting of a task is not supported, so its trials are refused.
    Unsupported,
    /// The provider has no environment of the size that a task needs, or none that lives long enough.
    Environment,
    /// The server of a model does not answer. It may answer when a trial needs it.
    ModelServer,
}

/// A problem, and the tasks or agents that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The kind of the problem.
    pub kind: FindingKind,
    /// The problem, and what to do about it.
    pub message: String,
    /// The tasks or agents that have it, by name, in the order of the plan.
    pub subjects: Vec<String>,
}

/// The problems found before a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preflight {
    /// The problems, each once.
    pub findings: Vec<Finding>,
    /// Whether none of the checked trials can succeed: each has one of the problems, or an invalid task.
    pub hopeless: bool,
}

/// Checks everything that a plan uses, without running any of it. Blocks.
///
/// Without a provider, images are not checked.
pub fn check(plan: &Plan, provider: Option<&dyn Provider>) -> Preflight {
    check_trials(plan, &AddedTrials::all(), provider)
}

/// Checks everything that the added trials of a plan use, and ignores the others. Blocks.
pub fn check_added(plan: &Plan, added: &AddedTrials, provider: Option<&dyn Provider>) -> Preflight {
    check_trials(plan, added, provider)
}

fn check_trials(plan: &Plan, trials: &AddedTrials, provider: Option<&dyn Provider>) -> Preflight {
    let mut findings = Findings::default();
    let config = plan.config();
    let agents: Vec<&AgentName> = plan.agents().collect();
    let of_agent = |name: &AgentName| config.agents.iter().find(|agent| agent.name == *name);
    let is_oracle: Vec<bool> = agents
        .iter()
        .map(|name| of_agent(name).is_some_and(|agent| agent.kind == AgentKind::Oracle))
        .collect();

    let tasks: Vec<(usize, &Task)> = plan
        .tasks()
        .iter()
        .enumerate()
        .filter(|(number, _)| trials.uses_task(*number))
        .filter_map(|(number, task)| Some((number, &**task.container()?)))
        .collect();
    let mut scripts = IndexMap::new();
    for (number, task) in &tasks {
        let has_oracle =
            is_oracle.iter().enumerate().any(|(agent, is)| *is && trials.contains(agent, *number));
        for (user, path) in scripts_of(task, config, has_oracle) {
            if let Some(text) = ScriptText::of_file(path) {
                scripts.entry(text).or_insert_with(Vec::new).push((user, Owner::Task(*number)));
            }
        }
    }
    for (number, name) in agents.iter().enumerate().filter(|(number, _)| trials.uses_agent(*number)) {
        let Some(AgentKind::Script { install, execute }) = of_agent(name).map(|agent| &agent.kind) else {
            continue;
        };
        for (user, script) in [("install", install.as_ref()), ("execute", Some(execute))] {
            if let Some(text) = script.and_then(|script| ScriptText::of_text(script)) {
                scripts.entry(text).or_insert_with(Vec::new).push((user, Owner::Agent(number)));
            }
        }
    }

    for (number, task) in &tasks {
        for problem in unsupported(task, config, provider) {
            findings.add(FindingKind::Unsupported, problem.to_string(), task_name(plan, *number));
        }
        for problem in provider.iter().flat_map(|provider| environment_problems(task, config, *provider)) {
            findings.add(FindingKind::Environment, problem, task_name(plan, *number));
        }
    }

    let mut broken = Broken::default();
    if let Some(provider) = provider {
        let checked = in_parallel(&tasks, |(_, task)| {
            let image = task.config.docker_image.as_deref().filter(|_| !config.environment.force_build);
            let composed = task.compose.is_some() && !task.files.dockerfile;
            if composed { None } else { provider.check_image(&task.context, image).err() }
        });
        for ((number, _), problem) in tasks.iter().zip(checked) {
            let Some(problem) = problem else { continue };
            let kind = match problem {
                ImageProblem::Unknown(_) => FindingKind::UnknownImage,
                ImageProblem::Dockerfile(_) => FindingKind::Dockerfile,
            };
            broken.tasks.insert(*number);
            findings.add(kind, problem.to_string(), task_name(plan, *number));
        }
    }
    let scripts: Vec<_> = scripts.into_iter().collect();
    for ((_, users), parsed) in scripts.iter().zip(in_parallel(&scripts, |(text, _)| text.parse())) {
        let Parsed::Invalid { message, certain } = parsed else { continue };
        for (what, owner) in users {
            let (message, subject) = match owner {
                Owner::Task(number) => (format!("{what}: {message}"), task_name(plan, *number)),
                Owner::Agent(number) => {
                    (format!("the {what} script: {message}"), format!("agent {}", agents[*number]))
                }
            };
            findings.add(FindingKind::Script, message, subject);
            match owner {
                _ if !certain => {}
                Owner::Agent(number) => _ = broken.agents.insert(*number),
                Owner::Task(number) if *what == SOLUTION => _ = broken.solutions.insert(*number),
                Owner::Task(number) => _ = broken.tasks.insert(*number),
            }
        }
    }
    let hopeless = !broken.is_empty() && broken.every_trial(plan, trials, &is_oracle);
    Preflight { findings: findings.sorted(), hopeless }
}

/// What the provider cannot offer to a task: its size, or the time that it may take.
fn environment_problems(task: &Task, config: &JobConfig, provider: &dyn Provider) -> Vec<String> {
    let size = provider.offer(task.limits(&config.environment)).err();
    let needed = Timeouts::of_trial(config, task);
    // The duration of a trial is unknown if its task has no limit.
    let time = needed.and_then(|needed| {
        let (limit, reason) = provider.time_limit(Some(needed))?;
        let [needed, limit] = [needed, limit].map(|time| span(time.as_secs_f64()));
        Some(format!(
            "a trial may take {needed}, but its environment ends after {limit}, and a trial that takes longer fails: \
             {reason}"
        ))
    });
    size.into_iter().chain(time).collect()
}

/// Checks tasks without a job, for authors of tasks. Blocks.
pub fn check_tasks<'a>(tasks: impl IntoIterator<Item = &'a Task>) -> Vec<Finding> {
    let tasks: Vec<&Task> = tasks.into_iter().collect();
    let mut findings = Findings::default();
    let config = JobConfig::default();
    for (task, problems) in tasks.iter().zip(in_parallel(&tasks, |task| own_problems(task, &config))) {
        for (kind, message) in problems {
            findings.add(kind, message, format!("task {}", task.name));
        }
    }
    findings.sorted()
}

/// The problems of a task with any provider.
fn own_problems(task: &Task, config: &JobConfig) -> Vec<(FindingKind, String)> {
    let mut problems = Vec::new();
    problems.extend(
        unsupported(task, config, None).iter().map(|found| (FindingKind::Unsupported, found.to_string())),
    );
    if let Err(problem) = rollout_env::check_dockerfile(&task.context) {
        problems.push((FindingKind::Dockerfile, problem.to_string()));
    }
    for (what, path) in scripts_of(task, config, true) {
        if let Some(Parsed::Invalid { message, .. }) = ScriptText::of_file(path).map(|text| text.parse()) {
            problems.push((FindingKind::Script, format!("{what}: {message}")));
        }
    }
    problems
}

const TESTS: &str = "tests/test.sh";
const SOLUTION: &str = "solution/solve.sh";

/// The scripts of a task that a job runs.
fn scripts_of(task: &Task, config: &JobConfig, has_oracle: bool) -> Vec<(&'static str, PathBuf)> {
    let mut scripts = Vec::new();
    let steps = task.config.steps.iter().map(|step| task.dir.join("steps").join(&step.name));
    for dir in [task.dir.clone()].into_iter().chain(steps) {
        if !config.verifier.disable {
            scripts.push((TESTS, dir.join(TESTS)));
        }
        if has_oracle && task.has_solution {
            scripts.push((SOLUTION, dir.join(SOLUTION)));
        }
    }
    scripts
}

/// The owner of a script.
enum Owner {
    Task(usize),
    Agent(usize),
}

fn task_name(plan: &Plan, number: usize) -> String {
    let task = &plan.tasks()[number];
    format!("task {}/{}", task.dataset(), task.name())
}

/// What cannot succeed, by the numbers of the plan.
#[derive(Default)]
struct Broken {
    agents: HashSet<usize>,
    tasks: HashSet<usize>,
    /// Tasks whose solution does not parse, which matters only to the oracle.
    solutions: HashSet<usize>,
}

impl Broken {
    fn is_empty(&self) -> bool {
        self.agents.is_empty() && self.tasks.is_empty() && self.solutions.is_empty()
    }

    fn every_trial(&self, plan: &Plan, trials: &AddedTrials, is_oracle: &[bool]) -> bool {
        (0..is_oracle.len()).all(|agent| {
            plan.tasks().iter().enumerate().all(|(number, task)| {
                let invalid = task.problem().is_some();
                !trials.contains(agent, number)
                    || invalid
                    || self.agents.contains(&agent)
                    || self.tasks.contains(&number)
                    || is_oracle[agent] && self.solutions.contains(&number)
            })
        })
    }
}

/// Findings by their messages.
#[derive(Default)]
struct Findings {
    all: Vec<Finding>,
    by_message: HashMap<(FindingKind, String), usize>,
}

impl Findings {
    fn add(&mut self, kind: FindingKind, message: String, subject: String) {
        let next = self.all.len();
        let place = *self.by_message.entry((kind, message.clone())).or_insert(next);
        if place == next {
            self.all.push(Finding { kind, message, subjects: Vec::new() });
        }
        let subjects = &mut self.all[place].subjects;
        if subjects.last() != Some(&subject) {
            subjects.push(subject);
        }
    }

    fn sorted(mut self) -> Vec<Finding> {
        // The most common problems come first.
        self.all.sort_by_key(|finding| (finding.kind, usize::MAX - finding.subjects.len()));
        self.all
    }
}

/// Processes each item, with one thread per core; the order is kept.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(items.len());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(place) else { break };
                    let result = work(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((place, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}
