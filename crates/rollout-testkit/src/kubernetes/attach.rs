//! Attach and exec over WebSockets, in the protocols `v4.channel.k8s.io` and `v5.channel.k8s.io`.
//!
//! The first byte of a message is its channel: 0 for input, 1 and 2 for output, 3 for the final status, 4 for sizes of
//! terminals, and in version 5 255 for the end of the channel in the next byte.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use hyper::{Request, body::Incoming, header::HeaderValue};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::AsyncReadExt as _,
    net::unix::pipe,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message, Utf8Bytes,
        handshake::derive_accept_key,
        protocol::{CloseFrame, Role, frame::coding::CloseCode},
    },
};

use super::{
    container::{self, Container, Output},
    query::Query,
    refusal::Refusal,
    serve::{Answer, empty},
    state::ClusterState,
    store::Key,
};
use crate::piped::{self, Piped};

const STATUS: u8 = 3;
const CLOSE: u8 = 255;

/// The time that a client has to answer the closing handshake.
const CLOSING: Duration = Duration::from_secs(10);

/// What a stream is connected to.
enum Target {
    Attach(Arc<Container>),
    Exec(Box<Piped>),
}

/// Answers a request for a stream, and serves it in the background.
pub(super) async fn connect(
    cluster: &Arc<ClusterState>,
    key: &Key,
    part: &str,
    query: &Query,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let (pod, object) = {
        let state = cluster.lock();
        let object = state.store.get(key).cloned().ok_or_else(|| Refusal::not_found("pods", &key.name))?;
        let pod = object["metadata"]["uid"].as_str().and_then(|uid| state.pods.get(uid)).cloned();
        (pod.ok_or_else(|| Refusal::not_found("pods", &key.name))?, object)
    };
    let (accept, version5) = handshake(&request)?;
    let spec = &object["spec"]["containers"];
    let name = query.get("container").unwrap_or_else(|| spec[0]["name"].as_str().unwrap_or_default());
    let found = pod.container(name).filter(|container| container.exit_code().is_none());
    let found = found.ok_or_else(|| {
        Refusal::bad_request(format!("container {name} of pod {} is not running", key.name))
    })?;
    let target = if part == "attach" {
        Target::Attach(found)
    } else {
        let sandbox = pod.sandbox().ok_or_else(|| Refusal::bad_request("the pod has ended"))?;
        let argv: Vec<String> = query.all("command").map(str::to_owned).collect();
        let found = spec.as_array().into_iter().flatten().find(|container| container["name"] == name);
        let settings = container::settings(&object, found.unwrap_or(&Value::Null));
        let started = piped::start(&sandbox, argv, settings, query.flag("stdin")).await;
        Target::Exec(Box::new(started.map_err(|(_, message)| Refusal::new(500, "InternalError", message))?))
    };
    let session =
        Session { stdin: query.flag("stdin"), version5, budget: pod.next_cut().map(AtomicU64::new) };
    let mut response = empty(101);
    let headers = response.headers_mut();
    headers.insert("upgrade", HeaderValue::from_static("websocket"));
    headers.insert("connection", HeaderValue::from_static("Upgrade"));
    let protocol = if version5 { "v5.channel.k8s.io" } else { "v4.channel.k8s.io" };
    headers.insert("sec-websocket-protocol", HeaderValue::from_static(protocol));
    let accept = HeaderValue::from_str(&accept).map_err(|_| Refusal::bad_request("invalid key"))?;
    headers.insert("sec-websocket-accept", accept);
    let (breaks, lost) = (cluster.breaks.subscribe(), pod.lost.subscribe());
    tokio::spawn(async move {
        // The client may disconnect before the connection is handed over.
        let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        session.serve(socket, target, breaks, lost).await;
    });
    Ok(response)
}

/// Checks the request of a client; returns the key of the answer, and whether it speaks version 5.
fn handshake(request: &Request<Incoming>) -> Result<(String, bool), Refusal> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let key = header("sec-websocket-key")
        .filter(|_| header("upgrade").is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket")));
    let key = key.ok_or_else(|| Refusal::bad_request("unable to upgrade: only WebSockets are supported"))?;
    let protocols: Vec<&str> =
        header("sec-websocket-protocol").unwrap_or_default().split(',').map(str::trim).collect();
    let version5 = protocols.contains(&"v5.channel.k8s.io");
    if !version5 && !protocols.contains(&"v4.channel.k8s.io") {
        return Err(Refusal::new(
            403,
            "Forbidden",
            "unable to negotiate a protocol: only v4 and v5 are supported",
        ));
    }
    Ok((derive_accept_key(key.as_bytes()), version5))
}

/// A stream with a client.
struct Session {
    stdin: bool,
    version5: bool,
    /// The number of bytes that are left before the stream is cut.
    budget: Option<AtomicU64>,
}

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

impl Session {
    async fn serve(
        &self,
        socket: Socket,
        target: Target,
        mut breaks: watch::Receiver<u64>,
        mut lost: watch::Receiver<bool>,
    ) {
        breaks.mark_unchanged();
        let (mut sink, mut stream) = socket.split();
        let broken = async {
            tokio::select! {
                // The senders live as long as the cluster and the pod.
                _ = breaks.changed() => {}
                _ = lost.wait_for(|lost| *lost) => {}
            }
        };
        let both = async {
            match target {
                Target::Attach(container) => {
                    let outputs = container.attach();
                    let read = self.read(&mut stream, Input::Container(&container));
                    let write = self.write(&mut sink, outputs, async { success() });
                    let written = tokio::select! { () = read => false, written = write => written };
                    if self.stdin && container.stdin_once {
                        container.close_stdin().await;
                    }
                    written
                }
                Target::Exec(piped) => {
                    let Piped { mut process, stdin, stdout, stderr } = *piped;
                    let (sender, outputs) = mpsc::channel(16);
                    tokio::spawn(pass(1, stdout, sender.clone()));
                    tokio::spawn(pass(2, stderr, sender));
                    let stdin = tokio::sync::Mutex::new(stdin);
                    let read = self.read(&mut stream, Input::Pipe(&stdin));
                    let end = async {
                        process.wait().await.map_or_else(
                            |_| failure(137),
                            |exit| match piped::exit_code(exit.status) {
                                0 => success(),
                                code => failure(code),
                            },
                        )
                    };
                    let write = self.write(&mut sink, outputs, end);
                    let written = tokio::select! { () = read => false, written = write => written };
                    // An error means that it has ended with its sandbox.
                    let _ = process.kill_tree().await;
                    written
                }
            }
        };
        let written = tokio::select! { written = both => written, () = broken => false };
        if written {
            // Unread input would reset the connection, and the client would lose the last messages.
            let drain = async { while let Some(Ok(_)) = stream.next().await {} };
            let _ = timeout(CLOSING, drain).await;
        }
    }

    /// Reads the messages of the client until it disconnects or the stream is to be cut.
    async fn read(
        &self,
        stream: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
        input: Input<'_>,
    ) {
        while let Some(Ok(message)) = stream.next().await {
            let Message::Binary(data) = message else { continue };
            match data.first() {
                Some(0) if self.stdin => {
                    let allowed = self.spend(data.len() - 1);
                    input.write(&data[1..=allowed]).await;
                    if allowed < data.len() - 1 {
                        return;
                    }
                }
                Some(&CLOSE) if self.version5 && data.get(1) == Some(&0) => input.close().await,
                _ => {}
            }
        }
    }

    /// Sends the output and the final status. Returns false if the stream is to be cut or the client is gone.
    async fn write(
        &self,
        sink: &mut (impl Sink<Message, Error = Error> + Unpin),
        mut outputs: mpsc::Receiver<Output>,
        end: impl Future<Output = Value>,
    ) -> bool {
        // Kubelets announce the stream with an empty message.
        if sink.send(message(1, &[])).await.is_err() {
            return false;
        }
        while let Some((channel, data)) = outputs.recv().await {
            let allowed = self.spend(data.len());
            if sink.send(message(channel, &data[..allowed])).await.is_err() || allowed < data.len() {
                return false;
            }
        }
        let status = end.await.to_string();
        // The official client takes a close without a code for an error.
        let normal = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
        sink.send(message(STATUS, status.as_bytes())).await.is_ok()
            && sink.send(Message::Close(Some(normal))).await.is_ok()
    }

    /// The number of bytes of a message that still pass.
    fn spend(&self, bytes: usize) -> usize {
        let Some(budget) = &self.budget else { return bytes };
        let taken = |left: u64| Some(left.saturating_sub(bytes as u64));
        let left = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).unwrap_or(0);
        bytes.min(usize::try_from(left).unwrap_or(usize::MAX))
    }
}

/// The standard input of a stream's target.
enum Input<'a> {
    Container(&'a Container),
    Pipe(&'a tokio::sync::Mutex<Option<pipe::Sender>>),
}

impl Input<'_> {
    /// Input of a process that no longer reads is dropped.
    async fn write(&self, data: &[u8]) {
        use tokio::io::AsyncWriteExt as _;
        match self {
            Input::Container(container) => {
                container.write(data).await;
            }
            Input::Pipe(pipe) => {
                if let Some(pipe) = &mut *pipe.lock().await {
                    let _ = pipe.write_all(data).await;
                }
            }
        }
    }

    async fn close(&self) {
        match self {
            Input::Container(container) => container.close_stdin().await,
            Input::Pipe(pipe) => *pipe.lock().await = None,
        }
    }
}

/// Passes output to a stream until one of both ends.
async fn pass(channel: u8, mut output: pipe::Receiver, sender: mpsc::Sender<Output>) {
    let mut buffer = vec![0; 32 * 1024];
    while let Ok(length @ 1..) = output.read(&mut buffer).await {
        if sender.send((channel, Bytes::copy_from_slice(&buffer[..length]))).await.is_err() {
            return;
        }
    }
}

fn message(channel: u8, data: &[u8]) -> Message {
    let mut bytes = BytesMut::with_capacity(data.len() + 1);
    bytes.put_u8(channel);
    bytes.put_slice(data);
    Message::Binary(bytes.freeze())
}

fn success() -> Value {
    json!({"metadata": {}, "status": "Success"})
}

fn failure(code: i32) -> Value {
    let cause = json!({"reason": "ExitCode", "message": code.to_string()});
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]},
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
    })
}
