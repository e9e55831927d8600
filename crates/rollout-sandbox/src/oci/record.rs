//! The images of the store: which layers a reference stands for, and its configuration.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::IgnoredAny};
use sha2::{Digest as _, Sha256};

use super::registry::hex;
use crate::{
    image::{DockerfileHealthcheck, ImageConfig},
    private::unique_id,
    store::REFERENCES,
};

/// A pulled image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PulledImage {
    /// The reference, for people who look at the file.
    pub(super) reference: String,
    /// The hash of the manifest.
    pub(super) digest: String,
    /// The names of its layers in the store, the lowest first.
    pub(super) layers: Vec<String>,
    pub(super) config: ImageConfig,
}

impl PulledImage {
    /// Reads what is known of a reference. A file of another version counts as missing. Blocks.
    pub(super) fn read(state_dir: &Path, reference: &str) -> Option<Self> {
        serde_json::from_slice(&fs::read(path(state_dir, reference)).ok()?).ok()
    }

    /// Writes the file in one step. Blocks.
    pub(super) fn write(&self, state_dir: &Path) -> io::Result<()> {
        let path = path(state_dir, &self.reference);
        fs::create_dir_all(state_dir.join(REFERENCES))?;
        let unfinished = path.with_extension(unique_id());
        let mut file = fs::File::create_new(&unfinished)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(unfinished, path)
    }
}

fn path(state_dir: &Path, reference: &str) -> PathBuf {
    state_dir.join(REFERENCES).join(format!("{}.json", hex(&Sha256::digest(reference))))
}

/// The settings of commands in an image's configuration.
pub(super) fn config(json: &str) -> serde_json::Result<ImageConfig> {
    let file: ConfigFile = serde_json::from_str(json)?;
    let given = file.config.unwrap_or_default();
    let mut config = ImageConfig::default();
    for variable in given.env.unwrap_or_default() {
        let (name, value) = variable.split_once('=').unwrap_or((&variable, ""));
        config.env.retain(|(known, _)| known != name);
        config.env.push((name.to_owned(), value.to_owned()));
    }
    if let Some(workdir) = given.working_dir.filter(|dir| dir.starts_with('/')) {
        config.workdir = workdir;
    }
    config.user = given.user.filter(|user| !user.is_empty());
    if let Some(shell) = given.shell.filter(|shell| !shell.is_empty()) {
        config.shell = shell;
    }
    config.labels = given.labels.unwrap_or_default();
    config.entrypoint = given.entrypoint.unwrap_or_default();
    config.cmd = given.cmd.unwrap_or_default();
    config.exposed_ports = given.exposed_ports.unwrap_or_default().into_keys().collect();
    config.volumes = given.volumes.unwrap_or_default().into_keys().collect();
    config.healthcheck = given.healthcheck.filter(|check| !check.test.is_empty());
    config.stop_signal = given.stop_signal.filter(|signal| !signal.is_empty());
    config.on_build = given.on_build.unwrap_or_default();
    Ok(config)
}

#[derive(Deserialize)]
struct ConfigFile {
    config: Option<GivenConfig>,
}

/// The part of a configuration that commands use. Registries also write `null` for what is missing.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct GivenConfig {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    shell: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    exposed_ports: Option<BTreeMap<String, IgnoredAny>>,
    volumes: Option<BTreeMap<String, IgnoredAny>>,
    healthcheck: Option<DockerfileHealthcheck>,
    stop_signal: Option<String>,
    on_build: Option<Vec<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_an_image_is_that_of_its_commands() {
        let read = config(
            r#"{"architecture": "amd64", "config": {"Env": ["PATH=/opt/bin", "LANG=C.UTF-8"], "WorkingDir": "/app",
                "User": "1000:1000", "Shell": null, "Labels": {"a": "b"}, "Cmd": ["python3"]}}"#,
        )
        .unwrap();
        assert_eq!(read.env, [("PATH".into(), "/opt/bin".into()), ("LANG".into(), "C.UTF-8".into())]);
        assert_eq!((read.workdir.as_str(), read.user.as_deref()), ("/app", Some("1000:1000")));
        assert_eq!((read.shell.len(), read.labels["a"].as_str()), (2, "b"));
        assert_eq!(config("{}").unwrap(), ImageConfig::default());
    }

    #[test]
    fn an_image_is_found_by_its_reference() {
        let dir = tempfile::tempdir().unwrap();
        let image = PulledImage {
            reference: "registry/name:tag".into(),
            digest: "sha256:0".into(),
            layers: vec!["a".into()],
            config: ImageConfig::default(),
        };
        assert_eq!(PulledImage::read(dir.path(), &image.reference), None);
        image.write(dir.path()).unwrap();
        assert_eq!(PulledImage::read(dir.path(), &image.reference), Some(image));
        assert_eq!(PulledImage::read(dir.path(), "registry/name:other"), None);
    }
}
