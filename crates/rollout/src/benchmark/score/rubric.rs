//! Scores saved conversations with a rubric.

use std::{io, num::NonZeroUsize, path::Path, pin::pin, sync::Arc};

use futures_util::{StreamExt as _, stream};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{ScoreError, answers::text, mean, save};
use crate::{
    build::{self, BuildError},
    config::{DatasetSource, Override, Problems, load_job_text},
};
use rollout_core::{
    message::{Messages, Role},
    redact::Redactor,
    row::RolloutOutput,
};
use rollout_env::blocking::blocking;
use rollout_model::{
    Client, Model, RolloutInput, Rubric, RubricError, State, client::ClientConfig, conversation_turns,
    metric::PREDICTED_ANSWER, output_to_state,
};
use rollout_record::{lines::Lines, rows::METADATA};

/// A rubric from a file.
#[derive(Debug)]
pub struct LoadedRubric {
    /// The rubric.
    pub rubric: Rubric,
    /// Whether each rollout is scored separately, not together with the others of its example.
    pub independent_scoring: bool,
    /// Masks secrets in outputs.
    pub secrets: Redactor,
}

/// Why a rubric cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadRubricError {
    /// The file is invalid.
    #[error("invalid interaction")]
    Problems(#[from] Problems),
    /// The rubric cannot be built.
    #[error("cannot build the rubric")]
    Build(#[from] BuildError),
    /// It cannot score a single rollout.
    #[error("the rubric cannot be used")]
    Rubric(#[from] RubricError),
}

/// The scores of rollouts with a rubric: the content of `evaluation.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RubricEvaluation {
    /// The number of all rollouts of the file.
    pub total_rollouts: u64,
    /// The number of scored rollouts: those with a saved conversation.
    pub evaluated_rollouts: u64,
    /// The mean over scored rollouts; 0 if there are none.
    pub average_reward: f64,
    /// The mean of each function of the rubric.
    pub average_metrics: IndexMap<String, f64>,
    /// The scored rollouts, in the order of the file.
    pub evaluations: Vec<RolloutEvaluation>,
}

/// The scores of one rollout.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RolloutEvaluation {
    /// The number of its example.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub example_id: Option<u64>,
    /// The attempt at the example, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The id of its question, for a benchmark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The score.
    pub reward: f64,
    /// The reward minus the mean of its group; none if it is scored separately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advantage: Option<f64>,
    /// The value of each function of the rubric.
    pub metrics: IndexMap<String, f64>,
    /// Functions of the rubric that failed; each counts as 0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// Its previous reward, if it was scored.
    #[serde(skip)]
    pub before: Option<f64>,
}

/// The result of scoring a file with a rubric.
#[derive(Debug, Clone, PartialEq)]
pub struct RubricScored {
    /// The scores.
    pub evaluation: RubricEvaluation,
    /// The mean of the rewards before and now, over rollouts that had one before.
    pub before: Option<(f64, f64)>,
    /// The number of rollouts without a score: failed questions, and rollouts without a saved conversation.
    pub without_score: u64,
    /// The number of lines that are not rollouts.
    pub foreign_lines: u64,
}

/// Reads the rubric of an interaction file, with its parser. Variables for `${VAR}` come from `vars`. The examples of
/// the interaction need not exist.
pub fn load_rubric(
    path: &Path,
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedRubric, LoadRubricError> {
    // An interaction is read as part of a job.
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let job = json!({
        "agents": [{"name": "saved", "model": {"name": "saved", "base_url": "http://127.0.0.1/v1"}}],
        "datasets": [{"name": "saved", "interaction": file}],
    });
    // Its examples are already answered and not needed.
    let examples = Override {
        key: "datasets.0.interaction.dataset".to_owned(),
        value: r#"[{"question": "answered"}]"#.to_owned(),
    };
    let loaded = load_job_text(&path.with_file_name("job.json"), &job.to_string(), &[examples], vars)?;
    let dataset = loaded.config.datasets.first();
    let Some(DatasetSource::Interaction(interaction)) = dataset.map(|dataset| &dataset.source) else {
        unreachable!("the dataset of the job is an interaction");
    };
    let rubric = build::rubric(interaction)?.without_monitors();
    if interaction.independent_scoring || rubric.is_empty() {
        rubric.check_alone()?;
    }
    Ok(LoadedRubric {
        rubric,
        independent_scoring: interaction.independent_scoring,
        secrets: Redactor::new(loaded.secrets.iter().map(String::as_str)),
    })
}

/// Scores every saved conversation of a file: rows of a model's job, or lines of a benchmark's `results.jsonl`.
///
/// Rollouts of one example are scored together, unless the interaction scores them separately. `concurrency` groups are
/// scored at the same time; `progress` gets the number of finished rollouts. Nothing is written.
pub async fn score_with_rubric(
    rows: &Path,
    loaded: &LoadedRubric,
    concurrency: NonZeroUsize,
    mut progress: impl FnMut(u64),
) -> Result<RubricScored, ScoreError> {
    let read = ScoreError::read(rows);
    let path = rows.to_owned();
    let index = blocking(move || Index::of(&path)).await.map_err(&read)?;
    if index.total == 0 {
        return Err(ScoreError::NoRows(rows.to_owned()));
    }
    let model = never_asked(rows).await;
    let (total, foreign_lines) = (index.total, index.foreign);
    let groups = if loaded.independent_scoring { index.alone() } else { index.groups };
    let groups = stream::iter(groups).map(|places| {
        let (path, model) = (rows.to_owned(), Arc::clone(&model));
        let read = &read;
        async move {
            let saved = blocking(move || {
                let mut lines = Lines::open(&path)?;
                places.iter().map(|place| place.read(&mut lines, &model)).collect()
            });
            let saved: Vec<Saved> = saved.await.map_err(read)?;
            scored(saved, loaded).await
        }
    });
    let mut groups = pin!(groups.buffered(concurrency.get()));
    let mut evaluations = Vec::new();
    while let Some(group) = groups.next().await {
        evaluations.extend(group?);
        progress(evaluations.len() as u64);
    }
    if evaluations.is_empty() {
        return Err(ScoreError::NoConversations(rows.to_owned()));
    }
    evaluations.sort_by_key(|(line, _)| *line);
    let evaluations: Vec<RolloutEvaluation> = evaluations.into_iter().map(|(_, found)| found).collect();
    Ok(RubricScored {
        without_score: total - evaluations.len() as u64,
        foreign_lines,
        before: before(&evaluations),
        evaluation: averaged(total, evaluations),
    })
}

impl RubricEvaluation {
    /// Writes the evaluation to a file, atomically.
    pub async fn save(self, file: &Path) -> Result<(), ScoreError> {
        save(self, file).await
    }
}

async fn scored(
    saved: Vec<Saved>,
    loaded: &LoadedRubric,
) -> Result<Vec<(u64, RolloutEvaluation)>, ScoreError> {
    let (mut evaluations, mut states): (Vec<_>, Vec<_>) = saved
        .into_iter()
        .filter_map(|saved| saved.state.map(|state| ((saved.line, saved.evaluation), *state)))
        .unzip();
    if states.is_empty() {
        return Ok(Vec::new());
    }
    loaded.rubric.score_group(&mut states).await;
    for ((_, evaluation), state) in evaluations.iter_mut().zip(&mut states) {
        if let Some(error) = state.refused_key() {
            return Err(ScoreError::Unauthorized(error.clone()));
        }
        evaluation.reward = state.reward.unwrap_or_default();
        evaluation.advantage = state.advantage.filter(|_| !loaded.independent_scoring);
        evaluation.metrics = state.metrics.take().unwrap_or_default();
        let errors = state.scoring_errors.iter();
        evaluation.errors =
            errors.map(|error| loaded.secrets.text(&error.to_string()).into_owned()).collect();
    }
    Ok(evaluations)
}

fn averaged(total: u64, evaluations: Vec<RolloutEvaluation>) -> RubricEvaluation {
    let count = evaluations.len() as u64;
    let mut metrics: IndexMap<String, f64> = IndexMap::new();
    for (name, value) in evaluations.iter().flat_map(|evaluation| &evaluation.metrics) {
        *metrics.entry(name.clone()).or_default() += value;
    }
    metrics.values_mut().for_each(|sum| *sum = mean(*sum, count));
    RubricEvaluation {
        total_rollouts: total,
        evaluated_rollouts: count,
        average_reward: mean(evaluations.iter().map(|evaluation| evaluation.reward).sum(), count),
        average_metrics: metrics,
        evaluations,
    }
}

fn before(evaluations: &[RolloutEvaluation]) -> Option<(f64, f64)> {
    let both = evaluations.iter().filter_map(|evaluation| Some((evaluation.before?, evaluation.reward)));
    let (count, before, now) =
        both.fold((0, 0.0, 0.0), |(count, before, now), (old, new)| (count + 1, before + old, now + new));
    (count > 0).then(|| (mean(before, count), mean(now, count)))
}

/// A state needs a model. This one is never asked; its name comes from the record of the job, if there is one.
async fn never_asked(rows: &Path) -> Arc<Model> {
    let metadata = tokio::fs::read(rows.with_file_name(METADATA)).await.unwrap_or_default();
    let metadata: Value = serde_json::from_slice(&metadata).unwrap_or_default();
    let name = metadata.get("model").and_then(Value::as_str).unwrap_or_default().to_owned();
    let client = Client::new(ClientConfig::new("http://127.0.0.1/v1")).expect("the URL is one");
    Arc::new(Model { client, name, sampling: Map::new(), max_seq_len: None })
}

/// The positions of the rollouts of each example.
struct Index {
    groups: Vec<Vec<Place>>,
    total: u64,
    foreign: u64,
}

#[derive(Clone, Copy)]
struct Place {
    line: u64,
    offset: u64,
    attempt: Option<u64>,
}

/// The fields that identify a row.
#[derive(Deserialize)]
struct Key {
    example_id: Option<u64>,
    task_id: Option<String>,
    attempt: Option<u64>,
}

impl Index {
    fn of(path: &Path) -> io::Result<Self> {
        let mut lines = Lines::open(path)?;
        let mut groups: IndexMap<(Option<u64>, Option<String>), Vec<Place>> = IndexMap::new();
        let (mut total, mut foreign) = (0, 0);
        while let Some(line) = lines.next_line()? {
            match serde_json::from_slice(line.bytes) {
                Ok(Key { example_id: None, task_id: None, .. }) => foreign += 1,
                Ok(Key { example_id, task_id, attempt }) => {
                    let place = Place { line: line.number, offset: line.offset, attempt };
                    let group = groups.entry((example_id, task_id)).or_default();
                    // Of two lines of the same attempt, the later one counts.
                    match group.iter_mut().find(|other| attempt.is_some() && other.attempt == attempt) {
                        Some(earlier) => *earlier = place,
                        None => {
                            total += 1;
                            group.push(place);
                        }
                    }
                }
                Err(_) if line.is_blank() => {}
                Err(_) => foreign += 1,
            }
        }
        Ok(Self { groups: groups.into_values().collect(), total, foreign })
    }

    fn alone(self) -> Vec<Vec<Place>> {
        self.groups.into_iter().flatten().map(|place| vec![place]).collect()
    }
}

/// A saved rollout.
struct Saved {
    line: u64,
    evaluation: RolloutEvaluation,
    /// None if its conversation was not saved.
    state: Option<Box<State>>,
}

/// The fields of a line of a benchmark's results that a rubric needs.
#[derive(Deserialize)]
struct Answered {
    task_id: String,
    success: bool,
    example_id: Option<u64>,
    attempt: Option<u32>,
    predicted_answer: Option<String>,
    ground_truth: Option<Value>,
    score: Option<f64>,
    trajectory: Option<Conversation>,
}

#[derive(Deserialize)]
struct Conversation {
    messages: Messages,
}

impl Place {
    fn read(&self, lines: &mut Lines, model: &Arc<Model>) -> io::Result<Saved> {
        let bytes = lines.at(self.offset)?;
        let (evaluation, state) = match serde_json::from_slice::<Answered>(bytes) {
            Ok(answered) => answered.state(model),
            Err(_) => match serde_json::from_slice::<RolloutOutput>(bytes) {
                Ok(output) => state(output, model),
                Err(_) => (RolloutEvaluation::of(None, None, None), None),
            },
        };
        Ok(Saved { line: self.line, evaluation, state: state.map(Box::new) })
    }
}

impl RolloutEvaluation {
    fn of(example_id: Option<u64>, attempt: Option<u32>, before: Option<f64>) -> Self {
        Self {
            example_id,
            attempt,
            task_id: None,
            reward: 0.0,
            advantage: None,
            metrics: IndexMap::new(),
            errors: Vec::new(),
            before,
        }
    }
}

impl Answered {
    fn state(self, model: &Arc<Model>) -> (RolloutEvaluation, Option<State>) {
        let mut evaluation = RolloutEvaluation::of(self.example_id, self.attempt, self.score);
        evaluation.task_id = Some(self.task_id.clone());
        let conversation = self.trajectory.filter(|_| self.success);
        let state = conversation.map(|Conversation { messages: mut prompt }| {
            let spoken = prompt.iter().position(|message| message.role == Role::Assistant);
            let completion = prompt.split_off(spoken.unwrap_or(prompt.len()));
            let input = RolloutInput {
                prompt,
                example_id: self.example_id.unwrap_or_default(),
                task: self.task_id,
                answer: self.ground_truth.and_then(text),
                ..RolloutInput::default()
            };
            let mut state = State::new(input, Arc::clone(model), Arc::default());
            if let Some(answer) = self.predicted_answer {
                state.fields.insert(PREDICTED_ANSWER.to_owned(), answer.into());
            }
            state.completion = Some(completion);
            state.is_completed = true;
            state.trajectory = conversation_turns(&state);
            state
        });
        (evaluation, state)
    }
}

/// Restores the state from a row, as far as the row has it.
fn state(row: RolloutOutput, model: &Arc<Model>) -> (RolloutEvaluation, Option<State>) {
    let evaluation = RolloutEvaluation::of(Some(row.example_id), row.attempt, Some(row.reward));
    (evaluation, output_to_state(row, model))
}
