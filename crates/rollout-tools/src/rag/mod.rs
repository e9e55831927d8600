//! Passages of a folder of documents, found by their words.

mod index;
mod session;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::doc::extract::ExtractLimits;
use crate::doc::reader::Reader;
use crate::helper::Helper;
use crate::helper::bounds;
use crate::resource::{Params, Resource, Session, ToolError, ToolSpec};
use crate::seed::{self, Seeds};
use index::Indexes;

/// How the `rag` tools are set up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RagConfig {
    /// The folder to search, for sessions that name none. It is indexed when the server starts.
    pub folder: Option<PathBuf>,
    /// The folders that the folders of sessions may be in. The folder that the server was started in unless told
    /// otherwise.
    pub roots: Vec<PathBuf>,
    /// How long a passage is, in characters.
    pub chunk_chars: usize,
    /// How many characters of a passage are repeated in the next.
    pub overlap_chars: usize,
    /// The most bytes of a document.
    #[serde(deserialize_with = "bounds::bytes")]
    pub max_file_bytes: u64,
    /// How many bytes of memory the process that reads a document may take.
    #[serde(deserialize_with = "bounds::bytes")]
    pub max_memory_bytes: u64,
    /// How many seconds of a processor it may take to read a document.
    #[serde(deserialize_with = "bounds::seconds")]
    pub timeout_seconds: u64,
    /// About how many bytes of memory an index, and all that are kept, may take.
    #[serde(deserialize_with = "bounds::bytes")]
    pub index_bytes: usize,
}

impl Default for RagConfig {
    fn default() -> Self {
        Self {
            folder: None,
            roots: seed::default_roots(),
            chunk_chars: 1000,
            overlap_chars: 150,
            max_file_bytes: ExtractLimits::default().file_bytes,
            max_memory_bytes: 1 << 30,
            timeout_seconds: 30,
            index_bytes: 1 << 30,
        }
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
