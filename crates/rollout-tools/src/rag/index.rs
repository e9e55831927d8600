//! Indexes of folders: each is built once for all sessions, and again after its files have changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _, Shared, WeakShared};
use tokio::sync::Semaphore;

use crate::doc::bm25;
use crate::doc::cache::Cache;
use crate::doc::extract::{DocumentFormat, DocumentSection, pieces};
use crate::doc::reader::Reader;
use crate::resource::{ErrorCode, Params, ToolError};
use crate::seed::{SeedFile, Seeds, Stamp, blocking};

/// The number of concurrent builds, which limits their memory besides the kept indexes.
const BUILDS: usize = 2;
/// The number of documents that are read concurrently.
const AT_ONCE: usize = 8;
/// The number of documents between two progress messages.
const PROGRESS_EVERY: usize = 500;

/// A passage of a document.
#[derive(Debug)]
pub(super) struct Passage {
    pub(super) path: Arc<str>,
    pub(super) section: Arc<str>,
    pub(super) text: String,
}

/// A searchable index.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) passages: Vec<Passage>,
    pub(super) words: bm25::Index,
    text_bytes: usize,
}

/// Indexes by their files.
#[derive(Debug)]
pub(super) struct Indexes {
    builder: Arc<Builder>,
    cache: Cache<Key, Kept>,
    /// The builds that callers wait for.
    builds: Mutex<HashMap<Key, WeakShared<Build>>>,
}

#[derive(Debug)]
struct Builder {
    reader: Reader,
    chunk_chars: usize,
    overlap_chars: usize,
    most_bytes: usize,
    turns: Semaphore,
}

type Key = Arc<[(String, Stamp)]>;
/// An index, or the permanent error of these files.
type Kept = Result<Arc<Index>, ToolError>;
/// The result to keep, with its size in bytes.
type Build = BoxFuture<'static, (Kept, usize)>;

impl Indexes {
    pub(super) fn new(reader: Reader, chunk_chars: usize, overlap_chars: usize, most_bytes: usize) -> Self {
        let turns = Semaphore::new(BUILDS);
        Self {
            builder: Arc::new(Builder { reader, chunk_chars, overlap_chars, most_bytes, turns }),
            cache: Cache::new(most_bytes),
            builds: Mutex::default(),
        }
    }

    /// The index of the current files.
    pub(super) async fn of(&self, seeds: &Seeds, params: &Params) -> Result<Arc<Index>, ToolError> {
        let files = seeds.files(params, |name| DocumentFormat::known(name).is_some()).await?;
        if files.is_empty() {
            return Err(ToolError::new(ErrorCode::NoResults, "there are no documents here"));
        }
        let key: Key = files.iter().map(|file| (file.path.clone(), file.stamp)).collect();
        let build = self.build(&key, files);
        self.cache.get(&key, async || Ok::<_, ToolError>(build.await)).await?
    }

    /// The build of an index. It starts when it is first awaited, continues as long as any caller waits, and is
    /// cancelled when none does.
    fn build(&self, key: &Key, files: Vec<SeedFile>) -> Shared<Build> {
        // No code below panics while the lock is held.
        let mut builds = self.builds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(build) = builds.get(key).and_then(WeakShared::upgrade) {
            return build;
        }
        builds.retain(|_, build| build.upgrade().is_some());
        let builder = Arc::clone(&self.builder);
        let build = async move { builder.build(files).await }.boxed().shared();
        if let Some(build) = build.downgrade() {
            builds.insert(Arc::clone(key), build);
        }
        build
    }
}

impl Builder {
    async fn build(&self, files: Vec<SeedFile>) -> (Kept, usize) {
        // The semaphore is never closed, so waiting cannot fail.
        let _turn = self.turns.acquire().await;
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
                    let (chunk, overlap, most) = (self.chunk_chars, self.overlap_chars, self.most_bytes);
                    index = blocking(move || {
                        index.add(&file.path, &sections, chunk, overlap, most);
                        index
                    })
                    .await;
                }
                Err(failure) => {
                    unread += 1;
                    tracing::warn!("not indexed: {}", failure.error);
                }
            }
            if index.bytes() > self.most_bytes {
                let most = self.most_bytes >> 20;
                let message = format!("the index of this folder would take more than {most} MiB of memory");
                let bytes = size_of::<ToolError>() + message.len();
                return (Err(ToolError::new(ErrorCode::Refused, message)), bytes);
            }
            done += 1;
            if done % PROGRESS_EVERY == 0 {
                tracing::info!(done, documents = count, "building an index");
            }
        }
        tracing::info!(documents = count, unread, passages = index.passages.len(), "built an index");
        let bytes = index.bytes();
        (Ok(Arc::new(index)), bytes)
    }
}

impl Index {
    /// Adds a document, or as much of it as fits and a little more.
    fn add(&mut self, path: &str, sections: &[DocumentSection], chunk: usize, overlap: usize, most: usize) {
        let path: Arc<str> = path.into();
        for section in sections {
            if self.bytes() > most {
                return;
            }
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

/// Splits a text into passages of at most `chunk` characters. Each begins with the end of the previous one.
fn chunks(text: &str, chunk: usize, overlap: usize) -> Vec<String> {
    let pieces: Vec<_> = pieces(text, chunk - overlap).collect();
    let tail = |text: &str| match text.char_indices().rev().nth(overlap.saturating_sub(2)) {
        // A word that would be cut is omitted.
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
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::doc::extract::ExtractLimits;
    use crate::helper::Helper;

    #[tokio::test]
    async fn an_index_is_built_as_long_as_a_caller_waits() {
        let (folder, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(folder.path().join("a.pdf"), "").unwrap();
        let (program, at) = (beside.path().join("helper"), beside.path().display());
        let script = format!(
            "#!/bin/sh\necho >> '{at}/log'\nwhile [ ! -e '{at}/gate' ]; do /bin/sleep 0.01; done
            echo '{{\"Ok\": [{{\"title\": \"\", \"text\": \"needle\"}}]}}'\n"
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let reader = Reader::new(Helper::new(program), ExtractLimits::default(), 1 << 30, 60);
        let indexes = Indexes::new(reader, 100, 0, 1 << 30);
        let here = Params::from_iter([("folder".to_owned(), json!("."))]);
        let seeds = Seeds::open(&[folder.path().to_owned()], &here).await.unwrap();
        let nothing = Params::new();
        let waiting = |wanted: usize| {
            let indexes = &indexes;
            async move {
                let waiting = || {
                    let builds = indexes.builds.lock().unwrap();
                    builds.values().find_map(WeakShared::upgrade).map_or(0, |build| {
                        // This reference does not wait.
                        build.strong_count().unwrap_or_default() - 1
                    })
                };
                while waiting() < wanted {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        };
        let mut first = Box::pin(indexes.of(&seeds, &nothing));
        let mut second = Box::pin(indexes.of(&seeds, &nothing));
        let logged = || std::fs::read_to_string(beside.path().join("log")).map_or(0, |log| log.len());
        let both = async {
            waiting(2).await;
            while logged() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            _ = &mut first => panic!("there was nothing to build it from"),
            _ = &mut second => panic!("there was nothing to build it from"),
            () = both => {}
        }
        drop(first);
        std::fs::write(beside.path().join("gate"), "").unwrap();
        assert_eq!(second.await.unwrap().passages[0].text, "needle");
        assert_eq!(logged(), 1);
    }

    #[test]
    fn passages_begin_with_the_end_of_the_previous_one() {
        let passages = chunks("one two three four five six", 16, 8);
        assert_eq!(passages, ["one two", "two three", "three four", "four five six"]);
        assert_eq!(chunks("short", 100, 20), ["short"]);
        assert_eq!(chunks("ab cd", 3, 0), ["ab", "cd"]);
    }

    proptest! {
        #[test]
        fn passages_are_never_too_long_and_omit_nothing(
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
