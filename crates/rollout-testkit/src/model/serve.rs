//! The server itself: accepts connections and answers requests.

use std::{
    net::TcpListener,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use http_body_util::BodyExt as _;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    ModelRequest, RequestDialect, Script,
    body::{Body, CutHere},
    render::{Rendering, refuse, render},
    reply::Cut,
    script::Kind,
    token,
    validate::validate,
};

/// The state shared by connections and the test.
pub(super) struct Shared {
    script: Script,
    pub(super) key: Mutex<Option<String>>,
    pub(super) requests: Mutex<Vec<Arc<ModelRequest>>>,
    pub(super) refusals: Mutex<Vec<String>>,
    pub(super) served: AtomicUsize,
    pub(super) connections: AtomicUsize,
    at_once: AtomicUsize,
    pub(super) most: AtomicUsize,
}

impl Shared {
    pub(super) fn new(script: Script) -> Self {
        Self {
            script,
            key: Mutex::default(),
            requests: Mutex::default(),
            refusals: Mutex::default(),
            served: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            at_once: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }
    }
}

/// Serves until the other end of `dropped` is dropped.
pub(super) fn run(listener: TcpListener, shared: Arc<Shared>, dropped: oneshot::Receiver<()>) {
    allow_connections();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("start a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).expect("listen in the runtime");
        tokio::select! {
            () = accept(&listener, &shared) => (),
            _ = dropped => (),
        }
    });
}

/// Raises the limit of open files as far as possible: a thousand clients need a thousand files.
fn allow_connections() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it, fewer clients are possible.
    let _ = setrlimit(Resource::Nofile, limit);
}

async fn accept(listener: &tokio::net::TcpListener, shared: &Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Most likely too many open files: others must be closed first.
            tokio::task::yield_now().await;
            continue;
        };
        // Streams should be sent as they are written; a failure only makes them slower.
        let _ = stream.set_nodelay(true);
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, &shared));
            // An error means that the client disconnected, or that the script closed the connection.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, shared: &Shared) -> Result<Response<Body>, CutHere> {
    let _waiting = Waiting::new(shared);
    let path = request.uri().path();
    if request.method() == Method::POST && path == "/tokenize" {
        let body = request.into_body().collect().await.map_err(|_| CutHere)?.to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        return Ok(json_response(&token::tokenized(&body)));
    }
    if request.method() == Method::POST && is_count(path) {
        let body = request.into_body().collect().await.map_err(|_| CutHere)?.to_bytes();
        let tokens = body.len() / 4;
        return Ok(json_response(&json!({"input_tokens": tokens, "totalTokens": tokens})));
    }
    let Some(dialect) = RequestDialect::of(path) else {
        return Ok(match (request.method(), path) {
            (&Method::GET, "/v1/models") => models(),
            _ => refuse(RequestDialect::Chat, StatusCode::NOT_FOUND, &format!("unknown path {path}")),
        });
    };
    if request.method() != Method::POST {
        return Ok(refuse(dialect, StatusCode::METHOD_NOT_ALLOWED, "use POST"));
    }
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| CutHere)?.to_bytes();
    let script = match &shared.script.0 {
        Kind::Fixed(fixed) => {
            shared.served.fetch_add(1, Ordering::Relaxed);
            return Ok(fixed.reply(dialect, head.uri.path(), &body));
        }
        Kind::By(script) => script,
    };
    let headers = head.headers.iter();
    let headers = headers
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let path = head.uri.path().to_owned();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let request = {
        let mut requests = locked(&shared.requests);
        let number = requests.len();
        let request = Arc::new(ModelRequest { number, dialect, path, headers, body });
        requests.push(Arc::clone(&request));
        // Counted last, so that every counted request is in the list.
        shared.served.fetch_add(1, Ordering::Release);
        request
    };
    let checked = validate(&request, locked(&shared.key).as_deref());
    if let Err((status, message)) = checked {
        let response = refuse(dialect, status, &message);
        locked(&shared.refusals).push(message);
        return Ok(response);
    }
    let reply = script(&request);
    if let Some(delay) = reply.delay {
        tokio::time::sleep(delay).await;
    }
    if let Some(hold) = reply.hold.clone() {
        hold.wait().await;
    }
    if reply.cut == Some(Cut::BeforeHeaders) {
        return Err(CutHere);
    }
    let rendering = Rendering {
        asked: request.asked(),
        number: request.number,
        model: request.model(),
        prompt_ids: token::prompt_ids(&request.body),
    };
    Ok(render(&reply, &rendering))
}

/// Whether a request asks only for the number of its tokens.
fn is_count(path: &str) -> bool {
    matches!(path, "/v1/messages/count_tokens" | "/v1/responses/input_tokens")
        || path.ends_with(":countTokens")
}

fn models() -> Response<Body> {
    let list = json!({"object": "list", "data": [
        {"id": "scripted", "object": "model", "created": 1_700_000_000, "owned_by": "rollout"},
    ]});
    json_response(&list)
}

fn json_response(body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::whole(body.to_string().into()));
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
    response
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that waits for its headers.
struct Waiting<'a>(&'a Shared);

impl<'a> Waiting<'a> {
    fn new(shared: &'a Shared) -> Self {
        let now = shared.at_once.fetch_add(1, Ordering::Relaxed) + 1;
        shared.most.fetch_max(now, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.at_once.fetch_sub(1, Ordering::Relaxed);
    }
}
