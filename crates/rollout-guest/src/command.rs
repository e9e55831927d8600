//! Defaults for every command in an environment.

/// The search path for programs when the environment has no PATH.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Makes the kernel kill commands first when memory runs out.
pub const OOM_SCORE: &str = "500";
