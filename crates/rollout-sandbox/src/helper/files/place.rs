//! The targets of a build's copies inside a sandbox: directories that are created with their owner, and links that
//! lead elsewhere.

use std::{
    ffi::CString,
    io::Read as _,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use rollout_guest::{
    FileLookup,
    files::{FileCause, FileFailure, FileResult, components, os},
};
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, mkdirat, openat, readlinkat, statat,
    },
    io::Errno,
};

use super::FILES;

/// The mode of directories that are created on the way to a target.
const NEW_DIR: Mode = Mode::from_bits_retain(0o755);

/// The most bytes of a passwd or group file that are read.
const MAX_DATABASE: u64 = 1 << 20;

/// The most links that a target may lead through.
const MAX_LINKS: usize = 40;

/// A user and a group.
pub(super) type Owner = (Uid, Gid);

/// Where files are written.
pub(super) enum Place {
    /// Into this directory.
    Dir(OwnedFd),
    /// To this name in this directory.
    File(OwnedFd, CString),
}

/// Finds `user[:group]` by name or number, as Docker does for `--chown`: a number without a group is also the group.
pub(super) fn find_owner(spec: &str) -> FileResult<Owner> {
    let unknown = || {
        let cause = FileCause::Os { step: "finding the owner".into(), errno: Errno::NOENT.raw_os_error() };
        FileFailure::new(spec, cause)
    };
    let found = resolve(spec, &database("/etc/passwd"), &database("/etc/group")).ok_or_else(unknown)?;
    Ok((Uid::from_raw(found.0), Gid::from_raw(found.1)))
}

fn resolve(spec: &str, passwd: &str, group: &str) -> Option<(u32, u32)> {
    let (user, wanted) = match spec.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (spec, None),
    };
    let fields = |text: &str, name: &str| {
        let lines = text.lines().map(|line| line.split(':').map(str::to_owned).collect::<Vec<_>>());
        lines.into_iter().find(|fields| fields.first().is_some_and(|first| first == name))
    };
    let (uid, own_gid) = match user.parse::<u32>() {
        Ok(uid) => (uid, uid),
        Err(_) => {
            let entry = fields(passwd, user)?;
            (entry.get(2)?.parse().ok()?, entry.get(3)?.parse().ok()?)
        }
    };
    let gid = match wanted {
        None => own_gid,
        Some(wanted) => match wanted.parse::<u32>() {
            Ok(gid) => gid,
            Err(_) => fields(group, wanted)?.get(2)?.parse().ok()?,
        },
    };
    // To the kernel, the all-ones id means "leave unchanged".
    (uid != u32::MAX && gid != u32::MAX).then_some((uid, gid))
}

fn database(path: &str) -> String {
    let mut text = Vec::new();
    if let Ok(FileLookup::File(file)) = FILES.find(path, MAX_DATABASE) {
        // The bytes read before an error are used.
        let _ = file.take(MAX_DATABASE).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Opens a directory. Missing ones on the way are created and get the owner.
pub(super) fn make_dirs(path: &str, owner: Option<Owner>) -> FileResult<OwnedFd> {
    let mut dir = FILES.open_dir(CWD, c"/", "/")?;
    for name in components(path)? {
        dir = enter(&dir, &name, owner, path)?;
    }
    Ok(dir)
}

/// Opens a directory of a directory, and creates it if it is missing. A link to a directory is followed.
pub(super) fn enter(
    parent: &OwnedFd,
    name: &CString,
    owner: Option<Owner>,
    shown: &str,
) -> FileResult<OwnedFd> {
    match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => {}
        Err(Errno::EXIST) => return FILES.open_dir(parent.as_fd(), name, shown),
        // The entry may exist in a read-only directory.
        Err(error @ (Errno::ROFS | Errno::ACCESS)) => {
            let opened = FILES.open_dir(parent.as_fd(), name, shown);
            return opened.map_err(|_| os("making", shown)(error));
        }
        Err(error) => return Err(os("making", shown)(error)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(parent, name, flags, Mode::empty()).map_err(os("opening", shown))?;
    if let Some((user, group)) = owner {
        fchown(&made, Some(user), Some(group)).map_err(os("setting the owner of", shown))?;
    }
    fchmod(&made, NEW_DIR).map_err(os("setting the mode of", shown))?;
    Ok(made)
}

/// Finds where a single file is written: into an existing directory, or to the path itself. If the path is a link, to
/// what it leads to.
pub(super) fn place_file(target: &str, owner: Option<Owner>) -> FileResult<Place> {
    let mut path = target.to_owned();
    for _ in 0..MAX_LINKS {
        let mut names = components(&path)?;
        let Some(last) = names.pop() else { return make_dirs("/", owner).map(Place::Dir) };
        let parent = names
            .iter()
            .try_fold(FILES.open_dir(CWD, c"/", "/")?, |dir, name| enter(&dir, name, owner, target))?;
        let kind = match statat(&parent, &last, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(Errno::NOENT) => return Ok(Place::File(parent, last)),
            Err(error) => return Err(os("examining", target)(error)),
        };
        match kind {
            FileType::Directory => return FILES.open_dir(parent.as_fd(), &last, target).map(Place::Dir),
            FileType::Symlink => {
                let link = readlinkat(&parent, &last, Vec::new()).map_err(os("reading", target))?;
                let link = link.to_string_lossy().into_owned();
                path = match link.starts_with('/') {
                    true => link,
                    // Relative to the directory itself, not to the path by which it was reached.
                    false => format!("{}/{link}", real_path(&parent, target)?),
                };
            }
            _ => return Ok(Place::File(parent, last)),
        }
    }
    Err(os("following the links of", target)(Errno::LOOP))
}

/// The path of an open directory.
fn real_path(dir: &OwnedFd, shown: &str) -> FileResult<String> {
    let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let path = readlinkat(CWD, link, Vec::new()).map_err(os("finding", shown))?;
    Ok(path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\nbroken:x\n";
    const GROUP: &str = "root:x:0:\napp:x:1001:\nstaff:x:50:app\n";

    #[test]
    fn owners_are_those_that_docker_finds() {
        for (spec, expected) in [
            ("app", Some((1000, 1001))),
            ("app:staff", Some((1000, 50))),
            ("app:", Some((1000, 1001))),
            ("33", Some((33, 33))),
            ("33:44", Some((33, 44))),
            ("0:staff", Some((0, 50))),
            ("nobody", None),
            ("app:nothing", None),
            ("broken", None),
            ("4294967295", None),
            ("", None),
        ] {
            assert_eq!(resolve(spec, PASSWD, GROUP), expected, "{spec}");
        }
    }
}
