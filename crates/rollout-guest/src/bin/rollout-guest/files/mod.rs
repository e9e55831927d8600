//! File operations requested by the host.

mod get;
mod put;

use std::io::Read as _;

use rollout_guest::{
    GuestReply, Item,
    files::{EnvironmentFiles, chunk, os},
};

pub(crate) use self::{get::get, put::Put};
use crate::out::Out;

const FILES: EnvironmentFiles = EnvironmentFiles::Container;

/// Scripts of any user write into the created directories.
const SHARED_DIR_MODE: u32 = 0o777;

/// A result whose error is a readable message.
type Result<T> = std::result::Result<T, String>;

/// Creates directories; with `empty`, an existing directory, file or link is removed first.
pub(crate) fn make_dirs(paths: &[String], empty: bool) -> Result<()> {
    Ok(paths.iter().try_for_each(|path| FILES.make_dir(path, SHARED_DIR_MODE, empty))?)
}

/// Creates a link and replaces an existing link; an existing file or directory is left unchanged.
pub(crate) fn link(target: &str, link: &str) -> Result<()> {
    Ok(FILES.symlink(target, link)?)
}

/// Sends the content of a file, up to one byte more than allowed, which shows that the file is too large.
pub(crate) fn read(out: &Out, id: u32, path: &str, max_bytes: u64) -> Result<()> {
    let mut file = None;
    let found = FILES.find(path, max_bytes)?.map(|found| file = Some(found));
    out.send(id, &GuestReply::Found(found));
    let Some(file) = file else { return Ok(()) };
    let mut file = file.take(max_bytes.saturating_add(1));
    while let Some(bytes) = chunk(&mut file).map_err(os("reading", path))? {
        out.send(id, &GuestReply::Item(Item::Data(bytes)));
    }
    Ok(())
}
