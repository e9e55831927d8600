//! The processes that a guest is responsible for.

/// The processes that a guest counts, holds and kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillScope {
    /// All processes of a namespace, of which it is the first. None can escape.
    Namespace,
    /// Its descendants. A process can escape if it kills the guest, or if it lets a service that is not below the
    /// guest start another process.
    Descendants,
}
