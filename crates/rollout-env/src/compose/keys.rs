//! The keys of a compose file: those that are read, and those that do not change what containers do.

/// Keys of the file.
pub(super) const FILE: Keys =
    Keys { read: &["services", "networks", "volumes", "configs", "secrets"], ignored: &["version", "name"] };

/// Keys of a service.
pub(super) const SERVICE: Keys = Keys {
    read: &[
        "build",
        "cap_add",
        "cap_drop",
        "command",
        "configs",
        "cpus",
        "depends_on",
        "deploy",
        "dns",
        "entrypoint",
        "env_file",
        "environment",
        "extra_hosts",
        "group_add",
        "healthcheck",
        "hostname",
        "image",
        "mem_limit",
        "network_mode",
        "networks",
        "pids_limit",
        "platform",
        "privileged",
        "profiles",
        "read_only",
        "restart",
        "secrets",
        "security_opt",
        "shm_size",
        "stdin_open",
        "sysctls",
        "tmpfs",
        "tty",
        "ulimits",
        "user",
        "volumes",
        "working_dir",
    ],
    ignored: &[
        "annotations",
        "attach",
        // Names of containers are ours, so that they do not clash.
        "container_name",
        "develop",
        "expose",
        // The first process of every container reaps others.
        "init",
        "labels",
        "logging",
        "mem_reservation",
        "oom_score_adj",
        // No port of the host is opened; services reach each other without.
        "ports",
        "pull_policy",
        "stop_grace_period",
        "stop_signal",
    ],
};

/// Keys of `build`.
pub(super) const BUILD: Keys = Keys {
    read: &["args", "context", "dockerfile", "dockerfile_inline", "target"],
    ignored: &["cache_from", "cache_to", "labels", "no_cache", "pull", "tags"],
};

/// Keys of `healthcheck`.
pub(super) const HEALTHCHECK: Keys = Keys {
    read: &["disable", "interval", "retries", "start_period", "test", "timeout"],
    ignored: &["start_interval"],
};

/// Keys of an entry of `networks` in the file.
pub(super) const NETWORK: Keys = Keys {
    read: &["driver", "external", "internal"],
    ignored: &["attachable", "driver_opts", "enable_ipv4", "enable_ipv6", "ipam", "labels", "name"],
};

/// Keys of an entry of `networks` in a service.
pub(super) const ENDPOINT: Keys =
    Keys { read: &["aliases"], ignored: &["gw_priority", "interface_name", "mac_address", "priority"] };

/// Keys of an entry of `volumes` in the file.
pub(super) const VOLUME: Keys = Keys { read: &["driver", "external"], ignored: &["labels", "name"] };

/// Keys of an entry of `configs` or `secrets` in the file.
pub(super) const FILE_SOURCE: Keys = Keys { read: &["file"], ignored: &["labels", "name"] };

/// Keys of an entry of `configs` or `secrets` in a service. Owners and modes are those of the file, as in Docker.
pub(super) const FILE_TARGET: Keys = Keys { read: &["source", "target"], ignored: &["gid", "mode", "uid"] };

/// Keys of an entry of `volumes` in a service.
pub(super) const MOUNT: Keys = Keys {
    read: &["read_only", "source", "target", "tmpfs", "type"],
    ignored: &["bind", "consistency", "volume"],
};

/// Keys of an entry of `depends_on`.
pub(super) const DEPENDENCY: Keys = Keys { read: &["condition", "required"], ignored: &["restart"] };

/// Keys of an entry of `env_file`.
pub(super) const ENV_FILE: Keys = Keys { read: &["path", "required"], ignored: &[] };

/// Keys of `deploy`.
pub(super) const DEPLOY: Keys =
    Keys { read: &["replicas", "resources"], ignored: &["labels", "restart_policy", "update_config"] };

/// Keys of `deploy.resources`.
pub(super) const RESOURCES: Keys = Keys { read: &["limits", "reservations"], ignored: &[] };

/// Keys of `deploy.resources.limits`.
pub(super) const LIMITS: Keys = Keys { read: &["cpus", "memory", "pids"], ignored: &[] };

/// Keys of `deploy.resources.reservations`. What is reserved there is a wish, except for devices.
pub(super) const RESERVATIONS: Keys = Keys { read: &[], ignored: &["cpus", "memory"] };

/// The keys of a mapping.
pub(super) struct Keys {
    /// Keys that are read.
    pub(super) read: &'static [&'static str],
    /// Keys that are allowed and have no effect here.
    pub(super) ignored: &'static [&'static str],
}

impl Keys {
    /// Whether a key is allowed. Extensions are.
    pub(super) fn allows(&self, key: &str) -> bool {
        key.starts_with("x-") || self.read.contains(&key) || self.ignored.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn the_table_in_docs_has_exactly_the_keys_of_a_service() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tasks.md");
        let text = fs::read_to_string(page).unwrap();
        let table = text.split("| key of a service |").nth(1).unwrap().split("\n\n").next().unwrap();
        let named = |table: &str| -> BTreeSet<String> {
            let cells = table.lines().skip(2).filter_map(|line| line.split(" | ").next());
            // What is inside parentheses are the keys of `build`.
            let cells = cells.map(|cell| cell.split('(').next().unwrap_or_default().to_owned());
            let quoted = |cell: String| {
                let keys = cell.split('`').skip(1).step_by(2);
                // As `deploy.resources.limits` and `network_mode: none`.
                keys.map(|key| key.split(['.', ':']).next().unwrap_or_default().to_owned())
                    .collect::<Vec<_>>()
            };
            cells.flat_map(quoted).collect()
        };
        // Words of the first column that are a key elsewhere, or a value.
        let others = ["aliases", "SYS_ADMIN"];
        let found: BTreeSet<String> =
            named(table).into_iter().filter(|key| !others.contains(&key.as_str())).collect();
        let expected: BTreeSet<String> =
            SERVICE.read.iter().chain(SERVICE.ignored).map(|key| (*key).to_owned()).collect();
        assert_eq!(found, expected, "change the table in docs/tasks.md");
        for key in BUILD.read {
            assert!(table.contains(&format!("`{key}`")), "`build.{key}` is missing in docs/tasks.md");
        }
    }
}
