//! How a gateway and its sessions are set up, as plain data.

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use indexmap::IndexMap;
use rollout_core::redact::Redactor;
use rollout_model::client::{Price, Prices, RateLimit};
use secrecy::SecretString;

use crate::{dialect::Dialect, prices};

/// How a [`Gateway`](crate::Gateway) runs. The default has no limits.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// The address to listen on. The default is a free port of loopback.
    pub address: SocketAddr,
    /// What tokens of models cost whose routes have no price. The default is [`known_prices`](crate::known_prices).
    pub prices: Prices,
    /// What all sessions may use together.
    pub budget: Budget,
    /// How much is sent to upstreams per minute, shared fairly between sessions.
    pub rate_limit: RateLimit,
    /// The most calls that are sent to upstreams at once, shared fairly between sessions.
    pub max_concurrent_calls: usize,
    /// How often a call is tried again after a failure that may be temporary.
    pub max_retries: u32,
    /// The directory of the response cache, if there is one.
    pub cache: Option<PathBuf>,
    /// The most bytes of a response that are kept for its record.
    pub max_record_bytes: usize,
    /// How long a client of a stream waits before it gets a sign of life.
    pub keep_alive: Duration,
    /// How long an upstream may send nothing.
    pub silence: Duration,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            prices: prices::known_prices(),
            budget: Budget::default(),
            rate_limit: RateLimit::default(),
            max_concurrent_calls: 1024,
            max_retries: 5,
            cache: None,
            max_record_bytes: 16 << 20,
            keep_alive: Duration::from_secs(15),
            // Models that reason can send nothing for minutes.
            silence: Duration::from_secs(900),
        }
    }
}

/// A model server behind the gateway.
#[derive(Clone)]
pub struct Upstream {
    /// Where its API starts, such as `https://api.openai.com/v1`. A bare host gets the usual path of the dialect.
    pub base_url: String,
    /// The real key. It is in no record, no log and no error.
    pub key: Option<SecretString>,
    /// The protocol that the server speaks.
    pub dialect: Dialect,
    /// Further headers of every request. They replace those that the gateway would send.
    pub headers: IndexMap<String, SecretString>,
}

impl Upstream {
    /// A server without a key.
    pub fn new(base_url: impl Into<String>, dialect: Dialect) -> Self {
        Self { base_url: base_url.into(), key: None, dialect, headers: IndexMap::new() }
    }

    /// The same with a key.
    #[must_use]
    pub fn with_key(self, key: impl Into<SecretString>) -> Self {
        Self { key: Some(key.into()), ..self }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("base_url", &rollout_model::client::shown_url(&self.base_url))
            .field("dialect", &self.dialect)
            .field("has_key", &self.key.is_some())
            .finish_non_exhaustive()
    }
}

/// Which model names of an agent go to which upstream.
#[derive(Debug, Clone)]
pub struct ModelRoute {
    /// The names that an agent may ask for, as a pattern: `*` stands for anything.
    pub pattern: String,
    /// The name of the model at the upstream; `None` passes the asked name on.
    pub model: Option<String>,
    /// The server that answers.
    pub upstream: Upstream,
    /// What tokens cost there; `None` is the price of the model in the gateway's table.
    pub price: Option<Price>,
}

impl ModelRoute {
    /// Maps every name to one model.
    pub fn all(upstream: Upstream, model: impl Into<String>) -> Self {
        Self { pattern: "*".to_owned(), model: Some(model.into()), upstream, price: None }
    }
}

/// How much may be used. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Budget {
    /// Tokens, read and written.
    pub tokens: Option<u64>,
    /// US dollars.
    pub dollars: Option<f64>,
    /// Calls.
    pub calls: Option<u64>,
}

/// What a [`GatewaySession`](crate::GatewaySession) may do, and where its calls are recorded.
#[derive(Debug, Clone)]
pub struct SessionSpec {
    /// The file of its calls, one JSON line each. It is appended to.
    pub record: PathBuf,
    /// The models. The first route whose pattern fits decides; a name that fits none is refused.
    pub routes: Vec<ModelRoute>,
    /// What the session may use.
    pub budget: Budget,
    /// Whether upstreams are asked for token ids and log-probabilities.
    pub token_ids: bool,
    /// Whether tools that run at the provider, past the isolation of the agent, are allowed.
    pub provider_tools: bool,
    /// Makes cached responses its own: sessions share those of the same scope.
    pub cache_scope: String,
    /// Further values that are masked in the record.
    pub secrets: Redactor,
}

impl SessionSpec {
    /// A session with one route and no limits.
    pub fn new(record: impl Into<PathBuf>, route: ModelRoute) -> Self {
        Self {
            record: record.into(),
            routes: vec![route],
            budget: Budget::default(),
            token_ids: false,
            provider_tools: false,
            cache_scope: String::new(),
            secrets: Redactor::default(),
        }
    }
}

/// Why a gateway cannot start, or a session cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address is not available.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// TLS or name resolution cannot be set up on this machine.
    #[error("cannot set up the HTTP client")]
    Setup(#[source] reqwest::Error),
    /// The record cannot be written.
    #[error("cannot write the record of model calls {}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The cache cannot be used.
    #[error("cannot use the response cache {}", path.display())]
    Cache {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The URL of an upstream is invalid.
    #[error("invalid URL of a model server: `{url}`; use one like https://api.openai.com/v1")]
    Url {
        /// The URL, without credentials.
        url: String,
    },
    /// A key or header cannot be sent.
    #[error("the header `{name}` of the upstream cannot be sent: names and values are printable ASCII text")]
    Header {
        /// The name of the header.
        name: String,
    },
    /// A pattern of model names is invalid.
    #[error("invalid pattern of model names: `{pattern}`; `*` matches any text")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The reason.
        source: globset::Error,
    },
    /// A budget in dollars needs prices.
    #[error(
        "a budget in dollars needs a price for `{model}`, which is unknown; set its price, or use a budget in tokens"
    )]
    NoPrice {
        /// The model.
        model: String,
    },
    /// The system gives no random numbers, so no token can be made.
    #[error("cannot get random numbers from the system for a token")]
    Random(#[source] getrandom::Error),
}
