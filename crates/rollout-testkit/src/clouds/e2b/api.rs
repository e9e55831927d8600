//! The requests of E2B's API.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::AtomicU32},
};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{Request, body::Incoming, header::HeaderMap};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    API_KEY, E2bState, Sandbox,
    build::{self, Status},
    envd,
};
use crate::clouds::{
    faults::{CloudCall, CloudTrouble},
    machine::MachineLimits,
    server::{Answer, CutHere, bytes_answer, json_answer, status_of, with_hint, with_trouble},
};

/// The version of the agent that answers name.
const ENVD: &str = "0.5.14";

/// The lifetime of a sandbox that asks for none, in seconds.
const DEFAULT_TIMEOUT: i64 = 300;

/// The longest lifetime, in seconds.
const LONGEST: i64 = 24 * 3600;

/// Answers a request to the API, or to the agent of a sandbox: both have the same address here.
pub(super) async fn answer(state: Arc<E2bState>, request: Request<Incoming>) -> Result<Answer, CutHere> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    if path.starts_with("/process.Process/") || ["/health", "/files"].contains(&path.as_str()) {
        return envd::answer(&state, &head, body).await;
    }
    let body = body.collect().await.map_err(|_| CutHere)?.to_bytes();
    if let Some(hash) = path.strip_prefix("/upload/") {
        state.lock().files.insert(hash.to_owned(), body);
        return Ok(bytes_answer(200, "text/plain", ""));
    }
    if head.headers.get("x-api-key").is_none_or(|key| key != API_KEY) {
        return Ok(refused(401, "Invalid API key"));
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let query = head.uri.query().unwrap_or_default().to_owned();
    let trouble = call_of(head.method.as_str(), &parts)
        .and_then(|call| state.faults.meet(call, state.lock().sandboxes.len()));
    let handled = handle(&state, head.method.as_str(), &parts, &query, &head.headers, body);
    with_trouble(trouble, injected, || bytes_answer(204, "text/plain", ""), handled).await
}

/// What a request asks for, where faults can happen.
fn call_of(method: &str, parts: &[&str]) -> Option<CloudCall> {
    match (method, parts) {
        ("POST", ["v2", "sandboxes"]) => Some(CloudCall::Create),
        ("GET", ["v2", "sandboxes"]) => Some(CloudCall::List),
        ("GET", ["sandboxes", _]) => Some(CloudCall::State),
        ("DELETE", ["sandboxes", _]) => Some(CloudCall::Delete),
        ("GET", ["templates", "aliases", _]) => Some(CloudCall::Image),
        _ => None,
    }
}

/// The form of an error.
fn refused(code: u16, message: &str) -> Answer {
    json_answer(code, &json!({"code": code, "message": message}))
}

fn injected(trouble: CloudTrouble) -> Answer {
    let (code, message) = match trouble {
        CloudTrouble::Quota => (429, "You have reached the maximum number of concurrent E2B sandboxes (20)"),
        CloudTrouble::Busy(_) => (429, "Rate limit exceeded"),
        CloudTrouble::Unauthorized => (401, "Invalid API key"),
        CloudTrouble::Refusal => (403, "Your team is blocked"),
        trouble => (status_of(trouble), "Service unavailable"),
    };
    with_hint(refused(code, message), trouble)
}

async fn handle(
    state: &Arc<E2bState>,
    method: &str,
    parts: &[&str],
    query: &str,
    headers: &HeaderMap,
    body: Bytes,
) -> Answer {
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    match (method, parts) {
        ("POST", ["v2", "sandboxes"]) => {
            let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
            create(state, &body, key).await
        }
        ("GET", ["v2", "sandboxes"]) => list(state, query),
        ("GET", ["sandboxes", id]) => match state.sandbox(id) {
            Some(sandbox) => json_answer(200, &detail(&sandbox)),
            None => no_sandbox(id),
        },
        ("DELETE", ["sandboxes", id]) => {
            if state.end(id).await {
                bytes_answer(204, "text/plain", "")
            } else {
                no_sandbox(id)
            }
        }
        ("POST", ["v2", "sandboxes", id, "connect"]) => match state.sandbox(id) {
            Some(sandbox) => json_answer(200, &created(&sandbox)),
            None => no_sandbox(id),
        },
        ("POST", ["sandboxes", id, "timeout"]) => match state.sandbox(id) {
            Some(sandbox) => {
                let seconds = body["timeout"].as_i64().unwrap_or(DEFAULT_TIMEOUT);
                *sandbox.end.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = after(seconds);
                bytes_answer(204, "text/plain", "")
            }
            None => no_sandbox(id),
        },
        ("POST", ["v3", "templates"]) => build::request(state, &body),
        ("GET", ["templates", "aliases", alias]) => match state.lock().template(alias) {
            Some(template) => json_answer(200, &json!({"templateID": template.id, "public": false})),
            None => refused(404, "Template alias not found"),
        },
        ("GET", ["templates", _, "files", hash]) => {
            let present = state.lock().files.contains_key(*hash);
            json_answer(201, &json!({"present": present, "url": format!("{}/upload/{hash}", state.url)}))
        }
        ("POST", ["v2", "templates", id, "builds", build]) => build::start(state, id, build, body),
        ("GET", ["templates", id, "builds", build, "status"]) => {
            let offset = parameter(query, "logsOffset").and_then(|offset| offset.parse().ok()).unwrap_or(0);
            match build::status(state, id, build, offset) {
                Some(status) => json_answer(200, &status),
                None => refused(404, "Build not found"),
            }
        }
        ("GET", ["templates", id]) => match state.lock().template(id) {
            Some(template) => json_answer(200, &template.json()),
            None => refused(404, "Template not found"),
        },
        ("DELETE", ["templates", id]) => match state.lock().remove_template(id) {
            true => bytes_answer(204, "text/plain", ""),
            false => refused(404, "Template not found"),
        },
        _ => refused(404, "The path does not exist"),
    }
}

fn no_sandbox(id: &str) -> Answer {
    refused(404, &format!("Sandbox \"{id}\" doesn't exist or you don't have access to it"))
}

fn after(seconds: i64) -> Timestamp {
    Timestamp::now().checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

async fn create(state: &Arc<E2bState>, body: &Value, key: Option<&str>) -> Answer {
    if let Some(sandbox) =
        key.and_then(|key| state.lock().created.get(key).cloned()).and_then(|id| state.sandbox(&id))
    {
        return json_answer(201, &created(&sandbox));
    }
    let seconds = body["timeout"].as_i64().unwrap_or(DEFAULT_TIMEOUT);
    if !(1..=LONGEST).contains(&seconds) {
        return refused(400, "Timeout cannot be greater than 24 hours");
    }
    let name = body["templateID"].as_str().unwrap_or_default().to_owned();
    let found = state.lock().template(&name).map(|template| {
        (template.id.clone(), template.ready().map(|build| (build.cpus, build.memory_mib, build.id.clone())))
    });
    let Some((template, Some((cpus, memory_mib, build)))) = found else {
        return refused(404, &format!("template '{name}' not found"));
    };
    let Some(image) = state.host.image(&build) else {
        return refused(404, "the build has no image");
    };
    let limits = MachineLimits {
        cpus_millis: Some(cpus * 1000),
        memory_bytes: Some(memory_mib << 20),
        no_network: body["allow_internet_access"] == false,
    };
    let id = state.id("i");
    let machine = match state.host.boot(&id, image, limits).await {
        Ok(machine) => machine,
        Err(text) => return refused(500, &text),
    };
    let labels = body["metadata"].as_object().into_iter().flatten();
    let metadata: BTreeMap<String, String> =
        labels.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
    let sandbox = Arc::new(Sandbox {
        token: state.id("token-"),
        id: id.clone(),
        template,
        metadata,
        cpus,
        memory_mib,
        started: Timestamp::now(),
        end: Mutex::new(after(seconds)),
        machine,
        processes: Mutex::default(),
        pids: AtomicU32::new(400),
    });
    let answer = created(&sandbox);
    let mut inner = state.lock();
    if let Some(key) = key {
        inner.created.insert(key.to_owned(), id.clone());
    }
    inner.sandboxes.insert(id.clone(), sandbox);
    drop(inner);
    tokio::spawn(end_in_time(Arc::clone(state), id));
    json_answer(201, &answer)
}

/// Ends a sandbox when its lifetime is over.
async fn end_in_time(state: Arc<E2bState>, id: String) {
    while let Some(sandbox) = state.sandbox(&id) {
        let end = *sandbox.end.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        drop(sandbox);
        let left = end.duration_since(Timestamp::now());
        if left <= SignedDuration::ZERO {
            state.end(&id).await;
            return;
        }
        tokio::time::sleep(left.unsigned_abs()).await;
    }
}

/// The answer to a creation.
fn created(sandbox: &Sandbox) -> Value {
    json!({
        "templateID": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": "fake",
        "envdVersion": ENVD,
        "envdAccessToken": sandbox.token,
        "domain": null,
    })
}

fn listed(sandbox: &Sandbox) -> Value {
    let end = *sandbox.end.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    json!({
        "templateID": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": "fake",
        "startedAt": sandbox.started.to_string(),
        "endAt": end.to_string(),
        "cpuCount": sandbox.cpus,
        "memoryMB": sandbox.memory_mib,
        "diskSizeMB": 10_240,
        "metadata": sandbox.metadata,
        "state": "running",
        "envdVersion": ENVD,
    })
}

fn detail(sandbox: &Sandbox) -> Value {
    let mut detail = listed(sandbox);
    detail["envdAccessToken"] = sandbox.token.as_str().into();
    detail["domain"] = Value::Null;
    detail
}

fn list(state: &E2bState, query: &str) -> Answer {
    let wanted: Vec<(String, String)> = parameter(query, "metadata")
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        // The client encodes names and values, and then all of it; some encode them twice.
        .map(|(name, value)| (decoded(&decoded(name)), decoded(&decoded(value))))
        .collect();
    let states = parameter(query, "state").unwrap_or_else(|| "running,paused".to_owned());
    let limit = parameter(query, "limit").and_then(|limit| limit.parse().ok()).unwrap_or(100_usize);
    let first = parameter(query, "nextToken").unwrap_or_default();
    let inner = state.lock();
    let matching: Vec<&Arc<Sandbox>> = inner
        .sandboxes
        .values()
        .filter(|sandbox| *sandbox.id >= *first && states.split(',').any(|state| state == "running"))
        .filter(|sandbox| wanted.iter().all(|(name, value)| sandbox.metadata.get(name) == Some(value)))
        .collect();
    let page: Vec<Value> = matching.iter().take(limit).map(|sandbox| listed(sandbox)).collect();
    let mut answer = json_answer(200, &Value::Array(page));
    if let Some(next) = matching.get(limit)
        && let Ok(token) = next.id.parse()
    {
        answer.headers_mut().insert("x-next-token", token);
    }
    answer
}

/// A parameter of a query. Several of the same name are joined with commas.
fn parameter(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let values: Vec<String> =
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| decoded(value)).collect();
    if values.is_empty() { None } else { Some(values.join(",")) }
}

/// Text of a query without its escapes.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(if bytes[at] == b'+' { b' ' } else { bytes[at] });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl Status {
    /// The word of the API.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Building => "building",
            Self::Ready => "ready",
            Self::Failed { .. } => "error",
        }
    }
}
