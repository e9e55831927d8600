//! The image that a snapshot is based on.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::image::Image;

/// The file of a snapshot's layer that contains a [`Base`].
pub(crate) const BASE_FILE: &str = "base.json";

/// The image that a snapshot is based on.
#[derive(Serialize, Deserialize)]
pub(crate) struct Base {
    pub(crate) image: Image,
}

impl Base {
    pub(crate) fn read(layer: &Path) -> io::Result<Base> {
        Ok(serde_json::from_slice(&fs::read(layer.join(BASE_FILE))?)?)
    }

    /// Whether all layers of the image exist. Their paths never stand for other layers.
    pub(crate) fn is_there(&self) -> bool {
        self.image.directories().all(Path::is_dir)
    }
}
