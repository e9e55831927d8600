//! Moves files into the sandbox of a build, as archives through a pipe.
//!
//! No program of the image is used: an image may have none.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::pipe::{PipeFlags, pipe_with};

use super::context::{Context, ContextArchive, CopyFailure, Selected};
use super::plan::{Copy, normalise};
use crate::blocking::blocking;
use crate::files::CopyError;
use crate::oci::unpack::{Owners, unpack};
use crate::sandbox::RunningSandbox;
use crate::wire::{EntryOwners, FoundFile, UnpackRequest};

/// How the files of a copy are written.
pub(crate) fn request(copy: &Copy, into_dir: bool, owners: EntryOwners) -> UnpackRequest {
    UnpackRequest {
        target: copy.target.clone(),
        into_dir,
        owner: copy.chown.clone(),
        owners: if copy.chown.is_some() { EntryOwners::Given } else { owners },
        chmod: copy.chmod,
    }
}

/// Runs a `COPY --from`.
pub(crate) async fn between(
    from: &RunningSandbox,
    to: &RunningSandbox,
    copy: &Copy,
    keep_owners: bool,
) -> Result<(), CopyFailure> {
    let found = find(from, &copy.sources).await?;
    if found.len() > 1 && !copy.into_dir {
        return Err(CopyFailure::SeveralIntoFile);
    }
    let owners = if keep_owners { EntryOwners::Archive } else { EntryOwners::Root };
    for file in found {
        let request = request(copy, copy.into_dir || file.is_dir, owners);
        let (reader, writer) = new_pipe()?;
        let (packed, unpacked) = tokio::join!(from.pack(&file.path, writer), to.unpack(request, reader));
        first_error(packed.map_err(target), unpacked.map_err(|error| owner_error(error, keep_owners)))?;
    }
    Ok(())
}

/// Copies what a path of a sandbox names into a new directory of the host.
pub(crate) async fn to_host(
    from: &RunningSandbox,
    source: &str,
    dir: &Path,
    keep_owners: bool,
) -> Result<FoundFile, CopyFailure> {
    let found = find(from, &[source.to_owned()]).await?.remove(0);
    let (reader, writer) = new_pipe()?;
    let (packed, unpacked) =
        tokio::join!(from.pack(&found.path, writer), unpack_on_host(reader, dir, keep_owners));
    first_error(packed.map_err(target), unpacked)?;
    Ok(found)
}

/// Finds files in another sandbox.
async fn find(from: &RunningSandbox, sources: &[String]) -> Result<Vec<FoundFile>, CopyFailure> {
    let mut all = Vec::new();
    for source in sources {
        let found = from.find(&normalise(&format!("/{source}"))).await.map_err(target)?;
        if found.is_empty() {
            return Err(CopyFailure::NotFound(source.clone()));
        }
        all.extend(found);
    }
    Ok(all)
}

/// Files to copy, and their path in the archive.
pub(crate) enum Piece {
    /// A file or directory of the context.
    Selected(Selected, std::path::PathBuf),
    /// A text.
    Text { name: String, text: String },
    /// A downloaded file.
    Downloaded { name: String, file: File, time: u64 },
}

/// The mode of downloaded files, as in Docker.
const DOWNLOADED: u32 = 0o600;

fn write_pieces(context: &Context, pieces: Vec<Piece>, to: OwnedFd) -> Result<(), CopyFailure> {
    let mut archive = ContextArchive::new(io::BufWriter::new(File::from(to)));
    let into = |error: io::Error| CopyFailure::Target(Box::new(error));
    for piece in pieces {
        match piece {
            Piece::Selected(selected, path) => context.pack(&selected, &mut archive, &path)?,
            Piece::Text { name, text } => {
                let size = text.len() as u64;
                let kind = tar::EntryType::Regular;
                archive.add(kind, 0o644, Path::new(&name), text.as_bytes(), (0, size)).map_err(into)?;
            }
            Piece::Downloaded { name, file, time } => {
                let size = file.metadata().map_err(into)?.len();
                let kind = tar::EntryType::Regular;
                archive.add(kind, DOWNLOADED, Path::new(&name), file, (time, size)).map_err(into)?;
            }
        }
    }
    archive.finish().map_err(into)
}

/// Copies files into a sandbox.
pub(crate) async fn pieces(
    context: &std::sync::Arc<Context>,
    pieces: Vec<Piece>,
    to: &RunningSandbox,
    request: UnpackRequest,
    keep_owners: bool,
) -> Result<(), CopyFailure> {
    let (reader, writer) = new_pipe()?;
    let context = context.clone();
    let packing = blocking(move || write_pieces(&context, pieces, writer));
    let (packed, unpacked) = tokio::join!(packing, to.unpack(request, reader));
    first_error(packed, unpacked.map_err(|error| owner_error(error, keep_owners)))
}

/// Copies files of the context into a new directory of the host.
pub(crate) async fn context_to_host(
    context: &std::sync::Arc<Context>,
    selected: Selected,
    dir: &Path,
    keep_owners: bool,
) -> Result<(), CopyFailure> {
    let (reader, writer) = new_pipe()?;
    let path = if selected.is_dir { Default::default() } else { selected.name.clone().into() };
    let context = context.clone();
    let packing = blocking(move || write_pieces(&context, vec![Piece::Selected(selected, path)], writer));
    let (packed, unpacked) = tokio::join!(packing, unpack_on_host(reader, dir, keep_owners));
    first_error(packed, unpacked)
}

async fn unpack_on_host(reader: OwnedFd, dir: &Path, keep_owners: bool) -> Result<(), CopyFailure> {
    let (to, owners) = (dir.to_owned(), if keep_owners { Owners::Kept } else { Owners::User });
    let work = move || {
        let mut reader = File::from(reader);
        unpack(reader.try_clone()?, &to, owners)?;
        // The writer must not find its pipe closed.
        io::copy(&mut reader, &mut io::sink()).map(drop)
    };
    blocking(work).await.map_err(CopyFailure::io(dir))
}

/// Unpacks an archive of the host into a sandbox.
pub(crate) async fn archive(
    mut content: impl io::Read + Send + 'static,
    to: &RunningSandbox,
    request: UnpackRequest,
) -> Result<(), CopyFailure> {
    let (reader, writer) = new_pipe()?;
    let writing = blocking(move || io::copy(&mut content, &mut File::from(writer)).map(drop));
    let (written, unpacked) = tokio::join!(writing, to.unpack(request, reader));
    let written = written.map_err(|error| CopyFailure::Inside(error.to_string()));
    first_error(written, unpacked.map_err(target))
}

fn new_pipe() -> Result<(OwnedFd, OwnedFd), CopyFailure> {
    pipe_with(PipeFlags::CLOEXEC).map_err(|error| CopyFailure::Target(io::Error::from(error).into()))
}

/// If the reader fails, the writer fails too, because its pipe is closed: then the reader's error is the cause.
fn first_error(written: Result<(), CopyFailure>, read: Result<(), CopyFailure>) -> Result<(), CopyFailure> {
    read.and(written)
}

pub(crate) fn target(error: CopyError) -> CopyFailure {
    CopyFailure::Target(Box::new(error))
}

/// Explains why an ordinary user cannot give files away.
pub(crate) fn owner_error(error: CopyError, keep_owners: bool) -> CopyFailure {
    match &error {
        CopyError::Inside { source, .. }
            if !keep_owners && matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) =>
        {
            CopyFailure::OnlyRoot
        }
        _ => target(error),
    }
}
