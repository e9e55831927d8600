//! Tasks from git repositories: validation of untrusted addresses, the `git` command, and the cache.

mod address;
mod cache;
mod command;
mod held;
mod manifest;
mod worktree;

pub(super) use address::{CommitId, GitUrl, RepoPath};
pub(super) use cache::GitCache;
pub use cache::cached_directory;
pub(super) use command::{Git, isolated};
pub use command::{GitError, git_version};
pub use held::{Checkout, checkouts, remove_unused_checkouts};
pub(crate) use worktree::git_state;
pub(super) use worktree::{LIST_FILTERS, filters_off};
