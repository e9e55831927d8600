//! A benchmark in a temporary directory, and a tool server that does what a test wants.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, Uri},
    routing::{get, post},
};
use rollout::{
    benchmark::{Eval, EvalError, RolloutSummary, rollout},
    config::RolloutConfig,
};
use rollout_testkit::ModelServer;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) struct Bench {
    root: TempDir,
    pub(crate) config: RolloutConfig,
}

impl Bench {
    /// These questions for the model of a server. Results go to `out`.
    pub(crate) fn new(server: &ModelServer, questions: &[Value]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let lines: String = questions.iter().map(|question| format!("{question}\n")).collect();
        let data = root.path().join("questions.jsonl");
        fs::write(&data, lines).unwrap();
        let config = RolloutConfig {
            data_path: Some(data),
            output_dir: Some(root.path().join("out")),
            base_url: server.url(),
            max_retries: 0,
            ..RolloutConfig::default()
        };
        Self { root, config }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut RolloutConfig)) -> Self {
        change(&mut self.config);
        self
    }

    pub(crate) fn eval(&self) -> Eval {
        Eval::from(self.config.clone())
    }

    pub(crate) async fn run(&self) -> Result<RolloutSummary, EvalError> {
        rollout(self.eval()).await
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The lines of `results.jsonl` in the order of the questions.
    pub(crate) fn rows(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("out/results.jsonl")).unwrap();
        let mut rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        rows.sort_by_key(|row| row["example_id"].as_u64());
        rows
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(name)).unwrap()).unwrap()
    }

    /// The names of the files in `out`, times left out.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("out")).into_iter().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        for name in &mut names {
            if let Some((start, _)) = name.rsplit_once('_') {
                *name = format!("{start}_<time>.json");
            }
        }
        names.sort();
        names
    }
}

/// What a test tool does: the name of a tool and its parameters become an envelope.
type Handler = dyn Fn(&str, &Value) -> Value + Send + Sync;

/// A tool server that speaks the protocol.
#[derive(Clone)]
pub(crate) struct Tools {
    heard: Arc<Mutex<Vec<(String, Value)>>>,
    handler: Arc<Handler>,
}

impl Tools {
    /// Starts one, with the tools `web:search`, `web:browse` and `doc:read`. Returns its address too.
    pub(crate) async fn start(
        handler: impl Fn(&str, &Value) -> Value + Send + Sync + 'static,
    ) -> (Self, String) {
        let tools = Self { heard: Arc::default(), handler: Arc::new(handler) };
        let router = Router::new()
            .route("/health", get(async || Json(json!({"status": "healthy"}))))
            .route("/api/v1/tools", get(Self::list))
            .fallback(post(Self::answer))
            .with_state(tools.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, router).await });
        (tools, url)
    }

    /// One whose tools all say that all is well.
    pub(crate) async fn willing() -> (Self, String) {
        Self::start(|_, _| json!({"code": 0, "message": "success", "data": {"result": "done"}})).await
    }

    async fn list(State(tools): State<Self>) -> Json<Value> {
        tools.hear("/api/v1/tools", Value::Null);
        let query =
            json!([{"name": "query", "type": "string", "description": "What for.", "required": true}]);
        let tool =
            |name: &str| json!({"name": name, "description": format!("Does {name}."), "parameters": query});
        Json(json!({"tools": [tool("web:search"), tool("web:browse"), tool("doc:read")], "count": 3}))
    }

    async fn answer(
        State(tools): State<Self>,
        uri: Uri,
        Json(body): Json<Value>,
    ) -> (StatusCode, Json<Value>) {
        if uri.path() == "/api/v1/check" {
            // Only Rollout's own server knows it.
            return (StatusCode::NOT_FOUND, Json(json!({"detail": "Not Found"})));
        }
        let answer = match uri.path() {
            "/api/v1/execute" => (tools.handler)(body["action"].as_str().unwrap(), &body["params"]),
            "/api/v1/session/create" => match (tools.handler)("session", &body["session_config"]) {
                refused if refused["code"] == 4007 => refused,
                hangs if hangs == "hang" => hangs,
                _ => json!({"code": 0, "message": "success", "data": {"session_status": "active"}}),
            },
            "/api/v1/warmup" => tools.warmed_up(&body["backends"]),
            _ => json!({"code": 0, "message": "success", "data": {}}),
        };
        tools.hear(uri.path(), body);
        if answer == "hang" {
            std::future::pending::<()>().await;
        }
        let status = match answer["code"].as_i64() {
            None | Some(0) if answer.is_object() => StatusCode::OK,
            Some(code) if code < 5000 => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(answer))
    }

    /// What the server says to a warm-up: a line for each kind, and no envelope.
    fn warmed_up(&self, kinds: &Value) -> Value {
        let kinds: Vec<_> = kinds.as_array().unwrap().iter().map(|kind| kind.as_str().unwrap()).collect();
        let mut errors = serde_json::Map::new();
        for kind in &kinds {
            let refused = (self.handler)("warmup", &json!(kind));
            if !["web", "doc"].contains(kind) {
                errors.insert((*kind).to_owned(), json!(format!("no resource is called '{kind}'")));
            } else if let Some(error) = refused["not ready"].as_str() {
                errors.insert((*kind).to_owned(), json!(error));
            }
        }
        let results: serde_json::Map<_, _> =
            kinds.iter().map(|kind| ((*kind).to_owned(), json!(!errors.contains_key(*kind)))).collect();
        let summary = json!({"total": kinds.len(), "failed": errors.len()});
        match errors.is_empty() {
            true => json!({"status": "success", "results": results, "summary": summary}),
            false => {
                json!({"status": "partial_error", "results": results, "errors": errors, "summary": summary})
            }
        }
    }

    fn hear(&self, path: &str, body: Value) {
        self.heard.lock().unwrap().push((path.trim_start_matches("/api/v1/").to_owned(), body));
    }

    /// What it was asked so far.
    pub(crate) fn heard(&self) -> Vec<(String, Value)> {
        self.heard.lock().unwrap().clone()
    }

    /// The paths that it was asked at so far.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.heard().into_iter().map(|(path, _)| path).collect()
    }

    /// The parameters of the calls so far.
    pub(crate) fn calls(&self) -> Vec<Value> {
        let executed = self.heard().into_iter().filter(|(path, _)| path == "execute");
        executed.map(|(_, body)| json!([body["action"], body["params"]])).collect()
    }
}
