//! The object of a run, which owns its pods: a lease that is renewed while the run lives.
//!
//! When the lease is deleted, the cluster deletes the pods of the run. A run is dead if its process ran on this machine
//! and has ended, or if its lease was not renewed for long; the next run, or `rollout clean`, deletes its lease.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{
    sync::OnceCell,
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::{
    access::{ClusterError, code, is_away, words},
    clerk::{self, CALL_TIMEOUT},
    names,
};
use crate::{
    docker::{Maker, Owner},
    environment::{EnvironmentError, Origin},
};

/// How often the lease is renewed.
const RENEWAL: Duration = Duration::from_secs(60);

/// A run whose lease is older is dead.
const LEASE_SECONDS: i32 = 300;

/// The attempts to create the lease.
const TRIES: u32 = 5;

/// The run's lease.
pub(super) struct RunOwner {
    leases: Api<Lease>,
    name: String,
    run: String,
    /// The reference for pods, and the task that renews the lease.
    made: OnceCell<(Value, AbortHandle)>,
}

impl RunOwner {
    pub(super) fn new(client: &Client, namespace: &str, run: &str) -> Self {
        Self {
            leases: Api::namespaced(client.clone(), namespace),
            name: format!("rollout-{run}"),
            run: run.to_owned(),
            made: OnceCell::new(),
        }
    }

    /// The reference to the lease, which is created at the first call.
    pub(super) async fn reference(&self) -> Result<Value, EnvironmentError> {
        let made = self.made.get_or_try_init(|| async {
            let lease = self.create().await?;
            let reference = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "name": self.name,
                "uid": lease.metadata.uid.unwrap_or_default(),
            });
            let (leases, name) = (self.leases.clone(), self.name.clone());
            let renewal = tokio::spawn(async move { renew(&leases, &name).await });
            Ok::<_, EnvironmentError>((reference, renewal.abort_handle()))
        });
        Ok(made.await?.0.clone())
    }

    async fn create(&self) -> Result<Lease, EnvironmentError> {
        let mut lease = Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(format!("rollout {}", std::process::id())),
                lease_duration_seconds: Some(LEASE_SECONDS),
                renew_time: Some(MicroTime(now())),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        lease.metadata.name = Some(self.name.clone());
        // Each pod has its own trial.
        let origin = Origin { job: "", trial: "" };
        lease.metadata.annotations = Some(Owner::current().labels(origin).into_iter().collect());
        let labels = [(names::MANAGED.0, names::MANAGED.1), (names::RUN, self.run.as_str())];
        lease.metadata.labels =
            Some(labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
        let mut tries = 1;
        loop {
            let created = timeout(CALL_TIMEOUT, self.leases.create(&PostParams::default(), &lease)).await;
            let error = match created {
                Ok(Ok(lease)) => return Ok(lease),
                // An earlier attempt without an answer has created it.
                Ok(Err(error)) if code(&error) == Some(409) => match self.leases.get(&self.name).await {
                    Ok(lease) => return Ok(lease),
                    Err(error) => error,
                },
                Ok(Err(error)) => error,
                Err(_) => kube::Error::Service("no answer in time".into()),
            };
            let why = format!("cannot create the lease {} of the run: {}", self.name, words(&error));
            if !is_away(&error) {
                return Err(EnvironmentError::Refused(why));
            }
            if tries == TRIES {
                return Err(EnvironmentError::Start(why));
            }
            tries += 1;
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Deletes the lease, and with it everything that the run left behind.
    pub(super) async fn end(&self) {
        let Some((_, renewal)) = self.made.get() else { return };
        renewal.abort();
        if let Err(error) = remove(&self.leases, &self.name).await {
            let error = words(&error);
            tracing::warn!(lease = self.name, error, "a lease was not deleted; `rollout clean` deletes it");
        }
    }
}

async fn remove(leases: &Api<Lease>, name: &str) -> Result<(), kube::Error> {
    match timeout(CALL_TIMEOUT, leases.delete(name, &DeleteParams::background())).await {
        Ok(Err(error)) if code(&error) != Some(404) => Err(error),
        Err(_) => Err(kube::Error::Service("no answer in time".into())),
        Ok(_) => Ok(()),
    }
}

async fn renew(leases: &Api<Lease>, name: &str) {
    loop {
        sleep(RENEWAL).await;
        let patch = json!({"spec": {"renewTime": MicroTime(now())}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let renewed = leases.patch(name, &params, &patch);
        if let Ok(Err(error)) = timeout(CALL_TIMEOUT, renewed).await {
            tracing::debug!(lease = name, error = words(&error), "a lease was not renewed");
        }
    }
}

/// The current time, with the precision that the server stores.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

/// A pod that Rollout created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPod {
    /// Its name.
    pub name: String,
    /// Its job.
    pub job: String,
    /// Its trial.
    pub trial: String,
    /// The state of its run.
    pub state: ClusterPodState,
}

/// Why a pod still exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterPodState {
    /// Its run has ended, so it can be removed.
    Ended,
    /// Its run is active.
    Running,
    /// It was preserved for the user.
    Kept,
}

/// Finds and removes what Rollout left in a namespace.
#[derive(Clone)]
pub(super) struct Sweep {
    pods: Api<Pod>,
    leases: Api<Lease>,
}

impl Sweep {
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), namespace),
            leases: Api::namespaced(client.clone(), namespace),
        }
    }

    /// All pods that Rollout created.
    pub(super) async fn pods(&self) -> Result<Vec<ClusterPod>, ClusterError> {
        let (leases, pods) = self.list().await?;
        let living: Vec<&str> =
            leases.iter().filter(|(_, is_dead)| !is_dead).map(|(run, _)| run.as_str()).collect();
        Ok(pods.iter().map(|pod| describe(pod, &living)).collect())
    }

    /// Deletes the pods and leases of dead runs, and returns the pods. A dry run only returns them.
    pub(super) async fn run(&self, dry_run: bool) -> Result<Vec<ClusterPod>, ClusterError> {
        let (leases, pods) = self.list().await?;
        let (dead, living): (Vec<_>, Vec<_>) = leases.iter().partition(|(_, is_dead)| *is_dead);
        let living: Vec<&str> = living.into_iter().map(|(run, _)| run.as_str()).collect();
        let ended: Vec<ClusterPod> = pods
            .iter()
            .map(|pod| describe(pod, &living))
            .filter(|pod| pod.state == ClusterPodState::Ended)
            .collect();
        if !dry_run {
            for pod in &ended {
                clerk::delete(&self.pods, &pod.name).await.map_err(ClusterError::call("delete a pod"))?;
            }
            for (run, _) in dead {
                let name = format!("rollout-{run}");
                remove(&self.leases, &name).await.map_err(ClusterError::call("delete a lease"))?;
            }
        }
        Ok(ended)
    }

    pub(super) async fn remove(&self, pod: &str) -> Result<(), ClusterError> {
        clerk::delete(&self.pods, pod).await.map_err(ClusterError::call("delete a pod"))
    }

    /// The runs with whether they are dead, and the pods.
    async fn list(&self) -> Result<(Vec<(String, bool)>, Vec<Pod>), ClusterError> {
        let params = ListParams::default().labels(&format!("{}={}", names::MANAGED.0, names::MANAGED.1));
        // Pods first: a lease exists before its first pod.
        let pods = self.pods.list(&params).await.map_err(ClusterError::call("list pods"))?;
        let leases = self.leases.list(&params).await.map_err(ClusterError::call("list leases"))?;
        let (now, here) = (Timestamp::now(), Owner::current());
        let leases = leases.items.iter().filter_map(|lease| {
            let run = lease.metadata.labels.as_ref()?.get(names::RUN)?.clone();
            Some((run, is_dead(lease, now, &here)))
        });
        // A pod that is being deleted needs nothing more.
        let pods = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
        Ok((leases.collect(), pods))
    }
}

fn is_dead(lease: &Lease, now: Timestamp, here: &Owner) -> bool {
    let texts = lease.metadata.annotations.iter().flatten();
    let maker: HashMap<String, String> = texts.map(|(key, value)| (key.clone(), value.clone())).collect();
    if here.maker(&maker) == Some(Maker::Dead) {
        return true;
    }
    let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
    renewed.is_none_or(|renewed| now.as_second() - renewed.as_second() > i64::from(LEASE_SECONDS))
}

fn describe(pod: &Pod, living: &[&str]) -> ClusterPod {
    let label = |key: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let annotation = |key: &str| {
        pod.metadata.annotations.as_ref().and_then(|texts| texts.get(key)).cloned().unwrap_or_default()
    };
    let state = match label(names::RUN) {
        _ if label(names::KEPT).is_some() => ClusterPodState::Kept,
        Some(run) if living.contains(&run.as_str()) => ClusterPodState::Running,
        _ => ClusterPodState::Ended,
    };
    ClusterPod {
        name: pod.metadata.name.clone().unwrap_or_default(),
        job: annotation(names::JOB),
        trial: annotation(names::TRIAL),
        state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_dead_when_its_process_is_or_its_lease_was_not_renewed() {
        let lease = |seconds: i64| Lease {
            spec: Some(LeaseSpec {
                renew_time: Some(MicroTime(Timestamp::from_second(10_000 - seconds).unwrap())),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        let now = Timestamp::from_second(10_000).unwrap();
        let here = Owner::current();
        assert!(!is_dead(&lease(30), now, &here));
        assert!(is_dead(&lease(400), now, &here));
        assert!(is_dead(&Lease::default(), now, &here));
        let mut own = lease(30);
        let mut texts = here.labels(Origin { job: "", trial: "" });
        own.metadata.annotations = Some(texts.clone().into_iter().collect());
        assert!(!is_dead(&own, now, &here), "this process runs");
        let process = texts.get_mut("rollout.owner").unwrap();
        *process = process.replacen(' ', " 1", 1);
        own.metadata.annotations = Some(texts.into_iter().collect());
        assert!(is_dead(&own, now, &here), "another process had its identifier");
    }

    #[test]
    fn pods_of_living_runs_and_preserved_ones_stay() {
        let pod = |labels: &[(&str, &str)]| {
            let mut pod = Pod::default();
            pod.metadata.labels =
                Some(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect());
            describe(&pod, &["alive"]).state
        };
        assert_eq!(pod(&[(names::RUN, "alive")]), ClusterPodState::Running);
        assert_eq!(pod(&[(names::RUN, "dead")]), ClusterPodState::Ended);
        assert_eq!(pod(&[(names::KEPT, "true")]), ClusterPodState::Kept);
    }
}
