//! The versions of the agents that presets describe: settled once for a job, and recorded.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use super::{Cancel, Job};
use crate::{agent::preset::wanted_version, config::AgentKind, trial::Installs};

impl Job {
    /// Settles which version of each agent all trials install, and the trials of later runs too. A registry that cannot
    /// be asked fails trials, not the job: a trial that needs no install does not miss it.
    pub(super) async fn installs(&mut self, cancel: &Cancel) -> Installs {
        if self.plan.regrade.is_some() {
            return Installs::default();
        }
        let needed: BTreeSet<usize> = self.todo.iter().map(|index| self.plan.place(*index).0).collect();
        let versions = &mut self.history.agent_versions;
        let mut questions = Vec::new();
        for (place, agent) in self.plan.agents.iter().enumerate() {
            let Some(AgentKind::Preset(preset)) = agent.config.as_ref().map(|config| &config.kind) else {
                continue;
            };
            let name = agent.name.as_str();
            if preset.version != "latest" {
                versions.insert(name.to_owned(), preset.version.clone());
            } else if let Some(packages) = &self.plan.packages
                && needed.contains(&place)
                && !versions.contains_key(name)
            {
                questions.push(async move {
                    (name, wanted_version(packages, &preset.preset.install, &preset.version).await)
                });
            }
        }
        if !questions.is_empty() {
            tracing::info!(agents = questions.len(), "asking for the latest versions");
        }
        // A cancelled job starts no trials.
        let answers = tokio::select! {
            biased;
            () = cancel.graceful.cancelled() => Vec::new(),
            () = cancel.now.cancelled() => Vec::new(),
            answers = join_all(questions) => answers,
        };
        for (name, answer) in answers {
            match answer {
                // What a script fetches has no version that is known before.
                Ok(version) if version == "latest" => {}
                Ok(version) => _ = versions.insert(name.to_owned(), version),
                Err(error) => tracing::warn!(agent = name, %error, "the latest version is not known"),
            }
        }
        Installs::new(versions.clone())
    }
}
