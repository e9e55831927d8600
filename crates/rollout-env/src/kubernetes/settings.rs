//! The kubernetes part of `provider_config`.

use std::{ops::Deref, time::Duration};

use rollout_core::quantity::{Bytes, Cpus};
use serde_json::{Map, Value as Json, json};

use rollout_settings::{
    Section,
    forms::{filled, flag, list, mapping, number, number_or_text, seconds, texts, word},
    read_json,
};

use crate::config::EnvironmentConfig;

/// How pods are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum PodNetwork {
    /// The cluster's network.
    Pod,
    /// The network of the node.
    Host,
    /// A policy that allows nothing.
    None,
}

impl PodNetwork {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Host => "host",
            Self::None => "none",
        }
    }
}

const NETWORKS: [(&str, PodNetwork); 3] =
    [("pod", PodNetwork::Pod), ("host", PodNetwork::Host), ("none", PodNetwork::None)];

/// What builds Dockerfiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum ImageBuilder {
    /// A Docker engine, found like that of `type: docker`.
    Docker,
}

const BUILDERS: [(&str, ImageBuilder); 1] = [("docker", ImageBuilder::Docker)];

/// The default lifetime of a pod.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// How long a pod outlives its last connection.
const GRACE: Duration = Duration::from_secs(120);

/// The default time for a pod to start, which includes that of an autoscaler.
const START: Duration = Duration::from_secs(600);

rollout_settings::settings! {
    /// The kubernetes part of `provider_config`.
    #[derive(Debug, Clone, PartialEq)]
    pub(in super::super) struct KubernetesKeys {
        /// The kubeconfig file.
        ///
        /// Without one, a `rollout` that runs in a pod uses the credentials of its service account.
        pub(super) kubeconfig: Option<String> = filled().kind("path").optional()
            .unset("`KUBECONFIG`, otherwise `~/.kube/config`"),
        /// A context of the kubeconfig file.
        pub(super) context: Option<String> = filled().kind("name").optional().unset("the current context"),
        /// The namespace of the pods. It is not created.
        pub(super) namespace: Option<String> = filled().kind("name").optional().unset("the context's, otherwise `default`"),
        /// The registry and path for images that Rollout makes, such as `registry.example.com/team`. The nodes
        /// must be able to pull from it.
        pub(super) registry: String = filled()
            .kind("`host[:port][/path]`")
            .required("name a registry that you can push to and the nodes can pull from"),
        /// Registries, as `host:port`, that are reached by plain HTTP. Loopback addresses are always reached by plain
        /// HTTP.
        pub(super) insecure_registries: Vec<String> = texts().kind("list of `host:port`"),
        /// What builds Dockerfiles: `docker`, an engine that is found as for `type: docker`.
        pub(super) builder: ImageBuilder = word(&BUILDERS).default(ImageBuilder::Docker),
        /// The names of secrets with which the nodes pull images.
        pub(super) image_pull_secrets: Vec<String> = texts().kind("list of names"),
        /// The service account of the pods. No pod gets its token.
        pub(super) service_account: Option<String> = filled().kind("name").optional().unset("`default`"),
        /// Labels that a node must have.
        pub(super) node_selector: Map<String, Json> = mapping(),
        /// Taints of nodes that are tolerated.
        pub(super) tolerations: Vec<Json> = raw_list(),
        /// The `affinity` of the pods.
        pub(super) affinity: Map<String, Json> = mapping(),
        /// A runtime class, such as `gvisor` or `kata`.
        pub(super) runtime_class: Option<String> = filled().kind("name").optional().unset("the cluster's"),
        /// A priority class.
        pub(super) priority_class: Option<String> = filled().kind("name").optional().unset("the cluster's"),
        /// More labels of the pods.
        pub(super) labels: Map<String, Json> = mapping(),
        /// More annotations of the pods.
        pub(super) annotations: Map<String, Json> = mapping(),
        /// A pod with `metadata` and `spec`, for everything that has no setting. It is merged into the pod of each
        /// trial.
        ///
        /// Entries of lists are matched by their `name`. The container of the trial is `main`.
        pub(super) pod_template: Map<String, Json> = mapping(),
        /// The network of pods: `pod` (the cluster's network), `host` (the network of the node) or `none`.
        pub(super) network: PodNetwork = word(&NETWORKS).default(PodNetwork::Pod),
        /// Whether the cluster enforces NetworkPolicy. If not, tasks that forbid or restrict their network are
        /// rejected.
        pub(super) network_policy: bool = flag(false),
        /// The user that runs all scripts.
        pub(super) user: Option<String> = number_or_text()
            .kind("name or number, also `user:group`")
            .optional()
            .unset("the image's `USER`"),
        /// The fraction of a task's CPUs that is requested. The limit is always the full number.
        pub(super) cpu_request: f64 = number(0.0..=1.0).default(1.0),
        /// The fraction of a task's memory that is requested.
        pub(super) memory_request: f64 = number(0.0..=1.0).default(1.0),
        /// The fraction of a task's storage that is requested.
        pub(super) storage_request: f64 = number(0.0..=1.0).default(1.0),
        /// The resource that counts GPUs.
        pub(super) gpu_resource: String = filled().kind("name").default("nvidia.com/gpu".to_owned()),
        /// How long a pod may take to start: to be scheduled, to pull its images, and to answer.
        pub(super) start_timeout as "start_timeout_sec": Duration = seconds().default(START),
        /// After this time the cluster ends a pod in any case.
        pub(super) lifetime as "lifetime_sec": Duration = seconds().default(LIFETIME),
        /// How long a trial continues while the connection to its pod is lost. A pod without a connection ends itself
        /// after this time.
        pub(super) grace as "grace_sec": Duration = seconds().default(GRACE),
        /// The price of a requested CPU for an hour, in US dollars.
        pub(super) cpu_hour: f64 = number(0.0..=1e6).default(0.0),
        /// The price of a requested GiB of memory for an hour, in US dollars.
        pub(super) gib_hour: f64 = number(0.0..=1e6).default(0.0),
        /// Prices of pools of nodes. Each key is a value in `node_selector`, and each value is `{cpu_hour, gib_hour}`.
        pub(super) pool_prices: Map<String, Json> = mapping(),
    }
}

fn raw_list() -> rollout_settings::Form<Vec<Json>> {
    list(
        || json!({ "type": "object" }),
        |section: &Section<'_>, key: &str| {
            let nodes = section.list(key)?;
            Some(nodes.iter().map(|node| section.json(node, key)).collect())
        },
    )
}

/// A cluster and a namespace to inspect. By default these are those of the user's current context.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterChoice {
    /// A context of the kubeconfig file.
    pub context: Option<String>,
    /// A namespace.
    pub namespace: Option<String>,
}

/// The settings of the pods of a job.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Settings {
    keys: KubernetesKeys,
    /// The prices of a CPU and of a GiB for an hour.
    pub(super) prices: Prices,
}

/// What an hour costs, in US dollars.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prices {
    pub(super) cpu_hour: f64,
    pub(super) gib_hour: f64,
}

impl Prices {
    /// The cost of requests for a time.
    pub(super) fn of(self, requests: Requests, time: Duration) -> f64 {
        let hours = time.as_secs_f64() / 3600.0;
        let gib = requests.memory as f64 / f64::from(1 << 30);
        (requests.cpu_millis as f64 / 1000.0 * self.cpu_hour + gib * self.gib_hour) * hours
    }
}

/// What the container of a trial requests, and a node reserves for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Requests {
    /// Thousandths of CPUs.
    pub(super) cpu_millis: u64,
    /// Bytes.
    pub(super) memory: u64,
}

/// A part of an amount, rounded up.
pub(super) fn part_of(whole: u64, part: f64) -> u64 {
    (whole as f64 * part).ceil() as u64
}

impl Deref for Settings {
    type Target = KubernetesKeys;

    fn deref(&self) -> &KubernetesKeys {
        &self.keys
    }
}

impl Settings {
    /// The settings to inspect a cluster.
    pub(super) fn of_user(choice: &ClusterChoice) -> Result<Self, String> {
        let mut map = Map::new();
        map.insert("registry".to_owned(), json!("none"));
        for (key, value) in [("context", &choice.context), ("namespace", &choice.namespace)] {
            map.extend(value.as_ref().map(|value| (key.to_owned(), json!(value))));
        }
        Self::read_map(&map)
    }

    /// What a container with these limits requests.
    pub(super) fn requests(&self, cpus: Option<Cpus>, memory: Option<Bytes>) -> Requests {
        Requests {
            cpu_millis: cpus.map_or(0, |cpus| part_of(cpus.millis, self.cpu_request)),
            memory: memory.map_or(0, |memory| part_of(memory.0, self.memory_request)),
        }
    }

    /// Reads the settings; an error lists all invalid ones.
    pub(in super::super) fn read(config: &EnvironmentConfig) -> Result<Self, String> {
        Self::read_map(&config.provider_config)
    }

    fn read_map(map: &Map<String, Json>) -> Result<Self, String> {
        let keys = read_json::<KubernetesKeys>("provider_config", map)?;
        let mut problems = Vec::new();
        for (name, texts) in [
            ("node_selector", &keys.node_selector),
            ("labels", &keys.labels),
            ("annotations", &keys.annotations),
        ] {
            let odd = texts.iter().find(|(_, value)| !value.is_string());
            if let Some((key, _)) = odd {
                problems.push(format!("`provider_config.{name}.{key}` must be a string; write it in quotes"));
            }
        }
        let odd = keys.pod_template.keys().find(|key| !["metadata", "spec"].contains(&key.as_str()));
        if let Some(key) = odd {
            problems.push(format!(
                "unknown key `{key}` in `provider_config.pod_template`; known keys: `metadata`, `spec`"
            ));
        }
        let mut prices = Prices { cpu_hour: keys.cpu_hour, gib_hour: keys.gib_hour };
        for (pool, price) in &keys.pool_prices {
            let amount = |key: &str| price.get(key).map_or(Some(0.0), Json::as_f64);
            let known = price.as_object().is_some_and(|price| {
                price.keys().all(|key| ["cpu_hour", "gib_hour"].contains(&key.as_str()))
            });
            match (known, amount("cpu_hour"), amount("gib_hour")) {
                (true, Some(cpu_hour), Some(gib_hour)) if cpu_hour >= 0.0 && gib_hour >= 0.0 => {
                    if keys.node_selector.values().any(|value| value == pool.as_str()) {
                        prices = Prices { cpu_hour, gib_hour };
                    }
                }
                _ => problems.push(format!(
                    "`provider_config.pool_prices.{pool}` must be `{{cpu_hour: dollars, gib_hour: dollars}}`"
                )),
            }
        }
        match problems.len() {
            0 => Ok(Self { keys, prices }),
            1 => Err(problems.remove(0)),
            count => Err(format!("{count} settings are invalid\n  {}", problems.join("\n  "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut value: Json) -> Result<Settings, String> {
        if value.get("registry").is_none() {
            value["registry"] = json!("registry");
        }
        Settings::read_map(value.as_object().unwrap())
    }

    #[test]
    fn a_registry_is_required() {
        let error = Settings::read_map(&Map::new()).unwrap_err();
        assert!(error.contains("`registry` is missing"), "{error}");
    }

    #[test]
    fn every_setting_is_read() {
        let settings = read(json!({
            "kubeconfig": "/k", "context": "c", "namespace": "n", "registry": "r:5000/team", "builder": "docker",
            "insecure_registries": ["r:5000"], "image_pull_secrets": ["s"], "service_account": "a",
            "node_selector": {"pool": "gpu"}, "tolerations": [{"key": "x", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}}, "runtime_class": "gvisor", "priority_class": "low",
            "labels": {"team": "t"}, "annotations": {"note": "n"}, "pod_template": {"spec": {"hostPID": false}},
            "network": "none", "network_policy": true, "user": 1000, "cpu_request": 0.5, "memory_request": 1,
            "storage_request": 0, "start_timeout_sec": 30, "lifetime_sec": 60, "grace_sec": 5,
            "cpu_hour": 1, "gib_hour": 0.5, "pool_prices": {"gpu": {"cpu_hour": 2}},
        }))
        .unwrap();
        assert_eq!(settings.tolerations, [json!({"key": "x", "operator": "Exists"})]);
        assert_eq!((settings.network, settings.network_policy), (PodNetwork::None, true));
        assert_eq!(settings.user.as_deref(), Some("1000"));
        assert_eq!(settings.start_timeout, Duration::from_secs(30));
        assert_eq!(settings.prices, Prices { cpu_hour: 2.0, gib_hour: 0.0 });
    }

    #[test]
    fn the_cost_is_that_of_what_was_requested() {
        let settings =
            read(json!({"cpu_hour": 0.04, "gib_hour": 0.01, "cpu_request": 0.5, "memory_request": 0.25}))
                .unwrap();
        let requests = settings.requests(Some(Cpus { millis: 5000 }), Some(Bytes(16 << 30)));
        assert_eq!(requests, Requests { cpu_millis: 2500, memory: 4 << 30 });
        let cost = settings.prices.of(requests, Duration::from_secs(1800));
        assert!((cost - (0.1 + 0.04) / 2.0).abs() < 1e-12, "{cost}");
        assert_eq!(settings.requests(None, None), Requests::default());
    }

    #[test]
    fn the_table_in_docs_matches_the_schema() {
        use rollout_settings::Settings as _;
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kubernetes.md");
        rollout_settings::docs::check_page(&page, &[("kubernetes", KubernetesKeys::keys())]).unwrap();
    }

    #[test]
    fn invalid_settings_are_reported() {
        let errors: Vec<String> = [
            json!({"namspace": "n"}),
            json!({"builder": "buildkit"}),
            json!({"cpu_request": 2}),
            json!({"labels": {"a": 1}, "pod_template": {"status": {}}}),
            json!({"pool_prices": {"gpu": 3}}),
        ]
        .into_iter()
        .map(|value| read(value).unwrap_err())
        .collect();
        let text = errors.join("\n");
        for part in [
            "unknown key `namspace`",
            "`provider_config.builder` cannot be `buildkit`",
            "cpu_request",
            "2 settings are invalid",
            "`provider_config.labels.a` must be a string",
            "unknown key `status` in `provider_config.pod_template`",
            "`provider_config.pool_prices.gpu` must be",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}
