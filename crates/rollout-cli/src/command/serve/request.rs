//! What a client may ask for.

use std::{collections::HashMap, fmt::Display, num::NonZeroU32, sync::Arc};

use rollout::model::{
    Model, RolloutInput, SamplingArgs,
    dataset::{DatasetError, Format, Row},
};
use serde_json::{Map, Value};

/// Rollouts of one example are held in memory until they are scored together.
const MAX_PER_EXAMPLE: u32 = 1024;

/// How many problems are told.
const TOLD: usize = 20;

const KEYS: [&str; 6] = ["inputs", "example_ids", "rollouts_per_example", "model", "sampling", "return"];

/// What a service has to give.
#[derive(Debug)]
pub(super) struct Offer {
    /// Makes inputs of the rows that clients bring.
    pub(super) format: Format,
    /// The examples of the job.
    pub(super) examples: HashMap<u64, RolloutInput>,
    pub(super) model: Arc<Model>,
    /// Whether the model's server is asked for tokens.
    pub(super) token_ids: bool,
    /// Rollouts of each example, where a client does not say.
    pub(super) per_example: NonZeroU32,
}

/// What a client asks for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) inputs: Vec<RolloutInput>,
    pub(super) per_example: u32,
    pub(super) model: Arc<Model>,
    pub(super) form: Form,
}

/// What comes back of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Sequences of tokens to train on.
    Samples,
    /// Rows with all turns.
    Rollouts,
}

impl Form {
    /// The fields of the state that rows need for it.
    pub(super) fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Samples => &["advantage", "training_samples"],
            Self::Rollouts => &["advantage", "trajectory_id", "trajectory"],
        }
    }
}

/// What is wrong with a request, a line each.
pub(super) type Problems = Vec<String>;

impl Offer {
    /// Reads a request. All of its problems are told at once.
    pub(super) fn read(&self, body: &[u8]) -> Result<Asked, Problems> {
        let mut asked = match serde_json::from_slice(body) {
            Ok(Value::Object(asked)) => asked,
            Ok(_) => return Err(vec!["the body is not a JSON object".to_owned()]),
            Err(error) => return Err(vec![format!("the body is not JSON: {error}")]),
        };
        let mut problems = Problems::new();
        let unknown = asked.keys().filter(|key| !KEYS.contains(&key.as_str()));
        problems.extend(
            unknown.map(|key| format!("{key:?} is unknown; there are {}", KEYS.map(quoted).join(", "))),
        );
        let mut take = |key: &str| asked.remove(key).filter(|value| !value.is_null());

        let inputs = match (take("inputs"), take("example_ids")) {
            (Some(rows), None) => self.inputs(rows, &mut problems),
            (None, Some(ids)) => self.chosen(&ids, &mut problems),
            (None, None) => {
                problems.push("`inputs` or `example_ids` is missing".to_owned());
                Vec::new()
            }
            (Some(_), Some(_)) => {
                problems.push("`inputs` and `example_ids` exclude each other".to_owned());
                Vec::new()
            }
        };
        let per_example = match take("rollouts_per_example") {
            None => self.per_example.get(),
            Some(value) => match value.as_u64().and_then(|number| u32::try_from(number).ok()) {
                Some(number @ 1..=MAX_PER_EXAMPLE) => number,
                _ => {
                    let range = format!("a whole number from 1 to {MAX_PER_EXAMPLE}");
                    problems.push(format!("`rollouts_per_example` is not {range}"));
                    1
                }
            },
        };
        let name = match take("model") {
            None => None,
            Some(Value::String(name)) if !name.trim().is_empty() => Some(name),
            Some(_) => {
                problems.push("`model` is not the server's name for a model".to_owned());
                None
            }
        };
        let sampling = match take("sampling") {
            None => Map::new(),
            Some(Value::Object(sampling)) => sampling,
            Some(_) => {
                problems.push("`sampling` is not an object".to_owned());
                Map::new()
            }
        };
        let form = match take("return").as_ref().map(Value::as_str) {
            None | Some(Some("rollouts")) => Form::Rollouts,
            Some(Some("samples")) if self.token_ids => Form::Samples,
            Some(Some("samples")) => {
                let what = "`return: samples` needs tokens; set `token_ids: true` for the model of the job";
                problems.push(what.to_owned());
                Form::Samples
            }
            Some(_) => {
                problems.push("`return` is neither \"samples\" nor \"rollouts\"".to_owned());
                Form::Rollouts
            }
        };
        if problems.is_empty() {
            Ok(Asked { inputs, per_example, model: self.model(name, sampling), form })
        } else {
            Err(shortened(problems))
        }
    }

    /// The model under another name, or sampled in another way.
    fn model(&self, name: Option<String>, sampling: SamplingArgs) -> Arc<Model> {
        if name.is_none() && sampling.is_empty() {
            return Arc::clone(&self.model);
        }
        let mut model = Model::clone(&self.model);
        model.sampling.extend(sampling);
        model.name = name.unwrap_or(model.name);
        Arc::new(model)
    }

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
            Err(DatasetError::Rows(bad)) => {
                problems.extend(bad.iter().map(|problem| at(problem.row - 1, &problem.message)));
                Vec::new()
            }
            Err(DatasetError::Empty) => {
                problems.push("`inputs` is empty".to_owned());
                Vec::new()
            }
            Err(error @ DatasetError::Io { .. }) => {
                problems.push(error.to_string());
                Vec::new()
            }
        }
    }

    fn chosen(&self, ids: &Value, problems: &mut Problems) -> Vec<RolloutInput> {
        let Some(ids) = ids.as_array() else {
            problems.push("`example_ids` is not a list".to_owned());
            return Vec::new();
        };
        if ids.is_empty() {
            problems.push("`example_ids` is empty".to_owned());
        }
        let mut chosen = HashMap::with_capacity(ids.len());
        let mut inputs = Vec::with_capacity(ids.len());
        for (place, id) in ids.iter().enumerate() {
            let Some(input) = id.as_u64().and_then(|id| self.examples.get(&id)) else {
                problems.push(format!("example_ids[{place}]: the job has no example {}", brief(id)));
                continue;
            };
            match chosen.insert(input.example_id, place) {
                None => inputs.push(input.clone()),
                Some(first) => {
                    let same = format!("example {id} is example_ids[{first}] too");
                    problems.push(format!("example_ids[{place}]: {same}; ask for more rollouts per example"));
                }
            }
        }
        inputs
    }
}

fn at(place: usize, problem: impl Display) -> String {
    format!("inputs[{place}]: {problem}")
}

fn quoted(key: &str) -> String {
    format!("`{key}`")
}

/// A value that may be long.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn shortened(mut problems: Problems) -> Problems {
    let more = problems.len().saturating_sub(TOLD);
    problems.truncate(TOLD);
    if more > 0 {
        problems.push(format!("and {more} more"));
    }
    problems
}
