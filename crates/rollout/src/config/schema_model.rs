//! JSON Schemas of models and interactions.

use serde_json::{Value as Json, json};
pub fn interaction_schema() -> Json { json!({}) }
