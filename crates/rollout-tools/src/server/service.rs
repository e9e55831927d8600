//! The operations of a server, independent of the transport.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{
    Registry, ServerConfig,
    envelope::{Envelope, Meta},
    registry::FoundTool,
    sessions::{SessionLimits, Sessions},
    warmup::WarmUp,
};
use crate::resource::{Call, ErrorCode, Params, ToolError};

/// How long a call waits for others to end before it is rejected.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);

/// The tools, their sessions, and the limits of both.
pub struct Service {
    pub(super) registry: Registry,
    pub(super) sessions: Arc<Sessions>,
    pub(super) config: ServerConfig,
    pub(super) warming: WarmUp,
    calls: Semaphore,
}

/// One call of a tool, as requested by a client.
#[derive(Debug, Clone, Default)]
pub struct Action {
    /// The tool, by name or alias.
    pub action: String,
    /// Its parameters.
    pub params: Params,
    /// Its time limit.
    pub timeout: Option<Duration>,
    /// The client's id of the call.
    pub trace_id: Option<String>,
}

impl Service {
    /// Serves these tools.
    pub fn new(registry: Registry, config: ServerConfig) -> Arc<Self> {
        let limits = SessionLimits {
            ttl: config.session_ttl_sec,
            all: config.max_sessions,
            per_worker: config.max_sessions_per_worker,
            open: config.max_timeout_sec,
        };
        Arc::new(Self {
            registry,
            sessions: Sessions::new(limits),
            calls: Semaphore::new(config.max_calls),
            warming: WarmUp::default(),
            config,
        })
    }

    /// The tools.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Opens the worker's session of a resource; `data` describes it for clients.
    pub async fn open(
        &self,
        worker: &str,
        resource_type: &str,
        config: &Params,
        custom_name: Option<&str>,
    ) -> Result<Value, ToolError> {
        let resource = self.registry.resource(resource_type)?;
        let opened = self.sessions.open(worker, &**resource, config, custom_name).await;
        let (opened, existed) = opened.map_err(|error| {
            let data = json!({"error": error.message, "resource_type": resource_type, "details": error.data});
            let message = format!("the session of `{resource_type}` cannot be opened: {}", error.message);
            let code = match error.code {
                ErrorCode::Overloaded => ErrorCode::Overloaded,
                _ => ErrorCode::NotInitialized,
            };
            ToolError { code, message, data }
        })?;
        let mut data = json!({
            "session_id": opened.id,
            "session_name": opened.name,
            "resource_type": opened.resource_type,
        });
        match existed {
            true => data["status"] = "exists".into(),
            false => data["session_status"] = "active".into(),
        }
        Ok(data)
    }

    /// Calls a tool in the worker's session of its resource, or in a temporary one.
    pub async fn execute(&self, worker: &str, action: Action) -> Envelope {
        let started = Instant::now();
        let mut meta = Meta { trace_id: action.trace_id, ..Meta::default() };
        let outcome = match self.registry.find(&action.action) {
            Ok(found) => {
                meta.tool = Some(found.full_name.clone());
                meta.resource_type = Some(found.resource.name().to_owned());
                let timeout = self.timeout(action.timeout);
                let outcome = self.call(worker, &found, action.params, timeout, &mut meta).await;
                if !found.is_known {
                    self.registry.refresh();
                }
                outcome
            }
            Err(error) => {
                meta.tool = Some(action.action.chars().take(64).collect());
                Err(error)
            }
        };
        meta.execution_time_ms = (started.elapsed().as_secs_f64() * 1e6).round() / 1e3;
        Envelope { meta, ..Envelope::new(outcome) }
    }

    /// The time limit of a call, from the limit that the client requests.
    fn timeout(&self, asked: Option<Duration>) -> Duration {
        asked.unwrap_or(self.config.timeout_sec).min(self.config.max_timeout_sec)
    }

    async fn call(
        &self,
        worker: &str,
        found: &FoundTool,
        params: Params,
        timeout: Duration,
        meta: &mut Meta,
    ) -> Result<Value, ToolError> {
        let turn = tokio::time::timeout(QUEUE_TIMEOUT.min(timeout), self.calls.acquire());
        let Ok(Ok(_turn)) = turn.await else {
            let text = "too many calls are running, and none of them ended in time; try again later";
            return Err(ToolError::new(ErrorCode::Overloaded, text));
        };
        let called = async {
            let kept = self.sessions.busy(worker, found.resource.name()).await;
            let (busy, _temporary) = match kept {
                Some(busy) => (busy, None),
                None => {
                    let temporary = self.sessions.open_temporary(worker, &*found.resource).await?;
                    meta.temporary_session = true;
                    (temporary.busy(), Some(temporary))
                }
            };
            meta.session_id = Some(busy.opened().id.clone());
            let call = Call { worker_id: worker.to_owned(), session_id: busy.opened().id.clone(), timeout };
            busy.call(&found.tool, params, &call).await
        };
        tokio::time::timeout(timeout, called).await.unwrap_or_else(|_| {
            let text = format!("the call did not end within {} seconds", timeout.as_secs_f64());
            Err(ToolError::new(ErrorCode::Timeout, text))
        })
    }

    /// Makes several calls, concurrently or one after the other.
    pub(super) async fn execute_batch(
        &self,
        worker: &str,
        actions: Vec<Action>,
        parallel: bool,
        stop_on_error: bool,
    ) -> Envelope {
        let total = actions.len();
        let results: Vec<Envelope> = if parallel {
            join_all(actions.into_iter().map(|action| self.execute(worker, action))).await
        } else {
            let mut results = Vec::with_capacity(total);
            for action in actions {
                let result = self.execute(worker, action).await;
                let stop = stop_on_error && !result.is_success();
                results.push(result);
                if stop {
                    break;
                }
            }
            results
        };
        let good = results.iter().filter(|result| result.is_success()).count();
        let data =
            json!({"total": total, "executed": results.len(), "success_count": good, "results": results});
        Envelope::of_parts(data, good, total)
    }

    /// Opens the sessions that a client describes, by type.
    pub(super) async fn open_all(&self, worker: &str, configs: &Params) -> Envelope {
        let opened = join_all(configs.iter().map(async |(kind, config)| match content_of(kind, config) {
            Ok(config) => (kind, self.open(worker, kind, &config, None).await),
            Err(error) => (kind, Err(error)),
        }))
        .await;
        let total = opened.len();
        let mut good = 0;
        let results = opened.into_iter().map(|(kind, outcome)| {
            let outcome = match outcome {
                Ok(session) => {
                    good += 1;
                    json!({
                        "status": "success",
                        "session_id": session["session_id"],
                        "session_name": session["session_name"],
                        "existed": session["status"] == "exists",
                    })
                }
                Err(error) => json!({"status": "error", "code": error.code as u16, "error": error.message}),
            };
            (kind.clone(), outcome)
        });
        let results: Params = results.collect();
        let data = json!({"worker_id": worker, "results": results, "total": total, "success_count": good});
        Envelope::of_parts(data, good, total)
    }

    /// Warms up these resources, or all of them; returns those that failed, with the reasons.
    pub async fn warm_up(&self, names: Option<&[String]>) -> Vec<(String, String)> {
        let names = names.map(|names| {
            let known = |name: &&String| self.registry.resource(name).is_ok();
            names.iter().filter(known).cloned().collect::<Vec<_>>()
        });
        let outcomes = self.warming.run(&self.registry, names.as_deref(), self.config.max_timeout_sec).await;
        outcomes.into_iter().filter_map(|(name, outcome)| Some((name, outcome.err()?))).collect()
    }

    /// Closes idle sessions in an endless loop.
    pub(super) async fn expire_sessions(&self) {
        self.sessions.expire().await;
    }

    /// Closes all sessions and rejects new ones, then closes the resources; returns the number of closed
    /// sessions.
    pub async fn stop(&self) -> usize {
        let closed = self.sessions.stop().await;
        join_all(self.registry.resources().map(|(_, resource)| resource.close())).await;
        closed
    }
}

/// The configuration of a session: the value of `content` in its description, or all of it.
pub(super) fn content_of(kind: &str, described: &Value) -> Result<Params, ToolError> {
    match described.get("content").unwrap_or(described) {
        Value::Object(content) => Ok(content.clone()),
        Value::Null => Ok(Params::new()),
        _ => {
            let text = format!("the configuration of `{}` is not an object", kind.escape_debug());
            Err(ToolError::new(ErrorCode::InvalidRequest, text))
        }
    }
}
