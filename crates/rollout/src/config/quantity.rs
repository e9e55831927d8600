//! Amounts of CPU, memory and storage, written as numbers or Kubernetes quantities.

use serde::{Deserialize, Serialize};

/// An amount of CPU in thousandths of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cpus {
    /// Thousandths of a core.
    pub millis: u64,
}

/// An amount of memory or storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Bytes(pub u64);
