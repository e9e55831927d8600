//! Prepares every task's image once, also for concurrent trials.

use std::{
    collections::HashMap,
    future::Future,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::OnceCell;

use crate::{
    compose::BuildOptions,
    environment::{EnvironmentError, ImageRequest, PreparedImage},
};

/// One preparation. A permanent failure applies to every trial.
type Preparation = OnceCell<Result<PreparedImage, EnvironmentError>>;

/// The context, the image and the build options of a request.
type Key = (PathBuf, Option<String>, Option<BuildOptions>);

/// The preparations of this process.
#[derive(Default)]
pub(super) struct Preparations(Mutex<HashMap<Key, Arc<Preparation>>>);

impl Preparations {
    /// Prepares a task's image, or waits for a running preparation. Failures that may be temporary are not
    /// stored.
    pub(super) async fn once(
        &self,
        request: ImageRequest<'_>,
        work: impl Future<Output = Result<PreparedImage, EnvironmentError>>,
    ) -> Result<PreparedImage, EnvironmentError> {
        let cell = {
            let mut preparations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let image = request.docker_image.map(str::to_owned);
            let key = (request.context.to_owned(), image, request.build.cloned());
            Arc::clone(preparations.entry(key).or_default())
        };
        let outcome = cell.get_or_try_init(|| async {
            match work.await {
                Err(error @ (EnvironmentError::Build(_) | EnvironmentError::NoImage(_))) => Ok(Err(error)),
                Ok(image) => Ok(Ok(image)),
                Err(error) => Err(error),
            }
        });
        outcome.await?.clone()
    }

    /// Forgets the images of contexts below a directory, and returns those that no other context has.
    #[cfg(any(feature = "docker", feature = "native"))]
    pub(super) fn take_below(&self, dir: &std::path::Path) -> Vec<String> {
        let mut preparations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reference = |cell: &Arc<Preparation>| match cell.get() {
            Some(Ok(image)) => Some(image.reference.clone()),
            _ => None,
        };
        let mut taken: Vec<String> = Vec::new();
        preparations.retain(|(context, ..), cell| {
            // A failed preparation would fail again.
            let Some(reference) = reference(cell).filter(|_| context.starts_with(dir)) else { return true };
            taken.push(reference);
            false
        });
        taken.retain(|taken| !preparations.values().any(|cell| reference(cell).as_ref() == Some(taken)));
        taken.sort();
        taken.dedup();
        taken
    }

    /// Forgets an image that was removed, so that the next trial prepares it again.
    #[cfg(feature = "docker")]
    pub(super) fn forget(&self, reference: &str) {
        let mut preparations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        preparations.retain(|_, cell| !matches!(cell.get(), Some(Ok(image)) if image.reference == reference));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::environment::Origin;

    #[tokio::test]
    async fn each_context_and_each_image_is_prepared_once() {
        let preparations = Preparations::default();
        let prepared = async |context: &str, docker_image: Option<&str>, reference: &str| {
            let origin = Origin { job: "job", trial: "trial" };
            let log = Path::new("build.txt");
            let request = ImageRequest {
                origin,
                context: Path::new(context),
                docker_image,
                build: None,
                force_build: false,
                log,
            };
            let work = async { Ok(PreparedImage { reference: reference.to_owned() }) };
            preparations.once(request, work).await.unwrap().reference
        };
        assert_eq!(prepared("", Some("debian:12"), "a").await, "a");
        assert_eq!(prepared("", Some("debian:13"), "b").await, "b");
        assert_eq!(prepared("/context", None, "c").await, "c");
        assert_eq!(prepared("", Some("debian:12"), "again").await, "a");
    }
}
