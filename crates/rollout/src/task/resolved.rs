//! What an earlier run of a job found out about its datasets, so that a resume need not look it up again.

use std::collections::BTreeMap;

use super::{
    Pins,
    git::{CommitId, GitUrl, RepoPath},
    registry::{Origin, RegistryTask},
};
use crate::config::Compat;
use rollout_core::name::{DatasetName, TaskName};
use rollout_record::journal::{Header, RecordedSource};

/// Known commits and locations of tasks.
#[derive(Debug, Clone, Default)]
pub struct Resolved {
    /// The commits of repositories without a commit in the registry.
    pub pins: Pins,
    /// The locations of the tasks of registries, by dataset.
    tasks: BTreeMap<DatasetName, Vec<RegistryTask>>,
    /// Whether registries are read for new tasks.
    ask: bool,
}

impl From<Pins> for Resolved {
    fn from(pins: Pins) -> Self {
        Self { pins, ..Self::default() }
    }
}

impl Resolved {
    /// From the journal of a job. Its registries are not read again, unless the job may grow.
    pub fn of(header: &Header, grows: bool) -> Self {
        let mut tasks: BTreeMap<DatasetName, Vec<RegistryTask>> = BTreeMap::new();
        let mut incomplete = Vec::new();
        for task in &header.tasks {
            let Ok(dataset) = DatasetName::new(task.dataset.as_str()) else { continue };
            match task.source.as_ref().and_then(|source| registry_task(&task.name, source)) {
                Some(found) => tasks.entry(dataset).or_default().push(found),
                None => incomplete.push(dataset),
            }
        }
        // Older journals do not have the locations of tasks, so their registries are read.
        incomplete.iter().for_each(|dataset| _ = tasks.remove(dataset));
        Self { pins: header.pins.clone(), tasks, ask: grows }
    }

    /// The tasks of a registry's dataset, if the registry need not be read.
    pub(super) fn instead_of_registry(&self, dataset: &DatasetName) -> Option<Vec<RegistryTask>> {
        if self.ask { None } else { self.tasks.get(dataset).cloned() }
    }

    /// The rules that the registry named for a dataset.
    pub(super) fn compat(&self, dataset: &DatasetName) -> Option<Compat> {
        self.pins.contains_key(&compat_key(dataset)).then_some(Compat::Harbor)
    }

    /// Replaces tasks of the registry by the known ones.
    pub(super) fn keep(&self, dataset: &DatasetName, found: &mut [RegistryTask]) {
        let known = self.tasks.get(dataset).into_iter().flatten();
        let known: BTreeMap<&TaskName, &RegistryTask> = known.map(|task| (&task.name, task)).collect();
        for task in found {
            if let Some(known) = known.get(&task.name) {
                *task = (*known).clone();
            }
        }
    }
}

/// The key of the rules of a dataset in the journal.
pub(super) fn compat_key(dataset: &DatasetName) -> String {
    format!("compat of dataset {dataset}")
}

fn registry_task(name: &str, source: &RecordedSource) -> Option<RegistryTask> {
    let origin = match source {
        RecordedSource::Directory(dir) => Origin::Local(dir.clone()),
        RecordedSource::Git { url, commit, path } => Origin::Git {
            url: GitUrl::parse(url).ok()?,
            commit: Some(CommitId::parse(commit).ok()?),
            path: RepoPath::parse(path).ok()?,
        },
    };
    Some(RegistryTask { name: TaskName::new(name).ok()?, origin })
}
