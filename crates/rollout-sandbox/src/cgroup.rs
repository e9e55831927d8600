//! Cgroups of a sandbox: creating and joining them, counting out-of-memory kills, removing them.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::fd::{AsRawFd, RawFd},
    path::PathBuf,
};

use crate::wire::{CgroupSpec, SetupFailure};

/// The open files that a sandbox's processes use to join its cgroups, and its supervisor to watch them.
#[derive(Default)]
pub(crate) struct Membership {
    join: Vec<File>,
    oom: Option<File>,
}

impl Membership {
    /// Creates the cgroups and opens their files.
    pub(crate) fn create(specs: &[CgroupSpec]) -> Result<Membership, SetupFailure> {
        let mut membership = Membership::default();
        for spec in specs {
            let failure = |error: io::Error| {
                SetupFailure::new(format!("creating the cgroup {}", spec.dir.display()), error)
            };
            fs::create_dir_all(&spec.dir).map_err(failure)?;
            for (file, value) in &spec.writes {
                fs::write(spec.dir.join(file), value).map_err(|error| {
                    SetupFailure::new(format!("writing {value} to {}", spec.dir.join(file).display()), error)
                })?;
            }
            membership
                .join
                .push(File::options().write(true).open(spec.dir.join(&spec.join)).map_err(failure)?);
            if let Some(oom) = &spec.oom {
                membership.oom = Some(File::open(spec.dir.join(oom)).map_err(failure)?);
            }
        }
        Ok(membership)
    }

    /// Moves the calling process into the cgroups.
    pub(crate) fn join(&self) -> io::Result<()> {
        self.join.iter().try_for_each(|mut file| file.write_all(b"0"))
    }

    /// The number of processes killed because the memory limit was reached.
    pub(crate) fn oom_kills(&self) -> u64 {
        self.oom.as_ref().and_then(rollout_guest::memory::oom_kills).unwrap_or(0)
    }

    pub(crate) fn raw_fds(&self) -> impl Iterator<Item = RawFd> {
        self.join.iter().chain(&self.oom).map(AsRawFd::as_raw_fd)
    }
}

/// Removes cgroups whose processes have all ended.
pub(crate) fn remove(dirs: &[PathBuf]) {
    for dir in dirs {
        // A process that was just reaped can keep its cgroup busy for a moment.
        for _ in 0..100 {
            match fs::remove_dir(dir) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                _ => break,
            }
        }
    }
}

/// Removes every cgroup that a dead engine left.
pub(crate) fn remove_leftovers(parents: &[PathBuf], engine_id: &str) {
    for parent in parents {
        let Ok(entries) = fs::read_dir(parent) else { continue };
        let left = entries.filter_map(|entry| {
            let entry = entry.ok()?;
            entry.file_name().to_str()?.starts_with(engine_id).then(|| entry.path())
        });
        remove(&left.collect::<Vec<_>>());
    }
}
