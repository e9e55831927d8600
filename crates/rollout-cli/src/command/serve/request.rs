//! What a client may ask for.

use std::{collections::HashMap, fmt::Display, num::NonZeroU32, sync::Arc};

use rollout::model::{
    Model, RolloutInput, SamplingArgs,
    dataset::{ExamplesError, Format, Row},
};
use serde_json::{Map, Value};

/// Rollouts of one example are held in memory until they are scored together.
const MAX_PER_EXAMPLE: u32 = 1024;

/// How many problems are told.
const TOLD: usize = 20;

/// What a request to the model's server holds anyway, and no client may replace.
const TAKEN: [&str; 5] = ["model", "messages", "tools", "stream", "n"];

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
            Some(Value::Object(sampling)) => {
                let nested = sampling.get("extra_body").and_then(Value::as_object);
                let holds = |key: &&str| {
                    sampling.contains_key(*key) || nested.is_some_and(|body| body.contains_key(*key))
                };
                let taken = TAKEN.into_iter().filter(holds);
                problems.extend(taken.map(|key| format!("`sampling` cannot hold `{key}`")));
                sampling
            }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rollout::{
        config::{AgentKind, load_job_text},
        model::build,
    };
    use serde_json::json;

    use super::*;

    fn offer(token_ids: bool) -> Offer {
        let text = "
agents: [{name: a, model: {name: policy, base_url: 'http://127.0.0.1:1/v1', sampling: {temperature: 1.0, top_p: 0.9}}}]
datasets: [{name: sums, interaction: {dataset: [{question: 1 + 1?, answer: '2'}], rubric: [{match: exact}]}}]";
        let job = load_job_text("job.yaml".as_ref(), text, &[], &|_| None).unwrap().config;
        let AgentKind::Model(agent) = &job.agents[0].kind else { unreachable!() };
        let example = |id| (id, RolloutInput { example_id: id, ..RolloutInput::default() });
        Offer {
            format: Format { system_prompt: Some("Be brief.".to_owned()), ..Format::default() },
            examples: [example(0), example(5)].into(),
            model: Arc::new(build::model(&agent.model).unwrap()),
            token_ids,
            per_example: NonZeroU32::new(3).unwrap(),
        }
    }

    fn read(body: &Value) -> Result<Asked, Problems> {
        offer(true).read(body.to_string().as_bytes())
    }

    #[test]
    fn what_is_not_said_is_as_in_the_job() {
        let offer = offer(false);
        let asked = offer.read(br#"{"example_ids": [5], "model": null, "sampling": {}}"#).unwrap();
        assert_eq!((asked.inputs[0].example_id, asked.per_example, asked.form), (5, 3, Form::Rollouts));
        assert!(Arc::ptr_eq(&asked.model, &offer.model));
    }

    #[test]
    fn name_and_sampling_of_the_model_can_be_replaced() {
        let asked =
            read(&json!({"example_ids": [0], "model": "step-2", "sampling": {"top_p": 0.5, "seed": 1}}));
        let model = asked.unwrap().model;
        assert_eq!(model.name, "step-2");
        assert_eq!(
            Value::Object(model.sampling.clone()),
            json!({"temperature": 1.0, "top_p": 0.5, "seed": 1})
        );
    }

    #[test]
    fn sampling_cannot_change_what_is_asked() {
        let sampling = json!({"n": 8, "messages": [], "extra_body": {"tools": [], "min_p": 0.1}});
        let problems = read(&json!({"example_ids": [0], "sampling": sampling})).unwrap_err();
        insta::assert_snapshot!(problems.join("\n"), @"
        `sampling` cannot hold `messages`
        `sampling` cannot hold `tools`
        `sampling` cannot hold `n`
        ");
    }

    #[test]
    fn inputs_are_rows_as_those_of_a_dataset() {
        let asked =
            read(&json!({"inputs": [{"question": "?", "example_id": 7, "level": 2}], "return": "samples"}));
        let asked = asked.unwrap();
        let [input] = &asked.inputs[..] else { panic!("{asked:?}") };
        assert_eq!((input.example_id, input.prompt.len(), asked.form), (7, 2, Form::Samples));
        assert_eq!(input.prompt[0].text(), "Be brief.");
        assert_eq!(input.extra["level"], 2);
    }

    #[test]
    fn samples_need_a_model_that_gives_tokens() {
        let problems = offer(false).read(br#"{"example_ids": [0], "return": "samples"}"#).unwrap_err();
        insta::assert_snapshot!(problems.join("\n"), @"`return: samples` needs tokens; set `token_ids: true` for the model of the job");
    }

    #[test]
    fn a_request_is_either_for_inputs_or_for_examples() {
        let told = |body: Value| read(&body).unwrap_err().join("\n");
        insta::assert_snapshot!(told(json!({})), @"`inputs` or `example_ids` is missing");
        insta::assert_snapshot!(told(json!({"inputs": [{"question": "?"}], "example_ids": [0]})), @"`inputs` and `example_ids` exclude each other");
        insta::assert_snapshot!(told(json!({"inputs": []})), @"`inputs` is empty");
        insta::assert_snapshot!(told(json!({"inputs": {}, "rollouts_per_example": 1025})), @"
        `inputs` is not a list
        `rollouts_per_example` is not a whole number from 1 to 1024
        ");
        insta::assert_snapshot!(told(json!({"example_ids": []})), @"`example_ids` is empty");
    }

    #[test]
    fn endless_problems_are_cut_short() {
        let problems = read(&json!({"inputs": vec![1; 1000]})).unwrap_err();
        assert_eq!((problems.len(), problems[20].as_str()), (21, "and 980 more"));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let key = prop_oneof![
                proptest::sample::select(&["question", "prompt", "answer", "info", "example_id", "role"])
                    .prop_map(str::to_owned),
                ".{0,4}",
            ];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..4)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_request_is_read_or_told_what_is_wrong(
            values in prop::collection::vec((proptest::sample::select(&KEYS), any_json()), 0..6),
        ) {
            let body: Map<String, Value> = values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
            match read(&Value::Object(body)) {
                Ok(asked) => {
                    prop_assert!(!asked.inputs.is_empty() && (1..=MAX_PER_EXAMPLE).contains(&asked.per_example));
                    prop_assert!(asked.inputs.iter().all(|input| !input.prompt.is_empty() || input.example_id % 5 == 0));
                }
                Err(problems) => prop_assert!(!problems.is_empty() && problems.len() <= TOLD + 1),
            }
        }

        #[test]
        fn any_bytes_are_refused_in_words(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(offer(true).read(&bytes).is_err());
        }
    }
}
