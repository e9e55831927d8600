//! Pods without a network: a policy of the run selects them by a label, and a preserved one has a policy of its own.

use k8s_openapi::api::{core::v1::Pod, networking::v1::NetworkPolicy};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{
    Cluster,
    access::{code, words},
    names,
};
use crate::environment::EnvironmentError;

/// Takes the network of the pods of a run that are labelled so. The policy is deleted with its owner.
pub(super) async fn isolate_run(cluster: &Cluster, owner: Value) -> Result<(), EnvironmentError> {
    let name = owner["name"].as_str().unwrap_or_default().to_owned();
    create_policy(cluster, &name, owner, (names::RUN, &cluster.run)).await
}

/// Takes the network of a preserved pod. The policy of its run does not select it any more.
pub(super) async fn isolate_kept(cluster: &Cluster, pod: &str, owner: Value) -> Result<(), EnvironmentError> {
    create_policy(cluster, pod, owner, (names::POD, pod)).await
}

/// Creates a policy for the pods with a label, unless it exists.
async fn create_policy(
    cluster: &Cluster,
    name: &str,
    owner: Value,
    label: (&str, &str),
) -> Result<(), EnvironmentError> {
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": name,
            "labels": {(names::MANAGED.0): names::MANAGED.1, (names::RUN): cluster.run},
            "ownerReferences": [owner],
        },
        "spec": {
            "podSelector": {"matchLabels": {(label.0): label.1, (names::NETWORK): "none"}},
            "policyTypes": ["Ingress", "Egress"],
        },
    });
    let policy: NetworkPolicy = serde_json::from_value(policy)
        .map_err(|error| EnvironmentError::Refused(format!("invalid network policy: {error}")))?;
    let policies: Api<NetworkPolicy> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    match policies.create(&PostParams::default(), &policy).await {
        Err(error) if code(&error) != Some(409) => Err(EnvironmentError::Start(format!(
            "cannot create the network policy {name}: {}",
            words(&error)
        ))),
        _ => Ok(()),
    }
}

/// Takes the network of a pod away, or gives it back.
pub(super) async fn set(cluster: &Cluster, pod: &str, connected: bool) -> Result<(), EnvironmentError> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let patch = json!({"metadata": {"labels": {(names::NETWORK): if connected { "full" } else { "none" }}}});
    let patched = pods.patch(pod, &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map(drop).map_err(|error| {
        EnvironmentError::Lost(format!("cannot change the network of the pod {pod}: {}", words(&error)))
    })
}
