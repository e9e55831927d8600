//! Finds the user of a command in the container's own /etc/passwd and /etc/group.

use std::io;

use rollout_guest::{files::EnvironmentFiles, identity::Identity};
use rustix::{
    process::{Gid, Uid, getgroups},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// An unused group. As the saved group of this process, it distinguishes it from other processes of root:
/// otherwise the kernel would let unprivileged ones change its limits.
const APART: u32 = 65_531;

/// Sets a saved group that no other process of root has. Must be called before any other thread exists.
pub(crate) fn set_saved_group() -> io::Result<()> {
    Ok(set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::from_raw(APART))?)
}

/// Runs `work` as this user, only in the calling thread.
///
/// The saved ids stay those of the guest. So the thread can switch back, and other processes of the user cannot
/// change its limits meanwhile. The kernel drops the saved ids when the thread executes a program.
pub(crate) fn assume<T>(identity: &Identity, work: impl FnOnce() -> T) -> io::Result<T> {
    if identity.is_root() {
        return Ok(work());
    }
    let before = getgroups()?;
    let changed = change(identity);
    let done = changed.map(|()| work());
    let restored = set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
        .and_then(|()| set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::from_raw(APART)))
        .and_then(|()| set_thread_groups(&before));
    if restored.is_err() {
        // Threads with mixed identities would act for each other.
        std::process::abort();
    }
    done
}

/// Makes this process one of the user, for good.
pub(crate) fn become_user(identity: &Identity) -> io::Result<()> {
    set_thread_groups(&identity.groups)?;
    set_thread_res_gid(identity.gid, identity.gid, identity.gid)?;
    Ok(set_thread_res_uid(identity.uid, identity.uid, identity.uid)?)
}

fn change(identity: &Identity) -> io::Result<()> {
    set_thread_groups(&identity.groups)?;
    set_thread_res_gid(identity.gid, identity.gid, Gid::from_raw(APART))?;
    Ok(set_thread_res_uid(identity.uid, identity.uid, Uid::ROOT)?)
}

/// Finds `name|uid[:group|gid]`; without a user, root. `None` if the user or group is unknown.
pub(crate) fn resolve(user: Option<&str>) -> Option<Identity> {
    Identity::resolve(EnvironmentFiles::Container, user.filter(|user| !user.is_empty()))
}
