//! `rag`: searches the passages of a folder of documents.

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
    /// The settings of the `rag` tools.
    #[derive(Debug, Clone, PartialEq)]
    pub struct RagConfig {
        /// The folder for sessions that name no folder. It is indexed when the server starts.
        pub folder: Option<PathBuf> = text()
            .kind("path")
            .map(PathBuf::from, |path| path.to_string_lossy().into_owned())
            .optional(),
        /// The folders that may contain the folders of sessions.
        pub roots: Vec<PathBuf> = roots(),
        /// The length of a passage, in characters.
        pub chunk_chars: usize = whole(0..=u64::MAX).default(1000),
        /// The number of characters that are repeated in the next passage.
        pub overlap_chars: usize = whole(0..=u64::MAX).default(150),
        /// The maximum size of a document, in bytes.
        pub max_file_bytes: u64 = size(ExtractLimits::default().file_bytes),
        /// The maximum memory, in bytes, for the process that reads a document.
        pub max_memory_bytes: u64 = size(1 << 30),
        /// The maximum CPU time for reading a document, in seconds.
        pub timeout_seconds: u64 = whole_seconds(30),
        /// The approximate memory, in bytes, for one index and for all kept indexes.
        pub index_bytes: usize = size(1 << 30),
    }
}

impl Default for RagConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of a collection has a default")
    }
}

/// The `rag` tools: searching a folder of documents.
#[derive(Debug)]
pub struct Rag {
    folder: Option<PathBuf>,
    roots: Vec<PathBuf>,
    indexes: Arc<Indexes>,
}

impl Rag {
    /// Creates the tools for the folders below the roots. The helper reads documents in formats that are
    /// dangerous to parse.
    pub fn new(config: RagConfig, helper: Helper) -> Self {
        let limits = ExtractLimits { file_bytes: config.max_file_bytes, ..ExtractLimits::default() };
        let reader = Reader::new(helper, limits, config.max_memory_bytes, config.timeout_seconds);
        // A passage that repeats all of the previous one would never advance.
        let chunk_chars = config.chunk_chars.max(1);
        let overlap_chars = config.overlap_chars.min(chunk_chars / 2);
        let indexes = Indexes::new(reader, chunk_chars, overlap_chars, config.index_bytes);
        Self { folder: config.folder, roots: config.roots, indexes: Arc::new(indexes) }
    }

    /// The files of sessions that name none: those of the configured folder, wherever it is.
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
            description: "Searches a collection of documents and returns the best matching passages."
                .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to search for."},
                    "top_k": {"type": "integer", "description": "The maximum number of passages.", "default": session::TOP_K},
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
        // Changed files are detected here, so that all calls of a session search the same index.
        let index = if seeds.is_empty() {
            Weak::new()
        } else {
            Arc::downgrade(&self.indexes.of(&seeds, &Params::new()).await?)
        };
        let indexes = Arc::clone(&self.indexes);
        Ok(Box::new(session::RagSession { seeds, index: Mutex::new(index), indexes }))
    }
}
