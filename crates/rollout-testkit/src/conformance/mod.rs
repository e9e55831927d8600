//! How trials behave, in whatever environment they run: one description, run against any provider.
//!
//! A provider's author implements [`Subject`], and names it in a test file. That makes a test of each case:
//!
//! ```no_run
//! # use std::{path::Path, sync::Arc};
//! # use rollout::{config::EnvironmentConfig, environment::Provider};
//! # use rollout_testkit::{IdleProvider as MyProvider, conformance::Subject};
//! # use serde_json::{Value, json};
//! struct Mine;
//!
//! #[async_trait::async_trait]
//! impl Subject for Mine {
//!     fn environment(&self) -> Value {
//!         json!({"provider_config": {"network": "host"}})
//!     }
//!
//!     async fn provider(&self, _config: &EnvironmentConfig, _state_dir: &Path) -> Arc<dyn Provider> {
//!         Arc::new(MyProvider)
//!     }
//!
//!     fn leftovers(&self, _job: &str, _state_dir: &Path) -> Vec<String> {
//!         Vec::new()
//!     }
//!
//!     fn forget(&self, _place: &str) {}
//! }
//!
//! rollout_testkit::conformance!(Mine);
//! # fn main() {}
//! ```
//!
//! Cases run whole jobs by the library and look at the job's directory, or call the [`Environment`] itself. Scripts
//! in them need no more than a minimal Debian has: bash, coreutils, findutils, grep, util-linux. Nothing is skipped:
//! what a provider cannot do it has to say, by [`Subject::lacks`].
//!
//! [`Environment`]: rollout::environment::Environment

#[macro_use]
mod list;

pub mod cancel;
pub mod commands;
pub mod errors;
pub mod files;
pub mod hostile;
pub mod images;
pub mod limits;
pub mod missing;
pub mod models;
pub mod phases;
pub mod preserve;
pub mod processes;
pub mod rewards;
pub mod snapshots;
mod suite;

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use rollout::{config::EnvironmentConfig, environment::Provider};
use serde_json::Value;

pub use suite::{Inside, Suite};

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
