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
        /// The maximum number of model calls.
        pub max_calls: Option<u64> = whole(1..=u64::MAX).optional(),
        /// The maximum number of tokens that models read and write.
        pub max_total_tokens: Option<u64> = whole(1..=u64::MAX).optional(),
        /// The maximum cost in US dollars.
        ///
        /// Each model needs a price: a known price, or `prices` in its settings.
        pub max_cost: Option<f64> = number(above_zero(MAX_COST)).optional(),
        /// Limits per minute on requests to model servers, shared fairly between trials.
        ///
        /// The keys are `requests_per_minute` and `tokens_per_minute`.
        pub rate_limit: RateLimit = section::<RateLimitKeys>().unset("none").unhashed(),
        /// The maximum number of calls at the same time.
        pub max_concurrent_calls: u32 = count(1024).unhashed(),
        /// How often a call is retried after a temporary failure.
        pub max_retries: u32 = whole(0..=MOST_RETRIES).default(5).unhashed(),
        /// Whether agents may use tools that run at the provider of the model, such as its web search.
        ///
        /// Such tools can reach the internet even if the environment has no network. By default they are removed from
        /// requests, and the record of the call lists them.
        pub provider_tools: bool = flag(false),
        /// A directory for responses. If a later run sends the same request, it gets the stored response.
        pub cache: Option<PathBuf> = filled()
            .kind("path")
            .map(PathBuf::from, |path| path.to_string_lossy().into_owned())
            .optional(),
    }
}
