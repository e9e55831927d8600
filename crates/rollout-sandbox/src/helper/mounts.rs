//! The mounts of a sandbox: its overlay root, /proc, /dev and /sys.

use std::{
    ffi::CString,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, makedev, mknodat, symlinkat},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
        fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, mount_bind, mount_bind_recursive,
        mount_remount, move_mount, unmount,
    },
    process::{chdir, pivot_root},
};

use crate::wire::{Create, PartMount, SetupFailure};

/// Devices of the host that every sandbox has, with their numbers.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// Files of /proc that tell about, or act on, the whole machine.
const MASKED_FILES: [&str; 7] =
    ["kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "sysrq-trigger"];
const MASKED_DIRS: [&str; 2] = ["acpi", "scsi"];
const READ_ONLY: [&str; 4] = ["bus", "fs", "irq", "sys"];

/// The longest option string that the old mount call takes, with room for its terminator.
const MAX_OPTIONS: usize = 4000;

const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Whether an overlay can have its upper directory on the disk; if not, whether it can on a tmpfs.
pub(super) fn probe_overlay(run_dir: &Path, mount_point: &Path, root: bool) -> Result<bool, SetupFailure> {
    let probe = run_dir.join("probe");
    let attempt = |base: &Path| {
        fs::create_dir_all(base.join("lower"))?;
        backing_dirs(base, "root")?;
        let part = PartMount { name: "root".into(), target: String::new(), lower: vec![base.join("lower")] };
        overlay(&part, base, mount_point, root)?;
        // A whiteout is what some file systems refuse only when it is needed.
        let marker = mount_point.join("marker");
        let made = fs::write(&marker, "").and_then(|()| fs::remove_file(&marker));
        unmount(mount_point, UnmountFlags::DETACH)?;
        made
    };
    let on_disk = attempt(&probe);
    // What cannot be removed here goes with the whole run directory.
    let _ = rollout_guest::remove::remove_tree(&probe);
    if on_disk.is_ok() {
        return Ok(true);
    }
    fs::create_dir_all(&probe).map_err(|error| SetupFailure::new("making a probe directory", error))?;
    mount("tmpfs", &probe, "tmpfs", PLAIN, None)
        .map_err(|error| SetupFailure::new("mounting a tmpfs", error))?;
    let on_tmpfs = attempt(&probe);
    // The mount goes with the zygote's namespace at the latest.
    let _ = unmount(&probe, UnmountFlags::DETACH);
    match on_tmpfs {
        Ok(()) => Ok(false),
        Err(error) => Err(SetupFailure::new("mounting an overlay", error)),
    }
}

/// Mounts the whole root of a sandbox at `mount_point` and makes it the process's root.
pub(super) fn enter_root(create: &Create, mount_point: &Path, root: bool) -> Result<(), SetupFailure> {
    let scratch;
    let base = if create.upper_on_disk {
        &create.dir
    } else {
        scratch = tmpfs_backing(create, mount_point)?;
        &scratch
    };
    for part in &create.parts {
        let target = mount_point.join(&part.target);
        overlay(part, base, &target, root)
            .map_err(|error| SetupFailure::new(format!("mounting the overlay of /{}", part.target), error))?;
    }
    let step = |name: &'static str| move |error: io::Error| SetupFailure::new(name, error);
    chdir(mount_point).map_err(|error| SetupFailure::new("entering the root", error))?;
    dev(root).map_err(step("mounting /dev"))?;
    proc().map_err(step("mounting /proc"))?;
    sys().map_err(step("mounting /sys"))?;
    // Stacking the old root over the new one and detaching it needs no directory inside the image.
    pivot_root(".", ".").map_err(|error| SetupFailure::new("changing the root", error))?;
    unmount(".", UnmountFlags::DETACH)
        .map_err(|error| SetupFailure::new("detaching the host's root", error))?;
    chdir("/").map_err(|error| SetupFailure::new("entering the root", error))
}

/// Makes the upper and work directories of an overlay part, private to the engine's user but for the
/// upper directory itself: its mode is that of the root or of /usr inside.
pub(super) fn backing_dirs(base: &Path, part: &str) -> io::Result<()> {
    let private = |dir: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    private(&base.join("upper"))?;
    private(&base.join("work").join(part))?;
    // A reopened sandbox has it already.
    fs::DirBuilder::new().recursive(true).mode(0o755).create(base.join("upper").join(part))
}

/// Puts upper and work directories on a tmpfs that only this sandbox's mount namespace holds.
fn tmpfs_backing(create: &Create, mount_point: &Path) -> Result<PathBuf, SetupFailure> {
    let scratch = mount_point.with_file_name("scratch");
    let made = fs::create_dir_all(&scratch).and_then(|()| {
        mount("tmpfs", &scratch, "tmpfs", PLAIN, None)?;
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

/// Mounts an overlay of more layers than the old mount call's one page of options can name.
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

/// Writes a path so that overlayfs does not take its commas (and in a list its colons) for separators.
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

/// Mounts /proc; needs /dev, where the file that covers others is made.
fn proc() -> io::Result<()> {
    mount("proc", "proc", "proc", PLAIN | MountFlags::NOEXEC, None)?;
    for name in READ_ONLY {
        let path = format!("proc/{name}");
        let bound = mount_bind_recursive(&path, &path)
            .and_then(|()| remount_read_only(&path, PLAIN | MountFlags::NOEXEC));
        missing_is_fine(bound)?;
    }
    // An empty file of the sandbox's own, without a name once it covers them all.
    let mask = "dev/mask";
    fs::write(mask, "")?;
    rustix::fs::chmod(mask, Mode::from_raw_mode(0o444))?;
    for name in MASKED_FILES {
        let path = format!("proc/{name}");
        let covered = mount_bind(mask, &path)
            .and_then(|()| remount_read_only(&path, MountFlags::NOSUID | MountFlags::NOEXEC));
        missing_is_fine(covered)?;
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
            // A device works as before, but its mode cannot be changed; in a user namespace the host's root
            // owns it anyway, so a refusal costs nothing there.
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

fn sys() -> io::Result<()> {
    let flags = PLAIN | MountFlags::NOEXEC | MountFlags::RDONLY;
    match mount("sysfs", "sys", "sysfs", flags, None) {
        // A user namespace may only show a sysfs whose network namespace it owns; without, /sys stays empty.
        Err(Errno::PERM) => return Ok(()),
        other => missing_is_fine(other)?,
    }
    missing_is_fine(mount("tmpfs", "sys/firmware", "tmpfs", flags, c"size=0k,mode=555"))
}
