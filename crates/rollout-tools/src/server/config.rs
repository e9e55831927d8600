//! The settings of the server itself.

use std::{path::PathBuf, time::Duration};

use rollout_settings::{Settings as _, forms::text};

use crate::forms::{MAX_SECONDS, limit, seconds};

rollout_settings::settings! {
    /// The limits of a server. The names are those of the configuration file.
    #[derive(Debug, Clone)]
    pub struct ServerConfig {
        /// How long an idle session is kept.
        pub session_ttl_sec: Duration = seconds(300),
        /// The maximum number of sessions.
        pub max_sessions: usize = limit(1024),
        /// The maximum number of sessions of one worker.
        pub max_sessions_per_worker: usize = limit(64),
        /// The maximum number of calls at the same time. Other calls wait up to a minute, and then get code 5013.
        pub max_calls: usize = limit(256),
        /// The maximum number of connections at the same time. Other connections wait.
        pub max_connections: usize = limit(1024),
        /// The maximum size of a request body, in bytes.
        pub max_body_bytes: usize = limit(8 << 20),
        /// The default time limit of a call.
        pub timeout_sec: Duration = seconds(120),
        /// The longest time limit that a call can request.
        pub max_timeout_sec: Duration = seconds(600),
        /// The directory of the files that clients may name in `init/from-config`. Without it, such requests are rejected.
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

/// A duration of this many seconds, if it is positive and not too long.
pub(crate) fn duration(seconds: f64) -> Option<Duration> {
    let fits = seconds > 0.0 && seconds <= MAX_SECONDS as f64;
    fits.then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}
