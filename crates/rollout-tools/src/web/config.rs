//! What the web tools are told about this installation.

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The settings of the web tools.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebConfig {
    /// Where searches go. None: only pages can be read.
    pub search: Option<SearchConfig>,
    /// Reads pages of this machine and of its networks too. Models then reach whatever is not protected there.
    pub allow_private: bool,
    /// Hosts that are read although they are private: `wiki.example.com`, `127.0.0.1:8080`, `[::1]:8080`. Without a port, all.
    pub allow_hosts: Vec<String>,
    /// The ports that pages are read from. Empty: any.
    pub ports: Vec<u16>,
    /// The proxy that pages are fetched through: `http://proxy.example.com:3128`. It resolves names, so it has to refuse
    /// names of private addresses itself. Proxies that the environment names are not used.
    pub proxy: Option<Key>,
    /// What pages are told about who reads them.
    pub user_agent: String,
    /// How long fetching a page may take in all.
    pub timeout_seconds: u64,
    /// How much of a page is read, after decompression.
    pub max_bytes: usize,
    /// How many characters of pages one call returns.
    pub max_chars: usize,
}

impl Default for WebConfig {
    fn default() -> Self {
        Self {
            search: None,
            allow_private: false,
            allow_hosts: Vec::new(),
            ports: Vec::new(),
            proxy: None,
            user_agent: concat!("Mozilla/5.0 (compatible; rollout/", env!("CARGO_PKG_VERSION"), ")")
                .to_owned(),
            timeout_seconds: 30,
            max_bytes: 5 << 20,
            // Benchmarks show 4,000 characters of a tool's answer to the model.
            max_chars: 3600,
        }
    }
}

/// Where searches go.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchConfig {
    /// What is asked.
    pub backend: Backend,
    /// Its address; has to be given for `searxng` and `custom`.
    #[serde(default)]
    pub url: Option<String>,
    /// The key for it; has to be given for `brave` and `serper`.
    #[serde(default)]
    pub api_key: Option<Key>,
    /// More parameters of each request, as the service names them: `language`, `country`, `gl`.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// How long one answer may take.
    #[serde(default = "search_timeout_seconds")]
    pub timeout_seconds: u64,
    /// How often a request is repeated that met a busy or failing service.
    #[serde(default = "search_max_retries")]
    pub max_retries: u32,
}

fn search_timeout_seconds() -> u64 {
    20
}

fn search_max_retries() -> u32 {
    3
}

/// The services that can be searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// A SearXNG instance, with `json` among its `search.formats`.
    Searxng,
    /// Brave Search.
    Brave,
    /// Google's results, by serper.dev.
    Serper,
    /// A service of one's own: `{"query", "max_results"}` is answered by `{"results": [{"title", "url", "snippet"}]}`.
    Custom,
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Self::Searxng => "searxng",
            Self::Brave => "brave",
            Self::Serper => "serper",
            Self::Custom => "custom",
        }
    }
}

/// A key, or an address with a password, which is not shown where the configuration is printed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Key(String);

impl Key {
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebConfigError {
    /// An entry of `allow_hosts` is no host.
    #[error("allow_hosts: {0:?} is no host; write host or host:port")]
    Host(String),
    /// `search.url` is missing.
    #[error("search.url is missing; {} has no address of its own", .0.name())]
    NoSearchUrl(Backend),
    /// An address is none. What is written there is not told: it may have a password in it.
    #[error("{0} is no http or https address")]
    Url(&'static str),
    /// A number is too small to work with.
    #[error("{0} must be above 0")]
    Zero(&'static str),
    /// The HTTP client does not start with these settings.
    #[error("the HTTP client cannot be set up")]
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
    fn what_is_not_written_is_the_default_and_what_is_unknown_is_told() {
        assert_eq!(serde_json::from_str::<WebConfig>("{}").unwrap(), WebConfig::default());
        let error = serde_json::from_str::<WebConfig>(r#"{"allow_privat": true}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `allow_privat`, expected one of `search`"));
        let error = serde_json::from_str::<WebConfig>(r#"{"search": {"backend": "bing"}}"#).unwrap_err();
        assert!(error.to_string().contains("expected one of `searxng`, `brave`, `serper`, `custom`"));
    }
}
