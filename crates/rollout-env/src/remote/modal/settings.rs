//! The modal part of `provider_config`.

use std::{ops::Deref, time::Duration};

use rollout_settings::{
    forms::{filled, number, number_or_text, texts, word},
    read_json,
};

use serde_json::{Map, Value};

use super::super::settings::{CloudTimes, grace, lifetime, start_timeout};
use crate::config::EnvironmentConfig;

/// What isolates a sandbox from its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// A kernel in user space.
    Gvisor,
    /// A virtual machine.
    Vm,
}

impl Runtime {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Gvisor => "gvisor",
            Self::Vm => "vm",
        }
    }
}

const RUNTIMES: [(&str, Runtime); 2] = [("gvisor", Runtime::Gvisor), ("vm", Runtime::Vm)];

const NETWORKS: [(&str, bool); 2] = [("open", false), ("none", true)];

/// The app of sandboxes.
const APP: &str = "rollout";

/// The price of a core for an hour: 0.00003942 dollars a second, as copied from the price list in October 2026.
const CPU_HOUR: f64 = 0.141_912;

/// The price of a GiB of memory for an hour: 0.00000667 dollars a second, from the same list.
const GIB_HOUR: f64 = 0.024_012;

rollout_settings::settings! {
    /// The modal part of `provider_config`.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct ModalKeys {
        /// The app that holds the sandboxes and images. It is created if it does not exist.
        pub(super) app: String = filled().kind("name").default(APP.to_owned()),
        /// The environment of the account.
        pub(super) environment: Option<String> = filled().kind("name").optional()
            .unset("the profile's, otherwise the account's"),
        /// Regions that sandboxes may run in. Modal charges more if you choose a region.
        pub(super) regions: Vec<String> = texts().kind("list of names"),
        /// The cloud that sandboxes run in, such as `aws`.
        pub(super) cloud: Option<String> = filled().kind("name").optional().unset("any"),
        /// How sandboxes are isolated: `gvisor` (a kernel in user space) or `vm` (a virtual machine).
        pub(super) runtime: Option<Runtime> = word(&RUNTIMES).optional().unset("Modal's choice"),
        /// The name of a secret at Modal, with which Modal pulls base images.
        ///
        /// The secret has `REGISTRY_USERNAME` and `REGISTRY_PASSWORD`, or the keys for AWS or Google Cloud that Modal's
        /// documentation lists.
        pub(super) registry_secret: Option<String> = filled().kind("name").optional().unset("none"),
        /// The network of sandboxes: `open` (the internet) or `none`.
        pub(super) no_network as "network": bool = word(&NETWORKS).default(false),
        /// The user that runs all scripts.
        pub(super) user: Option<String> = number_or_text()
            .kind("name or number, also `user:group`")
            .optional()
            .unset("the image's `USER`"),
        /// How long a sandbox may take to start, including waits that Modal requests.
        pub(super) start_timeout as "start_timeout_sec": Duration = start_timeout(),
        /// After this time Modal ends a sandbox in any case. At most a day.
        pub(super) lifetime as "lifetime_sec": Option<Duration> = lifetime(),
        /// How long a trial continues while the connection to its sandbox is lost. A sandbox without a connection ends
        /// itself after this time.
        pub(super) grace as "grace_sec": Duration = grace(),
        /// The price of a core for an hour, in US dollars. The default is the price of October 2026.
        pub(super) cpu_hour: f64 = number(0.0..=1e6).default(CPU_HOUR),
        /// The price of a GiB of memory for an hour, in US dollars. The default is the price of October 2026.
        pub(super) gib_hour: f64 = number(0.0..=1e6).default(GIB_HOUR),
    }
}

/// The settings of the sandboxes of a job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings(ModalKeys);

impl Deref for Settings {
    type Target = ModalKeys;

    fn deref(&self) -> &ModalKeys {
        &self.0
    }
}

impl Settings {
    /// The settings to look into a place in an account.
    pub(super) fn of_place(place: &Map<String, Value>) -> Self {
        let read = |map: &Map<String, Value>| read_json::<ModalKeys>("provider_config", map);
        Self(read(place).or_else(|_| read(&Map::new())).expect("the defaults are valid"))
    }

    /// Reads the settings; an error lists all invalid ones.
    pub(crate) fn read(config: &EnvironmentConfig) -> Result<Self, String> {
        read_json::<ModalKeys>("provider_config", &config.provider_config).map(Self)
    }

    pub(super) fn times(&self) -> CloudTimes {
        CloudTimes { start_timeout: self.start_timeout, lifetime: self.lifetime, grace: self.grace }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Result<Settings, String> {
        read_json::<ModalKeys>("provider_config", value.as_object().unwrap()).map(Settings)
    }

    #[test]
    fn every_setting_is_read() {
        let settings = read(&json!({
            "app": "a", "environment": "e", "regions": ["us-east"], "cloud": "aws", "runtime": "vm",
            "registry_secret": "s", "network": "none", "user": 1000, "start_timeout_sec": 30,
            "lifetime_sec": 60, "grace_sec": 5, "cpu_hour": 1, "gib_hour": 0.5,
        }))
        .unwrap();
        assert_eq!(settings.runtime.map(Runtime::as_str), Some("vm"));
        assert_eq!((settings.app.as_str(), settings.no_network), ("a", true));
        assert_eq!(settings.user.as_deref(), Some("1000"));
        assert_eq!(settings.times().grace, Duration::from_secs(5));
    }

    #[test]
    fn invalid_settings_are_reported() {
        let error = read(&json!({"runtime": "docker", "cpu_hour": -1, "zone": "a"})).unwrap_err();
        for part in ["`provider_config.runtime` cannot be `docker`", "cpu_hour", "unknown key `zone`"] {
            assert!(error.contains(part), "{part:?} is not in {error}");
        }
    }

    #[test]
    fn the_default_prices_are_those_of_the_list() {
        let settings = Settings::of_place(&Map::new());
        assert!((settings.cpu_hour / 3600.0 - 0.000_039_42).abs() < 1e-12);
        assert!((settings.gib_hour / 3600.0 - 0.000_006_67).abs() < 1e-12);
    }

    #[test]
    fn the_table_in_docs_matches_the_schema() {
        use rollout_settings::Settings as _;
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/clouds.md");
        rollout_settings::docs::check_table(&page, "modal", ModalKeys::keys()).unwrap();
    }
}
