//! File operations, as the host asks for them.

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

/// Scripts of any user write into the directories that are asked for.
const SHARED_DIR_MODE: u32 = 0o777;

/// What went wrong, for people.
type Result<T> = std::result::Result<T, String>;

/// Makes directories; with `empty`, whatever was there, a link included, is gone.
pub(crate) fn make_dirs(paths: &[String], empty: bool) -> Result<()> {
    Ok(paths.iter().try_for_each(|path| FILES.make_dir(path, SHARED_DIR_MODE, empty))?)
}

/// Makes a link, replacing another link; a real file or directory is left alone.
pub(crate) fn link(target: &str, link: &str) -> Result<()> {
    Ok(FILES.symlink(target, link)?)
}

/// Sends a file's content, of at most one byte more than allowed, which shows that there is more.
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
