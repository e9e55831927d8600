//! The limits of a sandbox, and the cgroups that enforce them on this machine.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::wire::CgroupSpec;

/// The parent of all sandboxes' cgroups.
const PARENT: &str = "rollout";
/// The period of the CPU quota, in microseconds.
const CPU_PERIOD: u64 = 100_000;

/// The resource limits of a sandbox; `None` means unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLimits {
    /// Processor time, in thousandths of one processor.
    pub cpus_millis: Option<u64>,
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at the same time.
    pub pids: Option<u64>,
}

/// Which limits of a sandbox are enforced. A limit that was not requested is not enforced either.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforced {
    /// The CPU limit is enforced.
    pub cpus: bool,
    /// The memory limit is enforced.
    pub memory: bool,
    /// The process limit is enforced.
    pub pids: bool,
}

/// What enforces a limit on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitBacking {
    /// The unified cgroup hierarchy.
    CgroupV2,
    /// A separate cgroup hierarchy for the controller.
    CgroupV1,
    /// The limit is not enforced.
    None,
}

/// Where the cgroups of one controller are created.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CgroupParent {
    V1(PathBuf),
    V2(PathBuf),
}

/// The cgroup controllers that this machine lets sandboxes use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Controllers {
    cpu: Option<CgroupParent>,
    memory: Option<CgroupParent>,
    pids: Option<CgroupParent>,
}

impl Controllers {
    /// Finds the cgroup hierarchies and creates the parents of all sandboxes' cgroups. Blocks.
    pub(crate) fn detect() -> Controllers {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Controllers::detect_in(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
    }

    fn detect_in(mountinfo: &str, own: &str) -> Controllers {
        let mounts: Vec<Mount> = mountinfo.lines().filter_map(Mount::parse).collect();
        let unified =
            mounts.iter().find(|mount| mount.kind == "cgroup2").and_then(|mount| unified_parent(mount, own));
        let place = |controller: &str| {
            if let Some((parent, controllers)) = &unified
                && controllers.iter().any(|name| name == controller)
            {
                return Some(CgroupParent::V2(parent.clone()));
            }
            let of_controller =
                |mount: &&Mount| mount.kind == "cgroup" && mount.options.contains(&controller);
            let parent = Path::new(mounts.iter().find(of_controller)?.point).join(PARENT);
            make_parent(&parent).ok()?;
            Some(CgroupParent::V1(parent))
        };
        Controllers { cpu: place("cpu"), memory: place("memory"), pids: place("pids") }
    }

    /// The directories in which sandboxes' cgroups are created.
    pub(crate) fn parents(&self) -> Vec<PathBuf> {
        let mut parents: Vec<PathBuf> = [&self.cpu, &self.memory, &self.pids]
            .into_iter()
            .flatten()
            .map(|(CgroupParent::V1(parent) | CgroupParent::V2(parent))| parent.clone())
            .collect();
        parents.sort();
        parents.dedup();
        parents
    }

    /// What enforces the limits on processors, memory and processes.
    pub(crate) fn backing(&self) -> [LimitBacking; 3] {
        [&self.cpu, &self.memory, &self.pids].map(|place| match place {
            Some(CgroupParent::V1(_)) => LimitBacking::CgroupV1,
            Some(CgroupParent::V2(_)) => LimitBacking::CgroupV2,
            None => LimitBacking::None,
        })
    }

    /// The cgroups to create for a sandbox's limits, and which limits they enforce.
    pub(crate) fn plan(&self, id: &str, limits: SandboxLimits) -> (Vec<CgroupSpec>, Enforced) {
        let mut plan = Plan { id, specs: Vec::new() };
        let cpus = plan.add(&self.cpu, limits.cpus_millis, |place, millis| {
            let quota = (millis * CPU_PERIOD / 1000).max(1000);
            match place {
                CgroupParent::V2(_) => vec![("cpu.max".into(), format!("{quota} {CPU_PERIOD}"))],
                CgroupParent::V1(_) => vec![
                    ("cpu.cfs_period_us".into(), CPU_PERIOD.to_string()),
                    ("cpu.cfs_quota_us".into(), quota.to_string()),
                ],
            }
        });
        let memory = plan.add(&self.memory, limits.memory_bytes, |place, bytes| {
            let (limit, swap, swap_limit) = match place {
                CgroupParent::V2(parent) => ("memory.max", parent.join("memory.swap.max"), "0".to_owned()),
                CgroupParent::V1(parent) => {
                    let swap = parent.join("memory.memsw.limit_in_bytes");
                    ("memory.limit_in_bytes", swap, bytes.to_string())
                }
            };
            let mut writes = vec![(limit.to_owned(), bytes.to_string())];
            // Some kernels do not account for swap.
            if let (true, Some(name)) = (swap.exists(), swap.file_name().and_then(|name| name.to_str())) {
                writes.push((name.to_owned(), swap_limit));
            }
            writes
        });
        let pids = plan.add(&self.pids, limits.pids, |_, pids| vec![("pids.max".into(), pids.to_string())]);
        (plan.specs, Enforced { cpus, memory, pids })
    }
}

struct Plan<'a> {
    id: &'a str,
    specs: Vec<CgroupSpec>,
}

impl Plan<'_> {
    /// Adds one limit; `false` if it was not requested or cannot be enforced.
    fn add(
        &mut self,
        place: &Option<CgroupParent>,
        limit: Option<u64>,
        writes: impl FnOnce(&CgroupParent, u64) -> Vec<(String, String)>,
    ) -> bool {
        let (Some(place), Some(limit)) = (place, limit) else { return false };
        let writes = writes(place, limit);
        let (CgroupParent::V1(parent) | CgroupParent::V2(parent)) = place;
        let dir = parent.join(self.id);
        let unified = matches!(place, CgroupParent::V2(_));
        let is_memory = writes.iter().any(|(file, _)| file.starts_with("memory."));
        let oom = is_memory.then(|| if unified { "memory.events" } else { "memory.oom_control" }.to_owned());
        match self.specs.iter_mut().find(|spec| spec.dir == dir) {
            Some(spec) => {
                spec.writes.extend(writes);
                spec.oom = spec.oom.take().or(oom);
            }
            None => {
                // Joining through the tasks file takes no lock that is shared by all processes.
                let join = if unified { "cgroup.procs" } else { "tasks" }.to_owned();
                self.specs.push(CgroupSpec { dir, writes, join, oom });
            }
        }
        true
    }
}

/// The fields of a mountinfo line that cgroups need.
struct Mount<'a> {
    point: &'a str,
    kind: &'a str,
    options: Vec<&'a str>,
}

impl Mount<'_> {
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = file_system.split(' ');
        let kind = fields.next()?;
        let options = fields.nth(1)?.split(',').collect();
        Some(Mount { point: mount.split(' ').nth(4)?, kind, options })
    }
}

/// Creates the parent of a controller's cgroups and checks that it can have children.
fn make_parent(parent: &Path) -> io::Result<()> {
    fs::create_dir_all(parent)?;
    Ok(rustix::fs::access(parent, rustix::fs::Access::WRITE_OK)?)
}

/// The cgroup of the unified hierarchy that can delegate controllers to sandboxes' cgroups: of those that can, the one
/// with the most controllers, and of these the nearest. A service often has `memory` and `pids` only, and its slice
/// `cpu` too.
fn unified_parent(mount: &Mount<'_>, own: &str) -> Option<(PathBuf, Vec<String>)> {
    let root = Path::new(mount.point);
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let own = root.join(own.trim_start_matches('/'));
    // A cgroup that contains processes, such as our own, cannot delegate controllers; only the root can.
    let ancestors = own.ancestors().skip(usize::from(own != root)).take_while(|dir| dir.starts_with(root));
    let mut candidates: Vec<(&Path, usize)> =
        ancestors.map(|dir| (dir, controllers_of(dir).map_or(0, |names| names.len()))).collect();
    candidates.retain(|(_, count)| *count > 0);
    // A stable sort, which leaves the nearest first.
    candidates.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    candidates.into_iter().find_map(|(dir, _)| hand_on(dir).ok())
}

/// The controllers of limits that a cgroup has.
fn controllers_of(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = names(dir, "cgroup.controllers")?;
    names.retain(|name| matches!(name.as_str(), "cpu" | "memory" | "pids"));
    Ok(names)
}

/// The names in a file of a cgroup.
fn names(dir: &Path, file: &str) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(dir.join(file))?;
    Ok(text.split_whitespace().map(|name| name.trim_start_matches('+').to_owned()).collect())
}

fn hand_on(dir: &Path) -> io::Result<(PathBuf, Vec<String>)> {
    let wanted = controllers_of(dir)?;
    let enable = wanted.iter().map(|name| format!("+{name}")).collect::<Vec<_>>().join(" ");
    let handed_on = names(dir, "cgroup.subtree_control").unwrap_or_default();
    if !wanted.iter().all(|name| handed_on.contains(name)) {
        fs::write(dir.join("cgroup.subtree_control"), &enable)?;
    }
    let parent = dir.join(PARENT);
    make_parent(&parent)?;
    fs::write(parent.join("cgroup.subtree_control"), &enable)?;
    let enabled = names(&parent, "cgroup.subtree_control")?;
    Ok((parent, enabled))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> SandboxLimits {
        SandboxLimits { cpus_millis: Some(1500), memory_bytes: Some(1 << 30), pids: Some(100) }
    }

    #[test]
    fn the_unified_hierarchy_takes_all_limits_in_one_cgroup() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpuset cpu io memory pids").unwrap();
        fs::create_dir_all(root.path().join("user.slice/own")).unwrap();
        let mountinfo = format!("30 23 0:26 / {} rw - cgroup2 cgroup2 rw", root.path().display());
        let controllers = Controllers::detect_in(&mountinfo, "0::/user.slice/own\n");
        assert_eq!(controllers.backing(), [LimitBacking::CgroupV2; 3]);
        let (specs, enforced) = controllers.plan("x-1", limits());
        assert_eq!(enforced, Enforced { cpus: true, memory: true, pids: true });
        let [spec] = &specs[..] else { panic!("{specs:?}") };
        assert_eq!(spec.dir, root.path().join("rollout/x-1"));
        let writes: Vec<_> = spec.writes.iter().map(|(file, value)| format!("{file} {value}")).collect();
        assert_eq!(writes, ["cpu.max 150000 100000", "memory.max 1073741824", "pids.max 100"]);
        assert_eq!((spec.join.as_str(), spec.oom.as_deref()), ("cgroup.procs", Some("memory.events")));
    }

    #[test]
    fn a_cgroup_with_all_controllers_is_preferred_to_a_nearer_one_with_some() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("system.slice/runner.service/own");
        fs::create_dir_all(&own).unwrap();
        for (dir, names) in [("", "cpu memory pids"), ("system.slice", "cpu io memory pids")] {
            fs::write(root.path().join(dir).join("cgroup.controllers"), names).unwrap();
        }
        fs::write(own.parent().unwrap().join("cgroup.controllers"), "memory pids").unwrap();
        let mountinfo = format!("30 23 0:26 / {} rw - cgroup2 cgroup2 rw", root.path().display());
        let controllers = Controllers::detect_in(&mountinfo, "0::/system.slice/runner.service/own\n");
        let (specs, enforced) = controllers.plan("x-1", limits());
        assert_eq!(enforced, Enforced { cpus: true, memory: true, pids: true });
        assert_eq!(specs[0].dir, root.path().join("system.slice/rollout/x-1"));
    }

    #[test]
    fn hierarchies_of_their_own_get_one_cgroup_for_each_limit_asked_for() {
        let root = tempfile::tempdir().unwrap();
        let mount = |name: &str| {
            let point = root.path().join(name);
            fs::create_dir_all(&point).unwrap();
            format!("30 23 0:26 / {} rw shared:9 - cgroup cgroup rw,{name}", point.display())
        };
        let mountinfo = ["cpu", "memory", "pids"].map(mount).join("\n");
        let controllers = Controllers::detect_in(&mountinfo, "4:memory:/a\n0::/\n");
        assert_eq!(controllers.backing(), [LimitBacking::CgroupV1; 3]);
        let asked = SandboxLimits { cpus_millis: None, ..limits() };
        let (specs, enforced) = controllers.plan("x-1", asked);
        assert_eq!(enforced, Enforced { cpus: false, memory: true, pids: true });
        let dirs: Vec<_> =
            specs.iter().map(|spec| spec.dir.strip_prefix(root.path()).unwrap().to_owned()).collect();
        assert_eq!(dirs, [Path::new("memory/rollout/x-1"), Path::new("pids/rollout/x-1")]);
        assert!(specs.iter().all(|spec| spec.join == "tasks"));
    }

    #[test]
    fn without_cgroups_nothing_is_enforced() {
        let controllers = Controllers::detect_in("22 1 0:5 / /proc rw - proc proc rw\n", "");
        assert_eq!(controllers, Controllers::default());
        assert_eq!(controllers.plan("x", limits()), (Vec::new(), Enforced::default()));
    }
}
