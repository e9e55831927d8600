//! `web`: searches the web and reads pages.
//!
//! A model decides what is fetched, and a page may have manipulated it. The `guard` keeps it out of private
//! networks, `fetch` limits what a server can send, and `html` limits the cost of a page.

mod browse;
mod charset;
pub(crate) mod config;
mod fetch;
mod guard;
pub(crate) mod html;
mod search;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

pub use config::{WebConfig, WebConfigError};

use self::{fetch::Fetcher, search::Search};
use crate::resource::{Call, ErrorCode, Params, PlannedUse, Resource, Session, ToolError, ToolSpec};

/// The web tools: `search` and `browse`.
#[derive(Debug)]
pub struct Web {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    search: Option<Search>,
    fetcher: Fetcher,
    max_chars: usize,
}

impl Web {
    /// Creates the tools from their settings. Nothing is requested yet.
    pub fn new(config: WebConfig) -> Result<Self, WebConfigError> {
        if config.max_chars == 0 {
            return Err(WebConfigError::Zero("max_chars"));
        }
        let fetcher = Fetcher::new(&config)?;
        let search = config.search.map(Search::new).transpose()?;
        Ok(Self { shared: Arc::new(Shared { search, fetcher, max_chars: config.max_chars }) })
    }
}

#[async_trait]
impl Resource for Web {
    fn name(&self) -> &str {
        "web"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let search = ToolSpec {
            name: "search".to_owned(),
            aliases: Vec::new(),
            description:
                "Searches the web and returns titles, addresses and short extracts of pages. Several queries \
                          are searched at the same time."
                    .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "query": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "What to search for: one or more queries.",
                    },
                    "max_results": {
                        "type": "integer",
                        "description": "The number of results for each query; 10 by default.",
                    },
                },
                "required": ["query"],
            }),
        };
        let browse = ToolSpec {
            name: "browse".to_owned(),
            aliases: vec!["visit".to_owned(), "fetch".to_owned()],
            description:
                "Reads web pages and returns their text as Markdown. A long page is returned in parts: the answer includes the start of the next part."
                    .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "urls": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "The addresses of the pages: one or more, as in https://example.com/page.",
                    },
                    "goal": {
                        "type": "string",
                        "description": "What you want to find out. It does not change the result.",
                    },
                    "start": {
                        "type": "integer",
                        "description": "The character to start from; 0 by default.",
                    },
                },
                "required": ["urls"],
            }),
        };
        vec![search, browse]
    }

    async fn warm_up(&self) -> Result<(), ToolError> {
        match &self.shared.search {
            Some(_) => Ok(()),
            None => Err(no_search()),
        }
    }

    async fn check(&self, planned: &PlannedUse) -> Result<Vec<String>, ToolError> {
        self.open(&planned.config).await?;
        match &self.shared.search {
            None if planned.tools.iter().any(|tool| tool == "search") => Err(no_search()),
            _ => Ok(Vec::new()),
        }
    }

    async fn open(&self, config: &Params) -> Result<Box<dyn Session>, ToolError> {
        if let Some(name) = config.keys().next() {
            let message = format!(
                "sessions of web have no settings, but {name:?} is given; settings of web are in the configuration of the tool server"
            );
            return Err(ToolError::new(ErrorCode::InvalidInput, message));
        }
        Ok(Box::new(WebSession { shared: Arc::clone(&self.shared) }))
    }
}

struct WebSession {
    shared: Arc<Shared>,
}

#[async_trait]
impl Session for WebSession {
    async fn call(&self, tool: &str, params: Params, _call: &Call) -> Result<Value, ToolError> {
        let Shared { search, fetcher, max_chars } = &*self.shared;
        match (tool, search) {
            ("search", Some(search)) => search.search(&params).await,
            ("search", None) => Err(no_search()),
            ("browse", _) => browse::browse(fetcher, *max_chars, &params).await,
            _ => Err(ToolError::new(ErrorCode::InvalidRequest, format!("web has no tool {tool:?}"))),
        }
    }
}

fn no_search() -> ToolError {
    ToolError::new(ErrorCode::DependencyMissing, NO_SEARCH)
}

/// Advice if no search service is configured.
const NO_SEARCH: &str = "`web:search` cannot be used: no search service is configured; write one into the configuration \
    of the tool server, as in {\"resources\": {\"web\": {\"search\": {\"backend\": \"searxng\", \"url\": \
    \"http://localhost:8888\"}}}} or {\"resources\": {\"web\": {\"search\": {\"backend\": \"brave\", \"api_key\": \
    \"…\"}}}} (searxng, brave, serper or custom)";
