//! Connections to a hub, and their faults.

use std::{
    net::TcpListener,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody, combinators::BoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
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
) -> Result<Response<BoxBody<Bytes, CutHere>>, CutHere> {
    let locked = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let (head, mut body) = request.into_parts();
    let from = head.headers.get("range").and_then(|value| value.to_str().ok()).and_then(range);
    let part = from.map(|from| format!(" from byte {from}")).unwrap_or_default();
    let place = if is_storage { "storage " } else { "" };
    let line = format!("{place}{} {}{part}", head.method, head.uri);
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
        Some(Trouble::CutAnswer | Trouble::CutBody(_) | Trouble::WrongByte) | None => {}
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
    let mut answer = if is_storage { api::storage(&mut store, &asked) } else { api::hub(&mut store, &asked) };
    if let Some(from) = from.filter(|_| answer.status == 200) {
        if from >= answer.body.len() {
            return Ok(render(Answer::status(416)));
        }
        let length = answer.body.len();
        answer.body = answer.body.slice(from..);
        answer.status = 206;
        answer = answer.header("content-range", &format!("bytes {from}-{}/{length}", length - 1));
    }
    match trouble {
        Some(Trouble::CutAnswer) => Err(CutHere),
        Some(Trouble::CutBody(bytes)) => Ok(render_cut(answer, Some(bytes))),
        Some(Trouble::WrongByte) => {
            let mut body = answer.body.to_vec();
            body.last_mut().into_iter().for_each(|last| *last ^= 1);
            Ok(render(Answer { body: body.into(), ..answer }))
        }
        _ => Ok(render(answer)),
    }
}

/// The first byte of `bytes=N-`.
fn range(header: &str) -> Option<usize> {
    header.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
}

fn render(answer: Answer) -> Response<BoxBody<Bytes, CutHere>> {
    render_cut(answer, None)
}

/// An answer whose body may end too early.
fn render_cut(answer: Answer, cut: Option<usize>) -> Response<BoxBody<Bytes, CutHere>> {
    let length = answer.body.len();
    let sent = answer.body.slice(..cut.unwrap_or(length).min(length));
    let cut = stream::iter(cut).then(|_| async {
        // What was sent before is flushed while this waits.
        tokio::task::yield_now().await;
        Err(CutHere)
    });
    let body = StreamBody::new(stream::iter([Ok(Frame::data(sent))]).chain(Box::pin(cut)));
    let mut response = Response::new(BoxBody::new(body));
    response.headers_mut().insert("content-length", HeaderValue::from(length));
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
