//! The thread of a fake cloud, with its machines and its listener, and answers over HTTP.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::HeaderValue,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{net::TcpListener, runtime::Handle, sync::oneshot};

use super::{faults::CloudTrouble, machine::CloudHost};

/// How long the tasks of a server may take to end.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// The thread of a fake. Dropping it ends the server and its machines.
pub(crate) struct CloudThread {
    address: SocketAddr,
    runtime: Handle,
    running: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CloudThread {
    /// Starts a server at a free port of loopback. `helper` is an executable that calls
    /// [`helper_main`](rollout_sandbox::helper_main), such as the command itself. `make` creates the fake's state, inside
    /// the runtime, and `serve` runs it until the thread ends.
    ///
    /// # Panics
    ///
    /// If sandboxes cannot be used on this machine.
    pub(crate) fn start<S: Send + Sync + 'static, F: Future<Output = ()>>(
        helper: PathBuf,
        make: impl FnOnce(CloudHost, SocketAddr) -> S + Send + 'static,
        serve: impl FnOnce(TcpListener, Arc<S>) -> F + Send + 'static,
    ) -> (Self, Arc<S>) {
        Self::start_sharing(helper, None, make, serve)
    }

    /// The same, with the images of machines in a directory that fakes share.
    ///
    /// # Panics
    ///
    /// If sandboxes cannot be used on this machine.
    pub(crate) fn start_sharing<S: Send + Sync + 'static, F: Future<Output = ()>>(
        helper: PathBuf,
        shared: Option<PathBuf>,
        make: impl FnOnce(CloudHost, SocketAddr) -> S + Send + 'static,
        serve: impl FnOnce(TcpListener, Arc<S>) -> F + Send + 'static,
    ) -> (Self, Arc<S>) {
        let (running, dropped) = oneshot::channel::<()>();
        let (sender, started) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let dir = TempDir::with_prefix("cloud-").expect("make a directory for the cloud");
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("start a runtime");
            runtime.block_on(async {
                let host = CloudHost::start(helper, dir.path().to_owned(), shared).await;
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen on loopback");
                let address = listener.local_addr().expect("a listener has an address");
                let state = Arc::new(make(host, address));
                // The test may have failed meanwhile.
                let _ = sender.send((address, Handle::current(), Arc::clone(&state)));
                tokio::select! {
                    () = serve(listener, state) => (),
                    _ = dropped => (),
                }
            });
            // Drops the tasks with their machines, before the directory.
            runtime.shutdown_timeout(END_PATIENCE);
        });
        let (address, runtime, state) = started.recv().expect("the server starts");
        (Self { address, runtime, running: Some(running), thread: Some(thread) }, state)
    }

    /// The address as a URL, without a slash at the end.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The runtime of the server, for work that a test asks for.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl Drop for CloudThread {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed; a second one would hide the test's own failure.
            let _ = thread.join();
        }
    }
}

/// Makes the server drop its connection.
#[derive(Debug, thiserror::Error)]
#[error("the test cuts the connection here")]
pub(crate) struct CutHere;

/// The answer to a request.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, CutHere>>;

/// Serves HTTP/1.1, with upgrades.
pub(crate) async fn serve_http<F>(
    listener: TcpListener,
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
) where
    F: Future<Output = Result<Answer, CutHere>> + Send + 'static,
{
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        // Small messages of streams are sent at once.
        let _ = stream.set_nodelay(true);
        let answer = answer.clone();
        tokio::spawn(async move {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            // An error means that the client disconnected, or that a fault closed the connection.
            let _ = connection.with_upgrades().await;
        });
    }
}

/// Handles a request with its fault. `refuse` is the vendor's form of an error, and `pretend` its answer to a success.
/// [`CloudTrouble::CutStream`] is handled as no fault; it concerns the stream.
pub(crate) async fn with_trouble(
    trouble: Option<CloudTrouble>,
    refuse: impl FnOnce(CloudTrouble) -> Answer,
    pretend: impl FnOnce() -> Answer,
    handle: impl Future<Output = Answer>,
) -> Result<Answer, CutHere> {
    match trouble {
        None | Some(CloudTrouble::CutStream(_)) => Ok(handle.await),
        Some(CloudTrouble::Slow(time)) => {
            tokio::time::sleep(time).await;
            Ok(handle.await)
        }
        Some(CloudTrouble::LoseRequest) => Err(CutHere),
        Some(CloudTrouble::LoseAnswer) => {
            drop(handle.await);
            Err(CutHere)
        }
        Some(CloudTrouble::Ignore) => Ok(pretend()),
        Some(trouble) => Ok(refuse(trouble)),
    }
}

/// The usual HTTP status of a fault that is an answer.
pub(crate) fn status_of(trouble: CloudTrouble) -> u16 {
    match trouble {
        CloudTrouble::Busy(_) => 429,
        CloudTrouble::Unauthorized => 401,
        CloudTrouble::Refusal | CloudTrouble::Quota => 403,
        _ => 503,
    }
}

/// Adds the `Retry-After` of a fault.
pub(crate) fn with_hint(mut answer: Answer, trouble: CloudTrouble) -> Answer {
    if let CloudTrouble::Busy(Some(seconds)) = trouble {
        answer.headers_mut().insert("retry-after", HeaderValue::from(seconds));
    }
    answer
}

/// An answer with a JSON body.
pub(crate) fn json_answer(status: u16, body: &Value) -> Answer {
    bytes_answer(status, "application/json", body.to_string())
}

/// An answer with a body.
pub(crate) fn bytes_answer(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    with_body(status, content_type, body)
}

/// An answer whose body is sent as it becomes available.
pub(crate) fn streamed_answer(
    content_type: &'static str,
    parts: impl Stream<Item = Result<Bytes, CutHere>> + Send + 'static,
) -> Answer {
    with_body(200, content_type, StreamBody::new(parts.map(|part| part.map(Frame::data))).boxed_unsync())
}

fn with_body(status: u16, content_type: &'static str, body: UnsyncBoxBody<Bytes, CutHere>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert("content-type", HeaderValue::from_static(content_type));
    answer
}
