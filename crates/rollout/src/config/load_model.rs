//! Reads what a job says about a model.

use std::{num::NonZeroU32, time::Duration};

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use super::{
    AgentKind, EnvValue, ModelAgentConfig, ModelConfig,
    diagnostic::{Code, quoted},
    expand::{has_password, names_a_secret},
    load_job::Loader,
    reader::{MAX_TIMEOUT_SEC, Section, above_zero},
    tree::{Node, Value},
};
use rollout_model::{
    Limits,
    client::{Dialect, Price, Prices, RateLimit},
};

pub(super) const KEYS: [&str; 15] = [
    "name",
    "base_url",
    "api_key",
    "dialect",
    "sampling",
    "extra_body",
    "headers",
    "stream",
    "token_ids",
    "max_seq_len",
    "timeout_sec",
    "connect_timeout_sec",
    "max_retries",
    "rate_limit",
    "prices",
];
pub(super) const RATE_LIMIT_KEYS: [&str; 2] = ["requests_per_minute", "tokens_per_minute"];
pub(super) const PRICE_KEYS: [&str; 4] = ["input", "output", "cached_input", "cache_write"];
pub(super) const LIMIT_KEYS: [&str; 5] =
    ["max_turns", "max_completion_tokens", "max_total_tokens", "max_cost", "timeout_sec"];
pub(super) const DIALECTS: [(&str, Dialect); 2] = [("chat", Dialect::Chat), ("messages", Dialect::Messages)];

pub(super) const TIMEOUT_SEC: f64 = 3600.0;
pub(super) const CONNECT_TIMEOUT_SEC: f64 = 5.0;
pub(super) const MAX_RETRIES: u32 = 10;

/// More is a slip of the pen: the waits between them would take years.
pub(super) const MOST_RETRIES: u64 = 100;

/// What a request holds anyway, and where it comes from.
const TAKEN: [(&str, &str); 5] = [
    ("model", "the model is named by `name:`"),
    ("messages", "the messages come from the examples"),
    ("tools", "tools are given under `tools:` of the interaction"),
    ("stream", "write `stream:` beside `sampling:`"),
    ("n", "for more than one response write `n_attempts:` in the job"),
];

impl Loader<'_> {
    pub(super) fn model_agent(&self, section: &Section<'_>) -> Option<AgentKind> {
        for key in ["install", "install_file", "execute", "execute_file"] {
            self.exclude(section, "model", key);
        }
        let system_prompt = section.string("system_prompt").map(str::to_owned);
        let limits = self.limits(section);
        let model = self.model(&section.section("model", &KEYS)?)?;
        Some(AgentKind::Model(Box::new(ModelAgentConfig { model, system_prompt, limits })))
    }

    pub(super) fn model(&self, section: &Section<'_>) -> Option<ModelConfig> {
        let name = section.filled_string("name");
        if section.entry("name").is_none() {
            section.missing("name", "write the name that the server knows the model by");
        }
        let seconds = |key: &str, default: f64| {
            Duration::from_secs_f64(section.number(key, above_zero(MAX_TIMEOUT_SEC)).unwrap_or(default))
        };
        let base_urls = self.base_urls(section);
        let retries = section.integer("max_retries", 0..=MOST_RETRIES);
        let max_seq_len = section.integer("max_seq_len", 1..=u32::MAX.into());
        let config = ModelConfig {
            name: name.unwrap_or_default().to_owned(),
            api_key: self.api_key(section),
            dialect: section.word("dialect", &DIALECTS).unwrap_or_default(),
            sampling: self.body(section, "sampling"),
            extra_body: self.body(section, "extra_body"),
            headers: self.headers(section),
            stream: section.bool("stream").unwrap_or_default(),
            token_ids: section.bool("token_ids").unwrap_or_default(),
            max_seq_len: max_seq_len.and_then(|length| usize::try_from(length).ok()),
            timeout: seconds("timeout_sec", TIMEOUT_SEC),
            connect_timeout: seconds("connect_timeout_sec", CONNECT_TIMEOUT_SEC),
            max_retries: retries.and_then(|number| u32::try_from(number).ok()).unwrap_or(MAX_RETRIES),
            rate_limit: self.rate_limit(section),
            price: self.price(section, name.unwrap_or_default()),
            base_urls: base_urls?,
        };
        name.map(|_| config)
    }

    fn base_urls(&self, section: &Section<'_>) -> Option<Vec<String>> {
        let hint = "write where the server answers, such as `https://api.openai.com/v1`";
        let Some(node) = section.node("base_url") else {
            section.missing("base_url", hint);
            return None;
        };
        let nodes = match &node.value {
            Value::List(nodes) => nodes.as_slice(),
            _ => std::slice::from_ref(node),
        };
        if nodes.is_empty() {
            section.invalid_with_hint("base_url", format!("`{}` is empty", section.at("base_url")), hint);
        }
        let urls: Vec<_> = nodes.iter().map(|node| self.url(section, "base_url", node)).collect();
        urls.into_iter().collect::<Option<Vec<_>>>().filter(|urls| !urls.is_empty())
    }

    /// An `http` or `https` URL, expanded.
    pub(super) fn url(&self, section: &Section<'_>, key: &str, node: &Node) -> Option<String> {
        let Value::String(written) = &node.value else {
            self.reader.wrong_type(node, &section.at(key), "a URL");
            return None;
        };
        let expanded = self.expand(written, node);
        if expanded.names().any(names_a_secret) || has_password(&expanded.text) {
            self.secrets.borrow_mut().extend(expanded.secrets());
        }
        let url = expanded.text;
        if url.is_empty() && !written.is_empty() && expanded.variables.is_empty() {
            // A variable is missing, which has been noted.
            return None;
        }
        let rest = url.strip_prefix("https://").or(url.strip_prefix("http://"));
        let has_host = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
        if !has_host || url.contains(|char: char| char.is_whitespace() || char.is_control()) {
            // What was expanded may be secret, so only what was written is shown.
            let message = format!("`{}` must be an `http` or `https` URL", section.at(key));
            let hint = "such as `http://127.0.0.1:8000/v1`";
            self.reader.error_with_hint(node.span, Code::InvalidValue, message, hint);
            return None;
        }
        Some(url)
    }

    fn api_key(&self, section: &Section<'_>) -> Option<EnvValue> {
        let expanded = self.expand(section.string("api_key")?, section.node("api_key")?);
        if expanded.text.contains(|char: char| char.is_control()) {
            section.invalid("api_key", format!("`{}` holds a control character", section.at("api_key")));
        }
        self.secrets.borrow_mut().extend(expanded.secrets());
        // A key that a variable leaves empty is none.
        Some(EnvValue { value: expanded.text, secret: true }).filter(|key| !key.value.is_empty())
    }

    /// The `headers` of a section, expanded.
    pub(super) fn headers(&self, section: &Section<'_>) -> IndexMap<String, EnvValue> {
        let mut headers = IndexMap::new();
        let Some(written) = section.mapping("headers") else { return headers };
        for entry in written.entries {
            let path = written.at(&entry.key);
            let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if entry.key.is_empty() || !entry.key.bytes().all(token) {
                let message = format!("{} cannot be the name of a header", quoted(&entry.key));
                self.reader.error(entry.key_span, Code::InvalidValue, message);
                continue;
            }
            let Value::String(text) = &entry.node.value else {
                self.reader.wrong_type(&entry.node, &path, "a string");
                continue;
            };
            let expanded = self.expand(text, &entry.node);
            if expanded.text.contains(char::is_control) {
                let message = format!("{} holds a control character", quoted(&path));
                self.reader.error(entry.node.span, Code::InvalidValue, message);
            }
            let secret = is_secret_header(&entry.key) || expanded.is_secret(&entry.key);
            if secret {
                self.secrets.borrow_mut().extend(expanded.secrets());
            }
            headers.insert(entry.key.clone(), EnvValue { value: expanded.text, secret });
        }
        headers
    }

    /// A mapping that goes into the body of requests.
    fn body(&self, section: &Section<'_>, key: &str) -> Map<String, Json> {
        let Some(body) = section.mapping(key) else { return Map::new() };
        for entry in body.entries {
            if let Some((_, hint)) = TAKEN.iter().find(|(taken, _)| *taken == entry.key) {
                let message = format!("`{}` cannot be set here", body.at(&entry.key));
                self.reader.error_with_hint(entry.key_span, Code::Conflict, message, *hint);
            }
        }
        self.json_map(&body)
    }

    /// A mapping as JSON, as it is written.
    pub(super) fn json_map(&self, section: &Section<'_>) -> Map<String, Json> {
        let entries = section.entries.iter();
        entries.map(|entry| (entry.key.clone(), self.json(&entry.node, &section.at(&entry.key)))).collect()
    }

    /// A value as JSON, as it is written.
    pub(super) fn json(&self, node: &Node, path: &str) -> Json {
        if !is_finite(node) {
            let message = format!("`{path}` has a number in it that JSON does not have");
            self.reader.error(node.span, Code::InvalidValue, message);
        }
        node.to_json("", &mut |_, text, _| Json::String(text.to_owned()))
    }

    fn rate_limit(&self, section: &Section<'_>) -> RateLimit {
        let Some(section) = section.section("rate_limit", &RATE_LIMIT_KEYS) else {
            return RateLimit::default();
        };
        let number = |key: &str| {
            let number = section.integer(key, 1..=u32::MAX.into());
            number.and_then(|number| u32::try_from(number).ok()).and_then(NonZeroU32::new)
        };
        RateLimit {
            requests_per_minute: number("requests_per_minute"),
            tokens_per_minute: number("tokens_per_minute"),
        }
    }

    /// The price of a model: its own, or that of its row in a list.
    fn price(&self, section: &Section<'_>, model: &str) -> Option<Price> {
        let node = section.node("prices")?;
        let path = section.at("prices");
        // A file that could not be read has been noted.
        let Value::Map(entries) = &node.value else {
            if !matches!(node.value, Value::String(_)) {
                self.reader.wrong_type(
                    node,
                    &path,
                    "a price, a list of prices by model, or the path of a file",
                );
            }
            return None;
        };
        let is_list = entries.iter().any(|entry| matches!(entry.node.value, Value::Map(_)));
        if !is_list {
            return self.one_price(node, &path);
        }
        let mut rows = Vec::new();
        for entry in entries {
            let row = self.one_price(&entry.node, &format!("{path}.{}", entry.key))?;
            rows.push((entry.key.clone(), row));
        }
        let prices = match Prices::new(rows) {
            Ok(prices) => prices,
            Err(error) => {
                self.reader.error(node.span, Code::InvalidValue, format!("`{path}`: {error}"));
                return None;
            }
        };
        let price = prices.get(model).copied();
        if price.is_none() {
            let listed: Vec<_> = entries.iter().map(|entry| quoted(&entry.key)).collect();
            let message = format!("there is no price for {}", quoted(model));
            let hint = format!("there are prices for {}", listed.join(", "));
            self.reader.error_with_hint(node.span, Code::Missing, message, hint);
        }
        price
    }

    fn one_price(&self, node: &Node, path: &str) -> Option<Price> {
        let prices = self.reader.section(node, path, &PRICE_KEYS)?;
        for key in ["input", "output"] {
            if prices.entry(key).is_none() {
                prices.missing(key, "prices are in US dollars for a million tokens");
            }
        }
        let price = |key: &str| prices.number(key, 0.0..=MAX_PRICE);
        let (input, output) = (price("input"), price("output"));
        let (cached_input, cache_write) = (price("cached_input"), price("cache_write"));
        Some(Price { input: input?, output: output?, cached_input, cache_write })
    }

    /// The `limits` of a section.
    pub(super) fn limits(&self, section: &Section<'_>) -> Limits {
        let Some(limits) = section.section("limits", &LIMIT_KEYS) else { return Limits::default() };
        let seconds = limits.number("timeout_sec", above_zero(MAX_TIMEOUT_SEC));
        Limits {
            max_turns: self.max_turns(&limits),
            max_completion_tokens: limits.integer("max_completion_tokens", 1..=u64::MAX),
            max_total_tokens: limits.integer("max_total_tokens", 1..=u64::MAX),
            max_cost: limits.number("max_cost", above_zero(MAX_PRICE)),
            timeout: seconds.map(Duration::from_secs_f64),
        }
    }

    pub(super) fn max_turns(&self, section: &Section<'_>) -> Option<u32> {
        section.integer("max_turns", 1..=u32::MAX.into()).and_then(|turns| u32::try_from(turns).ok())
    }
}

/// US dollars. More is a slip of the pen.
pub(super) const MAX_PRICE: f64 = 1e9;

/// Whether the value of a header must not appear in any output, whatever it looks like.
pub(super) fn is_secret_header(name: &str) -> bool {
    ["authorization", "proxy-authorization", "cookie"].iter().any(|secret| name.eq_ignore_ascii_case(secret))
        || names_a_secret(name)
}

fn is_finite(node: &Node) -> bool {
    match &node.value {
        Value::Float(value) => value.is_finite(),
        Value::List(items) => items.iter().all(is_finite),
        Value::Map(entries) => entries.iter().all(|entry| is_finite(&entry.node)),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::String(_) => true,
    }
}
