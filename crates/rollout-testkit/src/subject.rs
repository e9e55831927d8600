//! What the conformance suite needs of a provider under test.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use rollout::{config::EnvironmentConfig, environment::Provider};
use serde_json::Value;

/// A provider under test.
#[async_trait]
pub trait Subject: Send + Sync + 'static {
    /// The `environment` section of a job file. Its environments reach the loopback of this machine, where tests
    /// listen to what scripts have to say.
    fn environment(&self) -> Value;

    /// The provider that the section asks for, keeping what it has to keep below this directory.
    async fn provider(&self, config: &EnvironmentConfig, state_dir: &Path) -> Arc<dyn Provider>;

    /// An image with bash, coreutils, util-linux and findutils, and Debian's usual users. No other image is to be had.
    fn base_image(&self) -> &str {
        "test"
    }

    /// What is on the machine for the jobs whose name starts like this: processes, mounts, containers, directories.
    /// Images and what was preserved are no leftovers.
    fn leftovers(&self, job: &str, state_dir: &Path) -> Vec<String>;

    /// Ends the environments of the jobs whose name starts like this as a failure of the machine would: from outside,
    /// while they run, without a word to the provider.
    fn end_environments(&self, job: &str, state_dir: &Path);

    /// Removes a preserved environment, by the place that it named.
    fn forget(&self, place: &str);

    /// Words about an ability that it lacks, if it does: they must be in the note or the error that a user sees.
    fn lacks(&self, _ability: Ability) -> Option<&'static str> {
        None
    }
}

/// What not every provider can do. Instead of the cases that need it, the provider's word on it is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// Holds environments to their processors; told by a note of the provider.
    LimitCpus,
    /// Holds environments to their memory; told by a note of the provider.
    LimitMemory,
    /// Holds environments to a number of processes, `pids` in its configuration; told by a note of the provider.
    LimitProcesses,
}
