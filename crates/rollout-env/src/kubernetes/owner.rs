//! The objects of a run, which own its pods: a lease that is renewed while the run lives, and a Job that owns the lease.
//!
//! When the lease is deleted, the cluster deletes the pods of the run. The Job [deletes itself](super::expiry) if the
//! run is silent for long, so nothing is left of a run that was killed. If the cluster refuses the Job, the next run, or
//! `rollout clean`, deletes the leases of dead runs: those whose process ran on this machine and has ended, and those
//! that were not renewed for long.

use std::{
    fmt::Debug,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        batch::v1::Job,
        coordination::v1::{Lease, LeaseSpec},
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    sync::Mutex,
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::{
    access::{code, is_away, words},
    clerk::CALL_TIMEOUT,
    expiry, names,
};
use crate::{
    docker::Owner,
    environment::{EnvironmentError, Origin},
};

/// How often the objects are renewed.
const RENEWAL: Duration = Duration::from_secs(60);

/// A run that is silent for longer is dead. The time that a trial may continue without a connection is added.
pub(super) const SILENCE: Duration = Duration::from_secs(300);

/// The attempts to create an object.
const TRIES: u32 = 5;

/// Creates the objects of a run, and keeps them.
pub(super) struct RunOwner {
    leases: Api<Lease>,
    jobs: Api<Job>,
    run: String,
    /// The command that deletes what is left.
    clean_command: String,
    /// How long the run may be silent.
    silence: Duration,
    /// Set when a pod of the run was deleted by others, who may also have deleted its owner.
    suspicion: Arc<AtomicBool>,
    made: Mutex<Made>,
}

/// The current objects of a run.
#[derive(Default)]
struct Made {
    /// How many there were.
    number: u32,
    current: Option<(Arc<RunObjects>, AbortHandle)>,
}

impl RunOwner {
    pub(super) fn new(
        client: &Client,
        namespace: &str,
        run: &str,
        clean_command: &str,
        grace: Duration,
    ) -> Self {
        Self {
            leases: Api::namespaced(client.clone(), namespace),
            jobs: Api::namespaced(client.clone(), namespace),
            run: run.to_owned(),
            clean_command: clean_command.to_owned(),
            silence: SILENCE + grace,
            suspicion: Arc::default(),
            made: Mutex::default(),
        }
    }

    /// Set when a pod of the run was deleted by others.
    pub(super) fn suspicion(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.suspicion)
    }

    /// The reference to the lease, which is created at the first call, and again if it was deleted.
    pub(super) async fn reference(&self) -> Result<Value, EnvironmentError> {
        let mut made = self.made.lock().await;
        if let Some((objects, renewal)) = &made.current {
            // Pods of an owner that does not exist would be deleted at once. Renewals stop while the machine sleeps.
            if self.suspicion.swap(false, Ordering::Relaxed) || objects.since_attempt() > 3 * RENEWAL {
                objects.renew().await;
            }
            if !objects.are_gone() {
                return Ok(objects.reference.clone());
            }
            tracing::warn!(
                lease = objects.name,
                "the objects of the run were deleted; they are created again"
            );
            renewal.abort();
            if let Err(error) = remove(&objects.jobs, &objects.name).await {
                // It deletes itself.
                tracing::debug!(job = objects.name, error = words(&error), "a job was not deleted");
            }
            made.current = None;
        }
        made.number += 1;
        // What is left of earlier objects may still be deleted.
        let name = match made.number {
            1 => format!("rollout-{}", self.run),
            number => format!("rollout-{}-{number}", self.run),
        };
        let objects = Arc::new(self.create(name).await?);
        let reference = objects.reference.clone();
        let renewed = Arc::clone(&objects);
        let renewal = tokio::spawn(async move {
            while !renewed.are_gone() {
                sleep(RENEWAL).await;
                renewed.renew().await;
            }
        });
        made.current = Some((objects, renewal.abort_handle()));
        Ok(reference)
    }

    async fn create(&self, name: String) -> Result<RunObjects, EnvironmentError> {
        let start = Moment::now();
        let labels = [(names::MANAGED.0, names::MANAGED.1), (names::RUN, self.run.as_str())];
        let job = expiry::job(&name, &labels, None, self.silence)
            .map_err(|error| EnvironmentError::Refused(format!("invalid job: {error}")))?;
        let job = match create(&self.jobs, &name, &job, "job").await {
            Ok(job) => Some(expiry::owner("batch/v1", "Job", &job.metadata)),
            Err(EnvironmentError::Refused(why)) => {
                let clean = &self.clean_command;
                tracing::warn!("{why}; if this run is killed, its pods stay until the next run or `{clean}`");
                None
            }
            Err(error) => return Err(error),
        };
        let mut lease = Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(format!("rollout {}", std::process::id())),
                lease_duration_seconds: i32::try_from(self.silence.as_secs()).ok(),
                renew_time: Some(MicroTime(now())),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        lease.metadata.name = Some(name.clone());
        // Each pod has its own trial.
        let origin = Origin { job: "", trial: "" };
        lease.metadata.annotations = Some(Owner::current().labels(origin).into_iter().collect());
        lease.metadata.labels =
            Some(labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
        let has_job = AtomicBool::new(job.is_some());
        lease.metadata.owner_references = job.map(|job| vec![job]);
        let lease = create(&self.leases, &name, &lease, "lease").await?;
        Ok(RunObjects {
            leases: self.leases.clone(),
            jobs: self.jobs.clone(),
            name,
            reference: expiry::reference("coordination.k8s.io/v1", "Lease", &lease.metadata),
            silence: self.silence,
            start,
            has_job,
            attempt: std::sync::Mutex::new(Moment::now()),
            gone: AtomicBool::new(false),
        })
    }

    /// Deletes the objects, and with them everything that the run left behind.
    pub(super) async fn end(&self) {
        let Some((objects, renewal)) = self.made.lock().await.current.take() else { return };
        renewal.abort();
        let name = &objects.name;
        if let Err(error) = remove(&objects.leases, name).await {
            let (error, clean) = (words(&error), &self.clean_command);
            tracing::warn!(lease = name, error, "a lease was not deleted; `{clean}` deletes it");
        }
        if objects.has_job.load(Ordering::Relaxed)
            && let Err(error) = remove(&objects.jobs, name).await
        {
            // It deletes itself.
            tracing::debug!(job = name, error = words(&error), "a job was not deleted");
        }
    }
}

/// A lease with its Job, which have the same name.
struct RunObjects {
    leases: Api<Lease>,
    jobs: Api<Job>,
    name: String,
    /// The reference for pods.
    reference: Value,
    silence: Duration,
    start: Moment,
    has_job: AtomicBool,
    /// The last attempt to renew them.
    attempt: std::sync::Mutex<Moment>,
    gone: AtomicBool,
}

impl RunObjects {
    /// Whether they were deleted by others, or are being deleted.
    fn are_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn since_attempt(&self) -> Duration {
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Renews them, or finds that they are gone. If the server does not answer, the next renewal may reach it.
    async fn renew(&self) {
        *self.attempt.lock().unwrap_or_else(PoisonError::into_inner) = Moment::now();
        let params = PatchParams::default();
        if self.has_job.load(Ordering::Relaxed) {
            let deadline = self.start.elapsed() + self.silence;
            let postponed = timeout(CALL_TIMEOUT, expiry::postpone(&self.jobs, &self.name, deadline)).await;
            match postponed {
                Ok(Ok(job)) if expiry::is_over(&job) => self.gone.store(true, Ordering::Relaxed),
                Ok(Ok(_)) | Err(_) => {}
                Ok(Err(error)) if code(&error) == Some(404) => self.gone.store(true, Ordering::Relaxed),
                Ok(Err(error)) if is_away(&error) => {
                    tracing::debug!(job = self.name, error = words(&error), "a job was not renewed");
                }
                Ok(Err(error)) => {
                    // The cluster would delete the Job, and everything that it owns.
                    let patch = json!({"metadata": {"ownerReferences": null}});
                    let patch = Patch::Merge(&patch);
                    let released =
                        timeout(CALL_TIMEOUT, self.leases.patch(&self.name, &params, &patch)).await;
                    if matches!(released, Ok(Ok(_))) {
                        self.has_job.store(false, Ordering::Relaxed);
                        let error = words(&error);
                        tracing::warn!(
                            job = self.name,
                            error,
                            "the job of the run cannot be renewed, so pods may be left if this run is killed"
                        );
                    }
                }
            }
        }
        let patch = json!({"spec": {"renewTime": MicroTime(now())}});
        let patch = Patch::Merge(&patch);
        match timeout(CALL_TIMEOUT, self.leases.patch(&self.name, &params, &patch)).await {
            Ok(Ok(lease)) if lease.metadata.deletion_timestamp.is_some() => {
                self.gone.store(true, Ordering::Relaxed);
            }
            Ok(Err(error)) if code(&error) == Some(404) => self.gone.store(true, Ordering::Relaxed),
            Ok(Err(error)) => {
                tracing::debug!(lease = self.name, error = words(&error), "a lease was not renewed");
            }
            Ok(Ok(_)) | Err(_) => {}
        }
    }
}

/// A time on two clocks: one stands still while the machine sleeps, and the other one can be set back.
#[derive(Debug, Clone, Copy)]
struct Moment {
    instant: Instant,
    time: Timestamp,
}

impl Moment {
    fn now() -> Self {
        Self { instant: Instant::now(), time: Timestamp::now() }
    }

    fn elapsed(self) -> Duration {
        let slept = Timestamp::now().duration_since(self.time);
        self.instant.elapsed().max(Duration::try_from(slept).unwrap_or_default())
    }
}

/// Creates an object of the run. One that exists was created by an attempt that seemed to fail.
async fn create<K>(objects: &Api<K>, name: &str, object: &K, what: &str) -> Result<K, EnvironmentError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let mut tries = 1;
    loop {
        let created = timeout(CALL_TIMEOUT, objects.create(&PostParams::default(), object)).await;
        let error = match created {
            Ok(Ok(object)) => return Ok(object),
            Ok(Err(error)) if code(&error) == Some(409) => match objects.get(name).await {
                Ok(object) => return Ok(object),
                Err(error) => error,
            },
            Ok(Err(error)) => error,
            Err(_) => kube::Error::Service("no answer in time".into()),
        };
        let why = format!("cannot create the {what} {name} of the run: {}", words(&error));
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

/// Deletes an object with everything that it owns. A missing one is not an error.
pub(super) async fn remove<K>(objects: &Api<K>, name: &str) -> Result<(), kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    match timeout(CALL_TIMEOUT, objects.delete(name, &DeleteParams::background())).await {
        Ok(Err(error)) if code(&error) != Some(404) => Err(error),
        Err(_) => Err(kube::Error::Service("no answer in time".into())),
        Ok(_) => Ok(()),
    }
}

/// The current time, with the precision that the server stores.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}
