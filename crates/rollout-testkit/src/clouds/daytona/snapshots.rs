//! Snapshots of the fake, and their builds.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc};

use serde_json::{Value, json};

use super::{
    ORGANIZATION,
    api::{Call, Reply, failure},
    state::{DaytonaState, Snapshot},
    storage,
};
use crate::clouds::{
    machine::BuildFailure,
    server::{Answer, bytes_answer},
};

/// What a snapshot has if its request names no size.
const USUAL: [u64; 3] = [1, 1, 3];

/// What one sandbox may have.
const MOST: [u64; 3] = [4, 8, 10];

/// Answers a request about snapshots.
pub(super) fn handle(state: &Arc<DaytonaState>, call: &Call) -> Reply {
    let id = call.part(2);
    let found = state.snapshot(id);
    match (call.method.as_str(), id, call.part(3)) {
        ("POST", "", _) => create(state, &call.body),
        ("GET", "", _) => {
            let all = state.snapshots();
            let items: Vec<Value> = all.iter().map(|(id, snapshot)| snapshot.json(id)).collect();
            (200, json!({"total": items.len(), "items": items, "page": 1, "totalPages": 1}))
        }
        _ if found.is_none() => failure(404, &format!("Snapshot with ID or name {id} not found")),
        ("GET", _, "") => {
            let (id, snapshot) = found.expect("it was found");
            (200, snapshot.json(&id))
        }
        ("DELETE", _, "") => {
            let removed = state.snapshots().remove(&found.expect("it was found").0);
            if let Some(build) = removed.and_then(|snapshot| snapshot.build) {
                build.abort();
            }
            (200, Value::Null)
        }
        ("GET", _, "build-logs-url") => {
            (200, json!({"url": format!("{}/logs/{}", state.url, found.expect("it was found").0)}))
        }
        ("POST", _, "activate") => {
            let (id, _) = found.expect("it was found");
            let mut all = state.snapshots();
            match all.get_mut(&id) {
                Some(snapshot) if snapshot.state == "inactive" => {
                    snapshot.state = "active";
                    (200, snapshot.json(&id))
                }
                _ => failure(400, "Snapshot is already active"),
            }
        }
        _ => failure(404, "Cannot find this page"),
    }
}

/// The log of a build, once it has ended.
pub(super) async fn log(state: &DaytonaState, id: &str) -> Answer {
    loop {
        match state.snapshot(id) {
            None => return bytes_answer(404, "text/plain", ""),
            Some((_, snapshot)) if matches!(snapshot.state, "pending" | "building") => {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            Some((_, snapshot)) => return bytes_answer(200, "text/plain", snapshot.log),
        }
    }
}

fn create(state: &Arc<DaytonaState>, body: &Value) -> Reply {
    let Some(name) = body["name"].as_str() else { return failure(400, "name must be a string") };
    let mut size = USUAL;
    for (index, key) in ["cpu", "memory", "disk"].into_iter().enumerate() {
        size[index] = body[key].as_u64().unwrap_or(size[index]);
        if size[index] > MOST[index] {
            let most = MOST[index];
            return failure(
                403,
                &format!("{key} request {} exceeds maximum allowed per sandbox ({most}).", size[index]),
            );
        }
    }
    if state.snapshot(name).is_some() {
        let message = format!("Snapshot with name \"{name}\" already exists for this organization");
        return failure(409, &message);
    }
    let mut snapshot = Snapshot::new(name, size);
    snapshot.image_name = body["imageName"].as_str().map(str::to_owned);
    snapshot.build_info = body["buildInfo"].is_object().then(|| body["buildInfo"].clone());
    let dockerfile = match (&snapshot.image_name, &body["buildInfo"]["dockerfileContent"]) {
        (Some(image), Value::Null) => format!("FROM {image}\n"),
        (None, Value::String(text)) => text.clone(),
        _ => return failure(400, "Must specify either an image name or build info"),
    };
    let hashes: Vec<String> = body["buildInfo"]["contextHashes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|hash| hash.as_str().map(str::to_owned))
        .collect();
    let id = state.new_id();
    let shown = snapshot.json(&id);
    state.snapshots().insert(id.clone(), snapshot);
    let (builder, snapshot) = (Arc::clone(state), id.clone());
    let build = tokio::spawn(async move {
        let (state, id) = (builder, snapshot);
        set(&state, &id, "building", None, String::new());
        match build(&state, &id, &dockerfile, &hashes).await {
            Ok(log) => set(&state, &id, "active", None, log),
            Err(failure) => set(&state, &id, "build_failed", Some(reason(&failure)), failure.log),
        }
    });
    if let Some(snapshot) = state.snapshots().get_mut(&id) {
        snapshot.build = Some(build.abort_handle());
    }
    (200, shown)
}

/// Why a build failed, in the words of the builder that Daytona uses.
fn reason(failure: &BuildFailure) -> String {
    match failure
        .message
        .split_once("no image is configured for `")
        .and_then(|(_, rest)| rest.split_once('`'))
    {
        Some((image, _)) => format!(
            "failed to solve: {image}: failed to resolve source metadata for {image}: {image}: not found"
        ),
        None => failure.message.clone(),
    }
}

fn set(state: &DaytonaState, id: &str, word: &'static str, error: Option<String>, log: String) {
    if let Some(snapshot) = state.snapshots().get_mut(id) {
        (snapshot.state, snapshot.error, snapshot.log) = (word, error, log);
    }
}

async fn build(
    state: &DaytonaState,
    id: &str,
    dockerfile: &str,
    hashes: &[String],
) -> Result<String, BuildFailure> {
    let failed = |error: io::Error| BuildFailure { log: String::new(), message: error.to_string() };
    let dir = state.host.scratch().map_err(failed)?;
    // The engine writes the log beside the context.
    let context = dir.path().join("context");
    fs::create_dir(&context).map_err(failed)?;
    for hash in hashes {
        let object = state.objects().get(&storage::path(ORGANIZATION, hash)).cloned();
        let Some(object) = object else {
            let message = format!("failed to get tar from storage with hash {hash}");
            return Err(BuildFailure { log: String::new(), message });
        };
        unpack(&object, &context).map_err(failed)?;
    }
    fs::write(context.join("Dockerfile"), dockerfile).map_err(failed)?;
    state.host.build(id, &context).await
}

/// Unpacks an archive as Daytona's builder does: without directories, and with empty files for links.
fn unpack(archive: &[u8], dir: &Path) -> io::Result<()> {
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_dir() {
            continue;
        }
        let path = dir.join(entry.path()?.strip_prefix("/").unwrap_or(&entry.path()?));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mode = entry.header().mode()?;
        let mut file = fs::File::create(&path)?;
        io::copy(&mut entry, &mut file)?;
        file.set_permissions(fs::Permissions::from_mode(mode & 0o7777))?;
    }
    Ok(())
}
