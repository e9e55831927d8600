//! Who a command runs as, by the sandbox's own /etc/passwd and /etc/group.

use std::{fs::File, io::Read};

use rollout_guest::identity::Identity;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use crate::wire::ExecFailure;

/// The longest passwd or group file that is read; the file is the sandbox's, so it can be anything.
const MAX_DATABASE: u64 = 1 << 20;

/// Makes the calling process, which is the super-user's, this user's for good.
pub(super) fn assume(identity: &Identity) -> std::io::Result<()> {
    set_thread_groups(&identity.groups)?;
    set_thread_res_gid(identity.gid, identity.gid, identity.gid)?;
    Ok(set_thread_res_uid(identity.uid, identity.uid, identity.uid)?)
}

/// Resolves `name|uid[:group|gid]`; no user is root.
pub(super) fn resolve(user: Option<&str>) -> Result<Identity, ExecFailure> {
    let found = Identity::find(user.unwrap_or("0"), &read("/etc/passwd"), &read("/etc/group"));
    found.ok_or(ExecFailure::UnknownUser)
}

fn read(path: &str) -> String {
    let mut text = Vec::new();
    let opened = openat2(
        CWD,
        path,
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_MAGICLINKS,
    );
    if let Ok(fd) = opened
        && fstat(&fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    {
        // What could be read before an error still names users.
        let _ = File::from(fd).take(MAX_DATABASE).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}
