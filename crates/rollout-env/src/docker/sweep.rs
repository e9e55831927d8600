//! Finds and removes what Rollout left on an engine.

use std::{collections::HashMap, time::Duration};

use bollard::{
    models::{ContainerSummary, ContainerSummaryStateEnum, ImageSummary},
    query_parameters::{ListContainersOptions, ListImagesOptions, PruneBuildOptions, RemoveImageOptions},
};
use futures_util::{StreamExt as _, future::BoxFuture};
use jiff::Timestamp;

use super::{
    Engine, EngineError, failure,
    images::{BUILDS, ENVIRONMENTS, SNAPSHOTS},
    names,
    owner::{self, Maker},
    raw, reaper,
};

/// How long stopped containers whose creators are not visible from here, and images without a name, are kept.
pub(super) const FOREIGN_PATIENCE_SECONDS: i64 = 3600;

/// The number of concurrent removals.
const CONCURRENCY: usize = 8;

/// A container created by Rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Its name.
    pub name: String,
    /// The job of the container.
    pub job: String,
    /// The trial of the container.
    pub trial: String,
}

/// The kind of an image made by Rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageKind {
    /// Built from a task's Dockerfile.
    Build,
    /// An image that is prepared for trials.
    Environment,
    /// An environment after an agent's installation.
    Snapshot,
}

/// An image made by Rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineImage {
    /// Its reference.
    pub reference: String,
    /// Its kind.
    pub kind: ImageKind,
    /// The bytes of all its layers, many of which are shared.
    pub size: u64,
    /// The names of the containers created from it.
    pub used_by: Vec<String>,
    /// Its creation time, in seconds since 1970.
    pub created: i64,
}

/// Why a container still exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunState {
    /// Its run has ended, so it can be removed.
    Ended,
    /// Its run is active.
    Running,
    /// It was preserved for the user.
    Kept,
}

impl Engine {
    /// Removes the containers that dead runs left, and returns them. A dry run only returns them.
    ///
    /// Containers of active runs and preserved containers are not touched.
    pub fn sweep(&self, dry_run: bool) -> BoxFuture<'_, Result<Vec<Leftover>, EngineError>> {
        Box::pin(async move {
            let dead = self.in_state(RunState::Ended).await?;
            if !dry_run {
                self.remove_containers(dead.iter().map(|leftover| leftover.name.as_str())).await?;
            }
            Ok(dead)
        })
    }

    /// The containers of active runs, and of machines where that is not visible from here.
    pub fn running(&self) -> BoxFuture<'_, Result<Vec<Leftover>, EngineError>> {
        Box::pin(async move { self.in_state(RunState::Running).await })
    }

    /// The preserved containers.
    pub fn preserved(&self) -> BoxFuture<'_, Result<Vec<Leftover>, EngineError>> {
        Box::pin(async move { self.in_state(RunState::Kept).await })
    }

    /// Removes containers by name, also running ones. A missing container is not an error.
    pub async fn remove_containers(
        &self,
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<(), EngineError> {
        let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        let removals: Vec<_> = names.iter().map(|name| reaper::remove(self.api(), name)).collect();
        let mut removals = futures_util::stream::iter(removals).buffer_unordered(CONCURRENCY);
        let mut failed = None;
        while let Some(removed) = removals.next().await {
            failed = failed.or(removed.err());
        }
        failed.map_or(Ok(()), |error| Err(EngineError::call("remove a container")(error)))
    }

    /// The images made by Rollout.
    pub fn images(&self) -> BoxFuture<'_, Result<Vec<EngineImage>, EngineError>> {
        Box::pin(async move {
            let filters = HashMap::from([("label".to_owned(), vec![owner::IMAGE_KIND.to_owned()])]);
            let options = ListImagesOptions { filters: Some(filters), ..ListImagesOptions::default() };
            let listed =
                self.api().list_images(Some(options)).await.map_err(EngineError::call("list images"))?;
            let all = ListContainersOptions { all: true, ..ListContainersOptions::default() };
            let containers =
                self.api().list_containers(Some(all)).await.map_err(EngineError::call("list containers"))?;
            let mut users: HashMap<String, Vec<String>> = HashMap::new();
            for container in containers {
                let name = name(&container);
                users.entry(container.image_id.unwrap_or_default()).or_default().push(name);
            }
            let mut images = Vec::new();
            let now = Timestamp::now().as_second();
            for image in listed {
                for (reference, kind) in ours(&image, now) {
                    images.push(EngineImage {
                        reference,
                        kind,
                        size: image.size.try_into().unwrap_or(0),
                        used_by: users.get(&image.id).cloned().unwrap_or_default(),
                        created: image.created,
                    });
                }
            }
            images.sort_by(|a, b| (a.kind, &a.reference).cmp(&(b.kind, &b.reference)));
            Ok(images)
        })
    }

    /// Removes images by reference and returns the removed ones. Images that are missing or in use are skipped.
    pub async fn remove_images(
        &self,
        references: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Vec<String>, EngineError> {
        let mut removed = Vec::new();
        for reference in references {
            let reference = reference.as_ref();
            match self.api().remove_image(reference, None::<RemoveImageOptions>, None).await {
                Ok(_) => removed.push(reference.to_owned()),
                Err(error) if failure::is_missing(&error) || failure::is_conflict(&error) => {}
                Err(error) => return Err(EngineError::call("remove an image")(error)),
            }
        }
        Ok(removed)
    }

    /// The snapshots that were made from an image.
    pub(super) async fn snapshots_of(&self, image: &str) -> Result<Vec<String>, EngineError> {
        let label = format!("{}={image}", owner::IMAGE_BASE);
        let filters = HashMap::from([("label".to_owned(), vec![label])]);
        let options = ListImagesOptions { filters: Some(filters), ..ListImagesOptions::default() };
        let listed = self.api().list_images(Some(options)).await.map_err(EngineError::call("list images"))?;
        let now = Timestamp::now().as_second();
        Ok(listed.iter().flat_map(|image| ours(image, now)).map(|(reference, _)| reference).collect())
    }

    /// The size of the engine's build cache in bytes, including that of other programs.
    pub fn build_cache_size(&self) -> BoxFuture<'_, Result<u64, EngineError>> {
        Box::pin(async move {
            let size = raw::build_cache_size(&self.inner.endpoint, &self.facts().api_version).await;
            size.map_err(|error| EngineError::Call {
                what: "measure its build cache",
                words: error.to_string(),
            })
        })
    }

    /// Removes what no build used for so long from the engine's build cache, and returns the number of freed bytes.
    /// With zero, the cache is emptied. The cache of other programs is removed too.
    pub fn prune_build_cache(&self, unused: Duration) -> BoxFuture<'_, Result<u64, EngineError>> {
        Box::pin(async move {
            let filters = HashMap::from([("until".to_owned(), vec![format!("{}s", unused.as_secs())])]);
            let filters = Some(filters).filter(|_| !unused.is_zero());
            let options = PruneBuildOptions { all: Some(true), filters, ..PruneBuildOptions::default() };
            let pruned = self.patient_api().prune_build(Some(options)).await;
            let pruned = pruned.map_err(EngineError::call("empty its build cache"))?;
            Ok(pruned.space_reclaimed.and_then(|bytes| bytes.try_into().ok()).unwrap_or(0))
        })
    }

    async fn in_state(&self, wanted: RunState) -> Result<Vec<Leftover>, EngineError> {
        let filters = HashMap::from([("label".to_owned(), vec![owner::OWNER.to_owned()])]);
        let options =
            ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let ours = self.api().list_containers(Some(options)).await;
        let mut found = Vec::new();
        for container in ours.map_err(EngineError::call("list containers"))? {
            let name = name(&container);
            if self.run_state(&name, &container).await == Some(wanted) {
                found.push(leftover(name, &container.labels.unwrap_or_default()));
            }
        }
        Ok(found)
    }

    /// The state of the run that created a container; `None` if Rollout did not create it.
    async fn run_state(&self, name: &str, container: &ContainerSummary) -> Option<RunState> {
        if name.starts_with(names::KEPT) {
            return Some(RunState::Kept);
        }
        let labels = container.labels.as_ref()?;
        let maker = self.inner.owner.maker(labels).filter(|_| name.starts_with(names::PREFIX))?;
        let ended = match maker {
            Maker::Dead => true,
            // The containers of an active run are running, except for a moment before they are started.
            Maker::Rebooted if container.state == Some(ContainerSummaryStateEnum::EXITED) => true,
            Maker::Rebooted | Maker::Elsewhere => self.stopped_long_ago(name).await,
            Maker::Alive => false,
        };
        Some(if ended { RunState::Ended } else { RunState::Running })
    }

    async fn stopped_long_ago(&self, name: &str) -> bool {
        let Ok(found) = self.api().inspect_container(name, None).await else { return false };
        let Some(state) = found.state else { return false };
        if state.running.unwrap_or(true) || state.paused.unwrap_or(false) {
            return false;
        }
        let finished = state.finished_at.and_then(|text| text.parse::<Timestamp>().ok());
        let created = found.created.and_then(|date| Timestamp::from_second(date.unix_timestamp()).ok());
        // The end time of a container that never ran is in the year 1.
        let since = finished.filter(|time| time.as_second() > 0).or(created);
        since.is_some_and(|time| Timestamp::now().as_second() - time.as_second() > FOREIGN_PATIENCE_SECONDS)
    }
}

/// The references of an image that belong to Rollout. An image whose reference moved to another one has only
/// its identifier; a new one may not have its reference yet.
fn ours(image: &ImageSummary, now: i64) -> Vec<(String, ImageKind)> {
    let mut references = image.repo_tags.iter().filter(|reference| *reference != "<none>:<none>").peekable();
    if references.peek().is_none() {
        let kind = match image.labels.get(owner::IMAGE_KIND).map(String::as_str) {
            Some("build") => ImageKind::Build,
            Some("env") => ImageKind::Environment,
            Some("snapshot") => ImageKind::Snapshot,
            _ => return Vec::new(),
        };
        let old = now - image.created > FOREIGN_PATIENCE_SECONDS;
        return old.then(|| (image.id.clone(), kind)).into_iter().collect();
    }
    let ours = references.filter_map(|reference| {
        // Podman adds a registry to names without one.
        let short = reference.trim_start_matches("localhost/").trim_start_matches("docker.io/library/");
        let kind = match short.split_once(':')? {
            (BUILDS, _) => ImageKind::Build,
            (ENVIRONMENTS, _) => ImageKind::Environment,
            (SNAPSHOTS, _) => ImageKind::Snapshot,
            _ => return None,
        };
        Some((short.to_owned(), kind))
    });
    ours.collect()
}

fn name(container: &ContainerSummary) -> String {
    let name = container.names.iter().flatten().next();
    name.map(|name| name.trim_start_matches('/').to_owned()).unwrap_or_default()
}

fn leftover(name: String, labels: &HashMap<String, String>) -> Leftover {
    let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
    Leftover { name, job: label(owner::JOB), trial: label(owner::TRIAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_lost_its_reference_is_ours_by_its_label_when_it_is_old() {
        let image = |tags: &[&str], kind: &str| ImageSummary {
            id: "sha256:1".to_owned(),
            created: 1000,
            repo_tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            labels: HashMap::from([(owner::IMAGE_KIND.to_owned(), kind.to_owned())]),
            ..ImageSummary::default()
        };
        let later = 1000 + FOREIGN_PATIENCE_SECONDS + 1;
        let lost = vec![("sha256:1".to_owned(), ImageKind::Snapshot)];
        assert_eq!(ours(&image(&[], "snapshot"), later), lost);
        assert_eq!(ours(&image(&["<none>:<none>"], "snapshot"), later), lost);
        assert_eq!(ours(&image(&[], "snapshot"), 1001), []);
        assert_eq!(ours(&image(&[], "other"), later), []);
        assert_eq!(ours(&image(&["mine:1"], "build"), later), []);
        let named = vec![("rollout-env:1".to_owned(), ImageKind::Environment)];
        assert_eq!(ours(&image(&["localhost/rollout-env:1", "mine:1"], "env"), 1001), named);
    }
}
