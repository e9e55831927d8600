//! The files that `COPY` and `ADD` can use: the build context without the files excluded by `.dockerignore`.
//!
//! The context is not trusted. A source may pass through symbolic links only if they stay inside the context.
//! Links in a copied tree are copied as links and never followed. Sockets, pipes and devices are skipped.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};
use tar::EntryType;

use crate::pattern::{self, Ignore};
use crate::tar_stream::{header, join};

/// The largest `.dockerignore` that is read.
const MAX_IGNORE: u64 = 1 << 20;

/// Why the files of a `COPY` or `ADD` could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyFailure {
    /// The source, or a link on the way to it, leaves the build context.
    #[error("`{0}` leads out of the directory of the Dockerfile; put a copy of the file into that directory")]
    OutsideContext(String),
    /// The file does not exist.
    #[error("`{0}` does not exist in the directory of the Dockerfile")]
    NotFound(String),
    /// The file exists, but `.dockerignore` excludes it.
    #[error("`{0}` is excluded by .dockerignore")]
    Ignored(String),
    /// Neither a file nor a directory.
    #[error("`{0}` is neither a file nor a directory")]
    NotRegular(String),
    /// Several files are copied, but the target is a single file.
    #[error("more than one file is copied, so the target must be a directory: end it with a slash")]
    SeveralIntoFile,
    /// A file could not be read or written.
    #[error("cannot copy {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// The environment rejected the files.
    #[error("cannot copy the files into the environment")]
    Target(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The copy failed for a reason that the environment gives.
    #[error("the copy failed: {0}")]
    Inside(String),
    /// Files cannot belong to other users.
    #[error(
        "without root privileges, an environment has only the user root, so files cannot have other owners"
    )]
    OnlyRoot,
    /// A file could not be downloaded.
    #[error("cannot download {url}")]
    Download {
        /// Its address.
        url: String,
        /// The reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl CopyFailure {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> CopyFailure {
        let path = path.to_owned();
        |source| CopyFailure::Io { path, source }
    }
}

/// An open build context.
#[derive(Debug)]
pub(crate) struct Context {
    root: PathBuf,
    ignore: Ignore,
}

/// A file or directory that a source selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selected {
    /// Its name as written in the source, which is also the name of the copy.
    pub(crate) name: OsString,
    /// Its path, with links resolved.
    pub(crate) path: PathBuf,
    pub(crate) is_dir: bool,
}

/// The kind of an entry of a build context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link to this target.
    Link(PathBuf),
}

/// An entry of a build context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextFile {
    /// Relative to the directory that was walked; empty for a single file.
    pub path: PathBuf,
    /// The kind of entry.
    pub kind: FileKind,
    /// Its permission bits.
    pub mode: u32,
}

/// Lists all files of a directory that a build can see, sorted by path: without the files excluded by
/// `.dockerignore`, and always with the Dockerfile.
pub fn context_files(dir: &Path, dockerfile: &Path) -> Result<Vec<ContextFile>, CopyFailure> {
    let context = Context::open(dir, dockerfile).map_err(CopyFailure::io(dir))?;
    let mut files = context.walk(&context.root)?;
    files.retain(|file| !file.path.as_os_str().is_empty());
    if let Ok(path) = dockerfile.strip_prefix(dir)
        && let Err(place) = files.binary_search_by(|file| file.path.as_path().cmp(path))
    {
        let metadata = fs::metadata(dockerfile).map_err(CopyFailure::io(dockerfile))?;
        let mode = metadata.mode() & 0o7777;
        files.insert(place, ContextFile { path: path.to_owned(), kind: FileKind::File, mode });
    }
    Ok(files)
}

impl Context {
    /// Opens a context, with the rules of `<dockerfile>.dockerignore` or `.dockerignore`.
    pub(crate) fn open(root: &Path, dockerfile: &Path) -> io::Result<Context> {
        let root = root.canonicalize()?;
        let mut own = dockerfile.as_os_str().to_owned();
        own.push(".dockerignore");
        let mut ignore = Ignore::default();
        for file in [PathBuf::from(own), root.join(".dockerignore")] {
            match open_regular(&file).and_then(|file| io::read_to_string(file.take(MAX_IGNORE))) {
                Ok(text) => {
                    ignore = Ignore::parse(&text);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Context { root, ignore })
    }

    /// Finds the files that a source names. A pattern may match several files, which are sorted by name.
    pub(crate) fn select(&self, source: &str) -> Result<Vec<Selected>, CopyFailure> {
        let relative = self.relative(source)?;
        if !pattern::is_pattern(source) {
            return Ok(vec![self.select_one(source, &relative)?]);
        }
        let all = self.walk(&self.root)?;
        let selected = all
            .iter()
            .filter(|entry| !entry.path.as_os_str().is_empty())
            .filter(|entry| pattern::matches(&relative.to_string_lossy(), &entry.path))
            .map(|entry| self.select_one(&entry.path.to_string_lossy(), &entry.path))
            .collect::<Result<Vec<_>, _>>()?;
        if selected.is_empty() { Err(CopyFailure::NotFound(source.to_owned())) } else { Ok(selected) }
    }

    /// Makes a source relative to the context, and rejects a source outside of it.
    fn relative(&self, source: &str) -> Result<PathBuf, CopyFailure> {
        let mut relative = PathBuf::new();
        for component in Path::new(source).components() {
            match component {
                Component::Normal(name) => relative.push(name),
                Component::ParentDir if !relative.pop() => {
                    return Err(CopyFailure::OutsideContext(source.to_owned()));
                }
                _ => {}
            }
        }
        Ok(relative)
    }

    fn select_one(&self, source: &str, relative: &Path) -> Result<Selected, CopyFailure> {
        let path = self.root.join(relative).canonicalize().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                CopyFailure::NotFound(source.to_owned())
            }
            _ => CopyFailure::Io { path: self.root.join(relative), source: error },
        })?;
        let Ok(resolved) = path.strip_prefix(&self.root) else {
            return Err(CopyFailure::OutsideContext(source.to_owned()));
        };
        let metadata = fs::symlink_metadata(&path).map_err(CopyFailure::io(&path))?;
        if !metadata.is_dir() && (self.ignore.ignores(relative) || self.ignore.ignores(resolved)) {
            return Err(CopyFailure::Ignored(source.to_owned()));
        }
        if !metadata.is_dir() && !metadata.is_file() {
            return Err(CopyFailure::NotRegular(source.to_owned()));
        }
        let name = relative.file_name().unwrap_or_default().to_owned();
        Ok(Selected { name, is_dir: metadata.is_dir(), path })
    }

    /// Lists a directory of the context, or a single file, in a fixed order and without ignored files.
    fn walk(&self, top: &Path) -> Result<Vec<ContextFile>, CopyFailure> {
        let mut entries = Vec::new();
        let mut wanted_parents = BTreeSet::new();
        let mut ignored_dirs = BTreeSet::new();
        let mut pending = vec![top.to_owned()];
        while let Some(path) = pending.pop() {
            let metadata = fs::symlink_metadata(&path).map_err(CopyFailure::io(&path))?;
            let kind = if metadata.is_dir() {
                let mut children = Vec::new();
                for child in fs::read_dir(&path).map_err(CopyFailure::io(&path))? {
                    children.push(child.map_err(CopyFailure::io(&path))?.path());
                }
                pending.append(&mut children);
                FileKind::Dir
            } else if metadata.is_symlink() {
                FileKind::Link(fs::read_link(&path).map_err(CopyFailure::io(&path))?)
            } else if metadata.is_file() {
                FileKind::File
            } else {
                continue;
            };
            let relative = path.strip_prefix(top).unwrap_or(&path).to_owned();
            let ignored = self.ignore.ignores(path.strip_prefix(&self.root).unwrap_or(&path));
            match (ignored, kind == FileKind::Dir) {
                (true, false) => continue,
                (true, true) => {
                    ignored_dirs.insert(relative.clone());
                }
                (false, _) => wanted_parents.extend(relative.ancestors().skip(1).map(Path::to_owned)),
            }
            entries.push(ContextFile { path: relative, kind, mode: metadata.mode() & 0o7777 });
        }
        // An exception may keep a file of an ignored directory; then the directory is kept, too.
        entries.retain(|entry| !ignored_dirs.contains(&entry.path) || wanted_parents.contains(&entry.path));
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }

    /// Adds the names, kinds, modes and contents of the selected files to a hash.
    pub(crate) fn hash(&self, selected: &Selected, hasher: &mut Sha256) -> Result<(), CopyFailure> {
        hash_field(hasher, selected.name.as_bytes());
        for entry in self.walk(&selected.path)? {
            hash_field(hasher, entry.path.as_os_str().as_bytes());
            hasher.update(entry.mode.to_le_bytes());
            match &entry.kind {
                FileKind::Dir => hasher.update(b"d"),
                FileKind::Link(target) => {
                    hasher.update(b"l");
                    hash_field(hasher, target.as_os_str().as_bytes());
                }
                FileKind::File => {
                    hasher.update(b"f");
                    let path = join(&selected.path, &entry.path);
                    let mut content = Sha256::new();
                    let mut file = open_regular(&path).map_err(CopyFailure::io(&path))?;
                    io::copy(&mut file, &mut HashWriter(&mut content)).map_err(CopyFailure::io(&path))?;
                    hasher.update(content.finalize());
                }
            }
        }
        Ok(())
    }

    /// Adds a selected file to an archive as `target`, or the content of a selected directory below `target`.
    pub(crate) fn pack(
        &self,
        selected: &Selected,
        archive: &mut ContextArchive<impl io::Write>,
        target: &Path,
    ) -> Result<(), CopyFailure> {
        for entry in self.walk(&selected.path)? {
            let to = join(target, &entry.path);
            let from = join(&selected.path, &entry.path);
            if to.as_os_str().is_empty() {
                continue;
            }
            let added = match &entry.kind {
                FileKind::Dir => archive.add(EntryType::Directory, entry.mode, &to, io::empty(), (0, 0)),
                FileKind::Link(link) => archive.link(&to, link),
                FileKind::File => archive.file(&from, &to, entry.mode),
            };
            added.map_err(CopyFailure::io(&from))?;
        }
        Ok(())
    }
}

/// An archive of files of the context, which belong to root.
pub(crate) struct ContextArchive<W: io::Write> {
    archive: tar::Builder<W>,
    /// Files with several names, by device and number.
    linked: HashMap<(u64, u64), PathBuf>,
}

impl<W: io::Write> ContextArchive<W> {
    pub(crate) fn new(to: W) -> ContextArchive<W> {
        ContextArchive { archive: tar::Builder::new(to), linked: HashMap::new() }
    }

    /// Adds an entry with this content, time and size.
    pub(crate) fn add(
        &mut self,
        kind: EntryType,
        mode: u32,
        to: &Path,
        content: impl Read,
        (time, size): (u64, u64),
    ) -> io::Result<()> {
        self.archive.append_data(&mut header(kind, mode, (0, 0), time, size), to, content)
    }

    fn link(&mut self, to: &Path, target: &Path) -> io::Result<()> {
        self.archive.append_link(&mut header(EntryType::Symlink, 0o777, (0, 0), 0, 0), to, target)
    }

    fn file(&mut self, from: &Path, to: &Path, mode: u32) -> io::Result<()> {
        let file = open_regular(from)?;
        let metadata = file.metadata()?;
        if metadata.nlink() > 1 {
            let id = (metadata.dev(), metadata.ino());
            if let Some(first) = self.linked.get(&id) {
                let mut header = header(EntryType::Link, mode, (0, 0), 0, 0);
                return self.archive.append_link(&mut header, to, first);
            }
            self.linked.insert(id, to.to_owned());
        }
        let time = u64::try_from(metadata.mtime()).unwrap_or_default();
        // A file that grows or shrinks meanwhile must not shift the entries that follow.
        let content = file.chain(io::repeat(0)).take(metadata.len());
        self.add(EntryType::Regular, mode, to, content, (time, metadata.len()))
    }

    /// Writes the end of the archive.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.archive.into_inner()?.flush()
    }
}

/// Opens a file without following a final link and without blocking on a pipe.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// Hashes a field with its length, so that neighbouring fields cannot be confused.
pub(crate) fn hash_field(hasher: &mut Sha256, field: &[u8]) {
    hasher.update((field.len() as u64).to_le_bytes());
    hasher.update(field);
}

struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn context(files: &[(&str, &str)]) -> (tempfile::TempDir, Context) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("environment");
        fs::create_dir(&root).unwrap();
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let context = Context::open(&root, &root.join("Dockerfile")).unwrap();
        (dir, context)
    }

    fn names(context: &Context, source: &str) -> Result<Vec<String>, String> {
        let selected = context.select(source).map_err(|error| error.to_string())?;
        Ok(selected.iter().map(|s| s.name.to_string_lossy().into_owned()).collect())
    }

    /// The entries of an archive of the selected files, each with its path and what it is.
    fn packed(context: &Context, source: &str) -> Vec<String> {
        let mut bytes = Vec::new();
        let mut archive = ContextArchive::new(&mut bytes);
        for selected in context.select(source).unwrap() {
            let target = if selected.is_dir { Path::new("") } else { Path::new(&selected.name) };
            context.pack(&selected, &mut archive, target).unwrap();
        }
        archive.finish().unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let header = entry.header();
            found.push(match (header.entry_type(), entry.link_name().unwrap()) {
                (EntryType::Symlink, Some(target)) => format!("{path} -> {}", target.display()),
                (EntryType::Link, Some(target)) => format!("{path} = {}", target.display()),
                (EntryType::Directory, _) => format!("{}/", path.trim_end_matches('/')),
                _ => format!("{path} {:o}", header.mode().unwrap()),
            });
        }
        found.sort();
        found
    }

    fn hash(context: &Context, source: &str) -> Vec<u8> {
        let mut hasher = Sha256::new();
        for selected in context.select(source).unwrap() {
            context.hash(&selected, &mut hasher).unwrap();
        }
        hasher.finalize().to_vec()
    }

    #[test]
    fn a_context_is_listed_without_what_is_ignored_but_with_its_dockerfile() {
        let files =
            [(".dockerignore", "*\n!keep/*.txt\n"), ("Dockerfile", ""), ("a", ""), ("keep/b.txt", "")];
        let (_dir, context) = context(&files);
        let listed = context_files(&context.root, &context.root.join("Dockerfile")).unwrap();
        let paths: Vec<&str> = listed.iter().map(|file| file.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["Dockerfile", "keep", "keep/b.txt"]);
    }

    #[test]
    fn a_source_names_a_file_a_directory_or_matches_of_a_pattern() {
        let (_dir, context) = context(&[("a.txt", ""), ("b.txt", ""), ("dir/c.txt", ""), ("x.md", "")]);
        assert_eq!(names(&context, "a.txt"), Ok(vec!["a.txt".to_owned()]));
        assert_eq!(names(&context, "/dir"), Ok(vec!["dir".to_owned()]));
        assert_eq!(names(&context, "dir/../x.md"), Ok(vec!["x.md".to_owned()]));
        assert_eq!(names(&context, "*.txt"), Ok(vec!["a.txt".to_owned(), "b.txt".to_owned()]));
        assert_eq!(names(&context, "*/c.txt"), Ok(vec!["c.txt".to_owned()]));
        assert_eq!(
            names(&context, "no"),
            Err("`no` does not exist in the directory of the Dockerfile".to_owned())
        );
        assert_eq!(
            names(&context, "*.no"),
            Err("`*.no` does not exist in the directory of the Dockerfile".to_owned())
        );
        assert_eq!(
            names(&context, "a.txt/x"),
            Err("`a.txt/x` does not exist in the directory of the Dockerfile".to_owned())
        );
    }

    #[test]
    fn a_source_cannot_leave_the_context() {
        let (dir, context) = context(&[("ok.txt", "ok"), ("sub/f", "")]);
        fs::write(dir.path().join("secret"), "s").unwrap();
        symlink(dir.path().join("secret"), context.root.join("absolute")).unwrap();
        symlink("../secret", context.root.join("climbing")).unwrap();
        symlink("..", context.root.join("up")).unwrap();
        symlink("ok.txt", context.root.join("inside")).unwrap();
        for source in ["../secret", "sub/../../secret", "absolute", "climbing", "up", "up/secret", "abs*"] {
            assert!(matches!(context.select(source), Err(CopyFailure::OutsideContext(_))), "{source}");
        }
        assert_eq!(packed(&context, "inside"), ["inside 644"]);
    }

    #[test]
    fn links_in_a_tree_are_copied_as_links() {
        let (_dir, context) = context(&[("d/f", "")]);
        symlink("/etc/passwd", context.root.join("d/link")).unwrap();
        fs::hard_link(context.root.join("d/f"), context.root.join("d/g")).unwrap();
        assert_eq!(packed(&context, "d"), ["f 644", "g = f", "link -> /etc/passwd"]);
    }

    #[test]
    fn ignored_files_are_not_seen() {
        let (_dir, context) = context(&[
            (".dockerignore", "*.log\nbuild\n!build/keep/me\n"),
            ("a.log", ""),
            ("b", ""),
            ("build/x", ""),
            ("build/keep/me", ""),
            ("build/keep/not", ""),
        ]);
        assert_eq!(
            packed(&context, "."),
            [".dockerignore 644", "b 644", "build/", "build/keep/", "build/keep/me 644"]
        );
        assert_eq!(names(&context, "a.log"), Err("`a.log` is excluded by .dockerignore".to_owned()));
        assert_eq!(
            names(&context, "*.log"),
            Err("`*.log` does not exist in the directory of the Dockerfile".to_owned())
        );
        assert_eq!(packed(&context, "build"), ["keep/", "keep/me 644"]);
    }

    #[test]
    fn the_hash_follows_content_mode_and_name_of_visible_files_only() {
        let (_dir, context) = context(&[(".dockerignore", "*.log"), ("d/a", "1"), ("d/b", "2")]);
        let before = hash(&context, "d");
        fs::write(context.root.join("noise.log"), "x").unwrap();
        assert_eq!(hash(&context, "d"), before);
        fs::write(context.root.join("d/a"), "other").unwrap();
        let changed = hash(&context, "d");
        assert_ne!(changed, before);
        fs::set_permissions(context.root.join("d/a"), Permissions::from_mode(0o755)).unwrap();
        let executable = hash(&context, "d");
        assert_ne!(executable, changed);
        fs::rename(context.root.join("d/b"), context.root.join("d/c")).unwrap();
        assert_ne!(hash(&context, "d"), executable);
    }

    #[test]
    fn pipes_are_passed_over_and_refused_as_a_source() {
        let (_dir, context) = context(&[("d/f", "")]);
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            context.root.join("d/pipe"),
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .unwrap();
        assert_eq!(packed(&context, "d"), ["f 644"]);
        assert_eq!(names(&context, "d/pipe"), Err("`d/pipe` is neither a file nor a directory".to_owned()));
    }
}
