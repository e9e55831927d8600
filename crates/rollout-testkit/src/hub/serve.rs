//! Connections to a hub, and their faults.

use std::{
    net::TcpListener,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{HeaderName, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

use super::{
    api::{self, Answer, HubRequest},
    fault::{Fault, Trouble},
    store::Store,
};

/// Makes the server drop its connection.
#[derive(Debug, thiserror::Error)]
#[error("the test cuts the connection here")]
struct CutHere;

/// Serves until the other end of `dropped` is dropped.
pub(super) fn run(
    hub: TcpListener,
    storage: TcpListener,
    shared: &Arc<Mutex<Store>>,
    dropped: oneshot::Receiver<()>,
) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("start a runtime");
    runtime.block_on(async {
        tokio::select! {
            () = accept(hub, false, shared) => (),
            () = accept(storage, true, shared) => (),
            _ = dropped => (),
        }
    });
}

async fn accept(listener: TcpListener, is_storage: bool, shared: &Arc<Mutex<Store>>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("listen in the runtime");
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, is_storage, &shared));
            // An error means that the client disconnected, or that a fault closed the connection.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    is_storage: bool,
    shared: &Mutex<Store>,
) -> Result<Response<Full<Bytes>>, CutHere> {
    let locked = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let (head, mut body) = request.into_parts();
    let line = format!("{}{} {}", if is_storage { "storage " } else { "" }, head.method, head.uri);
    let authorization =
        head.headers.get("authorization").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let trouble = {
        let mut store = locked();
        store.requests.push(line.clone());
        store.leaks += usize::from(is_storage && authorization.is_some());
        Fault::meet(&mut store.faults, &line)
    };
    match &trouble {
        Some(Trouble::Status(status, after)) => {
            // The whole body is read first, so that the client reads the answer instead of a broken connection.
            let _ = body.collect().await;
            let mut answer = Answer::error(*status, "the test refuses this");
            if let Some(after) = after {
                answer = answer.header("retry-after", &after.to_string());
            }
            return Ok(render(answer));
        }
        Some(Trouble::Redirect(to)) => {
            let _ = body.collect().await;
            return Ok(render(Answer::status(307).header("location", to)));
        }
        Some(Trouble::Answer(answer)) => {
            let _ = body.collect().await;
            return Ok(render(Answer::json(200, answer)));
        }
        Some(Trouble::CutRequest) => {
            let _ = body.frame().await;
            return Err(CutHere);
        }
        Some(Trouble::Hold(hold)) => hold.clone().wait().await,
        Some(Trouble::CutAnswer) | None => {}
    }
    let body = body.collect().await.map_err(|_| CutHere)?.to_bytes();
    let asked = HubRequest {
        method: head.method.as_str(),
        path: head.uri.path().trim_start_matches('/').split('/').map(decoded).collect(),
        query: head.uri.query().unwrap_or_default(),
        authorization: authorization.as_deref(),
        body,
    };
    let mut store = locked();
    let answer = if is_storage { api::storage(&mut store, &asked) } else { api::hub(&mut store, &asked) };
    match trouble {
        Some(Trouble::CutAnswer) => Err(CutHere),
        _ => Ok(render(answer)),
    }
}

fn render(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).expect("a status");
    for (name, value) in answer.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name of a header");
        response.headers_mut().insert(name, HeaderValue::from_str(&value).expect("a value of a header"));
    }
    response
}

/// A percent-decoded part of a path.
fn decoded(part: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = part.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => (bytes.push(byte), rest = &tail[2..]).1,
            None => (bytes.push(*first), rest = tail).1,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
