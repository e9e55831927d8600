//! Indexes of folders: each built once, for all sessions, and again when its files have changed.

use std::sync::Arc;

use futures_util::StreamExt as _;

use crate::doc::bm25;
use crate::doc::cache::Cache;
use crate::doc::extract::{Format, Section, pieces};
use crate::doc::reader::Reader;
use crate::seed::{SeedFile, Seeds, Stamp, blocking};
use crate::{Code, Params, ToolError};

/// How many documents are read at the same time.
const AT_ONCE: usize = 8;
/// After how many documents it is told how far it is.
const TELL_EVERY: usize = 500;

/// A passage of a document.
#[derive(Debug)]
pub(super) struct Passage {
    pub(super) path: Arc<str>,
    pub(super) section: Arc<str>,
    pub(super) text: String,
}

/// What can be searched.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) passages: Vec<Passage>,
    pub(super) words: bm25::Index,
    text_bytes: usize,
}

/// Indexes by the files that they are made of.
#[derive(Debug)]
pub(super) struct Indexes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    reader: Reader,
    chunk_chars: usize,
    overlap_chars: usize,
    most_bytes: usize,
    cache: Cache<Arc<[(String, Stamp)]>, Arc<Index>>,
}

impl Indexes {
    pub(super) fn new(reader: Reader, chunk_chars: usize, overlap_chars: usize, most_bytes: usize) -> Self {
        let cache = Cache::new(most_bytes);
        Self(Arc::new(Inner { reader, chunk_chars, overlap_chars, most_bytes, cache }))
    }

    /// The index of the files as they are now.
    pub(super) async fn of(&self, seeds: &Seeds, params: &Params) -> Result<Arc<Index>, ToolError> {
        let files = seeds.files(params, |name| Format::known(name).is_some()).await?;
        if files.is_empty() {
            return Err(ToolError::new(Code::NoResults, "there are no documents here"));
        }
        let key: Arc<[_]> = files.iter().map(|file| (file.path.clone(), file.stamp)).collect();
        let inner = Arc::clone(&self.0);
        // An index serves all who come after, so that it is finished even if who asked for it has gone.
        let built =
            tokio::spawn(async move { inner.cache.get(&key, async || inner.build(files).await).await });
        built.await.unwrap_or_else(|failure| std::panic::resume_unwind(failure.into_panic()))
    }
}

impl Inner {
    async fn build(&self, files: Vec<SeedFile>) -> Result<(Arc<Index>, usize), ToolError> {
        let count = files.len();
        tracing::info!(documents = count, "building an index");
        let mut index = Index::default();
        let mut read = futures_util::stream::iter(files)
            .map(async |file| {
                let sections = self.reader.sections(&file).await;
                (file, sections)
            })
            .buffered(AT_ONCE);
        let (mut done, mut unread) = (0, 0);
        while let Some((file, sections)) = read.next().await {
            match sections {
                Ok(sections) => {
                    let (chunk, overlap) = (self.chunk_chars, self.overlap_chars);
                    index = blocking(move || {
                        index.add(&file.path, &sections, chunk, overlap);
                        index
                    })
                    .await;
                }
                Err(failure) => {
                    unread += 1;
                    tracing::warn!("left out of the index: {}", failure.error);
                }
            }
            if index.bytes() > self.most_bytes {
                let most = self.most_bytes >> 20;
                let message = format!("the index of this folder would take more than {most} MiB of memory");
                return Err(ToolError::new(Code::Refused, message));
            }
            done += 1;
            if done % TELL_EVERY == 0 {
                tracing::info!(done, documents = count, "building an index");
            }
        }
        tracing::info!(documents = count, unread, passages = index.passages.len(), "built an index");
        let bytes = index.bytes();
        Ok((Arc::new(index), bytes))
    }
}

impl Index {
    fn add(&mut self, path: &str, sections: &[Section], chunk: usize, overlap: usize) {
        let path: Arc<str> = path.into();
        for section in sections {
            let title: Arc<str> = section.title.as_str().into();
            for text in chunks(&section.text, chunk, overlap) {
                self.words.add(&format!("{title}\n{text}"));
                self.text_bytes += size_of::<Passage>() + title.len() + text.len();
                self.passages.push(Passage { path: Arc::clone(&path), section: Arc::clone(&title), text });
            }
        }
    }

    fn bytes(&self) -> usize {
        self.text_bytes + self.words.bytes()
    }
}

/// Cuts a text into passages of no more than so many characters, each of which begins with the end of the one
/// before it.
fn chunks(text: &str, chunk: usize, overlap: usize) -> Vec<String> {
    let pieces: Vec<_> = pieces(text, chunk - overlap).collect();
    let tail = |text: &str| match text.char_indices().rev().nth(overlap.saturating_sub(2)) {
        // A word that would be cut is left out.
        Some((at, _)) if overlap > 1 => {
            let tail = &text[at..];
            tail.find(char::is_whitespace).map_or(tail, |end| &tail[end..]).trim_start().to_owned()
        }
        Some(_) => String::new(),
        None => text.to_owned(),
    };
    let before = std::iter::once(String::new()).chain(pieces.iter().map(|piece| tail(piece)));
    before
        .zip(&pieces)
        .map(
            |(before, piece)| {
                if before.is_empty() { (*piece).to_owned() } else { format!("{before} {piece}") }
            },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn passages_begin_with_the_end_of_the_one_before() {
        let passages = chunks("one two three four five six", 16, 8);
        assert_eq!(passages, ["one two", "two three", "three four", "four five six"]);
        assert_eq!(chunks("short", 100, 20), ["short"]);
        assert_eq!(chunks("ab cd", 3, 0), ["ab", "cd"]);
    }

    proptest! {
        #[test]
        fn passages_are_never_too_long_and_leave_nothing_out(
            text in "[a巴 ]{0,100}", chunk in 1_usize..30, overlap in 0_usize..15,
        ) {
            let overlap = overlap.min(chunk / 2);
            let found = chunks(&text, chunk, overlap);
            prop_assert!(found.iter().all(|passage| passage.chars().count() <= chunk), "{:?}", found);
            let solid = |text: &str| text.chars().filter(|c| !c.is_whitespace()).count();
            prop_assert!(found.iter().map(|passage| solid(passage)).sum::<usize>() >= solid(&text));
        }
    }
}
