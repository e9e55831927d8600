//! One call of an agent: from its request to the line of its record.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
};
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::{
    answer::Refusal,
    cache::{Cache, Saved},
    client::{Client, Gone},
    copy::{Copied, ResponseCopy},
    dialect::Dialect,
    edit::{self, Extras, Fields},
    exchange::{Exchange, Failed, Received},
    parked::Fingerprint,
    record::{CallError, CallErrorKind, CallRecord},
    relay::Relay,
    session::SessionState,
    shared::Shared,
    translate::{self, AnswerContext, Target, Translated, TranslationError},
    upstream::{Operation, Server, response_headers},
    usage::{self, CallUsage},
};

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
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// What is known of a call's response while it passes.
#[derive(Debug, Default)]
struct Progress {
    /// The copy of a stream.
    copy: Option<ResponseCopy>,
    /// How the response is translated, if the upstream has another dialect.
    translation: Option<AnswerContext>,
    /// The estimated tokens that the rate limit counts until the real ones are known.
    estimate: Option<u64>,
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
        hash.update(format!("{:?} {:?} {streams}\n", self.dialect, self.model));
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
        let copied = progress.copy.map(ResponseCopy::finish);
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

    /// Refuses the call.
    async fn refuse(&self, client: &mut Client, kind: CallErrorKind, refusal: Refusal) -> End {
        match client.refuse(&refusal).await {
            Ok(()) => {
                client.finish();
                End::Failed(CallError::new(kind, refusal.message))
            }
            Err(Gone) => End::Gone,
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
        let mut fields = match fields {
            Ok(fields) => fields,
            Err(error) => {
                let message = format!("the request body is not a JSON object: {error}");
                let refusal = Refusal::new(StatusCode::BAD_REQUEST, message);
                return Err(self.refuse(client, CallErrorKind::InvalidRequest, refusal).await);
            }
        };
        let asked = self.model.clone().or_else(|| fields.text("model")).unwrap_or_default();
        record.model_asked.clone_from(&asked);
        let Some(route) = self.session.route(&asked) else {
            return Err(self.refuse(client, CallErrorKind::ModelNotAllowed, Refusal::model(&asked)).await);
        };
        let model = route.model(&asked);
        model.clone_into(&mut record.model);
        record.upstream_dialect = route.server.dialect;
        for spending in [&self.session.spending, &self.shared.spending] {
            if let Err(message) = spending.admit() {
                let refusal = Refusal::budget(self.dialect, message);
                return Err(self.refuse(client, CallErrorKind::BudgetExhausted, refusal).await);
            }
        }
        if !self.session.provider_tools {
            record.removed = edit::remove_provider_side(&mut fields, self.dialect);
        }
        let server = &route.server;
        let mut query = self.query.as_deref();
        if server.dialect != self.dialect {
            let target = Target { model, asked: &asked, stream: streams, now: record.started.as_second() };
            match translated(fields, self.dialect, server.dialect, &target) {
                Ok((translated, context, notes)) => {
                    fields = translated;
                    record.notes = notes;
                    progress.translation = Some(context);
                }
                Err(error) => {
                    let refusal = Refusal::new(StatusCode::BAD_REQUEST, error.to_string());
                    return Err(self.refuse(client, CallErrorKind::NotTranslatable, refusal).await);
                }
            }
            query = (server.dialect == Dialect::Gemini && streams).then_some("alt=sse");
        }
        edit::set_model(&mut fields, server.dialect, model);
        let extras = edit::ask_for_more(&mut fields, server.dialect, self.session.token_ids);
        let url = server.url(Operation::Generate { stream: streams }, model, query);
        let body = fields.into_bytes();
        let mut cached = self.cached(server, &url, &body).await;
        let received = match cached.saved.take() {
            Some(saved) => {
                record.cached = true;
                Received::saved(saved, streams)
            }
            None => {
                let headers = server.headers(&self.headers, progress.translation.is_none());
                // Four bytes are about a token.
                let estimate = body.len() as u64 / 4;
                let _place = client.wait(self.shared.enter(self.session.id, estimate)).await?;
                let exchange = Exchange {
                    shared: &self.shared,
                    session: &self.session,
                    url,
                    headers,
                    body,
                    streams,
                    estimate,
                };
                match exchange.run(client, &mut record.tries).await? {
                    Ok(received) => {
                        progress.estimate = Some(estimate);
                        received
                    }
                    Err(failed) => return Err(self.pass_failure(client, server, failed).await),
                }
            }
        };
        match received {
            Received::Whole { status, headers, body } => {
                let saved = body.clone();
                let translation = progress.translation.as_ref();
                self.pass_whole(client, record, (status, &headers, body), extras, translation).await?;
                cached.put(&headers, || saved).await;
                Ok(())
            }
            Received::Stream { status, headers, first, rest } => {
                let max_bytes = self.shared.config.max_record_bytes;
                let copy = ResponseCopy::new(server.dialect, max_bytes, cached.saves(), is_sse(&headers));
                let copy = progress.copy.insert(copy);
                let relay = match &progress.translation {
                    Some(context) => Relay::translated(context.stream()),
                    None => Relay::new(server.dialect, extras),
                };
                client.begin(status, response_headers(&headers))?;
                self.pass_stream(client, copy, relay, first, rest).await?;
                cached.put(&headers, || copy.take_bytes()).await;
                Ok(())
            }
        }
    }

    async fn pass_stream(
        &self,
        client: &mut Client,
        copy: &mut ResponseCopy,
        mut relay: Relay,
        first: Bytes,
        mut rest: Option<reqwest::Response>,
    ) -> Result<(), End> {
        let mut next = Some(first);
        while let Some(piece) = next {
            let piece = match relay.push(piece, copy) {
                Ok(piece) => piece,
                Err(error) => return Err(untranslatable(client, &error).await),
            };
            client.send(piece).await?;
            let Some(rest) = &mut rest else { break };
            next = match client.stay(rest.chunk()).await? {
                Ok(piece) => piece,
                Err(error) => {
                    client.cut().await;
                    let message = format!("the stream broke: {}", error.without_url());
                    return Err(End::Failed(CallError::new(CallErrorKind::Cut, message)));
                }
            };
        }
        let last = match relay.finish(copy) {
            Ok(last) => last,
            Err(error) => return Err(untranslatable(client, &error).await),
        };
        client.send(last).await?;
        if !copy.end() {
            let message = "the stream ended before the response was complete";
            return Err(End::Failed(CallError::new(CallErrorKind::Cut, message)));
        }
        Ok(())
    }

    /// Looks the response up in the cache, if there is one.
    async fn cached(&self, server: &Server, url: &reqwest::Url, body: &Bytes) -> Cached<'_> {
        let Some(cache) = &self.shared.cache else { return Cached { place: None, saved: None } };
        let request = Sha256::digest(body).into();
        let repeat = self.session.repeat(request);
        let key = Cache::key(&self.session.cache_scope, server.dialect, url.as_str(), body, repeat);
        let saved = cache.get(&key).await;
        Cached { place: saved.is_none().then_some((cache, key)), saved }
    }

    async fn pass_whole(
        &self,
        client: &mut Client,
        record: &mut CallRecord,
        (status, headers, body): (StatusCode, &HeaderMap, Bytes),
        extras: Extras,
        translation: Option<&AnswerContext>,
    ) -> Result<(), End> {
        let parsed: Option<Value> = serde_json::from_slice(&body).ok();
        let sent = match (&parsed, translation) {
            (Some(response), Some(context)) => match context.response(response.clone()) {
                Ok(translated) => translated.to_string().into(),
                Err(error) => {
                    let refusal = Refusal::new(StatusCode::BAD_GATEWAY, error.to_string());
                    return Err(self.refuse(client, CallErrorKind::NotTranslatable, refusal).await);
                }
            },
            (Some(response), None) if extras.tokens => {
                let mut stripped = response.clone();
                usage::tokens::remove(self.dialect, &mut stripped);
                stripped.to_string().into()
            }
            _ => body,
        };
        client.whole(status, response_headers(headers), sent).await?;
        let Some(response) = parsed else {
            let message = "the response of the upstream is not JSON";
            return Err(End::Failed(CallError::new(CallErrorKind::UpstreamFailed, message)));
        };
        self.note_response(record, Copied::whole(record.upstream_dialect, response), translation);
        Ok(())
    }

    /// Gives the agent the error of the upstream, without secrets.
    async fn pass_failure(&self, client: &mut Client, server: &Server, failed: Failed) -> End {
        let Failed { kind, message, response } = failed;
        let sent = match response {
            Some((status, headers, body)) if client.is_waiting() && server.dialect == self.dialect => {
                let clean = self.session.masked_text(&String::from_utf8_lossy(&body));
                let mut headers = response_headers(&headers);
                headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
                client.whole(status, headers, clean.into()).await
            }
            other => {
                let status = other.as_ref().map_or(StatusCode::BAD_GATEWAY, |(status, ..)| *status);
                let mut refusal = Refusal::new(status, self.session.masked_text(&message));
                refusal.is_final = false;
                if let Some((status, _, body)) = other
                    && let Ok(body) = serde_json::from_slice(&body)
                {
                    let (kind, message) = translate::read_error(status.as_u16(), &body);
                    refusal.kind = kind;
                    refusal.message = self.session.masked_text(&message);
                }
                client.refuse(&refusal).await
            }
        };
        match sent {
            Ok(()) => {
                client.finish();
                End::Failed(CallError::new(kind, format!("{}: {message}", server.shown())))
            }
            Err(Gone) => End::Gone,
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
        if let Some(message) = error {
            record.error = Some(CallError::new(CallErrorKind::UpstreamFailed, message));
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
            let price = self.shared.config.prices.get(&record.model);
            usage.cost = price.map(|price| price.cost(usage));
        }
        record.cost = usage.cost;
        let (tokens, cost) = (usage.total_tokens(), usage.cost.unwrap_or_default());
        self.session.spending.charge(tokens, cost);
        self.shared.spending.charge(tokens, cost);
    }
}

/// A request in the dialect of the upstream, what its answer's translation needs, and what was left out.
fn translated(
    fields: Fields,
    from: Dialect,
    to: Dialect,
    target: &Target<'_>,
) -> Result<(Fields, AnswerContext, Vec<String>), TranslationError> {
    let invalid = |error: serde_json::Error| TranslationError::Invalid {
        field: "body".to_owned(),
        problem: format!("is not JSON: {error}"),
    };
    let body = serde_json::from_slice(&fields.into_bytes()).map_err(invalid)?;
    let Translated { body, context, notes, .. } = translate::request(from, to, body, target)?;
    let fields = Fields::parse(body.to_string().into()).map_err(invalid)?;
    Ok((fields, context, notes))
}

/// Ends a stream that cannot be translated further: the agent must not take it for a whole response.
async fn untranslatable(client: &mut Client, error: &TranslationError) -> End {
    client.cut().await;
    let kind = match error {
        TranslationError::CutStream => CallErrorKind::Cut,
        TranslationError::Failed { .. } => CallErrorKind::UpstreamFailed,
        TranslationError::Invalid { .. } | TranslationError::Unsupported { .. } => {
            CallErrorKind::NotTranslatable
        }
    };
    End::Failed(CallError::new(kind, error.to_string()))
}

fn is_sse(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_none_or(|kind| !kind.starts_with("application/json"))
}

/// A call's response in the cache, or the place for it.
#[derive(Debug)]
struct Cached<'a> {
    place: Option<(&'a Cache, String)>,
    saved: Option<Saved>,
}

impl Cached<'_> {
    /// Whether a new response is saved.
    fn saves(&self) -> bool {
        self.place.is_some()
    }

    async fn put(&self, headers: &HeaderMap, body: impl FnOnce() -> Bytes) {
        if let Some((cache, key)) = &self.place {
            let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
            cache.put(key, content_type.unwrap_or_default().to_owned(), body()).await;
        }
    }
}
