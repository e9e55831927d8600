//! Who a command runs as, by the container's own /etc/passwd and /etc/group.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt as _,
};

use rustix::{
    fs::OFlags,
    process::{Gid, Uid, getgroups},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// The longest passwd or group file that is read: an agent may have put anything there.
const MAX_DATABASE: u64 = 1 << 20;

/// A group that is nobody's. As the saved group of this process it tells it from every other one of the
/// super-user, to whom the kernel would otherwise let those without further rights set its limits.
const APART: u32 = 65_531;

/// Sets this process apart from others of the super-user, before it has any other thread.
pub(crate) fn stand_apart() -> io::Result<()> {
    Ok(set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::from_raw(APART))?)
}

/// A user resolved to numbers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    pub(crate) home: String,
}

impl Identity {
    fn is_root(&self) -> bool {
        self.uid.is_root() && self.gid.is_root()
    }

    /// Does something as this user, in the calling thread alone.
    ///
    /// The saved ids stay the guest's, which lets the thread return, and keeps other processes of the user from
    /// changing its limits meanwhile. The kernel drops them from a program that the thread starts.
    pub(crate) fn assume<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        if self.is_root() {
            return Ok(work());
        }
        let before = getgroups()?;
        let changed = self.change();
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

    fn change(&self) -> io::Result<()> {
        set_thread_groups(&self.groups)?;
        set_thread_res_gid(self.gid, self.gid, Gid::from_raw(APART))?;
        Ok(set_thread_res_uid(self.uid, self.uid, Uid::ROOT)?)
    }
}

/// Resolves `name|uid[:group|gid]`; no user is root. `None` when there is no such user or group.
pub(crate) fn resolve(user: Option<&str>) -> Option<Identity> {
    lookup(user.filter(|user| !user.is_empty()).unwrap_or("0"), &read("/etc/passwd"), &read("/etc/group"))
}

fn read(path: &str) -> String {
    let mut text = Vec::new();
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::CLOEXEC).bits()).unwrap_or(0);
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let regular = |file: &File| file.metadata().is_ok_and(|metadata| metadata.is_file());
    if let Some(file) = opened.ok().filter(regular) {
        // What could be read before an error still names users.
        let _ = file.take(MAX_DATABASE).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn lookup(user: &str, passwd: &str, group: &str) -> Option<Identity> {
    let (user, wanted_group) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    };
    let number = user.parse::<u32>().ok();
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| {
        fields.len() >= 6 && (fields[0] == user || number.is_some_and(|uid| fields[2].parse() == Ok(uid)))
    });
    let uid = match &entry {
        Some(fields) => fields[2].parse().ok()?,
        None => number?,
    };
    let own_gid = entry.as_ref().and_then(|fields| fields[3].parse().ok()).unwrap_or(0);
    let gid = match wanted_group {
        Some(wanted) => find_group(wanted, group)?,
        None => own_gid,
    };
    let mut groups = vec![gid];
    if let (Some(fields), None) = (&entry, wanted_group) {
        groups.extend(memberships(fields[0], group).filter(|member| *member != gid));
    }
    // The all-ones id means "leave unchanged" to the kernel, which would keep the command root.
    if uid == u32::MAX || groups.contains(&u32::MAX) {
        return None;
    }
    let home = entry.map(|fields| fields[5].to_owned()).filter(|home| !home.is_empty());
    Some(Identity {
        uid: Uid::from_raw(uid),
        gid: Gid::from_raw(gid),
        groups: groups.into_iter().map(Gid::from_raw).collect(),
        home: home.unwrap_or_else(|| "/".to_owned()),
    })
}

fn find_group(wanted: &str, group: &str) -> Option<u32> {
    group
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.len() >= 3 && fields[0] == wanted)
        .and_then(|fields| fields[2].parse().ok())
        .or_else(|| wanted.parse().ok())
}

fn memberships<'a>(name: &'a str, group: &'a str) -> impl Iterator<Item = u32> + 'a {
    group.lines().filter_map(move |line| {
        let fields: Vec<_> = line.split(':').collect();
        let member = fields.len() >= 4 && fields[3].split(',').any(|member| member == name);
        member.then(|| fields[2].parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\nbroken:x\n";
    const GROUP: &str = "root:x:0:\napp:x:1001:\ndata:x:7:app,other\n";

    fn ids(user: &str) -> Option<(u32, u32, Vec<u32>, String)> {
        let identity = lookup(user, PASSWD, GROUP)?;
        let groups = identity.groups.iter().map(|gid| gid.as_raw()).collect();
        Some((identity.uid.as_raw(), identity.gid.as_raw(), groups, identity.home))
    }

    #[test]
    fn a_name_brings_its_groups_and_home() {
        assert_eq!(ids("app"), Some((1000, 1001, vec![1001, 7], "/home/app".into())));
        assert_eq!(ids("1000"), ids("app"));
    }

    #[test]
    fn a_group_replaces_the_users_own() {
        assert_eq!(ids("app:data"), Some((1000, 7, vec![7], "/home/app".into())));
        assert_eq!(ids("app:12"), Some((1000, 12, vec![12], "/home/app".into())));
        assert_eq!(ids("app:nothing"), None);
    }

    #[test]
    fn a_number_needs_no_entry() {
        assert_eq!(ids("4242"), Some((4242, 0, vec![0], "/".into())));
        assert_eq!(ids("nobody-here"), None);
        assert_eq!(ids("broken"), None);
    }

    #[test]
    fn the_id_that_would_keep_root_is_refused() {
        assert_eq!(ids("4294967295"), None);
        assert_eq!(ids("1000:4294967295"), None);
    }
}
