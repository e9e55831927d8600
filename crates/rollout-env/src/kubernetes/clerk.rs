//! Creates and deletes pods, watches all of a run with one watch, and keeps the run's objects alive.
//!
//! All of this happens on a thread of its own, so that a cancelled job leaves no pod behind.

use std::{io, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::{DeleteParams, PostParams},
};
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    access::{code, is_away, words},
    names,
    owner::RunOwner,
    state::PodView,
    watcher::Watcher,
};
use crate::{
    environment::EnvironmentError,
    work_thread::{WorkHandle, WorkThread},
};

/// How long one call may take.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait for a server that does not answer, before a pod is left to its lifetime.
const DELETE_PATIENCE: Duration = Duration::from_secs(60);

/// The pause before another attempt. It doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// The longest pause.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// What the work on the thread uses.
struct Desk {
    pods: Api<Pod>,
    owner: RunOwner,
    watcher: Watcher,
    clean_command: String,
}

/// The thread that creates and deletes pods.
pub(super) struct Clerk(WorkThread<Desk>);

impl Clerk {
    /// Starts the thread, for a namespace, a run in it whose trials may continue without a connection for `grace`, and
    /// the command that deletes what is left.
    pub(super) fn start(
        config: Config,
        (namespace, run, clean_command): (String, String, String),
        grace: Duration,
    ) -> io::Result<Self> {
        let desk = move || {
            let client = Client::try_from(config).map_err(io::Error::other)?;
            let owner = RunOwner::new(&client, &namespace, &run, &clean_command, grace);
            Ok(Desk {
                pods: Api::namespaced(client.clone(), &namespace),
                watcher: Watcher::new(&client, &namespace, &run, owner.suspicion()),
                owner,
                clean_command,
            })
        };
        let end = |desk: Arc<Desk>| async move { desk.owner.end().await }.boxed();
        WorkThread::start("kubernetes-clerk", desk, end).map(Self)
    }

    /// The object of the run that owns its pods.
    pub(super) async fn owner(&self) -> Result<Value, EnvironmentError> {
        self.0.ask(|desk| async move { desk.owner.reference().await }.boxed()).await?
    }

    /// Creates a pod, and returns it with its state from then on. If the future is dropped, the pod is still created,
    /// and then deleted. `waits` receives what the creation waits for.
    pub(super) async fn create(
        &self,
        pod: Pod,
        until: Instant,
        waits: watch::Sender<String>,
    ) -> Result<(OwnedPod, watch::Receiver<PodView>), EnvironmentError> {
        let handle = self.0.handle()?;
        let name = pod.metadata.name.clone().unwrap_or_default();
        self.0
            .ask(move |desk| {
                async move {
                    let view = desk.watcher.follow(&name);
                    let owned = OwnedPod { handle, name, armed: true };
                    // An error drops the pod, which may exist all the same.
                    create(&desk.pods, &pod, until, &waits).await.map(|()| (owned, view))
                }
                .boxed()
            })
            .await?
    }
}

/// A pod that is deleted when this is dropped.
pub(super) struct OwnedPod {
    handle: WorkHandle<Desk>,
    name: String,
    armed: bool,
}

impl OwnedPod {
    /// Deletes it now, or when the server answers again.
    pub(super) async fn delete(mut self) -> Result<(), EnvironmentError> {
        let name = self.name.clone();
        let deleted = self.handle.ask(move |desk| async move { desk.delete(&name).await }.boxed()).await?;
        deleted.map_err(|error| {
            EnvironmentError::Teardown(format!("cannot delete the pod {}: {}", self.name, words(&error)))
        })?;
        self.armed = false;
        Ok(())
    }

    /// Keeps the pod.
    pub(super) fn release(mut self) {
        self.armed = false;
        let name = std::mem::take(&mut self.name);
        self.handle.send(move |desk| async move { desk.watcher.forget(&name) }.boxed());
    }
}

impl Drop for OwnedPod {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let name = std::mem::take(&mut self.name);
        self.handle.send(move |desk| {
            async move {
                if let Err(error) = desk.delete(&name).await {
                    let (error, clean) = (words(&error), &desk.clean_command);
                    tracing::warn!(pod = name, error, "a pod was not deleted; `{clean}` deletes it");
                }
            }
            .boxed()
        });
    }
}

impl Desk {
    async fn delete(&self, name: &str) -> Result<(), kube::Error> {
        self.watcher.forget(name);
        delete(&self.pods, name).await
    }
}

/// Creates a pod. An attempt that seemed to fail may have created it, also one that the client repeated by itself, so a
/// pod of this run with its name is accepted.
async fn create(
    pods: &Api<Pod>,
    pod: &Pod,
    until: Instant,
    waits: &watch::Sender<String>,
) -> Result<(), EnvironmentError> {
    let mut wait = FIRST_WAIT;
    loop {
        let created = timeout(CALL_TIMEOUT, pods.create(&PostParams::default(), pod)).await;
        let error = match created.unwrap_or_else(|_| Err(no_answer())) {
            Ok(_) => return Ok(()),
            Err(error) if is_existing(&error) => match find(pods, pod).await {
                Ok(true) => return Ok(()),
                Ok(false) => error,
                Err(error) => error,
            },
            Err(error) => error,
        };
        let failure = refusal(&error);
        let is_temporary = matches!(failure, EnvironmentError::Start(_) | EnvironmentError::Resources(_));
        if !is_temporary || Instant::now() + wait >= until {
            return Err(failure);
        }
        // The trial may be cancelled.
        let _ = waits.send(format!("the creation of its pod: {failure}"));
        sleep(wait).await;
        wait = (wait * 2).min(LAST_WAIT);
    }
}

/// Whether a pod exists that an earlier attempt of this run has created.
async fn find(pods: &Api<Pod>, pod: &Pod) -> Result<bool, kube::Error> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let found = timeout(CALL_TIMEOUT, pods.get_opt(name)).await.unwrap_or_else(|_| Err(no_answer()))?;
    let run = |pod: &Pod| pod.metadata.labels.as_ref()?.get(names::RUN).cloned();
    Ok(found.is_some_and(|found| run(&found) == run(pod)))
}

fn no_answer() -> kube::Error {
    kube::Error::Service("no answer in time".into())
}

fn is_existing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// What a refusal to create a pod means. The server is asked again after [`EnvironmentError::Start`] and
/// [`EnvironmentError::Resources`]: it may answer later, and a quota is free again when other pods end.
fn refusal(error: &kube::Error) -> EnvironmentError {
    let why = words(error);
    match code(error) {
        _ if is_away(error) => EnvironmentError::Start(format!("the cluster does not answer: {why}")),
        Some(403) if why.contains("exceeded quota") => EnvironmentError::Resources(format!(
            "the quota of the namespace does not allow another pod: {why}; raise it, lower the limits of the task, or \
             run fewer trials at a time"
        )),
        // Two creations at the same time can get in each other's way at a quota.
        Some(409) => EnvironmentError::Start(why),
        _ => EnvironmentError::Refused(format!("the cluster refused the pod: {why}")),
    }
}

/// Deletes a pod, and waits for a server that is being restarted. A missing pod is not an error.
pub(super) async fn delete(pods: &Api<Pod>, name: &str) -> Result<(), kube::Error> {
    let end = Instant::now() + DELETE_PATIENCE;
    let mut wait = FIRST_WAIT;
    let params = DeleteParams { grace_period_seconds: Some(1), ..DeleteParams::default() };
    loop {
        let deleted = timeout(CALL_TIMEOUT, pods.delete(name, &params)).await;
        match deleted.unwrap_or_else(|_| Err(no_answer())) {
            Ok(_) => return Ok(()),
            Err(error) if code(&error) == Some(404) => return Ok(()),
            Err(error) if is_away(&error) && Instant::now() < end => sleep(wait).await,
            Err(error) => return Err(error),
        }
        wait = (wait * 2).min(LAST_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn api(code: u16, reason: &str, message: &str) -> kube::Error {
        let status =
            Status { code, reason: reason.to_owned(), message: message.to_owned(), ..Status::default() };
        kube::Error::Api(Box::new(status))
    }

    #[test]
    fn refusals_are_distinguished_from_a_server_that_cannot_answer() {
        use EnvironmentError as E;
        let quota =
            "pods \"p\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2";
        assert!(matches!(refusal(&api(403, "Forbidden", quota)), E::Resources(_)));
        let admission = "pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\"";
        assert!(
            matches!(refusal(&api(403, "Forbidden", admission)), E::Refused(text) if text.contains("PodSecurity"))
        );
        assert!(matches!(refusal(&api(422, "Invalid", "spec.containers")), E::Refused(_)));
        assert!(matches!(refusal(&api(404, "NotFound", "namespaces \"n\" not found")), E::Refused(_)));
        assert!(matches!(refusal(&api(429, "TooManyRequests", "")), E::Start(_)));
        assert!(matches!(refusal(&api(500, "InternalError", "etcd")), E::Start(_)));
        assert!(matches!(refusal(&api(409, "Conflict", "resourcequotas")), E::Start(_)));
        assert!(matches!(refusal(&kube::Error::Service("connection refused".into())), E::Start(_)));
    }
}
