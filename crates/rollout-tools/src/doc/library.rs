//! Documents that were read, shared by all sessions.

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

/// The most memory, in bytes, for the documents of one call with their indexes. The index of a document with
/// only distinct words is many times as large as its text.
const MOST_BYTES: usize = 256 << 20;
/// The number of concurrent calls that hold documents, which limits their memory besides the cache.
const CALLS: usize = 8;
/// The number of documents of a call that are read concurrently.
const AT_ONCE: usize = 4;
/// The number of documents that are indexed concurrently.
const INDEXING: usize = 2;

/// A document that was read.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) sections: Vec<DocumentSection>,
    pub(super) index: Index,
    /// The approximate memory in bytes.
    bytes: usize,
}

/// A file with its document, or the error.
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
    /// Keeps about `cache_bytes` bytes of documents.
    pub(super) fn new(reader: Reader, cache_bytes: usize) -> Self {
        let (calls, indexing) = (Semaphore::new(CALLS), Semaphore::new(INDEXING));
        Self { reader, cache: Cache::new(cache_bytes), calls, indexing }
    }

    /// Runs a function on the documents of some files, in their order.
    pub(super) async fn with<T: Send + 'static>(
        &self,
        files: Vec<SeedFile>,
        work: impl FnOnce(&[Opened]) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, ToolError> {
        // The semaphore is never closed, so waiting cannot fail.
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

/// The cache entry of a document that cannot be read.
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
    /// Indexes a document, unless the index needs too much memory.
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
    fn a_document_of_only_distinct_words_is_rejected() {
        let words = |each: &dyn Fn(usize) -> String| {
            let text = (0..1000).map(each).collect::<Vec<_>>().join(" ");
            vec![DocumentSection { title: String::new(), text }]
        };
        let same = words(&|_| "word".to_owned());
        assert!(Document::of(same, 20_000).is_some_and(|document| document.bytes > 5000));
        assert!(Document::of(words(&|nth| format!("{nth:04}")), 20_000).is_none());
    }
}
