//! Images of preserved containers, from which a container for another verification starts.

use bollard::{errors::Error, query_parameters::RemoveImageOptions};
use sha2::{Digest as _, Sha256};

use super::{Engine, commit::Commit, container::USER, failure, images::SNAPSHOTS, names};
use crate::environment::{EnvironmentError, Origin};

/// Creates an image of a preserved container, which keeps running, and returns its reference.
///
/// Each call creates an image of its own, so that each can be removed.
pub(super) async fn commit(
    engine: &Engine,
    container: &str,
    origin: Origin<'_>,
) -> Result<String, EnvironmentError> {
    let gone = |error: Error| {
        EnvironmentError::Refused(match failure::is_missing(&error) {
            true => format!("the container {container} no longer exists"),
            false => format!("cannot open the container {container}: {}", failure::words(&error)),
        })
    };
    let found = engine.api().inspect_container(container, None).await.map_err(gone)?;
    let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
    let user = labels.get(USER).filter(|user| !user.is_empty());
    let hash = Sha256::digest(format!("{container} {}", names::random()));
    let tag = rollout_core::text::hex(&hash)[..32].to_owned();
    let commit = Commit {
        container,
        repository: SNAPSHOTS,
        tag: &tag,
        // The container itself runs as root, for the guest.
        user: user.map(String::as_str),
        labels: engine.inner.owner.committed_labels("snapshot", origin),
        pause: true,
    };
    engine.commit(commit).await.map_err(|error| {
        EnvironmentError::Start(format!(
            "cannot create an image of the container {container}: {}",
            failure::words(&error)
        ))
    })?;
    Ok(format!("{SNAPSHOTS}:{tag}"))
}

/// Removes an image that no container uses any more. If that fails, `rollout clean --images` removes it.
pub(super) async fn remove(engine: &Engine, reference: &str) {
    let options = RemoveImageOptions { force: true, ..RemoveImageOptions::default() };
    if let Err(error) = engine.api().remove_image(reference, Some(options), None).await {
        tracing::warn!(image = reference, error = %failure::words(&error), "cannot remove an image");
    }
}
