//! The docker part of `provider_config`.

use std::ops::Deref;

use bollard::models::{DeviceRequest, Mount, MountType};
use serde_json::{Map, Value as Json, json};

use rollout_settings::{
    Form, Section, Settings as _, Value,
    declare::entry,
    diagnostic::quoted,
    forms::{filled, flag, list, number_or_text, texts, whole, word},
    read_json,
    section::scalar_text,
};

use crate::config::EnvironmentConfig;

/// The engine's builder for images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Builder {
    /// The classic builder, which runs each instruction in a container.
    Classic,
    /// BuildKit.
    BuildKit,
}

/// A hundred years.
const MAX_PRUNE_AFTER_SEC: u64 = 100 * 366 * 24 * 3600;

const BUILDERS: [(&str, Builder); 2] = [("classic", Builder::Classic), ("buildkit", Builder::BuildKit)];

rollout_settings::settings! {
    /// The docker part of `provider_config`.
    #[derive(Debug, Clone, PartialEq)]
    pub(in super::super) struct DockerKeys {
        /// An existing network, or `none`, `host`, `bridge`, `container:<name>`. It is not created.
        pub(super) network: Option<String> = filled().kind("name").optional().unset("the engine's `bridge`"),
        /// A runtime of the engine, such as `runsc`.
        pub(super) runtime: Option<String> = filled().kind("name").optional().unset("the engine's"),
        /// The platform of images, for pulls and builds.
        pub(super) platform: Option<String> = filled()
            .kind("`os/arch`")
            .check(|platform, section, key| check_platform(platform, section, key))
            .optional()
            .unset("the engine's"),
        /// Lines for `/etc/hosts`.
        pub(super) extra_hosts: Vec<String> = extra_hosts(),
        /// Name servers.
        pub(super) dns: Vec<String> = texts().kind("list of addresses").unset("the engine's"),
        /// Files and directories from outside. The source of a bind is an absolute path on the engine's
        /// machine, and must exist.
        ///
        /// `type` is `bind` (the default), `volume` or `tmpfs`.
        pub(super) mounts: Vec<Mount> = list(entry::<MountKeys>, |section, key| {
            Some(section.sections::<MountKeys>(key).iter().filter_map(mount).collect())
        })
        .kind("list of `{type, source, target, read_only}`"),
        /// The GPUs of containers. Needs the NVIDIA Container Toolkit on the engine's machine.
        pub(super) gpus: Option<DeviceRequest> = gpus().optional(),
        /// The user that runs all scripts.
        pub(super) user: Option<String> = number_or_text()
            .kind("name or number, also `user:group`")
            .check(|user, section, key| refuse_blank(user, section, key))
            .optional()
            .unset("the image's `USER`"),
        /// The maximum number of processes and threads in one container.
        ///
        /// Far more than tasks need, but few enough to stop a fork bomb.
        pub(super) pids: u64 = whole(1..=i64::MAX.unsigned_abs()).default(4096),
        /// Allows services of compose files that are privileged, or that add a capability such as `SYS_ADMIN`.
        ///
        /// Such a container can take over the engine's machine.
        pub(super) allow_privileged: bool = flag(false),
        /// The engine's builder for images.
        pub(super) builder: Option<Builder> = word(&BUILDERS).optional().unset("BuildKit where the engine has it"),
        /// Lets `environment.free_disk` also remove the parts of BuildKit's cache that no build used for this many
        /// seconds.
        ///
        /// The engine does not record which program filled its cache, so the cache of other programs is removed too.
        pub(super) prune_build_cache_after_sec: Option<u64> =
            whole(0..=MAX_PRUNE_AFTER_SEC).optional().unset("never"),
    }
}

rollout_settings::settings! {
    /// A mount.
    struct MountKeys {
        /// The kind of mount.
        kind as "type": MountType = word(&MOUNT_TYPES).default(MountType::BIND),
        /// The path or the volume.
        source: Option<String> = filled().optional(),
        /// The path inside.
        target: String = filled().required("write an absolute path inside"),
        /// Whether the mount is read-only.
        read_only: bool = flag(false),
    }
}

const MOUNT_TYPES: [(&str, MountType); 3] =
    [("bind", MountType::BIND), ("volume", MountType::VOLUME), ("tmpfs", MountType::TMPFS)];

/// The settings of the containers of a job.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Settings {
    keys: DockerKeys,
    /// Whether the job itself sets a storage limit, so that a note reports whether it is enforced.
    pub(super) wants_storage: bool,
    /// The free space to keep on the engine's disk, in bytes.
    pub(super) free_disk: Option<u64>,
}

impl Deref for Settings {
    type Target = DockerKeys;

    fn deref(&self) -> &DockerKeys {
        &self.keys
    }
}

#[cfg(any(feature = "fly", feature = "kubernetes"))]
impl Settings {
    /// The settings for builds, with a network.
    pub(super) fn for_builds(network: Option<String>) -> Self {
        let keys = DockerKeys { network, ..DockerKeys::defaults().expect("no key is required") };
        Self { keys, wants_storage: false, free_disk: None }
    }
}

impl Settings {
    /// Reads the settings; an error lists all invalid ones.
    pub(in super::super) fn read(config: &EnvironmentConfig) -> Result<Self, String> {
        let settings = Self::read_map(&config.provider_config, config.override_storage.is_some())?;
        Ok(Self { free_disk: config.free_bytes(), ..settings })
    }

    fn read_map(map: &Map<String, Json>, wants_storage: bool) -> Result<Self, String> {
        if map.contains_key("images") {
            return Err("images is only supported by `type: native`; docker uses the image that FROM names"
                .to_owned());
        }
        Ok(Self { keys: read_json::<DockerKeys>("provider_config", map)?, wants_storage, free_disk: None })
    }

    /// The network, for messages and records.
    pub(super) fn network_name(&self) -> &str {
        self.network.as_deref().unwrap_or("bridge")
    }
}

fn refuse_blank(text: &str, section: &Section<'_>, key: &str) {
    if text.trim().is_empty() {
        section.invalid(key, format!("`{}` must not be empty", section.at(key)));
    }
}

fn check_platform(platform: &str, section: &Section<'_>, key: &str) {
    let parts = platform.split_once('/');
    if !parts.is_some_and(|(os, arch)| !os.is_empty() && !arch.is_empty()) {
        let message = format!("`{}` cannot be {}", section.at(key), quoted(platform));
        section.invalid_with_hint(key, message, "write it as `linux/amd64`");
    }
}

fn extra_hosts() -> Form<Vec<String>> {
    let schema = || json!({ "type": ["object", "array"] });
    Form::written("mapping of name to address, or list of `name:address`", schema, |section, key| {
        let hosts = match &section.node(key)?.value {
            Value::Map(_) => {
                let hosts = section.mapping(key)?;
                let host = |name: &str| Some(format!("{name}:{}", hosts.filled_string(name)?));
                hosts.entries.iter().filter_map(|entry| host(&entry.key)).collect()
            }
            _ => section.strings(key)?,
        };
        if let Some(host) = hosts.iter().find(|host| !host.contains(':')) {
            let message = format!("`{}` cannot have {}", section.at(key), quoted(host));
            section.invalid_with_hint(key, message, "write `{name: address}`, or a list of `name:address`");
        }
        Some(hosts)
    })
    .or_empty()
}

fn gpus() -> Form<DeviceRequest> {
    let kind = "`all`, a number, or a list of identifiers";
    Form::written(
        kind,
        || json!({ "type": ["string", "integer", "array"] }),
        move |section, key| {
            let (count, device_ids) = match &section.node(key)?.value {
                Value::String(all) if all == "all" => (Some(-1), None),
                Value::Int(count) if *count > 0 => (i64::try_from(*count).ok(), None),
                Value::List(ids) if !ids.is_empty() => {
                    // Numeric identifiers need not be quoted.
                    let ids = ids.iter().map(|id| scalar_text(section.reader.sources, id));
                    (None, Some(ids.collect::<Option<Vec<_>>>()?))
                }
                _ => {
                    section.invalid(key, format!("`{}` must be {kind}", section.at(key)));
                    return None;
                }
            };
            let capabilities = Some(vec![vec!["gpu".to_owned()]]);
            Some(DeviceRequest { count, device_ids, capabilities, ..DeviceRequest::default() })
        },
    )
}

/// A number of GPUs, whichever they are.
pub(super) fn some_gpus(count: u64) -> DeviceRequest {
    DeviceRequest {
        count: Some(i64::try_from(count).unwrap_or(i64::MAX)),
        capabilities: Some(vec![vec!["gpu".to_owned()]]),
        ..DeviceRequest::default()
    }
}

fn mount(section: &Section<'_>) -> Option<Mount> {
    let MountKeys { kind, source, target, read_only } = MountKeys::read(section)?;
    let absolute = |key: &str, path: &str| {
        if !path.starts_with('/') {
            let message = format!("`{}` is {}; expected an absolute path", section.at(key), quoted(path));
            section.invalid(key, message);
        }
    };
    absolute("target", &target);
    match kind {
        MountType::BIND => absolute("source", source.as_deref().unwrap_or_default()),
        MountType::TMPFS if source.is_some() => {
            section.invalid(
                "source",
                format!("`{}` is not allowed: a tmpfs has no source", section.at("source")),
            );
        }
        _ => {}
    }
    let read_only = section.node("read_only").map(|_| read_only);
    Some(Mount { typ: Some(kind), source, target: Some(target), read_only, ..Mount::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Json) -> Result<Settings, String> {
        Settings::read_map(value.as_object().unwrap(), false)
    }

    #[test]
    fn every_setting_is_read() {
        let settings = read(json!({
            "network": "lab", "runtime": "runsc", "platform": "linux/arm64", "dns": ["1.1.1.1"], "user": 1000,
            "pids": 10, "builder": "classic", "extra_hosts": {"db": "10.0.0.1"}, "gpus": [0, "GPU-1"],
            "mounts": [
                {"type": "bind", "source": "/data", "target": "/data", "read_only": true},
                {"type": "tmpfs", "target": "/scratch"},
            ],
        }))
        .unwrap();
        assert_eq!(settings.network_name(), "lab");
        assert_eq!(settings.user.as_deref(), Some("1000"));
        assert_eq!(settings.extra_hosts, ["db:10.0.0.1"]);
        assert_eq!(settings.builder, Some(Builder::Classic));
        assert_eq!(settings.gpus.as_ref().unwrap().device_ids.as_deref().unwrap(), ["0", "GPU-1"]);
        assert_eq!(settings.mounts.len(), 2);
        assert_eq!(settings.mounts[0].read_only, Some(true));
    }

    #[test]
    fn without_settings_the_engine_decides() {
        let settings = read(json!({})).unwrap();
        assert_eq!((settings.network_name(), settings.pids), ("bridge", 4096));
        assert_eq!(settings.builder, None);
    }

    #[test]
    fn gpus_are_all_a_number_or_a_list() {
        let count =
            |value: Json| read(json!({"gpus": value})).map(|settings| settings.gpus.as_ref().unwrap().count);
        assert_eq!(count(json!("all")), Ok(Some(-1)));
        assert_eq!(count(json!(2)), Ok(Some(2)));
        assert!(count(json!(0)).is_err());
        assert!(count(json!("some")).is_err());
    }

    #[test]
    fn the_table_in_docs_matches_the_schema() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/docker.md");
        rollout_settings::docs::check_page(&page, &[("docker", DockerKeys::keys())]).unwrap();
    }

    #[test]
    fn invalid_settings_are_reported() {
        let errors: Vec<String> = [
            json!({"netwrok": "none"}),
            json!({"images": {"*": "host"}}),
            json!({"pids": 0}),
            json!({"dns": "1.1.1.1", "gpus": 0}),
            json!({"platform": "arm64"}),
            json!({"builder": "kaniko"}),
            json!({"extra_hosts": ["db"]}),
            json!({"mounts": [{"type": "bind", "source": "data", "target": "/data"}]}),
            json!({"mounts": [{"type": "nfs", "target": "/data"}]}),
            json!({"mounts": [{"source": "/data"}]}),
            json!({"mounts": [{"target": "/data", "readonly": true}]}),
        ]
        .into_iter()
        .map(|value| read(value).unwrap_err())
        .collect();
        insta::assert_snapshot!(errors.join("\n"), @"
        unknown key `netwrok` in `provider_config`; did you mean `network`? known keys in `provider_config`: `network`, `runtime`, `platform`, `extra_hosts`, `dns`, `mounts`, `gpus`, `user`, `pids`, `allow_privileged`, `builder`, `prune_build_cache_after_sec`
        images is only supported by `type: native`; docker uses the image that FROM names
        `provider_config.pids` must be at least 1, not 0
        2 settings are invalid
          `provider_config.dns` must be a list, not a string
          `provider_config.gpus` must be `all`, a number, or a list of identifiers
        `provider_config.platform` cannot be `arm64`; write it as `linux/amd64`
        `provider_config.builder` cannot be `kaniko`; it can be one of `classic`, `buildkit`
        `provider_config.extra_hosts` cannot have `db`; write `{name: address}`, or a list of `name:address`
        `provider_config.mounts.0.source` is `data`; expected an absolute path
        2 settings are invalid
          `provider_config.mounts.0.source` is ``; expected an absolute path
          `provider_config.mounts.0.type` cannot be `nfs`; it can be one of `bind`, `volume`, `tmpfs`
        `target` is missing in `provider_config.mounts.0`; write an absolute path inside
        2 settings are invalid
          `provider_config.mounts.0.source` is ``; expected an absolute path
          unknown key `readonly` in `provider_config.mounts.0`; did you mean `read_only`? known keys in `provider_config.mounts.0`: `type`, `source`, `target`, `read_only`
        ");
    }
}
