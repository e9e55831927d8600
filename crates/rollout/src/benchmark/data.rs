//! The questions of a benchmark.

use serde_json::{Map, Value};

/// A question with what is known of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BenchmarkItem {
    /// Names it in results.
    pub id: String,
    /// The question.
    pub question: String,
    /// The right answer. An empty one is one too.
    pub answer: Option<String>,
    /// Parameters that every call of a tool gets.
    pub kwargs: Map<String, Value>,
    /// All its other fields.
    pub metadata: Map<String, Value>,
}
