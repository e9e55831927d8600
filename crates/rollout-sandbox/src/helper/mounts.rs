//! The mounts of a sandbox: its overlay root, /proc, /dev and /sys.

use std::{
    collections::BTreeSet,
    ffi::CString,
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, StatVfsMountFlags, makedev, mknodat, statvfs, symlinkat},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, mount_bind,
        mount_bind_recursive, mount_move, mount_remount, move_mount, open_tree, unmount,
    },
    process::{chdir, pivot_root},
};

use crate::{
    sys,
    wire::{Create, ExtraMount, MountSource, PartMount, SetupFailure},
};

/// Devices of the host that every sandbox gets, with their numbers.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// Files of /proc that expose or control the whole machine.
const MASKED_FILES: [&str; 7] =
    ["kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "sysrq-trigger"];
const MASKED_DIRS: [&str; 3] = ["acpi", "asound", "scsi"];
const READ_ONLY: [&str; 4] = ["bus", "fs", "irq", "sys"];

/// The longest option string of the old mount call, with room for its terminator.
const MAX_OPTIONS: usize = 4000;

const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Returns whether an overlay can have its upper directory on the disk; if not, checks that a tmpfs works.
pub(super) fn probe_overlay(run_dir: &Path, mount_point: &Path, root: bool) -> Result<bool, SetupFailure> {
    let probe = run_dir.join("probe");
    let attempt = |base: &Path| {
        fs::create_dir_all(base.join("lower"))?;
        backing_dirs(base, "root")?;
        let part = PartMount { name: "root".into(), target: String::new(), lower: vec![base.join("lower")] };
        overlay(&part, base, mount_point, root)?;
        // Some file systems reject whiteouts, and only when the first one is created.
        let marker = mount_point.join("marker");
        let made = fs::write(&marker, "").and_then(|()| fs::remove_file(&marker));
        unmount(mount_point, UnmountFlags::DETACH)?;
        made
    };
    let on_disk = attempt(&probe);
    // Leftovers are removed with the whole run directory.
    let _ = rollout_guest::remove::remove_tree(&probe);
    if on_disk.is_ok() {
        return Ok(true);
    }
    fs::create_dir_all(&probe).map_err(|error| SetupFailure::new("creating a probe directory", error))?;
    mount("tmpfs", &probe, "tmpfs", PLAIN, None)
        .map_err(|error| SetupFailure::new("mounting a tmpfs", error))?;
    let on_tmpfs = attempt(&probe);
    // The mount disappears with the zygote's namespace at the latest.
    let _ = unmount(&probe, UnmountFlags::DETACH);
    match on_tmpfs {
        Ok(()) => Ok(false),
        Err(error) => Err(SetupFailure::new("mounting an overlay", error)),
    }
}

/// Whether programs in a directory can be executed where it is bound.
pub(super) fn can_execute_from(dir: &Path) -> bool {
    statvfs(dir).is_ok_and(|system| !system.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// The inputs for mounting a root.
pub(super) struct RootSetup<'a> {
    pub(super) create: &'a Create,
    pub(super) mount_point: &'a Path,
    pub(super) root: bool,
    /// Whether the private directories are next to the upper directory; if not, they are in memory.
    pub(super) private_on_disk: bool,
}

/// Mounts the whole root of a sandbox and makes it the root of the process. Returns the private directories,
/// which are not mounted yet.
pub(super) fn enter_root(setup: &RootSetup<'_>) -> Result<Vec<PrivateDir>, SetupFailure> {
    let RootSetup { create, mount_point, root, private_on_disk } = *setup;
    let needs_memory = !create.upper_on_disk || (!create.private_dirs.is_empty() && !private_on_disk);
    let scratch = if needs_memory { Some(tmpfs_backing(create, mount_point)?) } else { None };
    let base = |on_disk: bool| scratch.as_deref().filter(|_| !on_disk).unwrap_or(&create.dir);
    for part in &create.parts {
        let target = mount_point.join(&part.target);
        overlay(part, base(create.upper_on_disk), &target, root)
            .map_err(|error| SetupFailure::new(format!("mounting the overlay of /{}", part.target), error))?;
    }
    let step = |name: &'static str| move |error: io::Error| SetupFailure::new(name, error);
    let private = open_private(&create.private_dirs, base(private_on_disk))
        .map_err(step("creating the private directories"))?;
    let resolver = match create.host_resolver {
        true => open_resolver().map_err(step("opening /etc/resolv.conf"))?,
        false => None,
    };
    let extra = open_extra(&create.mounts).map_err(step("preparing the mounts of a build"))?;
    chdir(mount_point).map_err(|error| SetupFailure::new("entering the root", error))?;
    dev(root).map_err(step("mounting /dev"))?;
    proc().map_err(step("mounting /proc"))?;
    sysfs().map_err(step("mounting /sys"))?;
    // Stacking the old root over the new one and detaching it needs no directory inside the image.
    pivot_root(".", ".").map_err(|error| SetupFailure::new("changing the root", error))?;
    unmount(".", UnmountFlags::DETACH)
        .map_err(|error| SetupFailure::new("detaching the host's root", error))?;
    chdir("/").map_err(|error| SetupFailure::new("entering the root", error))?;
    if let Some(resolver) = resolver {
        mount_resolver(&resolver).map_err(step("mounting /etc/resolv.conf"))?;
    }
    if let Some(hosts) = &create.hosts {
        mount_hosts(hosts).map_err(step("mounting /etc/hosts"))?;
    }
    for (mount, fd) in create.mounts.iter().zip(extra) {
        let failed = |error| SetupFailure::new(format!("mounting {}", mount.target), error);
        mount_extra(mount, &fd).map_err(failed)?;
    }
    Ok(private)
}

const RESOLVER: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";

/// The host's addresses of name servers, as a mount that is in no directory yet; None if the host has none.
fn open_resolver() -> io::Result<Option<OwnedFd>> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match open_tree(CWD, RESOLVER, flags) {
        Ok(mount) => Ok(Some(mount)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Puts a mount over a file of the image. Called in the new root, so a link of the image cannot lead to the host.
fn mount_over(path: &str, put: impl Fn() -> rustix::io::Result<()>) -> io::Result<()> {
    match put() {
        // The image has no such file, or a link to one that is made at run time elsewhere.
        Err(Errno::NOENT) => {
            fs::create_dir_all("/etc")?;
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => fs::write(path, "")?,
            }
            Ok(put()?)
        }
        done => Ok(done?),
    }
}

/// Mounts the names of hosts. The file is in memory and belongs to the sandbox: commands may write to it, and it is in no
/// layer.
fn mount_hosts(content: &str) -> io::Result<()> {
    let file = "/dev/hosts";
    fs::write(file, content)?;
    rustix::fs::chmod(file, Mode::from_raw_mode(0o644))?;
    mount_over(HOSTS, || mount_bind(file, HOSTS))?;
    fs::remove_file(file)?;
    Ok(mount_remount(HOSTS, PLAIN | MountFlags::NOEXEC | MountFlags::BIND, "")?)
}

/// Puts the host's addresses over those of the image.
fn mount_resolver(resolver: &OwnedFd) -> io::Result<()> {
    mount_over(RESOLVER, || {
        move_mount(resolver, "", CWD, RESOLVER, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
    })?;
    // Commands must not change the host's file, nor the times of its uses.
    Ok(mount_remount(RESOLVER, PLAIN | MountFlags::NOEXEC | MountFlags::BIND | MountFlags::RDONLY, "")?)
}

/// Opens the mounts of a build's command, without mounting them.
fn open_extra(mounts: &[ExtraMount]) -> io::Result<Vec<OwnedFd>> {
    let open = |mount: &ExtraMount| match &mount.source {
        MountSource::Host { path, read_only } => {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let opened = open_tree(CWD, path, flags)?;
            match read_only {
                true => sys::forbid_writing(&opened)?,
                false => sys::forbid_devices(&opened),
            }
            Ok(opened)
        }
        MountSource::Memory { size } => {
            let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            if let Some(size) = size {
                fsconfig_set_string(&fs, "size", size.to_string())?;
            }
            fsconfig_create(&fs)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
            Ok(fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
        }
    };
    mounts.iter().map(open).collect()
}

/// Mounts it. Called in the new root, so a link of the image cannot lead to the host.
fn mount_extra(mount: &ExtraMount, fd: &OwnedFd) -> io::Result<()> {
    let target = Path::new(&mount.target);
    if mount.is_file {
        fs::create_dir_all(target.parent().unwrap_or(Path::new("/")))?;
        if !target.exists() {
            fs::write(target, "")?;
        }
    } else {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(target)?;
    }
    Ok(move_mount(
        fd,
        "",
        CWD,
        target,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS,
    )?)
}

/// A directory that nested commands cannot reach.
pub(super) struct PrivateDir {
    mount: OwnedFd,
    path: PathBuf,
}

/// Creates the private directories without mounting them.
fn open_private(paths: &[String], base: &Path) -> io::Result<Vec<PrivateDir>> {
    let make = |dir: &Path, mode| fs::DirBuilder::new().recursive(true).mode(mode).create(dir);
    let top = base.join("private");
    if !paths.is_empty() {
        make(&top, 0o700)?;
    }
    let open = |(index, path): (usize, &String)| {
        let dir = top.join(index.to_string());
        make(&dir, 0o755)?;
        let mount = open_tree(CWD, &dir, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
        sys::forbid_devices(&mount);
        Ok(PrivateDir { mount, path: path.into() })
    };
    paths.iter().enumerate().map(open).collect()
}

/// Creates real directories as mount points of the private directories and replaces whatever the image has
/// there: a link could be redirected later.
pub(super) fn make_mount_points(private: &[PrivateDir]) -> io::Result<()> {
    for dir in private.iter().flat_map(PrivateDir::with_parents) {
        let make = || fs::DirBuilder::new().mode(0o755).create(&dir);
        match make() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !fs::symlink_metadata(&dir)?.is_dir() {
                    fs::remove_file(&dir)?;
                    make()?;
                }
            }
            made => made?,
        }
    }
    Ok(())
}

impl PrivateDir {
    /// Its ancestors from the root, and itself.
    fn with_parents(&self) -> Vec<PathBuf> {
        let mut path = PathBuf::from("/");
        let names = self.path.components().filter(|name| matches!(name, Component::Normal(_)));
        names
            .map(|name| {
                path.push(name);
                path.clone()
            })
            .collect()
    }
}

/// Mounts the private directories in the mount namespace of the calling process.
pub(super) fn mount_private(private: Vec<PrivateDir>) -> io::Result<()> {
    for PrivateDir { mount, path } in private {
        move_mount(&mount, "", CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    Ok(())
}

/// Sets up the mounts of a nested supervisor, whose mount namespace is a copy.
pub(super) fn enter_nested(private: &[PrivateDir]) -> io::Result<()> {
    // Removing a directory also removes what other namespaces have mounted there, and renaming it moves their
    // mounts. The kernel prevents both only for mount points of the own namespace.
    let mut held = BTreeSet::new();
    for dir in private.iter().flat_map(PrivateDir::with_parents) {
        if held.insert(dir.clone()) {
            mount_bind(&dir, &dir)?;
        }
    }
    // A /proc that shows only the nested processes, with the same masks. It is prepared at /dev/shm, an empty
    // directory. The old /proc stays mounted below, because unmounting it first would wait for every processor.
    let fresh = "/dev/shm";
    mount("proc", fresh, "proc", PLAIN | MountFlags::NOEXEC, None)?;
    for name in READ_ONLY.iter().chain(&MASKED_FILES).chain(&MASKED_DIRS) {
        missing_is_fine(mount_bind_recursive(format!("/proc/{name}"), format!("{fresh}/{name}")))?;
    }
    Ok(mount_move(fresh, "/proc")?)
}

/// Creates the upper and work directories of an overlay part. They are private to the engine's user, except for
/// the upper directory: its mode is the mode of the root or of /usr inside.
pub(super) fn backing_dirs(base: &Path, part: &str) -> io::Result<()> {
    let private = |dir: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    private(&base.join("upper"))?;
    private(&base.join("work").join(part))?;
    // It exists already in a reopened sandbox.
    fs::DirBuilder::new().recursive(true).mode(0o755).create(base.join("upper").join(part))
}

/// Creates the directories on a tmpfs in the sandbox's mount namespace, for file systems that cannot hold an
/// overlay.
fn tmpfs_backing(create: &Create, mount_point: &Path) -> Result<PathBuf, SetupFailure> {
    let scratch = mount_point.with_file_name("scratch");
    let made = fs::create_dir_all(&scratch).and_then(|()| {
        mount("tmpfs", &scratch, "tmpfs", PLAIN, None)?;
        if create.upper_on_disk {
            return Ok(());
        }
        create.parts.iter().try_for_each(|part| backing_dirs(&scratch, &part.name))
    });
    made.map_err(|error| SetupFailure::new("mounting a tmpfs for the overlay", error))?;
    Ok(scratch)
}

fn overlay(part: &PartMount, base: &Path, target: &Path, root: bool) -> io::Result<()> {
    let upper = base.join("upper").join(&part.name);
    let work = base.join("work").join(&part.name);
    let mut options = b"volatile".to_vec();
    if !root {
        options.extend_from_slice(b",userxattr");
    }
    options.extend_from_slice(b",lowerdir=");
    for (index, lower) in part.lower.iter().enumerate() {
        if index > 0 {
            options.push(b':');
        }
        escape(lower, true, &mut options);
    }
    options.extend_from_slice(b",upperdir=");
    escape(&upper, false, &mut options);
    options.extend_from_slice(b",workdir=");
    escape(&work, false, &mut options);
    if options.len() > MAX_OPTIONS {
        return many_layers(part, &upper, &work, target, root);
    }
    let options = CString::new(options)?;
    Ok(mount("overlay", target, "overlay", PLAIN, options.as_c_str())?)
}

/// Mounts an overlay of more layers than fit into the option page of the old mount call.
fn many_layers(part: &PartMount, upper: &Path, work: &Path, target: &Path, root: bool) -> io::Result<()> {
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for lower in &part.lower {
        fsconfig_set_string(&fs, "lowerdir+", lower)?;
    }
    fsconfig_set_string(&fs, "upperdir", upper)?;
    fsconfig_set_string(&fs, "workdir", work)?;
    fsconfig_set_flag(&fs, "volatile")?;
    if !root {
        fsconfig_set_flag(&fs, "userxattr")?;
    }
    fsconfig_create(&fs)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mounted = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok(move_mount(&mounted, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Escapes a path so that overlayfs does not read its commas (and in a list its colons) as separators.
fn escape(path: &Path, in_list: bool, options: &mut Vec<u8>) {
    for byte in path.as_os_str().as_bytes() {
        if matches!(byte, b'\\' | b',') || (in_list && *byte == b':') {
            options.push(b'\\');
        }
        options.push(*byte);
    }
}

fn missing_is_fine(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
        other => Ok(other?),
    }
}

/// Mounts /proc. Needs /dev, where the masking file is created.
fn proc() -> io::Result<()> {
    mount("proc", "proc", "proc", PLAIN | MountFlags::NOEXEC, None)?;
    for name in READ_ONLY {
        let path = format!("proc/{name}");
        let bound = mount_bind_recursive(&path, &path)
            .and_then(|()| remount_read_only(&path, PLAIN | MountFlags::NOEXEC));
        missing_is_fine(bound)?;
    }
    // An empty file that belongs to the sandbox and is unlinked once it masks all files.
    let mask = "dev/mask";
    fs::write(mask, "")?;
    rustix::fs::chmod(mask, Mode::from_raw_mode(0o444))?;
    // The first bind mount is made read-only, and so are those made from it.
    let mut cover: Option<String> = None;
    for name in MASKED_FILES {
        let path = format!("proc/{name}");
        match mount_bind(cover.as_deref().unwrap_or(mask), &path) {
            Ok(()) if cover.is_none() => {
                remount_read_only(&path, MountFlags::NOSUID | MountFlags::NOEXEC)?;
                cover = Some(path);
            }
            bound => missing_is_fine(bound)?,
        }
    }
    fs::remove_file(mask)?;
    for name in MASKED_DIRS {
        let path = format!("proc/{name}");
        missing_is_fine(mount("tmpfs", &path, "tmpfs", PLAIN | MountFlags::RDONLY, c"size=0k,mode=555"))?;
    }
    Ok(())
}

fn remount_read_only(path: &str, flags: MountFlags) -> rustix::io::Result<()> {
    mount_remount(path, flags | MountFlags::BIND | MountFlags::RDONLY, "")
}

fn dev(root: bool) -> io::Result<()> {
    mount("tmpfs", "dev", "tmpfs", MountFlags::NOSUID, c"mode=755,size=50%")?;
    for (name, major, minor) in DEVICES {
        let path = format!("dev/{name}");
        if root {
            mknodat(
                CWD,
                &path,
                FileType::CharacterDevice,
                Mode::from_raw_mode(0o666),
                makedev(major, minor),
            )?;
        } else {
            fs::write(&path, "")?;
            mount_bind(format!("/dev/{name}"), &path)?;
            // The device works as before, but its mode cannot be changed. In a user namespace it belongs to the
            // host's root, so a failure is harmless.
            let _ = remount_read_only(&path, MountFlags::NOSUID | MountFlags::NOEXEC);
        }
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlinkat(target, CWD, format!("dev/{name}"))?;
    }
    fs::create_dir("dev/pts")?;
    mount(
        "devpts",
        "dev/pts",
        "devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        c"newinstance,ptmxmode=0666,mode=620",
    )?;
    fs::create_dir("dev/shm")?;
    rustix::fs::chmod("dev/shm", Mode::from_raw_mode(0o1777))?;
    Ok(())
}

fn sysfs() -> io::Result<()> {
    let flags = PLAIN | MountFlags::NOEXEC | MountFlags::RDONLY;
    match mount("sysfs", "sys", "sysfs", flags, None) {
        // A user namespace may only mount a sysfs of a network namespace that it owns; otherwise /sys stays
        // empty.
        Err(Errno::PERM) => return Ok(()),
        other => missing_is_fine(other)?,
    }
    // The energy counters of the processor show what other programs compute.
    for path in ["sys/firmware", "sys/devices/virtual/powercap"] {
        missing_is_fine(mount("tmpfs", path, "tmpfs", flags, c"size=0k,mode=555"))?;
    }
    Ok(())
}
