//! Who a command runs as, by the container's own /etc/passwd and /etc/group.

use std::io;

use rollout_guest::{files::EnvironmentFiles, identity::Identity};
use rustix::{
    process::{Gid, Uid, getgroups},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// A group that is nobody's. As the saved group of this process it tells it from every other one of the
/// super-user, to whom the kernel would otherwise let those without further rights set its limits.
const APART: u32 = 65_531;

/// Sets this process apart from others of the super-user, before it has any other thread.
pub(crate) fn stand_apart() -> io::Result<()> {
    Ok(set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::from_raw(APART))?)
}

/// Does something as this user, in the calling thread alone.
///
/// The saved ids stay the guest's, which lets the thread return, and keeps other processes of the user from
/// changing its limits meanwhile. The kernel drops them from a program that the thread starts.
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
        // Threads of mixed identities would answer for each other.
        std::process::abort();
    }
    done
}

fn change(identity: &Identity) -> io::Result<()> {
    set_thread_groups(&identity.groups)?;
    set_thread_res_gid(identity.gid, identity.gid, Gid::from_raw(APART))?;
    Ok(set_thread_res_uid(identity.uid, identity.uid, Uid::ROOT)?)
}

/// Finds `name|uid[:group|gid]`; no user is root. `None` when there is no such user or group.
pub(crate) fn resolve(user: Option<&str>) -> Option<Identity> {
    Identity::resolve(EnvironmentFiles::Container, user.filter(|user| !user.is_empty()))
}
