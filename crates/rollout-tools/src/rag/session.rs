//! Calls of the `rag` tools.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use serde_json::{Value, json};

use super::index::{Index, Indexes};
use crate::arguments;
use crate::doc::bm25;
use crate::resource::{Call, ErrorCode, Params, Session, ToolError};
use crate::seed::{Seeds, blocking};

/// The default number of passages of a search.
pub(super) const TOP_K: usize = 5;
/// The most passages that can be requested.
const MOST: usize = 100;

pub(super) struct RagSession {
    pub(super) seeds: Seeds,
    /// The last index that was searched without files named by the call. The cache keeps it alive, not the
    /// session, because there may be many sessions.
    pub(super) index: Mutex<Weak<Index>>,
    pub(super) indexes: Arc<Indexes>,
}

#[async_trait]
impl Session for RagSession {
    async fn call(&self, tool: &str, params: Params, _call: &Call) -> Result<Value, ToolError> {
        if tool != "search" {
            return Err(ToolError::new(ErrorCode::InvalidRequest, format!("unknown tool `rag:{tool}`")));
        }
        let query = arguments::required_text(&params, "query")?.to_owned();
        bm25::check_query(&query)?;
        let top_k = arguments::count(&params, "top_k", TOP_K, MOST)?.max(1);
        let index = self.index(&params).await?;
        blocking(move || search(&index, &query, top_k)).await
    }
}

impl RagSession {
    async fn index(&self, params: &Params) -> Result<Arc<Index>, ToolError> {
        if Seeds::are_named(params) {
            return self.indexes.of(&self.seeds, params).await;
        }
        // No code panics while the lock is held.
        let last = || self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = last().upgrade();
        if let Some(index) = kept {
            return Ok(index);
        }
        let index = self.indexes.of(&self.seeds, params).await?;
        *last() = Arc::downgrade(&index);
        Ok(index)
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
        return Err(ToolError::new(ErrorCode::NoResults, message));
    }
    Ok(json!({"result": text.trim_end(), "results": results}))
}
