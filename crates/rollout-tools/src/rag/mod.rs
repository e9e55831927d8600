//! Passages of a folder of documents, found by their words.

mod index;
mod session;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use rollout_settings::{
    Settings as _,
    forms::{text, whole},
};
use serde_json::json;

use crate::doc::extract::ExtractLimits;
use crate::doc::reader::Reader;
use crate::forms::{roots, size, whole_seconds};
use crate::helper::Helper;
use crate::resource::{Params, PlannedUse, Resource, Session, ToolError, ToolSpec};
use crate::seed::Seeds;
use index::Indexes;

rollout_settings::settings! {
    /// How the `rag` tools are set up.
    #[derive(Debug, Clone, PartialEq)]
    pub struct RagConfig {
        /// The folder to search, for sessions that name none. It is indexed when the server starts.
        pub folder: Option<PathBuf> = text()
            .kind("path")
            .map(PathBuf::from, |path| path.to_string_lossy().into_owned())
            .optional(),
        /// The folders that the folders of sessions may be in.
        pub roots: Vec<PathBuf> = roots(),
        /// How long a passage is, in characters.
        pub chunk_chars: usize = whole(0..=u64::MAX).default(1000),
        /// How many characters of a passage are repeated in the next.
        pub overlap_chars: usize = whole(0..=u64::MAX).default(150),
        /// The most bytes of a document.
        pub max_file_bytes: u64 = size(ExtractLimits::default().file_bytes),
        /// How many bytes of memory the process that reads a document may take.
        pub max_memory_bytes: u64 = size(1 << 30),
        /// How many seconds of a processor it may take to read a document.
        pub timeout_seconds: u64 = whole_seconds(30),
        /// About how many bytes of memory an index, and all that are kept, may take.
        pub index_bytes: usize = size(1 << 30),
    }
}

impl Default for RagConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of a collection has a default")
    }
}

/// The `rag` tools: a folder of documents to search.
#[derive(Debug)]
pub struct Rag {
    folder: Option<PathBuf>,
    roots: Vec<PathBuf>,
    indexes: Arc<Indexes>,
}

impl Rag {
    /// Tools for the folders below the roots, of which the helper reads what is dangerous to read.
    pub fn new(config: RagConfig, helper: Helper) -> Self {
        let limits = ExtractLimits { file_bytes: config.max_file_bytes, ..ExtractLimits::default() };
        let reader = Reader::new(helper, limits, config.max_memory_bytes, config.timeout_seconds);
        // A passage that repeats all of the one before would never end.
        let chunk_chars = config.chunk_chars.max(1);
        let overlap_chars = config.overlap_chars.min(chunk_chars / 2);
        let indexes = Indexes::new(reader, chunk_chars, overlap_chars, config.index_bytes);
        Self { folder: config.folder, roots: config.roots, indexes: Arc::new(indexes) }
    }

    /// The files of sessions that name none: those of the folder that the operator named, wherever it is.
    async fn own(&self) -> Result<Option<Seeds>, ToolError> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let here = Params::from_iter([("folder".to_owned(), json!("."))]);
        Seeds::open(std::slice::from_ref(folder), &here).await.map(Some)
    }
}

#[async_trait]
impl Resource for Rag {
    fn name(&self) -> &str {
        "rag"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        vec![ToolSpec {
            name: "search".to_owned(),
            aliases: vec!["query".to_owned()],
            description: "Searches a collection of documents and gives the passages that fit best."
                .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to look for."},
                    "top_k": {"type": "integer", "description": "The most passages to give.", "default": session::TOP_K},
                },
                "required": ["query"],
            }),
        }]
    }

    async fn warm_up(&self) -> Result<(), ToolError> {
        Seeds::open(&self.roots, &Params::new()).await?;
        if let Some(seeds) = self.own().await? {
            self.indexes.of(&seeds, &Params::new()).await?;
        }
        Ok(())
    }

    async fn check(&self, planned: &PlannedUse) -> Result<Vec<String>, ToolError> {
        Seeds::check(&self.roots, planned).await
    }

    async fn open(&self, config: &Params) -> Result<Box<dyn Session>, ToolError> {
        let named = Seeds::open(&self.roots, config).await?;
        let seeds = match self.own().await? {
            Some(own) if named.is_empty() => own,
            _ => named,
        };
        // Files that changed are seen here, so that all calls of a session search the same.
        let index = if seeds.is_empty() {
            Weak::new()
        } else {
            Arc::downgrade(&self.indexes.of(&seeds, &Params::new()).await?)
        };
        let indexes = Arc::clone(&self.indexes);
        Ok(Box::new(session::RagSession { seeds, index: Mutex::new(index), indexes }))
    }
}
