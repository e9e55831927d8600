//! A build context: its files, the hash that identifies it, and the archive for the engine.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use bytes::Bytes;
use futures_util::Stream;
use rollout_sandbox::build::{ContextFile, CopyFailure, FileKind, context_files, open_regular};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::compose::BuildOptions;

/// The size of a piece of the archive that is sent to the engine.
const CHUNK_BYTES: usize = 64 << 10;

/// The most pieces that wait for the engine.
const PIECES: usize = 4;

/// The Dockerfile of a task, and the files that it may copy.
#[derive(Debug, Clone)]
pub(crate) struct BuildContext {
    dir: PathBuf,
    /// The path of the Dockerfile in the directory.
    pub(super) dockerfile: String,
    files: Vec<ContextFile>,
    /// The text of the Dockerfile, if it is no file.
    inline: Option<String>,
}

/// The path of a Dockerfile that is no file of the context.
const INLINE: &str = ".rollout.Dockerfile";

impl BuildContext {
    /// Lists a directory with a Dockerfile. Blocks.
    pub(crate) fn open(dir: &Path, dockerfile: &str) -> Result<Self, CopyFailure> {
        // Resolved now, because links in the path may change before the files are read.
        let dir = dir.canonicalize().map_err(|source| CopyFailure::Io { path: dir.to_owned(), source })?;
        let files = context_files(&dir, &dir.join(dockerfile))?;
        Ok(Self { dir, dockerfile: dockerfile.to_owned(), files, inline: None })
    }

    /// Lists a directory for a Dockerfile with this text. Blocks.
    pub(super) fn open_inline(dir: &Path, text: &str) -> Result<Self, CopyFailure> {
        let dir = dir.canonicalize().map_err(|source| CopyFailure::Io { path: dir.to_owned(), source })?;
        // A path outside adds no file.
        let files = context_files(&dir, Path::new("/dev/null"))?;
        Ok(Self { dir, dockerfile: INLINE.to_owned(), files, inline: Some(text.to_owned()) })
    }

    /// Hashes names, kinds, modes and contents, and everything else that the image depends on. Blocks.
    pub(crate) fn hash(&self, platform: &str, options: &BuildOptions) -> io::Result<String> {
        let mut hasher = Sha256::new();
        let mut field = |bytes: &[u8]| {
            hasher.update((bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        field(b"rollout build 1");
        field(platform.as_bytes());
        if *options != BuildOptions::default() {
            field(b"options");
            field(self.dockerfile.as_bytes());
            field(options.target.as_deref().unwrap_or_default().as_bytes());
            if let Some(inline) = &options.inline {
                field(b"inline");
                field(inline.as_bytes());
            }
            for (key, value) in &options.args {
                field(key.as_bytes());
                field(value.as_bytes());
            }
        }
        for file in &self.files {
            field(file.path.as_os_str().as_bytes());
            field(&file.mode.to_le_bytes());
            match &file.kind {
                FileKind::Dir => field(b"dir"),
                FileKind::Link(target) => {
                    field(b"link");
                    field(target.as_os_str().as_bytes());
                }
                FileKind::File => {
                    let mut content = Sha256::new();
                    let mut source = self.open_file(file)?;
                    let mut chunk = vec![0; CHUNK_BYTES];
                    loop {
                        match source.read(&mut chunk)? {
                            0 => break,
                            count => content.update(&chunk[..count]),
                        }
                    }
                    field(b"file");
                    field(&content.finalize());
                }
            }
        }
        Ok(rollout_core::text::hex(&hasher.finalize())[..32].to_owned())
    }

    /// The archive, created while it is read.
    pub(super) fn archive(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        archive_of(move |writer| self.write_archive(writer))
    }

    fn write_archive(&self, writer: impl Write) -> io::Result<()> {
        let mut archive = tar::Builder::new(writer);
        self.append_to(&mut archive, |_| true)?;
        if let Some(text) = &self.inline {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(text.len() as u64);
            archive.append_data(&mut header, INLINE, text.as_bytes())?;
        }
        archive.into_inner()?.flush()
    }

    /// The directory.
    #[cfg(feature = "remote")]
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The files, with parents before their content.
    #[cfg(feature = "remote")]
    pub(crate) fn files(&self) -> &[ContextFile] {
        &self.files
    }

    /// Adds the files that pass a filter to an archive. Blocks.
    pub(crate) fn append_to<W: Write>(
        &self,
        archive: &mut tar::Builder<W>,
        filter: impl Fn(&Path) -> bool,
    ) -> io::Result<()> {
        for file in self.files.iter().filter(|file| filter(&file.path)) {
            let mut header = tar::Header::new_gnu();
            header.set_mode(file.mode);
            header.set_size(0);
            match &file.kind {
                FileKind::Dir => {
                    header.set_entry_type(tar::EntryType::Directory);
                    archive.append_data(&mut header, &file.path, io::empty())?;
                }
                FileKind::Link(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    archive.append_link(&mut header, &file.path, target)?;
                }
                FileKind::File => {
                    let source = self.open_file(file)?;
                    let metadata = source.metadata()?;
                    let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
                    header.set_mtime(modified.as_secs());
                    header.set_size(metadata.len());
                    let content = Exactly { source, left: metadata.len() };
                    archive.append_data(&mut header, &file.path, content)?;
                }
            }
        }
        Ok(())
    }

    /// Opens one of the files. Blocks.
    pub(crate) fn open_file(&self, file: &ContextFile) -> io::Result<File> {
        let path = self.dir.join(&file.path);
        // The Dockerfile may be a link within the task.
        let path = if file.path == Path::new(&self.dockerfile) { path.canonicalize()? } else { path };
        open_regular(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.path.display())))
    }
}

/// A stream of what a function writes. It is called on a thread of its own, as fast as the stream is read.
pub(crate) fn archive_of(
    write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let (pieces, mut receiver) = mpsc::channel(PIECES);
    tokio::task::spawn_blocking(move || {
        let mut writer = BufWriter::with_capacity(CHUNK_BYTES, Pieces(pieces.clone()));
        if let Err(error) = write(&mut writer).and_then(|()| writer.flush()) {
            // The receiver is gone if the build was cancelled.
            let _ = pieces.blocking_send(Err(error));
        }
    });
    futures_util::stream::poll_fn(move |context| receiver.poll_recv(context))
}

/// Sends the written bytes.
struct Pieces(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads exactly as many bytes as the archive's header announces, and fails if the file has become shorter.
struct Exactly {
    source: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        let room = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        match self.source.read(&mut buffer[..room])? {
            0 => Err(io::Error::other("a file of the build context changed while it was read")),
            count => {
                self.left -= count as u64;
                Ok(count)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use futures_util::StreamExt as _;

    use super::*;

    fn task() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("data")).unwrap();
        fs::write(dir.path().join("Dockerfile"), "FROM x\n").unwrap();
        fs::write(dir.path().join("data/large"), vec![7; 200_000]).unwrap();
        fs::write(dir.path().join("secret"), "no").unwrap();
        fs::write(dir.path().join(".dockerignore"), "secret\n").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        dir
    }

    fn hash(dir: &tempfile::TempDir) -> String {
        let options = BuildOptions::default();
        BuildContext::open(dir.path(), "Dockerfile").unwrap().hash("", &options).unwrap()
    }

    #[test]
    fn the_hash_depends_on_the_files_that_the_build_can_see() {
        let dir = task();
        let first = hash(&dir);
        assert_eq!(hash(&dir), first);
        fs::write(dir.path().join("secret"), "changed").unwrap();
        assert_eq!(hash(&dir), first);
        fs::set_permissions(dir.path().join("data/large"), fs::Permissions::from_mode(0o755)).unwrap();
        let executable = hash(&dir);
        assert_ne!(executable, first);
        fs::write(dir.path().join("data/large"), "other").unwrap();
        assert_ne!(hash(&dir), executable);
        let context = BuildContext::open(dir.path(), "Dockerfile").unwrap();
        assert_ne!(context.hash("linux/arm64", &BuildOptions::default()).unwrap(), hash(&dir));
        let staged = BuildOptions { target: Some("base".to_owned()), ..BuildOptions::default() };
        assert_ne!(context.hash("", &staged).unwrap(), hash(&dir));
    }

    #[tokio::test]
    async fn the_archive_contains_visible_files_and_links_as_links() {
        let dir = task();
        let pieces: Vec<io::Result<Bytes>> =
            BuildContext::open(dir.path(), "Dockerfile").unwrap().archive().collect().await;
        let bytes: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.unwrap().to_vec()).collect();
        let mut archive = tar::Archive::new(&bytes[..]);
        let mut found: Vec<(String, u64, Option<String>)> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let link = entry.link_name().unwrap().map(|target| target.display().to_string());
                (entry.path().unwrap().display().to_string(), entry.size(), link)
            })
            .collect();
        found.sort();
        let names: Vec<&str> = found.iter().map(|(path, ..)| path.trim_end_matches('/')).collect();
        assert_eq!(names, [".dockerignore", "Dockerfile", "data", "data/large", "link"]);
        assert_eq!(found[3].1, 200_000);
        assert_eq!(found[4].2.as_deref(), Some("/etc/passwd"));
    }

    #[test]
    fn a_file_that_shrinks_fails_the_archive() {
        let dir = task();
        let source = File::open(dir.path().join("secret")).unwrap();
        let error = Exactly { source, left: 3 }.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("changed while it was read"), "{error}");
    }
}
