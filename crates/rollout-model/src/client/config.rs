//! How to reach a model server, as plain data.

use std::{fmt, num::NonZeroU32, time::Duration};

use indexmap::IndexMap;
use secrecy::SecretString;
use serde_json::{Map, Value};

use super::{Prices, endpoint};

/// The API of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientDialect {
    /// Chat completions, the API of OpenAI and most other servers.
    #[default]
    Chat,
    /// Messages, the API of Anthropic.
    Messages,
}

/// Limits on the requests to a server, shared by all clones of a client. None means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimit {
    /// Requests per minute.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Tokens per minute, prompts and completions together.
    pub tokens_per_minute: Option<NonZeroU32>,
}

/// The settings of a [`Client`](super::Client).
///
/// ```
/// use rollout::model::client::{Client, ClientConfig};
///
/// let client = Client::new(ClientConfig {
///     api_key: Some("sk-secret".into()),
///     max_retries: 3,
///     ..ClientConfig::new("https://api.openai.com/v1")
/// })?;
/// assert!(!format!("{client:?}").contains("sk-secret"));
/// # Ok::<_, rollout::model::client::ClientError>(())
/// ```
#[derive(Clone)]
pub struct ClientConfig {
    /// The base of the API, usually ending in `/v1`. Several URLs are replicas: each conversation stays with one.
    pub base_urls: Vec<String>,
    /// The API key, if the server requires one.
    pub api_key: Option<SecretString>,
    /// The API of the server.
    pub dialect: ClientDialect,
    /// Additional headers of every request. They replace the headers that the client would send.
    pub headers: IndexMap<String, SecretString>,
    /// Fields of the request body. They replace all other fields of the same name.
    pub extra_body: Map<String, Value>,
    /// Whether to stream responses. Needed where servers or proxies close silent connections.
    pub stream: bool,
    /// Whether to request the tokens of each response, with their probabilities.
    pub token_ids: bool,
    /// Whether earlier model messages are sent back as tokens, if the server accepts them: with `/tokenize` and
    /// `/v1/chat/completions/tokens`, or `/v1/completions` for conversations without tools. Requires `token_ids`.
    pub token_prompts: bool,
    /// The timeout of one try.
    pub timeout: Duration,
    /// The timeout for establishing a connection.
    pub connect_timeout: Duration,
    /// How often a request is retried after a temporary failure.
    pub max_retries: u32,
    /// Limits on requests and tokens per minute.
    pub rate_limit: RateLimit,
    /// What tokens cost, for servers that do not report the cost of a response.
    pub prices: Prices,
}

impl ClientConfig {
    /// A server without a key, with the defaults: a timeout of one hour per try, and 10 retries.
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_urls: vec![base_url.into()],
            api_key: None,
            dialect: ClientDialect::Chat,
            headers: IndexMap::new(),
            extra_body: Map::new(),
            stream: false,
            token_ids: false,
            token_prompts: false,
            timeout: Duration::from_secs(3600),
            connect_timeout: Duration::from_secs(5),
            max_retries: 10,
            rate_limit: RateLimit::default(),
            prices: Prices::default(),
        }
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL can contain a password, and a header or a field of the body can contain a key.
        let urls: Vec<_> = self.base_urls.iter().map(|url| endpoint::shown(url)).collect();
        f.debug_struct("ClientConfig")
            .field("base_urls", &urls)
            .field("dialect", &self.dialect)
            .field("stream", &self.stream)
            .field("token_ids", &self.token_ids)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_retries", &self.max_retries)
            .field("rate_limit", &self.rate_limit)
            .finish_non_exhaustive()
    }
}

/// Why a client cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No URL was given.
    #[error("no model URL: set `base_url`, for example to https://api.openai.com/v1")]
    NoUrl,
    /// A URL is invalid.
    #[error("invalid model URL `{url}`; use one like https://api.openai.com/v1")]
    Url {
        /// The URL, without credentials.
        url: String,
    },
    /// A header has an invalid name or value.
    #[error("invalid header `{name}`: names and values must be printable ASCII text")]
    Header {
        /// Its name.
        name: String,
    },
    /// The key is not a valid header value.
    #[error("invalid API key: it contains a line break or another character that HTTP headers do not allow")]
    Key,
    /// TLS or name resolution cannot be set up on this machine.
    #[error("cannot set up the HTTP client")]
    Setup(#[source] reqwest::Error),
}
