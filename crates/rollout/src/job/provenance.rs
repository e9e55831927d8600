//! The provenance of a job's results: determined once in a run, and recorded with every result.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use super::{Job, absolute, plan::Plan, planned::Work};
use crate::{
    config::{AgentConfig, AgentKind},
    task::git_state,
};
use rollout_core::{
    name::TrialIndex,
    provenance::{GitState, Provenance, Seeds, TrialProvenance},
    result::TrialResult,
};
use rollout_model::dataset;
use serde_json::json;

impl Job {
    /// Records the command that started the run. Secrets are masked.
    pub fn started_by(&mut self, command: impl IntoIterator<Item = String>) {
        self.command = Some(command.into_iter().collect());
    }

    /// The provenance of this run's results. Reads the state of the job file's repository, if there is one.
    pub async fn provenance(&mut self) -> Arc<Provenance> {
        if let Some(known) = &self.provenance {
            return Arc::clone(known);
        }
        let file = &self.plan.loaded().path;
        let git = match absolute(file).filter(|_| !file.as_os_str().is_empty()) {
            Some(file) => git_state(file.parent().unwrap_or(Path::new("/"))).await,
            None => None,
        };
        let made = self.plan.provenance(git, self.command.as_deref(), self.provider.name());
        let made = Arc::new(Provenance { agent_versions: self.history.agent_versions.clone(), ..made });
        self.provenance = Some(Arc::clone(&made));
        made
    }
}

impl Plan {
    /// The provenance of a run's results.
    fn provenance(&self, git: Option<GitState>, command: Option<&[String]>, provider: &str) -> Provenance {
        let clean = |text: &str| self.redactor().text(text).into_owned();
        let mut seeds = Seeds::default();
        for task in &self.tasks {
            if let Work::Example { set, .. } = &task.work
                && let Some(seed) = set.rollouts.shuffled.flatten()
                && !seeds.shuffle.contains_key(set.name.as_str())
            {
                seeds.shuffle.insert(set.name.to_string(), seed);
            }
        }
        let models = self.agents.iter().filter_map(|agent| Some((&agent.name, agent.model.as_ref()?)));
        for (name, seed) in models.filter_map(|(name, model)| Some((name, model.sampling.get("seed")?))) {
            seeds.sampling.insert(name.to_string(), self.redactor().json(seed.clone()));
        }
        let installs = self
            .agents
            .iter()
            .filter_map(|agent| Some((agent.name.to_string(), install_hash(agent.config.as_ref()?)?)));
        Provenance {
            rollout_version: env!("CARGO_PKG_VERSION").to_owned(),
            config_hash: self.loaded().hash.clone(),
            git: git.map(|git| GitState { remote_url: git.remote_url.as_deref().map(clean), ..git }),
            command: command.map(|words| words.iter().map(|word| clean(word)).collect()),
            provider: provider.to_owned(),
            seeds: seeds.some(),
            agent_install_hashes: installs.collect(),
            agent_versions: BTreeMap::new(),
        }
    }
}

/// The sources of a trial's provenance.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    /// That of the run; none for runs of older versions.
    pub(super) run: Option<Arc<Provenance>>,
    pub(super) task_hashes: TaskHashes,
}

/// The hashes of the files of tasks, by the number of the task. Examples for a model have none.
#[derive(Debug, Clone, Default)]
pub(super) struct TaskHashes(Arc<[Option<Box<str>>]>);

impl FromIterator<Option<Box<str>>> for TaskHashes {
    fn from_iter<I: IntoIterator<Item = Option<Box<str>>>>(hashes: I) -> Self {
        Self(hashes.into_iter().collect())
    }
}

impl Origin {
    /// The provenance of a result.
    pub(super) fn of(&self, plan: &Plan, index: TrialIndex, result: &TrialResult) -> Option<TrialProvenance> {
        let hash = self.task_hashes.0.get(plan.place(index).1).and_then(Option::as_deref);
        Some(self.run.as_ref()?.of_trial(result, hash))
    }
}

/// The hash of an agent's install: its script, and the names of the variables that it can see.
fn install_hash(agent: &AgentConfig) -> Option<String> {
    match &agent.kind {
        AgentKind::Script { install: Some(script), .. } => {
            let mut names: Vec<&str> = agent.env.keys().map(String::as_str).collect();
            names.sort_unstable();
            Some(dataset::hash(&json!({"install": script, "variables": names})))
        }
        AgentKind::Preset(agent) => {
            let version = &agent.version;
            Some(dataset::hash(&json!({"preset": format!("{:?}", agent.preset.install), "version": version})))
        }
        AgentKind::Script { install: None, .. }
        | AgentKind::Oracle
        | AgentKind::Nop
        | AgentKind::Model(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use rollout_core::name::AgentName;

    use super::*;
    use crate::config::{Env, EnvValue};

    fn agent(install: Option<&str>, variables: &[(&str, &str)]) -> AgentConfig {
        let value = |value: &str| EnvValue { value: value.to_owned(), secret: false };
        AgentConfig {
            name: AgentName::new("agent").unwrap(),
            description: None,
            cache_install: None,
            env: variables.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect::<Env>(),
            kind: AgentKind::Script { install: install.map(ToOwned::to_owned), execute: "true".to_owned() },
        }
    }

    #[test]
    fn an_install_is_its_script_and_the_names_of_its_variables() {
        let hash = install_hash(&agent(Some("apk add x"), &[("A", "1"), ("B", "2")]));
        let golden = "sha256:3d44d077b23895a821c1553d2fbe383f54ba5ebb688a8bc04dd2a541da4acf90";
        assert_eq!(hash.as_deref(), Some(golden), "older records contain this hash");
        assert_eq!(install_hash(&agent(Some("apk add x"), &[("B", "3"), ("A", "4")])), hash);
        assert_ne!(install_hash(&agent(Some("apk add y"), &[("A", "1"), ("B", "2")])), hash);
        assert_ne!(install_hash(&agent(Some("apk add x"), &[("A", "1")])), hash);
        assert_eq!(install_hash(&agent(None, &[("A", "1")])), None);
    }
}
