//! The content hash of a task, by which a resumed job checks that its tasks have not changed.

use std::{
    collections::BTreeMap,
    fs::{self, File, FileType, Metadata},
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::Task;
use rollout_core::text::hex;

/// The directory of the tests.
const TESTS: &str = "tests";

/// The content of a task's directory: every path with its hash.
#[derive(Debug)]
pub(crate) struct Contents(Vec<(PathBuf, u8, [u8; 32])>);

impl Task {
    /// The hash of everything in the task's directory: paths, kinds, executable bits, contents and the targets of
    /// symbolic links.
    ///
    /// A `.git` at the top is ignored, because git changes it without changing the task. It reads every file, so call
    /// it on a thread that may block.
    pub fn content_hash(&self) -> io::Result<String> {
        Ok(self.contents()?.hash())
    }

    /// Reads everything in the task's directory.
    pub(crate) fn contents(&self) -> io::Result<Contents> {
        let mut entries = Vec::new();
        collect(&self.dir, Path::new(""), &mut entries)?;
        let own = Path::new(TESTS);
        let others = self.tests != self.dir.join(TESTS);
        if others {
            entries.retain(|(path, _)| !path.starts_with(own) || path == own);
            let mut tests = Vec::new();
            collect(&self.tests, Path::new(""), &mut tests)?;
            entries.extend(tests.into_iter().map(|(path, kind)| (own.join(path), kind)));
        }
        entries.sort_unstable_by(|(a, _), (b, _)| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
        let contents = entries.into_iter().map(|(relative, kind)| {
            let path = match relative.strip_prefix(own) {
                Ok(below) if others => self.tests.join(below),
                _ => self.dir.join(&relative),
            };
            let (letter, digest) = if kind.is_file() {
                let (metadata, digest) = digest_file(&path)?;
                let executable = metadata.permissions().mode() & 0o111 != 0;
                (if executable { b'x' } else { b'f' }, digest)
            } else if kind.is_symlink() {
                let target = fs::read_link(&path)?;
                (b'l', Sha256::digest(target.as_os_str().as_bytes()).into())
            } else {
                // A pipe or a device is never opened: reading it could block forever.
                (if kind.is_dir() { b'd' } else { b'o' }, [0; 32])
            };
            Ok((relative, letter, digest))
        });
        contents.collect::<io::Result<_>>().map(Contents)
    }
}

impl Contents {
    /// The hash of everything.
    pub(crate) fn hash(&self) -> String {
        hash(self.0.iter().map(|(path, kind, digest)| (path.as_path(), *kind, digest)))
    }

    /// The files that define the tests, with their hashes.
    pub(crate) fn test_files(&self) -> BTreeMap<String, String> {
        let of_tests = |path: &Path| {
            path == Path::new("task.toml")
                || path.starts_with(TESTS)
                || path.starts_with("steps") && path.components().any(|part| part.as_os_str() == TESTS)
        };
        let files = self.0.iter().filter(|(path, kind, _)| *kind != b'd' && of_tests(path));
        files.map(|(path, _, digest)| (path.to_string_lossy().into_owned(), hex(digest))).collect()
    }

    /// The hash of everything below a directory; none if there is nothing.
    pub(crate) fn hash_below(&self, dir: &str) -> Option<String> {
        let below = |(path, kind, digest): &'_ (PathBuf, u8, [u8; 32])| {
            Some((path.strip_prefix(dir).ok()?.to_owned(), *kind, *digest))
        };
        let below: Vec<_> = self.0.iter().filter_map(below).collect();
        let entries = below.iter().map(|(path, kind, digest)| (path.as_path(), *kind, digest));
        (!below.is_empty()).then(|| hash(entries))
    }
}

fn hash<'a>(entries: impl Iterator<Item = (&'a Path, u8, &'a [u8; 32])>) -> String {
    let mut hash = Sha256::new();
    for (path, kind, digest) in entries {
        let name = path.as_os_str().as_bytes();
        // Lengths make the encoding unique.
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update([kind]);
        if matches!(kind, b'x' | b'f' | b'l') {
            hash.update(digest);
        }
    }
    format!("sha256:{}", hex(&hash.finalize()))
}

fn collect(root: &Path, relative: &Path, entries: &mut Vec<(PathBuf, FileType)>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(relative))? {
        let entry = entry?;
        let path = relative.join(entry.file_name());
        if path == Path::new(".git") {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(root, &path, entries)?;
        }
        entries.push((path, kind));
    }
    Ok(())
}

fn digest_file(path: &Path) -> io::Result<(Metadata, [u8; 32])> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let mut digest = Sha256::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((metadata, digest.finalize().into())),
            read => digest.update(&buffer[..read]),
        }
    }
}
