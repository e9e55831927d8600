//! The examples or container tasks that a service runs.

use std::{collections::HashMap, fmt::Display, io, num::NonZeroU32, sync::Arc};

use rollout::{
    config::{InteractionConfig, RetryConfig, nearest},
    job::{Cancel, ExampleSet},
    model::{
        Advantage, Examples, GenerateError, Model, RolloutInput, RolloutOutput, Rollouts, RunOptions, Share,
        TaskAttempts, TaskRollouts,
        dataset::{ExamplesError, Format, Row},
    },
};
use serde::Serialize;
use serde_json::Value;

use super::request::Problems;
use crate::report::text::first_line;

/// The keys of a request that select examples or tasks.
pub(super) const KEYS: [&str; 3] = ["inputs", "example_ids", "task_ids"];

/// The examples or tasks that requests can select.
#[derive(Debug)]
pub(super) enum Source {
    /// Examples of the job, and rows that clients send.
    Examples(Arc<ExampleSource>),
    /// Tasks of the job.
    Tasks(Arc<TaskRollouts>),
}

/// An interaction with its examples.
#[derive(Debug)]
pub(super) struct ExampleSource {
    pub(super) rollouts: Rollouts,
    /// Converts the rows that clients send to inputs.
    pub(super) format: Format,
    pub(super) examples: HashMap<u64, RolloutInput>,
    pub(super) retry: RetryConfig,
    pub(super) state_columns: Vec<String>,
    /// Whether rollouts are scored as groups, so that they have advantages.
    pub(super) is_grouped: bool,
    /// Whether rollouts that failed or timed out are in baselines and samples.
    pub(super) includes_errors: bool,
}

/// The ids that a request can name.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ids<'a> {
    ExampleIds(Vec<u64>),
    TaskIds(Vec<&'a str>),
}

/// The example or task of one group.
#[derive(Debug)]
pub(super) enum Subject {
    Example(Arc<ExampleSource>, Box<RolloutInput>),
    Task(Arc<TaskRollouts>, usize),
}

/// How the rollouts of a group are run.
#[derive(Debug)]
pub(super) struct GroupOptions {
    pub(super) rollouts: NonZeroU32,
    pub(super) model: Arc<Model>,
    /// Replaces the estimator of the job.
    pub(super) advantage: Option<Advantage>,
    /// Whether rollouts that failed or timed out are in baselines and samples.
    pub(super) includes_errors: bool,
    pub(super) columns: &'static [&'static str],
    /// The key that came with the request.
    pub(super) key: Option<String>,
    /// How many rollouts run at the same time, over all groups.
    pub(super) concurrency: NonZeroU32,
}

impl Source {
    /// The examples of an interaction.
    pub(super) fn of_interaction(
        config: &InteractionConfig,
        set: ExampleSet,
        retry: RetryConfig,
    ) -> io::Result<Self> {
        let examples = set.examples.inputs().map(|input| input.map(|input| (input.example_id, input)));
        Ok(Self::Examples(Arc::new(ExampleSource {
            examples: examples.collect::<io::Result<_>>()?,
            rollouts: Rollouts::clone(&set.rollouts),
            format: Format {
                system_prompt: config.system_prompt.clone(),
                few_shot: config.few_shot.clone(),
                task: Some(set.name.to_string()),
            },
            retry,
            state_columns: config.state_columns.clone(),
            is_grouped: !config.independent_scoring,
            includes_errors: config.include_errors,
        })))
    }

    /// The ids that a request can name, in the order of the numbers or of the tasks.
    pub(super) fn ids(&self) -> Ids<'_> {
        match self {
            Self::Examples(source) => {
                let mut ids: Vec<u64> = source.examples.keys().copied().collect();
                ids.sort_unstable();
                Ids::ExampleIds(ids)
            }
            Self::Tasks(tasks) => Ids::TaskIds(names(tasks)),
        }
    }

    /// How many ids there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Examples(source) => source.examples.len(),
            Self::Tasks(tasks) => names(tasks).len(),
        }
    }

    /// What one of them is.
    pub(super) fn noun(&self) -> &'static str {
        match self {
            Self::Examples(_) => "example",
            Self::Tasks(_) => "task",
        }
    }

    /// Whether rollouts have advantages.
    pub(super) fn is_grouped(&self) -> bool {
        match self {
            Self::Examples(source) => source.is_grouped,
            Self::Tasks(_) => true,
        }
    }

    /// Whether rollouts that failed or timed out are in baselines and samples, where a client does not say.
    pub(super) fn includes_errors(&self) -> bool {
        match self {
            Self::Examples(source) => source.includes_errors,
            Self::Tasks(_) => false,
        }
    }

    /// Takes what a request asks for.
    pub(super) fn read(
        &self,
        take: &mut impl FnMut(&str) -> Option<Value>,
        problems: &mut Problems,
    ) -> Vec<Subject> {
        let [inputs, example_ids, task_ids] = KEYS.map(take);
        match self {
            Self::Examples(source) => {
                if task_ids.is_some() {
                    problems.push(
                        "`task_ids` are for container tasks, and the job has an interaction; send `example_ids` or \
                         `inputs`"
                            .to_owned(),
                    );
                }
                let chosen = match (inputs, example_ids) {
                    (Some(rows), None) => source.inputs(rows, problems),
                    (None, Some(ids)) => source.chosen(&ids, problems),
                    (None, None) => {
                        if task_ids.is_none() {
                            problems.push("`inputs` or `example_ids` is missing".to_owned());
                        }
                        Vec::new()
                    }
                    (Some(_), Some(_)) => {
                        problems.push("`inputs` and `example_ids` cannot both be set".to_owned());
                        Vec::new()
                    }
                };
                let subject = |input| Subject::Example(Arc::clone(source), Box::new(input));
                chosen.into_iter().map(subject).collect()
            }
            Self::Tasks(tasks) => {
                let of_examples = [("inputs", inputs.is_some()), ("example_ids", example_ids.is_some())];
                for (key, _) in of_examples.iter().filter(|(_, is_there)| *is_there) {
                    let why = "are for an interaction, and the job has container tasks; send `task_ids`";
                    problems.push(format!("`{key}` {why}"));
                }
                let chosen = match task_ids {
                    Some(ids) => tasks_of(tasks, &ids, problems),
                    None => {
                        if of_examples.iter().all(|(_, is_there)| !is_there) {
                            problems.push("`task_ids` is missing".to_owned());
                        }
                        Vec::new()
                    }
                };
                chosen.into_iter().map(|place| Subject::Task(Arc::clone(tasks), place)).collect()
            }
        }
    }
}

/// The names of the tasks that can be run.
fn names(tasks: &TaskRollouts) -> Vec<&str> {
    let runnable = tasks.tasks().iter().filter(|task| task.problem().is_none());
    runnable.map(|task| task.name()).collect()
}

/// The places of the tasks that are asked for.
fn tasks_of(tasks: &TaskRollouts, ids: &Value, problems: &mut Problems) -> Vec<usize> {
    let known = names(tasks);
    chosen("task_ids", ids, problems, |id| {
        let name = id.as_str();
        let place = tasks.tasks().iter().position(|task| Some(task.name()) == name);
        match place {
            Some(place) => match tasks.tasks()[place].problem() {
                None => Ok((place, place)),
                Some(problem) => {
                    Err(format!("task {} cannot be run: {}", brief(id), first_line(&problem.to_string())))
                }
            },
            None => Err(match name.and_then(|name| nearest(name, &known)) {
                Some(near) => format!("the job has no task {}; did you mean \"{near}\"?", brief(id)),
                None => format!("the job has no task {}", brief(id)),
            }),
        }
    })
}

/// Reads a list of unique ids. `find` returns the key by which duplicates are found, and the item.
fn chosen<K: Eq + std::hash::Hash, T>(
    key: &str,
    ids: &Value,
    problems: &mut Problems,
    find: impl Fn(&Value) -> Result<(K, T), String>,
) -> Vec<T> {
    let Some(ids) = ids.as_array() else {
        problems.push(format!("`{key}` is not a list"));
        return Vec::new();
    };
    if ids.is_empty() {
        problems.push(format!("`{key}` is empty"));
    }
    let mut places = HashMap::with_capacity(ids.len());
    let mut chosen = Vec::with_capacity(ids.len());
    for (place, id) in ids.iter().enumerate() {
        match find(id) {
            Err(problem) => problems.push(format!("{key}[{place}]: {problem}")),
            Ok((name, found)) => match places.insert(name, place) {
                None => chosen.push(found),
                Some(first) => {
                    let same = format!("duplicate of {key}[{first}]");
                    problems
                        .push(format!("{key}[{place}]: {same}; to repeat it, set `rollouts_per_example`"));
                }
            },
        }
    }
    chosen
}

impl ExampleSource {
    fn inputs(&self, rows: Value, problems: &mut Problems) -> Vec<RolloutInput> {
        let Value::Array(values) = rows else {
            problems.push("`inputs` is not a list".to_owned());
            return Vec::new();
        };
        let mut rows: Vec<Row> = Vec::with_capacity(values.len());
        let mut objects = true;
        for (place, value) in values.into_iter().enumerate() {
            match value {
                Value::Object(row) => rows.push(row),
                _ => {
                    objects = false;
                    problems.push(at(place, "not an object"));
                }
            }
        }
        if !objects {
            return Vec::new();
        }
        match self.format.inputs(rows) {
            Ok(inputs) => inputs,
            Err(ExamplesError::Rows(bad)) => {
                problems.extend(bad.iter().map(|problem| at(problem.row - 1, &problem.message)));
                Vec::new()
            }
            Err(ExamplesError::Empty) => {
                problems.push("`inputs` is empty".to_owned());
                Vec::new()
            }
            Err(error @ (ExamplesError::Io { .. } | ExamplesError::Store(_))) => {
                problems.push(error.to_string());
                Vec::new()
            }
        }
    }

    fn chosen(&self, ids: &Value, problems: &mut Problems) -> Vec<RolloutInput> {
        chosen("example_ids", ids, problems, |id| {
            let found = id.as_u64().and_then(|id| Some((id, self.examples.get(&id)?.clone())));
            found.ok_or_else(|| format!("the job has no example {}", brief(id)))
        })
    }
}

impl Subject {
    /// Runs and scores the rollouts of the group. The second part is whether some are missing, because of a cancel.
    pub(super) async fn run(
        self,
        options: &GroupOptions,
        share: Share,
        cancel: Cancel,
    ) -> Result<(Vec<RolloutOutput>, bool), GenerateError> {
        let GroupOptions { rollouts, model, advantage, includes_errors, columns, key, concurrency } = options;
        match self {
            Self::Example(source, input) => {
                let further =
                    columns.iter().filter(|column| !source.state_columns.iter().any(|own| own == *column));
                let columns = source.state_columns.iter().map(String::as_str).chain(further.copied());
                let run = RunOptions::new(Arc::clone(model))
                    .share(share)
                    .max_concurrent(concurrency.get())
                    .state_columns(columns)
                    .retry(source.retry.clone())
                    .cancel(cancel);
                let group = source.rollouts.clone().dataset(vec![*input]).include_errors(*includes_errors);
                let group = match *advantage {
                    Some(advantage) => group.advantage(advantage),
                    None => group,
                };
                let ended = group.evaluate(Examples::all().rollouts(rollouts.get()), run).await?;
                Ok((ended.outputs, ended.cancelled))
            }
            Self::Task(tasks, place) => {
                let how = TaskAttempts {
                    advantage: advantage.unwrap_or_default(),
                    include_errors: *includes_errors,
                    columns: columns.iter().map(|column| (*column).to_owned()).collect(),
                    share: Some(share),
                    secrets: key.iter().cloned().collect(),
                    cancel,
                    ..TaskAttempts::new(*rollouts, Arc::clone(model))
                };
                let ended = tasks.attempt(place, how).await?;
                Ok((ended.outputs, ended.cancelled))
            }
        }
    }
}

fn at(place: usize, problem: impl Display) -> String {
    format!("inputs[{place}]: {problem}")
}

/// A value that may be long.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
