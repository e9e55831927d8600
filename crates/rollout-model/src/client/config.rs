//! How a model's server is reached, as plain data.

use std::{fmt, num::NonZeroU32, time::Duration};

use indexmap::IndexMap;
use secrecy::SecretString;
use serde_json::{Map, Value};

use super::{Prices, endpoint};

/// The language that a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// Chat completions, as OpenAI and nearly everybody else has them.
    #[default]
    Chat,
    /// Messages, as Anthropic has them.
    Messages,
}

/// How much may be asked of a server, over all clones of a client. None is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimit {
    /// Requests a minute.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Tokens a minute, read and written.
    pub tokens_per_minute: Option<NonZeroU32>,
}

/// What a [`Client`](super::Client) is made of.
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
    /// Where the API starts, usually with `/v1` at its end. Several are replicas: each conversation stays with one.
    pub base_urls: Vec<String>,
    /// The key, if the server wants one.
    pub api_key: Option<SecretString>,
    /// What the server speaks.
    pub dialect: Dialect,
    /// Further headers of every request. They take the place of those that the client would send.
    pub headers: IndexMap<String, SecretString>,
    /// Fields of the request's body that take the place of all others of their name.
    pub extra_body: Map<String, Value>,
    /// Whether responses are asked for piece by piece. Servers and proxies that give up on silent connections need it.
    pub stream: bool,
    /// Whether the tokens behind each response are asked for, with their probabilities.
    pub token_ids: bool,
    /// Whether what the model said is sent back as its tokens, where the server takes them: by `/tokenize` and
    /// `/v1/chat/completions/tokens`, or `/v1/completions` for conversations without tools. Needs `token_ids`.
    pub token_prompts: bool,
    /// How long one try may take.
    pub timeout: Duration,
    /// How long a connection may take to come about.
    pub connect_timeout: Duration,
    /// How often a request that failed for the moment is tried again.
    pub max_retries: u32,
    /// How much may be asked.
    pub rate_limit: RateLimit,
    /// What tokens cost, for servers that do not say what a response did.
    pub prices: Prices,
}

impl ClientConfig {
    /// A server without a key, asked as its defaults have it: an hour for a try, and 10 tries more.
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_urls: vec![base_url.into()],
            api_key: None,
            dialect: Dialect::Chat,
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
        // A URL can hold a password, and a header or a field of the body a key.
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

/// Why there can be no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no server.
    #[error("a model needs at least one `base_url`, like https://api.openai.com/v1")]
    NoUrl,
    /// A URL cannot be used.
    #[error("`{url}` is no URL of a model's server; write one like https://api.openai.com/v1")]
    Url {
        /// The URL, without credentials.
        url: String,
    },
    /// A header has a name or a value that HTTP does not know.
    #[error("the header `{name}` cannot be sent: names and values are printable ASCII text")]
    Header {
        /// Its name.
        name: String,
    },
    /// The key cannot be put into a header.
    #[error("the API key cannot be sent: it has a line break or another character that no header takes")]
    Key,
    /// TLS or name resolution cannot be set up on this machine.
    #[error("no HTTP client can be set up on this machine")]
    Setup(#[source] reqwest::Error),
}
