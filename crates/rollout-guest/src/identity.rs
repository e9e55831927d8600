//! Finds the user of a command in the user files of a container or sandbox, which are not trusted.

use rustix::process::{Gid, Uid};

use crate::files::EnvironmentFiles;

/// The most bytes of a passwd or group file that are read, because an agent may have replaced it.
const MAX_DATABASE: u64 = 1 << 20;

/// A user with its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user id.
    pub uid: Uid,
    /// The primary group.
    pub gid: Gid,
    /// All groups.
    pub groups: Vec<Gid>,
    /// The home directory.
    pub home: String,
}

impl Identity {
    /// Whether the user is root.
    pub fn is_root(&self) -> bool {
        self.uid.is_root() && self.gid.is_root()
    }

    /// Finds `name|uid[:group|gid]` in an environment's own files; without a user, root. `None` if the user or
    /// group is unknown.
    pub fn resolve(files: EnvironmentFiles, user: Option<&str>) -> Option<Self> {
        let read = |path| files.read_text(path, MAX_DATABASE);
        Self::find(user.unwrap_or("0"), &read(c"/etc/passwd"), &read(c"/etc/group"))
    }

    /// Finds `name|uid[:group|gid]` in the texts of /etc/passwd and /etc/group. `None` if the user or group is
    /// unknown.
    fn find(user: &str, passwd: &str, group: &str) -> Option<Self> {
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
        // To the kernel, the all-ones id means "leave unchanged", which would keep the command running as root.
        if uid == u32::MAX || groups.contains(&u32::MAX) {
            return None;
        }
        let home = entry.map(|fields| fields[5].to_owned()).filter(|home| !home.is_empty());
        Some(Self {
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(gid),
            groups: groups.into_iter().map(Gid::from_raw).collect(),
            home: home.unwrap_or_else(|| "/".to_owned()),
        })
    }
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
        let identity = Identity::find(user, PASSWD, GROUP)?;
        let groups = identity.groups.iter().map(|gid| gid.as_raw()).collect();
        Some((identity.uid.as_raw(), identity.gid.as_raw(), groups, identity.home))
    }

    #[test]
    fn a_name_has_its_groups_and_home() {
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
        assert_eq!(ids("unknown-user"), None);
        assert_eq!(ids("broken"), None);
    }

    #[test]
    fn the_id_that_would_keep_root_is_rejected() {
        assert_eq!(ids("4294967295"), None);
        assert_eq!(ids("1000:4294967295"), None);
    }
}
