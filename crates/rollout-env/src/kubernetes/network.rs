//! Pods without a network: a policy of the run selects them by a label.

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

/// Creates the policy of the run, unless it exists.
pub(super) async fn create_policy(cluster: &Cluster, owner: Value) -> Result<(), EnvironmentError> {
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": format!("rollout-{}", cluster.run),
            "labels": {(names::MANAGED.0): names::MANAGED.1, (names::RUN): cluster.run},
            "ownerReferences": [owner],
        },
        "spec": {
            "podSelector": {"matchLabels": {(names::RUN): cluster.run, (names::NETWORK): "none"}},
            "policyTypes": ["Ingress", "Egress"],
        },
    });
    let policy: NetworkPolicy = serde_json::from_value(policy)
        .map_err(|error| EnvironmentError::Refused(format!("invalid network policy: {error}")))?;
    let policies: Api<NetworkPolicy> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    match policies.create(&PostParams::default(), &policy).await {
        Err(error) if code(&error) != Some(409) => Err(EnvironmentError::Start(format!(
            "cannot create the network policy of the run: {}",
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
