//! The `gateway` section of a job: what agents may ask of models.

use std::path::PathBuf;

use super::model::{MOST_RETRIES, RateLimitKeys};
use rollout_model::client::RateLimit;
use rollout_settings::{
    forms::{count, filled, flag, number, section, whole},
    section::above_zero,
};

/// US dollars. More is a slip of the pen.
const MAX_COST: f64 = 1e9;

rollout_settings::settings! {
    /// What agents of presets may ask of models, over all trials of the job.
    #[derive(Debug, Clone, PartialEq)]
    pub struct JobGatewayConfig {
        /// Calls of models.
        pub max_calls: Option<u64> = whole(1..=u64::MAX).optional(),
        /// Tokens that models read and write.
        pub max_total_tokens: Option<u64> = whole(1..=u64::MAX).optional(),
        /// US dollars.
        ///
        /// Needs a price for each model: a known one, or `prices` of the model.
        pub max_cost: Option<f64> = number(above_zero(MAX_COST)).optional(),
        /// How much is sent to model servers in a minute, shared fairly between trials.
        ///
        /// `requests_per_minute` and `tokens_per_minute`.
        pub rate_limit: RateLimit = section::<RateLimitKeys>().unset("none").unhashed(),
        /// How many calls are sent to model servers at the same time.
        pub max_concurrent_calls: u32 = count(1024).unhashed(),
        /// How often a call is repeated that failed for the moment.
        pub max_retries: u32 = whole(0..=MOST_RETRIES).default(5).unhashed(),
        /// Whether agents may use tools that run at the provider of the model, such as its web search.
        ///
        /// Such tools reach the internet past the isolation of the environment. Without this, they are removed from
        /// requests, and the record of the call says so.
        pub provider_tools: bool = flag(false),
        /// A directory in which responses are kept, so that the same request of a later run is answered from there.
        pub cache: Option<PathBuf> = filled()
            .kind("path")
            .map(PathBuf::from, |path| path.to_string_lossy().into_owned())
            .optional(),
    }
}
