//! The zygote: creates each sandbox's first process with one clone, and cleans up after its engine.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::Mode,
    mount::{MountPropagationFlags, mount_change},
    process::{getegid, geteuid, umask},
    thread::{CapabilitySet, UnshareFlags, capabilities},
};

use super::{mounts, privileges, relocations, seccomp::Filter, supervisor};
use rollout_guest::remove::remove_tree;

use crate::{
    cgroup::{self, Membership},
    sys::{self, Fork},
    wire::{self, Create, CreateAnswer, Hello, HelloAnswer, Probe, SetupFailure},
};

/// Serves one engine until it is gone, then removes its leftovers.
pub(super) fn run() -> io::Result<()> {
    let socket = sys::take_stdin()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    sys::dup_onto(&null, 0)?;
    umask(Mode::empty());
    sys::reset_signals();
    relocations::share();
    let Some((hello, fds)) = wire::receive::<Hello>(&socket)? else { return Ok(()) };
    let Ok([answer, lock]) = <[OwnedFd; 2]>::try_from(fds) else { return Ok(()) };
    let answer = File::from(answer);
    let mut zygote = match prepare(&hello) {
        Ok((filter, probe)) => {
            wire::answer(&answer, &HelloAnswer::Ready(probe.clone()))?;
            let private_on_disk = probe.upper_on_disk && mounts::can_execute_from(&hello.run_dir);
            let mount_point = mount_point(&hello.run_dir);
            Zygote { children: HashMap::new(), mount_point, filter, probe, private_on_disk, lock }
        }
        Err(failure) => {
            wire::answer(&answer, &HelloAnswer::Failed(failure))?;
            return Ok(());
        }
    };
    drop(answer);
    zygote.serve(&socket)?;
    drop(socket);
    zygote.wait_for_all();
    cgroup::remove_leftovers(&hello.cgroup_parents, &hello.engine_id);
    remove_tree(&hello.run_dir)
}

fn mount_point(run_dir: &Path) -> PathBuf {
    run_dir.join("mnt")
}

struct Child {
    /// Kept open until the sandbox has ended: the engine waits for its end of file.
    _lifetime: OwnedFd,
    cgroups: Vec<PathBuf>,
}

struct Zygote {
    children: HashMap<i32, Child>,
    mount_point: PathBuf,
    filter: Filter,
    probe: Probe,
    private_on_disk: bool,
    lock: OwnedFd,
}

impl Zygote {
    fn serve(&mut self, socket: &OwnedFd) -> io::Result<()> {
        let signals = sys::child_signals()?;
        loop {
            let mut ready = [PollFd::new(socket, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut ready, None))?;
            let (request, child_ended) = (!ready[0].revents().is_empty(), !ready[1].revents().is_empty());
            if child_ended {
                drain(&signals);
                self.reap();
            }
            if request {
                let Some((create, fds)) = wire::receive::<Create>(socket)? else { return Ok(()) };
                let mut fds = fds.into_iter();
                let (Some(lifetime), Some(control)) = (fds.next(), fds.next()) else { continue };
                if let Err(failure) = self.create(&create, &lifetime, control, fds.next()) {
                    // The engine may have stopped waiting for the answer.
                    let _ = wire::answer(File::from(lifetime), &CreateAnswer::Failed(failure));
                }
            }
        }
    }

    fn create(
        &mut self,
        create: &Create,
        lifetime: &OwnedFd,
        control: OwnedFd,
        nested: Option<OwnedFd>,
    ) -> Result<(), SetupFailure> {
        for part in &create.parts {
            if create.upper_on_disk {
                mounts::backing_dirs(&create.dir, &part.name)
                    .map_err(|error| SetupFailure::new("creating the sandbox's directories", error))?;
            }
        }
        let cgroups: Vec<PathBuf> = create.cgroups.iter().map(|spec| spec.dir.clone()).collect();
        let membership = Membership::create(&create.cgroups);
        let result = membership
            .and_then(|membership| self.clone_supervisor(create, lifetime, &control, nested, membership));
        match result {
            Ok((pid, lifetime)) => {
                self.children.insert(pid, Child { _lifetime: lifetime, cgroups });
                Ok(())
            }
            Err(failure) => {
                cgroup::remove(&cgroups);
                Err(failure)
            }
        }
    }

    fn clone_supervisor(
        &self,
        create: &Create,
        lifetime: &OwnedFd,
        control: &OwnedFd,
        nested: Option<OwnedFd>,
        membership: Membership,
    ) -> Result<(i32, OwnedFd), SetupFailure> {
        let lifetime =
            lifetime.try_clone().map_err(|error| SetupFailure::new("duplicating a pipe", error))?;
        let mut namespaces = libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWCGROUP;
        if create.own_network {
            namespaces |= libc::CLONE_NEWNET;
        }
        match sys::fork_into(namespaces) {
            Ok(Fork::Parent(pid)) => Ok((pid, lifetime)),
            Ok(Fork::Child) => supervisor::run(supervisor::Setup {
                create,
                root: self.probe.root,
                hide_abstract_sockets: self.probe.hides_abstract_sockets && !create.own_network,
                mount_point: &self.mount_point,
                filter: &self.filter,
                membership,
                lifetime: lifetime.as_fd(),
                control: control.as_fd(),
                nested,
                private_on_disk: self.private_on_disk,
                lock: self.lock.as_fd(),
            }),
            Err(error) => Err(SetupFailure::new("creating the namespaces", error)),
        }
    }

    fn reap(&mut self) {
        while let Ok(Some((pid, _))) = sys::reap(-1, false) {
            self.forget(pid);
        }
    }

    fn wait_for_all(&mut self) {
        while let Ok(Some((pid, _))) = sys::reap(-1, true) {
            self.forget(pid);
        }
    }

    fn forget(&mut self, pid: i32) {
        if let Some(child) = self.children.remove(&pid) {
            cgroup::remove(&child.cgroups);
        }
    }
}

/// Drains a signal descriptor, so that it reports only later signals.
pub(super) fn drain(signals: &OwnedFd) {
    let mut buffer = [0; 1024];
    while rustix::io::read(signals, &mut buffer).is_ok_and(|read| read > 0) {}
}

/// Moves into new namespaces and checks what the machine supports.
fn prepare(hello: &Hello) -> Result<(Filter, Probe), SetupFailure> {
    let privileged = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    if privileged {
        unshare(UnshareFlags::NEWNS)
            .map_err(|error| SetupFailure::new("creating a mount namespace", error))?;
    } else {
        enter_user_namespace()?;
    }
    let root = privileged && in_initial_user_namespace();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|error| SetupFailure::new(private_mounts(error), error))?;
    let mount_point = mount_point(&hello.run_dir);
    fs::create_dir_all(&mount_point)
        .map_err(|error| SetupFailure::new(format!("making {}", mount_point.display()), error))?;
    privileges::limit_all().map_err(|error| SetupFailure::new("limiting privileges", error))?;
    let upper_on_disk = mounts::probe_overlay(&hello.run_dir, &mount_point, root)?;
    let filter =
        install_filter().map_err(|error| SetupFailure::new("installing the system call filter", error))?;
    Ok((filter, Probe { root, upper_on_disk, hides_abstract_sockets: sys::can_hide_abstract_sockets() }))
}

/// What was attempted, with a hint for a root that is not a mount.
fn private_mounts(error: rustix::io::Errno) -> &'static str {
    if error == rustix::io::Errno::INVAL {
        "making the mounts private: the root directory is not a mount (before chroot, run `mount --bind DIR DIR`)"
    } else {
        "making the mounts private"
    }
}

/// Installs the filter that sandboxes inherit, and returns the one that each of them installs itself.
fn install_filter() -> io::Result<Filter> {
    Filter::for_all()?.apply()?;
    Filter::for_inside()
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the zygote is single-threaded, and none of the flags it passes separates descriptors.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

fn enter_user_namespace() -> Result<(), SetupFailure> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
        .map_err(|error| SetupFailure::new("creating a user namespace", error))?;
    for (file, value) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {uid} 1")),
        ("/proc/self/gid_map", format!("0 {gid} 1")),
    ] {
        fs::write(file, value).map_err(|error| SetupFailure::new(format!("writing {file}"), error))?;
    }
    Ok(())
}

fn in_initial_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_root_that_is_not_a_mount_gets_a_hint() {
        let (step, error) = SetupFailure::new(private_mounts(Errno::INVAL), Errno::INVAL).into_io();
        assert!(step.starts_with("making the mounts private"), "{step}");
        assert!(step.contains("before chroot, run `mount --bind DIR DIR`"), "{step}");
        assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
        assert_eq!(private_mounts(Errno::PERM), "making the mounts private");
    }
}
