//! Labels that identify the process that created a container, so that a later process can check whether it is
//! alive.

use std::{collections::HashMap, fs};

use sha2::{Digest as _, Sha256};

use crate::environment::Origin;

/// The job of a container.
pub(super) const JOB: &str = "rollout.job";
/// The trial of a container.
pub(super) const TRIAL: &str = "rollout.trial";
/// The process that created a container.
pub(super) const OWNER: &str = "rollout.owner";
const BOOT: &str = "rollout.boot";
const MACHINE: &str = "rollout.machine";

/// The kind of an image made by Rollout. It is not a label of containers: a container inherits the labels of
/// its image, and one that a user starts from the image does not belong to a trial.
pub(super) const IMAGE_KIND: &str = "rollout.image";
/// The image that a snapshot was made from.
pub(super) const IMAGE_BASE: &str = "rollout.image.base";
const IMAGE_JOB: &str = "rollout.image.job";
const IMAGE_TRIAL: &str = "rollout.image.trial";
const IMAGE_OWNER: &str = "rollout.image.owner";
const IMAGE_BOOT: &str = "rollout.image.boot";

/// The identity of this process in labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pid: u32,
    /// Its start time, in clock ticks since boot, because process ids are reused.
    start: u64,
    /// The namespace of the process id.
    pid_namespace: String,
    boot: String,
    machine: String,
}

/// The state of the process that created a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    /// It is running.
    Alive,
    /// It has ended.
    Dead,
    /// It has ended, if it ran on this machine and not on a copy of it.
    Rebooted,
    /// It is not visible from here.
    Elsewhere,
}

impl Owner {
    /// Describes this process.
    pub(crate) fn current() -> Self {
        let pid = std::process::id();
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let machine = text("/etc/machine-id");
        let machine = if machine.is_empty() {
            String::new()
        } else {
            // The machine's identifier itself is confidential.
            rollout_core::text::hex(&Sha256::digest(format!("rollout {machine}")))[..16].to_owned()
        };
        Self {
            pid,
            start: match Running::find(pid) {
                Running::Since(start) => start,
                Running::Hidden | Running::No => 0,
            },
            pid_namespace: namespace.to_string_lossy().replace(['[', ']'], ""),
            boot: text("/proc/sys/kernel/random/boot_id"),
            machine,
        }
    }

    /// The labels of a container that this process creates.
    pub(crate) fn labels(&self, origin: Origin<'_>) -> HashMap<String, String> {
        [
            (JOB, origin.job.to_owned()),
            (TRIAL, origin.trial.to_owned()),
            (OWNER, self.process()),
            (BOOT, self.boot.clone()),
            (MACHINE, self.machine.clone()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    /// The labels of an image.
    pub(super) fn image_labels(&self, kind: &str, origin: Origin<'_>) -> HashMap<String, String> {
        [
            (IMAGE_KIND, kind.to_owned()),
            (IMAGE_JOB, origin.job.to_owned()),
            (IMAGE_TRIAL, origin.trial.to_owned()),
            (IMAGE_OWNER, self.process()),
            (IMAGE_BOOT, self.boot.clone()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    /// The labels of an image that is created from a container. The image inherits the container's labels,
    /// which can be emptied but not removed.
    pub(super) fn committed_labels(&self, kind: &str, origin: Origin<'_>) -> HashMap<String, String> {
        let mut labels = self.image_labels(kind, origin);
        labels.extend([JOB, TRIAL, OWNER, BOOT, MACHINE].map(|key| (key.to_owned(), String::new())));
        labels
    }

    fn process(&self) -> String {
        format!("{} {} {}", self.pid, self.start, self.pid_namespace)
    }

    /// The state of the creator of a container with these labels; `None` if Rollout did not create it.
    pub(crate) fn maker(&self, labels: &HashMap<String, String>) -> Option<Maker> {
        self.maker_by(labels, Running::find)
    }

    fn maker_by(&self, labels: &HashMap<String, String>, running: impl Fn(u32) -> Running) -> Option<Maker> {
        let label = |key: &str| labels.get(key).map(String::as_str).unwrap_or_default();
        let mut owner = label(OWNER).split(' ');
        let pid: u32 = owner.next()?.parse().ok()?;
        let start: u64 = owner.next()?.parse().ok()?;
        let pid_namespace = owner.next()?;
        let (boot, machine) = (label(BOOT), label(MACHINE));
        if boot.is_empty() || boot != self.boot {
            let rebooted = !boot.is_empty() && !machine.is_empty() && machine == self.machine;
            return Some(if rebooted { Maker::Rebooted } else { Maker::Elsewhere });
        }
        if pid_namespace != self.pid_namespace {
            return Some(Maker::Elsewhere);
        }
        Some(match running(pid) {
            Running::Since(since) if since == start => Maker::Alive,
            Running::Hidden => Maker::Alive,
            Running::Since(_) | Running::No => Maker::Dead,
        })
    }
}

/// Whether a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Running {
    Since(u64),
    /// It is, but details are hidden: /proc may show each user only their own processes.
    Hidden,
    No,
}

impl Running {
    fn find(pid: u32) -> Self {
        let exists = || {
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
        };
        match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => start_in(&stat).map_or(Self::No, Self::Since),
            Err(_) if exists() => Self::Hidden,
            Err(_) => Self::No,
        }
    }
}

/// The 22nd field of a `stat` file. The second field, a name in parentheses, may contain spaces and
/// parentheses.
fn start_in(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    // A zombie has ended, but its parent has not reaped it.
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(pid: u32, namespace: &str, boot: &str, machine: &str) -> Owner {
        Owner {
            pid,
            start: 7,
            pid_namespace: namespace.to_owned(),
            boot: boot.to_owned(),
            machine: machine.to_owned(),
        }
    }

    const ORIGIN: Origin<'_> = Origin { job: "job", trial: "a/d/t__1" };

    #[test]
    fn a_maker_lives_as_long_as_its_process_with_its_start_time() {
        let here = owner(1, "ns", "boot", "m");
        let labels = owner(5, "ns", "boot", "m").labels(ORIGIN);
        assert_eq!(
            here.maker_by(&labels, |pid| if pid == 5 { Running::Since(7) } else { Running::No }),
            Some(Maker::Alive)
        );
        assert_eq!(here.maker_by(&labels, |_| Running::Since(8)), Some(Maker::Dead));
        assert_eq!(here.maker_by(&labels, |_| Running::No), Some(Maker::Dead));
    }

    #[test]
    fn no_process_survives_a_reboot() {
        let here = owner(1, "ns", "now", "m");
        let before = owner(5, "other", "before", "m").labels(ORIGIN);
        assert_eq!(here.maker_by(&before, |_| Running::Since(7)), Some(Maker::Rebooted));
    }

    #[test]
    fn a_process_that_is_hidden_from_this_user_is_alive() {
        let here = owner(1, "ns", "boot", "m");
        let labels = owner(5, "ns", "boot", "m").labels(ORIGIN);
        assert_eq!(here.maker_by(&labels, |_| Running::Hidden), Some(Maker::Alive));
    }

    #[test]
    fn makers_on_other_machines_or_in_other_namespaces_are_unknown() {
        let here = owner(1, "ns", "boot", "m");
        for foreign in [owner(5, "ns", "other", "n"), owner(5, "other", "boot", "m"), owner(5, "ns", "", "")]
        {
            assert_eq!(
                here.maker_by(&foreign.labels(ORIGIN), |_| Running::No),
                Some(Maker::Elsewhere),
                "{foreign:?}"
            );
        }
        let unknown = owner(1, "ns", "boot", "");
        let before = owner(5, "ns", "before", "").labels(ORIGIN);
        assert_eq!(unknown.maker_by(&before, |_| Running::No), Some(Maker::Elsewhere));
    }

    #[test]
    fn a_container_that_a_user_starts_from_our_image_is_not_ours() {
        let here = owner(1, "ns", "boot", "m");
        assert_eq!(here.maker_by(&here.committed_labels("env", ORIGIN), |_| Running::No), None);
        assert_eq!(here.maker_by(&HashMap::new(), |_| Running::No), None);
    }

    #[test]
    fn this_process_is_alive() {
        let here = Owner::current();
        assert_eq!(here.maker(&here.labels(ORIGIN)), Some(Maker::Alive));
    }

    #[test]
    fn a_start_time_is_found_after_any_name() {
        let rest = "1 1 1 0 -1 4 1 0 0 0 0 0 0 0 20 0 1 0 4242 100";
        assert_eq!(start_in(&format!("12 (a) b) c) S {rest}")), Some(4242));
        assert_eq!(start_in(&format!("12 (a) Z {rest}")), None);
        assert_eq!(start_in("nonsense"), None);
    }
}
