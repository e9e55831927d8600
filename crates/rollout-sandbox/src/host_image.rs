//! The host as an image: a skeleton root with the host's /etc without its secrets, and the host's programs.
//!
//! Everything that a sandbox sees of the host is listed here: the directories of programs, the database of installed
//! packages, and the world-readable entries of /etc that are not excluded below.

use std::{
    fmt::Write as _,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use rollout_guest::remove::remove_tree;

use crate::{
    image::{Image, ImageError, Lease},
    private::{private_dir, unique_id},
    support::Mode,
};

/// The host's directories of programs. Those that are links are also links in the skeleton.
const PROGRAMS: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// The database of dpkg. Without it, package managers install packages again that are in /usr.
const PACKAGES: &str = "var/lib/dpkg";

/// The file of the database that changes with every package.
const PACKAGE_LIST: &str = "/var/lib/dpkg/status";

/// Files of this directory of /etc are the first files of a home directory.
const HOME_FILES: &str = "skel";

/// Entries of /etc, at any depth, that are secret, specific to this machine, or generated.
const LEFT_OUT: [&str; 32] = [
    "shadow",
    "shadow-",
    "gshadow",
    "gshadow-",
    "passwd-",
    "group-",
    "subuid",
    "subgid",
    "ssh",
    "sudoers",
    "sudoers.d",
    "ssl/private",
    "pki/private",
    "docker",
    "containers",
    "kubernetes",
    "rancher",
    "cni",
    "machine-id",
    "hostname",
    "hosts",
    "resolv.conf",
    "mtab",
    "fstab",
    "crypttab",
    "krb5.keytab",
    "NetworkManager",
    "wireguard",
    "openvpn",
    "ppp",
    "cron.d",
    "security/opasswd",
];

/// Directories of the skeleton, with their modes.
const DIRECTORIES: [(&str, u32); 25] = [
    ("etc", 0o755),
    ("root", 0o700),
    ("home", 0o755),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("opt", 0o755),
    ("srv", 0o755),
    ("mnt", 0o755),
    ("media", 0o755),
    ("boot", 0o755),
    ("proc", 0o555),
    ("sys", 0o555),
    ("dev", 0o755),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/lib", 0o755),
    (PACKAGES, 0o755),
    ("var/lib/apt", 0o755),
    ("var/cache", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
    ("var/spool", 0o755),
    ("var/mail", 0o755),
    ("var/opt", 0o755),
    ("var/local", 0o755),
];

/// The largest file of /etc that is copied; programs need no larger one.
const MAX_FILE: u64 = 8 << 20;

/// Prepares the host as an image below `images`, or finds the prepared one. `lease` is called with its name
/// before any of its files is accessed. Blocks.
pub(crate) fn prepare(
    images: &Path,
    mode: Mode,
    lease: impl FnOnce(&str) -> io::Result<Vec<Lease>>,
) -> Result<Image, ImageError> {
    let key = key(mode).map_err(|source| ImageError { step: "reading", path: "/etc".into(), source })?;
    let name = format!("host-{key}");
    let skeleton = images.join(&name);
    let fail = |step| {
        let path = skeleton.clone();
        move |source| ImageError { step, path, source }
    };
    let leases = lease(&name).map_err(fail("taking"))?;
    private_dir(images).map_err(fail("creating the parent of"))?;
    if !skeleton.is_dir() {
        let building = images.join(format!("host-{key}.{}", unique_id()));
        if let Err(error) = build(&building, mode) {
            // The build error is more useful than an error of the cleanup.
            let _ = remove_tree(&building);
            return Err(error);
        }
        match fs::rename(&building, &skeleton) {
            Ok(()) => {}
            // Another engine prepared the same image first.
            Err(_) if skeleton.is_dir() => remove_tree(&building).map_err(fail("cleaning up after"))?,
            Err(source) => return Err(fail("naming")(source)),
        }
    }
    Ok(Image::from_host(skeleton, &shared_directories(mode), name).using(leases))
}

/// The directories of the host that are parts of the image.
fn shared_directories(mode: Mode) -> Vec<String> {
    let real = |name: &str| fs::symlink_metadata(Path::new("/").join(name)).is_ok_and(|meta| meta.is_dir());
    // An ordinary user cannot change files of root in an overlay, so the skeleton has a copy of the database.
    let packages = (mode == Mode::Root).then_some(PACKAGES);
    PROGRAMS.into_iter().chain(packages).filter(|name| real(name)).map(str::to_owned).collect()
}

/// Walks /etc in a stable order and calls `visit` with each entry of the skeleton.
fn walk_etc<E>(mut visit: impl FnMut(&Path, &fs::Metadata) -> Result<(), E>) -> Result<(), E> {
    let etc = Path::new("/etc");
    let mut pending = vec![etc.to_owned()];
    while let Some(dir) = pending.pop() {
        // The directory was removed or made unreadable meanwhile.
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        for path in paths {
            let relative = path.strip_prefix(etc).expect("the walk starts at /etc");
            if LEFT_OUT.iter().any(|left_out| relative == Path::new(left_out)) {
                continue;
            }
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            let mode = metadata.mode();
            let wanted = if metadata.is_dir() {
                mode & 0o005 == 0o005
            } else {
                metadata.is_symlink()
                    || (metadata.is_file() && mode & 0o004 != 0 && metadata.len() <= MAX_FILE)
            };
            if !wanted {
                continue;
            }
            visit(relative, &metadata)?;
            if metadata.is_dir() {
                pending.push(path);
            }
        }
    }
    Ok(())
}

/// A hash of all inputs of the skeleton.
fn key(mode: Mode) -> io::Result<String> {
    let mut hash = Sha256::new();
    hash.update(b"host image 2\0");
    hash.update([u8::from(mode == Mode::Root)]);
    let mut add = |path: &Path, metadata: &fs::Metadata| {
        hash.update(path.as_os_str().as_bytes());
        for number in [
            u64::from(metadata.mode()),
            metadata.len(),
            metadata.mtime().unsigned_abs(),
            metadata.mtime_nsec().unsigned_abs(),
            metadata.ino(),
        ] {
            hash.update(number.to_le_bytes());
        }
    };
    if let Ok(metadata) = fs::symlink_metadata(PACKAGE_LIST) {
        add(Path::new(PACKAGE_LIST), &metadata);
    }
    walk_etc::<io::Error>(|path, metadata| {
        add(path, metadata);
        Ok(())
    })?;
    hash.update(fs::read("/etc/resolv.conf").unwrap_or_default());
    for name in PROGRAMS {
        let link = fs::read_link(Path::new("/").join(name)).unwrap_or_default();
        hash.update(link.as_os_str().as_bytes());
        hash.update([0]);
    }
    Ok(hash.finalize().iter().take(12).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn build(root: &Path, mode: Mode) -> Result<(), ImageError> {
    fn at<'a>(step: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> ImageError + 'a {
        move |source| ImageError { step, path: path.to_owned(), source }
    }
    make_dir(root, 0o755).map_err(at("making", root))?;
    for (name, mode) in DIRECTORIES {
        let dir = root.join(name);
        make_dir(&dir, mode).map_err(at("making", &dir))?;
    }
    for name in PROGRAMS {
        let host = Path::new("/").join(name);
        let made = match fs::read_link(&host) {
            Ok(target) => symlink(target, root.join(name)),
            Err(_) if host.is_dir() => make_dir(&root.join(name), 0o755),
            Err(_) => Ok(()),
        };
        made.map_err(at("making", &host))?;
    }
    walk_etc(|relative, metadata| {
        let source = Path::new("/etc").join(relative);
        let home = relative.strip_prefix(HOME_FILES).ok().filter(|rest| !rest.as_os_str().is_empty());
        let home = home.map(|rest| root.join("root").join(rest));
        for target in [root.join("etc").join(relative)].into_iter().chain(home) {
            copy_entry(&source, metadata, &target).map_err(at("copying", &source))?;
        }
        Ok(())
    })?;
    if mode == Mode::User {
        let packages = Path::new("/").join(PACKAGES);
        copy_readable(&packages, &root.join(PACKAGES)).map_err(at("copying", &packages))?;
    }
    let resolv = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    for (name, content) in [
        ("hostname", "sandbox\n"),
        ("hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"),
        ("resolv.conf", &resolv),
    ] {
        let path = root.join("etc").join(name);
        write_file(&path, content).map_err(at("writing", &path))?;
    }
    for (name, wanted) in [
        (
            "passwd",
            ["root:x:0:0:root:/root:/bin/bash", "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin"],
        ),
        ("group", ["root:x:0:", "nogroup:x:65534:"]),
    ] {
        let path = root.join("etc").join(name);
        complete(&path, &wanted).map_err(at("completing", &path))?;
    }
    let lock = root.join("var/lock");
    symlink("/run/lock", &lock).map_err(at("making", &lock))?;
    let run = root.join("var/run");
    symlink("/run", &run).map_err(at("making", &run))
}

/// Adds the lines to a user database whose names it lacks.
fn complete(path: &Path, wanted: &[&str]) -> io::Result<()> {
    let mut text = fs::read_to_string(path).unwrap_or_default();
    for line in wanted {
        let name = line.split_inclusive(':').next().unwrap_or_default();
        if !text.lines().any(|existing| existing.starts_with(name)) {
            text.push_str(line);
            text.push('\n');
        }
    }
    write_file(path, &text)
}

fn write_file(path: &Path, content: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().mode(mode).create(path)?;
    // Ignores the umask of the process.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Copies one entry. A directory is created empty.
fn copy_entry(source: &Path, metadata: &fs::Metadata, target: &Path) -> io::Result<()> {
    if metadata.is_dir() {
        make_dir(target, metadata.mode() & 0o755)
    } else if metadata.is_symlink() {
        fs::read_link(source).and_then(|link| symlink(link, target))
    } else {
        copy_file(source, target, metadata.mode() & 0o755)
    }
}

/// Copies the files below a directory, which may be missing, into an existing one. Files that not everyone may read,
/// such as locks, are left out.
fn copy_readable(source: &Path, target: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(source) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let (entry, metadata) = match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
            // The host's package manager removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found?,
        };
        let copy = target.join(entry.file_name().unwrap_or_default());
        let readable = if metadata.is_dir() { 0o005 } else { 0o004 };
        if !(metadata.is_dir() || metadata.is_file()) || metadata.mode() & readable != readable {
            continue;
        }
        match copy_entry(&entry, &metadata, &copy) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            copied => copied?,
        }
        if metadata.is_dir() {
            copy_readable(&entry, &copy)?;
        }
    }
    Ok(())
}

fn copy_file(source: &Path, target: &Path, mode: u32) -> io::Result<()> {
    let mut from =
        fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(source)?;
    let mut to = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(target)?;
    io::copy(&mut from, &mut to)?;
    to.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_preparations_succeed() {
        let dir = tempfile::tempdir().unwrap();
        let images = dir.path().join("images");
        std::thread::scope(|scope| {
            let prepared: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| prepare(&images, Mode::User, |_| Ok(Vec::new())).map(|_| ())))
                .collect();
            for prepared in prepared {
                prepared.join().unwrap().unwrap();
            }
        });
        assert_eq!(fs::read_dir(images).unwrap().count(), 1, "only the image is left");
    }
}
