//! What a client may ask for.

use std::num::NonZeroU32;

use rollout::{model::Advantage, record::redact::Redactor};
use serde_json::Value;

use super::{
    policy::{AskedModel, Policy},
    source::{self, GroupOptions, Source, Subject},
};

/// Rollouts of one example are held in memory until they are scored together.
const MAX_PER_EXAMPLE: u32 = 1024;

/// How many problems are reported.
const REPORTED: usize = 20;

/// The keys beside those of the source.
const KEYS: [&str; 8] = [
    "rollouts_per_example",
    "model",
    "base_url",
    "api_key",
    "sampling",
    "advantage",
    "include_errors",
    "return",
];

/// What a service has to give.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) source: Source,
    pub(super) policy: Policy,
    /// Rollouts of each example, where a client does not say.
    pub(super) per_example: NonZeroU32,
    /// How many rollouts run at the same time.
    pub(super) concurrency: NonZeroU32,
    /// What must not be shown.
    pub(super) secrets: Vec<String>,
}

/// What a client asks for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) subjects: Vec<Subject>,
    pub(super) options: GroupOptions,
    pub(super) form: Form,
    /// Takes the secrets of the job and the key of the request out of what is sent.
    pub(super) redactor: Redactor,
    /// Whether the request says where the model is, or what its key is.
    pub(super) names_endpoint: bool,
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
    fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Samples => &["advantage", "trajectory_id", "training_samples"],
            Self::Rollouts => &["advantage", "trajectory_id", "trajectory"],
        }
    }
}

/// The problems of a request, one line each.
pub(super) type Problems = Vec<String>;

impl Offer {
    /// Reads a request. All of its problems are reported at once.
    pub(super) fn read(&self, body: &[u8]) -> Result<Asked, Problems> {
        let mut asked = match serde_json::from_slice(body) {
            Ok(Value::Object(asked)) => asked,
            Ok(_) => return Err(vec!["the body is not a JSON object".to_owned()]),
            Err(error) => return Err(vec![format!("the body is not JSON: {error}")]),
        };
        let mut problems = Problems::new();
        let known = || source::KEYS.into_iter().chain(KEYS);
        let unknown = asked.keys().filter(|key| !known().any(|known| known == key.as_str()));
        problems.extend(unknown.map(|key| {
            let known: Vec<_> = known().map(|key| format!("`{key}`")).collect();
            format!("unknown key {key:?}; known keys: {}", known.join(", "))
        }));
        let mut take = |key: &str| asked.remove(key).filter(|value| !value.is_null());

        let subjects = self.source.read(&mut take, &mut problems);
        let rollouts = per_example(take("rollouts_per_example"), self.per_example, &mut problems);
        let AskedModel { model, key, is_named } = self.policy.read(&mut take, &mut problems);
        let advantage = self.advantage(take("advantage"), &mut problems);
        let includes_errors = self.includes_errors(take("include_errors"), &mut problems);
        let form = self.form(take("return"), &mut problems);
        if !problems.is_empty() {
            return Err(shortened(problems));
        }
        let secrets = self.secrets.iter().chain(&key).map(String::as_str);
        Ok(Asked {
            subjects,
            form,
            redactor: Redactor::new(secrets),
            names_endpoint: is_named,
            options: GroupOptions {
                rollouts,
                model,
                advantage,
                includes_errors,
                columns: form.columns(),
                key,
                concurrency: self.concurrency,
            },
        })
    }

    fn advantage(&self, asked: Option<Value>, problems: &mut Problems) -> Option<Advantage> {
        let asked = asked?;
        let named = Advantage::ALL.into_iter().find(|advantage| asked == advantage.as_str());
        if named.is_none() {
            let names: Vec<_> =
                Advantage::ALL.iter().map(|advantage| format!("{:?}", advantage.as_str())).collect();
            problems.push(format!("`advantage` must be one of {}", names.join(", ")));
        } else if !self.source.is_grouped() {
            let what = "`advantage` needs groups, and the interaction has `independent_scoring: true`";
            problems.push(what.to_owned());
        }
        named
    }

    fn includes_errors(&self, asked: Option<Value>, problems: &mut Problems) -> bool {
        let Some(asked) = asked else { return self.source.includes_errors() };
        asked.as_bool().unwrap_or_else(|| {
            problems.push("`include_errors` must be true or false".to_owned());
            false
        })
    }

    fn form(&self, asked: Option<Value>, problems: &mut Problems) -> Form {
        match asked.as_ref().map(Value::as_str) {
            None | Some(Some("rollouts")) => Form::Rollouts,
            Some(Some("samples")) => {
                if !self.policy.gives_tokens() {
                    let what =
                        "`return: samples` needs tokens; set `token_ids: true` for the model of the job";
                    problems.push(what.to_owned());
                }
                Form::Samples
            }
            Some(_) => {
                problems.push("`return` must be \"samples\" or \"rollouts\"".to_owned());
                Form::Rollouts
            }
        }
    }
}

fn per_example(asked: Option<Value>, default: NonZeroU32, problems: &mut Problems) -> NonZeroU32 {
    let Some(asked) = asked else { return default };
    let number = asked.as_u64().and_then(|number| u32::try_from(number).ok());
    match number.filter(|number| *number <= MAX_PER_EXAMPLE).and_then(NonZeroU32::new) {
        Some(number) => number,
        None => {
            let range = format!("a whole number from 1 to {MAX_PER_EXAMPLE}");
            problems.push(format!("`rollouts_per_example` must be {range}"));
            default
        }
    }
}

fn shortened(mut problems: Problems) -> Problems {
    let more = problems.len().saturating_sub(REPORTED);
    problems.truncate(REPORTED);
    if more > 0 {
        problems.push(format!("and {more} more"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rollout::{
        config::{AgentKind, RetryConfig, load_job_text},
        model::{RolloutInput, Rollouts, Rubric, SingleTurn, dataset::Format},
    };
    use serde_json::{Map, json};

    use super::{super::source::ExampleSource, *};

    fn offer(token_ids: bool) -> Offer {
        let text = format!(
            "
agents:
  - name: a
    model:
      name: policy
      base_url: http://127.0.0.1:1/v1
      api_key: sk-of-the-job
      token_ids: {token_ids}
      sampling: {{temperature: 1.0, top_p: 0.9}}
datasets: [{{name: sums, interaction: {{dataset: [{{question: 1 + 1?, answer: '2'}}], rubric: [{{match: exact}}]}}}}]"
        );
        let job = load_job_text("job.yaml".as_ref(), &text, &[], &|_| None).unwrap().config;
        let AgentKind::Model(agent) = &job.agents[0].kind else { unreachable!() };
        let example = |id| (id, RolloutInput { example_id: id, ..RolloutInput::default() });
        Offer {
            source: Source::Examples(Arc::new(ExampleSource {
                rollouts: Rollouts::new(SingleTurn, Rubric::new()),
                format: Format { system_prompt: Some("Be brief.".to_owned()), ..Format::default() },
                examples: [example(0), example(5)].into(),
                retry: RetryConfig::default(),
                state_columns: Vec::new(),
                is_grouped: true,
                includes_errors: false,
            })),
            policy: Policy::new(&agent.model).unwrap(),
            per_example: NonZeroU32::new(3).unwrap(),
            concurrency: NonZeroU32::new(4).unwrap(),
            secrets: vec!["sk-of-the-job".to_owned()],
        }
    }

    /// The examples that a request is for.
    fn inputs(asked: &Asked) -> Vec<&RolloutInput> {
        let subjects = asked.subjects.iter();
        subjects
            .map(|subject| match subject {
                Subject::Example(_, input) => &**input,
                Subject::Task(..) => unreachable!("the job has an interaction"),
            })
            .collect()
    }

    fn read(body: &Value) -> Result<Asked, Problems> {
        offer(true).read(body.to_string().as_bytes())
    }

    #[test]
    fn what_is_not_said_is_as_in_the_job() {
        let offer = offer(false);
        let asked = offer.read(br#"{"example_ids": [5], "model": null, "sampling": {}}"#).unwrap();
        let rollouts = asked.options.rollouts.get();
        assert_eq!((inputs(&asked)[0].example_id, rollouts, asked.form), (5, 3, Form::Rollouts));
        assert!(Arc::ptr_eq(&asked.options.model, offer.policy.model()));
        assert_eq!((asked.options.advantage, asked.names_endpoint), (None, false));
    }

    #[test]
    fn name_and_sampling_of_the_model_can_be_replaced() {
        let asked =
            read(&json!({"example_ids": [0], "model": "step-2", "sampling": {"top_p": 0.5, "seed": 1}}));
        let model = asked.unwrap().options.model;
        assert_eq!(model.name, "step-2");
        assert_eq!(
            Value::Object(model.sampling.clone()),
            json!({"temperature": 1.0, "top_p": 0.5, "seed": 1})
        );
    }

    #[test]
    fn an_endpoint_of_the_request_gets_neither_key_nor_headers_of_the_job() {
        let ask = |more: Value| {
            let mut body = json!({"example_ids": [0]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(&body).unwrap()
        };
        let elsewhere = ask(json!({"base_url": "http://10.0.0.7:8000/v1", "api_key": "sk-of-the-trainer"}));
        assert_eq!(elsewhere.options.model.client.base_url(), "http://10.0.0.7:8000/v1");
        assert_eq!(elsewhere.options.model.name, "policy");
        assert!(elsewhere.names_endpoint);
        assert_eq!(elsewhere.redactor.text("sk-of-the-job, sk-of-the-trainer"), "[redacted], [redacted]");
        assert!(!format!("{:?}", elsewhere.options.model).contains("sk-of-the"));
        let own = ask(json!({"api_key": "sk-of-the-trainer"}));
        assert_eq!(own.options.model.client.base_url(), "http://127.0.0.1:1/v1");
    }

    #[test]
    fn an_endpoint_that_cannot_be_is_refused_without_its_key() {
        for url in [
            "",
            "10.0.0.7:8000",
            "ftp://host/v1",
            "http://",
            "http:///v1",
            "http://user:word@host/v1",
            "http://a b",
        ] {
            let problems = read(&json!({"example_ids": [0], "base_url": url})).unwrap_err();
            assert_eq!(problems.len(), 1, "{url}");
            assert!(problems[0].starts_with("`base_url` must be an http or https URL"), "{problems:?}");
        }
        let body =
            json!({"example_ids": [0], "base_url": 7, "api_key": "sk-two\nlines", "advantage": "mean"});
        insta::assert_snapshot!(read(&body).unwrap_err().join("\n"), @r#"
        `base_url` must be an http or https URL, such as http://127.0.0.1:8000/v1, without credentials; send a key as `api_key`
        `api_key` must contain only visible ASCII characters
        `advantage` must be one of "group_mean", "leave_one_out", "normalised"
        "#);
    }

    #[test]
    fn advantages_have_three_names() {
        for advantage in Advantage::ALL {
            let asked = read(&json!({"example_ids": [0], "advantage": advantage.as_str()})).unwrap();
            assert_eq!(asked.options.advantage, Some(advantage));
        }
    }

    #[test]
    fn sampling_cannot_change_what_is_asked() {
        let sampling = json!({"n": 8, "messages": [], "extra_body": {"tools": [], "min_p": 0.1}});
        let problems = read(&json!({"example_ids": [0], "sampling": sampling})).unwrap_err();
        insta::assert_snapshot!(problems.join("\n"), @"
        `sampling` cannot contain `messages`
        `sampling` cannot contain `tools`
        `sampling` cannot contain `n`
        ");
    }

    #[test]
    fn inputs_are_rows_as_those_of_a_dataset() {
        let asked =
            read(&json!({"inputs": [{"question": "?", "example_id": 7, "level": 2}], "return": "samples"}));
        let asked = asked.unwrap();
        let [input] = inputs(&asked)[..] else { panic!("{asked:?}") };
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
        let problems = |body: Value| read(&body).unwrap_err().join("\n");
        insta::assert_snapshot!(problems(json!({})), @"`inputs` or `example_ids` is missing");
        insta::assert_snapshot!(problems(json!({"inputs": [{"question": "?"}], "example_ids": [0]})), @"`inputs` and `example_ids` cannot both be set");
        insta::assert_snapshot!(problems(json!({"inputs": []})), @"`inputs` is empty");
        insta::assert_snapshot!(problems(json!({"inputs": {}, "rollouts_per_example": 1025})), @"
        `inputs` is not a list
        `rollouts_per_example` must be a whole number from 1 to 1024
        ");
        insta::assert_snapshot!(problems(json!({"example_ids": []})), @"`example_ids` is empty");
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
        fn any_request_is_read_or_its_problems_are_reported(
            values in prop::collection::vec((proptest::sample::select([&source::KEYS[..], &KEYS].concat()), any_json()), 0..6),
        ) {
            let body: Map<String, Value> = values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
            match read(&Value::Object(body)) {
                Ok(asked) => {
                    let inputs = inputs(&asked);
                    prop_assert!(!inputs.is_empty() && asked.options.rollouts.get() <= MAX_PER_EXAMPLE);
                    prop_assert!(inputs.iter().all(|input| !input.prompt.is_empty() || input.example_id % 5 == 0));
                }
                Err(problems) => prop_assert!(!problems.is_empty() && problems.len() <= REPORTED + 1),
            }
        }

        #[test]
        fn any_bytes_are_refused_in_words(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(offer(true).read(&bytes).is_err());
        }
    }
}
