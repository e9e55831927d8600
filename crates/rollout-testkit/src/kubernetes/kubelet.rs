//! The life of a pod: scheduling, init containers, containers and their end.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use rollout_sandbox::{Network, RunningSandbox, SandboxLimits, SandboxSpec};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{interval, sleep, timeout},
};

use super::{
    container::{self, Container},
    faults::PodFault,
    pod_status::{bind, finish, running, set_condition, set_state, terminated},
    state::ClusterState,
    store::Key,
};
use crate::piped;

/// How long each state of a failed pull is shown.
const BACK_OFF: Duration = Duration::from_secs(3);

/// How often a kubelet looks at its containers. It reports together what has ended since the last time.
const RELIST: Duration = Duration::from_secs(1);

/// The messages of a kubelet that evicts a pod.
pub(super) const LOW_STORAGE: &str = "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, \
    available: 9Gi. Container main was using 2Gi, which exceeds its request of 0. ";
const LOW_MEMORY: &str = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Mi. Container \
    main was using 900Mi, which exceeds its request of 512Mi. ";
const STORAGE_EXCEEDED: &str = "Container main exceeded its local ephemeral storage limit \"1Gi\". ";

/// The directory of the volumes inside a sandbox.
const VOLUMES: &str = "/var/local/volumes";

/// An order from outside to the kubelet about one pod. A later one replaces an earlier one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    /// End within the grace period, then remove the pod.
    Delete(Duration),
    /// End at once: the pod is removed already.
    Kill,
    /// End at once, and report the pod as evicted.
    Evict(String),
    /// Kill the processes of the containers.
    OutOfMemory,
    /// The node is lost, with the pod.
    LoseNode,
}

/// A pod on the node.
pub(super) struct Pod {
    pub(super) key: Key,
    pub(super) uid: String,
    faults: Vec<PodFault>,
    orders: watch::Sender<Option<Order>>,
    sandbox: Mutex<Option<Arc<RunningSandbox>>>,
    containers: Mutex<HashMap<String, Arc<Container>>>,
    out_of_memory: AtomicBool,
    cuts: AtomicUsize,
    /// Set when the node is lost, to cut its connections.
    pub(super) lost: watch::Sender<bool>,
}

impl Pod {
    pub(super) fn new(key: Key, uid: String, faults: Vec<PodFault>) -> Self {
        Self {
            key,
            uid,
            faults,
            orders: watch::Sender::new(None),
            sandbox: Mutex::default(),
            containers: Mutex::default(),
            out_of_memory: AtomicBool::new(false),
            cuts: AtomicUsize::new(0),
            lost: watch::Sender::new(false),
        }
    }

    pub(super) fn order(&self, order: Order) {
        self.orders.send_replace(Some(order));
    }

    pub(super) fn sandbox(&self) -> Option<Arc<RunningSandbox>> {
        self.sandbox.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A container that was started, by its name.
    pub(super) fn container(&self, name: &str) -> Option<Arc<Container>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// The number of bytes after which the next stream is cut.
    pub(super) fn next_cut(&self) -> Option<u64> {
        let cut = |fault: &PodFault| match fault {
            PodFault::CutStreams { after, times } => Some((*after, *times)),
            _ => None,
        };
        let (after, times) = self.faults.iter().find_map(cut)?;
        (self.cuts.fetch_add(1, Ordering::Relaxed) < times).then_some(after)
    }

    fn fault<T>(&self, of: impl Fn(&PodFault) -> Option<T>) -> Option<T> {
        self.faults.iter().find_map(of)
    }

    async fn kill(&self) {
        let sandbox = self.sandbox();
        if let Some(sandbox) = sandbox {
            // An error means that the sandbox is gone.
            let _ = sandbox.kill_all().await;
        }
    }

    /// Ends the sandbox.
    fn release(&self) {
        drop(self.sandbox.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// What ended the normal life of a pod.
enum End {
    Over,
    Ordered(Order),
    Deadline,
}

/// Runs a pod from its creation to its removal.
pub(super) async fn run(cluster: Arc<ClusterState>, pod: Arc<Pod>, object: Arc<Value>) {
    let mut orders = pod.orders.subscribe();
    let deadline = object["spec"]["activeDeadlineSeconds"].as_u64();
    let end = tokio::select! {
        () = live(&cluster, &pod, &object) => End::Over,
        order = final_order(&pod, &mut orders) => End::Ordered(order),
        () = after(deadline.map(Duration::from_secs)) => End::Deadline,
    };
    match end {
        End::Over => {}
        End::Deadline => {
            pod.kill().await;
            let message = "Pod was active on the node longer than the specified deadline";
            cluster.event(&pod, "Normal", "DeadlineExceeded", message);
            cluster.update_pod(&pod, |object| fail_with(object, "DeadlineExceeded", message));
        }
        End::Ordered(Order::Evict(message)) => {
            pod.kill().await;
            cluster.event(&pod, "Warning", "Evicted", &message);
            cluster.update_pod(&pod, |object| fail_with(object, "Evicted", &message));
        }
        End::Ordered(Order::LoseNode) => {
            pod.lost.send_replace(true);
            pod.release();
            cluster.event(&pod, "Warning", "NodeNotReady", "Node is not ready");
            let mut state = cluster.lock();
            if let Some(object) = state.store.get(&pod.key).cloned() {
                state.mark(&pod.key, &object, |object| {
                    object["metadata"]["deletionGracePeriodSeconds"] = 30.into();
                    object["status"]["reason"] = "NodeLost".into();
                    let message = "Node node-1 which was running pod is unresponsive";
                    object["status"]["message"] = message.into();
                    set_condition(object, "Ready", false, Some(("NodeNotReady", message)));
                });
            }
        }
        End::Ordered(Order::Delete(grace)) => {
            cluster.event(&pod, "Normal", "Killing", "Stopping container");
            terminate(&pod, &mut orders, grace).await;
            let mut state = cluster.lock();
            if state.store.get(&pod.key).is_some_and(|object| object["metadata"]["uid"] == *pod.uid) {
                state.remove(&pod.key);
            }
        }
        End::Ordered(Order::Kill | Order::OutOfMemory) => pod.kill().await,
    }
    pod.release();
}

/// Waits for an order that ends the pod.
async fn final_order(pod: &Pod, orders: &mut watch::Receiver<Option<Order>>) -> Order {
    loop {
        // The sender lives as long as the pod.
        let _ = orders.changed().await;
        let order = orders.borrow_and_update().clone();
        match order {
            Some(Order::Delete(_)) if pod.faults.contains(&PodFault::IgnoredDeletion) => {}
            Some(Order::OutOfMemory) => {
                pod.out_of_memory.store(true, Ordering::Relaxed);
                pod.kill().await;
            }
            Some(order) => return order,
            None => {}
        }
    }
}

/// Asks the processes to end, and kills those that remain after the grace period.
async fn terminate(pod: &Pod, orders: &mut watch::Receiver<Option<Order>>, grace: Duration) {
    let Some(sandbox) = pod.sandbox() else { return };
    let ask = ["/bin/sh", "-c", "kill -TERM -1"].map(str::to_owned).to_vec();
    let settings = container::settings(&Value::Null, &Value::Null);
    let containers: Vec<_> =
        pod.containers.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
    let ended = async {
        // If it cannot be asked, the sandbox is killed after the grace period.
        let _asked = piped::start(&sandbox, ask, settings, false).await;
        for container in containers {
            container.end().await;
        }
    };
    let killed = orders.wait_for(|order| *order == Some(Order::Kill));
    tokio::select! {
        _ = timeout(grace, ended) => {}
        _ = killed => {}
    }
    let _ = sandbox.kill_all().await;
}

async fn after(duration: Option<Duration>) {
    match duration {
        Some(duration) => sleep(duration).await,
        None => std::future::pending().await,
    }
}

fn fail_with(object: &mut Value, reason: &str, message: &str) {
    let names: Vec<_> =
        list(object, "containers").iter().filter_map(|c| c["name"].as_str().map(str::to_owned)).collect();
    for name in names {
        set_state(object, &name, terminated(137, "Error", None));
    }
    finish(object, "Failed", Some((reason, message)));
}

fn list<'a>(object: &'a Value, name: &str) -> &'a [Value] {
    object["spec"][name].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Runs a pod until its containers end.
async fn live(cluster: &Arc<ClusterState>, pod: &Arc<Pod>, object: &Value) {
    schedule(cluster, pod).await;
    let image = object["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
    if pod.faults.contains(&PodFault::ImagePull) {
        return fail_to_pull(cluster, pod, object, image).await;
    }
    if pod.faults.contains(&PodFault::SlowPull) {
        cluster.event(pod, "Normal", "Pulling", &format!("Pulling image \"{image}\""));
        std::future::pending::<()>().await;
    }
    let sandbox = match create_sandbox(cluster, pod, object).await {
        Ok(sandbox) => sandbox,
        Err(message) => {
            cluster.event(pod, "Warning", "FailedCreatePodSandBox", &message);
            cluster.update_pod(pod, |object| finish(object, "Failed", Some(("SandboxFailed", &message))));
            return;
        }
    };
    for container in list(object, "initContainers") {
        let name = container["name"].as_str().unwrap_or_default();
        let code = match start_container(cluster, pod, object, container, &sandbox).await {
            Some(container) => container.end().await,
            None => 128,
        };
        if code != 0 {
            let ended = terminated(code, "Error", None);
            cluster.update_pod(pod, |object| {
                if object["status"]["initContainerStatuses"][0]["state"]["terminated"].is_null() {
                    set_state(object, name, ended);
                }
                finish(object, "Failed", None);
            });
            return;
        }
        cluster.update_pod(pod, |object| set_state(object, name, terminated(0, "Completed", None)));
    }
    cluster.update_pod(pod, |object| set_condition(object, "Initialized", true, None));
    let mut started = Vec::new();
    for container in list(object, "containers") {
        let name = container["name"].as_str().unwrap_or_default().to_owned();
        if let Some(container) = start_container(cluster, pod, object, container, &sandbox).await {
            started.push((name, container));
        }
    }
    let all = started.len() == list(object, "containers").len();
    cluster.update_pod(pod, |object| {
        object["status"]["phase"] = "Running".into();
        object["status"]["podIP"] = "127.0.0.1".into();
        for condition in ["ContainersReady", "Ready"] {
            set_condition(object, condition, all, None);
        }
    });
    cluster.count_running(1);
    let _running = CountDown(cluster);
    plan_faults(pod);
    let mut failed = !all;
    // Only the first container has processes of the trial.
    let first = object["spec"]["containers"][0]["name"].as_str().unwrap_or_default();
    let mut relist = interval(RELIST);
    while !started.is_empty() {
        relist.tick().await;
        let mut ended = Vec::new();
        started.retain(|(name, container)| match container.exit_code() {
            Some(code) => {
                ended.push((name.clone(), code));
                false
            }
            None => true,
        });
        let out_of_memory = pod.out_of_memory.load(Ordering::Relaxed);
        let states: Vec<_> = ended
            .into_iter()
            .map(|(name, code)| match (code, out_of_memory) {
                (0, _) => (name, 0, "Completed"),
                (code, true) if name == first => (name, code, "OOMKilled"),
                // The others are not killed, and end by themselves because the first has ended.
                (_, true) => (name, 0, "Completed"),
                (code, false) => (name, code, "Error"),
            })
            .collect();
        failed |= states.iter().any(|(_, code, _)| *code != 0);
        if !states.is_empty() {
            cluster.update_pod(pod, |object| {
                for (name, code, reason) in states {
                    set_state(object, &name, terminated(code, reason, None));
                }
            });
        }
    }
    let phase = if failed { "Failed" } else { "Succeeded" };
    cluster.update_pod(pod, |object| finish(object, phase, None));
}

/// Counts a pod as running while it exists.
struct CountDown<'a>(&'a ClusterState);

impl Drop for CountDown<'_> {
    fn drop(&mut self) {
        self.0.count_running(-1);
    }
}

async fn schedule(cluster: &ClusterState, pod: &Pod) {
    let slow = pod.fault(|fault| match fault {
        PodFault::SlowScheduling(delay) => Some(Some(*delay)),
        PodFault::Unschedulable => Some(None),
        _ => None,
    });
    if let Some(delay) = slow {
        let message = "0/1 nodes are available: 1 Insufficient cpu.";
        cluster.event(pod, "Warning", "FailedScheduling", message);
        cluster.update_pod(pod, |object| {
            set_condition(object, "PodScheduled", false, Some(("Unschedulable", message)))
        });
        match delay {
            Some(delay) => sleep(delay).await,
            None => std::future::pending().await,
        }
    }
    let message = format!("Successfully assigned {}/{} to node-1", pod.key.namespace, pod.key.name);
    cluster.event(pod, "Normal", "Scheduled", &message);
    cluster.update_pod(pod, bind);
}

/// Reports that the image cannot be pulled, and waits.
async fn fail_to_pull(cluster: &ClusterState, pod: &Pod, object: &Value, image: &str) {
    let name = list(object, "initContainers").first().unwrap_or(&object["spec"]["containers"][0]);
    let name = name["name"].as_str().unwrap_or_default();
    let error = format!("Failed to pull image \"{image}\": manifest for {image} not found: manifest unknown");
    cluster.event(pod, "Normal", "Pulling", &format!("Pulling image \"{image}\""));
    cluster.event(pod, "Warning", "Failed", &error);
    for (reason, message) in
        [("ErrImagePull", error), ("ImagePullBackOff", format!("Back-off pulling image \"{image}\""))]
    {
        cluster.update_pod(pod, |object| {
            set_state(object, name, json!({"waiting": {"reason": reason, "message": message}}));
        });
        cluster.event(pod, "Warning", if reason == "ErrImagePull" { "Failed" } else { "BackOff" }, &message);
        // The error is shown for a while before the kubelet backs off.
        sleep(BACK_OFF).await;
    }
    std::future::pending().await
}

async fn create_sandbox(
    cluster: &ClusterState,
    pod: &Pod,
    object: &Value,
) -> Result<Arc<RunningSandbox>, String> {
    let image = cluster.engine.host_image().await.map_err(|error| error.to_string())?;
    let containers = || list(object, "initContainers").iter().chain(list(object, "containers"));
    let images: Vec<&str> = containers().filter_map(|container| container["image"].as_str()).collect();
    let spec = SandboxSpec {
        name: pod.key.name.clone(),
        image: cluster.with_files(image, &images),
        network: Network::Host,
        limits: SandboxLimits::default(),
        private_dirs: Vec::new(),
        hosts: Vec::new(),
    };
    let sandbox = Arc::new(cluster.engine.create(spec).await.map_err(|error| error.to_string())?);
    let failed = |error: rollout_sandbox::CopyError| error.to_string();
    for volume in list(object, "volumes") {
        let name = volume["name"].as_str().unwrap_or_default();
        let dir = format!("{VOLUMES}/{name}");
        sandbox.make_dir(&dir, 0o777, false).await.map_err(failed)?;
        for (file, content) in files_of(cluster, &pod.key.namespace, volume) {
            sandbox.write_file(&format!("{dir}/{file}"), content.as_bytes(), 0o644).await.map_err(failed)?;
        }
        // Containers may mount it at different paths.
        let mounts =
            containers().flat_map(|container| container["volumeMounts"].as_array().into_iter().flatten());
        let mut paths: Vec<_> = mounts
            .filter(|mount| mount["name"] == name)
            .filter_map(|mount| mount["mountPath"].as_str())
            .collect();
        paths.sort_unstable();
        paths.dedup();
        for path in paths {
            let path = path.trim_end_matches('/');
            if let Some((parent, _)) = path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
                sandbox.make_dir(parent, 0o755, false).await.map_err(failed)?;
            }
            sandbox.symlink(&dir, path).await.map_err(failed)?;
        }
    }
    *pod.sandbox.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&sandbox));
    Ok(sandbox)
}

/// The files of a volume that is filled by a config map.
fn files_of(cluster: &ClusterState, namespace: &str, volume: &Value) -> Vec<(String, String)> {
    let Some(name) = volume["configMap"]["name"].as_str() else { return Vec::new() };
    let state = cluster.lock();
    let Some(map) = state.store.get(&Key::new("configmaps", namespace, name)) else { return Vec::new() };
    let files = map["data"].as_object().into_iter().flatten();
    files.map(|(file, content)| (file.clone(), content.as_str().unwrap_or_default().to_owned())).collect()
}

/// Starts a container and reports it.
async fn start_container(
    cluster: &ClusterState,
    pod: &Pod,
    object: &Value,
    container: &Value,
    sandbox: &RunningSandbox,
) -> Option<Arc<Container>> {
    let name = container["name"].as_str().unwrap_or_default();
    let image = container["image"].as_str().unwrap_or_default();
    let words = |list: &str| container[list].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut argv: Vec<String> = words("command").chain(words("args")).map(str::to_owned).collect();
    if argv.is_empty() {
        argv = vec!["/bin/sh".to_owned()];
    }
    // The first process of a sandbox is its supervisor. A guest that expects to be the first one starts in its form
    // for machines where it is not.
    if argv[0].ends_with("/guest") && argv.get(1).is_some_and(|form| form == "session") {
        argv[1] = "host".to_owned();
    }
    let stdin = container["stdin"] == true;
    cluster.event(
        pod,
        "Normal",
        "Pulled",
        &format!("Container image \"{image}\" already present on machine"),
    );
    match piped::start(sandbox, argv, container::settings(object, container), stdin).await {
        Ok(piped) => {
            let started = Container::follow(piped, container["stdinOnce"] == true);
            pod.containers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(name.to_owned(), Arc::clone(&started));
            cluster.update_pod(pod, |object| set_state(object, name, running()));
            cluster.event(pod, "Normal", "Started", &format!("Started container {name}"));
            Some(started)
        }
        Err((code, message)) => {
            cluster.event(
                pod,
                "Warning",
                "Failed",
                &format!("Error: failed to start container \"{name}\": {message}"),
            );
            cluster.update_pod(pod, |object| {
                set_state(object, name, terminated(code, "ContainerCannotRun", Some(&message)));
            });
            None
        }
    }
}

/// Starts the faults that happen while the containers run.
fn plan_faults(pod: &Arc<Pod>) {
    let fault = pod.fault(|fault| match fault {
        PodFault::OutOfMemory(delay) => Some((*delay, Order::OutOfMemory)),
        PodFault::Evicted(delay) => Some((*delay, Order::Evict(LOW_MEMORY.to_owned()))),
        PodFault::StorageExceeded(delay) => Some((*delay, Order::Evict(STORAGE_EXCEEDED.to_owned()))),
        PodFault::NodeLost(delay) => Some((*delay, Order::LoseNode)),
        _ => None,
    });
    if let Some((delay, order)) = fault {
        let pod = Arc::clone(pod);
        tokio::spawn(async move {
            sleep(delay).await;
            pod.order(order);
        });
    }
}
