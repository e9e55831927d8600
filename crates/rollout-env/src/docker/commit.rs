//! Creates an image from a container.

use std::collections::HashMap;

use bollard::{errors::Error, models::ContainerConfig, query_parameters::CommitContainerOptions};

use super::Engine;

/// An image to create from a container.
pub(super) struct Commit<'a> {
    pub(super) container: &'a str,
    pub(super) repository: &'a str,
    pub(super) tag: &'a str,
    /// The image's user; `None` keeps the container's.
    pub(super) user: Option<&'a str>,
    pub(super) labels: HashMap<String, String>,
    /// Whether processes run in the container that must not write meanwhile.
    pub(super) pause: bool,
}

impl Engine {
    pub(super) async fn commit(&self, commit: Commit<'_>) -> Result<(), Error> {
        let changes = self.is_podman().then(|| changes(commit.user, &commit.labels));
        let options = CommitContainerOptions {
            container: Some(commit.container.to_owned()),
            repo: Some(commit.repository.to_owned()),
            tag: Some(commit.tag.to_owned()),
            pause: commit.pause,
            changes,
            ..CommitContainerOptions::default()
        };
        let config = ContainerConfig {
            user: commit.user.map(str::to_owned),
            labels: Some(commit.labels),
            ..ContainerConfig::default()
        };
        self.patient_api().commit_container(options, config).await.map(drop)
    }
}

/// The same as instructions of a Dockerfile: Podman ignores the rest of the request. It has no escapes in them.
fn changes(user: Option<&str>, labels: &HashMap<String, String>) -> String {
    let plain = |text: &str| -> String {
        let kept = |character: char| character.is_alphanumeric() || " _-./:@".contains(character);
        text.chars().map(|character| if kept(character) { character } else { '_' }).collect()
    };
    let mut changes: Vec<String> =
        labels.iter().map(|(key, value)| format!("LABEL {}=\"{}\"", plain(key), plain(value))).collect();
    changes.sort();
    changes.extend(user.map(|user| format!("USER {}", plain(user))));
    changes.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_become_instructions() {
        let labels = [("rollout.job", "a\nUSER \"b\""), ("rollout.owner", "")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        insta::assert_snapshot!(changes(Some("app:app"), &labels.into()), @r#"
        LABEL rollout.job="a_USER _b_"
        LABEL rollout.owner=""
        USER app:app
        "#);
    }
}
