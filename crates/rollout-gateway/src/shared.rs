//! What all sessions of a gateway share: connections, limits, the cache and the budget.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use rollout_model::client::Limiter;

use crate::{
    cache::Cache,
    config::{GatewayConfig, GatewayError},
    fair::{FairGate, Place},
    session::SessionState,
    spending::Spending,
};

/// The state of a gateway.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: GatewayConfig,
    pub(crate) http: reqwest::Client,
    pub(crate) cache: Option<Cache>,
    pub(crate) spending: Spending,
    limiter: Option<Limiter>,
    /// Only one call at a time waits for the rate limit: the next one in the order of sessions.
    turn: Arc<FairGate>,
    places: Arc<FairGate>,
    sessions: RwLock<HashMap<String, Arc<SessionState>>>,
}

impl Shared {
    pub(crate) fn new(config: GatewayConfig) -> Result<Self, GatewayError> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(10))
            .read_timeout(config.silence)
            // A redirect would take keys to another host.
            .redirect(reqwest::redirect::Policy::none())
            // Compressed streams would be held back by their decoder.
            .no_gzip()
            .build()
            .map_err(GatewayError::Setup)?;
        let cache = match &config.cache {
            Some(path) => {
                let opened = Cache::open(path);
                Some(opened.map_err(|source| GatewayError::Cache { path: path.clone(), source })?)
            }
            None => None,
        };
        Ok(Self {
            http,
            cache,
            spending: Spending::new("gateway", config.budget),
            limiter: Limiter::new(config.rate_limit),
            turn: FairGate::new(1),
            places: FairGate::new(config.max_concurrent_calls.max(1)),
            sessions: RwLock::default(),
            config,
        })
    }

    /// Waits until a request of about so many tokens may be sent. Sessions take turns.
    pub(crate) async fn enter(&self, session: u64, tokens: u64) -> Place {
        let place = self.places.enter(session).await;
        self.limit(session, tokens).await;
        place
    }

    /// Waits for the rate limit only, for a call that has its place already.
    pub(crate) async fn limit(&self, session: u64, tokens: u64) {
        if let Some(limiter) = &self.limiter {
            let _turn = self.turn.enter(session).await;
            limiter.acquire(tokens).await;
        }
    }

    /// The number of calls that wait for a place or for the rate limit.
    pub(crate) fn waiting(&self) -> usize {
        self.places.waiting() + self.turn.waiting()
    }

    /// Corrects the estimate of a call's tokens.
    pub(crate) fn settle(&self, estimated: u64, actual: u64) {
        if let Some(limiter) = &self.limiter {
            limiter.settle(estimated, actual);
        }
    }

    pub(crate) fn session(&self, token: &str) -> Option<Arc<SessionState>> {
        self.sessions.read().unwrap_or_else(PoisonError::into_inner).get(token).cloned()
    }

    pub(crate) fn add(&self, session: Arc<SessionState>) {
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        sessions.insert(session.token.clone(), session);
    }

    pub(crate) fn remove(&self, session: &SessionState) {
        session.closed.cancel();
        self.sessions.write().unwrap_or_else(PoisonError::into_inner).remove(&session.token);
    }
}
