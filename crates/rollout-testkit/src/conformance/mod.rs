//! The behaviour of trials in any environment: one specification, run against any provider.
//!
//! The author of a provider implements [`Subject`], and names it in a test file. That creates a test for each case:
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
//!
//!     fn end_environments(&self, _job: &str, _state_dir: &Path) {}
//! }
//!
//! rollout_testkit::conformance!(Mine);
//! # fn main() {}
//! ```
//!
//! Cases run whole jobs with the library and check the job's directory, or call the [`Environment`] itself. Their
//! scripts only need a minimal Debian: bash, coreutils, findutils, grep, perl-base, util-linux. No case is skipped: a provider
//! declares what it cannot do with [`Subject::lacks`].
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
pub mod isolation;
pub mod limits;
pub mod losses;
pub mod missing;
pub mod models;
pub mod phases;
pub mod preserve;
pub mod processes;
pub mod rewards;
pub mod separate;
pub mod snapshots;
mod suite;
pub mod tunnel;
pub mod verdict;

pub use crate::subject::{Ability, Subject, USER_PROGRAM};
pub use suite::{Inside, Suite};

/// Runs the case of a test, as an ordinary user if the subject demands one.
#[doc(hidden)]
pub fn run(test: &str, subject: impl Subject, case: fn(&Suite)) {
    match subject.program_of_ordinary_user().filter(|_| rustix::process::geteuid().is_root()) {
        Some(program) => crate::user::run_test_as_user(test, program),
        None => case(&Suite::new(subject)),
    }
}
