//! The settings of the server itself.

use std::{path::PathBuf, time::Duration};

use rollout_settings::{Settings as _, forms::text};

use crate::forms::{MAX_SECONDS, how_many, seconds};

rollout_settings::settings! {
    /// What a server allows. The names are those of the configuration file.
    #[derive(Debug, Clone)]
    pub struct ServerConfig {
        /// How long a session is kept that nobody uses.
        pub session_ttl_sec: Duration = seconds(300),
        /// How many sessions there are at a time.
        pub max_sessions: usize = how_many(1024),
        /// How many of them are of one worker.
        pub max_sessions_per_worker: usize = how_many(64),
        /// How many calls run at a time; others wait.
        pub max_calls: usize = how_many(256),
        /// How many connections there are at a time; others wait.
        pub max_connections: usize = how_many(1024),
        /// The largest body of a request.
        pub max_body_bytes: usize = how_many(8 << 20),
        /// How long a call takes at most that says nothing of it.
        pub timeout_sec: Duration = seconds(120),
        /// How long a call takes at most, whatever it says.
        pub max_timeout_sec: Duration = seconds(600),
        /// Where the files are that clients may name in `init/from-config`.
        pub config_dir: Option<PathBuf> = text()
            .kind("path")
            .map(PathBuf::from, |path| path.to_string_lossy().into_owned())
            .optional(),
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of a server has a default")
    }
}

/// The time of so many seconds, if that is more than nothing and not too much.
pub(crate) fn duration(seconds: f64) -> Option<Duration> {
    let fits = seconds > 0.0 && seconds <= MAX_SECONDS as f64;
    fits.then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}
