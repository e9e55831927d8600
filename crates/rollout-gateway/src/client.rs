//! The agent's end of a call: gets the head and the body of the response, and may leave at any time.

use std::{io, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
};
use bytes::Bytes;
use futures_util::stream;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use crate::{
    answer::{Refusal, respond},
    dialect::Dialect,
    parked::Parked,
};

/// Pieces of a body that wait for a slow agent.
const QUEUE: usize = 8;

/// How long an agent may take nothing of a response. It has a place of the gateway's until then.
const STALLED: Duration = Duration::from_secs(300);

/// The agent left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gone;

/// Where a response goes.
#[derive(Debug)]
pub(crate) struct Client {
    dialect: Dialect,
    /// Whether the agent asked for server-sent events.
    streams: bool,
    keep_alive: Duration,
    /// What later tries of the same request get to know.
    parked: Arc<Parked>,
    state: State,
    /// The status that was sent.
    pub(crate) status: u16,
    first_byte: Option<Instant>,
    is_filled: bool,
}

#[derive(Debug)]
enum State {
    /// Nothing was sent.
    Waiting(oneshot::Sender<Response<Body>>),
    /// The agent left before anything was sent. Its client may ask again.
    Parked {
        head: Option<(StatusCode, HeaderMap)>,
        body: Vec<u8>,
    },
    /// The body is being sent.
    Begun(mpsc::Sender<io::Result<Bytes>>),
    Over,
}

impl Client {
    pub(crate) fn new(
        dialect: Dialect,
        streams: bool,
        keep_alive: Duration,
        parked: Arc<Parked>,
    ) -> (Self, oneshot::Receiver<Response<Body>>) {
        let (head, answer) = oneshot::channel();
        let state = State::Waiting(head);
        (
            Self {
                dialect,
                streams,
                keep_alive,
                parked,
                state,
                status: 0,
                first_byte: None,
                is_filled: false,
            },
            answer,
        )
    }

    /// When the first byte was sent.
    pub(crate) fn first_byte(&self) -> Option<Instant> {
        self.first_byte
    }

    /// Whether the status can still be chosen.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_) | State::Parked { head: None, .. })
    }

    /// Waits for something, while the agent waits too: it gets signs of life, and may leave.
    ///
    /// If it leaves before anything was sent, the call goes on: most likely its client asks again.
    pub(crate) async fn wait<T>(&mut self, waiting: impl Future<Output = T>) -> Result<T, Gone> {
        let mut waiting = std::pin::pin!(waiting);
        let (streams, keep_alive) = (self.streams, self.keep_alive);
        loop {
            tokio::select! {
                biased;
                done = &mut waiting => return Ok(done),
                () = self.left() => self.leave()?,
                () = tokio::time::sleep(keep_alive), if streams => self.show_life().await?,
            }
        }
    }

    /// The same in the middle of a response, where a sign of life could be between two halves of an event.
    pub(crate) async fn stay<T>(&mut self, waiting: impl Future<Output = T>) -> Result<T, Gone> {
        let mut waiting = std::pin::pin!(waiting);
        loop {
            tokio::select! {
                biased;
                done = &mut waiting => return Ok(done),
                () = self.left() => self.leave()?,
            }
        }
    }

    /// Sends the head of a response.
    pub(crate) fn begin(&mut self, status: StatusCode, headers: HeaderMap) -> Result<(), Gone> {
        self.status = status.as_u16();
        match std::mem::replace(&mut self.state, State::Over) {
            State::Waiting(head) => {
                let (pieces, body) = mpsc::channel(QUEUE);
                let body = stream::unfold(body, async |mut body: mpsc::Receiver<io::Result<Bytes>>| {
                    body.recv().await.map(|piece| (piece, body))
                });
                match head.send(respond(status, headers.clone(), Body::from_stream(body))) {
                    Ok(()) => self.state = State::Begun(pieces),
                    Err(_) => self.park(Some((status, headers)), Vec::new()),
                }
            }
            State::Parked { body, .. } => self.park(Some((status, headers)), body),
            // Signs of life were sent: the status cannot change any more.
            begun @ State::Begun(_) => self.state = begun,
            State::Over => return Err(Gone),
        }
        Ok(())
    }

    /// Sends a piece of the body.
    pub(crate) async fn send(&mut self, piece: Bytes) -> Result<(), Gone> {
        if piece.is_empty() {
            return Ok(());
        }
        self.first_byte.get_or_insert_with(Instant::now);
        match &mut self.state {
            State::Begun(pieces) => pieces.send_timeout(Ok(piece), STALLED).await.map_err(|_| Gone),
            State::Parked { body, .. } => {
                if body.len() + piece.len() > Parked::MAX_BYTES {
                    return Err(Gone);
                }
                body.extend_from_slice(&piece);
                Ok(())
            }
            State::Waiting(_) | State::Over => Err(Gone),
        }
    }

    /// Sends a whole response.
    pub(crate) async fn whole(
        &mut self,
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(), Gone> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Waiting(head) => {
                self.status = status.as_u16();
                self.first_byte.get_or_insert_with(Instant::now);
                if head.send(respond(status, headers.clone(), Body::from(body.clone()))).is_err() {
                    self.park(Some((status, headers)), body.to_vec());
                }
                Ok(())
            }
            other => {
                self.state = other;
                self.begin(status, headers)?;
                self.send(body).await
            }
        }
    }

    /// Sends an answer of the gateway itself.
    pub(crate) async fn refuse(&mut self, refusal: &Refusal) -> Result<(), Gone> {
        if self.is_waiting() {
            let body = refusal.body(self.dialect).to_string();
            return self.whole(refusal.status, refusal.headers(), body.into()).await;
        }
        self.send(refusal.event(self.dialect).into()).await
    }

    /// Ends the response where it is, as if the connection broke.
    pub(crate) async fn cut(&mut self) {
        if let State::Begun(pieces) = &self.state {
            let _ = pieces.send(Err(io::ErrorKind::ConnectionAborted.into())).await;
        }
        self.state = State::Over;
    }

    /// Ends a response that is complete.
    pub(crate) fn finish(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Over);
        if let State::Parked { head: Some((status, headers)), body } = state {
            self.parked.fill(status, headers, body.into());
            self.is_filled = true;
        }
    }

    fn park(&mut self, head: Option<(StatusCode, HeaderMap)>, body: Vec<u8>) {
        self.parked.leave();
        self.state = State::Parked { head, body };
    }

    async fn left(&mut self) {
        match &mut self.state {
            State::Waiting(head) => head.closed().await,
            State::Begun(pieces) => pieces.closed().await,
            State::Parked { .. } | State::Over => std::future::pending().await,
        }
    }

    fn leave(&mut self) -> Result<(), Gone> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Waiting(_) => {
                self.park(None, Vec::new());
                Ok(())
            }
            _ => Err(Gone),
        }
    }

    /// Sends something that clients ignore, so that none of the connections on the way is closed for silence.
    async fn show_life(&mut self) -> Result<(), Gone> {
        if matches!(self.state, State::Parked { .. } | State::Over) {
            return Ok(());
        }
        if self.is_waiting() {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            self.begin(StatusCode::OK, headers)?;
        }
        let State::Begun(pieces) = &self.state else { return Ok(()) };
        pieces.send(Ok(Bytes::from_static(sign_of_life(self.dialect)))).await.map_err(|_| Gone)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.is_filled {
            self.parked.give_up();
        }
    }
}

/// Gemini's clients fail on comments; all others accept them.
fn sign_of_life(dialect: Dialect) -> &'static [u8] {
    match dialect {
        Dialect::Chat | Dialect::Responses => b": keep-alive\n\n",
        Dialect::Messages => b"event: ping\ndata: {\"type\": \"ping\"}\n\n",
        Dialect::Gemini => {
            b"data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"\"}], \"role\": \"model\"}, \"index\": 0}]}\n\n"
        }
    }
}
