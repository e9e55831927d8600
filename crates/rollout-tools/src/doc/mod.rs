//! `doc`: reads documents by section, and searches them.

pub(crate) mod bm25;
pub(crate) mod cache;
pub mod extract;
mod ids;
mod library;
mod page;
pub(crate) mod reader;
mod session;
mod snippet;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use rollout_settings::{Settings as _, forms::whole};
use serde_json::json;

use crate::forms::{roots, size, whole_seconds};
use crate::helper::Helper;
use crate::resource::{Params, PlannedUse, Resource, Session, ToolError, ToolSpec};
use crate::seed::Seeds;
use extract::ExtractLimits;
use library::Library;
use reader::Reader;

pub(crate) use snippet::snippet;

rollout_settings::settings! {
    /// The settings of the `doc` tools.
    #[derive(Debug, Clone, PartialEq)]
    pub struct DocConfig {
        /// The folders that may contain documents.
        pub roots: Vec<PathBuf> = roots(),
        /// The maximum size of a document, in bytes.
        pub max_file_bytes: u64 = size(ExtractLimits::default().file_bytes),
        /// The maximum size of a document's text, in bytes.
        ///
        /// At most 4 MiB for an HTML page.
        pub max_text_bytes: usize = size(ExtractLimits::default().text_bytes),
        /// The maximum memory, in bytes, for the process that reads a document.
        pub max_memory_bytes: u64 = size(1 << 30),
        /// The maximum CPU time for reading a document, in seconds.
        pub timeout_seconds: u64 = whole_seconds(30),
        /// The approximate size of the cache of documents, in bytes.
        pub cache_bytes: usize = whole(0..=u64::MAX).kind("bytes").default(256 << 20),
    }
}

impl Default for DocConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of documents has a default")
    }
}

/// The `doc` tools: reading and searching documents.
#[derive(Debug)]
pub struct Docs {
    roots: Vec<PathBuf>,
    library: Arc<Library>,
}

impl Docs {
    /// Creates the tools for the documents below the roots. The helper reads documents in formats that are
    /// dangerous to parse.
    pub fn new(config: DocConfig, helper: Helper) -> Self {
        let limits = ExtractLimits {
            file_bytes: config.max_file_bytes,
            text_bytes: config.max_text_bytes,
            ..ExtractLimits::default()
        };
        let reader = Reader::new(helper, limits, config.max_memory_bytes, config.timeout_seconds);
        Self { roots: config.roots, library: Arc::new(Library::new(reader, config.cache_bytes)) }
    }
}

#[async_trait]
impl Resource for Docs {
    fn name(&self) -> &str {
        "doc"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let texts = |description: &str| json!({"type": "array", "items": {"type": "string"}, "description": description});
        vec![
            ToolSpec {
                name: "read".to_owned(),
                aliases: Vec::new(),
                description:
                    "Reads sections of the documents. Without section_ids it lists the documents and the ids of their sections, or returns the whole text if it is short."
                        .to_owned(),
                parameters: json!({
                    "type": "object",
                    "properties": {
                        "section_ids": texts("Ids of sections, from doc:search or from doc:read without ids."),
                        "path": {"type": "string", "description": "Limits the call to this document."},
                        "start": {"type": "integer", "description": "The character to continue from, if a text was cut.", "default": 0},
                        "max_text_token": {"type": "integer", "description": "The approximate maximum of tokens to return.", "default": page::TOKENS},
                    },
                }),
            },
            ToolSpec {
                name: "search".to_owned(),
                aliases: Vec::new(),
                description: "Searches the documents for words and returns the best matching sections."
                    .to_owned(),
                parameters: json!({
                    "type": "object",
                    "properties": {
                        "key_words": texts("Words to search for."),
                        "max_search_results": {"type": "integer", "description": "The maximum number of sections.", "default": session::RESULTS},
                    },
                    "required": ["key_words"],
                }),
            },
        ]
    }

    async fn warm_up(&self) -> Result<(), ToolError> {
        Seeds::open(&self.roots, &Params::new()).await.map(drop)
    }

    async fn check(&self, planned: &PlannedUse) -> Result<Vec<String>, ToolError> {
        Seeds::check(&self.roots, planned).await
    }

    async fn open(&self, config: &Params) -> Result<Box<dyn Session>, ToolError> {
        let seeds = Seeds::open(&self.roots, config).await?;
        Ok(Box::new(session::DocSession { seeds, library: Arc::clone(&self.library) }))
    }
}
