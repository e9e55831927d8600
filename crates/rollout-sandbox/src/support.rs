//! What the engine supports on this machine, and how to fix what is missing.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{
    error::CreateError,
    limits::{Controllers, LimitBacking, SandboxLimits},
    wire::Probe,
};

/// How sandboxes are created on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By root.
    Root,
    /// By an ordinary user, in a user namespace in which that user is root.
    User,
}

/// What the engine supports on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Support {
    /// How sandboxes are created.
    pub mode: Mode,
    /// Whether a sandbox's changes are stored on disk; if not, they are in memory.
    pub changes_on_disk: bool,
    /// What enforces the limit on processors.
    pub cpus: LimitBacking,
    /// What enforces the limit on memory.
    pub memory: LimitBacking,
    /// What enforces the limit on processes.
    pub pids: LimitBacking,
    /// Readable notes on what is not supported or not enforced.
    pub notes: Vec<String>,
}

/// Suggests how to allow sandboxes for an ordinary user, from the settings of the machine.
pub(crate) fn advice(setting: impl Fn(&str) -> Option<String>) -> String {
    let is = |path: &str, value: &str| setting(path).is_some_and(|found| found == value);
    if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "run as root, or allow user namespaces with `sysctl -w kernel.unprivileged_userns_clone=1`".into()
    } else if is("/proc/sys/user/max_user_namespaces", "0") {
        "run as root, or allow user namespaces with `sysctl -w user.max_user_namespaces=10000`".into()
    } else if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "AppArmor restricts user namespaces: run as root, give this program an AppArmor profile with `userns,`, \
         or lift the restriction with `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
            .into()
    } else {
        "run as root; inside a container, start the container with more privileges \
         (docker run --privileged)"
            .into()
    }
}

pub(crate) fn support(probe: &Probe, controllers: &Controllers, state_dir: &Path) -> Support {
    let mut notes = Vec::new();
    if !probe.root {
        notes.push(
            "without root privileges, environments have only the user root and cannot change the host's files in /usr"
                .to_owned(),
        );
    }
    if !probe.upper_on_disk {
        notes.push(format!(
            "overlayfs does not work in {}, so files of environments are kept in memory; put the state directory on a \
             disk file system",
            state_dir.display()
        ));
    }
    if !probe.hides_abstract_sockets {
        notes.push(
            "on the host's network, environments can reach its abstract unix sockets; Linux 6.12 with Landlock hides them"
                .to_owned(),
        );
    }
    let [cpus, memory, pids] = controllers.backing();
    for (backing, what) in [(cpus, "CPUs"), (memory, "memory"), (pids, "processes")] {
        if backing == LimitBacking::None {
            notes.push(format!("limits on {what} are not enforced: cannot create cgroups for them"));
        }
    }
    let mode = if probe.root { Mode::Root } else { Mode::User };
    Support { mode, changes_on_disk: probe.upper_on_disk, cpus, memory, pids, notes }
}

/// Rejects limits above what the machine has: they would only hide that it is too small.
pub fn check_resources(limits: SandboxLimits) -> Result<(), CreateError> {
    let processors = std::thread::available_parallelism()
        .map_or(u64::MAX, |count| u64::try_from(count.get()).unwrap_or(u64::MAX).saturating_mul(1000));
    if let Some(asked) = limits.cpus_millis.filter(|asked| *asked > processors) {
        let text = |millis: u64| match millis % 1000 {
            0 => format!("{}", millis / 1000),
            part => format!("{}.{part:03}", millis / 1000),
        };
        return Err(CreateError::Resources { what: "CPUs", asked: text(asked), available: text(processors) });
    }
    let info = rustix::system::sysinfo();
    let memory = info.totalram.saturating_mul(u64::from(info.mem_unit));
    if let Some(asked) = limits.memory_bytes.filter(|asked| *asked > memory) {
        let text = |bytes: u64| format!("{} MiB", bytes >> 20);
        return Err(CreateError::Resources {
            what: "of memory",
            asked: text(asked),
            available: text(memory),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice_with(path: &str, value: &str) -> String {
        advice(|asked| (asked == path).then(|| value.to_owned()))
    }

    #[test]
    fn the_setting_that_forbids_sandboxes_is_named_with_its_remedy() {
        let clone = advice_with("/proc/sys/kernel/unprivileged_userns_clone", "0");
        assert!(clone.contains("sysctl -w kernel.unprivileged_userns_clone=1"), "{clone}");
        let count = advice_with("/proc/sys/user/max_user_namespaces", "0");
        assert!(count.contains("sysctl -w user.max_user_namespaces=10000"), "{count}");
        let apparmor = advice_with("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1");
        assert!(apparmor.contains("sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"), "{apparmor}");
    }

    #[test]
    fn what_cannot_be_enforced_is_noted_once_each() {
        let probe = Probe { root: false, upper_on_disk: false, hides_abstract_sockets: false };
        let support = support(&probe, &Controllers::default(), Path::new("/state"));
        insta::assert_snapshot!(support.notes.join("\n"), @"
        without root privileges, environments have only the user root and cannot change the host's files in /usr
        overlayfs does not work in /state, so files of environments are kept in memory; put the state directory on a disk file system
        on the host's network, environments can reach its abstract unix sockets; Linux 6.12 with Landlock hides them
        limits on CPUs are not enforced: cannot create cgroups for them
        limits on memory are not enforced: cannot create cgroups for them
        limits on processes are not enforced: cannot create cgroups for them
        ");
    }
}
