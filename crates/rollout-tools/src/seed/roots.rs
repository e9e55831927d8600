//! The folders beneath which paths are resolved.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{SeedError, Stamp};

/// Kernel file systems: procfs, sysfs, cgroups, debugfs, tracefs and securityfs.
const KERNEL_FILE_SYSTEMS: [u64; 7] =
    [0x9fa0, 0x6265_6572, 0x6367_7270, 0x0027_e0eb, 0x6462_6720, 0x7472_6163, 0x7363_6673];

/// Open folders, beneath which paths are resolved.
pub(crate) struct Roots {
    roots: Vec<Root>,
    narrowed: bool,
}

struct Root {
    /// The path prefixes that mean this root.
    names: Vec<PathBuf>,
    folder: Arc<OwnedFd>,
    /// The only file of the folder that may be opened, if the root is a file.
    only: Option<PathBuf>,
}

/// A file or a folder that was found beneath a root.
pub(crate) struct Found {
    pub(super) root: Arc<OwnedFd>,
    /// Its path beneath the root, never empty.
    pub(super) relative: PathBuf,
    pub(super) entry: Entry,
}

/// The file or folder at a path.
pub(super) struct Entry {
    handle: OwnedFd,
    pub(super) is_folder: bool,
    pub(super) stamp: Stamp,
}

impl Roots {
    /// Opens the configured folders, and the folders of configured files.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, SeedError> {
        let roots = paths.iter().map(|path| {
            let failed =
                |source: std::io::Error| SeedError::Root { path: path.display().to_string(), source };
            let absolute = std::path::absolute(path).map_err(failed)?;
            let mut names = vec![std::fs::canonicalize(path).map_err(failed)?];
            let (folder, only) = match names[0].is_file().then(|| names[0].clone()) {
                Some(file) => {
                    (file.parent().unwrap_or(&file).to_owned(), file.file_name().map(PathBuf::from))
                }
                None => (path.clone(), None),
            };
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder =
                rustix::fs::openat(CWD, &folder, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
            if absolute != names[0] {
                names.push(absolute);
            }
            Ok(Root { names, folder: Arc::new(folder), only })
        });
        Ok(Self { roots: roots.collect::<Result<_, SeedError>>()?, narrowed: false })
    }

    /// The roots limited to these paths.
    pub(super) fn narrowed(&self, seeds: &[String]) -> Result<Self, SeedError> {
        let narrow = |seed: &String| {
            let found = self.find(seed)?;
            let mut names = vec![clean(Path::new(seed))];
            let parents = self.roots.iter().filter(|root| Arc::ptr_eq(&root.folder, &found.root));
            names.extend(parents.flat_map(|root| &root.names).map(|name| clean(&name.join(&found.relative))));
            names.push(clean(&found.relative));
            Ok(if found.entry.is_folder {
                Root { names, folder: Arc::new(found.entry.handle), only: None }
            } else {
                names.extend(found.relative.file_name().map(PathBuf::from));
                Root { names, folder: found.root, only: Some(found.relative) }
            })
        };
        Ok(Self { roots: seeds.iter().map(narrow).collect::<Result<_, SeedError>>()?, narrowed: true })
    }

    /// Finds a path: an absolute one in the root that contains it, a relative one in the first root that has
    /// it.
    pub(super) fn find(&self, path: &str) -> Result<Found, SeedError> {
        let wanted = clean(Path::new(path));
        let (mut missing, mut outside) = (false, false);
        for (root, relative) in self.roots.iter().flat_map(|root| root.candidates(&wanted)) {
            if is_hidden(&relative) {
                return Err(SeedError::Hidden { path: path.to_owned() });
            }
            match beneath(&root.folder, &relative) {
                Ok(entry) => return Ok(Found { root: Arc::clone(&root.folder), relative, entry }),
                Err(OpenError::Missing) => missing = true,
                Err(OpenError::Outside) => outside = true,
                Err(OpenError::NotAFile) => return Err(SeedError::NotAFile { path: path.to_owned() }),
                Err(OpenError::Io(source)) => {
                    return Err(SeedError::Unreadable { path: path.to_owned(), source });
                }
            }
        }
        let path = path.to_owned();
        if missing && !outside {
            return Err(SeedError::Missing { path });
        }
        Err(if self.narrowed { SeedError::OutsideSession { path } } else { SeedError::Outside { path } })
    }
}

impl Root {
    /// The paths beneath this root that a path may mean, with the root.
    fn candidates(&self, wanted: &Path) -> Vec<(&Self, PathBuf)> {
        let stripped = self.names.iter().filter_map(|name| wanted.strip_prefix(name).ok());
        let here = |relative: &Path| {
            (self, if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative.to_owned() })
        };
        match &self.only {
            Some(only) => {
                let named = self.names.iter().any(|name| name == wanted);
                if named { vec![(self, only.clone())] } else { Vec::new() }
            }
            None if wanted.is_absolute() => stripped.map(here).collect(),
            None => stripped.chain([wanted]).map(here).collect(),
        }
    }
}

impl Entry {
    /// Opens it for reading.
    pub(super) fn open(&self) -> std::io::Result<File> {
        // Opened through the checked handle; the path could lead to something else by now.
        File::open(format!("/proc/self/fd/{}", self.handle.as_raw_fd()))
    }
}

pub(super) enum OpenError {
    Missing,
    Outside,
    NotAFile,
    Io(std::io::Error),
}

/// Resolves a path beneath a folder.
pub(super) fn beneath(folder: &OwnedFd, relative: &Path) -> Result<Entry, OpenError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let open = || rustix::fs::openat2(folder, relative, flags, Mode::empty(), resolve);
    // If a rename elsewhere in the tree disturbs the resolution, the kernel asks for a retry.
    let opened = (0..16).map(|_| open()).find(|opened| !matches!(opened, Err(Errno::AGAIN)));
    let handle = match opened.unwrap_or(Err(Errno::AGAIN)) {
        Ok(handle) => handle,
        Err(Errno::NOENT | Errno::NOTDIR) => return Err(OpenError::Missing),
        Err(Errno::XDEV | Errno::LOOP) => return Err(OpenError::Outside),
        Err(errno) => return Err(OpenError::Io(errno.into())),
    };
    let look = || Ok((rustix::fs::fstat(&handle)?, rustix::fs::fstatfs(&handle)?));
    let (stat, file_system) = look().map_err(|errno: Errno| OpenError::Io(errno.into()))?;
    if KERNEL_FILE_SYSTEMS.contains(&(file_system.f_type as u64)) {
        return Err(OpenError::NotAFile);
    }
    let is_folder = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => true,
        FileType::RegularFile => false,
        _ => return Err(OpenError::NotAFile),
    };
    Ok(Entry { handle, is_folder, stamp: Stamp::of(&stat) })
}

/// The path without `.` and doubled slashes; `..` stays, because the kernel resolves it.
fn clean(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

fn is_hidden(path: &Path) -> bool {
    path.components().any(|part| match part {
        Component::Normal(name) => name.as_encoded_bytes().starts_with(b"."),
        _ => false,
    })
}
