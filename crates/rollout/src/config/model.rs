//! The `model` of an agent, a judge or a user: how it is reached, how it is sampled, what it costs.

use std::time::Duration;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json, json};

use rollout_model::{
    Limits, SamplingArgs,
    client::{Dialect, Price, Prices, RateLimit},
};
use rollout_settings::{
    EnvValue, Form, Node, Section, Settings as _, Value,
    declare::entry,
    diagnostic::{Code, quoted},
    expand::names_a_secret,
    forms::{filled, flag, headers, mapping, number, seconds, section, some_count, whole, word},
    section::above_zero,
};

/// An agent that is a model. On tasks with containers it works through tools; of an interaction it is the other side.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelAgentConfig {
    /// The model.
    pub model: ModelConfig,
    /// Takes the place of the instructions that the model gets on tasks with containers.
    pub system_prompt: Option<String>,
    /// When an attempt at a task with a container has to end.
    pub limits: Limits,
}

/// More is a slip of the pen: the waits between them would take years.
pub(super) const MOST_RETRIES: u64 = 100;

/// US dollars. More is a slip of the pen.
const MAX_PRICE: f64 = 1e9;

rollout_settings::settings! {
    /// A model and how it is reached.
    ///
    /// A server that has moved, or a key that was renewed, gives no other results.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ModelConfig {
        /// The server's name for it. `${VAR}` is expanded.
        pub name: String = name().required("write the name that the server knows the model by").or_empty(),
        /// Where the server answers, or a list of servers that are all the same. `${VAR}` is expanded.
        ///
        /// Usually with `/v1` at the end. The servers of a list are taken in turn, one for all rollouts of an example.
        pub base_urls as "base_url": Vec<String> = base_urls().required(A_SERVER).or_empty().unhashed(),
        /// What the server knows its clients by. Write it as `${VAR}`.
        pub api_key: Option<EnvValue> = api_key().optional().as_written().unhashed(),
        /// What the server understands: OpenAI's chat completions or Anthropic's messages.
        pub dialect: Dialect = word(&DIALECTS).default(Dialect::Chat),
        /// How the model is sampled: `temperature`, `max_tokens`, and whatever else the server takes.
        pub sampling: SamplingArgs = mapping().check(|_, section, key| refuse_taken(section, key)),
        /// Goes into the body of each request as it is.
        ///
        /// It wins over all else there.
        pub extra_body: Map<String, Json> = mapping().check(|_, section, key| refuse_taken(section, key)),
        /// Headers of each request. `${VAR}` is expanded.
        pub headers: IndexMap<String, EnvValue> = headers().unhashed(),
        /// Asks for responses piece by piece.
        pub stream: bool = flag(false),
        /// Asks the server for the ids and the probabilities of tokens.
        ///
        /// For [training](training.md).
        pub token_ids: bool = flag(false),
        /// Sends what the model said back as its tokens, where the server takes them.
        ///
        /// So no template or tokeniser changes what was sampled, and a rollout is one training sample. Needs `token_ids`.
        /// See [prompts as tokens](training.md#prompts-as-tokens).
        pub token_prompts: bool = flag(false).recorded_where_written(),
        /// The longest sequence that training takes, in tokens.
        ///
        /// Token data beyond it is cut.
        pub max_seq_len: Option<usize> = some_count().optional(),
        /// Seconds that a response may take.
        pub timeout as "timeout_sec": Duration = seconds().default(Duration::from_secs(3600)).unhashed(),
        /// Seconds that a connection may take.
        pub connect_timeout as "connect_timeout_sec": Duration = seconds().default(Duration::from_secs(5)).unhashed(),
        /// How often a request is repeated that failed for the moment.
        pub max_retries: u32 = whole(0..=MOST_RETRIES).default(10).unhashed(),
        /// How much the server takes in a minute.
        ///
        /// `requests_per_minute` and `tokens_per_minute`: how much is asked of the server by this agent.
        pub rate_limit: RateLimit = section::<RateLimitKeys>().unset("none").unhashed(),
        /// What tokens cost: prices, prices by the name of the model, or the path of a file with either.
        ///
        /// See [prices](#prices).
        pub price as "prices": Option<Price> = prices().optional().recorded(|price, _| json!(price)),
    }
}

const DIALECTS: [(&str, Dialect); 2] = [("chat", Dialect::Chat), ("messages", Dialect::Messages)];

rollout_settings::settings! {
    /// How much the server takes in a minute.
    pub(super) struct RateLimitKeys for RateLimit {
        /// Requests.
        requests_per_minute = some_count().optional(),
        /// Tokens, read and written.
        tokens_per_minute = some_count().optional(),
    }
}

rollout_settings::settings! {
    /// What tokens cost, in US dollars for a million.
    pub(super) struct PriceKeys for Price {
        /// Tokens that the model reads.
        input = number(0.0..=MAX_PRICE).required(A_PRICE),
        /// Tokens that the model writes.
        output = number(0.0..=MAX_PRICE).required(A_PRICE),
        /// Tokens that come from a cache; as `input` when absent.
        cached_input = number(0.0..=MAX_PRICE).optional(),
        /// Tokens that go into a cache; as `input` when absent.
        cache_write = number(0.0..=MAX_PRICE).optional(),
    }
}

rollout_settings::settings! {
    /// When a rollout has to end.
    pub(super) struct LimitKeys for Limits {
        /// Turns of the model.
        ///
        /// The same as `max_turns` of the interaction.
        max_turns = some_count().optional(),
        /// Tokens that the model writes, over all turns.
        max_completion_tokens = whole(1..=u64::MAX).optional(),
        /// Tokens that the model reads and writes, over all turns.
        max_total_tokens = whole(1..=u64::MAX).optional(),
        /// US dollars, where the cost is known.
        max_cost = number(above_zero(MAX_PRICE)).optional(),
        /// Seconds from the start; this one also ends a turn under way.
        ///
        /// The start of the container is included. If the container was not there yet, the rollout is an `InfraError`, and
        /// tried again.
        timeout as "timeout_sec" = seconds().optional(),
    }
}

const A_SERVER: &str = "write where the server answers, such as `https://api.openai.com/v1`";
const A_PRICE: &str = "prices are in US dollars for a million tokens";

/// What a request holds anyway, and where it comes from.
const TAKEN: [(&str, &str); 5] = [
    ("model", "the model is named by `name:`"),
    ("messages", "the messages come from the examples"),
    ("tools", "tools are given under `tools:` of the interaction"),
    ("stream", "write `stream:` beside `sampling:`"),
    ("n", "for more than one response write `n_attempts:` in the job"),
];

fn refuse_taken(section: &Section<'_>, key: &str) {
    let body = section.inside(key);
    for entry in body.entries {
        if let Some((_, hint)) = TAKEN.iter().find(|(taken, _)| *taken == entry.key) {
            let message = format!("`{}` cannot be set here", body.at(&entry.key));
            section.reader.error_with_hint(entry.key_span, Code::Conflict, message, *hint);
        }
    }
}

/// Recorded as what it is expanded to, because results are known by it.
fn name() -> Form<String> {
    filled().read_by(|section, key| {
        let written = section.filled_string(key)?;
        let expanded = section.try_expand(written, section.node(key)?)?;
        if expanded.names().any(names_a_secret) {
            section.reader.hide(expanded.secrets());
        }
        if expanded.text.trim().is_empty() {
            let hint = "set the variable to the name that the server knows the model by";
            section.invalid_with_hint(key, format!("`{}` expands to nothing", section.at(key)), hint);
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
                section.invalid(key, format!("`{}` holds a control character", section.at(key)));
            }
            section.reader.hide(expanded.secrets());
            // A key that a variable leaves empty is none.
            Some(EnvValue { value: expanded.text, secret: true }).filter(|key| !key.value.is_empty())
        },
    )
}

/// The price of a model: its own, or that of its row in a list.
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
            // A file that could not be read has been noted.
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
            // One that cannot be expanded has been noted.
            Some(Node { value: Value::String(name), .. }) => section.peek_expanded(name)?,
            _ => String::new(),
        };
        let price = prices.ok()?.get(&model).copied();
        if price.is_none() {
            let listed: Vec<_> = entries.iter().map(|entry| quoted(&entry.key)).collect();
            let message = format!("there is no price for {}", quoted(&model));
            let hint = format!("there are prices for {}", listed.join(", "));
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
    fn an_agent_id_leaves_out_the_settings_that_a_config_hash_leaves_out() {
        let all: Json = ModelConfig::keys().iter().map(|key| (key.name.to_owned(), json!(1))).collect();
        let (mut hashed, mut identity) = (all.clone(), all);
        rollout_settings::record::leave_out_unhashed::<ModelConfig>(&mut hashed);
        rollout_record::identity::strip_model(&mut identity);
        assert_eq!(hashed, identity);
    }
}
