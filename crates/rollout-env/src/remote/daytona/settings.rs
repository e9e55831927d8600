//! The daytona part of `provider_config`.

use std::{ops::Deref, time::Duration};

use rollout_core::quantity::{Bytes, Cpus};
use rollout_settings::{
    forms::{bytes, cpus, filled, number, number_or_text, word},
    read_json,
};
use serde_json::{Map, Value as Json};

use super::super::{CloudTimes, SandboxSize, Wanted, settings};
use crate::config::EnvironmentConfig;

/// A gibibyte.
const GIB: u64 = 1 << 30;

/// What a sandbox has if a task names no limit: CPUs, GiB of memory and GiB of disk.
const USUAL: [u64; 3] = [1, 2, 5];

/// How sandboxes are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxNetwork {
    Open,
    None,
}

const NETWORKS: [(&str, SandboxNetwork); 2] =
    [("open", SandboxNetwork::Open), ("none", SandboxNetwork::None)];

rollout_settings::settings! {
    /// The daytona part of `provider_config`.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct DaytonaKeys {
        /// The region of the sandboxes, such as `us` or `eu`.
        pub(super) target: Option<String> = filled().kind("name").optional()
            .unset("`DAYTONA_TARGET`, otherwise the organization's"),
        /// The network of sandboxes: `open` (the internet) or `none`.
        pub(super) network: SandboxNetwork = word(&NETWORKS).default(SandboxNetwork::Open),
        /// The user that runs all scripts.
        pub(super) user: Option<String> = number_or_text()
            .kind("name or number, also `user:group`")
            .optional()
            .unset("the image's `USER`"),
        /// The most CPUs of one sandbox that your organization allows.
        pub(super) max_cpus: Cpus = cpus().default(Cpus { millis: 4000 }),
        /// The most memory of one sandbox that your organization allows.
        pub(super) max_memory: Bytes = bytes().default(Bytes(8 * GIB)),
        /// The most disk space of one sandbox that your organization allows.
        pub(super) max_storage: Bytes = bytes().default(Bytes(10 * GIB)),
        /// How long a sandbox may take to start, including waits that Daytona requests.
        pub(super) start_timeout as "start_timeout_sec": Duration = settings::start_timeout(),
        /// After this time Daytona deletes a sandbox in any case. It is rounded up to minutes.
        pub(super) lifetime as "lifetime_sec": Option<Duration> = settings::lifetime(),
        /// How long a trial continues while the connection to its sandbox is lost. After this time, the guest ends itself.
        pub(super) grace as "grace_sec": Duration = settings::grace(),
        /// The price of a CPU for an hour, in US dollars.
        pub(super) cpu_hour: f64 = number(0.0..=1e6).default(0.0504),
        /// The price of a GiB of memory for an hour, in US dollars.
        pub(super) gib_hour: f64 = number(0.0..=1e6).default(0.0162),
        /// The price of a GiB of disk for an hour, in US dollars. The first five GiB of a sandbox are free.
        pub(super) disk_gib_hour: f64 = number(0.0..=1e6).default(0.000_108),
    }
}

/// The disk space of a sandbox that costs nothing, in MiB.
const FREE_DISK_MIB: u64 = 5 << 10;

/// The settings of the sandboxes of a job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings(DaytonaKeys);

impl Deref for Settings {
    type Target = DaytonaKeys;

    fn deref(&self) -> &DaytonaKeys {
        &self.0
    }
}

impl Settings {
    /// The settings of a job without `provider_config`.
    pub(super) fn usual() -> Self {
        Self::read_map(&Map::new()).expect("no setting is required")
    }

    /// Reads the settings; an error lists all invalid ones.
    pub(crate) fn read(config: &EnvironmentConfig) -> Result<Self, String> {
        Self::read_map(&config.provider_config)
    }

    fn read_map(map: &Map<String, Json>) -> Result<Self, String> {
        read_json::<DaytonaKeys>("provider_config", map).map(Self)
    }

    pub(super) fn times(&self) -> CloudTimes {
        CloudTimes { start_timeout: self.start_timeout, lifetime: self.lifetime, grace: self.grace }
    }

    /// Rounds up to whole CPUs and gibibytes.
    pub(super) fn size(&self, wanted: Wanted) -> Result<SandboxSize, String> {
        if wanted.gpus > 0 {
            return Err("sandboxes with GPUs are not supported on daytona".to_owned());
        }
        let cpu = wanted.cpus.map_or(USUAL[0], |cpus| cpus.millis.div_ceil(1000).max(1));
        let gib = |amount: Option<Bytes>, usual: u64| amount.map_or(usual, |it| it.0.div_ceil(GIB).max(1));
        let (memory, disk) = (gib(wanted.memory, USUAL[1]), gib(wanted.storage, USUAL[2]));
        for (what, unit, needed, most, setting) in [
            ("CPUs", "", cpu, self.max_cpus.millis / 1000, "max_cpus"),
            ("memory", " GiB", memory, self.max_memory.0 / GIB, "max_memory"),
            ("storage", " GiB", disk, self.max_storage.0 / GIB, "max_storage"),
        ] {
            if needed > most {
                return Err(format!(
                    "{needed}{unit} of {what} are needed, but a sandbox has at most {most}{unit}; if your \
                     organization allows more, set `provider_config.{setting}`",
                ));
            }
        }
        Ok(SandboxSize { cpu_millis: cpu * 1000, memory_mib: memory << 10, storage_mib: Some(disk << 10) })
    }

    /// The price of a sandbox, in US dollars per second.
    pub(super) fn price(&self, size: SandboxSize) -> f64 {
        let gib = |mib: u64| mib as f64 / 1024.0;
        let disk = gib(size.storage_mib.unwrap_or_default().saturating_sub(FREE_DISK_MIB));
        let hour = size.cpu_millis as f64 / 1000.0 * self.cpu_hour
            + gib(size.memory_mib) * self.gib_hour
            + disk * self.disk_gib_hour;
        hour / 3600.0
    }
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
            "target": "eu", "network": "none", "user": 1000, "max_cpus": 8, "max_memory": "16Gi",
            "max_storage": "20Gi", "start_timeout_sec": 30, "lifetime_sec": 60, "grace_sec": 5, "cpu_hour": 1,
            "gib_hour": 2, "disk_gib_hour": 3,
        }))
        .unwrap();
        assert_eq!((settings.target.as_deref(), settings.network), (Some("eu"), SandboxNetwork::None));
        assert_eq!(settings.user.as_deref(), Some("1000"));
        assert_eq!(settings.times().lifetime, Some(Duration::from_secs(60)));
        assert_eq!(settings.max_memory, Bytes(16 * GIB));
    }

    #[test]
    fn invalid_settings_are_reported() {
        assert!(read(&json!({"region": "us"})).unwrap_err().contains("unknown key `region`"));
        assert!(read(&json!({"network": "host"})).unwrap_err().contains("network"));
    }

    #[test]
    fn sizes_are_rounded_up() {
        let size = |cpus, memory, storage| {
            let wanted = Wanted { cpus: Some(Cpus { millis: cpus }), memory, storage, gpus: 0 };
            Settings::usual().size(wanted).map(|size| (size.cpu_millis, size.memory_mib, size.storage_mib))
        };
        let gib = |count| Some(Bytes(count * GIB));
        assert_eq!(size(1, Some(Bytes(1)), Some(Bytes(1))), Ok((1000, 1024, Some(1024))));
        assert_eq!(size(2500, Some(Bytes(GIB + 1)), gib(10)), Ok((3000, 2048, Some(10 << 10))));
        let none = Settings::usual().size(Wanted::default()).unwrap();
        assert_eq!((none.cpu_millis, none.memory_mib, none.storage_mib), (1000, 2048, Some(5 << 10)));
    }

    #[test]
    fn a_size_that_cannot_be_had_is_explained() {
        let of = |wanted| Settings::usual().size(wanted).unwrap_err();
        let memory = of(Wanted { memory: Some(Bytes(9 * GIB)), ..Wanted::default() });
        assert!(memory.contains("9 GiB of memory") && memory.contains("max_memory"), "{memory}");
        assert!(of(Wanted { gpus: 1, ..Wanted::default() }).contains("GPUs"));
    }

    #[test]
    fn the_price_is_that_of_the_size() {
        let size = SandboxSize { cpu_millis: 2000, memory_mib: 4096, storage_mib: Some(10 << 10) };
        let second = Settings::usual().price(size);
        let expected = 2.0 * 0.000_014 + 4.0 * 0.000_004_5 + 5.0 * 0.000_000_03;
        assert!((second - expected).abs() < 1e-12, "{second}");
    }

    #[test]
    fn the_table_in_docs_matches_the_schema() {
        use rollout_settings::Settings as _;
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/clouds.md");
        rollout_settings::docs::check_table(&page, "daytona", DaytonaKeys::keys()).unwrap();
    }
}
