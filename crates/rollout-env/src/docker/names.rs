//! Names of containers and references of images, within an engine's rules.

use std::hash::{BuildHasher as _, RandomState};

/// What every container of ours is called by.
pub(super) const PREFIX: &str = "rollout-";

/// What containers that were left for a person are called by.
pub(super) const KEPT: &str = "rollout-kept-";

/// More would not be read, and hostnames are no longer.
const MAX_READABLE: usize = 48;

/// A container's name: readable, and used by no other.
pub(super) fn container(readable: &str) -> String {
    let mut clean = String::new();
    for character in readable.chars().take(MAX_READABLE) {
        let kept = character.is_ascii_alphanumeric() || matches!(character, '_' | '.' | '-');
        clean.push(if kept { character } else { '-' });
    }
    let name = format!("{PREFIX}{clean}-{}", random());
    // Whatever the trial is called, this one is not kept.
    if name.starts_with(KEPT) { name.replacen("kept-", "kept_", 1) } else { name }
}

/// The name of a container that is kept.
pub(super) fn kept(name: &str) -> String {
    format!("{KEPT}{}", name.strip_prefix(PREFIX).unwrap_or(name))
}

/// Eight random hexadecimal digits.
pub(super) fn random() -> String {
    format!("{:08x}", RandomState::new().hash_one(std::process::id()) as u32)
}

/// A reference as a pull takes it: without a tag it would mean all of them.
pub(super) fn with_tag(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains(':') || image.contains('@') { image.to_owned() } else { format!("{image}:latest") }
}

/// Whether an image of one platform is what another one asks for. A part that is left out matches any.
pub(super) fn same_platform(image: &str, wanted: &str) -> bool {
    let known = |arch| match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    image.split('/').zip(wanted.split('/')).all(|(a, b)| a.is_empty() || b.is_empty() || known(a) == known(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_readable_unique_and_within_the_rules() {
        let name = container("täsk one-oracle-1");
        assert!(name.starts_with("rollout-t-sk-one-oracle-1-"), "{name}");
        assert_ne!(name, container("täsk one-oracle-1"));
        assert!(container(&"x".repeat(500)).len() < 70);
        assert_eq!(kept("rollout-task-1"), "rollout-kept-task-1");
        assert!(!container("kept-task").starts_with(KEPT));
    }

    #[test]
    fn a_reference_without_tag_means_the_latest() {
        assert_eq!(with_tag("debian"), "debian:latest");
        assert_eq!(with_tag("localhost:5000/debian"), "localhost:5000/debian:latest");
        assert_eq!(with_tag("debian:12"), "debian:12");
        assert_eq!(with_tag("debian@sha256:00"), "debian@sha256:00");
    }

    #[test]
    fn platforms_are_compared_by_what_both_say() {
        assert!(same_platform("linux/amd64", "linux/amd64"));
        assert!(same_platform("linux/arm64/v8", "linux/arm64"));
        assert!(same_platform("linux/arm64", "linux/aarch64"));
        assert!(!same_platform("linux/arm64", "linux/amd64"));
        assert!(!same_platform("linux/arm/v6", "linux/arm/v7"));
    }
}
