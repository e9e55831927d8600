//! The `gateway` section of a job: what agents may ask of models.

use std::path::PathBuf;

use globset::Glob;
use indexmap::IndexMap;
use serde_json::json;

use super::model::{MOST_RETRIES, RateLimitKeys};
use rollout_model::client::RateLimit;
use rollout_settings::{
    Form, Section, Value,
    diagnostic::Code,
    forms::{count, filled, flag, number, section, whole},
    section::above_zero,
};

/// US dollars. More is a slip of the pen.
const MAX_COST: f64 = 1e9;

rollout_settings::settings! {
    /// What agents of presets may ask of models, over all trials of the job.
    #[derive(Debug, Clone, PartialEq)]
    pub struct JobGatewayConfig {
        /// The maximum number of model calls.
        pub max_calls: Option<u64> = whole(1..=u64::MAX).optional(),
        /// The maximum number of tokens that models read and write.
        pub max_total_tokens: Option<u64> = whole(1..=u64::MAX).optional(),
        /// The maximum cost in US dollars.
        ///
        /// Each model needs a price: a known price, or `prices` in its settings.
        pub max_cost: Option<f64> = number(above_zero(MAX_COST)).optional(),
        /// Limits per minute on requests to model servers, shared fairly between trials.
        ///
        /// The keys are `requests_per_minute` and `tokens_per_minute`.
        pub rate_limit: RateLimit = section::<RateLimitKeys>().unset("none").unhashed(),
        /// The maximum number of calls at the same time.
        pub max_concurrent_calls: u32 = count(1024).unhashed(),
        /// How often a call is retried after a temporary failure.
        pub max_retries: u32 = whole(0..=MOST_RETRIES).default(5).unhashed(),
        /// Models by the name that an agent requests: each key is a pattern of names, and each value is the model that
        /// answers.
        ///
        /// By default, the agent's own model answers every name. See [other models of an
        /// agent](agents.md#other-models-of-an-agent).
        pub models: IndexMap<String, Option<String>> = models(),
        /// Whether agents may use tools that run at the provider of the model, such as its web search.
        ///
        /// Such tools can reach the internet even if the environment has no network. By default they are removed from
        /// requests, and the record of the call lists them.
        pub provider_tools: bool = flag(false),
        /// A directory for responses. If a later run sends the same request, it gets the stored response.
        pub cache: Option<PathBuf> = filled()
            .kind("path")
            .map(PathBuf::from, |path| path.to_string_lossy().into_owned())
            .optional(),
    }
}

/// Names of models by pattern. Null is the agent's own model.
fn models() -> Form<IndexMap<String, Option<String>>> {
    let schema = || json!({ "type": "object", "additionalProperties": { "type": ["string", "null"] } });
    let read = |section: &Section<'_>, key: &str| {
        let inside = section.mapping(key)?;
        let mut models = IndexMap::new();
        for entry in inside.entries {
            let place = inside.at(&entry.key);
            let model = match &entry.node.value {
                Value::Null => None,
                Value::String(name) if !name.trim().is_empty() => Some(name.clone()),
                _ => {
                    let message = format!("`{place}` is not the name of a model");
                    let hint = "write a name, or `null` for the agent's own model";
                    section.reader.error_with_hint(entry.node.span, Code::InvalidValue, message, hint);
                    continue;
                }
            };
            match Glob::new(&entry.key) {
                Ok(_) => {
                    models.insert(entry.key.clone(), model);
                }
                Err(error) => {
                    let message = format!("`{place}` is not a pattern of names: {}", error.kind());
                    section.reader.error(entry.key_span, Code::InvalidValue, message);
                }
            }
        }
        Some(models)
    };
    Form::new("mapping", schema, read).or_empty().recorded_where_written()
}
