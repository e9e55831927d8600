//! The image that a snapshot is based on, with marks that identify it.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use serde::{Deserialize, Serialize};

use crate::image::Image;

/// The file of a snapshot's layer that contains a [`Base`].
pub(crate) const BASE_FILE: &str = "base.json";

/// The image that a snapshot is based on.
#[derive(Serialize, Deserialize)]
pub(crate) struct Base {
    pub(crate) image: Image,
    marks: Vec<Mark>,
}

/// Distinguishes a layer from a later one at the same path.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    inode: u64,
    changed: (i64, i64),
}

impl Base {
    pub(crate) fn new(state_dir: &Path, image: &Image) -> io::Result<Base> {
        Ok(Base { image: image.clone(), marks: marks(state_dir, image)? })
    }

    pub(crate) fn read(layer: &Path) -> io::Result<Base> {
        Ok(serde_json::from_slice(&fs::read(layer.join(BASE_FILE))?)?)
    }

    /// Whether the image is unchanged.
    pub(crate) fn is_there(&self, state_dir: &Path) -> bool {
        marks(state_dir, &self.image).is_ok_and(|marks| marks == self.marks)
    }
}

/// The host's own directories, outside the state directory, are not marked: they may change at any time.
fn marks(state_dir: &Path, image: &Image) -> io::Result<Vec<Mark>> {
    let kept = image.directories().filter(|dir| dir.starts_with(state_dir));
    kept.map(|dir| {
        let found = fs::symlink_metadata(dir)?;
        Ok(Mark { inode: found.ino(), changed: (found.ctime(), found.ctime_nsec()) })
    })
    .collect()
}
