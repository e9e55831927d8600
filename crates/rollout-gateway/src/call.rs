//! One call of an agent: from its request to the line of its record.

mod pass;
mod prepare;

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderMap, Response, StatusCode, header},
};
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::{
    answer::Refusal,
    cache::{Cache, Unsaved},
    client::{Client, Gone},
    copy::{Copied, ResponseCopy},
    dialect::Dialect,
    edit::{self, Fields},
    exchange::{Exchange, Received},
    fair::Place,
    parked::Fingerprint,
    record::{CallError, CallErrorKind, CallRecord},
    session::SessionState,
    shared::Shared,
    translate::AnswerContext,
    usage::{self, CallUsage},
};
use prepare::Prepared;

/// A request of an agent to a model.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) shared: Arc<Shared>,
    pub(crate) session: Arc<SessionState>,
    pub(crate) dialect: Dialect,
    /// The model, if it is in the path.
    pub(crate) model: Option<String>,
    /// Whether a stream is wanted, if that is in the path.
    pub(crate) stream: Option<bool>,
    /// Whether it asks for a shorter form of the conversation instead of an answer.
    pub(crate) compacts: bool,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// What is known of a call's response while it passes.
#[derive(Debug, Default)]
struct Progress {
    /// The copy of a stream.
    copy: Option<ResponseCopy>,
    /// The copy of a response that is no stream.
    whole: Option<Copied>,
    /// How the response is translated, if the upstream has another dialect.
    translation: Option<AnswerContext>,
    /// The estimated tokens that the rate limit counts until the real ones are known.
    estimate: Option<u64>,
    /// The place of the response in the cache, if it should be saved there.
    cache_key: Option<String>,
    /// The whole response for the cache.
    unsaved: Option<Unsaved>,
}

impl Progress {
    /// Keeps a response that passed completely for the cache.
    fn keep(&mut self, headers: &HeaderMap, body: Bytes) {
        if let Some(key) = self.cache_key.take() {
            let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let content_type = content_type.unwrap_or_default().to_owned();
            self.unsaved = Some(Unsaved { key, content_type, body });
        }
    }
}

/// Why a call ended early.
#[derive(Debug)]
enum End {
    Gone,
    Failed(CallError),
}

impl From<Gone> for End {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

/// Answers a call. The call itself goes on if the agent leaves, until its record is written.
pub(crate) async fn answer(call: Call) -> Response<Body> {
    let fields = Fields::parse(call.body.clone());
    let streams = call.stream.unwrap_or_else(|| fields.as_ref().is_ok_and(|fields| fields.is_true("stream")));
    let fingerprint = call.fingerprint(streams);
    let is_retry =
        call.retry().is_some_and(|retry| retry > 0) || call.headers.contains_key("idempotency-key");
    if let Some(earlier) = call.session.recent.find(&fingerprint, is_retry)
        && let Some(response) = earlier.response().await
    {
        return response;
    }
    let parked = call.session.recent.begin(fingerprint);
    let dialect = call.dialect;
    let (client, response) = Client::new(dialect, streams, call.shared.config.keep_alive, parked);
    let session = Arc::clone(&call.session);
    session.calls.spawn(call.run(fields, streams, client));
    response.await.unwrap_or_else(|_| {
        Refusal::new(StatusCode::BAD_GATEWAY, "the session of this call was closed").response(dialect)
    })
}

impl Call {
    fn fingerprint(&self, streams: bool) -> Fingerprint {
        let mut hash = Sha256::new();
        hash.update(format!("{:?} {:?} {streams} {}\n", self.dialect, self.model, self.compacts));
        if let Some(key) = self.headers.get("idempotency-key") {
            hash.update(key.as_bytes());
        }
        hash.update(b"\n");
        hash.update(&self.body);
        hash.finalize().into()
    }

    /// How often the client says that it tried before.
    fn retry(&self) -> Option<u32> {
        self.headers.get("x-stainless-retry-count")?.to_str().ok()?.parse().ok()
    }

    async fn run(self, fields: Result<Fields, serde_json::Error>, streams: bool, mut client: Client) {
        let begun = Instant::now();
        let mut record = self.blank_record(streams);
        let mut progress = Progress::default();
        let outcome = tokio::select! {
            biased;
            () = self.session.closed.cancelled() => {
                Err(End::Failed(CallError::new(CallErrorKind::Closed, "the session was closed")))
            }
            outcome = self.perform(fields, streams, &mut client, &mut record, &mut progress) => outcome,
        };
        if outcome.is_ok() {
            client.finish();
        }
        record.status = client.status;
        record.first_token = client.first_byte().map(|first| (first - begun).as_secs_f64());
        record.latency = begun.elapsed().as_secs_f64();
        let copied = progress.whole.or_else(|| progress.copy.map(ResponseCopy::finish));
        // Some agents close the connection as soon as they have the last event.
        let is_complete = copied.as_ref().is_some_and(|copied| copied.is_complete && copied.error.is_none());
        record.error = match outcome {
            Err(_) if is_complete => None,
            Err(End::Failed(error)) => Some(error),
            Err(End::Gone) => {
                Some(CallError::new(CallErrorKind::ClientGone, "the agent closed its connection"))
            }
            Ok(()) => None,
        };
        if let Some(unsaved) = progress.unsaved {
            self.save(unsaved, copied.as_ref()).await;
        }
        if let Some(copied) = copied {
            self.note_response(&mut record, copied, progress.translation.as_ref());
        }
        self.settle(&mut record, progress.estimate);
        if let Some(error) = &mut record.error {
            error.message = self.session.masked_text(&error.message);
        }
        drop(client);
        // Not before the end: a parsed request takes several times the memory of its bytes.
        let request = serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&self.body).into_owned()));
        record.request = self.session.masked(request);
        self.session.write(record).await;
    }

    fn blank_record(&self, streams: bool) -> CallRecord {
        const SESSION_IDS: [&str; 6] = [
            "x-claude-code-session-id",
            "session-id",
            "thread-id",
            "x-codex-turn-metadata",
            "x-session-id",
            "agent-session-id",
        ];
        let ids = SESSION_IDS.iter().filter_map(|name| {
            let value = self.headers.get(*name)?.to_str().ok()?;
            Some(((*name).to_owned(), self.session.masked_text(value)))
        });
        CallRecord {
            id: self.session.next_call(),
            started: Timestamp::now(),
            latency: 0.0,
            first_token: None,
            dialect: self.dialect,
            upstream_dialect: self.dialect,
            model_asked: self.model.clone().unwrap_or_default(),
            model: String::new(),
            streamed: streams,
            compacts: self.compacts,
            request: Value::Null,
            response: None,
            status: 0,
            error: None,
            usage: None,
            raw_usage: None,
            cost: None,
            tokens: None,
            removed: Vec::new(),
            notes: Vec::new(),
            session_ids: ids.collect(),
            retry: self.retry(),
            tries: 0,
            cached: false,
            truncated: false,
        }
    }

    async fn perform(
        &self,
        fields: Result<Fields, serde_json::Error>,
        streams: bool,
        client: &mut Client,
        record: &mut CallRecord,
        progress: &mut Progress,
    ) -> Result<(), End> {
        let mut prepared = match self.prepare(fields, streams, record) {
            Ok(prepared) => prepared,
            Err((kind, refusal)) => return Err(self.refuse(client, kind, refusal).await),
        };
        progress.translation = prepared.translation.take();
        let (server, extras) = (prepared.server, prepared.extras);
        let key = self.cache_key(&prepared);
        if let (Some(cache), Some(key)) = (&self.shared.cache, &key)
            && let Some(saved) = cache.get(key).await
        {
            record.cached = true;
            return self.pass(client, server, Received::saved(saved, streams), extras, progress).await;
        }
        progress.cache_key = key;
        let (_place, received) = self.ask(client, prepared, streams, record, progress).await?;
        self.pass(client, server, received, extras, progress).await
    }

    /// Sends the request, in turn with those of other sessions. The place is taken until the response has passed.
    async fn ask(
        &self,
        client: &mut Client,
        prepared: Prepared<'_>,
        streams: bool,
        record: &mut CallRecord,
        progress: &mut Progress,
    ) -> Result<(Place, Received), End> {
        let Prepared { server, url, body, .. } = prepared;
        let headers = server.headers(&self.headers, progress.translation.is_none());
        // Four bytes are about a token.
        let estimate = body.len() as u64 / 4;
        let place = client.wait(self.shared.enter(self.session.id, estimate)).await?;
        let (shared, session) = (&*self.shared, &*self.session);
        let exchange = Exchange { shared, session, url, headers, body, streams, estimate };
        match exchange.run(client, &mut record.tries).await? {
            Ok(received) => {
                progress.estimate = Some(estimate);
                Ok((place, received))
            }
            Err(failed) => Err(self.pass_failure(client, server, failed).await),
        }
    }

    /// The name of the response in the cache, if there is a cache.
    fn cache_key(&self, prepared: &Prepared<'_>) -> Option<String> {
        self.shared.cache.as_ref()?;
        let Prepared { server, url, body, .. } = prepared;
        let body = edit::without_session_fields(body.clone());
        let repeat = self.session.repeat(Sha256::digest(&body).into());
        Some(Cache::key(&self.session.cache_scope, server.dialect, url.as_str(), &body, repeat))
    }

    /// Saves a response in the cache, unless it reports an error or contains a secret. A stream may have one in several
    /// pieces, so that only the copy shows it.
    async fn save(&self, unsaved: Unsaved, copied: Option<&Copied>) {
        if copied.is_some_and(|copied| copied.error.is_some()) {
            return;
        }
        let response = copied.and_then(|copied| copied.response.as_ref()).map(Value::to_string);
        let is_secret = [Some(unsaved.body.as_ref()), response.as_deref().map(str::as_bytes)]
            .into_iter()
            .flatten()
            .any(|text| self.session.has_secret(text));
        if let Some(cache) = &self.shared.cache
            && !is_secret
        {
            cache.put(unsaved).await;
        }
    }

    fn note_response(&self, record: &mut CallRecord, copied: Copied, translation: Option<&AnswerContext>) {
        let Copied { response, usage, is_truncated, error, .. } = copied;
        let dialect = record.upstream_dialect;
        record.tokens = response.as_ref().and_then(|response| usage::tokens::find(dialect, response));
        let response = match translation {
            // A response that was cut may not be translatable; then it stays as the upstream wrote it.
            Some(context) => response.map(|response| context.response(response.clone()).unwrap_or(response)),
            None => response,
        };
        record.response = response.map(|response| self.session.masked(response));
        if let Some(CallUsage { tokens, raw }) = usage {
            record.usage = Some(tokens);
            record.raw_usage = Some(raw);
        }
        record.truncated = is_truncated;
        // A stream with an error in it also ends too early; the error says why.
        if error.is_some() {
            record.error = error;
        }
    }

    /// Counts what the call used.
    fn settle(&self, record: &mut CallRecord, estimate: Option<u64>) {
        if let Some(estimate) = estimate {
            let actual = record.usage.as_ref().map_or(estimate, |usage| usage.total_tokens());
            self.shared.settle(estimate, actual);
        }
        let Some(usage) = &mut record.usage else { return };
        if record.cached {
            usage.cost = Some(0.0);
            record.cost = Some(0.0);
            return;
        }
        if usage.cost.is_none() {
            let price = self.session.route(&record.model_asked).and_then(|route| route.price);
            let price = price.or_else(|| self.shared.config.prices.get(&record.model).copied());
            usage.cost = price.map(|price| price.cost(usage));
        }
        record.cost = usage.cost;
        let (tokens, cost) = (usage.total_tokens(), usage.cost.unwrap_or_default());
        self.session.spending.charge(tokens, cost);
        self.shared.spending.charge(tokens, cost);
    }
}
