//! The model of a request: the job's, under another name, sampled in another way, or at another endpoint.

use std::sync::Arc;

use rollout::{
    config::{EnvValue, ModelConfig},
    model::{
        Model, SamplingArgs,
        build::{self, BuildError},
    },
    text::chain,
};
use serde_json::{Map, Value};

use super::request::Problems;

/// What a request to the model's server holds anyway, and no client may replace.
const TAKEN: [&str; 5] = ["model", "messages", "tools", "stream", "n"];

/// The model of the job, and how it is reached.
#[derive(Debug)]
pub(super) struct Policy {
    config: ModelConfig,
    model: Arc<Model>,
}

/// The model that a request asks for.
#[derive(Debug)]
pub(super) struct AskedModel {
    pub(super) model: Arc<Model>,
    /// The key that came with the request.
    pub(super) key: Option<String>,
    /// Whether the request has the URL or the key of the model.
    pub(super) is_named: bool,
}

impl Policy {
    pub(super) fn new(config: &ModelConfig) -> Result<Self, BuildError> {
        Ok(Self { config: config.clone(), model: Arc::new(build::model(config)?) })
    }

    /// The model of the job.
    pub(super) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Whether the model's server is asked for tokens.
    pub(super) fn gives_tokens(&self) -> bool {
        self.config.token_ids
    }

    /// Takes the keys of a request that concern the model.
    pub(super) fn read(
        &self,
        take: &mut impl FnMut(&str) -> Option<Value>,
        problems: &mut Problems,
    ) -> AskedModel {
        let name = match take("model") {
            None => None,
            Some(Value::String(name)) if !name.trim().is_empty() => Some(name),
            Some(_) => {
                problems.push("`model` must be a text that is not empty".to_owned());
                None
            }
        };
        let base_url = match take("base_url") {
            None => None,
            Some(Value::String(url)) if is_base_url(&url) => Some(url),
            Some(_) => {
                let what = "`base_url` must be an http or https URL, such as http://127.0.0.1:8000/v1, without credentials; \
                            send a key as `api_key`";
                problems.push(what.to_owned());
                None
            }
        };
        let key = match take("api_key") {
            None => None,
            Some(Value::String(key)) if is_key(&key) => Some(key),
            Some(_) => {
                problems.push("`api_key` must contain only visible ASCII characters".to_owned());
                None
            }
        };
        let sampling = sampling(take("sampling"), problems);
        let is_named = base_url.is_some() || key.is_some();
        let model = self.at(base_url, key.as_deref()).unwrap_or_else(|error| {
            problems.push(chain(&error));
            Arc::clone(&self.model)
        });
        AskedModel { model: adapted(model, name, sampling), key, is_named }
    }

    /// The model at another endpoint. The job's key and headers are for the job's server alone.
    fn at(&self, base_url: Option<String>, key: Option<&str>) -> Result<Arc<Model>, BuildError> {
        if base_url.is_none() && key.is_none() {
            return Ok(Arc::clone(&self.model));
        }
        let mut config = self.config.clone();
        if let Some(url) = base_url {
            config.base_urls = vec![url];
            config.api_key = None;
            config.headers.clear();
        }
        if let Some(key) = key {
            config.api_key = Some(EnvValue { value: key.to_owned(), secret: true });
        }
        Ok(Arc::new(build::model(&config)?))
    }
}

/// The model under another name, or sampled in another way.
fn adapted(model: Arc<Model>, name: Option<String>, sampling: SamplingArgs) -> Arc<Model> {
    if name.is_none() && sampling.is_empty() {
        return model;
    }
    let mut model = Arc::unwrap_or_clone(model);
    model.sampling.extend(sampling);
    model.name = name.unwrap_or(model.name);
    Arc::new(model)
}

fn sampling(asked: Option<Value>, problems: &mut Problems) -> SamplingArgs {
    match asked {
        None => Map::new(),
        Some(Value::Object(sampling)) => {
            let nested = sampling.get("extra_body").and_then(Value::as_object);
            let holds = |key: &&str| {
                sampling.contains_key(*key) || nested.is_some_and(|body| body.contains_key(*key))
            };
            let taken = TAKEN.into_iter().filter(holds);
            problems.extend(taken.map(|key| format!("`sampling` cannot contain `{key}`")));
            sampling
        }
        Some(_) => {
            problems.push("`sampling` is not an object".to_owned());
            Map::new()
        }
    }
}

/// Whether a text can be where a server answers. One with a password in it is not: only keys are kept secret.
fn is_base_url(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or(url.strip_prefix("http://"));
    rest.is_some_and(|rest| {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        !host.is_empty() && !host.contains('@')
    }) && url.chars().all(|char| char.is_ascii_graphic())
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|char| char.is_ascii_graphic())
}
