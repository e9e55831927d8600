//! The interface between the conformance suite and a provider under test.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use rollout::{config::EnvironmentConfig, environment::Provider};
use serde_json::Value;

/// The variable with the program that a provider starts for an ordinary user.
pub const USER_PROGRAM: &str = "ROLLOUT_TEST_USER_PROGRAM";

/// A provider under test.
#[async_trait]
pub trait Subject: Send + Sync + 'static {
    /// The `environment` section of a job file. Its environments must reach the loopback of this machine, where
    /// tests listen for scripts. Its `provider_config` has a `network`, which can also be `none`.
    fn environment(&self) -> Value;

    /// The provider of the section, which stores its data below this directory.
    async fn provider(&self, config: &EnvironmentConfig, state_dir: &Path) -> Arc<dyn Provider>;

    /// An image with bash, coreutils, util-linux, findutils and perl-base, and Debian's usual users. No other
    /// image is available.
    fn base_image(&self) -> &str {
        "test"
    }

    /// The objects on the machine of the jobs whose names start with `job`: processes, mounts, containers,
    /// directories. Images and preserved environments are not leftovers.
    fn leftovers(&self, job: &str, state_dir: &Path) -> Vec<String>;

    /// Ends the environments of the jobs whose names start with `job` like a failure of the machine: from
    /// outside, while they run, without notice to the provider.
    fn end_environments(&self, job: &str, state_dir: &Path);

    /// Removes a preserved environment by its place.
    fn forget(&self, place: &str);

    /// The program that the provider starts, if cases must not run as root. They run as an ordinary user then, who gets
    /// the place of a readable link of it in [`USER_PROGRAM`].
    fn program_of_ordinary_user(&self) -> Option<&Path> {
        None
    }

    /// Words about a missing ability; they must be in the note or the error that a user sees.
    fn lacks(&self, _ability: Ability) -> Option<&'static str> {
        None
    }
}

/// An ability that some providers lack. For those, the cases that need it only check the provider's note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// Enforces CPU limits; otherwise a note of the provider says so.
    LimitCpus,
    /// Enforces fractions of a CPU; otherwise a note of the provider says that they are rounded up.
    FractionsOfCpus,
    /// Enforces memory limits; otherwise a note of the provider says so.
    LimitMemory,
    /// Stores environments as images, for `cache_agent_install`; otherwise a note of the provider says so.
    Snapshots,
    /// Opens a terminal in an environment, for `rollout attach`; otherwise a note of the provider says so.
    Terminals,
    /// Environments without a network; otherwise a note of the provider says so.
    NoNetwork,
    /// Survives an agent that kills every process; otherwise its environment ends, and a note of the provider says so.
    SurvivesKills,
    /// Has other users than root, and lets root change all files of an image; otherwise a note of the provider says so.
    OtherUsers,
    /// Enforces the limit on processes, `pids` in its configuration; otherwise a note of the provider says so.
    LimitProcesses,
}
