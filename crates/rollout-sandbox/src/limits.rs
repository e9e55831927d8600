//! The limits of a sandbox and which of them this machine can enforce.

use serde::{Deserialize, Serialize};

/// How much of the machine a sandbox may use; what is `None` is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Processor time, in thousandths of one processor.
    pub cpus_millis: Option<u64>,
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at the same time.
    pub pids: Option<u64>,
}

/// Which of a sandbox's limits really hold. A limit that was not asked for is not enforced either.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforced {
    /// The processor limit holds.
    pub cpus: bool,
    /// The memory limit holds.
    pub memory: bool,
    /// The limit on processes holds.
    pub pids: bool,
}
