//! The settings of `code`.

use std::{path::PathBuf, time::Duration};

use rollout::config::{Bytes, Cpus};
use serde::Deserialize;

use crate::{
    environments::{EnvironmentType, HOST, Settings, quantity},
    resource::{ErrorCode, ToolError},
    server::{at_least_one, seconds},
};

/// What an engine runs code in unless it is told.
const DOCKER_IMAGE: &str = "python:3.13-slim";

/// Where code runs, and what it may use. The names are those of the configuration file.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CodeConfig {
    /// What makes environments.
    pub environment: EnvironmentType,
    /// What they are made of: `host` for native ones, an image for docker.
    pub image: Option<String>,
    /// Other images that a session may ask for.
    pub images: Vec<String>,
    /// The network that they have, in the words of what makes them.
    pub network: String,
    /// CPUs of each.
    #[serde(deserialize_with = "quantity")]
    pub cpus: Cpus,
    /// Memory of each.
    #[serde(deserialize_with = "quantity")]
    pub memory: Bytes,
    /// Processes in each.
    #[serde(deserialize_with = "at_least_one")]
    pub pids: usize,
    /// How long a program runs that says nothing of it.
    #[serde(deserialize_with = "seconds")]
    pub timeout_sec: Duration,
    /// How much of each stream of output is kept: half of it from the start, half from the end.
    #[serde(deserialize_with = "at_least_one")]
    pub max_output_bytes: usize,
    /// The folders that files may be in with which a session starts. The folder that the server was started in unless
    /// told otherwise.
    pub roots: Vec<PathBuf>,
}

impl Default for CodeConfig {
    fn default() -> Self {
        Self {
            environment: EnvironmentType::Native,
            image: None,
            images: Vec::new(),
            network: "none".to_owned(),
            cpus: Cpus { millis: 1000 },
            memory: Bytes(1 << 30),
            pids: 256,
            timeout_sec: Duration::from_secs(60),
            max_output_bytes: 32 << 10,
            roots: crate::seed::default_roots(),
        }
    }
}

impl CodeConfig {
    /// What environments are made with.
    pub(super) fn settings(&self) -> Settings {
        let Self { environment, cpus, memory, pids, .. } = *self;
        Settings { environment, network: self.network.clone(), cpus, memory, pids }
    }

    /// The image of sessions that ask for none.
    pub(super) fn image(&self) -> &str {
        let default = match self.environment {
            EnvironmentType::Native => HOST,
            EnvironmentType::Docker => DOCKER_IMAGE,
        };
        self.image.as_deref().unwrap_or(default)
    }

    /// The image that a session asks for, if it may have it.
    pub(super) fn allowed<'a>(&'a self, image: &'a str) -> Result<&'a str, ToolError> {
        if image == self.image() || self.images.iter().any(|allowed| allowed == image) {
            return Ok(image);
        }
        let text = format!(
            "the image `{}` is not one that sessions may ask for; `resources.code.images` lists those",
            image.escape_debug()
        );
        Err(ToolError::new(ErrorCode::Refused, text))
    }
}
