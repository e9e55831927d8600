//! A scripted model server on loopback that follows the protocols of OpenAI, Anthropic and Google.

mod anthropic;
mod benchmark;
mod body;
mod chat;
mod fixed;
mod google;
mod hold;
mod render;
mod reply;
mod request;
mod responses;
mod script;
mod serve;
mod token;
mod validate;

use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, atomic::Ordering},
    thread,
};

pub use hold::Hold;
pub use reply::{Cut, ModelReply, Reasoning, Split, TokenCounts, TokenFields};
pub use request::{ModelRequest, RequestDialect};
pub use script::Script;
use serve::Shared;

/// A model server at a free port, in its own thread. It runs until it is dropped.
///
/// Requests are checked like strict servers do, and invalid ones are rejected with the same errors; a valid one
/// gets the next reply of the script.
pub struct ModelServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    _running: tokio::sync::oneshot::Sender<()>,
}

impl ModelServer {
    /// Answers with a function of the request.
    pub fn scripted(script: impl Fn(&ModelRequest) -> ModelReply + Send + Sync + 'static) -> Self {
        Self::start(Script::by(script))
    }

    /// Repeats the last message.
    pub fn echo() -> Self {
        Self::scripted(|request| ModelReply::text(request.last_text()))
    }

    /// Answers requests with these replies in order, and rejects those after them.
    pub fn sequence(replies: impl IntoIterator<Item = ModelReply>) -> Self {
        Self::start(Script::sequence(replies))
    }

    /// Answers every request with the same reply.
    pub fn always(reply: ModelReply) -> Self {
        Self::scripted(move |_| reply.clone())
    }

    /// Answers the first turn of every conversation with the first reply, and so on; later turns get the last
    /// one.
    pub fn turns(replies: impl IntoIterator<Item = ModelReply>) -> Self {
        Self::start(Script::turns(replies))
    }

    /// Answers sums, such as "What is 2+2?".
    pub fn arithmetic() -> Self {
        Self::start(Script::arithmetic())
    }

    /// Starts a server at a free port.
    pub fn start(script: Script) -> Self {
        Self::start_at(script, 0)
    }

    /// Starts a server at this port.
    pub fn start_at(script: Script, port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("listen on loopback");
        listener.set_nonblocking(true).expect("listen without blocking");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared::new(script));
        let (running, dropped) = tokio::sync::oneshot::channel();
        let serving = Arc::clone(&shared);
        thread::spawn(move || serve::run(listener, serving, dropped));
        Self { address, shared, _running: running }
    }

    /// Accepts only this key; without it, any key or none.
    #[must_use]
    pub fn key(self, key: &str) -> Self {
        *self.shared.key.lock().expect("no thread panics with the key") = Some(key.to_owned());
        self
    }

    /// The base address of the API, with `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The address of the server itself, without a path.
    pub fn root(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests for a reply so far, including rejected ones. A fixed script stores none.
    pub fn requests(&self) -> Vec<Arc<ModelRequest>> {
        self.shared.requests.lock().expect("no thread panics with the requests").clone()
    }

    /// The reasons of rejected requests so far.
    pub fn refusals(&self) -> Vec<String> {
        self.shared.refusals.lock().expect("no thread panics with the refusals").clone()
    }

    /// The number of requests for a reply so far.
    pub fn served(&self) -> usize {
        self.shared.served.load(Ordering::Acquire)
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// The most requests that waited for their headers at once.
    pub fn most_at_once(&self) -> usize {
        self.shared.most.load(Ordering::Relaxed)
    }
}
