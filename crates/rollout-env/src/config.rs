//! The `environment` section of a job: where its trials run.

use rollout_core::quantity::{Bytes, Cpus};
use rollout_settings::{
    Form, Section, Value,
    diagnostic::{nearest, quoted},
    forms::{bytes_or_mebibytes, cpus, expanded_mapping, flag, word},
};
use serde_json::json;

/// Where trials run: the `environment` section.
#[derive(Clone, Default)]
pub struct EnvironmentConfig {
    /// The provider; chosen when the job starts if absent.
    pub kind: Option<EnvironmentKind>,
    /// Builds without the cache, even if an image exists and even if the task names an image.
    pub force_build: bool,
    /// Stores the result of an install script and starts later trials from it.
    pub cache_agent_install: bool,
    /// Which environments are kept after their trial.
    pub preserve: PreservePolicy,
    /// Settings of the provider, with `${VAR}` expanded.
    pub provider_config: serde_json::Map<String, serde_json::Value>,
    /// Replaces the task's CPUs.
    pub override_cpus: Option<Cpus>,
    /// Replaces the task's memory.
    pub override_memory: Option<Bytes>,
    /// Replaces the task's storage.
    pub override_storage: Option<Bytes>,
}

impl std::fmt::Debug for EnvironmentConfig {
    /// Shows only the names of the provider's settings: their values may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvironmentConfig")
            .field("kind", &self.kind)
            .field("force_build", &self.force_build)
            .field("cache_agent_install", &self.cache_agent_install)
            .field("preserve", &self.preserve)
            .field("provider_config", &self.provider_config.keys())
            .field("override_cpus", &self.override_cpus)
            .field("override_memory", &self.override_memory)
            .field("override_storage", &self.override_storage)
            .finish()
    }
}

/// The providers that a job file can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EnvironmentKind {
    /// The embedded container engine.
    Native,
    /// A Docker engine.
    Docker,
    /// A Kubernetes cluster.
    Kubernetes,
    /// Modal sandboxes.
    Modal,
    /// Fly machines.
    Fly,
}

impl EnvironmentKind {
    /// The name of the provider in job files and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Docker => "docker",
            Self::Kubernetes => "kubernetes",
            Self::Modal => "modal",
            Self::Fly => "fly",
        }
    }

    /// Finds a provider by its name in records.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Native, Self::Docker, Self::Kubernetes, Self::Modal, Self::Fly];
        all.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Which environments are kept when their trial ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PreservePolicy {
    /// None.
    #[default]
    Never,
    /// All.
    Always,
    /// Those whose trial had an error, or a reward below 1.
    OnFailure,
}

rollout_settings::settings! {
    /// Where trials run: the `environment` section.
    pub struct EnvironmentKeys for EnvironmentConfig {
        /// The provider. When absent: docker if an engine answers, otherwise native.
        ///
        /// See [docker](docker.md) and [native](native.md). If the job has a setting that only one of the two
        /// supports, that one is used. `kubernetes`, `modal` and `fly` are not supported yet.
        kind as "type" = word(&ENVIRONMENT_TYPES)
            .read_by(environment_type)
            .kind("`docker`, `native`")
            .optional().unset("chosen when the job starts"),
        /// Builds without the cache, even if an image exists and even if the task names an image.
        ///
        /// Each task's Dockerfile is built once without the cache.
        force_build = flag(false),
        /// Stores the result of an agent's install script and starts later trials of the same image from it.
        ///
        /// See [installing agents once](#installing-agents-once).
        cache_agent_install = flag(false),
        /// Which environments are kept after their trial; `never` when absent.
        ///
        /// `on_failure`: the trial had an error, or a reward below 1. `true` means `always`.
        preserve as "preserve_env" = preserve()
            .alias("preserveEnv", "Another spelling of `preserve_env`: true means always.", preserve())
            .or(PreservePolicy::Never)
            .unset("`never`"),
        /// Settings of the provider. `${VAR}` and `${VAR:-default}` are expanded.
        ///
        /// See [docker](docker.md#settings) and [native](native.md#settings).
        provider_config = expanded_mapping(),
        /// Replaces the CPUs of every task.
        override_cpus = cpus().optional().unset("the task's"),
        /// Replaces the memory of every task.
        override_memory = amount("override_memory_mb", "Replaces the memory of every task, in MiB."),
        /// Replaces the storage of every task.
        override_storage = amount("override_storage_mb", "Replaces the storage of every task, in MiB."),
    }
}

const ENVIRONMENT_TYPES: [(&str, EnvironmentKind); 6] = [
    ("native", EnvironmentKind::Native),
    ("docker", EnvironmentKind::Docker),
    ("kubernetes", EnvironmentKind::Kubernetes),
    ("k8s", EnvironmentKind::Kubernetes),
    ("modal", EnvironmentKind::Modal),
    ("fly", EnvironmentKind::Fly),
];

/// Reads the type. The hint for an unknown one lists only the supported types.
fn environment_type(section: &Section<'_>, key: &str) -> Option<EnvironmentKind> {
    let text = section.string(key)?;
    let found = ENVIRONMENT_TYPES.iter().find(|(word, _)| *word == text).map(|(_, kind)| *kind);
    if found.is_none() {
        let hint = match nearest(text, &["docker", "native"]) {
            Some(near) => format!("did you mean `{near}`? it can be `docker` or `native`"),
            None if text == "podman" => {
                "for Podman, write `docker` and set DOCKER_HOST to its socket; it can be `docker` or `native`"
                    .to_owned()
            }
            None => "it can be `docker` or `native`".to_owned(),
        };
        section.invalid_with_hint(key, format!("`{}` cannot be {}", section.at(key), quoted(text)), hint);
    }
    found
}

const PRESERVE_POLICIES: [(&str, PreservePolicy); 3] = [
    ("never", PreservePolicy::Never),
    ("always", PreservePolicy::Always),
    ("on_failure", PreservePolicy::OnFailure),
];

fn amount(mebibytes_key: &'static str, mebibytes_doc: &'static str) -> Form<Option<Bytes>> {
    let read = |section: &Section<'_>, key: &str, mebibytes_key: &str| {
        section.exclude(key, mebibytes_key);
        section.bytes(key).or(section.mebibytes(mebibytes_key))
    };
    bytes_or_mebibytes(mebibytes_key, mebibytes_doc, read).optional().unset("the task's")
}

fn preserve() -> Form<PreservePolicy> {
    word(&PRESERVE_POLICIES)
        .kind("`never`, `always`, `on_failure`, or boolean")
        .refine(|schema| *schema = json!({ "anyOf": [schema.take(), { "type": "boolean" }] }))
        .read_by(|section, key| {
            let policy = |key: &str| match section.node(key)?.value {
                Value::Bool(true) => Some(PreservePolicy::Always),
                Value::Bool(false) => Some(PreservePolicy::Never),
                _ => section.word(key, &PRESERVE_POLICIES),
            };
            let (snake, camel) = (policy(key), policy("preserveEnv"));
            if let (Some(snake), Some(camel)) = (snake, camel)
                && snake != camel
            {
                section.exclude(key, "preserveEnv");
            }
            snake.or(camel)
        })
}
