//! The image of a task for a cloud: its Dockerfile, with the guest added at the end.

use std::{
    io,
    path::{Path, PathBuf},
};

use rollout_core::text::hex;
use sha2::{Digest as _, Sha256};

use crate::{
    blocking::blocking,
    compose::BuildOptions,
    docker::BuildContext,
    environment::{EnvironmentError, ImageRequest},
    guest,
};

/// The directory of the guest, in the context and in the image.
const GUEST_DIR: &str = ".rollout";

/// The directory in which a build describes the image. The image's user writes to it.
const DESCRIPTION_DIR: &str = ".rollout/image";

/// The file in which a build describes the image.
pub(super) const DESCRIPTION: &str = "/.rollout/image/description.json";

/// What an image is built from.
#[derive(Clone)]
pub(crate) struct ImageSource {
    /// Identifies the content, the guest included: lower-case hexadecimal digits.
    pub(crate) key: String,
    /// The Dockerfile, which ends with the guest.
    pub(crate) dockerfile: String,
    /// The image that the task names instead of a Dockerfile.
    pub(crate) image: Option<String>,
    /// The files of the task's context; `None` if the task names an image.
    pub(crate) context: Option<BuildContext>,
    /// Builds without the vendor's cache.
    pub(crate) force: bool,
    /// The file of the build log. It appears when something is written.
    pub(crate) log: PathBuf,
}

/// A file that the context of every build has besides the task's.
pub(crate) enum AddedFile {
    /// A directory with its mode.
    Dir { path: &'static str, mode: u32 },
    /// A file with its mode and content.
    File { path: &'static str, mode: u32, content: &'static [u8] },
}

/// The files that the end of each Dockerfile copies.
pub(crate) fn added_files() -> [AddedFile; 3] {
    [
        AddedFile::Dir { path: GUEST_DIR, mode: 0o755 },
        AddedFile::File { path: ".rollout/guest", mode: 0o555, content: guest::PROGRAM },
        AddedFile::Dir { path: DESCRIPTION_DIR, mode: 0o777 },
    ]
}

/// The instruction that adds the guest to an image.
const ADD_GUEST: &str = "COPY .rollout/ /.rollout/";

/// The end of each Dockerfile. The image's variables, directory and user are recorded while they are in force.
fn ending() -> String {
    let program = guest::PROGRAM_PATH;
    format!(
        "\n{ADD_GUEST}\nRUN [\"{program}\", \"describe\", \"{DESCRIPTION}\"]\nUSER 0\nENTRYPOINT []\nCMD []\n"
    )
}

/// The [added files](added_files) as a tar archive, which keeps their modes.
pub(crate) fn added_archive() -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    append_added(&mut archive)?;
    archive.into_inner()
}

impl ImageSource {
    /// Reads what a request names.
    pub(super) async fn open(request: ImageRequest<'_>) -> Result<Self, EnvironmentError> {
        if request.build.is_some_and(|options| *options != BuildOptions::default()) {
            let reason = "build options of docker-compose files are not supported by cloud sandboxes";
            return Err(EnvironmentError::Refused(reason.to_owned()));
        }
        let (force, log) = (request.force_build, request.log.to_owned());
        if let Some(image) = request.docker_image.filter(|_| !force) {
            let dockerfile = format!("FROM {image}\n{}", ending());
            let image = Some(image.to_owned());
            return Ok(Self { key: key(&dockerfile, ""), dockerfile, image, context: None, force, log });
        }
        let dir = request.context.to_owned();
        let path = dir.join("Dockerfile");
        if !path.exists() {
            return Err(request.no_dockerfile(&path));
        }
        let opened = blocking(move || open(&dir)).await;
        let (text, context, hash) = opened.map_err(|error| EnvironmentError::Build(error.to_string()))?;
        let dockerfile = format!("{text}\n{}", ending());
        let (key, context) = (key(&dockerfile, &hash), Some(context));
        Ok(Self { key, dockerfile, image: None, context, force, log })
    }

    /// The Dockerfile for builders that lose directories and modes of the context: it unpacks the [archive](added_archive)
    /// of this name instead of copying its files.
    pub(crate) fn dockerfile_with_archive(&self, name: &str) -> String {
        match self.dockerfile.rsplit_once(ADD_GUEST) {
            Some((start, end)) => format!("{start}ADD {name} /{end}"),
            None => self.dockerfile.clone(),
        }
    }

    /// The Dockerfile without the guest, for builders that add it in a step of their own.
    #[cfg(feature = "modal")]
    pub(super) fn task_dockerfile(&self) -> &str {
        self.dockerfile.strip_suffix(&ending()).unwrap_or(&self.dockerfile)
    }

    /// Writes the task's files and its Dockerfile, without the guest, as a tar archive. Blocks.
    #[cfg(feature = "fly")]
    pub(crate) fn write_task_tar(&self, writer: impl io::Write) -> io::Result<()> {
        let mut archive = tar::Builder::new(writer);
        self.append_context(&mut archive)?;
        let dockerfile = self.dockerfile.strip_suffix(&ending()).unwrap_or(&self.dockerfile);
        append_file(&mut archive, "Dockerfile", dockerfile.as_bytes())?;
        archive.into_inner()?.flush()
    }

    fn append_context<W: io::Write>(&self, archive: &mut tar::Builder<W>) -> io::Result<()> {
        let Some(context) = &self.context else { return Ok(()) };
        // The files are selected already, and the Dockerfile has an end of ours.
        let ours = ["Dockerfile", ".dockerignore"].map(Path::new);
        context.append_to(archive, |path| !ours.contains(&path))
    }
}

/// Writes an archive whose Dockerfile adds the guest to a built image, with the description of that image. Blocks.
#[cfg(feature = "fly")]
pub(crate) fn write_guest_tar(base: &str, description: &str, writer: impl io::Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(writer);
    let dockerfile = format!("FROM {base}\nUSER 0\nCOPY {GUEST_DIR}/ /{GUEST_DIR}/\nENTRYPOINT []\nCMD []\n");
    append_file(&mut archive, "Dockerfile", dockerfile.as_bytes())?;
    append_added(&mut archive)?;
    append_file(&mut archive, DESCRIPTION.trim_start_matches('/'), description.as_bytes())?;
    archive.into_inner()?.flush()
}

fn append_file<W: io::Write>(archive: &mut tar::Builder<W>, path: &str, content: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    archive.append_data(&mut header, path, content)
}

/// Adds the guest, and the directory of the description, to an archive.
pub(crate) fn append_added<W: io::Write>(archive: &mut tar::Builder<W>) -> io::Result<()> {
    for added in added_files() {
        let mut header = tar::Header::new_gnu();
        // An empty field is no number to some readers.
        header.set_uid(0);
        header.set_gid(0);
        match added {
            AddedFile::Dir { path, mode } => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(mode);
                header.set_size(0);
                archive.append_data(&mut header, path, io::empty())?;
            }
            AddedFile::File { path, mode, content } => {
                header.set_mode(mode);
                header.set_size(content.len() as u64);
                archive.append_data(&mut header, path, content)?;
            }
        }
    }
    Ok(())
}

fn open(dir: &Path) -> io::Result<(String, BuildContext, String)> {
    let path = dir.join("Dockerfile");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| io::Error::other(format!("cannot read {}: {error}", path.display())))?;
    let context = BuildContext::open(dir, "Dockerfile").map_err(io::Error::other)?;
    let hash = context.hash("", &BuildOptions::default())?;
    Ok((text, context, hash))
}

/// Identifies an image by everything that it is built from.
fn key(dockerfile: &str, context: &str) -> String {
    let mut hasher = Sha256::new();
    for part in [dockerfile.as_bytes(), context.as_bytes(), guest::PROGRAM] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hex(&hasher.finalize())[..32].to_owned()
}
