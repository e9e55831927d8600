//! The sessions of a gateway: a token, routes, a budget and a record each.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use globset::{GlobBuilder, GlobMatcher};
use rollout_core::{redact::Redactor, response::TokenUsage};
use rollout_model::client::Price;
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::{GatewayConfig, GatewayError, ModelRoute, SessionSpec},
    parked::{Fingerprint, RecentCalls},
    record::{CallErrorKind, CallRecord, RecordFile},
    spending::Spending,
    upstream::Server,
};

/// What the calls of a session were.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionSummary {
    /// All calls, including refused ones.
    pub calls: u64,
    /// The calls that a model answered completely.
    pub turns: u64,
    /// The tokens of all calls. `cost` is in it too.
    pub usage: TokenUsage,
    /// The cost in US dollars; null if a call has no price.
    pub cost: Option<f64>,
    /// The models that answered, by their names at the upstreams.
    pub models: BTreeSet<String>,
    /// The number of failed calls of each kind.
    pub errors: BTreeMap<CallErrorKind, u64>,
}

impl SessionSummary {
    pub(crate) fn new() -> Self {
        Self { cost: Some(0.0), ..Self::default() }
    }

    /// Whether a model answered at least once.
    pub fn succeeded(&self) -> bool {
        self.turns > 0
    }

    fn add(&mut self, record: &CallRecord) {
        self.calls += 1;
        match &record.error {
            Some(error) => *self.errors.entry(error.kind).or_default() += 1,
            None => self.turns += 1,
        }
        if record.error.is_none() {
            self.models.insert(record.model.clone());
        }
        let Some(usage) = &record.usage else {
            // An upstream that reports nothing may still have charged for it.
            if record.error.is_none() && record.cost.is_none() {
                self.cost = None;
            }
            return;
        };
        self.usage.prompt_tokens += usage.prompt_tokens;
        self.usage.cached_tokens += usage.cached_tokens;
        self.usage.cache_write_tokens += usage.cache_write_tokens;
        self.usage.completion_tokens += usage.completion_tokens;
        self.usage.reasoning_tokens += usage.reasoning_tokens;
        self.cost = self.cost.zip(record.cost).map(|(sum, cost)| sum + cost);
        self.usage.cost = self.cost;
    }
}

/// The state of a session that its calls share.
#[derive(Debug)]
pub(crate) struct SessionState {
    pub(crate) id: u64,
    pub(crate) token: String,
    pub(crate) routes: Vec<Route>,
    pub(crate) spending: Spending,
    pub(crate) token_ids: bool,
    pub(crate) provider_tools: bool,
    pub(crate) cache_scope: String,
    pub(crate) recent: RecentCalls,
    /// Cancelled when the session is closed.
    pub(crate) closed: CancellationToken,
    pub(crate) calls: TaskTracker,
    record: RecordFile,
    redactors: [Redactor; 2],
    next_call: AtomicU64,
    repeats: Mutex<HashMap<Fingerprint, u32>>,
    summary: Mutex<SessionSummary>,
}

/// A route with its pattern compiled.
#[derive(Debug)]
pub(crate) struct Route {
    matcher: GlobMatcher,
    pub(crate) pattern: String,
    model: Option<String>,
    pub(crate) server: Arc<Server>,
    pub(crate) price: Option<Price>,
}

impl Route {
    fn new(route: &ModelRoute) -> Result<Self, GatewayError> {
        let matcher = GlobBuilder::new(&route.pattern)
            .build()
            .map_err(|source| GatewayError::Pattern { pattern: route.pattern.clone(), source })?
            .compile_matcher();
        let server = Arc::new(Server::new(&route.upstream)?);
        let (pattern, model) = (route.pattern.clone(), route.model.clone());
        Ok(Self { matcher, pattern, model, server, price: route.price })
    }

    /// The name of the model at the upstream.
    pub(crate) fn model<'a>(&'a self, asked: &'a str) -> &'a str {
        self.model.as_deref().unwrap_or(asked)
    }

    /// The names of models to list: patterns are not names.
    fn names(&self) -> impl Iterator<Item = &str> {
        let pattern = (!self.pattern.contains(['*', '?', '[', '{'])).then_some(self.pattern.as_str());
        pattern.into_iter().chain(self.model.as_deref())
    }
}

impl SessionState {
    pub(crate) fn new(
        id: u64,
        token: String,
        spec: SessionSpec,
        config: &GatewayConfig,
    ) -> Result<Self, GatewayError> {
        let routes = spec.routes.iter().map(Route::new).collect::<Result<Vec<_>, _>>()?;
        // Calls without a price would never use up a budget in dollars.
        if spec.budget.dollars.or(config.budget.dollars).is_some() {
            let unpriced = spec.routes.iter().filter(|route| route.price.is_none());
            let names = unpriced.filter_map(|route| route.model.as_ref());
            if let Some(model) = names.into_iter().find(|model| config.prices.get(model).is_none()) {
                return Err(GatewayError::NoPrice { model: model.clone() });
            }
        }
        let record = RecordFile::open(&spec.record)
            .map_err(|source| GatewayError::Record { path: spec.record.clone(), source })?;
        let secrets = spec.routes.iter().flat_map(|route| {
            route
                .upstream
                .key
                .iter()
                .chain(route.upstream.headers.values())
                .map(|secret| secret.expose_secret())
        });
        let keys = Redactor::new(secrets.chain([token.as_str()]));
        Ok(Self {
            id,
            routes,
            spending: Spending::new("session", spec.budget),
            token_ids: spec.token_ids,
            provider_tools: spec.provider_tools,
            cache_scope: spec.cache_scope,
            recent: RecentCalls::default(),
            closed: CancellationToken::new(),
            calls: TaskTracker::new(),
            record,
            redactors: [keys, spec.secrets],
            token,
            next_call: AtomicU64::new(1),
            repeats: Mutex::default(),
            summary: Mutex::new(SessionSummary::new()),
        })
    }

    pub(crate) fn next_call(&self) -> u64 {
        self.next_call.fetch_add(1, Relaxed)
    }

    pub(crate) fn route(&self, model: &str) -> Option<&Route> {
        self.routes.iter().find(|route| route.matcher.is_match(model))
    }

    /// The names of the models that may be asked for.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let names: BTreeSet<&str> = self.routes.iter().flat_map(Route::names).collect();
        names.into_iter()
    }

    /// Masks the keys and the other secrets.
    pub(crate) fn masked(&self, value: Value) -> Value {
        self.redactors.iter().fold(
            value,
            |value, redactor| {
                if redactor.is_empty() { value } else { redactor.json(value) }
            },
        )
    }

    /// Masks the keys in a text.
    pub(crate) fn masked_text(&self, text: &str) -> String {
        self.redactors.iter().fold(text.to_owned(), |text, redactor| redactor.text(&text).into_owned())
    }

    /// Whether a text contains a key or another secret.
    pub(crate) fn has_secret(&self, text: &[u8]) -> bool {
        self.redactors.iter().any(|redactor| redactor.finds(text))
    }

    /// How often this request came before.
    pub(crate) fn repeat(&self, request: Fingerprint) -> u32 {
        let mut repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
        let count = repeats.entry(request).or_default();
        *count += 1;
        *count - 1
    }

    /// Writes the line of a call.
    pub(crate) async fn write(&self, record: CallRecord) {
        self.summary().add(&record);
        self.record.write(record).await;
    }

    pub(crate) fn summary(&self) -> MutexGuard<'_, SessionSummary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
