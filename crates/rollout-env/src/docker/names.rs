//! Names of containers and references of images that follow an engine's rules.

use std::hash::{BuildHasher as _, RandomState};

/// The prefix of all container names.
pub(super) const PREFIX: &str = "rollout-";

/// The prefix of the names of preserved containers.
pub(super) const KEPT: &str = "rollout-kept-";

/// Longer names are not readable, and hostnames are limited too.
const MAX_READABLE: usize = 48;

/// A container's name: readable and unique.
pub(super) fn container(readable: &str) -> String {
    let mut clean = String::new();
    for character in readable.chars().take(MAX_READABLE) {
        let kept = character.is_ascii_alphanumeric() || matches!(character, '_' | '.' | '-');
        clean.push(if kept { character } else { '-' });
    }
    let name = format!("{PREFIX}{clean}-{}", random());
    // Avoids the prefix of preserved containers, whatever the trial is called.
    if name.starts_with(KEPT) { name.replacen("kept-", "kept_", 1) } else { name }
}

/// The name of a preserved container.
pub(super) fn kept(name: &str) -> String {
    format!("{KEPT}{}", name.strip_prefix(PREFIX).unwrap_or(name))
}

/// Eight random hexadecimal digits.
pub(super) fn random() -> String {
    format!("{:08x}", RandomState::new().hash_one(std::process::id()) as u32)
}

/// A reference with a tag: without one, a pull would fetch all tags.
pub(super) fn with_tag(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains(':') || image.contains('@') { image.to_owned() } else { format!("{image}:latest") }
}

/// Whether an image's platform matches the requested one. A missing part matches any.
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
    fn platforms_are_compared_by_the_parts_that_both_have() {
        assert!(same_platform("linux/amd64", "linux/amd64"));
        assert!(same_platform("linux/arm64/v8", "linux/arm64"));
        assert!(same_platform("linux/arm64", "linux/aarch64"));
        assert!(!same_platform("linux/arm64", "linux/amd64"));
        assert!(!same_platform("linux/arm/v6", "linux/arm/v7"));
    }
}
