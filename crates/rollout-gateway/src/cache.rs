//! Responses on disk, so that the same requests need not be sent again.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::dialect::Dialect;

/// A directory of responses. Files appear complete or not at all.
#[derive(Debug, Clone)]
pub(crate) struct Cache(PathBuf);

/// A response.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub(crate) content_type: String,
    pub(crate) body: String,
}

/// A response that is not in the cache yet.
#[derive(Debug)]
pub(crate) struct Unsaved {
    pub(crate) key: String,
    pub(crate) content_type: String,
    /// Empty if it was too large to keep.
    pub(crate) body: Bytes,
}

impl Cache {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        Ok(Self(path.to_owned()))
    }

    /// The key of a request: everything that its response depends on.
    pub(crate) fn key(scope: &str, dialect: Dialect, url: &str, body: &[u8], repeat: u32) -> String {
        let mut hash = Sha256::new();
        for part in [scope.as_bytes(), format!("{dialect:?}").as_bytes(), url.as_bytes(), body] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(repeat.to_le_bytes());
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) async fn get(&self, key: &str) -> Option<Saved> {
        let text = tokio::fs::read(self.0.join(format!("{key}.json"))).await.ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Saves a response, which has no secrets. Failures only make the next run dearer.
    pub(crate) async fn put(&self, unsaved: Unsaved) {
        let dir = self.0.clone();
        let write = move || -> io::Result<()> {
            let Unsaved { key, content_type, body } = unsaved;
            let Ok(body) = String::from_utf8(body.into()) else { return Ok(()) };
            if body.is_empty() {
                return Ok(());
            }
            let file = tempfile::NamedTempFile::new_in(&dir)?;
            serde_json::to_writer(&file, &Saved { content_type, body })?;
            file.persist(dir.join(format!("{key}.json"))).map_err(|error| error.error)?;
            Ok(())
        };
        if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
            tracing::warn!(%error, "cannot save a response in the cache");
        }
    }
}
