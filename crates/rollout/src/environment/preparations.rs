//! Every task's image, prepared once however many trials ask for it.

use std::{
    collections::HashMap,
    future::Future,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::OnceCell;

use super::{EnvironmentError, PreparedImage};

/// One preparation. A build that failed for good has failed for every trial.
type Preparation = OnceCell<Result<PreparedImage, EnvironmentError>>;

/// What was prepared in this process, by task directory.
#[derive(Default)]
pub(super) struct Preparations(Mutex<HashMap<PathBuf, Arc<Preparation>>>);

impl Preparations {
    /// Prepares a task's image, or waits for whoever does. What may go better next time is not kept.
    pub(super) async fn once(
        &self,
        task_dir: &Path,
        work: impl Future<Output = Result<PreparedImage, EnvironmentError>>,
    ) -> Result<PreparedImage, EnvironmentError> {
        let cell = {
            let mut preparations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(preparations.entry(task_dir.to_owned()).or_default())
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

    /// Forgets an image that is gone, so that the next trial makes it again.
    #[cfg(feature = "docker")]
    pub(super) fn forget(&self, reference: &str) {
        let mut preparations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        preparations.retain(|_, cell| !matches!(cell.get(), Some(Ok(image)) if image.reference == reference));
    }
}
