//! Requests about objects: their verbs, and what they do.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    delete::DeleteOptions, pod_status::set_condition, query::Query, refusal::Refusal, resource::Resource,
    selector::Selector, state::ClusterState, store::Key,
};

/// A request about objects.
pub(super) struct ApiRequest {
    pub(super) verb: &'static str,
    pub(super) resource: &'static Resource,
    pub(super) namespace: Option<String>,
    name: Option<String>,
    /// A part of an object, such as `log` of a pod.
    pub(super) part: Option<String>,
    pub(super) query: Query,
    body: Value,
    content_type: String,
}

/// The answer to a request that succeeded.
pub(super) enum Reply {
    Json(u16, Value),
    Text(Bytes),
}

impl ApiRequest {
    /// Reads a request; `None` if the path names no objects.
    pub(super) fn new(
        method: &str,
        path: &str,
        query: Query,
        body: Value,
        content_type: String,
    ) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match &parts[..] {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, "v1", rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..]
                if !rest.is_empty() && rest[0] != "status" && rest[0] != "finalize" =>
            {
                (Some((*namespace).to_owned()), rest)
            }
            rest => (None, rest),
        };
        let [plural, rest @ ..] = rest else { return None };
        let resource = Resource::find(group, plural)?;
        let name = rest.first().map(|name| (*name).to_owned());
        let part = rest.get(1).map(|part| (*part).to_owned());
        let streams = matches!(part.as_deref(), Some("attach" | "exec" | "portforward"));
        let verb = match (method, &name) {
            _ if streams => "connect",
            ("GET", Some(_)) => "get",
            ("GET", None) if query.flag("watch") => "watch",
            ("GET", None) => "list",
            ("POST", _) => "create",
            ("PUT", Some(_)) => "update",
            ("PATCH", Some(_)) => "patch",
            ("DELETE", Some(_)) => "delete",
            ("DELETE", None) => "deletecollection",
            _ => return None,
        };
        Some(Self { verb, resource, namespace, name, part, query, body, content_type })
    }

    /// The verb and the kind, such as `create pods`.
    pub(super) fn call(&self) -> String {
        let part = self.part.as_ref().map(|part| format!("/{part}")).unwrap_or_default();
        format!("{} {}{part}", self.verb, self.resource.plural)
    }

    /// The verb, the kind and the name, if there is one.
    pub(super) fn line(&self) -> String {
        let name = self.name.as_deref().or_else(|| self.body["metadata"]["name"].as_str());
        format!("{} {}", self.call(), name.unwrap_or_default())
    }

    pub(super) fn key(&self) -> Key {
        let name = self.name.as_deref().unwrap_or_default();
        Key::new(self.resource.plural, self.namespace.as_deref().unwrap_or_default(), name)
    }
}

/// Handles a request that is answered at once.
pub(super) fn handle(cluster: &Arc<ClusterState>, asked: &ApiRequest) -> Result<Reply, Refusal> {
    let resource = asked.resource;
    let namespace = asked.namespace.as_deref();
    let key = asked.key();
    let not_found = || Refusal::not_found(resource.plural, &key.name);
    match (asked.verb, asked.part.as_deref()) {
        ("get", Some("log")) => log(cluster, &key, &asked.query).map(Reply::Text),
        ("get", _) => {
            let found = cluster.lock().store.get(&key).cloned().ok_or_else(not_found)?;
            Ok(Reply::Json(200, Value::clone(&found)))
        }
        ("list", _) => {
            let state = cluster.lock();
            let items = state.store.list(resource.plural, namespace, &Selector::new(&asked.query));
            let items: Vec<Value> = items.iter().map(|item| Value::clone(item)).collect();
            Ok(Reply::Json(200, list(resource, state.store.version, items)))
        }
        ("create", Some("eviction")) => {
            let options = DeleteOptions::new(&asked.query, &asked.body["deleteOptions"]);
            let mut state = cluster.lock();
            let mut pod = Value::clone(state.store.get(&key).ok_or_else(not_found)?);
            let message = "Eviction API: evicting";
            set_condition(&mut pod, "DisruptionTarget", true, Some(("EvictionByEvictionAPI", message)));
            state.store.put(key.clone(), pod);
            state.delete(&key, &options)?;
            Ok(Reply::Json(
                201,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}),
            ))
        }
        ("create", None) => {
            if !asked.body.is_object() {
                return Err(Refusal::new(415, "UnsupportedMediaType", "the body is not JSON"));
            }
            let dry_run = asked.query.get("dryRun").is_some();
            let namespace = namespace.unwrap_or("default");
            let created = cluster.create(resource, namespace, asked.body.clone(), dry_run)?;
            Ok(Reply::Json(201, Value::clone(&created)))
        }
        ("update", _) => {
            let mut state = cluster.lock();
            let found = state.store.get(&key).cloned().ok_or_else(not_found)?;
            let version = &asked.body["metadata"]["resourceVersion"];
            if version.as_str().is_some_and(|version| !version.is_empty())
                && *version != found["metadata"]["resourceVersion"]
            {
                let why = "the object has been modified; please apply your changes to the latest version and try again";
                return Err(Refusal::conflict(resource.plural, &key.name, why));
            }
            let mut object = asked.body.clone();
            for field in ["uid", "creationTimestamp", "deletionTimestamp"] {
                if !found["metadata"][field].is_null() {
                    object["metadata"][field] = found["metadata"][field].clone();
                }
            }
            Ok(Reply::Json(200, Value::clone(&state.store.put(key, object))))
        }
        ("patch", _) => patch(cluster, asked, &key),
        ("delete", _) => {
            let options = DeleteOptions::new(&asked.query, &asked.body);
            let deleted = cluster.lock().delete(&key, &options)?;
            Ok(Reply::Json(200, Value::clone(&deleted)))
        }
        ("deletecollection", _) => {
            let options = DeleteOptions::new(&asked.query, &asked.body);
            let selector = Selector::new(&asked.query);
            let mut state = cluster.lock();
            let selected: Vec<Key> = state
                .store
                .entries(resource.plural, namespace)
                .filter(|(_, object)| selector.selects(object))
                .map(|(key, _)| key.clone())
                .collect();
            // An object may be gone with its owner, which was deleted before.
            let deleted: Vec<Value> = selected
                .iter()
                .filter_map(|key| state.delete(key, &options).ok())
                .map(|object| Value::clone(&object))
                .collect();
            Ok(Reply::Json(200, list(resource, state.store.version, deleted)))
        }
        _ => Err(Refusal::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )),
    }
}

fn list(resource: &Resource, version: u64, items: Vec<Value>) -> Value {
    json!({
        "kind": format!("{}List", resource.kind), "apiVersion": resource.api_version(),
        "metadata": {"resourceVersion": version.to_string()}, "items": items,
    })
}

/// Changes an object by a merge patch, which also serves for strategic ones, or applies it.
fn patch(cluster: &Arc<ClusterState>, asked: &ApiRequest, key: &Key) -> Result<Reply, Refusal> {
    if !asked.body.is_object() || asked.content_type.contains("json-patch") {
        return Err(Refusal::new(415, "UnsupportedMediaType", "only merge patches in JSON are supported"));
    }
    let mut state = cluster.lock();
    let Some(found) = state.store.get(key).cloned() else {
        drop(state);
        if !asked.content_type.contains("apply-patch") {
            return Err(Refusal::not_found(key.plural, &key.name));
        }
        let mut object = asked.body.clone();
        object["metadata"]["name"] = key.name.clone().into();
        let namespace = asked.namespace.as_deref().unwrap_or("default");
        let created = cluster.create(asked.resource, namespace, object, false)?;
        return Ok(Reply::Json(201, Value::clone(&created)));
    };
    let mut object = Value::clone(&found);
    merge(&mut object, &asked.body);
    object["metadata"]["uid"] = found["metadata"]["uid"].clone();
    let put = state.store.put(key.clone(), object);
    let finalizers = put["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
    let had = found["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
    if put["metadata"]["deletionTimestamp"].is_string() && had > 0 && finalizers == 0 {
        state.remove(key);
    }
    Ok(Reply::Json(200, Value::clone(&put)))
}

/// Merges by the rules of JSON merge patches.
fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            target.as_object_mut().map(|target| target.remove(name));
        } else {
            merge(&mut target[name], value);
        }
    }
}

fn log(cluster: &ClusterState, key: &Key, query: &Query) -> Result<Bytes, Refusal> {
    let state = cluster.lock();
    let object = state.store.get(key).ok_or_else(|| Refusal::not_found("pods", &key.name))?;
    let first = object["spec"]["containers"][0]["name"].as_str().unwrap_or_default();
    let name = query.get("container").unwrap_or(first);
    let pod = object["metadata"]["uid"].as_str().and_then(|uid| state.pods.get(uid));
    let container = pod.and_then(|pod| pod.container(name));
    let message = format!("container \"{name}\" in pod \"{}\" is waiting to start", key.name);
    Ok(container.ok_or_else(|| Refusal::bad_request(message))?.log().into())
}
