//! The content hash of a task, by which a resumed job sees that its tasks are still the same.

use std::{
    fs::{self, File, FileType, Metadata},
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::Task;

impl Task {
    /// The hash of everything in the task's directory: paths, kinds, executable bits, contents and the
    /// targets of links.
    ///
    /// A `.git` at the top is left out, because git rewrites it without changing the task. This reads
    /// every file, so it belongs on a thread that may block.
    pub fn content_hash(&self) -> io::Result<String> {
        let mut entries = Vec::new();
        collect(&self.dir, Path::new(""), &mut entries)?;
        entries.sort_unstable_by(|(a, _), (b, _)| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
        let mut hash = Sha256::new();
        for (relative, kind) in entries {
            let path = self.dir.join(&relative);
            let name = relative.as_os_str().as_bytes();
            // Lengths keep two different lists of entries from ever giving the same bytes.
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
            if kind.is_file() {
                let (metadata, digest) = digest_file(&path)?;
                let executable = metadata.permissions().mode() & 0o111 != 0;
                hash.update(if executable { b"x" } else { b"f" });
                hash.update(digest);
            } else if kind.is_symlink() {
                let target = fs::read_link(&path)?;
                hash.update(b"l");
                hash.update(Sha256::digest(target.as_os_str().as_bytes()));
            } else {
                // A pipe or a device is never opened: reading it could wait for ever.
                hash.update(if kind.is_dir() { b"d" } else { b"o" });
            }
        }
        Ok(format!("sha256:{}", hex(&hash.finalize())))
    }
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

/// Bytes in lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}
