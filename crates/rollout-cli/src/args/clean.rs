//! Arguments of `clean` and `doctor`.

use clap::Args;
use rollout::config::Bytes;

#[cfg(feature = "kubernetes")]
use super::cluster::ClusterArgs;

/// Arguments of `clean`.
#[derive(Debug, Args)]
pub(crate) struct Clean {
    /// Also remove preserved environments
    #[arg(long)]
    pub preserved: bool,

    /// Also remove images, layers and agent snapshots that no running job and no preserved environment
    /// uses; on a Docker engine, only images that Rollout built
    #[arg(long)]
    pub images: bool,

    /// Also remove the least recently used images, layers and agent snapshots of native environments until
    /// the rest takes at most this much space, such as 20G
    #[arg(long, value_name = "SIZE", conflicts_with = "images")]
    pub store_size: Option<Bytes>,

    /// Also remove downloaded datasets, repositories that no running job uses, and the build cache of the
    /// Docker engine, which other builds share
    #[arg(long)]
    pub cache: bool,

    /// Also delete cloud sandboxes of ended runs of this machine, at all vendors for which this machine has credentials
    #[arg(long)]
    pub all_providers: bool,

    /// Also delete cloud sandboxes that other machines created, even if their jobs are running
    #[arg(long, requires = "all_providers")]
    pub other_machines: bool,

    /// Show what would be removed, without removing it
    #[arg(long)]
    pub dry_run: bool,

    #[cfg(feature = "kubernetes")]
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[cfg(feature = "kubernetes")]
    #[command(flatten)]
    pub cluster: ClusterArgs,
}
