//! Sandboxes of the fake.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{Timestamp, ToSpan as _};
use serde_json::{Value, json};

use super::{
    api::{Call, Reply, failure},
    state::{DaytonaState, Sandbox, now},
};
use crate::clouds::machine::MachineLimits;

/// Answers a request about sandboxes.
pub(super) async fn handle(state: &Arc<DaytonaState>, call: &Call) -> Reply {
    let id = call.part(2);
    match (call.method.as_str(), id) {
        ("POST", "") => return create(state, &call.body),
        ("GET", "") => return list(state, call),
        _ => {}
    }
    let Some((id, sandbox)) = state.sandbox(id) else {
        return failure(404, &format!("Sandbox with ID or name {id} not found"));
    };
    match (call.method.as_str(), call.part(3), call.part(5)) {
        ("GET", "", _) => (200, sandbox.json(&id, &state.url)),
        ("DELETE", "", _) => {
            let shown = set(state, &id, |sandbox| sandbox.state = "destroying");
            let (state, machine) = (Arc::clone(state), sandbox.machine);
            tokio::spawn(async move {
                if let Some(machine) = machine {
                    machine.kill().await;
                }
                state.remove(&id);
            });
            (200, shown)
        }
        ("PUT", "labels", _) => {
            (200, set(state, &id, |sandbox| sandbox.labels = labels(&call.body["labels"])))
        }
        ("GET", "toolbox-proxy-url", _) => (200, json!({"url": format!("{}/toolbox", state.url)})),
        ("GET", "ports", "preview-url") => {
            let url = format!("{}/preview/{}-{id}/", state.url, call.part(4));
            (200, json!({"sandboxId": id, "url": url, "token": sandbox.token}))
        }
        _ => failure(404, "Cannot find this page"),
    }
}

fn labels(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// Changes a sandbox, and returns it as the API shows it.
fn set(state: &DaytonaState, id: &str, change: impl FnOnce(&mut Sandbox)) -> Value {
    let mut all = state.all();
    match all.get_mut(id) {
        Some(sandbox) => {
            change(sandbox);
            sandbox.json(id, &state.url)
        }
        None => Value::Null,
    }
}

/// A page of the sandboxes with some labels.
fn list(state: &DaytonaState, call: &Call) -> Reply {
    let wanted = match call.query.get("labels").map(serde_json::from_str::<Value>) {
        None => BTreeMap::new(),
        Some(Ok(wanted)) => labels(&wanted),
        Some(Err(_)) => return failure(400, "Invalid labels JSON format"),
    };
    let limit: usize = call.query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(100);
    if !(1..=200).contains(&limit) {
        return failure(400, "limit must not be greater than 200");
    }
    let after = call.query.get("cursor").unwrap_or_default();
    let all = state.all();
    let fits = |sandbox: &Sandbox| wanted.iter().all(|(name, value)| sandbox.labels.get(name) == Some(value));
    let found: Vec<(&String, &Sandbox)> =
        all.iter().filter(|(id, sandbox)| id.as_str() > after && fits(sandbox)).collect();
    let items: Vec<Value> =
        found.iter().take(limit).map(|(id, sandbox)| sandbox.json(id, &state.url)).collect();
    let next = found.get(limit - 1).filter(|_| found.len() > limit).map(|(id, _)| id);
    (200, json!({"items": items, "nextCursor": next}))
}

fn create(state: &Arc<DaytonaState>, body: &Value) -> Reply {
    if ["cpu", "memory", "disk", "gpu"].iter().any(|key| body[*key].as_u64().is_some_and(|value| value > 0)) {
        return failure(400, "Cannot specify Sandbox resources when using a snapshot");
    }
    let reference = body["snapshot"].as_str().unwrap_or_default();
    let Some((snapshot, found)) = state.snapshot(reference) else {
        let message =
            format!("Snapshot {reference} not found. Did you add it through the Daytona Dashboard?");
        return failure(400, &message);
    };
    if found.state != "active" {
        return failure(400, &format!("Snapshot {reference} is {}", found.state));
    }
    let id = state.new_id();
    let name = body["name"].as_str().map_or_else(|| id.clone(), str::to_owned);
    if state.sandbox(&name).is_some() {
        return failure(409, &format!("Sandbox with name {name} already exists"));
    }
    let lifetime = body["ttlMinutes"].as_i64().filter(|minutes| *minutes > 0);
    let sandbox = Sandbox {
        name,
        state: "creating",
        error: None,
        labels: labels(&body["labels"]),
        request: body.clone(),
        size: found.size,
        destroy_at: lifetime.map(|minutes| (Timestamp::now() + minutes.minutes()).to_string()),
        machine: None,
        token: format!("preview-{id}"),
        sessions: BTreeMap::new(),
        created: now(),
    };
    let shown = sandbox.json(&id, &state.url);
    state.all().insert(id.clone(), sandbox);
    let limits = MachineLimits {
        cpus_millis: Some(found.size[0] * 1000),
        memory_bytes: Some(found.size[1] << 30),
        no_network: body["networkBlockAll"] == true,
    };
    let state = Arc::clone(state);
    tokio::spawn(async move {
        boot(&state, &id, &snapshot, limits).await;
        if let Some(minutes) = lifetime {
            tokio::time::sleep(Duration::from_secs(minutes.unsigned_abs() * 60)).await;
            if let Some(machine) = state.remove(&id) {
                machine.kill().await;
            }
        }
    });
    (200, shown)
}

async fn boot(state: &DaytonaState, id: &str, snapshot: &str, limits: MachineLimits) {
    let booted = match state.host.image(snapshot) {
        Some(image) => state.host.boot(id, image, limits).await,
        None => Err("the image of the snapshot is missing".to_owned()),
    };
    let mut all = state.all();
    // It may be deleted already; the machine then ends here.
    let Some(sandbox) = all.get_mut(id).filter(|sandbox| sandbox.state == "creating") else { return };
    match booted {
        Ok(machine) => (sandbox.state, sandbox.machine) = ("started", Some(machine)),
        Err(error) => (sandbox.state, sandbox.error) = ("error", Some(error)),
    }
}
