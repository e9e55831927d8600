//! The settings of the web tools.

use std::fmt;

use rollout_settings::{
    Form, Node, Settings as _,
    forms::{flag, mapping, some_section, text, texts, whole, word},
    tree,
};
use serde_json::{Map, Value, json};

use crate::forms::deserialize;

rollout_settings::settings! {
    /// The settings of the web tools.
    #[derive(Debug, Clone, PartialEq)]
    pub struct WebConfig {
        /// The search service. Without it, only pages can be read.
        pub search: Option<SearchConfig> = some_section::<SearchConfig>().optional(),
        /// Also reads pages of this machine and of its networks. Models can then reach every service there that needs
        /// no login.
        pub allow_private: bool = flag(false),
        /// Private hosts that may be read: `wiki.example.com`, `127.0.0.1:8080`, `[::1]:8080`. Without a port,
        /// all ports.
        pub allow_hosts: Vec<String> = texts(),
        /// The ports from which pages are read. If empty, any port.
        pub ports: Vec<u16> = ports(),
        /// The proxy for fetching pages: `http://proxy.example.com:3128`. It resolves names, so it must reject
        /// names of private addresses itself. Proxy environment variables are not used.
        pub proxy: Option<SecretKey> = key(),
        /// The `User-Agent` header of requests for pages.
        pub user_agent: String = text().default(USER_AGENT.to_owned()).unset("`Mozilla/5.0 (compatible; rollout/…)`"),
        /// The time limit for fetching a page, including redirects.
        pub timeout_seconds: u64 = whole(0..=u64::MAX).default(30),
        /// The maximum number of bytes that are read of a page, after decompression.
        ///
        /// The rest is cut.
        pub max_bytes: usize = whole(0..=u64::MAX).default(5 << 20),
        /// The maximum number of characters that one call returns.
        ///
        /// A benchmark shows the model 4,000 characters of a tool's answer.
        pub max_chars: usize = whole(0..=u64::MAX).default(3600),
    }
}

const USER_AGENT: &str = concat!("Mozilla/5.0 (compatible; rollout/", env!("CARGO_PKG_VERSION"), ")");

rollout_settings::settings! {
    /// The search service.
    #[derive(Debug, Clone, PartialEq)]
    pub struct SearchConfig {
        /// The service.
        pub backend: Backend = word(&BACKENDS).required("set the search service, such as `backend: brave`"),
        /// The URL of the service; required for `searxng` and `custom`.
        pub url: Option<String> = text().kind("URL").optional().unset("the service's own"),
        /// The API key of the service; required for `brave` and `serper`.
        ///
        /// Write `${BRAVE_API_KEY}` to read it from the environment.
        pub api_key: Option<SecretKey> = key(),
        /// Additional parameters of each request, as named by the service: `language`, `country`, `gl`.
        pub params: Map<String, Value> = mapping(),
        /// The time limit of one request.
        pub timeout_seconds: u64 = whole(0..=u64::MAX).default(20),
        /// How often a request to a busy or failing service is retried.
        ///
        /// It is retried after 408, 429, 5xx and lost connections: after `Retry-After` seconds (15 at most),
        /// otherwise after 0.5 s, 1 s, 2 s …
        pub max_retries: u32 = whole(0..=u32::MAX.into()).default(3),
    }
}

deserialize!(WebConfig);

impl Default for WebConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of the web tools has a default")
    }
}

fn key() -> Form<Option<SecretKey>> {
    Form::written(
        "string",
        || json!({ "type": "string" }),
        |section, key| section.string(key).map(|key| SecretKey(key.to_owned())),
    )
    .optional()
}

fn ports() -> Form<Vec<u16>> {
    let schema = || json!({ "type": "array", "items": { "type": "integer", "maximum": u16::MAX } });
    Form::new("list of ports", schema, |section, key| {
        let port = |node: &Node| match node.value {
            tree::Value::Int(port) => u16::try_from(port).ok(),
            _ => None,
        };
        let wrong = |node: &&Node| port(node).is_none();
        let nodes = section.list(key)?;
        for node in nodes.iter().filter(wrong) {
            section.reader.wrong_type(node, &section.at(key), "a list of ports");
        }
        Some(nodes.iter().filter_map(port).collect())
    })
    .or_empty()
}

/// The supported search services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// A SearXNG instance, with `json` among its `search.formats`.
    Searxng,
    /// Brave Search.
    Brave,
    /// Google's results, from serper.dev.
    Serper,
    /// Your own service: the request `{"query", "max_results"}` is answered by `{"results": [{"title", "url",
    /// "snippet"}]}`.
    Custom,
}

const BACKENDS: [(&str, Backend); 4] = [
    ("searxng", Backend::Searxng),
    ("brave", Backend::Brave),
    ("serper", Backend::Serper),
    ("custom", Backend::Custom),
];

impl Backend {
    fn name(self) -> &'static str {
        BACKENDS.iter().find(|(_, backend)| *backend == self).map_or("", |(name, _)| name)
    }
}

/// A key, or a URL with a password, which is not shown when the configuration is printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey(String);

impl SecretKey {
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(…)")
    }
}

/// Why the settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum WebConfigError {
    /// An entry of `allow_hosts` is not a host.
    #[error("allow_hosts: {0:?} is not a host; write host or host:port")]
    Host(String),
    /// `search.url` is missing.
    #[error("search.url is missing; {} has no default", .0.name())]
    NoSearchUrl(Backend),
    /// A URL is invalid. Its value is not shown, because it may contain a password.
    #[error("{0} is not an http or https URL")]
    Url(&'static str),
    /// A number is too small.
    #[error("{0} must be above 0")]
    Zero(&'static str),
    /// The HTTP client cannot be created with these settings.
    #[error("cannot create the HTTP client")]
    Client(#[source] reqwest::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_printed_with_its_settings() {
        let text =
            r#"{"proxy": "http://me:secret@proxy", "search": {"backend": "brave", "api_key": "BSA-secret"}}"#;
        let config: WebConfig = serde_json::from_str(text).unwrap();
        assert!(!format!("{config:?}").contains("secret"));
        assert_eq!(config.search.unwrap().api_key.unwrap().reveal(), "BSA-secret");
    }

    #[test]
    fn missing_settings_have_defaults_and_unknown_ones_are_reported() {
        assert_eq!(serde_json::from_str::<WebConfig>("{}").unwrap(), WebConfig::default());
        let error = serde_json::from_str::<WebConfig>(r#"{"allow_privat": true}"#).unwrap_err();
        assert!(error.to_string().contains("unknown key `allow_privat`; did you mean `allow_private`?"));
        let error = serde_json::from_str::<WebConfig>(r#"{"search": {"backend": "bing"}}"#).unwrap_err();
        assert!(error.to_string().contains("it can be one of `searxng`, `brave`, `serper`, `custom`"));
    }
}
