//! Removes images that Rollout made when the engine's disk has too little space, least recently used first.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{Engine, EngineImage, engine::free_bytes, settings::Builder};
use crate::blocking::blocking;

/// Images that were used this recently stay: a trial may be about to start from one.
const RECENT: Duration = Duration::from_secs(60);

/// The times at which images were last used, as the modification times of files.
#[derive(Debug, Clone)]
pub(super) struct ImageTimes(PathBuf);

impl ImageTimes {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self(state_dir.join("docker-images"))
    }

    fn path(&self, reference: &str) -> PathBuf {
        self.0.join(reference.replace(['/', ':'], "_"))
    }

    /// Notes that an image is used now. A failure only makes the order of removals worse.
    pub(super) async fn touch(&self, reference: &str) {
        let path = self.path(reference);
        let touched = blocking(move || -> io::Result<()> {
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir)?;
            }
            fs::File::create(&path).map(drop)
        });
        if let Err(error) = touched.await {
            tracing::debug!(%error, "cannot record the use of an image");
        }
    }

    /// When an image was last used, or else created.
    fn last_use(&self, image: &EngineImage) -> SystemTime {
        let noted = fs::metadata(self.path(&image.reference)).and_then(|found| found.modified());
        noted.unwrap_or_else(|_| {
            SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(image.created).unwrap_or(0))
        })
    }

    fn forget(&self, reference: &str) {
        let _ = fs::remove_file(self.path(reference));
    }
}

/// The images that may be removed, the least recently used first. Of two that were used at the same time, the one that
/// was made from the other is first.
fn candidates(images: Vec<EngineImage>, times: &ImageTimes, now: SystemTime) -> Vec<String> {
    let used: HashMap<String, SystemTime> =
        images.iter().map(|image| (image.reference.clone(), times.last_use(image))).collect();
    let mut free: Vec<EngineImage> = images
        .into_iter()
        .filter(|image| image.used_by.is_empty())
        .filter(|image| now.duration_since(used[&image.reference]).is_ok_and(|age| age > RECENT))
        .collect();
    free.sort_by(|a, b| (used[&a.reference], b.kind).cmp(&(used[&b.reference], a.kind)));
    free.into_iter().map(|image| image.reference).collect()
}

impl Engine {
    /// Removes images that Rollout made until so many bytes are free. If that is not enough, removes the build cache
    /// that was not used for `prune_after`. Does nothing if the disk of the engine is on another machine.
    ///
    /// Other programs may have filled the build cache, which the engine does not record: without `prune_after`, it
    /// stays, and the first call reports this.
    pub(super) async fn make_room(
        &self,
        wanted: u64,
        prune_after: Option<Duration>,
        times: &ImageTimes,
        warned: &mut bool,
    ) {
        let root = self.facts().root_dir.clone();
        let free = async || match self.facts().disk {
            Some(_) => {
                let root = root.clone();
                blocking(move || free_bytes(&root)).await.ok()
            }
            None => None,
        };
        let is_short = async || free().await.is_some_and(|free| free < wanted);
        if !is_short().await {
            return;
        }
        let images = match self.images().await {
            Ok(images) => images,
            Err(error) => return tracing::warn!(%error, "cannot list images to make room"),
        };
        let own = times.clone();
        let order =
            blocking(move || Ok(candidates(images, &own, SystemTime::now()))).await.unwrap_or_default();
        for reference in order {
            if !is_short().await {
                return;
            }
            match self.remove_images([&reference]).await {
                Ok(removed) if !removed.is_empty() => {
                    times.forget(&reference);
                    tracing::info!(image = reference, "removed an image to make room");
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "cannot remove an image to make room"),
            }
        }
        if self.inner.builder == Builder::BuildKit && is_short().await {
            let Some(unused) = prune_after else {
                if !std::mem::replace(warned, true) {
                    tracing::warn!(
                        "the engine's disk is nearly full; its build cache is kept unless \
                         `provider_config.prune_build_cache_after_sec` is set; `rollout clean --cache` removes it"
                    );
                }
                return;
            };
            match self.prune_build_cache(unused).await {
                Ok(bytes) => tracing::info!(bytes, "removed build cache to make room"),
                Err(error) => tracing::warn!(%error, "cannot remove build cache to make room"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::ImageKind, *};

    #[test]
    fn the_least_recently_used_images_go_first_and_used_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let times = ImageTimes::new(dir.path());
        let image = |name: &str, kind, created: i64, used_by: &[&str]| EngineImage {
            reference: name.to_owned(),
            kind,
            size: 1,
            used_by: used_by.iter().map(|name| (*name).to_owned()).collect(),
            created,
        };
        let images = vec![
            image("rollout-build:new", ImageKind::Build, 2000, &[]),
            image("rollout-build:old", ImageKind::Build, 1000, &[]),
            image("rollout-env:old", ImageKind::Environment, 1000, &[]),
            image("rollout-env:busy", ImageKind::Environment, 500, &["c"]),
            image("rollout-env:fresh", ImageKind::Environment, 9990, &[]),
        ];
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000);
        let order = candidates(images, &times, now);
        assert_eq!(order, ["rollout-env:old", "rollout-build:old", "rollout-build:new"]);
    }

    #[tokio::test]
    async fn a_use_counts_more_than_the_creation() {
        let dir = tempfile::tempdir().unwrap();
        let times = ImageTimes::new(dir.path());
        let image = EngineImage {
            reference: "rollout-env:1".to_owned(),
            kind: ImageKind::Environment,
            size: 1,
            used_by: Vec::new(),
            created: 0,
        };
        assert_eq!(times.last_use(&image), SystemTime::UNIX_EPOCH);
        times.touch("rollout-env:1").await;
        assert!(times.last_use(&image) > SystemTime::UNIX_EPOCH);
        times.forget("rollout-env:1");
        assert_eq!(times.last_use(&image), SystemTime::UNIX_EPOCH);
    }
}
