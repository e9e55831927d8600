//! The Fly part of `provider_config`.

use std::{ops::Deref, time::Duration};

use rollout_settings::{
    forms::{filled, number, number_or_text, word},
    read_json,
};
use serde_json::{Map, Value as Json};

use super::size::CpuKind;
use crate::{
    config::EnvironmentConfig,
    remote::settings::{CloudTimes, grace, lifetime, start_timeout},
};

const CPU_KINDS: [(&str, CpuKind); 2] = [("performance", CpuKind::Performance), ("shared", CpuKind::Shared)];

/// The network of all machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MachineNetwork {
    /// The internet.
    Open,
}

const NETWORKS: [(&str, MachineNetwork); 1] = [("open", MachineNetwork::Open)];

rollout_settings::settings! {
    /// The Fly part of `provider_config`.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct FlyKeys {
        /// The app that machines and images belong to. It is created, with a shared address, if it does not exist.
        pub(super) app: Option<String> = filled().kind("name").optional()
            .unset("`FLY_APP`, otherwise the first app of the organization whose name starts with `rollout-`, otherwise a new one"),
        /// The organization of the app.
        pub(super) org: Option<String> = filled().kind("slug").optional().unset("`FLY_ORG`, otherwise `personal`"),
        /// The region of the machines, such as `iad`.
        pub(super) region: Option<String> = filled().kind("name").optional()
            .unset("`FLY_REGION`, otherwise one near you"),
        /// The URL of the app, for example with your own domain.
        pub(super) url: Option<String> = filled().kind("URL").optional().unset("`https://<app>.fly.dev`"),
        /// The kind of CPUs: `performance` (whole CPUs) or `shared` (parts of a CPU, with short bursts).
        pub(super) cpu_kind: CpuKind = word(&CPU_KINDS).default(CpuKind::Performance),
        /// The network of machines. Only `open` is supported, because Fly cannot remove the network of a machine.
        pub(super) network: MachineNetwork = word(&NETWORKS).default(MachineNetwork::Open),
        /// The network of the Docker engine in which the commands of Dockerfiles run.
        pub(super) build_network: Option<String> = filled().kind("name").optional().unset("the engine's default"),
        /// The user that runs all scripts.
        pub(super) user: Option<String> = number_or_text()
            .kind("name or number, also `user:group`")
            .optional()
            .unset("the image's `USER`"),
        /// The maximum number of machines that are created per second. Fly allows one per app, after a few at once.
        pub(super) creations_per_second: f64 = number(0.01..=1000.0).default(1.0),
        /// How long a machine may take to start, including waits that Fly requests.
        pub(super) start_timeout as "start_timeout_sec": Duration = start_timeout(),
        /// After this time a machine ends itself in any case.
        pub(super) lifetime as "lifetime_sec": Option<Duration> = lifetime(),
        /// How long a trial continues while the connection to its machine is lost. A machine without a connection ends
        /// itself after this time.
        pub(super) grace as "grace_sec": Duration = grace(),
        /// The price of a shared CPU with 256 MiB for an hour, in US dollars.
        pub(super) shared_cpu_hour: f64 = number(0.0..=1e6).default(0.003042),
        /// The price of a performance CPU with 2 GiB for an hour, in US dollars.
        pub(super) performance_cpu_hour: f64 = number(0.0..=1e6).default(0.045833),
        /// The price of each further GiB of memory for an hour, in US dollars.
        pub(super) gib_hour: f64 = number(0.0..=1e6).default(0.008333),
    }
}

/// The settings of the machines of a job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings(FlyKeys);

impl Deref for Settings {
    type Target = FlyKeys;

    fn deref(&self) -> &FlyKeys {
        &self.0
    }
}

impl Settings {
    /// The settings to inspect a place in an account.
    pub(super) fn of_place(place: &Map<String, Json>) -> Self {
        Self::read_map(place).or_else(|_| Self::read_map(&Map::new())).expect("no key is required")
    }

    /// Reads the settings; an error lists all invalid ones.
    pub(crate) fn read(config: &EnvironmentConfig) -> Result<Self, String> {
        Self::read_map(&config.provider_config)
    }

    fn read_map(map: &Map<String, Json>) -> Result<Self, String> {
        let keys = read_json::<FlyKeys>("provider_config", map)?;
        if let Some(url) = &keys.url
            && !url.starts_with("https://")
            && !url.starts_with("http://")
        {
            return Err("`provider_config.url` must start with `https://`".to_owned());
        }
        if let Some(app) = keys.app.as_ref().filter(|app| !is_app_name(app)) {
            return Err(format!(
                "`provider_config.app` is {app:?}; names of apps have lower-case letters, digits and hyphens"
            ));
        }
        Ok(Self(keys))
    }

    /// The times of a machine.
    pub(super) fn times(&self) -> CloudTimes {
        CloudTimes { start_timeout: self.start_timeout, lifetime: self.lifetime, grace: self.grace }
    }
}

/// Whether a text can be the name of an app. It becomes a part of paths and host names.
pub(super) fn is_app_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Json) -> Result<Settings, String> {
        Settings::read_map(value.as_object().unwrap())
    }

    #[test]
    fn every_setting_is_read() {
        let settings = read(&json!({
            "app": "mine", "org": "team", "region": "fra", "url": "https://runs.example.com", "cpu_kind": "shared",
            "network": "open", "build_network": "host", "user": 1000, "creations_per_second": 5,
            "start_timeout_sec": 30, "lifetime_sec": 60, "grace_sec": 5, "shared_cpu_hour": 1,
            "performance_cpu_hour": 2, "gib_hour": 3,
        }))
        .unwrap();
        assert_eq!(settings.app.as_deref(), Some("mine"));
        assert_eq!(settings.user.as_deref(), Some("1000"));
        assert_eq!(settings.cpu_kind, CpuKind::Shared);
        assert_eq!(settings.times().lifetime, Some(Duration::from_secs(60)));
        assert_eq!(
            (settings.shared_cpu_hour, settings.performance_cpu_hour, settings.gib_hour),
            (1.0, 2.0, 3.0)
        );
    }

    #[test]
    fn names_and_addresses_are_checked() {
        for (settings, word) in [
            (json!({"app": "../other"}), "lower-case letters"),
            (json!({"url": "runs.example.com"}), "https://"),
            (json!({"network": "none"}), "network"),
            (json!({"cpus": 1}), "cpus"),
        ] {
            let error = read(&settings).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn the_table_in_docs_matches_the_schema() {
        use rollout_settings::Settings as _;
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/clouds.md");
        rollout_settings::docs::check_table(&page, "fly", FlyKeys::keys()).unwrap();
    }
}
