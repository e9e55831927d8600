//! The `model` of an agent, a judge or a user: its server, its sampling, its prices.

use std::time::Duration;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json, json};

use super::preset::DIALECTS;
use rollout_gateway::{Dialect, known_prices};
use rollout_model::{
    Limits, SamplingArgs,
    client::{Price, Prices, RateLimit},
};
use rollout_settings::{
    EnvValue, Form, Node, Section, Settings as _, Value,
    declare::entry,
    diagnostic::{Code, quoted},
    expand::names_a_secret,
    forms::{filled, flag, headers, mapping, number, seconds, section, some_count, whole, word},
    section::above_zero,
};

/// An agent that is a model. On tasks with containers it uses tools; in an interaction it replies.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelAgentConfig {
    /// The model.
    pub model: ModelConfig,
    /// Replaces the default system prompt on tasks with containers.
    pub system_prompt: Option<String>,
    /// Limits of an attempt at a task with a container.
    pub limits: Limits,
}

/// More is a mistake: the waits between them would take years.
pub(super) const MOST_RETRIES: u64 = 100;

/// US dollars. More is a mistake.
const MAX_PRICE: f64 = 1e9;

rollout_settings::settings! {
    /// A model and its server.
    ///
    /// The server's URL and key do not affect results.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ModelConfig {
        /// The name of the model on its server. `${VAR}` is expanded.
        pub name: String = name().required("set the name of the model on its server").or_empty(),
        /// The base URL of the server, or a list of URLs of equivalent servers. `${VAR}` is expanded.
        ///
        /// It usually ends in `/v1`. The servers of a list are used in turn; all rollouts of an example use the same
        /// one.
        pub base_urls as "base_url": Vec<String> = base_urls().required(A_SERVER).or_empty().unhashed(),
        /// The API key. Write it as `${VAR}`.
        pub api_key: Option<EnvValue> = api_key().optional().as_written().unhashed(),
        /// The API of the server: OpenAI's `chat` completions or `responses`, Anthropic's `messages`, or Google's
        /// generateContent (`gemini`).
        ///
        /// A model without a `preset` needs `chat` or `messages`.
        pub dialect: Dialect = word(&DIALECTS).default(Dialect::Chat),
        /// The sampling arguments: `temperature`, `max_tokens`, and any others that the server supports.
        pub sampling: SamplingArgs = mapping().check(|_, section, key| refuse_taken(section, key)),
        /// Fields that are added to the body of each request.
        ///
        /// They override all other fields.
        pub extra_body: Map<String, Json> = mapping().check(|_, section, key| refuse_taken(section, key)),
        /// Headers of each request. `${VAR}` is expanded.
        pub headers: IndexMap<String, EnvValue> = headers().unhashed(),
        /// Requests streamed responses.
        pub stream: bool = flag(false),
        /// Requests the ids and the probabilities of tokens.
        ///
        /// For [training](training.md).
        pub token_ids: bool = flag(false),
        /// Sends earlier messages of the model back as tokens, if the server accepts them.
        ///
        /// So no template or tokenizer changes the sampled tokens, and a rollout is one training sample. Some servers do
        /// not accept tokens in conversations with tools or reasoning. Then a turn may start a new sample. Requires
        /// `token_ids`. See [prompts as tokens](training.md#prompts-as-tokens).
        pub token_prompts: bool = flag(false).recorded_where_written(),
        /// The longest sequence for training, in tokens.
        ///
        /// Token data beyond it is cut.
        pub max_seq_len: Option<usize> = some_count().optional(),
        /// Seconds until a response times out.
        pub timeout as "timeout_sec": Duration = seconds().default(Duration::from_secs(3600)).unhashed(),
        /// Seconds until a connection times out.
        pub connect_timeout as "connect_timeout_sec": Duration = seconds().default(Duration::from_secs(5)).unhashed(),
        /// How often a request is retried after a temporary failure.
        pub max_retries: u32 = whole(0..=MOST_RETRIES).default(10).unhashed(),
        /// Limits on requests to the server.
        ///
        /// `requests_per_minute` and `tokens_per_minute`: the limits of this agent.
        pub rate_limit: RateLimit = section::<RateLimitKeys>().unset("none").unhashed(),
        /// What tokens cost: a mapping of prices, prices by model name, or the path of a file with one of them.
        ///
        /// See [prices](#prices).
        pub price as "prices": Option<Price> = prices().optional().recorded(|price, _| json!(price)),
    }
}

rollout_settings::settings! {
    /// Limits on requests to the server.
    pub(super) struct RateLimitKeys for RateLimit {
        /// Requests per minute.
        requests_per_minute = some_count().optional(),
        /// Tokens per minute, read and written.
        tokens_per_minute = some_count().optional(),
    }
}

rollout_settings::settings! {
    /// What tokens cost, in US dollars per million.
    pub(super) struct PriceKeys for Price {
        /// Tokens that the model reads.
        input = number(0.0..=MAX_PRICE).required(A_PRICE),
        /// Tokens that the model writes.
        output = number(0.0..=MAX_PRICE).required(A_PRICE),
        /// Tokens read from a cache; the price of `input` when absent.
        cached_input = number(0.0..=MAX_PRICE).optional(),
        /// Tokens written to a cache; the price of `input` when absent.
        cache_write = number(0.0..=MAX_PRICE).optional(),
    }
}

rollout_settings::settings! {
    /// Limits that end a rollout.
    pub(super) struct LimitKeys for Limits {
        /// Turns of the model.
        ///
        /// The same as `max_turns` of the interaction.
        max_turns = some_count().optional(),
        /// Tokens that the model writes, over all turns.
        max_completion_tokens = whole(1..=u64::MAX).optional(),
        /// Tokens that the model reads and writes, over all turns.
        max_total_tokens = whole(1..=u64::MAX).optional(),
        /// US dollars, if the cost is known.
        max_cost = number(above_zero(MAX_PRICE)).optional(),
        /// Seconds from the start; this limit also interrupts a turn.
        ///
        /// The start of the container is included. If the time is up before the container has started, the rollout
        /// fails with an `InfraError` and is retried.
        timeout as "timeout_sec" = seconds().optional(),
    }
}

const A_SERVER: &str = "write the base URL of the server, such as `https://api.openai.com/v1`";
const A_PRICE: &str = "prices are in US dollars per million tokens";

/// What to do about a limit in dollars without a price.
pub(super) const SET_A_PRICE: &str = "set `prices: {input: …, output: …}` of the model, in US dollars per million tokens, \
                                      or limit `max_total_tokens` instead";

/// The problem of a limit in dollars for a model without a price.
pub(super) fn unpriced(setting: &str, model: &str) -> String {
    format!("`{setting}` needs a price for the model {}, which has none", quoted(model))
}

impl ModelConfig {
    /// Whether the gateway knows what the model costs.
    pub(super) fn is_priced(&self) -> bool {
        self.price.is_some() || known_prices().get(&self.name).is_some()
    }
}

/// Fields that every request has, and how to set them.
const TAKEN: [(&str, &str); 5] = [
    ("model", "set the model with `name:`"),
    ("messages", "messages come from the examples"),
    ("tools", "list tools under `tools:` of the interaction"),
    ("stream", "write `stream:` next to `sampling:`"),
    ("n", "for more than one response, set `n_attempts:` in the job"),
];

fn refuse_taken(section: &Section<'_>, key: &str) {
    let body = section.inside(key);
    for entry in body.entries {
        if let Some((_, hint)) = TAKEN.iter().find(|(taken, _)| *taken == entry.key) {
            let message = format!("`{}` must not be set here", body.at(&entry.key));
            section.reader.error_with_hint(entry.key_span, Code::Conflict, message, *hint);
        }
    }
}

/// The expanded value is recorded, because results contain it.
fn name() -> Form<String> {
    filled().read_by(|section, key| {
        let written = section.filled_string(key)?;
        let expanded = section.try_expand(written, section.node(key)?)?;
        if expanded.names().any(names_a_secret) {
            section.reader.hide(expanded.secrets());
        }
        if expanded.text.trim().is_empty() {
            let hint = "set the variable to the name of the model on its server";
            section.invalid_with_hint(key, format!("`{}` expands to an empty text", section.at(key)), hint);
            return None;
        }
        Some(expanded.text)
    })
}

fn base_urls() -> Form<Vec<String>> {
    let schema = || {
        json!({ "anyOf": [
            { "type": "string" },
            { "type": "array", "minItems": 1, "items": { "type": "string" } },
        ] })
    };
    Form::written("URL, or list of URLs", schema, |section, key| {
        let node = section.node(key)?;
        let nodes = match &node.value {
            Value::List(nodes) => nodes.as_slice(),
            _ => std::slice::from_ref(node),
        };
        if nodes.is_empty() {
            section.invalid_with_hint(key, format!("`{}` is empty", section.at(key)), A_SERVER);
        }
        let hint = "such as `http://127.0.0.1:8000/v1`";
        Some(nodes.iter().filter_map(|node| section.url(key, node, hint)).collect())
    })
}

fn api_key() -> Form<EnvValue> {
    Form::written(
        "string",
        || json!({ "type": "string" }),
        |section, key| {
            let expanded = section.expand(section.string(key)?, section.node(key)?);
            if expanded.text.contains(|char: char| char.is_control()) {
                section.invalid(key, format!("`{}` contains a control character", section.at(key)));
            }
            section.reader.hide(expanded.secrets());
            // An empty key counts as absent.
            Some(EnvValue { value: expanded.text, secret: true }).filter(|key| !key.value.is_empty())
        },
    )
}

/// The price of a model: its own, or that of its entry in a list.
fn prices() -> Form<Price> {
    let schema = || {
        let own = entry::<PriceKeys>();
        let list = json!({ "type": "object", "additionalProperties": own.clone() });
        json!({ "anyOf": [{ "type": "string" }, own, list] })
    };
    Form::written("mapping, or path", schema, |section, key| {
        let node = section.node(key)?;
        let path = section.at(key);
        let Value::Map(entries) = &node.value else {
            // A file that could not be read was reported.
            if !matches!(node.value, Value::String(_)) {
                let expected = "a price, a list of prices by model, or the path of a file";
                section.reader.wrong_type(node, &path, expected);
            }
            return None;
        };
        let one = |node, path: &str| PriceKeys::read(&section.reader.section::<PriceKeys>(node, path)?);
        if !entries.iter().any(|entry| matches!(entry.node.value, Value::Map(_))) {
            return one(node, &path);
        }
        let mut rows = Vec::new();
        for entry in entries {
            rows.push((entry.key.clone(), one(&entry.node, &format!("{path}.{}", entry.key))?));
        }
        let prices = Prices::new(rows).map_err(|error| {
            section.reader.error(node.span, Code::InvalidValue, format!("`{path}`: {error}"));
        });
        let model = match section.node("name") {
            // A name that cannot be expanded was reported.
            Some(Node { value: Value::String(name), .. }) => section.peek_expanded(name)?,
            _ => String::new(),
        };
        let price = prices.ok()?.get(&model).copied();
        if price.is_none() {
            let listed: Vec<_> = entries.iter().map(|entry| quoted(&entry.key)).collect();
            let message = format!("no price for {}", quoted(&model));
            let hint = format!("known prices: {}", listed.join(", "));
            section.reader.error_with_hint(node.span, Code::Missing, message, hint);
        }
        price
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    #[test]
    fn an_agent_id_ignores_the_same_settings_as_a_config_hash() {
        let all: Json = ModelConfig::keys().iter().map(|key| (key.name.to_owned(), json!(1))).collect();
        let (mut hashed, mut identity) = (all.clone(), all);
        rollout_settings::record::leave_out_unhashed::<ModelConfig>(&mut hashed);
        rollout_record::identity::strip_model(&mut identity);
        assert_eq!(hashed, identity);
    }
}
