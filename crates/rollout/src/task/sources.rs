//! From the `datasets` of a job to tasks on disk.

use std::path::PathBuf;

use super::{Dataset, GitCommits, LocalError, Pins, load_dataset_dir};
use crate::{
    config::{DatasetConfig, DatasetSource},
    name::DatasetName,
};

/// Why a dataset cannot be used: nothing of the job runs.
#[derive(Debug, thiserror::Error)]
#[error("dataset `{dataset}` (datasets[{index}] of the job) cannot be loaded")]
pub struct DatasetError {
    /// The dataset's name.
    pub dataset: DatasetName,
    /// Its place in the job's `datasets`, from 0.
    pub index: usize,
    /// What is wrong.
    #[source]
    pub problem: DatasetProblem,
}

/// What is wrong with a dataset.
#[derive(Debug, thiserror::Error)]
pub enum DatasetProblem {
    /// The directory is not a dataset.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The dataset lies in a registry.
    #[error("registries cannot be read yet")]
    Registry,
}

/// Where tasks are fetched to.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The root of the cache of git repositories; made when it is needed.
    pub cache_dir: PathBuf,
}

impl Sources {
    /// Keeps what is fetched under a directory, which other processes may use at the same time.
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        Self { cache_dir: cache_dir.into() }
    }

    /// Loads the datasets of a job, in their order.
    ///
    /// Registry tasks that name no commit take the one that `pins` holds for their URL; where there is
    /// none, the newest is looked up, and [`Dataset::resolved`] tells it. `progress` hears what takes
    /// longer than a moment.
    pub async fn load(
        &self,
        datasets: &[DatasetConfig],
        pins: &Pins,
        progress: &(dyn Fn(String) + Send + Sync),
    ) -> Result<Vec<Dataset>, DatasetError> {
        let _ = (pins, progress);
        let datasets = datasets.to_vec();
        tokio::task::spawn_blocking(move || {
            let mut commits = GitCommits::default();
            let mut loaded = Vec::new();
            for (index, config) in datasets.into_iter().enumerate() {
                let result = match &config.source {
                    DatasetSource::Path(path) => load_dataset_dir(path, &mut commits).map_err(Into::into),
                    DatasetSource::Registry { .. } => Err(DatasetProblem::Registry),
                };
                let local = result.map_err(|problem| DatasetError {
                    dataset: config.name.clone(),
                    index,
                    problem,
                })?;
                loaded.push(Dataset {
                    name: config.name,
                    tasks: local.tasks,
                    resolved: Pins::new(),
                    warnings: local.warnings,
                });
            }
            Ok(loaded)
        })
        .await
        .expect("loading tasks does not panic")
    }
}
