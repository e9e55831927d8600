//! The docker part of `provider_config`.

use std::str::FromStr as _;

use bollard::models::{DeviceRequest, Mount, MountType};
use serde_json::{Map, Value};

use crate::config::EnvironmentConfig;

/// Processes in one environment. Far above what tasks need, and low enough to stop a fork bomb.
const DEFAULT_PIDS: i64 = 4096;

const KNOWN: &str = "network, runtime, platform, extra_hosts, mounts, gpus, dns, user, pids and builder";

/// Which of an engine's builders makes images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Builder {
    /// The one that runs each instruction in a container.
    Classic,
    /// BuildKit.
    BuildKit,
}

/// How containers are made, as the job says.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Settings {
    pub(super) network: Option<String>,
    pub(super) runtime: Option<String>,
    pub(super) platform: Option<String>,
    /// In the form `name:address`.
    pub(super) extra_hosts: Vec<String>,
    pub(super) mounts: Vec<Mount>,
    pub(super) gpus: Option<DeviceRequest>,
    pub(super) dns: Vec<String>,
    pub(super) user: Option<String>,
    pub(super) pids: i64,
    /// None: by what the engine can do.
    pub(super) builder: Option<Builder>,
    /// The job itself asks for storage, and should know what comes of it.
    pub(super) wants_storage: bool,
}

impl Settings {
    /// Reads the settings; an error tells of all that are wrong.
    pub(in super::super) fn read(config: &EnvironmentConfig) -> Result<Self, String> {
        Self::read_map(&config.provider_config, config.override_storage.is_some())
    }

    fn read_map(map: &Map<String, Value>, wants_storage: bool) -> Result<Self, String> {
        let mut settings = Self {
            network: None,
            runtime: None,
            platform: None,
            extra_hosts: Vec::new(),
            mounts: Vec::new(),
            gpus: None,
            dns: Vec::new(),
            user: None,
            pids: DEFAULT_PIDS,
            builder: None,
            wants_storage,
        };
        let wrong: Vec<String> =
            map.iter().filter_map(|(key, value)| settings.set(key, value).err()).collect();
        match &wrong[..] {
            [] => Ok(settings),
            [only] => Err(only.clone()),
            several => Err(format!("{} settings are wrong\n  {}", several.len(), several.join("\n  "))),
        }
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), String> {
        match key {
            "network" => self.network = Some(text(key, value)?),
            "runtime" => self.runtime = Some(text(key, value)?),
            "platform" => self.platform = Some(platform(value)?),
            "extra_hosts" => self.extra_hosts = extra_hosts(value)?,
            "mounts" => self.mounts = mounts(value)?,
            "gpus" => self.gpus = Some(gpus(value)?),
            "dns" => self.dns = texts(key, value)?,
            "user" => self.user = Some(user(value)?),
            "pids" => {
                self.pids = value
                    .as_i64()
                    .filter(|pids| *pids > 0)
                    .ok_or_else(|| format!("pids is {value}; expected a whole number above 0"))?;
            }
            "builder" => {
                self.builder = Some(match value.as_str() {
                    Some("classic") => Builder::Classic,
                    Some("buildkit") => Builder::BuildKit,
                    _ => return Err(format!("builder is {value}; there are classic and buildkit")),
                });
            }
            "images" => {
                return Err("images is for `type: native`; docker takes the image that FROM names".to_owned());
            }
            _ => return Err(format!("unknown key {key:?}; the docker environment knows {KNOWN}")),
        }
        Ok(())
    }

    /// The network, for people and for the record.
    pub(super) fn network_name(&self) -> &str {
        self.network.as_deref().unwrap_or("bridge")
    }
}

fn text(key: &str, value: &Value) -> Result<String, String> {
    value
        .as_str()
        .filter(|text| !text.trim().is_empty())
        .map(str::to_owned)
        .ok_or_else(|| format!("{key} is {value}; expected a name"))
}

fn texts(key: &str, value: &Value) -> Result<Vec<String>, String> {
    let list = value.as_array().ok_or_else(|| format!("{key} is {value}; expected a list of texts"))?;
    list.iter().map(|entry| text(key, entry)).collect()
}

/// A user by name or by number, which YAML reads as a number.
fn user(value: &Value) -> Result<String, String> {
    match value.as_u64() {
        Some(number) => Ok(number.to_string()),
        None => text("user", value),
    }
}

fn platform(value: &Value) -> Result<String, String> {
    text("platform", value)?
        .split_once('/')
        .filter(|(os, arch)| !os.is_empty() && !arch.is_empty())
        .map(|(os, arch)| format!("{os}/{arch}"))
        .ok_or_else(|| format!("platform is {value}; expected a text such as \"linux/amd64\""))
}

fn extra_hosts(value: &Value) -> Result<Vec<String>, String> {
    let wrong =
        || format!("extra_hosts is {value}; expected {{name: address}} or a list of \"name:address\"");
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(name, address)| Ok(format!("{name}:{}", address.as_str().ok_or_else(wrong)?)))
            .collect(),
        Value::Array(_) => {
            let hosts = texts("extra_hosts", value)?;
            if hosts.iter().all(|host| host.contains(':')) { Ok(hosts) } else { Err(wrong()) }
        }
        _ => Err(wrong()),
    }
}

fn gpus(value: &Value) -> Result<DeviceRequest, String> {
    let (count, ids) = match value {
        Value::String(all) if all == "all" => (Some(-1), None),
        Value::Number(number) if number.as_i64().is_some_and(|count| count > 0) => (number.as_i64(), None),
        Value::Array(ids) if !ids.is_empty() => {
            // Identifiers that are numbers need not be quoted.
            let id = |id: &Value| id.as_u64().map_or_else(|| text("gpus", id), |id| Ok(id.to_string()));
            (None, Some(ids.iter().map(id).collect::<Result<_, _>>()?))
        }
        _ => return Err(format!("gpus is {value}; expected all, a number, or a list of identifiers")),
    };
    let capabilities = Some(vec![vec!["gpu".to_owned()]]);
    Ok(DeviceRequest { count, device_ids: ids, capabilities, ..DeviceRequest::default() })
}

fn mounts(value: &Value) -> Result<Vec<Mount>, String> {
    let list = value.as_array().ok_or_else(|| {
        format!("mounts is {value}; expected a list such as [{{type: bind, source: /data, target: /data}}]")
    })?;
    list.iter().map(mount).collect()
}

fn mount(value: &Value) -> Result<Mount, String> {
    let map = value
        .as_object()
        .ok_or_else(|| format!("mounts has {value}; expected {{type, source, target, read_only}}"))?;
    let mut mount = Mount::default();
    for (key, field) in map {
        match key.as_str() {
            "type" => {
                let kind = field.as_str().filter(|kind| ["bind", "volume", "tmpfs"].contains(kind));
                mount.typ = kind.and_then(|kind| MountType::from_str(kind).ok());
                if mount.typ.is_none() {
                    return Err(format!("a mount's type is {field}; there are bind, volume and tmpfs"));
                }
            }
            "source" => mount.source = Some(text("a mount's source", field)?),
            "target" => mount.target = Some(text("a mount's target", field)?),
            "read_only" => {
                let flag = field.as_bool();
                mount.read_only = Some(
                    flag.ok_or_else(|| format!("a mount's read_only is {field}; expected true or false"))?,
                );
            }
            _ => {
                return Err(format!(
                    "a mount has the unknown key {key:?}; it knows type, source, target and read_only"
                ));
            }
        }
    }
    let typ = *mount.typ.get_or_insert(MountType::BIND);
    let target = mount.target.as_deref().unwrap_or_default();
    if !target.starts_with('/') {
        return Err(format!("a mount's target is {target:?}; expected an absolute path inside"));
    }
    let source = mount.source.as_deref().unwrap_or_default();
    match typ {
        MountType::BIND if !source.starts_with('/') => {
            Err(format!("the source of the mount on {target} is {source:?}; expected an absolute path"))
        }
        MountType::TMPFS if !source.is_empty() => {
            Err(format!("the mount on {target} is a tmpfs, which has no source"))
        }
        _ => Ok(mount),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Settings, String> {
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
        assert_eq!(settings.gpus.unwrap().device_ids.unwrap(), ["0", "GPU-1"]);
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
        let count = |value: Value| read(json!({"gpus": value})).map(|settings| settings.gpus.unwrap().count);
        assert_eq!(count(json!("all")), Ok(Some(-1)));
        assert_eq!(count(json!(2)), Ok(Some(2)));
        assert!(count(json!(0)).is_err());
        assert!(count(json!("some")).is_err());
    }

    #[test]
    fn wrong_settings_are_named() {
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
        insta::assert_snapshot!(errors.join("\n"), @r#"
        unknown key "netwrok"; the docker environment knows network, runtime, platform, extra_hosts, mounts, gpus, dns, user, pids and builder
        images is for `type: native`; docker takes the image that FROM names
        pids is 0; expected a whole number above 0
        2 settings are wrong
          dns is "1.1.1.1"; expected a list of texts
          gpus is 0; expected all, a number, or a list of identifiers
        platform is "arm64"; expected a text such as "linux/amd64"
        builder is "kaniko"; there are classic and buildkit
        extra_hosts is ["db"]; expected {name: address} or a list of "name:address"
        the source of the mount on /data is "data"; expected an absolute path
        a mount's type is "nfs"; there are bind, volume and tmpfs
        a mount's target is ""; expected an absolute path inside
        a mount has the unknown key "readonly"; it knows type, source, target and read_only
        "#);
    }
}
