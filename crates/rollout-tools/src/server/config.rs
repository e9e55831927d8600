//! The settings of the server itself.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Deserializer, de};

/// A day: longer than anything here takes.
const MAX_SECONDS: f64 = 86_400.0;

/// More than this no machine has.
const MAX_NUMBER: usize = 1 << 30;

/// What a server allows. The names are those of the configuration file.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// How long a session is kept that nobody uses.
    #[serde(deserialize_with = "seconds")]
    pub session_ttl_sec: Duration,
    /// How many sessions there are at a time.
    #[serde(deserialize_with = "at_least_one")]
    pub max_sessions: usize,
    /// How many of them are of one worker.
    #[serde(deserialize_with = "at_least_one")]
    pub max_sessions_per_worker: usize,
    /// How many calls run at a time; others wait.
    #[serde(deserialize_with = "at_least_one")]
    pub max_calls: usize,
    /// How many connections there are at a time; others wait.
    #[serde(deserialize_with = "at_least_one")]
    pub max_connections: usize,
    /// The largest body of a request.
    #[serde(deserialize_with = "at_least_one")]
    pub max_body_bytes: usize,
    /// How long a call takes at most that says nothing of it.
    #[serde(deserialize_with = "seconds")]
    pub timeout_sec: Duration,
    /// How long a call takes at most, whatever it says.
    #[serde(deserialize_with = "seconds")]
    pub max_timeout_sec: Duration,
    /// Where the files are that clients may name in `init/from-config`.
    pub config_dir: Option<PathBuf>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            session_ttl_sec: Duration::from_secs(300),
            max_sessions: 1024,
            max_sessions_per_worker: 64,
            max_calls: 256,
            max_connections: 1024,
            max_body_bytes: 8 << 20,
            timeout_sec: Duration::from_secs(120),
            max_timeout_sec: Duration::from_secs(600),
            config_dir: None,
        }
    }
}

/// Reads a time in seconds that is more than nothing.
pub(crate) fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(from)?;
    duration(seconds).ok_or_else(|| {
        de::Error::custom(format!("{seconds} is not a number of seconds above 0 and up to {MAX_SECONDS}"))
    })
}

/// The time of so many seconds, if that is more than nothing and not too much.
pub(crate) fn duration(seconds: f64) -> Option<Duration> {
    let fits = seconds > 0.0 && seconds <= MAX_SECONDS;
    fits.then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}

/// Reads a number that is neither 0 nor absurd.
pub(crate) fn at_least_one<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    match usize::deserialize(from)? {
        number @ 1..=MAX_NUMBER => Ok(number),
        number => Err(de::Error::custom(format!("{number} is not between 1 and {MAX_NUMBER}"))),
    }
}
