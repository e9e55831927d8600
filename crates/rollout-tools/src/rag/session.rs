//! Calls of the `rag` tools.

use std::fmt::Write as _;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::index::{Index, Indexes};
use crate::doc::bm25;
use crate::seed::{Seeds, blocking};
use crate::{Call, Code, Params, Session, ToolError, args};

/// How many passages a search gives unless told otherwise.
pub(super) const TOP_K: usize = 5;
/// The most passages that can be asked for.
const MOST: usize = 100;

pub(super) struct RagSession {
    pub(super) seeds: Seeds,
    /// What the session was opened for, if it was opened for something.
    pub(super) index: Option<Arc<Index>>,
    pub(super) indexes: Arc<Indexes>,
}

#[async_trait]
impl Session for RagSession {
    async fn call(&self, tool: &str, params: Params, _call: &Call) -> Result<Value, ToolError> {
        if tool != "search" {
            return Err(ToolError::new(Code::InvalidRequest, format!("there is no tool `rag:{tool}`")));
        }
        let query = args::required_text(&params, "query")?;
        let top_k = args::count(&params, "top_k", TOP_K, MOST)?.max(1);
        let index = match &self.index {
            Some(index) if !Seeds::are_named(&params) => Arc::clone(index),
            _ => self.indexes.of(&self.seeds, &params).await?,
        };
        blocking(move || search(&index, &query, top_k)).await
    }
}

fn search(index: &Index, query: &str, top_k: usize) -> Result<Value, ToolError> {
    let (mut text, mut results) = (String::new(), Vec::new());
    for (nth, hit) in bm25::search(&[&index.words], query, top_k).iter().enumerate() {
        let passage = &index.passages[hit.text];
        let score = (hit.score * 1000.0).round() / 1000.0;
        let _ = write!(text, "[{}] {}: {}\n{}\n\n", nth + 1, passage.path, passage.section, passage.text);
        results.push(json!({
            "source": &*passage.path, "section": &*passage.section, "score": score, "text": passage.text,
        }));
    }
    if results.is_empty() {
        let message = format!("nothing was found for `{query}`; try other words");
        return Err(ToolError::new(Code::NoResults, message));
    }
    Ok(json!({"result": text.trim_end(), "results": results}))
}
