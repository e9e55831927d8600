//! The e2b part of `provider_config`.

use std::time::Duration;

use rollout_core::quantity::Bytes;
use rollout_settings::{
    Form,
    forms::{bytes, filled, number, number_or_text, seconds, word},
    read_json,
};

use serde_json::{Map, Value};

use super::super::settings::{CloudTimes, grace, lifetime, start_timeout};
use crate::config::EnvironmentConfig;

/// How sandboxes are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxNetwork {
    /// The internet.
    Open,
    /// Nothing.
    None,
}

const NETWORKS: [(&str, SandboxNetwork); 2] =
    [("open", SandboxNetwork::Open), ("none", SandboxNetwork::None)];

/// The longest life of a sandbox in the larger plans.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The prices that E2B published in November 2026, for an hour.
const CPU_HOUR: f64 = 0.0504;
const GIB_HOUR: f64 = 0.0162;

rollout_settings::settings! {
    /// The e2b part of `provider_config`.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct Settings {
        /// The domain of your own installation of E2B.
        pub(super) domain: Option<String> = filled().kind("name").optional().unset("`E2B_DOMAIN`, otherwise `e2b.app`"),
        /// The network of sandboxes: `open` (the internet) or `none`.
        pub(super) network: SandboxNetwork = word(&NETWORKS).default(SandboxNetwork::Open),
        /// The user that runs all scripts.
        pub(super) user: Option<String> = number_or_text()
            .kind("name or number, also `user:group`")
            .optional()
            .unset("the `USER` of the Dockerfile, otherwise root"),
        /// The CPUs of a sandbox if the task sets no limit.
        pub(super) default_cpus: f64 = number(0.1..=64.0).default(2.0),
        /// The memory of a sandbox if the task sets no limit.
        pub(super) default_memory: Bytes = bytes().default(Bytes(1 << 30)),
        /// The most CPUs that your plan allows for a sandbox.
        pub(super) max_cpus: f64 = number(1.0..=64.0).default(8.0),
        /// The most memory that your plan allows for a sandbox.
        pub(super) max_memory: Bytes = bytes().default(Bytes(8 << 30)),
        /// How long a sandbox may take to start, including waits that E2B requests.
        pub(super) start_timeout as "start_timeout_sec": Duration = start_timeout(),
        /// After this time E2B ends a sandbox in any case.
        pub(super) lifetime as "lifetime_sec": Option<Duration> = lifetime(),
        /// The longest lifetime that your plan allows: an hour in the free plan, a day in other plans.
        pub(super) max_lifetime as "max_lifetime_sec": Duration = longest(),
        /// How long a trial continues while the connection to its sandbox is lost. A sandbox without a connection ends
        /// its processes after this time.
        pub(super) grace as "grace_sec": Duration = grace(),
        /// The price of a CPU for an hour, in US dollars. The default is the price of November 2026.
        pub(super) cpu_hour: f64 = number(0.0..=1e6).default(CPU_HOUR),
        /// The price of a GiB of memory for an hour, in US dollars. The default is the price of November 2026.
        pub(super) gib_hour: f64 = number(0.0..=1e6).default(GIB_HOUR),
    }
}

fn longest() -> Form<Duration> {
    seconds().default(LONGEST)
}

impl Settings {
    /// Reads the settings; an error lists all invalid ones.
    pub(crate) fn read(config: &EnvironmentConfig) -> Result<Self, String> {
        read_json::<Self>("provider_config", &config.provider_config)
    }

    /// The settings to inspect a place in an account.
    pub(super) fn of_place(place: &Map<String, Value>) -> Self {
        let read = |map: &Map<String, Value>| read_json::<Self>("provider_config", map);
        read(place).or_else(|_| read(&Map::new())).expect("the defaults are valid")
    }

    pub(super) fn times(&self) -> CloudTimes {
        CloudTimes { start_timeout: self.start_timeout, lifetime: self.lifetime, grace: self.grace }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Result<Settings, String> {
        let provider_config = value.as_object().unwrap().clone();
        Settings::read(&EnvironmentConfig { provider_config, ..EnvironmentConfig::default() })
    }

    #[test]
    fn settings_have_defaults_and_are_checked() {
        let defaults = Settings::of_place(&Map::new());
        assert_eq!((defaults.network, defaults.max_lifetime), (SandboxNetwork::Open, LONGEST));
        let settings =
            read(json!({"network": "none", "domain": "e2b.example", "lifetime_sec": 60, "user": 7}));
        let settings = settings.unwrap();
        assert_eq!((settings.network, settings.user.as_deref()), (SandboxNetwork::None, Some("7")));
        assert_eq!(settings.times().lifetime, Some(Duration::from_secs(60)));
        let error = read(json!({"network": "host"})).unwrap_err();
        assert!(error.contains("`provider_config.network` cannot be `host`"), "{error}");
    }

    #[test]
    fn the_table_in_docs_matches_the_schema() {
        use rollout_settings::Settings as _;
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/clouds.md");
        rollout_settings::docs::check_table(&page, "e2b", Settings::keys()).unwrap();
    }
}
