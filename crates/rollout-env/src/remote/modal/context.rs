//! The files of a build, as a mount of Modal.
//!
//! A mount has files with contents and modes only. Links to files are replaced by the files; empty directories and
//! other links are left out, and the log of the build names them.

use std::{
    collections::{BTreeMap, HashSet},
    io::{self, Read as _},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rollout_core::text::hex;
use rollout_sandbox::build::{ContextFile, FileKind};
use sha2::{Digest as _, Sha256};

use super::{
    super::{AddedFile, CloudError, ImageSource, added_files, image::DESCRIPTION},
    blob::{self, LARGE},
    client::{Call, Client},
    messages::{
        MountBatchedCheckExistenceRequest, MountBatchedCheckExistenceResponse, MountData, MountFile,
        MountGetOrCreateRequest, MountGetOrCreateResponse, MountPutFileRequest, MountPutFileResponse,
        OWNED_BY_APP,
    },
};
use crate::{blocking::blocking, docker::BuildContext};

/// The hashes in one question.
const BATCH: usize = 64;

/// The files that are uploaded at a time.
const UPLOADS: usize = 8;

/// The attempts to upload a file that the server does not have afterwards.
const PUTS: u32 = 5;

/// The content of the file that the build replaces with a description of the image.
const NO_DESCRIPTION: &[u8] = b"{}\n";

/// A file of a mount.
#[derive(Clone)]
struct Entry {
    sha256: [u8; 32],
    mode: u32,
    source: Source,
}

/// Where the content of a file is.
#[derive(Clone)]
enum Source {
    Fixed(&'static [u8]),
    File(ContextFile),
}

/// The files of a mount, by their absolute paths.
struct Listing {
    entries: BTreeMap<String, Entry>,
    /// Paths that a mount cannot have, with the reasons.
    left_out: Vec<String>,
}

/// Uploads the files of a task, and returns the mount and the paths that it cannot have. There is no mount without
/// files.
pub(super) async fn upload(
    client: &Client,
    app_id: &str,
    source: &ImageSource,
) -> Result<(String, Vec<String>), CloudError> {
    let Some(context) = source.context.clone().map(Arc::new) else { return Ok((String::new(), Vec::new())) };
    let listed = Arc::clone(&context);
    let listing = blocking(move || list(&listed)).await;
    let Listing { entries, left_out } =
        listing.map_err(|error| CloudError::Build(format!("cannot read the build context: {error}")))?;
    if entries.is_empty() {
        return Ok((String::new(), left_out));
    }
    Ok((store(client, app_id, entries, Some(context)).await?, left_out))
}

/// Uploads the guest, and returns the mount.
pub(super) async fn upload_guest(client: &Client, app_id: &str) -> Result<String, CloudError> {
    store(client, app_id, guest_entries(), None).await
}

/// Uploads files as far as they are missing, and returns their mount.
async fn store(
    client: &Client,
    app_id: &str,
    entries: BTreeMap<String, Entry>,
    context: Option<Arc<BuildContext>>,
) -> Result<String, CloudError> {
    let missing = missing(client, &entries).await?;
    let mut seen = HashSet::new();
    let uploads: Vec<Entry> = entries
        .values()
        .filter(|entry| missing.contains(&hex(&entry.sha256)) && seen.insert(entry.sha256))
        .cloned()
        .collect();
    stream::iter(uploads)
        .map(|entry| put(client, context.clone(), entry))
        .buffer_unordered(UPLOADS)
        .try_collect::<()>()
        .await?;
    let files = entries
        .into_iter()
        .map(|(filename, entry)| MountFile {
            filename,
            sha256_hex: hex(&entry.sha256),
            mode: Some(entry.mode),
        })
        .collect();
    let request =
        MountGetOrCreateRequest { object_creation_type: OWNED_BY_APP, files, app_id: app_id.to_owned() };
    let call = Call::plain("/modal.client.ModalClient/MountGetOrCreate");
    let mount: MountGetOrCreateResponse = client.call(&call, request).await?;
    Ok(mount.mount_id)
}

/// The hashes that the server does not have.
async fn missing(client: &Client, entries: &BTreeMap<String, Entry>) -> Result<HashSet<String>, CloudError> {
    let hashes: Vec<String> = entries.values().map(|entry| hex(&entry.sha256)).collect();
    let call = Call::plain("/modal.client.ModalClient/MountBatchedCheckExistence");
    let mut missing = HashSet::new();
    for batch in hashes.chunks(BATCH) {
        let request = MountBatchedCheckExistenceRequest { sha256_hex_hashes: batch.to_vec() };
        let answer: MountBatchedCheckExistenceResponse = client.call(&call, request).await?;
        missing.extend(answer.missing_sha256_hex_hashes);
    }
    Ok(missing)
}

/// Uploads one file.
async fn put(client: &Client, context: Option<Arc<BuildContext>>, entry: Entry) -> Result<(), CloudError> {
    let sha256 = entry.sha256;
    let content = blocking(move || content(context.as_deref(), &entry)).await;
    let content = content.map_err(|error| CloudError::Build(error.to_string()))?;
    let data = if content.len() >= LARGE {
        MountData::BlobId(blob::upload(client, &sha256, content).await?)
    } else {
        MountData::Content(content)
    };
    let request = MountPutFileRequest { sha256_hex: hex(&sha256), data: Some(data) };
    let call = Call::plain("/modal.client.ModalClient/MountPutFile");
    for _ in 0..PUTS {
        let answer: MountPutFileResponse = client.call(&call, request.clone()).await?;
        if answer.exists {
            return Ok(());
        }
    }
    Err(CloudError::Busy { text: "Modal does not store a file of the build".to_owned(), retry_after: None })
}

/// Reads a file that has been hashed. Blocks.
fn content(context: Option<&BuildContext>, entry: &Entry) -> io::Result<Vec<u8>> {
    let content = match (&entry.source, context) {
        (Source::Fixed(content), _) => content.to_vec(),
        (Source::File(file), Some(context)) => {
            let mut content = Vec::new();
            context.open_file(file)?.read_to_end(&mut content)?;
            content
        }
        (Source::File(_), None) => return Err(io::Error::other("a build without a context has no files")),
    };
    if Sha256::digest(&content)[..] != entry.sha256 {
        return Err(io::Error::other("a file of the build context changed while it was read"));
    }
    Ok(content)
}

/// Lists and hashes the files of a task. Blocks.
fn list(context: &BuildContext) -> io::Result<Listing> {
    let mut listing = Listing { entries: BTreeMap::new(), left_out: Vec::new() };
    let files: BTreeMap<&Path, &ContextFile> =
        context.files().iter().map(|file| (file.path.as_path(), file)).collect();
    // The Dockerfile is sent in the request, and the files are selected already.
    let is_ours = |path: &Path| path == Path::new("Dockerfile") || path == Path::new(".dockerignore");
    for (path, file) in files.iter().filter(|(path, _)| !is_ours(path)) {
        let file = match &file.kind {
            FileKind::File => *file,
            FileKind::Link(target) => match follow(&files, path, target) {
                Some(file) => file,
                None => {
                    listing.left_out.push(format!("the link {}", path.display()));
                    continue;
                }
            },
            FileKind::Dir => {
                if !files.keys().any(|other| other.parent() == Some(path)) {
                    listing.left_out.push(format!("the empty directory {}", path.display()));
                }
                continue;
            }
        };
        let Some(name) = path.to_str() else {
            listing.left_out.push(format!("{}, whose name is not UTF-8", path.display()));
            continue;
        };
        let entry =
            Entry { sha256: hash(context, file)?, mode: file.mode, source: Source::File(file.clone()) };
        listing.entries.insert(format!("/{name}"), entry);
    }
    Ok(listing)
}

/// The files of the guest.
fn guest_entries() -> BTreeMap<String, Entry> {
    let fixed = |content: &'static [u8], mode| Entry {
        sha256: Sha256::digest(content).into(),
        mode,
        source: Source::Fixed(content),
    };
    let mut entries = BTreeMap::new();
    for added in added_files() {
        if let AddedFile::File { path, mode, content } = added {
            entries.insert(format!("/{path}"), fixed(content, mode));
        }
    }
    // The user of the image replaces it. There is no directory in which that user could create it.
    entries.insert(DESCRIPTION.to_owned(), fixed(NO_DESCRIPTION, 0o666));
    entries
}

/// The file that a link in the context leads to.
fn follow<'a>(
    files: &BTreeMap<&Path, &'a ContextFile>,
    link: &Path,
    target: &Path,
) -> Option<&'a ContextFile> {
    let mut path = link.to_owned();
    let mut target = target.to_owned();
    // More than a chain of links has in practice.
    for _ in 0..8 {
        path = join(path.parent()?, &target)?;
        let file = files.get(path.as_path())?;
        match &file.kind {
            FileKind::File => return Some(file),
            FileKind::Link(next) => target.clone_from(next),
            FileKind::Dir => return None,
        }
    }
    None
}

/// A path relative to a directory, without `..`; `None` if it leaves the context.
fn join(dir: &Path, target: &Path) -> Option<PathBuf> {
    let mut joined = dir.to_owned();
    for part in target.components() {
        match part {
            Component::Normal(name) => joined.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !joined.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(joined)
}

fn hash(context: &BuildContext, file: &ContextFile) -> io::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    let mut source = context.open_file(file)?;
    let mut chunk = vec![0; 64 << 10];
    loop {
        match source.read(&mut chunk)? {
            0 => return Ok(hasher.finalize().into()),
            count => hasher.update(&chunk[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_mount_has_the_files_of_the_context() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("Dockerfile"), "FROM a\n").unwrap();
        fs::create_dir_all(path("data/deep")).unwrap();
        fs::create_dir(path("empty")).unwrap();
        fs::write(path("data/deep/file"), "text").unwrap();
        symlink("deep/file", path("data/link")).unwrap();
        symlink("link", path("data/chain")).unwrap();
        symlink("data", path("dirs")).unwrap();
        symlink("loop", path("loop")).unwrap();
        symlink("/etc/passwd", path("outside")).unwrap();
        let context = BuildContext::open(dir.path(), "Dockerfile").unwrap();
        let listing = list(&context).unwrap();
        let names: Vec<&str> = listing.entries.keys().map(String::as_str).collect();
        assert_eq!(names, ["/data/chain", "/data/deep/file", "/data/link"]);
        assert_eq!(listing.entries["/data/chain"].sha256, listing.entries["/data/deep/file"].sha256);
        assert_eq!(
            listing.left_out,
            ["the link dirs", "the empty directory empty", "the link loop", "the link outside"]
        );
    }

    #[test]
    fn every_user_can_replace_the_description() {
        let modes: Vec<(String, u32)> =
            guest_entries().into_iter().map(|(path, entry)| (path, entry.mode)).collect();
        let entry = |path: &str, mode| (path.to_owned(), mode);
        assert_eq!(modes, [entry("/.rollout/guest", 0o555), entry(DESCRIPTION, 0o666)]);
    }

    #[test]
    fn a_file_that_changes_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("Dockerfile"), "FROM a\n").unwrap();
        fs::write(dir.path().join("file"), "one").unwrap();
        let context = BuildContext::open(dir.path(), "Dockerfile").unwrap();
        let entry = list(&context).unwrap().entries["/file"].clone();
        assert_eq!(content(Some(&context), &entry).unwrap(), b"one");
        fs::write(dir.path().join("file"), "two").unwrap();
        assert!(content(Some(&context), &entry).unwrap_err().to_string().contains("changed"));
    }
}
