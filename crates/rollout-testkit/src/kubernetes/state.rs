//! The state of the cluster, and the creation of its objects.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rollout_sandbox::{Image, Layer, SandboxEngine};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    calls::ApiCalls,
    deadline,
    faults::PodFault,
    kubelet::{self, Order, Pod},
    pod_status::initial_status,
    refusal::Refusal,
    registry::{self, Registry, RegistryRequest},
    resource::Resource,
    serve::{Answer, with_body},
    store::{Key, Store},
};
use crate::ApiFault;

/// The name of the only node.
pub(super) const NODE: &str = "node-1";

/// The cluster that all connections share.
pub(super) struct ClusterState {
    state: Mutex<State>,
    pub(super) engine: SandboxEngine,
    /// Layers of image files, and running sandboxes.
    dir: PathBuf,
    /// The images with additional files: a part of the name, and the layer.
    layers: Mutex<Vec<(String, Layer)>>,
    pub(super) registry: Registry,
    /// Counts the times that all connections were cut.
    pub(super) breaks: watch::Sender<u64>,
}

pub(super) struct State {
    pub(super) store: Store,
    pub(super) calls: ApiCalls,
    pub(super) api_faults: Vec<ApiFault>,
    pub(super) pod_faults: Vec<(String, PodFault)>,
    /// Pods by uid.
    pub(super) pods: HashMap<String, Arc<Pod>>,
    pub(super) running: usize,
    pub(super) most_running: usize,
    ids: u64,
}

/// The current time in the form of the API.
pub(super) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl ClusterState {
    pub(super) fn new(engine: SandboxEngine, dir: PathBuf) -> Self {
        let mut state = State {
            store: Store::new(),
            calls: ApiCalls::default(),
            api_faults: Vec::new(),
            pod_faults: Vec::new(),
            pods: HashMap::new(),
            running: 0,
            most_running: 0,
            ids: 0,
        };
        for name in ["default", "kube-system"] {
            state.put_new(Key::new("namespaces", "", name), namespace(json!({"metadata": {"name": name}})));
        }
        let conditions = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady"}]);
        let capacity = json!({"cpu": "64", "memory": "256Gi", "pods": "10000"});
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}},
            "spec": {}, "status": {"conditions": conditions, "capacity": capacity, "allocatable": capacity},
        });
        state.put_new(Key::new("nodes", "", NODE), node);
        let (state, layers) = (Mutex::new(state), Mutex::new(Vec::new()));
        let registry = Registry::default();
        Self { state, engine, dir, layers, registry, breaks: watch::Sender::new(0) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a file to the images whose names contain a text.
    pub(super) fn add_image_file(&self, image: &str, path: &str, source: &Path) -> io::Result<()> {
        self.add_layer(image, |root| {
            let target = root.join(path.trim_start_matches('/'));
            fs::create_dir_all(target.parent().unwrap_or(root))?;
            fs::copy(source, target).map(drop)
        })
    }

    /// Adds a layer, whose files `fill` writes, to the images whose names contain a text.
    fn add_layer(&self, image: &str, fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = self.dir.join(format!("layer-{}", layers.len()));
        // The part of the host image that holds the root.
        fill(&dir.join("root"))?;
        layers.push((image.to_owned(), Layer::open(dir)?));
        Ok(())
    }

    /// Answers a request to the registry. Pods that are created after a push have the files of the image.
    pub(super) fn ask_registry(&self, asked: &RegistryRequest<'_>) -> Answer {
        let (answer, pushed) = self.registry.answer(asked);
        let Some(image) = pushed else { return answer };
        for layer in &image.layers {
            if let Err(error) = self.add_layer(&image.name, |root| registry::unpack(layer, root)) {
                return with_body(500, "text/plain", format!("cannot unpack a layer: {error}").into());
            }
        }
        answer
    }

    /// An image with the files of all containers of a pod.
    pub(super) fn with_files(&self, mut image: Image, names: &[&str]) -> Image {
        let layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        for (part, layer) in layers.iter() {
            if names.iter().any(|name| name.contains(part)) {
                let identity = format!("{}+{part}", image.identity());
                image = image.with_layer(layer, identity);
            }
        }
        image
    }

    /// Gives an order to the kubelet about a pod, if the pod exists.
    pub(super) fn order(&self, namespace: &str, pod: &str, order: Order) -> bool {
        let state = self.lock();
        let object = state.store.get(&Key::new("pods", namespace, pod));
        let found = object.and_then(|object| state.pods.get(object["metadata"]["uid"].as_str()?));
        found.map(|found| found.order(order)).is_some()
    }

    /// Creates an object, and starts it if it is a pod.
    pub(super) fn create(
        self: &Arc<Self>,
        resource: &'static Resource,
        namespace: &str,
        mut object: Value,
        dry_run: bool,
    ) -> Result<Arc<Value>, Refusal> {
        let mut state = self.lock();
        if object["metadata"]["name"].as_str().is_none_or(str::is_empty)
            && let Some(prefix) = object["metadata"]["generateName"].as_str()
        {
            object["metadata"]["name"] = format!("{prefix}{:05x}", state.ids + 1).into();
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        check_name(resource, &name)?;
        check_labels(resource, &name, &object)?;
        if resource.namespaced {
            let written = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
            if written != namespace {
                let why =
                    "the namespace of the provided object does not match the namespace sent on the request";
                return Err(Refusal::bad_request(why));
            }
            let found = state.store.get(&Key::new("namespaces", "", namespace));
            let found = found.ok_or_else(|| Refusal::not_found("namespaces", namespace))?;
            if found["metadata"]["deletionTimestamp"].is_string() {
                let why = format!(
                    "unable to create new content in namespace {namespace} because it is being terminated"
                );
                return Err(Refusal::forbidden(resource.plural, &name, &why));
            }
            object["metadata"]["namespace"] = namespace.into();
        }
        let key = Key::new(resource.plural, if resource.namespaced { namespace } else { "" }, &name);
        if state.store.get(&key).is_some() {
            return Err(Refusal::already_exists(resource.plural, &name));
        }
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.into();
        match resource.plural {
            "pods" => {
                check_pod(resource, &name, &object)?;
                state.check_quota(namespace, &name)?;
                object["status"] = initial_status();
            }
            "namespaces" => object = namespace_of(object),
            _ => {}
        }
        if dry_run {
            return Ok(Arc::new(object));
        }
        let created = state.put_new(key.clone(), object);
        if resource.plural == "pods" {
            let faults = state.pod_faults.iter().filter(|(part, _)| name.contains(part.as_str()));
            let faults = faults.map(|(_, fault)| fault.clone()).collect();
            let uid = created["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            let pod = Arc::new(Pod::new(key.clone(), uid.clone(), faults));
            state.pods.insert(uid, Arc::clone(&pod));
            tokio::spawn(kubelet::run(Arc::clone(self), pod, Arc::clone(&created)));
        }
        if resource.plural == "jobs" {
            tokio::spawn(deadline::follow(Arc::clone(self), key.clone(), Arc::clone(&created)));
        }
        state.collect_orphan(&key, &created);
        Ok(created)
    }

    /// Changes a pod, unless it is gone or another one has its name.
    pub(super) fn update_pod(&self, pod: &Pod, change: impl FnOnce(&mut Value)) {
        let mut state = self.lock();
        let Some(object) = state.store.get(&pod.key) else { return };
        if object["metadata"]["uid"] == *pod.uid {
            let mut object = Value::clone(object);
            change(&mut object);
            state.store.put(pod.key.clone(), object);
        }
    }

    /// Records an event of a pod.
    pub(super) fn event(&self, pod: &Pod, kind: &str, reason: &str, message: &str) {
        let mut state = self.lock();
        let (namespace, name) = (&pod.key.namespace, &pod.key.name);
        let event_name = format!("{name}.{:x}", state.ids + 1);
        let component = if reason.ends_with("cheduled") || reason.ends_with("cheduling") {
            "default-scheduler"
        } else {
            "kubelet"
        };
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": event_name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": pod.uid,
            },
            "type": kind, "reason": reason, "message": message, "source": {"component": component, "host": NODE},
            "firstTimestamp": now(), "lastTimestamp": now(), "count": 1,
        });
        state.put_new(Key::new("events", namespace, &event_name), event);
    }

    pub(super) fn count_running(&self, change: isize) {
        let mut state = self.lock();
        state.running = state.running.saturating_add_signed(change);
        state.most_running = state.most_running.max(state.running);
    }
}

impl State {
    /// Adds an object with a new uid.
    pub(super) fn put_new(&mut self, key: Key, mut object: Value) -> Arc<Value> {
        self.ids += 1;
        let uid = format!("{:08x}-0000-4000-8000-{:012x}", std::process::id(), self.ids);
        object["metadata"]["uid"] = uid.into();
        object["metadata"]["creationTimestamp"] = now().into();
        let name = key.name.clone();
        let is_namespace = key.plural == "namespaces";
        let object = self.store.put(key, object);
        if is_namespace {
            let account = json!({
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name},
            });
            self.put_new(Key::new("serviceaccounts", &name, "default"), account);
        }
        object
    }

    /// Refuses a pod that the quota of its namespace does not allow.
    fn check_quota(&self, namespace: &str, name: &str) -> Result<(), Refusal> {
        for (quota, object) in self.store.entries("resourcequotas", Some(namespace)) {
            let Some(hard) = object["spec"]["hard"]["pods"].as_str() else { continue };
            let pods = self.store.entries("pods", Some(namespace));
            let used = pods.filter(|(_, pod)| !is_over(pod)).count();
            if hard.parse::<usize>().is_ok_and(|hard| used >= hard) {
                let why = format!(
                    "exceeded quota: {}, requested: pods=1, used: pods={used}, limited: pods={hard}",
                    quota.name
                );
                return Err(Refusal::forbidden("pods", name, &why));
            }
        }
        Ok(())
    }
}

/// Whether all containers of a pod have ended for good.
pub(super) fn is_over(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn namespace(object: Value) -> Value {
    let mut object = namespace_of(object);
    object["apiVersion"] = "v1".into();
    object["kind"] = "Namespace".into();
    object
}

fn namespace_of(mut object: Value) -> Value {
    object["status"] = json!({"phase": "Active"});
    object
}

/// Refuses names that are not DNS subdomains.
fn check_name(resource: &Resource, name: &str) -> Result<(), Refusal> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let outer = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.is_empty() {
        return Err(Refusal::invalid(
            resource,
            name,
            "metadata.name: Required value: name or generateName is required",
        ));
    }
    if name.len() > 253 || !name.chars().all(inner) || !name.starts_with(outer) || !name.ends_with(outer) {
        let why = format!(
            "metadata.name: Invalid value: \"{name}\": a lowercase RFC 1123 subdomain must consist of lower case \
             alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
        );
        return Err(Refusal::invalid(resource, name, &why));
    }
    Ok(())
}

/// Refuses labels with invalid keys or values.
fn check_labels(resource: &Resource, name: &str, object: &Value) -> Result<(), Refusal> {
    let valid = |text: &str, empty: bool| {
        let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let outer = |c: char| c.is_ascii_alphanumeric();
        (empty && text.is_empty())
            || (text.len() <= 63
                && text.chars().all(inner)
                && text.starts_with(outer)
                && text.ends_with(outer))
    };
    for (key, value) in object["metadata"]["labels"].as_object().into_iter().flatten() {
        let last = key.rsplit('/').next().unwrap_or_default();
        if !valid(last, false) || !value.as_str().is_some_and(|value| valid(value, true)) {
            let why = format!("metadata.labels: Invalid value: {key}: {value}");
            return Err(Refusal::invalid(resource, name, &why));
        }
    }
    Ok(())
}

fn check_pod(resource: &Resource, name: &str, pod: &Value) -> Result<(), Refusal> {
    let containers = pod["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    if containers.is_empty() {
        return Err(Refusal::invalid(resource, name, "spec.containers: Required value"));
    }
    let complete = |container: &Value| container["name"].is_string() && container["image"].is_string();
    if !containers.iter().all(complete) {
        return Err(Refusal::invalid(resource, name, "spec.containers: Required value: name and image"));
    }
    Ok(())
}
