//! The file of a layer while it is downloaded.

use std::{io, path::Path};

use sha2::{Digest as _, Sha256};
use tokio::{
    fs::File,
    io::{AsyncSeekExt as _, AsyncWriteExt as _},
};

use super::registry::hex;

/// A file that grows to a known size.
pub(super) struct Download<'a> {
    file: File,
    hash: Sha256,
    size: u64,
    received: u64,
    /// The most bytes that it ever had: what is downloaded again is no progress.
    best: u64,
    progress: &'a (dyn Fn(u64) + Sync),
}

impl<'a> Download<'a> {
    pub(super) async fn create(
        path: &Path,
        size: u64,
        progress: &'a (dyn Fn(u64) + Sync),
    ) -> io::Result<Self> {
        let file = File::create_new(path).await?;
        Ok(Self { file, hash: Sha256::new(), size, received: 0, best: 0, progress })
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    pub(super) fn best(&self) -> u64 {
        self.best
    }

    pub(super) fn is_complete(&self) -> bool {
        self.received == self.size
    }

    /// The hash of what was received.
    pub(super) fn hash(&self) -> String {
        hex(&self.hash.clone().finalize())
    }

    /// Adds bytes; false if they are more than the file may have.
    pub(super) async fn add(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if self.received + bytes.len() as u64 > self.size {
            return Ok(false);
        }
        self.hash.update(bytes);
        self.file.write_all(bytes).await?;
        self.received += bytes.len() as u64;
        if self.received > self.best {
            (self.progress)(self.received - self.best);
            self.best = self.received;
        }
        Ok(true)
    }

    /// Removes all content.
    pub(super) async fn restart(&mut self) -> io::Result<()> {
        self.file.flush().await?;
        self.file.set_len(0).await?;
        self.file.rewind().await?;
        (self.hash, self.received) = (Sha256::new(), 0);
        Ok(())
    }

    pub(super) async fn finish(mut self) -> io::Result<()> {
        self.file.flush().await
    }
}
