//! The status of pods, in the form that kubelets report.

use serde_json::{Value, json};

use super::state::{NODE, now};

/// The status of a pod that no node has.
pub(super) fn initial_status() -> Value {
    json!({"phase": "Pending", "qosClass": "Burstable"})
}

/// Sets a condition of a pod.
pub(super) fn set_condition(pod: &mut Value, kind: &str, is: bool, reason: Option<(&str, &str)>) {
    let mut condition = json!({
        "type": kind, "status": if is { "True" } else { "False" }, "lastProbeTime": null, "lastTransitionTime": now(),
    });
    if let Some((reason, message)) = reason {
        condition["reason"] = reason.into();
        condition["message"] = message.into();
    }
    let conditions = &mut pod["status"]["conditions"];
    if conditions.is_null() {
        *conditions = json!([]);
    }
    let list = conditions.as_array_mut().map(|list| {
        list.retain(|other| other["type"] != kind);
        list.push(condition);
    });
    debug_assert!(list.is_some(), "conditions are a list");
}

/// Gives the pod to the node, whose containers all wait.
pub(super) fn bind(pod: &mut Value) {
    pod["spec"]["nodeName"] = NODE.into();
    set_condition(pod, "PodScheduled", true, None);
    let has_init = pod["spec"]["initContainers"].as_array().is_some_and(|list| !list.is_empty());
    set_condition(
        pod,
        "Initialized",
        !has_init,
        has_init.then_some(("ContainersNotInitialized", "containers are not initialized")),
    );
    for condition in ["Ready", "ContainersReady"] {
        set_condition(pod, condition, false, Some(("ContainersNotReady", "containers with unready status")));
    }
    let reason = if has_init { "PodInitializing" } else { "ContainerCreating" };
    for (list, statuses) in [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")]
    {
        let waiting = json!({"waiting": {"reason": reason}});
        let mut containers = pod["spec"][list].as_array().cloned().unwrap_or_default();
        if list == "containers" {
            // Kubelets sort the statuses of containers, but not those of init containers.
            containers.sort_by_key(|container| container["name"].as_str().map(str::to_owned));
        }
        let all: Vec<Value> =
            containers.iter().map(|container| status(container, waiting.clone(), false)).collect();
        if !all.is_empty() {
            pod["status"][statuses] = all.into();
        }
    }
    pod["status"]["hostIP"] = "127.0.0.1".into();
    pod["status"]["startTime"] = now().into();
}

fn status(container: &Value, state: Value, ready: bool) -> Value {
    json!({
        "name": container["name"], "image": container["image"], "imageID": "", "ready": ready, "started": ready,
        "restartCount": 0, "lastState": {}, "state": state,
    })
}

/// Sets the state of a container.
pub(super) fn set_state(pod: &mut Value, name: &str, state: Value) {
    let ready = state["running"].is_object();
    for statuses in ["containerStatuses", "initContainerStatuses"] {
        for status in pod["status"][statuses].as_array_mut().into_iter().flatten() {
            if status["name"] == name {
                status["ready"] = ready.into();
                status["started"] = ready.into();
                status["containerID"] = format!("native://{name}").into();
                status["state"] = state.clone();
            }
        }
    }
}

/// The state of a running container.
pub(super) fn running() -> Value {
    json!({"running": {"startedAt": now()}})
}

/// The state of a container that has ended.
pub(super) fn terminated(code: i32, reason: &str, message: Option<&str>) -> Value {
    let mut state = json!({"exitCode": code, "reason": reason, "startedAt": now(), "finishedAt": now()});
    if let Some(message) = message {
        state["message"] = message.into();
    }
    json!({"terminated": state})
}

/// Ends the pod.
pub(super) fn finish(pod: &mut Value, phase: &str, reason: Option<(&str, &str)>) {
    pod["status"]["phase"] = phase.into();
    if let Some((reason, message)) = reason {
        pod["status"]["reason"] = reason.into();
        pod["status"]["message"] = message.into();
    }
    let why = if phase == "Succeeded" { "PodCompleted" } else { "PodFailed" };
    for condition in ["Ready", "ContainersReady"] {
        set_condition(pod, condition, false, Some((why, "")));
    }
}
