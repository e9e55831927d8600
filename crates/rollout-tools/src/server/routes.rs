//! The paths of the protocol.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path as Segment, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use jiff::Timestamp;
use rollout_http::AccessGuard;
use rollout_settings::Document;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Envelope, Service,
    request::{
        Batch, Check, Create, Execute, InitBatch, InitFromConfig, JsonBody, SessionOf, Shutdown, Warm, Worker,
    },
    service::content_of,
    warmup::WarmUp,
};
use crate::resource::{ErrorCode, Params, PlannedUse, ToolError};

type Server = State<Arc<Service>>;

/// The routes, behind the guard. A shutdown request cancels `stop`.
pub(super) fn router(service: Arc<Service>, guard: AccessGuard, stop: CancellationToken) -> Router {
    let router = Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/api/v1/execute", post(execute))
        .route("/api/v1/execute/batch", post(batch))
        .route("/api/v1/session/create", post(create))
        .route("/api/v1/session/destroy", post(destroy))
        .route("/api/v1/session/list", post(list))
        .route("/api/v1/session/refresh", post(refresh))
        .route("/api/v1/lifecycle/heartbeat", post(heartbeat))
        .route("/api/v1/lifecycle/status", post(status))
        .route("/api/v1/worker/disconnect", post(disconnect))
        .route("/api/v1/init/resource", post(init_resource))
        .route("/api/v1/init/batch", post(init_batch))
        .route("/api/v1/init/from-config", post(init_from_config))
        .route("/api/v1/check", post(check))
        .route("/api/v1/tools", get(tools))
        .route("/api/v1/tools/{name}/schema", get(schema))
        .route("/api/v1/warmup", post(warm_up))
        .route("/api/v1/warmup/status", get(warm_up_status))
        .route("/api/v1/server/shutdown", post(move |server: Server, asked| shutdown(server, asked, stop)))
        .fallback(async || {
            let error = ToolError::new(ErrorCode::InvalidRequest, "unknown path");
            Envelope::from(error).with_status(StatusCode::NOT_FOUND)
        })
        .method_not_allowed_fallback(async || {
            let error = ToolError::new(ErrorCode::InvalidRequest, "this path does not support the method");
            Envelope::from(error).with_status(StatusCode::METHOD_NOT_ALLOWED)
        })
        .with_state(service);
    guard.protect(router, |denied| {
        let error = ToolError::new(ErrorCode::Refused, format!("{denied}; {}", denied.hint()));
        Envelope::from(error).with_status(denied.status())
    })
}

async fn health() -> Json<Value> {
    Json(
        json!({"status": "healthy", "timestamp": now(), "server": "rollout", "version": env!("CARGO_PKG_VERSION")}),
    )
}

async fn ready(State(service): Server) -> Json<Value> {
    let (workers, sessions) = service.sessions.counts();
    Json(json!({
        "status": "ready",
        "pid": std::process::id(),
        "tools_count": service.registry.len(),
        "active_workers": workers,
        "total_sessions": sessions,
    }))
}

async fn execute(State(service): Server, JsonBody(asked): JsonBody<Execute>) -> Envelope {
    let (worker, action) = asked.into_parts();
    service.execute(&worker, action).await
}

async fn batch(State(service): Server, JsonBody(asked): JsonBody<Batch>) -> Envelope {
    let Batch { worker_id, actions, parallel, stop_on_error, trace_id } = asked;
    let actions = actions.into_iter().map(|action| action.into_action(trace_id.clone())).collect();
    let mut envelope = service.execute_batch(&worker_id, actions, parallel, stop_on_error).await;
    envelope.meta.trace_id = trace_id;
    envelope
}

async fn create(State(service): Server, JsonBody(asked): JsonBody<Create>) -> Envelope {
    let Create { worker_id, resource_type, session_config, custom_name } = asked;
    opened(service.open(&worker_id, &resource_type, &session_config, custom_name.as_deref()).await)
}

async fn init_resource(State(service): Server, JsonBody(asked): JsonBody<Create>) -> Envelope {
    let Create { worker_id, resource_type, session_config, .. } = asked;
    let config = match content_of(&resource_type, &Value::Object(session_config)) {
        Ok(config) => config,
        Err(error) => return error.into(),
    };
    let outcome = service.open(&worker_id, &resource_type, &config, None).await;
    opened(outcome.map(|mut data| {
        data["session_status"] = "active".into();
        data
    }))
}

/// A resource that does not start is not an invalid request.
fn opened(outcome: Result<Value, ToolError>) -> Envelope {
    let failed = matches!(&outcome, Err(error) if error.code == ErrorCode::NotInitialized);
    let envelope = Envelope::new(outcome);
    if failed { envelope.with_status(StatusCode::INTERNAL_SERVER_ERROR) } else { envelope }
}

async fn destroy(State(service): Server, JsonBody(asked): JsonBody<SessionOf>) -> Envelope {
    let Some(kind) = &asked.resource_type else { return missing("resource_type") };
    match service.sessions.close(&asked.worker_id, kind).await {
        Some(opened) => Envelope::new(Ok(json!({
            "message": "the session was closed",
            "session_id": opened.id,
            "session_name": opened.name,
            "resource_type": opened.resource_type,
        }))),
        None => no_session(kind),
    }
}

async fn list(State(service): Server, JsonBody(asked): JsonBody<Worker>) -> Envelope {
    let sessions = service.sessions.of(&asked.worker_id);
    let ttl = service.sessions.ttl();
    let sessions: Vec<Value> = sessions.iter().map(|opened| opened.describe(ttl)).collect();
    let count = sessions.len();
    Envelope::new(Ok(json!({"worker_id": asked.worker_id, "sessions": sessions, "count": count})))
}

async fn refresh(State(service): Server, JsonBody(asked): JsonBody<SessionOf>) -> Envelope {
    let sessions = service.sessions.of(&asked.worker_id);
    let Some(kind) = asked.resource_type else {
        let details: BTreeMap<&str, String> = sessions
            .iter()
            .map(|opened| (opened.resource_type.as_str(), service.sessions.refresh(opened)))
            .collect();
        return Envelope::new(Ok(json!({"refreshed_count": details.len(), "details": details})));
    };
    match sessions.iter().find(|opened| opened.resource_type == kind) {
        Some(opened) => Envelope::new(Ok(json!({
            "message": "the session was refreshed",
            "resource_type": kind,
            "session_id": opened.id,
            "expires_at": service.sessions.refresh(opened),
        }))),
        None => no_session(&kind),
    }
}

async fn heartbeat(State(service): Server, JsonBody(asked): JsonBody<Worker>) -> Envelope {
    let sessions = service.sessions.of(&asked.worker_id);
    for opened in &sessions {
        service.sessions.refresh(opened);
    }
    let active: Vec<&str> = sessions.iter().map(|opened| opened.resource_type.as_str()).collect();
    Envelope::new(Ok(json!({"worker_id": asked.worker_id, "active_sessions": active, "timestamp": now()})))
}

async fn status(State(service): Server, JsonBody(asked): JsonBody<Worker>) -> Envelope {
    let ttl = service.sessions.ttl();
    let sessions: Params = service
        .sessions
        .of(&asked.worker_id)
        .iter()
        .map(|opened| (opened.resource_type.clone(), opened.describe(ttl)))
        .collect();
    Envelope::new(Ok(json!({
        "worker_id": asked.worker_id,
        "active_resources": sessions.keys().collect::<Vec<_>>(),
        "sessions": sessions,
        "tools_available": service.registry.len(),
    })))
}

async fn disconnect(State(service): Server, JsonBody(asked): JsonBody<Worker>) -> Envelope {
    let cleaned = service.sessions.disconnect(&asked.worker_id).await;
    Envelope::new(Ok(json!({"worker_id": asked.worker_id, "sessions_cleaned": cleaned})))
}

async fn init_batch(State(service): Server, JsonBody(asked): JsonBody<InitBatch>) -> Envelope {
    service.open_all(&asked.worker_id, &asked.resource_configs).await
}

async fn init_from_config(State(service): Server, JsonBody(asked): JsonBody<InitFromConfig>) -> Envelope {
    let dir = service.config.config_dir.clone();
    let read = tokio::task::spawn_blocking(move || described(dir.as_deref(), &asked.config_path));
    let mut configs = match read.await {
        Ok(Ok(configs)) => configs,
        Ok(Err(error)) => return error.into(),
        Err(_) => return ToolError::new(ErrorCode::Unexpected, "the file could not be read").into(),
    };
    for (kind, over) in asked.override_params {
        let described = content_of(&kind, configs.get(&kind).unwrap_or_default());
        let merged = described.and_then(|mut config| {
            config.extend(content_of(&kind, &over)?);
            Ok(config)
        });
        match merged {
            Ok(config) => configs.insert(kind, config.into()),
            Err(error) => return error.into(),
        };
    }
    service.open_all(&asked.worker_id, &configs).await
}

/// The resources that a file below the operator's directory describes. `${VAR}` is not expanded, because the
/// client chooses which resources receive the values.
fn described(dir: Option<&Path>, path: &str) -> Result<Params, ToolError> {
    let refused = |text: String| ToolError::new(ErrorCode::Refused, text);
    let Some(dir) = dir else {
        return Err(refused(
            "the server cannot read configuration files: `server.config_dir` is not set".to_owned(),
        ));
    };
    let outside = || refused(format!("there is no file {path:?} below the server's config_dir"));
    let dir = dir.canonicalize().map_err(|_| outside())?;
    let file = dir.join(path).canonicalize().map_err(|_| outside())?;
    if !file.starts_with(&dir) || !file.is_file() {
        return Err(outside());
    }
    let document = Document::load_literal(&file);
    let document = document.map_err(|problems| {
        ToolError::new(ErrorCode::InvalidInput, format!("the file {path:?} cannot be used: {problems}"))
    })?;
    match document.into_value() {
        Value::Object(mut all) => {
            Ok(match all.remove("resources").or_else(|| all.remove("resource_configs")) {
                Some(Value::Object(resources)) => resources,
                _ => all,
            })
        }
        _ => Err(ToolError::new(
            ErrorCode::InvalidInput,
            format!("the file {path:?} does not describe resources"),
        )),
    }
}

async fn check(State(service): Server, JsonBody(asked): JsonBody<Check>) -> Envelope {
    let Check { resource_type, tools, session_config, paths } = asked;
    let resource = match service.registry.resource(&resource_type) {
        Ok(resource) => resource,
        Err(error) => return error.into(),
    };
    let checked = resource.check(&PlannedUse { tools, config: session_config, paths }).await;
    Envelope::new(checked.map(|warnings| json!({"warnings": warnings})))
}

async fn tools(State(service): Server) -> Json<Value> {
    let tools = service.registry.describe();
    Json(json!({"count": tools.len(), "tools": tools}))
}

async fn schema(State(service): Server, Segment(name): Segment<String>) -> Response {
    match service.registry.describe_one(&name) {
        Ok(description) => Json(description).into_response(),
        Err(error) => (StatusCode::NOT_FOUND, Json(json!({"status": "error", "message": error.message})))
            .into_response(),
    }
}

async fn warm_up(State(service): Server, JsonBody(asked): JsonBody<Warm>) -> Json<Value> {
    let limit = service.config.max_timeout_sec;
    let outcomes = service.warming.run(&service.registry, asked.backends.as_deref(), limit).await;
    Json(WarmUp::describe(&outcomes))
}

async fn warm_up_status(State(service): Server) -> Json<Value> {
    Json(service.warming.status(&service.registry))
}

async fn shutdown(
    State(service): Server,
    JsonBody(asked): JsonBody<Shutdown>,
    stop: CancellationToken,
) -> Json<Value> {
    // Once begun, the shutdown continues even if the client does not wait for the answer.
    let _stops = stop.drop_guard();
    let cleaned = if asked.cleanup_sessions || asked.force { service.stop().await } else { 0 };
    Json(json!({"status": "success", "message": "the server is stopping", "sessions_cleaned": cleaned}))
}

fn missing(field: &str) -> Envelope {
    ToolError::new(ErrorCode::InvalidRequest, format!("the request has no `{field}`")).into()
}

fn no_session(kind: &str) -> Envelope {
    let text = format!("the worker has no session of `{}`", kind.escape_debug());
    Envelope::from(ToolError::new(ErrorCode::NotInitialized, text)).with_status(StatusCode::NOT_FOUND)
}

fn now() -> String {
    Timestamp::now().to_string()
}
