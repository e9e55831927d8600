//! Lists of the files of checked out directories, by which a changed directory of the cache is noticed.
//!
//! A list is one text for each file, ended by a zero byte: its kind, size, time and hash, a tab, and its path.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use crate::task::verified::{Stamp, write_whole};
use rollout_core::text::hex;

/// How much of a file is read at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// What is left of a checked out directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Every file is as it was.
    Unchanged,
    /// A file was changed, added or removed.
    Changed(PathBuf),
}

/// One file or link.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// `f`, `x` for an executable file, `l` for a link, or `o` for something that git does not make.
    kind: char,
    stamp: Stamp,
    hash: String,
}

/// Writes the list of the files below a directory. Blocks.
pub(super) fn write(dir: &Path, list: &Path) -> io::Result<()> {
    let mut entries = BTreeMap::new();
    each_file(dir, Path::new(""), &mut |path, kind, stamp| {
        let hash = hash(&dir.join(&path), kind)?;
        entries.insert(path, Entry { kind, stamp, hash });
        Ok(())
    })?;
    store(&entries, list)
}

/// Compares the files below a directory with the list. A file is read only if its size or time is another one. A
/// directory without a list, which an older version has fetched, gets one. Blocks.
pub(super) fn check(dir: &Path, list: &Path) -> io::Result<Condition> {
    let expected = match fs::read(list) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // The cache may be read-only.
            let _ = write(dir, list);
            return Ok(Condition::Unchanged);
        }
        Err(error) => return Err(error),
    };
    let Some(mut rest) = expected else { return Ok(Condition::Changed(list.to_owned())) };
    let mut found = BTreeMap::new();
    let mut changed = None;
    let mut is_touched = false;
    each_file(dir, Path::new(""), &mut |path, kind, stamp| {
        let same = match rest.remove(&path) {
            Some(entry) if entry.kind == kind && entry.stamp == stamp => Some(entry),
            Some(entry) if entry.kind == kind && entry.stamp.size == stamp.size => {
                is_touched = true;
                (hash(&dir.join(&path), kind)? == entry.hash).then_some(Entry { stamp, ..entry })
            }
            _ => None,
        };
        match same {
            Some(entry) => drop(found.insert(path, entry)),
            None => changed = changed.take().or(Some(path)),
        }
        Ok(())
    })?;
    if let Some(path) = changed.or_else(|| rest.into_keys().next()) {
        return Ok(Condition::Changed(dir.join(path)));
    }
    if is_touched {
        // Files of a copied cache have other times. Without the new list, they are only read again.
        let _ = store(&found, list);
    }
    Ok(Condition::Unchanged)
}

/// Calls `visit` with the path, kind and stamp of each file.
fn each_file(
    root: &Path,
    below: &Path,
    visit: &mut impl FnMut(PathBuf, char, Stamp) -> io::Result<()>,
) -> io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let (path, metadata) = (below.join(entry.file_name()), entry.metadata()?);
        if metadata.is_dir() {
            each_file(root, &path, visit)?;
            continue;
        }
        let kind = match metadata.permissions().mode() & 0o111 {
            _ if metadata.is_symlink() => 'l',
            _ if !metadata.is_file() => 'o',
            0 => 'f',
            _ => 'x',
        };
        visit(path, kind, Stamp::of(&metadata))?;
    }
    Ok(())
}

fn hash(path: &Path, kind: char) -> io::Result<String> {
    let mut hash = Sha256::new();
    match kind {
        'l' => hash.update(fs::read_link(path)?.as_os_str().as_bytes()),
        'f' | 'x' => {
            let mut file = File::open(path)?;
            let mut chunk = vec![0; CHUNK_BYTES];
            while let length @ 1.. = file.read(&mut chunk)? {
                hash.update(&chunk[..length]);
            }
        }
        _ => {}
    }
    Ok(hex(&hash.finalize()))
}

fn store(entries: &BTreeMap<PathBuf, Entry>, list: &Path) -> io::Result<()> {
    let mut text = Vec::new();
    for (path, Entry { kind, stamp: Stamp { size, modified: (seconds, nanos) }, hash }) in entries {
        write!(text, "{kind} {size} {seconds} {nanos} {hash}\t")?;
        text.extend_from_slice(path.as_os_str().as_bytes());
        text.push(0);
    }
    write_whole(list, &text)
}

/// None if the list itself is damaged.
fn parse(text: &[u8]) -> Option<BTreeMap<PathBuf, Entry>> {
    let complete = text.strip_suffix(&[0])?;
    let entry = |line: &[u8]| {
        let tab = line.iter().position(|byte| *byte == b'\t')?;
        let words: Vec<&str> = std::str::from_utf8(&line[..tab]).ok()?.split(' ').collect();
        let [kind, size, seconds, nanos, hash] = words[..] else { return None };
        let modified = (seconds.parse().ok()?, nanos.parse().ok()?);
        let stamp = Stamp { size: size.parse().ok()?, modified };
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&line[tab + 1..]));
        Some((path, Entry { kind: kind.parse().ok()?, stamp, hash: hash.to_owned() }))
    };
    complete.split(|byte| *byte == 0).map(entry).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn changed_added_and_removed_files_are_found_and_new_times_are_not() {
        let root = tempfile::tempdir().unwrap();
        let (dir, list) = (root.path().join("task"), root.path().join("list"));
        fs::create_dir_all(dir.join("deep")).unwrap();
        let set_time = |path: &str, time| {
            fs::File::options().append(true).open(dir.join(path)).unwrap().set_modified(time).unwrap();
        };
        // Times long ago, because two changes in a moment can have the same one.
        let fill = || {
            for (path, text) in [("deep/one", "one"), ("two", "two")] {
                fs::write(dir.join(path), text).unwrap();
                set_time(path, UNIX_EPOCH);
            }
        };
        fill();
        std::os::unix::fs::symlink("two", dir.join("link")).unwrap();
        write(&dir, &list).unwrap();
        assert_eq!(check(&dir, &list).unwrap(), Condition::Unchanged);
        set_time("two", UNIX_EPOCH + Duration::from_secs(1));
        let before = fs::read(&list).unwrap();
        assert_eq!(check(&dir, &list).unwrap(), Condition::Unchanged);
        assert_ne!(fs::read(&list).unwrap(), before, "the new time is recorded");

        let changes: [(&str, &dyn Fn()); 5] = [
            ("deep/one", &|| fs::write(dir.join("deep/one"), "eno").unwrap()),
            ("two", &|| fs::write(dir.join("two"), "").unwrap()),
            ("two", &|| fs::remove_file(dir.join("two")).unwrap()),
            ("deep/one", &|| {
                let executable = fs::Permissions::from_mode(0o755);
                fs::set_permissions(dir.join("deep/one"), executable).unwrap();
            }),
            ("deep/new", &|| fs::write(dir.join("deep/new"), "").unwrap()),
        ];
        for (path, change) in changes {
            let _ = fs::remove_file(dir.join("deep/one"));
            fill();
            assert_eq!(check(&dir, &list).unwrap(), Condition::Unchanged);
            change();
            assert_eq!(check(&dir, &list).unwrap(), Condition::Changed(dir.join(path)));
        }
    }
}
