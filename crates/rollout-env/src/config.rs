//! The `environment` section of a job: where its trials run.

use rollout_core::quantity::{Bytes, Cpus};
use rollout_settings::{
    Form, Section, Value,
    diagnostic::{nearest, quoted},
    forms::{bytes, bytes_or_mebibytes, bytes_or_zero, cpus, expanded_mapping, flag, word},
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
    /// How long the images of tasks are kept; depends on the size of the dataset if absent.
    pub keep_images: Option<KeepImages>,
    /// The free space to keep on the disk of the images.
    pub free_disk: Option<Bytes>,
    /// The largest size of what native environments store.
    pub store_size: Option<Bytes>,
    /// Settings of the provider, with `${VAR}` expanded.
    pub provider_config: serde_json::Map<String, serde_json::Value>,
    /// Replaces the task's CPUs.
    pub override_cpus: Option<Cpus>,
    /// Replaces the task's memory.
    pub override_memory: Option<Bytes>,
    /// Replaces the task's storage.
    pub override_storage: Option<Bytes>,
}

/// The storage of an environment, unless a task sets another one. Without a limit, one runaway process could fill the
/// disk of all environments.
pub const DEFAULT_STORAGE: Bytes = Bytes(10_000_000_000);

/// The free space to keep, unless the job sets another one. With less, `doctor` warns.
#[cfg(any(feature = "docker", feature = "native"))]
const DEFAULT_FREE_DISK: u64 = 5 << 30;

#[cfg(any(feature = "docker", feature = "native"))]
impl EnvironmentConfig {
    /// The free space to keep on the disk of the images, in bytes, if any.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        Some(self.free_disk.map_or(DEFAULT_FREE_DISK, |bytes| bytes.0)).filter(|bytes| *bytes > 0)
    }
}

impl std::fmt::Debug for EnvironmentConfig {
    /// Shows only the names of the provider's settings: their values may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvironmentConfig")
            .field("kind", &self.kind)
            .field("force_build", &self.force_build)
            .field("cache_agent_install", &self.cache_agent_install)
            .field("preserve", &self.preserve)
            .field("keep_images", &self.keep_images)
            .field("free_disk", &self.free_disk)
            .field("store_size", &self.store_size)
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
    /// Daytona sandboxes.
    Daytona,
    /// E2B sandboxes.
    E2b,
    /// Fly machines.
    Fly,
    /// Modal sandboxes.
    Modal,
}

impl EnvironmentKind {
    /// Whether an environment can start with the files of a preserved one, which stays as it is.
    pub fn copies_preserved(self) -> bool {
        matches!(self, Self::Native | Self::Docker)
    }

    /// The name of the provider in job files and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Docker => "docker",
            Self::Kubernetes => "kubernetes",
            Self::Daytona => "daytona",
            Self::E2b => "e2b",
            Self::Fly => "fly",
            Self::Modal => "modal",
        }
    }

    /// Whether this build has the provider.
    fn is_built(self) -> bool {
        match self {
            Self::Native => cfg!(feature = "native"),
            Self::Docker => cfg!(feature = "docker"),
            Self::Kubernetes => cfg!(feature = "kubernetes"),
            Self::Daytona => cfg!(feature = "daytona"),
            Self::E2b => cfg!(feature = "e2b"),
            Self::Fly => cfg!(feature = "fly"),
            Self::Modal => cfg!(feature = "modal"),
        }
    }

    /// Finds a provider by its name in records.
    pub fn from_name(name: &str) -> Option<Self> {
        ENVIRONMENT_TYPES.iter().map(|(_, kind)| *kind).find(|kind| kind.as_str() == name)
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

/// How long the images of tasks are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepImages {
    /// After the job.
    Always,
    /// Until the last trial of the job that needs them has ended.
    UntilDone,
    /// While a trial uses them.
    Never,
}

const KEEP_IMAGES: [(&str, KeepImages); 3] =
    [("always", KeepImages::Always), ("until_done", KeepImages::UntilDone), ("never", KeepImages::Never)];

rollout_settings::settings! {
    /// Where trials run: the `environment` section.
    pub struct EnvironmentKeys for EnvironmentConfig {
        /// The provider. By default, docker if an engine answers, otherwise native.
        ///
        /// See [docker](docker.md), [native](native.md), [kubernetes](kubernetes.md), also written `k8s`, and
        /// [clouds](clouds.md). If the job has a setting that only docker or only native supports, the one that
        /// supports it is used.
        kind as "type" = word(&ENVIRONMENT_TYPES)
            .read_by(environment_type)
            .kind("`docker`, `native`, `kubernetes`, `daytona`, `e2b`, `fly`, `modal`")
            .optional().unset("chosen when the job starts"),
        /// Builds without the cache, even if an image exists and even if the task names an image.
        ///
        /// Each task's Dockerfile is built once without the cache.
        force_build = flag(false),
        /// Stores the result of an agent's install script and starts later trials of the same image from it.
        ///
        /// See [installing agents once](#installing-agents-once).
        cache_agent_install = flag(false),
        /// Which environments are kept after their trial.
        ///
        /// `on_failure`: the trial had an error, or a reward below 1. `true` means `always`.
        preserve as "preserve_env" = preserve()
            .alias("preserveEnv", "Another name for `preserve_env`; `true` means `always`.", preserve())
            .or(PreservePolicy::Never)
            .unset("`never`"),
        /// How long Rollout keeps the images that it made for tasks. On native, a kept image is protected from removal.
        ///
        /// `until_done`: until the last trial of the job that needs the image has ended. `never`: only while a trial
        /// uses the image. Images that were only pulled are never removed from an engine. See disk space on
        /// [docker](docker.md#disk-space) and [native](native.md#disk-space).
        keep_images = word(&KEEP_IMAGES)
            .optional()
            .unset("`until_done` for datasets of more than 50 tasks, else `always`")
            .unhashed(),
        /// The free space to keep on the disk of a docker engine, or of the native store.
        ///
        /// Before an image is prepared, images that Rollout made are removed until this much space is free, the least
        /// recently used ones first. 0 removes nothing. See disk space on [docker](docker.md#disk-space) and
        /// [native](native.md#disk-space).
        free_disk = bytes_or_zero().optional().unset("`5Gi`").unhashed(),
        /// The largest size of the images, layers and snapshots that native environments store.
        ///
        /// Before an image is prepared, those that no running job and no preserved environment uses are removed until
        /// the rest fits, the least recently used first. See [disk space](native.md#disk-space).
        store_size = bytes().optional().unset("no limit").unhashed(),
        /// Settings of the provider. `${VAR}` and `${VAR:-default}` are expanded.
        ///
        /// See [docker](docker.md#settings), [native](native.md#settings), [kubernetes](kubernetes.md#settings) and
        /// [clouds](clouds.md).
        provider_config = expanded_mapping(),
        /// Replaces the CPUs of every task.
        override_cpus = cpus().optional().unset("the task's"),
        /// Replaces the memory of every task.
        override_memory = amount("override_memory_mb", "Replaces the memory of every task, in MiB."),
        /// Replaces the storage of every task.
        override_storage = amount("override_storage_mb", "Replaces the storage of every task, in MiB."),
    }
}

const ENVIRONMENT_TYPES: [(&str, EnvironmentKind); 8] = [
    ("docker", EnvironmentKind::Docker),
    ("native", EnvironmentKind::Native),
    ("kubernetes", EnvironmentKind::Kubernetes),
    ("k8s", EnvironmentKind::Kubernetes),
    ("daytona", EnvironmentKind::Daytona),
    ("e2b", EnvironmentKind::E2b),
    ("fly", EnvironmentKind::Fly),
    ("modal", EnvironmentKind::Modal),
];

/// Reads the type. The hint for an unknown one lists those of this build.
fn environment_type(section: &Section<'_>, key: &str) -> Option<EnvironmentKind> {
    let text = section.string(key)?;
    let found = ENVIRONMENT_TYPES.iter().find(|(word, _)| *word == text).map(|(_, kind)| *kind);
    if found.is_none() {
        let known = known_types();
        let words: Vec<&str> = built_types().map(|(word, _)| word).collect();
        let hint = match nearest(text, &words) {
            Some(near) => format!("did you mean `{near}`? {known}"),
            None if text == "podman" => {
                format!("for Podman, write `docker` and set DOCKER_HOST to its socket; {known}")
            }
            None => known,
        };
        section.invalid_with_hint(key, format!("`{}` cannot be {}", section.at(key), quoted(text)), hint);
    }
    found
}

/// The types that this build has.
fn built_types() -> impl Iterator<Item = (&'static str, EnvironmentKind)> {
    ENVIRONMENT_TYPES.into_iter().filter(|(_, kind)| kind.is_built())
}

/// Lists the types that this build has, without other spellings.
fn known_types() -> String {
    let names = built_types().filter(|(word, kind)| *word == kind.as_str());
    let mut names: Vec<String> = names.map(|(word, _)| format!("`{word}`")).collect();
    let last = names.pop().unwrap_or_default();
    match names.is_empty() {
        true => format!("it can be {last}"),
        false => format!("it can be {} or {last}", names.join(", ")),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::{ConnectError, check};

    #[test]
    fn exactly_the_types_that_this_build_accepts_are_offered() {
        let offered = known_types();
        for (_, kind) in ENVIRONMENT_TYPES {
            let config = EnvironmentConfig { kind: Some(kind), ..EnvironmentConfig::default() };
            let is_refused = matches!(check(&config), Err(ConnectError::Unsupported(_)));
            let name = format!("`{}`", kind.as_str());
            assert_eq!(offered.contains(&name), !is_refused, "{name}: {offered}");
        }
        assert_eq!(offered.contains("`e2b`"), cfg!(feature = "e2b"), "{offered}");
    }
}
