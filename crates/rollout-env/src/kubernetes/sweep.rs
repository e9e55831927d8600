//! Finds and deletes what runs left in a namespace.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::Job, coordination::v1::Lease, core::v1::Pod};
use kube::{Api, Client, api::ListParams};

use super::{
    access::ClusterError,
    clerk, names,
    owner::{SILENCE, remove},
};
use crate::docker::{Maker, Owner};

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
    jobs: Api<Job>,
}

/// The lease of a run.
struct RunLease {
    name: String,
    run: String,
    /// The Job that owns it.
    job: Option<String>,
    is_dead: bool,
}

impl Sweep {
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), namespace),
            leases: Api::namespaced(client.clone(), namespace),
            jobs: Api::namespaced(client.clone(), namespace),
        }
    }

    /// All pods that Rollout created.
    pub(super) async fn pods(&self) -> Result<Vec<ClusterPod>, ClusterError> {
        let (leases, pods) = self.list().await?;
        Ok(pods.iter().map(|pod| describe(pod, &living(&leases))).collect())
    }

    /// Deletes the pods and leases of dead runs, and returns the pods. A dry run only returns them.
    pub(super) async fn run(&self, dry_run: bool) -> Result<Vec<ClusterPod>, ClusterError> {
        let (leases, pods) = self.list().await?;
        let living = living(&leases);
        let ended: Vec<ClusterPod> = pods
            .iter()
            .map(|pod| describe(pod, &living))
            .filter(|pod| pod.state == ClusterPodState::Ended)
            .collect();
        if !dry_run {
            for pod in &ended {
                clerk::delete(&self.pods, &pod.name).await.map_err(ClusterError::call("delete a pod"))?;
            }
            for lease in leases.iter().filter(|lease| lease.is_dead) {
                remove(&self.leases, &lease.name).await.map_err(ClusterError::call("delete a lease"))?;
                if let Some(job) = &lease.job {
                    remove(&self.jobs, job).await.map_err(ClusterError::call("delete a job"))?;
                }
            }
        }
        Ok(ended)
    }

    pub(super) async fn remove(&self, pod: &str) -> Result<(), ClusterError> {
        clerk::delete(&self.pods, pod).await.map_err(ClusterError::call("delete a pod"))
    }

    /// The leases of the runs, and the pods.
    async fn list(&self) -> Result<(Vec<RunLease>, Vec<Pod>), ClusterError> {
        let params = ListParams::default().labels(&format!("{}={}", names::MANAGED.0, names::MANAGED.1));
        // Pods first: a lease exists before its first pod.
        let pods = self.pods.list(&params).await.map_err(ClusterError::call("list pods"))?;
        let leases = self.leases.list(&params).await.map_err(ClusterError::call("list leases"))?;
        let (now, here) = (Timestamp::now(), Owner::current());
        let leases = leases.items.iter().filter_map(|lease| {
            let owners = lease.metadata.owner_references.iter().flatten();
            Some(RunLease {
                name: lease.metadata.name.clone()?,
                run: lease.metadata.labels.as_ref()?.get(names::RUN)?.clone(),
                job: owners.filter(|owner| owner.kind == "Job").map(|owner| owner.name.clone()).next(),
                is_dead: is_dead(lease, now, &here),
            })
        });
        // A pod that is being deleted needs nothing more.
        let pods = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
        Ok((leases.collect(), pods))
    }
}

/// The runs that live.
fn living(leases: &[RunLease]) -> Vec<&str> {
    leases.iter().filter(|lease| !lease.is_dead).map(|lease| lease.run.as_str()).collect()
}

fn is_dead(lease: &Lease, now: Timestamp, here: &Owner) -> bool {
    let texts = lease.metadata.annotations.iter().flatten();
    let maker: HashMap<String, String> = texts.map(|(key, value)| (key.clone(), value.clone())).collect();
    if here.maker(&maker) == Some(Maker::Dead) {
        return true;
    }
    let Some(spec) = &lease.spec else { return true };
    let silence = spec.lease_duration_seconds.map_or(SILENCE.as_secs().cast_signed(), i64::from);
    let renewed = spec.renew_time.as_ref().map(|time| time.0);
    renewed.is_none_or(|renewed| now.as_second() - renewed.as_second() > silence)
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
    use k8s_openapi::{api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime};

    use super::*;
    use crate::environment::Origin;

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
        let mut patient = lease(400);
        patient.spec.as_mut().unwrap().lease_duration_seconds = Some(420);
        assert!(!is_dead(&patient, now, &here), "its trials may continue for longer without a connection");
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
