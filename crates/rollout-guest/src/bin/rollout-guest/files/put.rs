//! A copy into the container, which the host sends step by step.

use std::{ffi::CString, io::Write as _};

use rollout_guest::{
    Item,
    files::{CopiedFile, CopyInto, os, times},
    is_name,
};

use super::{FILES, Result};

/// A copy in progress.
pub(crate) struct Put {
    copy: CopyInto,
    /// The file that is being written.
    file: Option<CopiedFile>,
}

impl Put {
    pub(crate) fn start(target: &str, file: bool, replace: bool) -> Result<Self> {
        Ok(Self { copy: CopyInto::start(FILES, target, file, replace)?, file: None })
    }

    pub(crate) fn step(&mut self, item: Item) -> Result<()> {
        if let Item::Data(bytes) = item {
            let open = self.file.as_mut().ok_or_else(misplaced)?;
            return Ok(open.file.write_all(&bytes).map_err(os("writing", &open.shown))?);
        }
        self.close()?;
        match item {
            Item::Enter { name, mode } => self.copy.enter(&entry_name(name)?, mode)?,
            Item::Leave if self.copy.leave() => {}
            Item::Leave => return Err(misplaced()),
            Item::File { name, mode, seconds, nanoseconds } => {
                let name = if self.copy.is_file() { CString::default() } else { entry_name(name)? };
                self.file = Some(self.copy.file(&name, mode, times(seconds, nanoseconds))?);
            }
            Item::Link { name, target } => self.copy.link(&entry_name(name)?, &target)?,
            Item::Data(_) => {}
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        self.close()
    }

    fn close(&mut self) -> Result<()> {
        Ok(self.file.take().map_or(Ok(()), CopiedFile::finish)?)
    }
}

fn misplaced() -> String {
    "the host sent the steps of a copy in the wrong order".to_owned()
}

fn entry_name(name: Vec<u8>) -> Result<CString> {
    if !is_name(&name) {
        return Err(format!("{:?} is not a valid file name", String::from_utf8_lossy(&name)));
    }
    CString::new(name).map_err(|error| error.to_string())
}
