//! What every command in an environment starts with.

/// Where programs are looked for when the environment has no PATH.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Makes commands the first to go when memory runs out.
pub const OOM_SCORE: &str = "500";
