//! The settings of `code`.

use std::{path::PathBuf, time::Duration};

use rollout_core::quantity::{Bytes, Cpus};
use rollout_settings::{
    Settings as _,
    forms::{cpus, text, texts},
};

use crate::{
    environments::{EnvironmentType, HOST, Settings},
    forms::{environment, limit, memory, roots, seconds},
    resource::{ErrorCode, ToolError},
};

/// The default image on a Docker engine.
const DOCKER_IMAGE: &str = "python:3.13-slim";

rollout_settings::settings! {
    /// Where code runs, and its limits. The names are those of the configuration file.
    #[derive(Debug, Clone)]
    pub struct CodeConfig {
        /// The environment provider: `native`, with this machine's own system inside, or `docker`.
        pub environment: EnvironmentType = environment(),
        /// The image: `host` for native, an image reference for docker.
        pub image: Option<String> = text().optional().unset("`host`, on docker `python:3.13-slim`"),
        /// Other images that a session may request.
        pub images: Vec<String> = texts(),
        /// The network of the environments, as in the settings of the [native](native.md) or
        /// [docker](docker.md) environment.
        pub network: String = text().default("none".to_owned()),
        /// CPUs of each environment.
        pub cpus: Cpus = cpus().default(Cpus { millis: 1000 }),
        /// Memory of each environment.
        pub memory: Bytes = memory(1 << 30),
        /// The maximum number of processes in each environment.
        pub pids: usize = limit(256),
        /// The default time limit of a program.
        pub timeout_sec: Duration = seconds(60),
        /// How much of each output stream is kept: half from the start, half from the end.
        pub max_output_bytes: usize = limit(32 << 10),
        /// The folders that may contain the initial files of sessions.
        ///
        /// The files named by `seed_path` of a session are copied to `/workspace`, up to 256 MiB, without names
        /// that begin with a dot.
        pub roots: Vec<PathBuf> = roots(),
    }
}

impl Default for CodeConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of code has a default")
    }
}

impl CodeConfig {
    /// The settings of environments.
    pub(super) fn settings(&self) -> Settings {
        let Self { environment, cpus, memory, pids, .. } = *self;
        Settings { environment, network: self.network.clone(), cpus, memory, pids }
    }

    /// The image of sessions that request none.
    pub(super) fn image(&self) -> &str {
        let default = match self.environment {
            EnvironmentType::Native => HOST,
            EnvironmentType::Docker => DOCKER_IMAGE,
        };
        self.image.as_deref().unwrap_or(default)
    }

    /// The image that a session requests, if it is allowed.
    pub(super) fn allowed<'a>(&'a self, image: &'a str) -> Result<&'a str, ToolError> {
        if image == self.image() || self.images.iter().any(|allowed| allowed == image) {
            return Ok(image);
        }
        let text = format!(
            "sessions may not use the image `{}`; the allowed ones are listed in `resources.code.images`",
            image.escape_debug()
        );
        Err(ToolError::new(ErrorCode::Refused, text))
    }
}
