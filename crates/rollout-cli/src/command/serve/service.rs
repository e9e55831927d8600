//! What is asked of a service, and what it answers.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use rollout::{
    job::Cancel,
    model::{FairLimiter, Limits},
    record::redact::Redactor,
};
use rollout_http::{AccessGuard, BodyError, read_json_body};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{problem::Problem, request::Offer, source::Ids, stream};

/// Requests that are served at a time. Each holds some groups in memory.
const MAX_REQUESTS: u32 = 64;

/// The largest body of a request, in bytes.
const MAX_BODY: usize = 16 << 20;

/// Everything that requests share.
pub(super) struct Service {
    pub(super) offer: Offer,
    pub(super) limiter: FairLimiter,
    pub(super) cancel: Cancel,
    /// Groups that are scored and that no client has taken.
    pub(super) unread: Arc<AtomicUsize>,
    seats: Arc<Semaphore>,
    env_id: String,
    limits: Limits,
}

impl Service {
    /// A service of one dataset, with the limits of each rollout.
    pub(super) fn new(env_id: String, limits: Limits, offer: Offer, cancel: Cancel) -> Self {
        Self {
            limiter: FairLimiter::new(offer.concurrency),
            offer,
            cancel,
            unread: Arc::default(),
            seats: Arc::new(Semaphore::new(MAX_REQUESTS as usize)),
            env_id,
            limits,
        }
    }

    /// Waits until no request has anything under way.
    pub(super) async fn idle(&self) {
        // The seats are never closed, so they come back.
        let _ = self.seats.acquire_many(MAX_REQUESTS).await;
    }
}

/// The routes, behind the guard.
pub(super) fn router(service: Arc<Service>, guard: AccessGuard) -> Router {
    let router = Router::new()
        .route("/health", get(health))
        .route("/v1/info", get(info))
        .route("/v1/examples", get(examples))
        .route("/v1/rollouts", post(rollouts))
        .fallback(async || {
            let routes = "known paths: GET /health, GET /v1/info, GET /v1/examples, POST /v1/rollouts";
            Problem::new(StatusCode::NOT_FOUND, "unknown path").hint(routes)
        })
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path does not support the method")
        })
        .with_state(service);
    guard.protect(router, |denied| Problem::new(denied.status(), denied.to_string()).hint(denied.hint()))
}

async fn health() -> Json<serde_json::Value> {
    Json(serde_json::json!({"status": "ok"}))
}

/// The response to `GET /v1/info`.
#[derive(Debug, Serialize)]
struct Info<'a> {
    env_id: &'a str,
    model: &'a str,
    sampling: Value,
    token_ids: bool,
    examples: usize,
    rollouts_per_example: NonZeroU32,
    n_concurrent_trials: NonZeroU32,
    limits: LimitsInfo,
    in_flight: InFlight,
}

#[derive(Debug, Serialize)]
struct LimitsInfo {
    max_turns: Option<u32>,
    max_completion_tokens: Option<u64>,
    max_total_tokens: Option<u64>,
    max_cost: Option<f64>,
    timeout_sec: Option<f64>,
    max_requests: u32,
    max_body_bytes: usize,
}

#[derive(Debug, Serialize)]
struct InFlight {
    requests: usize,
    rollouts_running: usize,
    rollouts_waiting: usize,
    groups_unread: usize,
}

async fn info(State(service): State<Arc<Service>>) -> Response {
    let Limits { max_turns, max_completion_tokens, max_total_tokens, max_cost, timeout } = service.limits;
    let model = service.offer.policy.model();
    let redactor = Redactor::new(service.offer.secrets.iter().map(String::as_str));
    Json(Info {
        env_id: &service.env_id,
        model: &model.name,
        sampling: redactor.json(Value::Object(model.sampling.clone())),
        token_ids: service.offer.policy.gives_tokens(),
        examples: service.offer.source.len(),
        rollouts_per_example: service.offer.per_example,
        n_concurrent_trials: service.offer.concurrency,
        limits: LimitsInfo {
            max_turns,
            max_completion_tokens,
            max_total_tokens,
            max_cost,
            timeout_sec: timeout.map(|timeout| timeout.as_secs_f64()),
            max_requests: MAX_REQUESTS,
            max_body_bytes: MAX_BODY,
        },
        in_flight: InFlight {
            requests: MAX_REQUESTS as usize - service.seats.available_permits(),
            rollouts_running: service.limiter.taken(),
            rollouts_waiting: service.limiter.waiting(),
            groups_unread: service.unread.load(Ordering::Relaxed),
        },
    })
    .into_response()
}

async fn examples(State(service): State<Arc<Service>>) -> Response {
    let ids: Ids<'_> = service.offer.source.ids();
    Json(ids).into_response()
}

async fn rollouts(State(service): State<Arc<Service>>, request: Request) -> Result<Response, Problem> {
    if service.cancel.graceful.is_cancelled() {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the service is stopping"));
    }
    let Ok(seat) = Arc::clone(&service.seats).try_acquire_owned() else {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too many running requests");
        let hint = format!(
            "retry later; {MAX_REQUESTS} requests are served at a time, and each may have many inputs"
        );
        return Err(problem.hint(hint).retry_after(1));
    };
    let body = read_json_body(request, MAX_BODY).await.map_err(unread)?;
    let asked = service.offer.read(&body).map_err(|problems| {
        let problem = Problem::new(StatusCode::BAD_REQUEST, problems.join("\n"));
        problem
            .hint("GET /v1/examples lists the available examples and tasks, and docs/training.md describes the request")
    })?;
    drop(body);
    let lines = stream::start(service, asked, seat);
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response())
}

fn unread(error: BodyError) -> Problem {
    let problem = Problem::new(error.status(), error.to_string());
    match error {
        BodyError::NotJson => problem.hint("send `Content-Type: application/json`"),
        BodyError::TooLarge(_) => problem.hint("send fewer inputs in one request, or send ids"),
        BodyError::Late | BodyError::Broken(_) => problem,
    }
}
