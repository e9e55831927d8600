//! Connections to the API server, and their faults.

use std::{
    net::TcpListener,
    path::PathBuf,
    sync::{Arc, mpsc},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{HeaderName, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rollout_sandbox::{EngineOptions, SandboxEngine};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    api::{self, ApiRequest},
    attach,
    query::Query,
    refusal::Refusal,
    registry::RegistryRequest,
    state::ClusterState,
    watch::watch,
};
use crate::{ApiFault, ApiTrouble};

/// Makes the server drop its connection.
#[derive(Debug, thiserror::Error)]
#[error("the test cuts the connection here")]
pub(super) struct CutHere;

/// The answer to a request.
pub(super) type Answer = Response<UnsyncBoxBody<Bytes, CutHere>>;

/// Serves until the other end of `dropped` is dropped.
pub(super) fn run(
    listener: TcpListener,
    helper: PathBuf,
    state_dir: PathBuf,
    started: &mpsc::Sender<Arc<ClusterState>>,
    dropped: oneshot::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("start a runtime");
    let engine = runtime.block_on(async {
        let options = EngineOptions { helper, state_dir: state_dir.clone() };
        let engine = SandboxEngine::start(options).await.expect("start the sandboxes");
        let cluster = Arc::new(ClusterState::new(engine.clone(), state_dir));
        // The test may have failed meanwhile.
        let _ = started.send(Arc::clone(&cluster));
        tokio::select! {
            () = accept(listener, &cluster) => (),
            _ = dropped => (),
        }
        engine
    });
    // Drops the tasks with their sandboxes.
    runtime.shutdown_background();
    drop(engine);
}

async fn accept(listener: TcpListener, cluster: &Arc<ClusterState>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("listen in the runtime");
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        // Small messages of streams are sent at once.
        let _ = stream.set_nodelay(true);
        let cluster = Arc::clone(cluster);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, &cluster));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // An error means that the client disconnected, or that a fault closed the connection.
            let _ = connection.with_upgrades().await;
        });
    }
}

async fn answer(mut request: Request<Incoming>, cluster: &Arc<ClusterState>) -> Result<Answer, CutHere> {
    let path = request.uri().path().to_owned();
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let content_type =
        request.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let patch_type = content_type.to_owned();
    let body = request.body_mut().collect().await.map_err(|_| CutHere)?.to_bytes();
    if let Some(path) = path.strip_prefix("/v2/") {
        let (method, content_type) = (request.method().as_str(), patch_type.as_str());
        return Ok(cluster.ask_registry(&RegistryRequest {
            method,
            path,
            query: &query,
            content_type,
            body,
        }));
    }
    // Bodies that are not JSON are refused where one is needed.
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let Some(asked) = ApiRequest::new(request.method().as_str(), &path, query, body, patch_type) else {
        return Ok(other(&path));
    };
    let trouble = {
        let mut state = cluster.lock();
        state.calls.count(&asked.call());
        ApiFault::meet(&mut state.api_faults, &asked.line())
    };
    match trouble {
        Some(ApiTrouble::Status(code, after)) => return Ok(refuse(&Refusal::injected(code, after))),
        Some(ApiTrouble::StatusAfter(code)) => {
            // The client sees only the status of the proxy.
            let _ = api::handle(cluster, &asked);
            return Ok(refuse(&Refusal::injected(code, None)));
        }
        Some(ApiTrouble::LoseRequest) => return Err(CutHere),
        Some(ApiTrouble::Ignore) => {
            let success = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
            return Ok(json_answer(200, &success));
        }
        Some(ApiTrouble::Hold(hold)) => hold.wait().await,
        Some(ApiTrouble::LoseAnswer) => {
            // The client sees neither success nor failure.
            let _ = api::handle(cluster, &asked);
            return Err(CutHere);
        }
        None => {}
    }
    if asked.verb == "watch" {
        return Ok(streamed(watch(cluster, asked.resource, asked.namespace.as_deref(), &asked.query)));
    }
    if asked.verb == "connect" {
        let part = asked.part.as_deref().unwrap_or_default();
        let connected = attach::connect(cluster, &asked.key(), part, &asked.query, request).await;
        return Ok(connected.unwrap_or_else(|refusal| refuse(&refusal)));
    }
    Ok(match api::handle(cluster, &asked) {
        Ok(api::Reply::Json(code, value)) => json_answer(code, &value),
        Ok(api::Reply::Text(text)) => with_body(200, "text/plain", text),
        Err(refusal) => refuse(&refusal),
    })
}

/// The answer to a path that names no objects.
fn other(path: &str) -> Answer {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match &parts[..] {
        ["healthz" | "readyz" | "livez", ..] => with_body(200, "text/plain", Bytes::from_static(b"ok")),
        ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"] => {
            let status = json!({"allowed": true});
            let kind = "SelfSubjectAccessReview";
            json_answer(
                201,
                &json!({"kind": kind, "apiVersion": "authorization.k8s.io/v1", "status": status}),
            )
        }
        parts => match super::resource::discovery(parts) {
            Some(document) => json_answer(200, &document),
            None => {
                refuse(&Refusal::new(404, "NotFound", "the server could not find the requested resource"))
            }
        },
    }
}

fn refuse(refusal: &Refusal) -> Answer {
    let mut answer = json_answer(refusal.code, &refusal.body());
    if let Some(seconds) = refusal.retry_after {
        answer.headers_mut().insert("retry-after", HeaderValue::from(seconds));
    }
    answer
}

fn json_answer(code: u16, value: &Value) -> Answer {
    with_body(code, "application/json", value.to_string().into())
}

/// An answer with a body of a media type.
pub(super) fn with_body(code: u16, kind: &str, body: Bytes) -> Answer {
    let mut answer = Response::new(UnsyncBoxBody::new(Full::new(body).map_err(|never| match never {})));
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Ok(kind) = HeaderValue::from_str(kind) {
        answer.headers_mut().insert(HeaderName::from_static("content-type"), kind);
    }
    answer
}

/// An answer without a body.
pub(super) fn empty(code: u16) -> Answer {
    let mut answer = with_body(code, "text/plain", Bytes::new());
    answer.headers_mut().clear();
    answer
}

fn streamed(events: impl Stream<Item = Result<Frame<Bytes>, CutHere>> + Send + 'static) -> Answer {
    let mut answer = empty(200);
    answer.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    *answer.body_mut() = UnsyncBoxBody::new(StreamBody::new(events.boxed()));
    answer
}
