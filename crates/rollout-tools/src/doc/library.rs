//! Documents that were read, kept for all sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::sync::Semaphore;

use super::bm25::Index;
use super::cache::Cache;
use super::extract::{DocumentFormat, DocumentSection};
use super::reader::Reader;
use crate::resource::{ErrorCode, ToolError};
use crate::seed::{self, SeedFile, Stamp};

/// The most bytes of memory that the documents of one call may take with their indexes. One of nothing but different
/// words is many times as large as its text.
const MOST_BYTES: usize = 256 << 20;
/// How many calls hold documents at the same time; it bounds what they hold beside the cache.
const CALLS: usize = 8;
/// How many documents of a call are read at the same time.
const AT_ONCE: usize = 4;
/// How many documents are indexed at the same time.
const INDEXING: usize = 2;

/// A document that was read.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) sections: Vec<DocumentSection>,
    pub(super) index: Index,
    /// About what it takes of memory.
    bytes: usize,
}

/// A file with its document, or with why there is none.
pub(super) type Opened = (SeedFile, Result<Arc<Document>, ToolError>);

type Key = (Stamp, DocumentFormat);

/// Documents by file.
#[derive(Debug)]
pub(super) struct Library {
    reader: Reader,
    cache: Cache<Key, Result<Arc<Document>, ToolError>>,
    calls: Semaphore,
    indexing: Semaphore,
}

impl Library {
    /// Keeps about so many bytes of what is read.
    pub(super) fn new(reader: Reader, cache_bytes: usize) -> Self {
        let (calls, indexing) = (Semaphore::new(CALLS), Semaphore::new(INDEXING));
        Self { reader, cache: Cache::new(cache_bytes), calls, indexing }
    }

    /// Does something with the documents of some files, in their order.
    pub(super) async fn with<T: Send + 'static>(
        &self,
        files: Vec<SeedFile>,
        work: impl FnOnce(&[Opened]) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, ToolError> {
        // The semaphore is never closed, so that waiting for it cannot fail.
        let _call = self.calls.acquire().await;
        let bytes = AtomicUsize::new(0);
        let opened = futures_util::stream::iter(files)
            .map(async |file| {
                let document = self.document(&file).await;
                let more = document.as_ref().map_or(0, |document| document.bytes);
                if bytes.fetch_add(more, Ordering::Relaxed) + more > MOST_BYTES {
                    let message = format!(
                        "the documents take more than {} MiB of memory; name fewer of them with `seed_path`",
                        MOST_BYTES >> 20
                    );
                    return Err(ToolError::new(ErrorCode::Refused, message));
                }
                Ok((file, document))
            })
            .buffered(AT_ONCE);
        let opened: Vec<_> = opened.try_collect().await?;
        seed::blocking(move || work(&opened)).await
    }

    async fn document(&self, file: &SeedFile) -> Result<Arc<Document>, ToolError> {
        let make = async || match self.reader.sections(file).await {
            Ok(sections) => {
                let _indexing = self.indexing.acquire().await;
                let document = seed::blocking(move || Document::of(sections, MOST_BYTES)).await;
                Ok(match document {
                    Some(document) => {
                        let bytes = document.bytes;
                        (Ok(Arc::new(document)), bytes)
                    }
                    None => refused(too_large(file)),
                })
            }
            Err(unread) if unread.is_lasting => Ok(refused(unread.error)),
            Err(unread) => Err(unread.error),
        };
        self.cache.get(&(file.stamp, DocumentFormat::of(&file.path)), make).await?
    }
}

/// What is kept of a document that cannot be had.
fn refused(error: ToolError) -> (Result<Arc<Document>, ToolError>, usize) {
    let bytes = size_of::<ToolError>() + error.message.len();
    (Err(error), bytes)
}

fn too_large(file: &SeedFile) -> ToolError {
    let most = MOST_BYTES >> 20;
    let message =
        format!("`{}`: an index of the document would take more than {most} MiB of memory", file.path);
    ToolError::new(ErrorCode::Refused, message)
}

impl Document {
    /// Indexes a document, unless that takes too much memory.
    fn of(sections: Vec<DocumentSection>, most: usize) -> Option<Self> {
        let size = |section: &DocumentSection| {
            size_of::<DocumentSection>() + section.title.len() + section.text.len()
        };
        let text_bytes: usize = sections.iter().map(size).sum();
        let mut index = Index::default();
        for section in &sections {
            index.add(&format!("{}\n{}", section.title, section.text));
            if text_bytes + index.bytes() > most {
                return None;
            }
        }
        let bytes = text_bytes + index.bytes();
        Some(Self { sections, index, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_nothing_but_different_words_is_refused() {
        let words = |each: &dyn Fn(usize) -> String| {
            let text = (0..1000).map(each).collect::<Vec<_>>().join(" ");
            vec![DocumentSection { title: String::new(), text }]
        };
        let same = words(&|_| "word".to_owned());
        assert!(Document::of(same, 20_000).is_some_and(|document| document.bytes > 5000));
        assert!(Document::of(words(&|nth| format!("{nth:04}")), 20_000).is_none());
    }
}
