//! A running pod, controlled through its guest.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use async_trait::async_trait;
use k8s_openapi::{
    api::{batch::v1::Job, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};

use super::{
    Cluster,
    access::{code, words},
    clerk::{CALL_TIMEOUT, OwnedPod},
    dial::PodDial,
    expiry, names, network,
    settings::{Prices, Requests},
    state::{PodView, Start},
    terminal,
};
use crate::{
    environment::{EnvironmentError, Exit, Facts, ImageStartup, StartReport},
    guest::{Guest, GuestSession},
    guest_environment::{GuestEnvironment, GuestPlace},
};

/// A node reports the end of a container some time after its streams closed.
const END_PATIENCE: Duration = Duration::from_secs(15);

/// The Job of a preserved pod outlives it by this time.
const KEPT_MARGIN: Duration = Duration::from_secs(60);

/// How long a pod's state may stay the same before its events are read.
const PULL_PATIENCE: Duration = Duration::from_secs(5);

/// The most events that an error quotes.
const MAX_EVENTS: usize = 5;

/// A pod that is being started.
pub(super) struct NewPod {
    pub(super) name: String,
    pub(super) user: Option<String>,
    pub(super) workdir: String,
    pub(super) startup: ImageStartup,
    pub(super) facts: Facts,
    pub(super) prices: Prices,
    pub(super) requests: Requests,
    pub(super) grace: Duration,
}

/// A running pod.
pub(super) struct RunningPod {
    /// `None` in a reopened pod, which is not deleted. Dropped before the cluster, whose last owner waits until every
    /// pod is dropped.
    pod: Option<OwnedPod>,
    cluster: Arc<Cluster>,
    new: NewPod,
    /// Its state. `None` in a reopened pod.
    view: Option<watch::Receiver<PodView>>,
    /// When a node got the pod.
    since: Instant,
}

impl RunningPod {
    /// Waits until a pod runs and its guest answers.
    pub(super) async fn start(
        cluster: Arc<Cluster>,
        new: NewPod,
        pod: OwnedPod,
        mut view: watch::Receiver<PodView>,
        until: Instant,
        waits: Option<&dyn StartReport>,
    ) -> Result<GuestEnvironment<Self>, EnvironmentError> {
        let mut bill = PodBill { prices: new.prices, requests: new.requests, since: None, report: waits };
        let mut reason = String::new();
        loop {
            let (state, is_scheduled) = {
                let view = view.borrow_and_update();
                (view.start(), view.is_scheduled())
            };
            if is_scheduled {
                bill.since.get_or_insert_with(Instant::now);
            }
            match state {
                Start::Runs => break,
                Start::Failed(error) => return Err(with_events(&cluster, &new.name, error).await),
                Start::Waits(what) => report(waits, &mut reason, what),
            }
            let look = until.min(Instant::now() + PULL_PATIENCE);
            if timeout_at(look, view.changed()).await.is_ok() {
                continue;
            }
            // The state of a pod does not show that its node pulls an image. Most pods start before the cluster is asked.
            if is_scheduled && let Some(image) = pulling(&cluster, &new.name).await {
                report(waits, &mut reason, format!("the image {image}"));
            }
            if Instant::now() >= until {
                return Err(with_events(&cluster, &new.name, timed_out(&reason)).await);
            }
            if timeout_at(until, view.changed()).await.is_err() {
                return Err(with_events(&cluster, &new.name, timed_out(&reason)).await);
            }
        }
        let since = *bill.since.get_or_insert_with(Instant::now);
        let dial = PodDial { pods: cluster.pods(), name: new.name.clone(), view: view.clone() };
        let lost =
            |error: std::io::Error| EnvironmentError::Start(format!("cannot start a session: {error}"));
        let (session, reader, writer) = GuestSession::open(dial, new.grace).map_err(lost)?;
        let connected = Guest::connect(reader, writer, new.user.clone()).await;
        let guest = match connected {
            Ok(guest) => guest.with_outage(new.grace),
            Err(error) => {
                let ended = view.borrow().end();
                let error = ended.unwrap_or(error);
                let error =
                    EnvironmentError::Start(format!("the pod runs, but its guest does not answer: {error}"));
                return Err(with_events(&cluster, &new.name, error).await);
            }
        };
        bill.report = None;
        let place = Self { pod: Some(pod), cluster, new, view: Some(view), since };
        Ok(GuestEnvironment::new(place, guest, session))
    }

    /// Opens a preserved pod.
    pub(super) async fn reopen(
        cluster: Arc<Cluster>,
        name: &str,
    ) -> Result<GuestEnvironment<Self>, EnvironmentError> {
        if !names::is_pod(name) {
            return Err(EnvironmentError::Start(format!("{name:?} is not the name of a pod")));
        }
        let found = cluster.pods().get(name).await.map_err(|error| {
            EnvironmentError::Start(match code(&error) {
                Some(404) => format!("the pod {name} no longer exists"),
                _ => format!("cannot open the pod {name}: {}", words(&error)),
            })
        })?;
        let user = found.metadata.annotations.as_ref().and_then(|texts| texts.get(names::USER)).cloned();
        if let Some(end) = PodView::Seen(Box::new(found)).end() {
            return Err(EnvironmentError::Start(format!("the pod {name} has ended: {end}")));
        }
        let new = NewPod {
            name: name.to_owned(),
            user: user.filter(|user| !user.is_empty()),
            workdir: "/".to_owned(),
            startup: ImageStartup::default(),
            facts: Facts { network: String::new(), enforced: serde_json::Value::Null },
            prices: Prices { cpu_hour: 0.0, gib_hour: 0.0 },
            requests: Requests::default(),
            grace: Duration::ZERO,
        };
        Ok(GuestEnvironment::reopened(Self { pod: None, cluster, new, view: None, since: Instant::now() }))
    }
}

/// Reports the cost of a pod that has a node and does not start, also if its trial is cancelled.
struct PodBill<'a> {
    prices: Prices,
    requests: Requests,
    /// When a node got the pod; `None` if none has it.
    since: Option<Instant>,
    report: Option<&'a dyn StartReport>,
}

impl Drop for PodBill<'_> {
    fn drop(&mut self) {
        if let (Some(report), Some(since)) = (self.report, self.since) {
            report.failed_start_cost(self.prices.of(self.requests, since.elapsed()));
        }
    }
}

/// Why a pod does not run; `None` if it runs, as far as the cluster knows.
async fn why_ended(
    cluster: &Cluster,
    name: &str,
    mut view: watch::Receiver<PodView>,
) -> Option<EnvironmentError> {
    let watched = timeout(END_PATIENCE, view.wait_for(|view| view.cause().is_some())).await;
    let mut end = watched.ok().and_then(|view| view.ok()?.cause());
    if end.is_none() {
        // The watch may be broken.
        let now = match timeout(CALL_TIMEOUT, cluster.pods().get_opt(name)).await {
            Ok(Ok(Some(pod))) => PodView::Seen(Box::new(pod)),
            Ok(Ok(None)) => PodView::Removed(None),
            Ok(Err(error)) => return Some(no_answer(&words(&error))),
            Err(_) => return Some(no_answer("no answer in time")),
        };
        end = now.end();
    }
    Some(with_events(cluster, name, end?).await)
}

fn no_answer(why: &str) -> EnvironmentError {
    EnvironmentError::Lost(format!("the cluster does not answer: {why}"))
}

/// Reports what a pod waits for, if that has changed.
fn report(waits: Option<&dyn StartReport>, reason: &mut String, what: String) {
    if what != *reason {
        if let Some(waits) = waits {
            waits.waits_for(&what);
        }
        *reason = what;
    }
}

/// The image that the node of a pod pulls, by the pod's events; `None` if it pulls none, as far as is known.
async fn pulling(cluster: &Cluster, pod: &str) -> Option<String> {
    let params = ListParams::default().fields(&format!("involvedObject.name={pod},type=Normal"));
    let events = cluster.events().list(&params).await.ok()?.items;
    let named = |reason: &str| {
        let texts = events.iter().filter(|event| event.reason.as_deref() == Some(reason));
        texts.filter_map(|event| event.message.as_deref()?.split('"').nth(1)).collect::<Vec<_>>()
    };
    let pulled = named("Pulled");
    named("Pulling").into_iter().find(|image| !pulled.contains(image)).map(str::to_owned)
}

/// The error of a pod that has not started in time. A pod for which no node has room will not start at the next try
/// either.
fn timed_out(reason: &str) -> EnvironmentError {
    let text = format!("the pod did not start in time: it waits for {reason}");
    if let Some(image) = reason.strip_prefix("the image ") {
        return EnvironmentError::Pull(format!(
            "the pod did not start in time: the cluster cannot pull {image}"
        ));
    }
    if reason.starts_with("a node: ") {
        return EnvironmentError::Resources(format!(
            "{text}; lower the limits in task.toml, override them in the job, or raise provider_config.start_timeout_sec"
        ));
    }
    EnvironmentError::Start(text)
}

/// Adds the last warnings of a pod to an error.
async fn with_events(cluster: &Cluster, pod: &str, error: EnvironmentError) -> EnvironmentError {
    let params = ListParams::default().fields(&format!("involvedObject.name={pod},type=Warning"));
    let Ok(found) = cluster.events().list(&params).await else { return error };
    let mut texts: Vec<String> = Vec::new();
    for event in found.items {
        let text =
            format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default().trim());
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    let first = texts.len().saturating_sub(MAX_EVENTS);
    if texts.is_empty() {
        return error;
    }
    let events = texts[first..].join("\n  ");
    let add = |text: String| format!("{text}\nevents of the pod:\n  {events}");
    match error {
        EnvironmentError::Pull(text) => EnvironmentError::Pull(add(text)),
        EnvironmentError::NoImage(text) => EnvironmentError::NoImage(add(text)),
        EnvironmentError::Start(text) => EnvironmentError::Start(add(text)),
        EnvironmentError::Refused(text) => EnvironmentError::Refused(add(text)),
        EnvironmentError::Resources(text) => EnvironmentError::Resources(add(text)),
        EnvironmentError::Lost(text) => EnvironmentError::Lost(add(text)),
        EnvironmentError::Ended(text) => EnvironmentError::Ended(add(text)),
        EnvironmentError::TimeOver(text) => EnvironmentError::TimeOver(add(text)),
        other => other,
    }
}

#[async_trait]
impl GuestPlace for RunningPod {
    const KIND: &'static str = "pod";

    fn id(&self) -> &str {
        &self.new.name
    }

    fn facts(&self) -> Facts {
        self.new.facts.clone()
    }

    fn workdir(&self) -> &str {
        &self.new.workdir
    }

    fn startup(&self) -> ImageStartup {
        self.new.startup.clone()
    }

    fn cost(&self) -> f64 {
        self.new.prices.of(self.new.requests, self.since.elapsed())
    }

    fn clean_command(&self) -> String {
        self.cluster.clean_command.clone()
    }

    /// The guest is started by the cluster, with the variables of the image.
    fn variables(&self) -> &[(String, String)] {
        &[]
    }

    async fn why_ended(&self) -> Option<EnvironmentError> {
        why_ended(&self.cluster, &self.new.name, self.view.clone()?).await
    }

    async fn set_network(&self, connected: bool) -> Result<(), EnvironmentError> {
        network::set(&self.cluster, &self.new.name, connected).await
    }

    async fn address(&self) -> Result<Option<String>, EnvironmentError> {
        let pod = self.cluster.pods().get(&self.new.name).await.map_err(|error| {
            EnvironmentError::Lost(format!("cannot get the address of the pod: {}", words(&error)))
        })?;
        Ok(pod.status.and_then(|status| status.pod_ip).filter(|address| !address.is_empty()))
    }

    async fn exec_on_terminal(&self, argv: &[&str], terminal: OwnedFd) -> Result<Exit, EnvironmentError> {
        terminal::exec(&self.cluster.pods(), &self.new.name, self.new.user.as_deref(), argv, terminal).await
    }

    async fn destroy(self) -> Result<(), EnvironmentError> {
        let Self { pod, cluster, new, .. } = self;
        match pod {
            Some(pod) => pod.delete().await,
            None => cluster
                .remove_pod(&new.name)
                .await
                .map_err(|error| EnvironmentError::Teardown(error.to_string())),
        }
    }

    async fn keep(self) -> Result<String, EnvironmentError> {
        let Self { pod, cluster, new, since, .. } = self;
        let name = &new.name;
        let failed =
            |why: String| EnvironmentError::Teardown(format!("cannot preserve the pod {name}: {why}"));
        let pods: Api<Pod> = cluster.pods();
        let found = pods.get(name).await.map_err(|error| failed(words(&error)))?;
        let owner = expiry::owner("v1", "Pod", &found.metadata);
        let label = |key: &str| found.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        if label(names::NETWORK).is_some_and(|network| network == "none") {
            // Before the policy of the run lets it go.
            let isolated = network::isolate_kept(&cluster, name, json!(owner)).await;
            isolated.map_err(|error| failed(error.to_string()))?;
        }
        let lifetime = found.spec.and_then(|spec| spec.active_deadline_seconds).unwrap_or_default();
        let rest = Duration::from_secs(lifetime.unsigned_abs()).saturating_sub(since.elapsed()) + KEPT_MARGIN;
        let job = expire(&cluster, name, owner, rest).await;
        let patch = json!({"metadata": {
            "labels": {(names::KEPT): "true", (names::POD): name, (names::RUN): null},
            "ownerReferences": job.map(|job| vec![job]),
        }});
        pods.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map_err(|error| failed(words(&error)))?;
        if let Some(pod) = pod {
            pod.release();
        }
        Ok(new.name)
    }
}

/// Creates a Job that owns a preserved pod and deletes itself. It is also owned by the pod, so it is deleted with it.
/// Without permission for Jobs, the pod stays until the user removes it.
async fn expire(
    cluster: &Cluster,
    pod: &str,
    owner: OwnerReference,
    after: Duration,
) -> Option<OwnerReference> {
    let labels = [names::MANAGED, (names::KEPT, "true")];
    let job = expiry::job(pod, &labels, Some(owner), after).ok()?;
    let jobs: Api<Job> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    match jobs.create(&PostParams::default(), &job).await {
        Ok(job) => Some(expiry::owner("batch/v1", "Job", &job.metadata)),
        Err(error) => {
            let error = words(&error);
            tracing::warn!(
                pod,
                error,
                "cannot create the Job that deletes a preserved pod, so it stays until `{} --preserved`",
                cluster.clean_command
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    #[derive(Default)]
    struct Costs(Mutex<Vec<f64>>);

    impl StartReport for Costs {
        fn waits_for(&self, _what: &str) {}

        fn failed_start_cost(&self, dollars: f64) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(dollars);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_does_not_start_is_paid_for_from_when_a_node_has_it() {
        let costs = Costs::default();
        let bill = |since| PodBill {
            prices: Prices { cpu_hour: 2.0, gib_hour: 0.5 },
            requests: Requests { cpu_millis: 1500, memory: 2 << 30 },
            since,
            report: Some(&costs),
        };
        let since = Instant::now();
        tokio::time::advance(Duration::from_secs(1800)).await;
        drop(bill(None));
        let mut started = bill(Some(since));
        started.report = None;
        drop(started);
        assert_eq!(*costs.0.lock().unwrap(), [] as [f64; 0]);
        drop(bill(Some(since)));
        assert_eq!(*costs.0.lock().unwrap(), [2.0]);
    }
}
