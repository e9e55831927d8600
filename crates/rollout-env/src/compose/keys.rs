//! The keys of a compose file: those that are read, and those that do not change what containers do.

/// Keys of the file.
pub(super) const FILE: Keys =
    Keys { read: &["services", "networks", "volumes"], ignored: &["version", "name"] };

/// Keys of a service.
pub(super) const SERVICE: Keys = Keys {
    read: &[
        "build",
        "cap_add",
        "cap_drop",
        "command",
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
        "privileged",
        "profiles",
        "read_only",
        "restart",
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
    read: &["args", "context", "dockerfile", "target"],
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
