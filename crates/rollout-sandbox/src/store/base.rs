//! The image that a snapshot was made on, and how it is known again.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use serde::{Deserialize, Serialize};

use crate::image::Image;

/// The file of a snapshot's layer that holds a [`Base`].
pub(crate) const BASE_FILE: &str = "base.json";

/// The image that a snapshot was made on.
#[derive(Serialize, Deserialize)]
pub(crate) struct Base {
    pub(crate) image: Image,
    marks: Vec<Mark>,
}

/// Tells a layer from another that was made later in its place.
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

    /// Whether the image still is as it was then.
    pub(crate) fn is_there(&self, state_dir: &Path) -> bool {
        marks(state_dir, &self.image).is_ok_and(|marks| marks == self.marks)
    }
}

/// The host's own directories, outside the state directory, may change at any time.
fn marks(state_dir: &Path, image: &Image) -> io::Result<Vec<Mark>> {
    let kept = image.directories().filter(|dir| dir.starts_with(state_dir));
    kept.map(|dir| {
        let found = fs::symlink_metadata(dir)?;
        Ok(Mark { inode: found.ino(), changed: (found.ctime(), found.ctime_nsec()) })
    })
    .collect()
}
