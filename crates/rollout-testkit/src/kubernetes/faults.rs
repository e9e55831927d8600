//! Injected faults of pods.

use std::time::Duration;

/// A fault of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodFault {
    /// No node has room for the pod at first, and the scheduler reports it.
    SlowScheduling(Duration),
    /// No node ever has room for the pod.
    Unschedulable,
    /// The image cannot be pulled.
    ImagePull,
    /// The pull of the image does not end.
    SlowPull,
    /// The memory limit is reached this long after the containers started.
    OutOfMemory(Duration),
    /// The pod is evicted for its own storage limit this long after the containers started.
    StorageExceeded(Duration),
    /// The pod is evicted because its node has little memory this long after the containers started.
    Evicted(Duration),
    /// The node is lost this long after the containers started.
    NodeLost(Duration),
    /// The node ignores deletions with a grace period: the pod stays `Terminating`.
    IgnoredDeletion,
    /// Each stream of attach or exec is cut after this many bytes in both directions, without a closing handshake.
    CutStreams {
        /// The number of bytes.
        after: u64,
        /// The number of streams that are cut.
        times: usize,
    },
}
