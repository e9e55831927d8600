//! The versions of the agents that presets describe: settled once for a job, and recorded.

use super::Job;
use crate::{agent::preset::wanted_version, config::AgentKind, trial::Installs};

impl Job {
    /// Settles which version of each agent all trials install, and the trials of later runs too. A registry that cannot
    /// be asked fails trials, not the job: a trial that needs no install does not miss it.
    pub(super) async fn installs(&mut self) -> Installs {
        let versions = &mut self.history.agent_versions;
        if self.plan.regrade.is_some() {
            return Installs::default();
        }
        for agent in &self.plan.agents {
            let Some(AgentKind::Preset(preset)) = agent.config.as_ref().map(|config| &config.kind) else {
                continue;
            };
            let name = agent.name.as_str();
            if preset.version != "latest" {
                versions.insert(name.to_owned(), preset.version.clone());
            } else if let Some(packages) = &self.plan.packages
                && !versions.contains_key(name)
            {
                match wanted_version(packages, &preset.preset.install, &preset.version).await {
                    // What a script fetches has no version that is known before.
                    Ok(version) if version == "latest" => {}
                    Ok(version) => _ = versions.insert(name.to_owned(), version),
                    Err(error) => tracing::warn!(agent = name, %error, "the latest version is not known"),
                }
            }
        }
        Installs::new(versions.clone())
    }
}
