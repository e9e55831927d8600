//! A gateway with one session, and the requests of its agent.

use std::{fs, path::Path};

use rollout_gateway::{
    CallRecord, Dialect, Gateway, GatewayConfig, GatewaySession, ModelRoute, SessionSpec, SessionSummary,
    Upstream,
};
use rollout_testkit::ModelServer;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The real key of the upstream.
pub(crate) const KEY: &str = "sk-real-key-0123456789";

pub(crate) const DIALECTS: [Dialect; 4] =
    [Dialect::Chat, Dialect::Responses, Dialect::Messages, Dialect::Gemini];

/// A gateway in front of a scripted server, with one session.
pub(crate) struct Setup {
    pub(crate) gateway: Gateway,
    pub(crate) session: GatewaySession,
    pub(crate) dir: TempDir,
    pub(crate) http: reqwest::Client,
}

/// A route to a scripted server.
pub(crate) fn route(server: &ModelServer, dialect: Dialect) -> ModelRoute {
    ModelRoute::all(Upstream::new(server.root(), dialect).with_key(KEY), "real-model")
}

/// A question in a dialect, with its path.
pub(crate) fn question(dialect: Dialect, stream: bool) -> (&'static str, Value) {
    let message = json!([{"role": "user", "content": "2+2?"}]);
    match dialect {
        Dialect::Chat => {
            ("/v1/chat/completions", json!({"model": "asked", "messages": message, "stream": stream}))
        }
        Dialect::Responses => {
            ("/v1/responses", json!({"model": "asked", "input": message, "stream": stream}))
        }
        Dialect::Messages => (
            "/v1/messages",
            json!({"model": "asked", "max_tokens": 100, "messages": message, "stream": stream}),
        ),
        Dialect::Gemini => {
            let path = match stream {
                true => "/v1beta/models/asked:streamGenerateContent?alt=sse",
                false => "/v1beta/models/asked:generateContent",
            };
            (path, json!({"contents": [{"role": "user", "parts": [{"text": "2+2?"}]}]}))
        }
    }
}

/// The text of a whole response.
pub(crate) fn text_of(dialect: Dialect, response: &Value) -> String {
    let path = match dialect {
        Dialect::Chat => "/choices/0/message/content",
        Dialect::Responses => "/output/0/content/0/text",
        Dialect::Messages => "/content/0/text",
        Dialect::Gemini => "/candidates/0/content/parts/0/text",
    };
    response.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

impl Setup {
    pub(crate) async fn new(server: &ModelServer, dialect: Dialect) -> Self {
        Self::with(server, dialect, |_| (), |_| ()).await
    }

    pub(crate) async fn with(
        server: &ModelServer,
        dialect: Dialect,
        config: impl FnOnce(&mut GatewayConfig),
        spec: impl FnOnce(&mut SessionSpec),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = GatewayConfig { max_retries: 0, ..GatewayConfig::default() };
        config(&mut settings);
        let gateway = Gateway::start(settings).await.unwrap();
        let mut wanted = SessionSpec::new(dir.path().join("calls.jsonl"), route(server, dialect));
        spec(&mut wanted);
        let session = gateway.open(wanted).unwrap();
        Self { gateway, session, dir, http: reqwest::Client::new() }
    }

    /// A further session of the same gateway.
    pub(crate) fn second(&self, server: &ModelServer, dialect: Dialect) -> GatewaySession {
        self.gateway
            .open(SessionSpec::new(self.dir.path().join("second.jsonl"), route(server, dialect)))
            .unwrap()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.gateway.address())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.post_as(self.session.token(), path, body)
    }

    pub(crate) fn post_as(&self, token: &str, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.http.post(self.url(path)).bearer_auth(token).json(body)
    }

    /// Asks the question of a dialect; the status and the body.
    pub(crate) async fn ask(&self, dialect: Dialect, stream: bool) -> (u16, String) {
        let (path, body) = question(dialect, stream);
        let response = self.post(path, &body).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// Closes the session; its calls and their summary.
    pub(crate) async fn close(self) -> Closed {
        let record = self.dir.path().join("calls.jsonl");
        let summary = self.session.close().await;
        let calls = read_calls(&record);
        Closed { calls, summary, dir: self.dir }
    }
}

pub(crate) struct Closed {
    pub(crate) calls: Vec<CallRecord>,
    pub(crate) summary: SessionSummary,
    pub(crate) dir: TempDir,
}

pub(crate) fn read_calls(path: &Path) -> Vec<CallRecord> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
