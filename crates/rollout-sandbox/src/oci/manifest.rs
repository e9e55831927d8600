//! The documents that describe images: manifests, and indexes of them by platform.

use std::collections::BTreeMap;

use serde::Deserialize;

/// An index or a manifest.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    #[serde(default)]
    pub(super) schema_version: u32,
    pub(super) manifests: Option<Vec<Descriptor>>,
    pub(super) config: Option<Descriptor>,
    pub(super) layers: Option<Vec<Descriptor>>,
}

/// What a document refers to.
#[derive(Deserialize, Clone)]
pub(super) struct Descriptor {
    pub(super) digest: String,
    #[serde(default)]
    pub(super) size: u64,
    platform: Option<Platform>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Clone)]
struct Platform {
    architecture: String,
    os: String,
}

impl Descriptor {
    /// Whether it is for this machine, as far as it says for which one it is.
    pub(super) fn runs_here(&self) -> bool {
        self.platform
            .as_ref()
            .is_none_or(|platform| platform.os == "linux" && platform.architecture == architecture())
    }

    /// The name of an image in a layout.
    pub(super) fn name(&self) -> Option<&str> {
        self.annotations.as_ref()?.get("org.opencontainers.image.ref.name").map(String::as_str)
    }
}

/// The entry of an index for this machine. One that says so is preferred to one that says nothing: the latter may be
/// an attachment of an image.
pub(super) fn for_this_machine(entries: &[Descriptor]) -> Option<&Descriptor> {
    entries.iter().filter(|entry| entry.runs_here()).min_by_key(|entry| entry.platform.is_none())
}

/// This machine's processor, as images name it.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
