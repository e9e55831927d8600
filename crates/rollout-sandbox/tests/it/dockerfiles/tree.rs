//! The files of an image, in a form that can be compared.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    io::Read,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
    process::Command,
};

use rollout_sandbox::Image;
use sha2::{Digest as _, Sha256};

/// Files that an engine makes in every container.
const MADE: [&str; 9] = [
    "/.dockerenv",
    "/dev",
    "/proc",
    "/sys",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
    "/etc/mtab",
    "/etc",
];

/// The attribute that is compared: containers have no other.
const CAPABILITIES: &str = "security.capability";

/// An entry: what it is, and its content if it is short.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    described: String,
    content: Option<Vec<u8>>,
}

/// The files of an image by their paths.
#[derive(Debug)]
pub(super) struct Tree {
    entries: BTreeMap<String, Entry>,
}

fn is_made(path: &str) -> bool {
    let below = ["/dev/", "/proc/", "/sys/"].iter().any(|dir| path.starts_with(dir));
    below || path == "/" || MADE.contains(&path)
}

fn regular(mode: u32, owner: (u64, u64), content: &[u8], capabilities: Option<&[u8]>) -> Entry {
    let hash: String = Sha256::digest(content).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let attribute = capabilities.map(|value| format!(" {CAPABILITIES}={value:?}")).unwrap_or_default();
    let described = format!("file {mode:o} {}:{} {hash}{attribute}", owner.0, owner.1);
    Entry { described, content: (content.len() < 200).then(|| content.to_vec()) }
}

fn other(kind: &str, mode: u32, owner: (u64, u64)) -> Entry {
    Entry { described: format!("{kind} {mode:o} {}:{}", owner.0, owner.1), content: None }
}

impl Tree {
    /// The tree of an exported container.
    pub(super) fn of_docker(archive: &[u8]) -> Tree {
        let mut entries = BTreeMap::new();
        let mut linked: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut archive = tar::Archive::new(archive);
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = format!("/{}", String::from_utf8_lossy(&entry.path_bytes()).trim_end_matches('/'));
            if is_made(&path) {
                continue;
            }
            let header = entry.header().clone();
            let (mode, owner) =
                (header.mode().unwrap() & 0o7777, (header.uid().unwrap(), header.gid().unwrap()));
            let target = entry
                .link_name_bytes()
                .map(|target| String::from_utf8_lossy(&target).into_owned())
                .unwrap_or_default();
            let kind = header.entry_type();
            if kind == tar::EntryType::Link {
                linked.entry(format!("/{target}")).or_default().push(path);
                continue;
            }
            let found = match kind {
                tar::EntryType::Directory => other("dir", mode, owner),
                tar::EntryType::Symlink => other(&format!("link {target}"), 0o777, owner),
                tar::EntryType::Fifo => other("fifo", mode, owner),
                _ => {
                    let capabilities = capabilities(&mut entry);
                    let mut content = Vec::new();
                    entry.read_to_end(&mut content).unwrap();
                    regular(mode, owner, &content, capabilities.as_deref())
                }
            };
            entries.insert(path, found);
        }
        for (first, mut others) in linked {
            let entry: Entry = entries[&first].clone();
            others.push(first);
            others.sort();
            for path in &others {
                let described = format!("{} linked {others:?}", entry.described);
                entries.insert(path.clone(), Entry { described, ..entry.clone() });
            }
        }
        Tree { entries }
    }

    fn of_directory(root: &Path) -> Tree {
        let mut entries = BTreeMap::new();
        let mut linked: HashMap<u64, Vec<String>> = HashMap::new();
        let mut pending = vec![root.to_owned()];
        while let Some(dir) = pending.pop() {
            for found in fs::read_dir(dir).unwrap() {
                let found = found.unwrap().path();
                let path = format!("/{}", found.strip_prefix(root).unwrap().to_string_lossy());
                if is_made(&path) && path != "/etc" {
                    continue;
                }
                let metadata = found.symlink_metadata().unwrap();
                let (mode, owner) =
                    (metadata.mode() & 0o7777, (metadata.uid().into(), metadata.gid().into()));
                let kind = metadata.file_type();
                let entry = if kind.is_dir() {
                    pending.push(found);
                    other("dir", mode, owner)
                } else if kind.is_symlink() {
                    other(&format!("link {}", fs::read_link(found).unwrap().display()), 0o777, owner)
                } else if kind.is_fifo() {
                    other("fifo", mode, owner)
                } else {
                    if metadata.nlink() > 1 {
                        linked.entry(metadata.ino()).or_default().push(path.clone());
                    }
                    let mut value = vec![0; 100];
                    let length = rustix::fs::getxattr(&found, CAPABILITIES, value.as_mut_slice());
                    let capabilities = length.ok().map(|length| &value[..length]);
                    regular(mode, owner, &fs::read(&found).unwrap(), capabilities)
                };
                if path != "/etc" {
                    entries.insert(path, entry);
                }
            }
        }
        for mut paths in linked.into_values().filter(|paths| paths.len() > 1) {
            paths.sort();
            for path in &paths {
                let entry = entries.get_mut(path).unwrap();
                entry.described = format!("{} linked {paths:?}", entry.described);
            }
        }
        Tree { entries }
    }

    /// How this tree differs from another one. Docker makes the directories of volumes only in containers.
    pub(super) fn differences(
        &self,
        theirs: &Tree,
        volumes: &BTreeSet<String>,
        own: &str,
        other: &str,
    ) -> Vec<String> {
        let paths: BTreeSet<&String> = self.entries.keys().chain(theirs.entries.keys()).collect();
        let mut found = Vec::new();
        for path in paths {
            let (ours, theirs) = (self.entries.get(path), theirs.entries.get(path));
            let is_volume =
                || volumes.iter().any(|volume| volume.trim_matches('/').starts_with(path.trim_matches('/')));
            match (ours, theirs) {
                (Some(ours), Some(theirs)) if ours == theirs => {}
                (Some(_), None) if is_volume() => {}
                (ours, theirs) => {
                    let shown = |entry: Option<&Entry>| entry.map_or("missing".to_owned(), Entry::shown);
                    found.push(format!(
                        "{path} is {} in {own}, and {} in {other}",
                        shown(ours),
                        shown(theirs)
                    ));
                }
            }
        }
        found
    }
}

impl Entry {
    fn shown(&self) -> String {
        match &self.content {
            Some(content) => format!("{} {:?}", self.described, String::from_utf8_lossy(content)),
            None => self.described.clone(),
        }
    }

    /// Without the hash, as cases write it out.
    fn written_out(&self) -> String {
        match &self.content {
            Some(content) => {
                let words: Vec<&str> = self.described.split(' ').take(3).collect();
                format!("{} {:?}", words.join(" "), String::from_utf8_lossy(content))
            }
            None => self.described.clone(),
        }
    }
}

/// How the new files of a tree differ from those that a case writes out.
pub(super) fn written_out(tree: &Tree, base: &Tree, expected: &str) -> Vec<String> {
    let new = tree.entries.iter().filter(|(path, entry)| base.entries.get(*path) != Some(entry));
    let found: Vec<String> = new.map(|(path, entry)| format!("{path} {}", entry.written_out())).collect();
    match found.join("\n") == expected {
        true => Vec::new(),
        false => vec![format!("the new files are\n{}\ninstead of\n{expected}", found.join("\n"))],
    }
}

/// The tree of an image of this engine: its layers, mounted on each other.
pub(super) fn of_image(image: &Image, mount_point: &Path) -> Tree {
    let json = serde_json::to_value(image).unwrap();
    let layers = json["parts"][0]["lower"].as_array().unwrap();
    let layers: Vec<&str> = layers.iter().map(|layer| layer.as_str().unwrap()).collect();
    if let [only] = layers.as_slice() {
        return Tree::of_directory(Path::new(only));
    }
    fs::create_dir_all(mount_point).unwrap();
    let options = format!("ro,lowerdir={}", layers.join(":"));
    let mut mount = Command::new("mount");
    mount.args(["-t", "overlay", "-o", &options, "overlay"]).arg(mount_point);
    assert!(mount.status().unwrap().success());
    let tree = Tree::of_directory(mount_point);
    // A process that another case has just started may still see the mount.
    assert!(Command::new("umount").arg("--lazy").arg(mount_point).status().unwrap().success());
    tree
}

fn capabilities(entry: &mut tar::Entry<'_, impl Read>) -> Option<Vec<u8>> {
    let extensions = entry.pax_extensions().ok()??;
    let found = extensions
        .filter_map(Result::ok)
        .find(|one| one.key().is_ok_and(|key| key.ends_with(CAPABILITIES)))?;
    Some(found.value_bytes().to_vec())
}

/// An archive with a program that has a capability.
pub(super) fn archive_with_capabilities() -> Vec<u8> {
    // Version 2 with the capability to use raw sockets, effective and permitted.
    let mut value = vec![1, 0, 0, 2, 0, 0x20, 0, 0];
    value.resize(20, 0);
    let name = format!("SCHILY.xattr.{CAPABILITIES}=");
    let length = name.len() + value.len() + 4;
    let mut record = format!("{length} {name}").into_bytes();
    record.extend(value);
    record.push(b'\n');
    assert_eq!(record.len(), length);
    let mut archive = tar::Builder::new(Vec::new());
    let mut append = |kind, name: &str, content: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, name, content).unwrap();
    };
    append(tar::EntryType::XHeader, "pax", &record);
    append(tar::EntryType::Regular, "capable", b"a program\n");
    archive.into_inner().unwrap()
}
