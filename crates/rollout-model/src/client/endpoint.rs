//! The URLs of a server: the endpoints, the URL without secrets, and the replica of each conversation.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use reqwest::Url;

use super::{ClientDialect, ClientError};

/// The URLs of one replica.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) url: Url,
    /// For requests whose prompt has tokens in addition to messages.
    pub(super) tokens: Url,
    /// For requests whose prompt has only tokens.
    pub(super) completions: Url,
    /// For tokenizing.
    pub(super) tokenize: Url,
    /// The URL without credentials and query, for messages.
    pub(super) shown: String,
}

impl Endpoint {
    pub(super) fn new(base: &str, dialect: ClientDialect) -> Result<Self, ClientError> {
        let refused = || ClientError::Url { url: shown(base) };
        let mut url = Url::parse(base.trim()).map_err(|_| refused())?;
        if !["http", "https"].contains(&url.scheme()) || !url.has_host() {
            return Err(refused());
        }
        let path = match (dialect, url.path().trim_end_matches('/')) {
            (ClientDialect::Chat, base) => format!("{base}/chat/completions"),
            // Anthropic's own clients take the bare host.
            (ClientDialect::Messages, "") => "/v1/messages".to_owned(),
            (ClientDialect::Messages, base) => format!("{base}/messages"),
        };
        // The tokenizer endpoint is next to the API, not below it.
        let root = url.path().trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let mut tokenize = url.clone();
        tokenize.set_path(&format!("{root}/tokenize"));
        let mut tokens = url.clone();
        tokens.set_path(&format!("{path}/tokens"));
        let mut completions = url.clone();
        completions.set_path(&format!("{}/completions", url.path().trim_end_matches('/')));
        url.set_path(&path);
        let shown = without_secrets(url.clone());
        Ok(Self { url, tokens, completions, tokenize, shown })
    }
}

/// A URL without its secrets.
pub fn shown(url: &str) -> String {
    match Url::parse(url.trim()) {
        Ok(url) if url.has_host() => without_secrets(url),
        // Text that is not a URL may still contain a password.
        _ => url.rsplit('@').next().unwrap_or_default().to_owned(),
    }
}

fn without_secrets(mut url: Url) -> String {
    url.set_query(None);
    url.set_fragment(None);
    // Both fail only for URLs without a host, and those have no credentials.
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.into()
}

/// Assigns conversations to replicas in turn, and keeps each one at its replica.
///
/// The end of a conversation is not reported, so only the most recent ones are remembered, in two generations.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    next: usize,
    recent: HashMap<Box<str>, usize>,
    older: HashMap<Box<str>, usize>,
}

/// More conversations than any run has at the same time.
const GENERATION: usize = 1 << 14;

impl Generations {
    fn deal(&mut self, replicas: usize) -> usize {
        let next = self.next;
        self.next = next.wrapping_add(1);
        next % replicas
    }
}

impl Sessions {
    /// The replica whose turn it is.
    pub(super) fn next(&self, replicas: usize) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).deal(replicas)
    }

    /// The replica of a conversation, given the number of replicas.
    pub(super) fn replica(&self, session: &str, replicas: usize) -> usize {
        if replicas <= 1 {
            return 0;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(replica) = known.recent.get(session) {
            return *replica;
        }
        let replica = match known.older.remove(session) {
            Some(replica) => replica,
            None => known.deal(replicas),
        };
        if known.recent.len() >= GENERATION {
            known.older = std::mem::take(&mut known.recent);
        }
        known.recent.insert(session.into(), replica);
        replica
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_below_the_base_url() {
        use ClientDialect::{Chat, Messages};
        for (base, dialect, url, shown) in [
            ("http://h/v1", Chat, "http://h/v1/chat/completions", "http://h/v1/chat/completions"),
            ("http://h/v1/", Chat, "http://h/v1/chat/completions", "http://h/v1/chat/completions"),
            ("http://h", Chat, "http://h/chat/completions", "http://h/chat/completions"),
            (
                "https://u:p@h:8/a?api-version=2",
                Chat,
                "https://u:p@h:8/a/chat/completions?api-version=2",
                "https://h:8/a/chat/completions",
            ),
            ("https://h", Messages, "https://h/v1/messages", "https://h/v1/messages"),
            ("https://h/v1", Messages, "https://h/v1/messages", "https://h/v1/messages"),
        ] {
            let endpoint = Endpoint::new(base, dialect).unwrap();
            assert_eq!((endpoint.url.as_str(), endpoint.shown.as_str()), (url, shown));
        }
    }

    #[test]
    fn the_tokenizer_endpoint_is_next_to_the_api() {
        for base in ["http://h/v1", "http://h/v1/", "http://h"] {
            assert_eq!(
                Endpoint::new(base, ClientDialect::Chat).unwrap().tokenize.as_str(),
                "http://h/tokenize"
            );
        }
        let endpoint = Endpoint::new("http://h/v1", ClientDialect::Chat).unwrap();
        assert_eq!(endpoint.tokens.as_str(), "http://h/v1/chat/completions/tokens");
        assert_eq!(endpoint.completions.as_str(), "http://h/v1/completions");
    }

    #[test]
    fn an_invalid_url_is_rejected_without_showing_its_password() {
        for (base, shown) in
            [("localhost:8000/v1", "localhost:8000/v1"), ("ftp://u:p@h/", "ftp://h/"), ("u:p@h/v1", "h/v1")]
        {
            let error = Endpoint::new(base, ClientDialect::Chat).unwrap_err();
            assert!(error.to_string().contains(&format!("`{shown}`")), "{error}");
        }
    }

    #[test]
    fn conversations_go_to_the_replicas_in_turn_and_stay_there() {
        let sessions = Sessions::default();
        let dealt: Vec<_> = ["a", "b", "a", "c", "d", "b", "d"].map(|s| sessions.replica(s, 3)).into();
        assert_eq!(dealt, [0, 1, 0, 2, 0, 1, 0]);
    }

    #[test]
    fn an_active_conversation_keeps_its_replica_while_new_ones_start() {
        let sessions = Sessions::default();
        sessions.replica("other", 3);
        let first = sessions.replica("kept", 3);
        for n in 0..3 * GENERATION {
            sessions.replica(&n.to_string(), 3);
            if n % 1000 == 0 {
                assert_eq!(sessions.replica("kept", 3), first);
            }
        }
        let known = sessions.0.lock().unwrap();
        assert!(known.recent.len() + known.older.len() <= 2 * GENERATION);
    }
}
