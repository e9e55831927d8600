//! Documents that were read, kept for all sessions.

use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::sync::Semaphore;

use super::bm25::Index;
use super::cache::Cache;
use super::extract::{Format, Section};
use super::reader::Reader;
use crate::seed::{self, SeedFile, Stamp};
use crate::{Code, ToolError};

/// The most bytes of text that one call can be about.
const MOST_TEXT: usize = 64 << 20;
/// How many calls hold documents at the same time; it bounds what they hold beside the cache.
const CALLS: usize = 8;
/// How many documents of a call are read at the same time.
const AT_ONCE: usize = 8;

/// A document that was read.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) sections: Vec<Section>,
    pub(super) index: Index,
    text_bytes: usize,
}

/// A file with its document, or with why there is none.
pub(super) type Opened = (SeedFile, Result<Arc<Document>, ToolError>);

type Key = (Stamp, Format);

/// Documents by file.
#[derive(Debug)]
pub(super) struct Library {
    reader: Reader,
    cache: Cache<Key, Result<Arc<Document>, ToolError>>,
    calls: Semaphore,
}

impl Library {
    /// Keeps about so many bytes of what is read.
    pub(super) fn new(reader: Reader, cache_bytes: usize) -> Self {
        Self { reader, cache: Cache::new(cache_bytes), calls: Semaphore::new(CALLS) }
    }

    /// Does something with the documents of some files, in their order.
    pub(super) async fn with<T: Send + 'static>(
        &self,
        files: Vec<SeedFile>,
        work: impl FnOnce(&[Opened]) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, ToolError> {
        // The semaphore is never closed, so that waiting for it cannot fail.
        let _call = self.calls.acquire().await;
        let mut text_bytes = 0;
        let opened = futures_util::stream::iter(files)
            .map(async |file| {
                let document = self.document(&file).await;
                (file, document)
            })
            .buffered(AT_ONCE)
            .map(|(file, document)| {
                text_bytes += document.as_ref().map_or(0, |document| document.text_bytes);
                if text_bytes > MOST_TEXT {
                    let message = format!(
                        "the documents hold more than {} MiB of text; name fewer of them with `seed_path`",
                        MOST_TEXT >> 20
                    );
                    return Err(ToolError::new(Code::Refused, message));
                }
                Ok((file, document))
            });
        let opened: Vec<_> = opened.try_collect().await?;
        seed::blocking(move || work(&opened)).await
    }

    async fn document(&self, file: &SeedFile) -> Result<Arc<Document>, ToolError> {
        let make = async || match self.reader.sections(file).await {
            Ok(sections) => {
                let document = seed::blocking(move || Document::of(sections)).await;
                let bytes = document.text_bytes + document.index.bytes();
                Ok((Ok(Arc::new(document)), bytes))
            }
            Err(unread) if unread.is_lasting => {
                let bytes = size_of::<ToolError>() + unread.error.message.len();
                Ok((Err(unread.error), bytes))
            }
            Err(unread) => Err(unread.error),
        };
        self.cache.get(&(file.stamp, Format::of(&file.path)), make).await?
    }
}

impl Document {
    fn of(sections: Vec<Section>) -> Self {
        let mut index = Index::default();
        for section in &sections {
            index.add(&format!("{}\n{}", section.title, section.text));
        }
        let size = |section: &Section| size_of::<Section>() + section.title.len() + section.text.len();
        let text_bytes = sections.iter().map(size).sum();
        Self { sections, index, text_bytes }
    }
}
