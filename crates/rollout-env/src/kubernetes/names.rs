//! Names, labels and annotations that follow the rules of Kubernetes.

use std::hash::{BuildHasher as _, RandomState};

use rollout_core::text::shell_quoted;

/// Marks everything that Rollout creates.
pub(super) const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "rollout");
/// The label with the run that created an object.
pub(super) const RUN: &str = "rollout/run";
/// The label of pods without a network.
pub(super) const NETWORK: &str = "rollout/network";
/// The label of preserved pods.
pub(super) const KEPT: &str = "rollout/kept";
/// The label of a preserved pod with its name, for its network policy.
pub(super) const POD: &str = "rollout/pod";
/// The annotation with the job of a pod. A label could not hold every name.
pub(super) const JOB: &str = "rollout/job";
/// The annotation with the trial of a pod.
pub(super) const TRIAL: &str = "rollout/trial";
/// The annotation with the user of commands, for opening the pod again.
pub(super) const USER: &str = "rollout/user";

/// A name may have 63 characters, as it becomes the name of a host.
const MAX_READABLE: usize = 40;

/// A pod's name: readable and unique.
pub(super) fn pod(readable: &str) -> String {
    let clean: String = readable
        .chars()
        .take(MAX_READABLE)
        .map(|character| if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '-' })
        .collect();
    format!("rollout-{}-{}", clean.trim_matches('-'), random())
}

/// Sixteen random hexadecimal digits.
pub(super) fn random() -> String {
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))[..12].to_owned()
}

/// Whether a name can be that of a pod.
pub(super) fn is_pod(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= 63 && name.bytes().all(allowed) && !name.starts_with('-')
}

/// The command that deletes what a job with these settings leaves.
pub(super) fn clean_command(context: Option<&str>, namespace: Option<&str>) -> String {
    let options = [("--context", context), ("--namespace", namespace)];
    let options = options.into_iter().filter_map(|(option, value)| Some((option, value?)));
    options.fold("rollout clean".to_owned(), |command, (option, value)| {
        format!("{command} {option} {}", shell_quoted(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_cleans_up_names_the_place_of_the_job() {
        assert_eq!(clean_command(None, None), "rollout clean");
        assert_eq!(clean_command(None, Some("ci")), "rollout clean --namespace ci");
        let both = clean_command(Some("my cluster"), Some("ci"));
        assert_eq!(both, "rollout clean --context 'my cluster' --namespace ci");
    }

    #[test]
    fn names_are_readable_unique_and_within_the_rules() {
        let name = pod("täsk One_oracle-1");
        assert!(name.starts_with("rollout-t-sk-one-oracle-1-"), "{name}");
        assert_ne!(name, pod("täsk One_oracle-1"));
        for readable in ["", "---", &"x".repeat(500), "kept"] {
            assert!(is_pod(&pod(readable)), "{}", pod(readable));
        }
        assert!(!is_pod("/no/such/place"));
        assert!(!is_pod(""));
    }
}
