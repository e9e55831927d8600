//! The settings of `code`.

use std::{path::PathBuf, time::Duration};

use rollout::config::{Bytes, Cpus};
use rollout_settings::{
    Settings as _,
    forms::{cpus, text, texts},
};

use crate::{
    environments::{EnvironmentType, HOST, Settings},
    forms::{environment, how_many, memory, roots, seconds},
    resource::{ErrorCode, ToolError},
};

/// What an engine runs code in unless it is told.
const DOCKER_IMAGE: &str = "python:3.13-slim";

rollout_settings::settings! {
    /// Where code runs, and what it may use. The names are those of the configuration file.
    #[derive(Debug, Clone)]
    pub struct CodeConfig {
        /// What makes environments: `native`, with this machine's own system inside, or `docker`.
        pub environment: EnvironmentType = environment(),
        /// What they are made of: `host` for native ones, an image for docker.
        pub image: Option<String> = text().optional().unset("`host`, on docker `python:3.13-slim`"),
        /// Other images that a session may ask for.
        pub images: Vec<String> = texts(),
        /// The network that they have, in the words of the [native](native.md) or [docker](docker.md) environment.
        pub network: String = text().default("none".to_owned()),
        /// CPUs of each.
        pub cpus: Cpus = cpus().default(Cpus { millis: 1000 }),
        /// Memory of each.
        pub memory: Bytes = memory(1 << 30),
        /// Processes in each.
        pub pids: usize = how_many(256),
        /// How long a program runs that says nothing of it.
        pub timeout_sec: Duration = seconds(60),
        /// How much of each stream of output is kept: half of it from the start, half from the end.
        pub max_output_bytes: usize = how_many(32 << 10),
        /// The folders that files may be in with which a session starts.
        ///
        /// What `seed_path` of a session names is copied to `/workspace`, up to 256 MiB, without names that begin with a dot.
        pub roots: Vec<PathBuf> = roots(),
    }
}

impl Default for CodeConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of code has a default")
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
