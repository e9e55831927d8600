//! Decides what the state of a pod means: whether its trial can start, waits, or failed, and why.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};

use super::pod::{LINK, MAIN};
use crate::environment::EnvironmentError;

/// The exit code of a first process that was killed.
const KILLED: i32 = 137;

/// The exit codes of a first process that was killed by a signal.
const SIGNALS: std::ops::RangeInclusive<i32> = 129..=192;

/// Reasons of a waiting container that the cluster tries to overcome by itself.
const PULLS: [&str; 2] = ["ErrImagePull", "ImagePullBackOff"];

/// Reasons of a waiting container for which no other attempt helps.
const FATAL: [&str; 5] = [
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "RunContainerError",
    "CreateContainerError",
];

/// Words of a kubelet that evicts a pod because of the pod's own limits. If its node has little of a resource, it names
/// the node first, and may then compare the use of the pod with its requests.
const OWN_LIMITS: [&str; 3] = [
    "exceeded its local ephemeral storage limit",
    "Pod ephemeral local storage usage exceeds",
    "Usage of EmptyDir volume",
];

/// Words of runtimes when a registry does not have an image.
const NO_IMAGE: [&str; 6] = [
    "not found",
    "manifest unknown",
    "repository does not exist",
    "does not exist",
    "invalid reference",
    "NotFound",
];

/// What is known of a pod.
#[derive(Debug, Clone, Default)]
pub(super) enum PodView {
    /// Nothing yet.
    #[default]
    Unseen,
    /// Its last state.
    Seen(Box<Pod>),
    /// It was removed. Its last state, if any.
    Removed(Option<Box<Pod>>),
}

/// Where the start of a pod is.
#[derive(Debug)]
pub(super) enum Start {
    /// What it waits for.
    Waits(String),
    /// Its containers run.
    Runs,
    /// It does not start.
    Failed(EnvironmentError),
}

impl PodView {
    fn pod(&self) -> Option<&Pod> {
        match self {
            Self::Seen(pod) => Some(pod),
            _ => None,
        }
    }

    /// Where the start of the pod is.
    pub(super) fn start(&self) -> Start {
        if let Some(error) = self.end() {
            return Start::Failed(match error {
                EnvironmentError::Lost(text) => {
                    EnvironmentError::Start(format!("the pod does not start: {text}"))
                }
                other => other,
            });
        }
        let Some(pod) = self.pod() else {
            return Start::Waits("the first state of its pod".to_owned());
        };
        if let Some(message) = unschedulable(pod) {
            return Start::Waits(format!("a node: {message}"));
        }
        for status in statuses(pod) {
            let Some(waiting) = status.state.as_ref().and_then(|state| state.waiting.as_ref()) else {
                continue;
            };
            let reason = waiting.reason.as_deref().unwrap_or_default();
            let message = waiting.message.as_deref().unwrap_or_default();
            let image = &status.image;
            if PULLS.contains(&reason) {
                // The message of a back-off lacks the cause, which came with the error before.
                if NO_IMAGE.iter().any(|words| message.contains(words)) && reason == "ErrImagePull" {
                    return Start::Failed(EnvironmentError::NoImage(format!(
                        "the cluster cannot pull {image}: {message}"
                    )));
                }
                return Start::Waits(format!("the image {image}: {reason}: {message}"));
            }
            if reason == "InvalidImageName" || reason == "ErrImageNeverPull" {
                return Start::Failed(EnvironmentError::NoImage(format!("{image}: {reason}: {message}")));
            }
            if FATAL.contains(&reason) {
                return Start::Failed(EnvironmentError::Start(format!(
                    "the container {} does not start: {reason}: {message}",
                    status.name
                )));
            }
        }
        let runs = |name: &str| {
            let mut own = statuses(pod).filter(|status| status.name == name);
            own.any(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()))
        };
        if runs(MAIN) && runs(LINK) {
            return Start::Runs;
        }
        Start::Waits(match scheduled_on(pod) {
            Some(node) => format!("its containers on node {node}"),
            None => "a node".to_owned(),
        })
    }

    /// Whether a node has the pod, and so its requests are reserved there.
    pub(super) fn is_scheduled(&self) -> bool {
        self.pod().is_some_and(|pod| scheduled_on(pod).is_some())
    }

    /// Why the pod has ended; `None` if it has not, as far as is known.
    pub(super) fn end(&self) -> Option<EnvironmentError> {
        self.cause().or_else(|| link_ended(self.pod()?))
    }

    /// The same, but `None` if only the link has ended. It ends with the guest, whose end has the cause and may be
    /// reported later.
    pub(super) fn cause(&self) -> Option<EnvironmentError> {
        let (pod, is_deleted) = match self {
            Self::Unseen => return None,
            Self::Removed(None) => return Some(deleted()),
            // The state before the removal may have the cause: an eviction, or the end of its memory.
            Self::Removed(Some(last)) => (last, true),
            Self::Seen(pod) => (pod, pod.metadata.deletion_timestamp.is_some()),
        };
        ended(pod, is_deleted).or_else(|| is_deleted.then(deleted))
    }
}

fn deleted() -> EnvironmentError {
    lost("the pod was deleted from outside")
}

fn lost(text: impl Into<String>) -> EnvironmentError {
    EnvironmentError::Lost(text.into())
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().chain(main).flatten()
}

fn scheduled_on(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

/// The scheduler's reason, if no node fits.
pub(super) fn unschedulable(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    (condition.status == "False")
        .then(|| condition.message.clone().or_else(|| condition.reason.clone()).unwrap_or_default())
}

fn ended(pod: &Pod, is_deleted: bool) -> Option<EnvironmentError> {
    let status = pod.status.as_ref()?;
    let reason = status.reason.as_deref().unwrap_or_default();
    let message = status.message.as_deref().unwrap_or_default();
    match reason {
        // A pod that exceeds its own limit is ended for what its processes did.
        "Evicted" if OWN_LIMITS.iter().any(|words| message.contains(words)) => {
            return Some(EnvironmentError::Ended(format!("the pod was evicted: {message}")));
        }
        "Evicted" | "Preempting" | "Preempted" | "Shutdown" | "NodeShutdown" | "Terminated" => {
            return Some(lost(format!("the pod was evicted from its node: {message}")));
        }
        "NodeLost" => return Some(lost(format!("the node of the pod was lost: {message}"))),
        "DeadlineExceeded" => {
            return Some(EnvironmentError::TimeOver(
                "the pod exceeded its lifetime: raise provider_config.lifetime_sec".to_owned(),
            ));
        }
        "UnexpectedAdmissionError" | "OutOfcpu" | "OutOfmemory" | "OutOfpods" | "NodeAffinity" => {
            return Some(lost(format!("the node refused the pod: {reason}: {message}")));
        }
        _ => {}
    }
    let disrupted = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True");
    if let Some(condition) = disrupted {
        let message = condition.message.as_deref().unwrap_or_default();
        return Some(lost(format!("the pod was evicted from its node: {message}")));
    }
    let main = statuses(pod)
        .filter(|status| status.name == MAIN)
        .find_map(|status| terminated(status.state.as_ref()?, is_deleted));
    if main.is_some() {
        return main;
    }
    let init = statuses(pod).filter(|status| status.name != LINK).find_map(|status| {
        let end = status.state.as_ref()?.terminated.as_ref()?;
        (end.exit_code != 0).then(|| {
            let message = end.message.as_deref().or(end.reason.as_deref()).unwrap_or_default();
            EnvironmentError::Start(format!(
                "the container {} ended with exit code {}: {message}",
                status.name, end.exit_code
            ))
        })
    });
    if init.is_some() {
        return init;
    }
    (status.phase.as_deref() == Some("Failed")).then(|| lost(format!("the pod failed: {reason}: {message}")))
}

/// The end of the link, if that is all that is known.
fn link_ended(pod: &Pod) -> Option<EnvironmentError> {
    let link = statuses(pod).find(|status| status.name == LINK)?;
    let code = link.state.as_ref()?.terminated.as_ref()?.exit_code;
    Some(lost(format!("the container {LINK} of the pod ended with exit code {code}")))
}

fn terminated(state: &ContainerState, is_deleted: bool) -> Option<EnvironmentError> {
    let end = state.terminated.as_ref()?;
    let reason = end.reason.as_deref().unwrap_or_default();
    let message = end.message.as_deref().unwrap_or_default();
    let code = end.exit_code;
    Some(match (reason, code) {
        ("OOMKilled", _) => EnvironmentError::Ended(
            "the container ran out of memory, and the kernel killed its first process: raise environment.memory in \
             task.toml or environment.override_memory in the job"
                .to_owned(),
        ),
        ("ContainerCannotRun" | "StartError", _) => {
            EnvironmentError::Start(format!("the container does not start: {message}"))
        }
        // A restarted node no longer has the container.
        ("ContainerStatusUnknown", _) => lost(format!("the node lost the container: {message}")),
        (_, KILLED) if is_deleted => deleted(),
        // No process of the container can kill the guest.
        (_, KILLED) => lost(format!(
            "the container was stopped from outside, by a person or the node (exit code {code})"
        )),
        (_, code) if SIGNALS.contains(&code) => {
            EnvironmentError::Ended(format!("the container's first process was killed by signal {}", code - 128))
        }
        (_, code) => lost(format!("the container ended with exit code {code}: {message}")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(status: Value) -> PodView {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "nodeName": "n1"}, "status": status});
        PodView::Seen(Box::new(serde_json::from_value(pod).unwrap()))
    }

    fn container(name: &str, state: Value) -> Value {
        json!({"name": name, "image": "img", "imageID": "", "ready": false, "restartCount": 0, "state": state})
    }

    fn main_is(state: Value) -> PodView {
        let containers = [container(MAIN, state), container(LINK, json!({"running": {}}))];
        view(json!({"phase": "Running", "containerStatuses": containers}))
    }

    /// The statuses of a pod that has ended, in the order of kubelets: by name.
    fn both_are(link: Value, main: Value) -> PodView {
        view(json!({"phase": "Running", "containerStatuses": [container(LINK, link), container(MAIN, main)]}))
    }

    fn evicted(message: &str) -> PodView {
        view(json!({"phase": "Failed", "reason": "Evicted", "message": message}))
    }

    #[test]
    fn a_pending_pod_waits_and_reports_the_reason() {
        let waits = |view: PodView| match view.start() {
            Start::Waits(text) => text,
            other => panic!("{other:?}"),
        };
        assert!(waits(PodView::Unseen).contains("first state"));
        let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient cpu."});
        assert!(waits(view(json!({"conditions": [condition]}))).contains("3 Insufficient cpu"));
        let text = waits(main_is(
            json!({"waiting": {"reason": "ErrImagePull", "message": "dial tcp: i/o timeout"}}),
        ));
        assert!(text.contains("img") && text.contains("i/o timeout"), "{text}");
        assert!(waits(main_is(json!({"waiting": {"reason": "ContainerCreating"}}))).contains("node n1"));
    }

    #[test]
    fn a_pod_runs_when_both_containers_do() {
        assert!(matches!(main_is(json!({"running": {}})).start(), Start::Runs));
    }

    #[test]
    fn failures_of_a_start_are_distinguished() {
        use EnvironmentError as E;
        let error = |view: PodView| match view.start() {
            Start::Failed(error) => error,
            other => panic!("{other:?}"),
        };
        let pull = json!({"waiting": {"reason": "ErrImagePull", "message": "manifest for img not found"}});
        assert!(matches!(error(main_is(pull)), E::NoImage(_)));
        assert!(matches!(error(main_is(json!({"waiting": {"reason": "InvalidImageName"}}))), E::NoImage(_)));
        let config = json!({"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}});
        assert!(matches!(error(main_is(config)), E::Start(text) if text.contains("no secret")));
        let init = json!({"initContainerStatuses": [container("rollout-guest", json!({"terminated": {"exitCode": 1}}))]});
        assert!(matches!(error(view(init)), E::Start(text) if text.contains("exit code 1")));
        assert!(matches!(error(PodView::Removed(None)), E::Start(_)));
    }

    #[test]
    fn only_an_end_from_inside_counts_against_the_trial() {
        let killed = json!({"terminated": {"exitCode": 137, "reason": "Error"}});
        let out_of_memory = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        let completed = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        for (inside, what, view) in [
            (
                true,
                "the memory ran out, and the link ended with the guest",
                both_are(completed, out_of_memory),
            ),
            (
                true,
                "the memory ran out",
                main_is(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})),
            ),
            (true, "the guest gave up", main_is(json!({"terminated": {"exitCode": 134, "reason": "Error"}}))),
            (
                true,
                "its own storage",
                evicted("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "),
            ),
            (
                true,
                "the storage of main",
                evicted("Container main exceeded its local ephemeral storage limit \"1Gi\". "),
            ),
            (
                true,
                "its own volume",
                evicted("Usage of EmptyDir volume \"data\" exceeds the limit \"1Gi\". "),
            ),
            (false, "killed from outside", main_is(killed.clone())),
            (
                false,
                "pressure of the node",
                evicted(
                    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Mi. Container main \
                     was using 900Mi, which exceeds its request of 512Mi. ",
                ),
            ),
            (
                false,
                "pressure of the node, in newer words",
                evicted(
                    "The node was low on resource: memory. Container main was using 900Mi, request is 512Mi, has larger \
                     consumption of memory. ",
                ),
            ),
            (false, "a condition of the node", evicted("The node had condition: [DiskPressure]. ")),
            (
                false,
                "the node started again",
                main_is(json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}})),
            ),
            (false, "the node is gone", view(json!({"phase": "Failed", "reason": "NodeLost"}))),
            (
                false,
                "the grace period",
                main_is(json!({"terminated": {"exitCode": 0, "reason": "Completed"}})),
            ),
            (
                false,
                "its eviction",
                view(
                    json!({"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": "True",
                    "message": "Eviction API: evicting"}]}),
                ),
            ),
            (false, "removed", PodView::Removed(None)),
        ] {
            let end = view.end().unwrap_or_else(|| panic!("{what}: it has not ended"));
            assert_eq!(matches!(end, EnvironmentError::Ended(_)), inside, "{what}: {end}");
        }
        assert!(main_is(json!({"running": {}})).end().is_none());
    }

    #[test]
    fn the_end_of_the_link_alone_is_not_the_cause() {
        for code in [0, 1, 137] {
            let link = both_are(json!({"terminated": {"exitCode": code}}), json!({"running": {}}));
            assert!(link.cause().is_none(), "{code}");
            let end = link.end().unwrap();
            assert!(matches!(&end, EnvironmentError::Lost(text) if text.contains("link")), "{end}");
        }
        assert!(matches!(
            main_is(json!({"terminated": {"exitCode": 1}})).cause(),
            Some(EnvironmentError::Lost(_))
        ));
    }

    #[test]
    fn a_pod_that_is_killed_because_it_was_deleted_is_not_at_fault() {
        let PodView::Seen(mut pod) = main_is(json!({"terminated": {"exitCode": 137, "reason": "Error"}}))
        else {
            unreachable!()
        };
        pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let end = PodView::Seen(pod).end().unwrap();
        assert!(matches!(&end, EnvironmentError::Lost(text) if text.contains("deleted")), "{end}");
    }

    #[test]
    fn a_pod_whose_lifetime_is_over_would_need_as_much_time_again() {
        let view = view(json!({"phase": "Failed", "reason": "DeadlineExceeded"}));
        assert!(matches!(view.start(), Start::Failed(EnvironmentError::TimeOver(_))));
        let PodView::Seen(last) = view else { unreachable!() };
        for view in [PodView::Seen(last.clone()), PodView::Removed(Some(last))] {
            let end = view.end().unwrap();
            assert!(
                matches!(&end, EnvironmentError::TimeOver(text) if text.contains("provider_config.lifetime_sec")),
                "{end}"
            );
        }
    }

    #[test]
    fn a_pod_that_was_removed_keeps_the_cause_of_its_end() {
        let PodView::Seen(last) = main_is(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}))
        else {
            unreachable!()
        };
        assert!(matches!(PodView::Removed(Some(last)).end(), Some(EnvironmentError::Ended(_))));
        let PodView::Seen(last) = main_is(json!({"terminated": {"exitCode": 137, "reason": "Error"}})) else {
            unreachable!()
        };
        let error = PodView::Removed(Some(last)).end().unwrap();
        assert!(error.to_string().contains("deleted from outside"), "{error}");
        let evicted =
            view(json!({"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": "True",
            "message": "Eviction API: evicting"}]}));
        let PodView::Seen(last) = evicted else { unreachable!() };
        let error = PodView::Removed(Some(last)).end().unwrap().to_string();
        assert_eq!(error, "the pod was evicted from its node: Eviction API: evicting");
    }
}
