//! The client of a tool server.

use std::{collections::BTreeSet, ops::RangeInclusive, sync::Arc, time::Duration};

use reqwest::{Method, RequestBuilder, StatusCode, Url, redirect};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    ServerTool,
    names::{self, NoSuchTool},
    schema::WireTool,
};
use rollout_core::address::is_loopback;
use rollout_model::{Cause, Error, ErrorKind, client::shown_url};

/// How often a request is sent if the server cannot be reached.
const ATTEMPTS: u32 = 3;
/// The pause after the first attempt; each following pause is longer by this.
const PAUSE: Duration = Duration::from_secs(1);
/// How much longer than the server's own timeout an answer may take.
const GRACE: Duration = Duration::from_secs(10);
/// The timeout of requests that do not wait for tools.
const SHORT: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(5);
/// The error codes of answers.
const CODES: RangeInclusive<i64> = 4000..=5099;
/// The code of an answer to an unknown request.
const NO_SUCH_PATH: i64 = 4002;
/// The maximum size of an answer.
const MAX_BYTES: usize = 32 << 20;

/// An answer of the tool server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Answer {
    /// 0 for success.
    pub(crate) code: i64,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) data: Value,
}

/// Why the tool server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ToolServerError {
    /// Its URL is invalid.
    #[error("invalid URL of the tool server: `{0}`; use one like http://127.0.0.1:18890")]
    Url(String),
    /// It does not answer.
    #[error("the tool server at {url} does not answer")]
    Unreachable {
        /// Its URL.
        url: String,
        /// The cause.
        source: reqwest::Error,
    },
    /// Its answer does not follow the protocol.
    #[error("the server at {url} is not a tool server: {said}")]
    Unreadable {
        /// Its URL.
        url: String,
        /// Its answer.
        said: String,
    },
    /// The token is wrong or missing.
    #[error("the tool server at {url} rejected the token")]
    Unauthorized {
        /// Its URL.
        url: String,
    },
    /// A name in `available_tools` is unknown.
    #[error("unknown tool `{pattern}` in available_tools: the server at {url} does not have it{}", nearest.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default())]
    NoSuchTool {
        /// Its URL.
        url: String,
        /// The name.
        pattern: String,
        /// The tool with the most similar name.
        nearest: Option<String>,
    },
    /// A kind of tools in `resource_types` is unknown.
    #[error("unknown kind `{kind}` in resource_types: the server at {url} has {known}{}", said.as_ref().map(|said| format!("; its message: {said}")).unwrap_or_default())]
    NoSuchKind {
        /// Its URL.
        url: String,
        /// The kind.
        kind: String,
        /// The known kinds, joined for a sentence.
        known: String,
        /// Its message when it failed to prepare this kind.
        said: Option<String>,
    },
    /// The server reports that its tools would fail for every question.
    #[error("cannot use the tools of `{kind}`: {said}")]
    Unusable {
        /// The kind.
        kind: String,
        /// The reason.
        said: String,
    },
    /// The HTTP client cannot be set up.
    #[error("cannot set up the HTTP client")]
    Setup(#[source] reqwest::Error),
}

impl ToolServerError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unreachable { .. } => Some(
                "start it with `rollout tools serve`, or set `sandbox_auto_start: true`; `sandbox_server_url` is its URL",
            ),
            Self::Unauthorized { .. } => Some(
                "set the token of the server: `sandbox_token` in the configuration, or --sandbox-token-file of `rollout ask`",
            ),
            Self::NoSuchTool { .. } | Self::NoSuchKind { .. } => {
                Some("`rollout tools list` lists the available tools")
            }
            Self::Url(_) | Self::Unreadable { .. } => {
                Some("set `sandbox_server_url` to the URL of the server")
            }
            Self::Unusable { .. } => Some(
                "the configuration of the tool server is the file of `rollout tools serve --config` or `sandbox_config_path`",
            ),
            Self::Setup(_) => None,
        }
    }

    /// The error of a rollout that cannot continue: an infrastructure error, never an answer.
    pub(crate) fn into_error(self, what: &str) -> Error {
        Error::new(ErrorKind::Infra, what).because(Cause::of("ToolServerError", &self))
    }
}

/// A tool server. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ToolServer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    http: reqwest::Client,
    base: Url,
    /// Its URL without a password.
    shown: String,
    token: Option<SecretString>,
    /// The timeout of a tool call.
    timeout: Duration,
}

impl ToolServer {
    /// The server at a URL. Sends nothing.
    pub(crate) fn new(
        url: &str,
        token: Option<SecretString>,
        timeout: Duration,
    ) -> Result<Self, ToolServerError> {
        let shown = shown_url(url).trim_end_matches('/').to_owned();
        let wrong = || ToolServerError::Url(shown.clone());
        let base = Url::parse(url.trim_end_matches('/')).map_err(|_| wrong())?;
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() {
            return Err(wrong());
        }
        let mut http = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            // A redirect would send the token to a host that is not in the configuration.
            .redirect(redirect::Policy::none());
        if is_loopback(base.as_str()) {
            http = http.no_proxy();
        }
        let http = http.build().map_err(ToolServerError::Setup)?;
        Ok(Self(Arc::new(Inner { http, base, shown, token, timeout })))
    }

    /// Its URL without a password, for messages.
    pub(crate) fn url(&self) -> &str {
        &self.0.shown
    }

    /// Checks whether it answers. Sends one request.
    pub(crate) async fn health(&self) -> Result<(), ToolServerError> {
        let sent = self.request(Method::GET, "/health", SHORT).send().await;
        let response = sent.map_err(|source| self.unreachable(source))?;
        match response.status() {
            status if status.is_success() => Ok(()),
            StatusCode::UNAUTHORIZED => Err(ToolServerError::Unauthorized { url: self.url().to_owned() }),
            status => Err(self.unreadable(format!("HTTP {status} for /health"))),
        }
    }

    /// Its process id, if it reports one.
    pub(crate) async fn pid(&self) -> Result<Option<u32>, ToolServerError> {
        let said = self.exchange(|| self.request(Method::GET, "/ready", SHORT)).await?;
        Ok(said["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()))
    }

    /// Checks whether tools of a kind can be used as questions will use them. Returns warnings for the user; none if
    /// the server does not support such checks.
    pub(crate) async fn check(
        &self,
        kind: &str,
        tools: &[&str],
        config: &Map<String, Value>,
        paths: &[String],
    ) -> Result<Option<Answer>, ToolServerError> {
        let body = json!({"resource_type": kind, "tools": tools, "session_config": config, "paths": paths});
        let said = self.send("/api/v1/check", &body, self.0.timeout + GRACE).await;
        // Other servers report an unknown path in various ways.
        let answer = said.ok().and_then(|said| serde_json::from_value::<Answer>(said).ok());
        let known =
            |answer: &Answer| answer.code == 0 || CODES.contains(&answer.code) && answer.code != NO_SUCH_PATH;
        Ok(answer.filter(known))
    }

    /// All its tools.
    pub(crate) async fn tools(&self) -> Result<Vec<ServerTool>, ToolServerError> {
        #[derive(Deserialize)]
        struct Tools {
            tools: Vec<WireTool>,
        }
        let said = self.exchange(|| self.request(Method::GET, "/api/v1/tools", SHORT)).await?;
        // Some servers wrap the list like all other answers.
        let listed = if said.get("tools").is_some() { said } else { said["data"].clone() };
        let listed: Tools = serde_json::from_value(listed)
            .map_err(|error| self.unreadable(format!("invalid list of tools: {error}")))?;
        Ok(listed.tools.into_iter().map(ServerTool::from).collect())
    }

    /// The selected tools.
    pub(crate) fn chosen(
        &self,
        wanted: &[String],
        tools: Vec<ServerTool>,
    ) -> Result<Vec<ServerTool>, ToolServerError> {
        names::chosen(wanted, tools, ServerTool::names).map_err(|NoSuchTool { pattern, nearest }| {
            ToolServerError::NoSuchTool { url: self.url().to_owned(), pattern, nearest }
        })
    }

    /// Prepares kinds of tools, so that the first question does not wait for that. Returns warnings for the user. An
    /// unknown kind is an error.
    pub(crate) async fn warm_up(
        &self,
        kinds: &[String],
        tools: &[ServerTool],
    ) -> Result<Vec<String>, ToolServerError> {
        let body = json!({"backends": kinds});
        let said = match self.send("/api/v1/warmup", &body, self.0.timeout + GRACE).await {
            Ok(said) => said,
            // Not every server supports this. If a session cannot be opened later, that is reported then.
            Err(error) => {
                tracing::debug!(%error, "cannot warm up the tool server");
                Value::Null
            }
        };
        // Some servers wrap it like all other answers.
        let failures = [&said, &said["data"]].into_iter().find_map(|said| said["errors"].as_object());
        let failure = |kind: &str| {
            failures?.get(kind).map(|why| why.as_str().map_or_else(|| why.to_string(), str::to_owned))
        };
        let known: BTreeSet<&str> = tools.iter().map(|tool| tool.kind.as_str()).collect();
        let strange = kinds.iter().find(|kind| {
            !known.is_empty() && !known.contains(kind.as_str()) && said["results"][kind.as_str()] != true
        });
        if let Some(kind) = strange {
            return Err(ToolServerError::NoSuchKind {
                url: self.url().to_owned(),
                kind: kind.clone(),
                known: known.into_iter().collect::<Vec<_>>().join(", "),
                said: failure(kind),
            });
        }
        let not_ready =
            |kind: &String| Some(format!("the tool server failed to prepare `{kind}`: {}", failure(kind)?));
        let mut warnings: Vec<String> = kinds.iter().filter_map(not_ready).collect();
        if let (true, Some(1..), Some(message)) =
            (warnings.is_empty(), said["code"].as_i64(), said["message"].as_str())
        {
            warnings.push(format!("the tool server failed to prepare some of its tools: {message}"));
        }
        Ok(warnings)
    }

    pub(crate) async fn create_session(
        &self,
        worker_id: &str,
        kind: &str,
        config: &Map<String, Value>,
    ) -> Result<Answer, ToolServerError> {
        let body = json!({"worker_id": worker_id, "resource_type": kind, "session_config": config});
        self.post("/api/v1/session/create", body, self.0.timeout + GRACE).await
    }

    /// Calls a tool.
    pub(crate) async fn execute(
        &self,
        worker_id: &str,
        tool: &str,
        params: Map<String, Value>,
    ) -> Result<Answer, ToolServerError> {
        let timeout = self.0.timeout.as_secs_f64();
        let body = json!({"worker_id": worker_id, "action": tool, "params": params, "timeout": timeout});
        self.post("/api/v1/execute", body, self.0.timeout + GRACE).await
    }

    pub(crate) async fn heartbeat(&self, worker_id: &str) -> Result<Answer, ToolServerError> {
        self.post("/api/v1/lifecycle/heartbeat", json!({"worker_id": worker_id}), SHORT).await
    }

    /// Closes all sessions of a worker.
    pub(crate) async fn disconnect(&self, worker_id: &str) -> Result<Answer, ToolServerError> {
        self.post("/api/v1/worker/disconnect", json!({"worker_id": worker_id}), GRACE).await
    }

    async fn post(&self, path: &str, body: Value, timeout: Duration) -> Result<Answer, ToolServerError> {
        let said = self.send(path, &body, timeout).await?;
        serde_json::from_value(said)
            .map_err(|error| self.unreadable(format!("invalid answer to {path}: {error}")))
    }

    async fn send(&self, path: &str, body: &Value, timeout: Duration) -> Result<Value, ToolServerError> {
        let worker = body["worker_id"].as_str().unwrap_or_default().to_owned();
        let body = bytes::Bytes::from(body.to_string());
        self.exchange(|| {
            self.request(Method::POST, path, timeout)
                .header("content-type", "application/json")
                .header("x-worker-id", worker.as_str())
                .body(body.clone())
        })
        .await
    }

    fn request(&self, method: Method, path: &str, timeout: Duration) -> RequestBuilder {
        let Inner { http, base, token, .. } = &*self.0;
        let base = base.as_str().trim_end_matches('/');
        let request = http.request(method, format!("{base}{path}")).timeout(timeout);
        match token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        }
    }

    /// Sends a request until the server answers. A request that timed out is not repeated: it may still be running, and
    /// tools have side effects.
    async fn exchange(&self, request: impl Fn() -> RequestBuilder) -> Result<Value, ToolServerError> {
        let mut attempt = 1;
        loop {
            match self.once(request()).await {
                Err(ToolServerError::Unreachable { source, .. })
                    if attempt < ATTEMPTS && (source.is_connect() || !source.is_timeout()) =>
                {
                    tracing::debug!(url = self.url(), attempt, error = %source, "retrying the tool server request");
                    tokio::time::sleep(PAUSE * attempt).await;
                    attempt += 1;
                }
                end => return end,
            }
        }
    }

    async fn once(&self, request: RequestBuilder) -> Result<Value, ToolServerError> {
        let mut response = request.send().await.map_err(|source| self.unreachable(source))?;
        let status = response.status();
        if status == StatusCode::UNAUTHORIZED {
            return Err(ToolServerError::Unauthorized { url: self.url().to_owned() });
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|source| self.unreachable(source))? {
            if body.len() + chunk.len() > MAX_BYTES {
                return Err(self.unreadable(format!("an answer of more than {MAX_BYTES} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&body).map_err(|error| self.unreadable(format!("HTTP {status}, {error}")))
    }

    fn unreachable(&self, source: reqwest::Error) -> ToolServerError {
        ToolServerError::Unreachable { url: self.url().to_owned(), source: source.without_url() }
    }

    fn unreadable(&self, said: String) -> ToolServerError {
        ToolServerError::Unreadable { url: self.url().to_owned(), said }
    }
}
