//! The gateway itself: a listener, and the sessions that are open.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use rollout_http::ConnectionLimits;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{GatewayConfig, GatewayError, SessionSpec},
    server,
    session::{SessionState, SessionSummary},
    shared::Shared,
};

/// One listener through which agents reach models. It stops when it is dropped.
///
/// ```
/// use rollout_gateway::{Dialect, Gateway, GatewayConfig, ModelRoute, SessionSpec, Upstream};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let record = dir.path().join("calls.jsonl");
/// let gateway = Gateway::start(GatewayConfig::default()).await?;
/// let upstream = Upstream::new("https://api.openai.com/v1", Dialect::Chat).with_key("sk-real");
/// let session = gateway.open(SessionSpec::new(record, ModelRoute::all(upstream, "gpt-4.1-mini")))?;
/// // An agent with this base URL and this key reaches the model, and never gets the real key.
/// println!("OPENAI_BASE_URL=http://{}/v1 OPENAI_API_KEY={}", gateway.address(), session.token());
/// let summary = session.close().await;
/// assert_eq!(summary.calls, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    address: SocketAddr,
    stop: CancellationToken,
    serving: Option<JoinHandle<io::Result<()>>>,
    next_session: AtomicU64,
}

impl Gateway {
    /// Starts to listen.
    pub async fn start(config: GatewayConfig) -> Result<Self, GatewayError> {
        let address = config.address;
        let shared = Arc::new(Shared::new(config)?);
        let refused = |source| GatewayError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let stop = CancellationToken::new();
        let limits = ConnectionLimits {
            // Every trial has a few connections.
            max_connections: 8192,
            // Clients with a pool may open a connection that they use only later.
            first_head_time: ConnectionLimits::default().head_time,
            grace: Duration::from_secs(2),
            ..ConnectionLimits::default()
        };
        let router = server::router(Arc::clone(&shared));
        let serving = Some(tokio::spawn(rollout_http::serve(listener, router, limits, stop.clone())));
        Ok(Self { shared, address, stop, serving, next_session: AtomicU64::new(1) })
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens a session for one agent.
    pub fn open(&self, spec: SessionSpec) -> Result<GatewaySession, GatewayError> {
        let id = self.next_session.fetch_add(1, Relaxed);
        let state = SessionState::new(id, new_token()?, spec, &self.shared.config)?;
        let state = Arc::new(state);
        self.shared.add(Arc::clone(&state));
        Ok(GatewaySession { shared: Arc::clone(&self.shared), state })
    }

    /// The number of calls that wait for their turn, because of the limits of the gateway.
    pub fn waiting_calls(&self) -> usize {
        self.shared.waiting()
    }

    /// Stops: running responses are cut after a short time.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            // An error of the listener ended it already.
            let _ = serving.await;
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// One agent's access to the gateway. Its token is valid until it is closed or dropped.
#[derive(Debug)]
pub struct GatewaySession {
    shared: Arc<Shared>,
    state: Arc<SessionState>,
}

impl GatewaySession {
    /// The key for the agent. It is accepted in `Authorization: Bearer`, `x-api-key`, `x-goog-api-key`, the query
    /// `key=`, and as a path: `http://<address>/t/<token>/v1`.
    pub fn token(&self) -> &str {
        &self.state.token
    }

    /// Resolves when a call was refused because a budget is used up: that of the session, or that of the gateway.
    ///
    /// An agent that stops by itself after its last allowed call is not interrupted.
    pub async fn exhausted(&self) {
        tokio::select! {
            () = self.state.spending.exhausted() => {}
            () = self.shared.spending.exhausted() => {}
        }
    }

    /// What the calls were so far.
    pub fn summary(&self) -> SessionSummary {
        self.state.summary().clone()
    }

    /// Ends the session: its token is invalid, its running calls are cut, and all records are written.
    pub async fn close(self) -> SessionSummary {
        self.shared.remove(&self.state);
        self.state.calls.close();
        self.state.calls.wait().await;
        self.summary()
    }
}

impl Drop for GatewaySession {
    fn drop(&mut self) {
        self.shared.remove(&self.state);
    }
}

/// A token that looks like a key: some agents check that.
fn new_token() -> Result<String, GatewayError> {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes).map_err(GatewayError::Random)?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sk-rollout-{digits}"))
}
