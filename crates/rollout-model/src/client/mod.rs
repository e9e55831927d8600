//! The client of a model server.
//!
//! It supports two APIs, whole or streamed, and returns one form of [`Response`]. It retries temporary failures,
//! respects rate limits, and computes the cost of a response.
//!
//! ```
//! use std::sync::Arc;
//!
//! use rollout::model::{
//!     Message, Model, SamplingArgs,
//!     client::{Client, ClientConfig},
//! };
//!
//! # use rollout_testkit::{ModelServer, ModelReply};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = ModelServer::always(ModelReply::text("4"));
//! # let base_url = server.url();
//! let client = Client::new(ClientConfig {
//!     api_key: Some("sk-secret".into()),
//!     ..ClientConfig::new(base_url)
//! })?;
//! let model = Model {
//!     client: client.clone(),
//!     name: "gpt-4.1-mini".to_owned(),
//!     sampling: SamplingArgs::from_iter([("temperature".to_owned(), 0.7.into())]),
//!     max_seq_len: None,
//! };
//! let question = [Arc::new(Message::user("What is 2+2?"))];
//! let response = client.respond(&model, &question, &[], "session-1").await?;
//! assert_eq!(response.message.text(), "4");
//! # Ok(())
//! # }
//! ```

mod base85;
mod chat;
mod config;
mod endpoint;
mod exchange;
mod failure;
mod lenient;
mod limits;
mod messages;
mod model;
mod prices;
mod sse;
mod token_prompt;
mod tokens;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use reqwest::{
    header::{HeaderMap, HeaderName, HeaderValue},
    redirect, retry,
};
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value};

pub use self::endpoint::shown as shown_url;
pub use self::{
    config::{ClientConfig, ClientDialect, ClientError, RateLimit},
    failure::{is_overlong, rejects_key, retry_after},
    limits::Limiter,
    model::{Model, SamplingArgs},
    prices::{Price, Prices, PricesError},
    sse::{SseDecoder, SseEvent},
    token_prompt::TokenHistory,
};
use self::{
    endpoint::{Endpoint, Sessions},
    failure::{Asked, Failure},
    token_prompt::{TokenEndpoint, TokenEndpoints, completions_body},
};
use super::Error;
use rollout_core::redact::Redactor;
use rollout_core::{
    message::{Message, ToolDef},
    response::Response,
};

/// Sends requests to a model server. Cheap to clone; all clones share connections and rate limits.
#[derive(Clone)]
pub struct Client(Arc<Inner>, Option<usize>);

struct Inner {
    http: reqwest::Client,
    dialect: ClientDialect,
    endpoints: Vec<Endpoint>,
    sessions: Sessions,
    headers: HeaderMap,
    has_key: bool,
    secrets: Redactor,
    extra_body: Map<String, Value>,
    stream: bool,
    token_ids: bool,
    /// The endpoints that accept prompts of tokens, if any.
    token_prompts: TokenEndpoints,
    /// Whether the server returned token ids at least once.
    returns_token_ids: AtomicBool,
    max_retries: u32,
    limiter: Option<Limiter>,
    prices: Prices,
    uses_max_tokens: AtomicBool,
    uses_reasoning: AtomicBool,
}

/// What differs between servers of one API, learned from their answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Habits {
    /// The token limit has its old name.
    uses_max_tokens: bool,
    /// Reasoning is in the field `reasoning`.
    uses_reasoning: bool,
}

impl Habits {
    fn token_limit(self) -> &'static str {
        if self.uses_max_tokens { "max_tokens" } else { "max_completion_tokens" }
    }

    fn reasoning(self) -> &'static str {
        if self.uses_reasoning { "reasoning" } else { "reasoning_content" }
    }
}

impl Client {
    /// The base URL of the first replica, without credentials.
    pub fn base_url(&self) -> &str {
        let shown = self.0.endpoints.first().map_or("", |endpoint| endpoint.shown.as_str());
        shown.trim_end_matches("/chat/completions").trim_end_matches("/messages")
    }

    /// A clone that uses one replica only, for conversations with the same start: the server caches what it has read.
    /// Each clone gets the next replica. None if there is only one replica.
    pub fn on_one_replica(&self) -> Option<Self> {
        let replicas = self.0.endpoints.len();
        (replicas > 1).then(|| Self(Arc::clone(&self.0), Some(self.0.sessions.next(replicas))))
    }

    /// Creates a client. Sends nothing.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let endpoints = config
            .base_urls
            .iter()
            .map(|base| Endpoint::new(base, config.dialect))
            .collect::<Result<Vec<_>, _>>()?;
        if endpoints.is_empty() {
            return Err(ClientError::NoUrl);
        }
        let mut http = reqwest::Client::builder()
            .timeout(config.timeout)
            .connect_timeout(config.connect_timeout)
            // A redirect would send keys to a host that is not in the configuration.
            .redirect(redirect::Policy::none());
        if endpoints.iter().all(|endpoint| endpoint.url.scheme() == "http") {
            // Only HTTP/2 servers refuse requests in a way that reqwest retries, and it copies each request for that.
            http = http.retry(retry::never().max_retries_per_request(0));
        }
        let http = http.build().map_err(ClientError::Setup)?;
        let passwords = endpoints.iter().filter_map(|endpoint| endpoint.url.password());
        let values = config.headers.values().chain(&config.api_key).map(|secret| secret.expose_secret());
        let secrets = Redactor::new(values.chain(passwords));
        Ok(Self(
            Arc::new(Inner {
                http,
                dialect: config.dialect,
                headers: headers(&config)?,
                has_key: config.api_key.is_some(),
                secrets,
                endpoints,
                sessions: Sessions::default(),
                extra_body: config.extra_body,
                stream: config.stream,
                token_ids: config.token_ids,
                token_prompts: TokenEndpoints::new(
                    config.token_prompts && config.token_ids && config.dialect == ClientDialect::Chat,
                ),
                returns_token_ids: AtomicBool::new(false),
                max_retries: config.max_retries,
                limiter: Limiter::new(config.rate_limit),
                prices: config.prices,
                uses_max_tokens: AtomicBool::new(false),
                uses_reasoning: AtomicBool::new(false),
            }),
            None,
        ))
    }

    /// Requests the next message of a conversation from a model. `session` identifies the conversation, which stays at
    /// one replica.
    ///
    /// Temporary failures are retried, after growing pauses or those that the server asks for. The error is of the kind
    /// [`Unauthorized`](super::ErrorKind::Unauthorized) if the server rejects the key, of the kind
    /// [`Unsupported`](super::ErrorKind::Unsupported) if it returns no token ids though `token_ids` is set, and of the
    /// kind [`OverlongPrompt`](super::ErrorKind::OverlongPrompt) if the conversation is too long.
    pub async fn respond(
        &self,
        model: &Model,
        messages: &[Arc<Message>],
        tools: &[ToolDef],
        session: &str,
    ) -> Result<Response, Error> {
        self.respond_after(model, messages, tools, session, None).await
    }

    /// The same for a conversation whose first messages are known as tokens. They are sent as tokens if the client is
    /// configured for it and the server accepts them, and as messages otherwise.
    pub(crate) async fn respond_after(
        &self,
        model: &Model,
        messages: &[Arc<Message>],
        tools: &[ToolDef],
        session: &str,
        history: Option<TokenHistory<'_>>,
    ) -> Result<Response, Error> {
        let inner = &*self.0;
        let replicas = inner.endpoints.len();
        let replica = self.1.unwrap_or_else(|| inner.sessions.replica(session, replicas));
        let endpoint = &inner.endpoints[replica];
        let mut habits = inner.habits();
        let mut is_renamed = false;
        let mut token_endpoint = inner.token_prompts.next(messages, tools);
        let tokens = match history.filter(|_| token_endpoint.is_some()) {
            Some(history) => inner.token_prompt(endpoint, model, messages, tools, history).await,
            None => None,
        };
        token_endpoint = token_endpoint.filter(|_| tokens.is_some());
        let prompt = tokens.as_deref();
        let mut body = inner.encode(model, messages, tools, habits, prompt, token_endpoint)?;
        let limit = token_limit(model);
        let mut tries = 0;
        let mut response = loop {
            let asked = Asked {
                url: &endpoint.shown,
                model: &model.name,
                has_key: inner.has_key,
                token_limit: limit
                    .filter(|_| inner.dialect == ClientDialect::Chat)
                    .map(|_| habits.token_limit()),
                secrets: &inner.secrets,
            };
            // Four bytes per token, and the most that the model may write.
            let estimate = body.len() as u64 / 4 + limit.unwrap_or(0);
            if let Some(limiter) = &inner.limiter {
                limiter.acquire(estimate).await;
            }
            let exchange = inner.exchange(endpoint, body.clone(), token_endpoint, session, asked);
            let failure = match exchange.await {
                Ok(response) => {
                    if let (Some(limiter), Some(usage)) = (&inner.limiter, &response.usage) {
                        limiter.settle(estimate, usage.total_tokens());
                    }
                    break response;
                }
                Err(failure) => failure,
            };
            if let Some(limiter) = &inner.limiter {
                limiter.settle(estimate, 0);
            }
            match failure {
                Failure::Passing { cause, after } => {
                    tries += 1;
                    if tries > inner.max_retries {
                        return Err(asked.exhausted(tries, cause));
                    }
                    tracing::debug!(
                        url = asked.url,
                        tries,
                        cause = cause.message,
                        "retrying the model request"
                    );
                    tokio::time::sleep(pause(tries, after, fastrand::f64())).await;
                }
                Failure::TokenLimit(_) if !is_renamed => {
                    is_renamed = true;
                    habits.uses_max_tokens = !habits.uses_max_tokens;
                    body = inner.encode(model, messages, tools, habits, prompt, token_endpoint)?;
                }
                Failure::NoTokenPrompts(unknown) => {
                    tracing::warn!(url = asked.url, ?unknown, "the server has no such token endpoint");
                    inner.token_prompts.lacks(unknown);
                    token_endpoint = inner.token_prompts.next(messages, tools);
                    body = inner.encode(model, messages, tools, habits, prompt, token_endpoint)?;
                }
                Failure::TokenLimit(error) | Failure::Final(error) => return Err(error),
            }
        };
        if is_renamed {
            inner.uses_max_tokens.store(habits.uses_max_tokens, Relaxed);
        }
        if let Some(usage) = &mut response.usage
            && usage.cost.is_none()
        {
            let price = inner.prices.get(&model.name).or_else(|| inner.prices.get(&response.model));
            usage.cost = price.map(|price| price.cost(usage));
        }
        inner.check_tokens(endpoint, model, &response)?;
        Ok(response)
    }
}

impl Inner {
    /// Fails on the first response without token ids if they are configured. A server that returned them once may leave
    /// them out of a single response.
    fn check_tokens(&self, endpoint: &Endpoint, model: &Model, response: &Response) -> Result<(), Error> {
        if !self.token_ids || self.returns_token_ids.load(Relaxed) {
            return Ok(());
        }
        if response.tokens.is_some() {
            self.returns_token_ids.store(true, Relaxed);
            return Ok(());
        }
        let message = format!(
            "model `{}` at {} returned no token ids, which `token_ids: true` requires; serve the model with a server \
             that returns token ids and log-probabilities (vLLM 0.10.2 or newer), or remove `token_ids`",
            model.name, endpoint.shown
        );
        Err(Error::new(super::ErrorKind::Unsupported, message))
    }

    fn habits(&self) -> Habits {
        Habits {
            uses_max_tokens: self.uses_max_tokens.load(Relaxed),
            uses_reasoning: self.uses_reasoning.load(Relaxed),
        }
    }

    fn encode(
        &self,
        model: &Model,
        messages: &[Arc<Message>],
        tools: &[ToolDef],
        habits: Habits,
        tokens: Option<&[u32]>,
        token_endpoint: Option<TokenEndpoint>,
    ) -> Result<Bytes, Error> {
        let Self { extra_body, stream, token_ids, .. } = self;
        let (stream, token_ids) = (*stream, *token_ids);
        let encoded = match self.dialect {
            ClientDialect::Chat => serde_json::to_vec(&chat::Request {
                model,
                messages,
                tools,
                extra_body,
                stream,
                token_ids,
                habits,
                tokens: tokens.filter(|_| token_endpoint.is_some()),
            }),
            ClientDialect::Messages => {
                serde_json::to_vec(&messages::Request { model, messages, tools, extra_body, stream })
            }
        };
        let encoded = encoded.map(Bytes::from).map_err(|error| {
            Error::new(super::ErrorKind::Model, "cannot write the conversation as JSON")
                .because(super::Cause::of("JsonError", &error))
        })?;
        match (token_endpoint, tokens) {
            (Some(TokenEndpoint::Completions), Some(tokens)) => completions_body(&encoded, tokens)
                .ok_or_else(|| Error::new(super::ErrorKind::Model, "the tokens cannot be written as JSON")),
            _ => Ok(encoded),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = self.0.endpoints.iter().map(|endpoint| &endpoint.shown).collect();
        f.debug_struct("Client")
            .field("urls", &urls)
            .field("dialect", &self.0.dialect)
            .field("has_key", &self.0.has_key)
            .finish_non_exhaustive()
    }
}

/// The headers of every request. Headers of the user replace others.
fn headers(config: &ClientConfig) -> Result<HeaderMap, ClientError> {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    if config.dialect == ClientDialect::Messages {
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
    }
    if let Some(key) = &config.api_key {
        let (name, text) = match config.dialect {
            ClientDialect::Chat => ("authorization", format!("Bearer {}", key.expose_secret())),
            ClientDialect::Messages => ("x-api-key", key.expose_secret().to_owned()),
        };
        let mut value = HeaderValue::try_from(text).map_err(|_| ClientError::Key)?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    for (name, value) in &config.headers {
        let refused = || ClientError::Header { name: name.clone() };
        let known = HeaderName::try_from(name).map_err(|_| refused())?;
        let mut value = HeaderValue::try_from(value.expose_secret()).map_err(|_| refused())?;
        value.set_sensitive(true);
        headers.insert(known, value);
    }
    Ok(headers)
}

/// The token limit of the completion, if one is set.
fn token_limit(model: &Model) -> Option<u64> {
    ["max_completion_tokens", "max_tokens"].iter().find_map(|key| model.sampling.get(*key)?.as_u64())
}

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A longer `retry-after` is cut to this: the server's quota may be lifted earlier.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// How long to wait after this many tries. Randomness separates clients that failed at the same time.
pub fn pause(tries: u32, after: Option<Duration>, chance: f64) -> Duration {
    match after {
        Some(after) => after.min(LONGEST_RETRY_AFTER).mul_f64(1.0 + chance / 4.0),
        None => {
            let doubled = FIRST_PAUSE.saturating_mul(2u32.saturating_pow(tries.saturating_sub(1)));
            doubled.min(LONGEST_PAUSE).mul_f64(1.0 - chance / 2.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let pauses = [1, 2, 3, 6, 7, 8, 40, u32::MAX].map(|tries| pause(tries, None, 0.0).as_millis());
        assert_eq!(pauses, [500, 1000, 2000, 16_000, 30_000, 30_000, 30_000, 30_000]);
        assert_eq!(pause(1, None, 1.0).as_millis(), 250);
    }

    #[test]
    fn retry_after_is_respected_up_to_a_minute() {
        let wish = |seconds, chance| pause(1, Some(Duration::from_secs(seconds)), chance).as_secs_f64();
        assert_eq!(wish(8, 0.0), 8.0);
        assert_eq!(wish(8, 1.0), 10.0);
        assert_eq!(wish(3600, 0.0), 60.0);
        assert_eq!(wish(0, 0.5), 0.0);
    }
}
