//! The key of a layer: a hash of everything that determines its content.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::context::{Context, hash_field};
use super::error::ImageBuildError;
use super::plan::{Action, Copy, Origin, Run, Step};
use super::run_mount::MountKind;
use crate::image::Image;
use crate::oci::hex;

/// Changes whenever the same inputs would produce a different layer.
const FORMAT: &str = "rollout layer 3";

/// The characters of a key. Keys are parts of paths, and older kernels limit the length of all paths of a mount.
pub(crate) const KEY_CHARS: usize = 40;

/// Where the files of a layer come from.
pub(crate) struct Inputs<'a> {
    pub(crate) state_dir: &'a Path,
    pub(crate) context: &'a Context,
    /// The image that the layer is added to.
    pub(crate) base: &'a Image,
    /// The images whose files each step uses.
    pub(crate) others: &'a [Vec<Image>],
}

/// The key of the layer that steps add to an image.
///
/// The base counts by its files alone: a step contains what it uses of the configuration.
pub(crate) fn layer_key(inputs: &Inputs<'_>, steps: &[Step]) -> Result<String, ImageBuildError> {
    let mut hasher = Sha256::new();
    hash_field(&mut hasher, FORMAT.as_bytes());
    hash_files(&mut hasher, inputs.state_dir, inputs.base);
    for (step, others) in steps.iter().zip(inputs.others) {
        if step.action == Action::Nothing {
            continue;
        }
        hash_field(&mut hasher, described(&step.action).as_bytes());
        for other in others {
            hash_files(&mut hasher, inputs.state_dir, other);
        }
        for source in context_sources(&step.action) {
            let hashed = inputs.context.select(source).and_then(|found| {
                found.iter().try_for_each(|selected| inputs.context.hash(selected, &mut hasher))
            });
            hashed.map_err(|source| ImageBuildError::FilesFailed { at: step.at.clone(), source })?;
        }
    }
    Ok(hex(&hasher.finalize())[..KEY_CHARS].to_owned())
}

/// Identifies the files and the configuration of a built image.
pub(crate) fn image_identity(state_dir: &Path, image: &Image) -> String {
    let mut hasher = Sha256::new();
    hash_field(&mut hasher, FORMAT.as_bytes());
    hash_files(&mut hasher, state_dir, image);
    hash_field(&mut hasher, format!("{:?}", image.config()).as_bytes());
    hex(&hasher.finalize())
}

/// Hashes what identifies the files of an image: the directories of its layers. A path of the store always has the
/// same content.
fn hash_files(hasher: &mut Sha256, state_dir: &Path, image: &Image) {
    for dir in image.directories() {
        hash_field(hasher, dir.strip_prefix(state_dir).unwrap_or(dir).as_os_str().as_bytes());
    }
    hash_field(hasher, b"");
}

/// Everything of an action except for the names of the stages and images that it uses: those count by their files.
fn described(action: &Action) -> String {
    match action {
        Action::Nothing => String::new(),
        Action::MakeDirs { paths, owner } => format!("directories {paths:?} {owner:?}"),
        Action::Run(Run { command, env, cwd, user, mounts }) => {
            let mounts: Vec<String> = mounts
                .iter()
                .map(|mount| match &mount.kind {
                    MountKind::Bind { from, source, writable } => {
                        let own = *from == Origin::Context;
                        format!("{:?} bind {own} {source:?} {writable}", mount.target)
                    }
                    kind => format!("{:?} {kind:?}", mount.target),
                })
                .collect();
            format!("run {command:?} {env:?} {cwd:?} {user:?} {mounts:?}")
        }
        Action::Copy(copy) => {
            let Copy { from, sources, inline, urls, checksum, target, into_dir, chmod, chown, extract } =
                copy;
            let own = *from == Origin::Context;
            format!(
                "copy {own} {sources:?} {inline:?} {urls:?} {checksum:?} {target:?} {into_dir} {chmod:?} {chown:?} \
                 {extract}"
            )
        }
    }
}

/// The files of the context that an action uses.
fn context_sources(action: &Action) -> Vec<&str> {
    match action {
        Action::Copy(copy) if copy.from == Origin::Context => {
            copy.sources.iter().map(String::as_str).collect()
        }
        Action::Run(run) => run
            .mounts
            .iter()
            .filter_map(|mount| match &mount.kind {
                MountKind::Bind { from: Origin::Context, source, .. } => Some(source.as_str()),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}
