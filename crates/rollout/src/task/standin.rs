//! A minimal reader of task.toml.

use std::path::{Path, PathBuf};

use crate::config::{Bytes, Cpus, TaskConfig};

/// A remark on a file.
#[derive(Debug, Clone)]
pub struct Diagnostic {
    /// The file.
    pub file: PathBuf,
    /// What to know about it.
    pub message: String,
}

impl Diagnostic {
    pub(crate) fn warning(file: PathBuf, message: impl Into<String>) -> Self {
        Self { file, message: message.into() }
    }
}

pub(crate) fn load_task_config(path: &Path, text: &str) -> Result<(TaskConfig, Vec<Diagnostic>), String> {
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| format!("{}: {error}", path.display()))?;
    let environment = table.get("environment").and_then(toml::Value::as_table);
    let text = |key: &str| environment?.get(key)?.as_str().map(str::to_owned);
    let config = TaskConfig {
        version: "1.0".to_owned(),
        source: None,
        metadata: serde_json::Map::new(),
        verifier_timeout_sec: 600.0,
        verifier_env: Vec::new(),
        agent_install_timeout_sec: 300.0,
        agent_timeout_sec: 600.0,
        build_timeout_sec: 600.0,
        docker_image: text("docker_image"),
        cpus: Cpus { millis: 1000 },
        memory: Bytes(2_000_000_000),
        storage: Bytes(10_000_000_000),
        unknown: serde_json::Map::new(),
    };
    Ok((config, Vec::new()))
}
