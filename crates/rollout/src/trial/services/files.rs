//! Files of the task that services mount. They are copied, so that no service changes the task, and so that the
//! engine may be on another machine.

use std::path::{Path, PathBuf};

use rollout_env::compose::{ComposeFile, MountSource, ServiceMount};

/// How the files that services mount reach them.
#[derive(Debug, PartialEq, Eq, Default)]
pub(super) struct MountPlan {
    /// Directories that several services share, of which one writes: each becomes a volume.
    shared: Vec<PathBuf>,
}

/// A mount of a service, as it is made.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MountAction<'a> {
    /// A volume, by its name in the group.
    Volume(String),
    /// A copy of files of the task.
    Copy(&'a Path),
}

impl MountPlan {
    /// Plans the mounts of all services.
    pub(super) fn new(compose: &ComposeFile) -> Self {
        let mounts = || compose.services.iter().flat_map(|service| &service.mounts);
        let mut shared: Vec<PathBuf> = Vec::new();
        for mount in mounts() {
            let MountSource::Files(path) = &mount.source else { continue };
            let same = || mounts().filter(|other| other.source == mount.source);
            let is_shared = same().count() > 1 && same().any(|other| !other.read_only);
            if is_shared && !path.is_file() && !shared.contains(path) {
                shared.push(path.clone());
            }
        }
        Self { shared }
    }

    /// The volumes of the group: those of the file, and one for each shared directory.
    pub(super) fn volumes(&self, compose: &ComposeFile) -> Vec<String> {
        let own = (0..self.shared.len()).map(shared_name);
        compose.volumes.iter().cloned().chain(own).collect()
    }

    /// How a mount is made.
    pub(super) fn action<'a>(&self, mount: &'a ServiceMount) -> MountAction<'a> {
        match &mount.source {
            MountSource::Volume(name) => MountAction::Volume(name.clone()),
            MountSource::Files(path) => match self.shared.iter().position(|shared| shared == path) {
                Some(number) => MountAction::Volume(shared_name(number)),
                None => MountAction::Copy(path),
            },
        }
    }

    /// The files that a service copies to a path of its own: all of its files, and those of shared directories that it
    /// is the first to write to.
    pub(super) fn copies<'a>(&self, compose: &'a ComposeFile, service: &str) -> Vec<(&'a Path, &'a str)> {
        let of = |name: &str| compose.services.iter().find(|service| service.name == name);
        let mounts = of(service).map(|service| service.mounts.as_slice()).unwrap_or_default();
        let fills = |mount: &ServiceMount| {
            let writer = compose.services.iter().find(|service| {
                service.mounts.iter().any(|other| other.source == mount.source && !other.read_only)
            });
            writer.is_some_and(|writer| writer.name == service) && !mount.read_only
        };
        let mut copies = Vec::new();
        for mount in mounts {
            let MountSource::Files(path) = &mount.source else { continue };
            if matches!(self.action(mount), MountAction::Copy(_)) || fills(mount) {
                copies.push((path.as_path(), mount.target.as_str()));
            }
        }
        copies
    }
}

fn shared_name(number: usize) -> String {
    format!("files-{number}")
}
