//! The provenance of results: the data needed to reproduce them.
//!
//! A run of a job has one [`Provenance`], which the journal contains once. That of a trial is derived from it and from
//! the trial's result and task.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::result::TrialResult;

/// The provenance of the results of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The version of Rollout.
    pub rollout_version: String,
    /// The hash of the job file with all defaults.
    pub config_hash: String,
    /// The git repository of the job file; None if there is none.
    pub git: Option<GitState>,
    /// The command line without secrets; None if a program started the run through the library.
    pub command: Option<Vec<String>>,
    /// The provider of the environments.
    pub provider: String,
    /// The random seeds; None if nothing was seeded.
    pub seeds: Option<Seeds>,
    /// The hashes of the agents' installs, by agent. Agents without an install are absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agent_install_hashes: BTreeMap<String, String>,
    /// The versions of agents by name, as far as they are known. Only presets have one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agent_versions: BTreeMap<String, String>,
}

/// The state of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitState {
    /// The commit of the checkout.
    pub commit: String,
    /// Whether files of the commit are changed or missing; None if the check timed out.
    pub is_dirty: Option<bool>,
    /// The URL of `origin`, without credentials.
    pub remote_url: Option<String>,
}

/// Random seeds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Seeds {
    /// The seed of the order of examples, by dataset.
    pub shuffle: BTreeMap<String, u64>,
    /// The sampling seed of models, by agent.
    pub sampling: BTreeMap<String, Value>,
}

impl Seeds {
    /// Returns the seeds, or None if there are none.
    pub fn some(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }

    /// Returns the seeds of one agent on one dataset.
    fn of(&self, agent: &str, dataset: &str) -> Self {
        let shuffle = self.shuffle.get_key_value(dataset).map(|(name, seed)| (name.clone(), *seed));
        let sampling = self.sampling.get_key_value(agent).map(|(name, seed)| (name.clone(), seed.clone()));
        Self { shuffle: shuffle.into_iter().collect(), sampling: sampling.into_iter().collect() }
    }
}

/// The provenance of the result of one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialProvenance {
    /// The version of Rollout.
    pub rollout_version: String,
    /// The hash of the job file with all defaults.
    pub config_hash: String,
    /// The hash of the task's files; None if the task could not be loaded.
    pub task_content_hash: Option<String>,
    /// The image, by its content hash if possible; None if there was no environment.
    pub image: Option<String>,
    /// The provider of the environments.
    pub provider: String,
    /// The enforced limits; None if there was no environment.
    pub enforced_limits: Option<Value>,
    /// The hash of the agent's install; None if it installs nothing.
    pub agent_install_hash: Option<String>,
    /// The version of the agent; None if it is no preset, or if its version is not known.
    #[serde(default)]
    pub agent_version: Option<String>,
    /// The git repository of the job file; None if there is none.
    pub git: Option<GitState>,
    /// The command line without secrets; None if a program started the run through the library.
    pub command: Option<Vec<String>>,
    /// The random seeds; None if nothing was seeded.
    pub seeds: Option<Seeds>,
}

impl Provenance {
    /// Returns the provenance of a result of this run.
    pub fn of_trial(&self, result: &TrialResult, task_content_hash: Option<&str>) -> TrialProvenance {
        let (agent, dataset) = (result.agent_name.as_str(), result.dataset_name.as_str());
        let environment = result.environment.as_ref();
        TrialProvenance {
            rollout_version: self.rollout_version.clone(),
            config_hash: self.config_hash.clone(),
            task_content_hash: task_content_hash.map(ToOwned::to_owned),
            image: environment.map(|found| found.image.clone()).filter(|image| !image.is_empty()),
            provider: self.provider.clone(),
            enforced_limits: environment.map(|found| found.enforced.clone()),
            agent_install_hash: self.agent_install_hashes.get(agent).cloned(),
            agent_version: self.agent_versions.get(agent).cloned(),
            git: self.git.clone(),
            command: self.command.clone(),
            seeds: self.seeds.as_ref().and_then(|seeds| seeds.of(agent, dataset).some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::name::{AgentName, DatasetName, TaskName, TrialId};

    #[test]
    fn a_trial_has_the_seeds_of_its_agent_and_dataset_only() {
        let run = Provenance {
            rollout_version: "1.0.0".to_owned(),
            config_hash: "sha256:0".to_owned(),
            git: None,
            command: None,
            provider: "none".to_owned(),
            seeds: Some(Seeds {
                shuffle: [("sums".to_owned(), 7)].into(),
                sampling: [("a".to_owned(), json!(1)), ("b".to_owned(), json!(2))].into(),
            }),
            agent_install_hashes: [("b".to_owned(), "sha256:1".to_owned())].into(),
            agent_versions: [("b".to_owned(), "1.2.0".to_owned())].into(),
        };
        let of = |agent: &str, dataset: &str| {
            let id = TrialId {
                agent: AgentName::new(agent).unwrap(),
                dataset: DatasetName::new(dataset).unwrap(),
                task: TaskName::new("0").unwrap(),
                attempt: 1,
            };
            run.of_trial(&TrialResult::empty(&id, jiff::Timestamp::UNIX_EPOCH), None)
        };
        let seeds = of("a", "sums").seeds.unwrap();
        assert_eq!((seeds.shuffle["sums"], seeds.sampling.len(), &seeds.sampling["a"]), (7, 1, &json!(1)));
        assert_eq!(of("c", "words").seeds, None);
        assert_eq!(of("b", "sums").agent_install_hash.as_deref(), Some("sha256:1"));
        assert_eq!(of("a", "sums").agent_install_hash, None);
        assert_eq!(of("b", "sums").agent_version.as_deref(), Some("1.2.0"));
    }
}
