//! What a benchmark came to, as its summary file has it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize, Serializer};

use crate::provenance::Provenance;

/// What a benchmark came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutSummary {
    /// Names the benchmark.
    pub benchmark_name: String,
    /// Questions.
    pub total_tasks: u64,
    /// Those that the model came to an end with, right or wrong.
    pub successful_tasks: u64,
    /// Those that an error kept from an answer.
    pub failed_tasks: u64,
    /// The mean over the scored questions, 0 if there are none; none if scoring is off.
    pub average_score: Option<f64>,
    /// The scored questions. Not in the file: the evaluation has it.
    #[serde(skip)]
    pub evaluated_tasks: u64,
    /// Answers whose judge failed. They count as 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub judge_failures: u64,
    /// How answers were scored; none if scoring is off.
    pub metric: Option<String>,
    /// How long it took, over all runs.
    pub total_time_seconds: f64,
    /// The answers, if they were saved.
    #[serde(serialize_with = "as_text")]
    pub results_file: Option<PathBuf>,
    /// What they are worth, one by one, if they were scored and saved.
    #[serde(serialize_with = "as_text")]
    pub evaluation_file: Option<PathBuf>,
    /// When it ended, by the clock on the wall.
    pub timestamp: String,
    /// Where the last answers come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Arc<Provenance>>,
    /// Where this summary was saved. Not in the file itself.
    #[serde(default, serialize_with = "as_text", skip_serializing_if = "Option::is_none")]
    pub summary_file: Option<PathBuf>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A path as a file of JSON can have it: one that is no text is told as well as it can be.
fn as_text<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_deref().map(Path::to_string_lossy).serialize(serializer)
}
