//! The summary file of a benchmark.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize, Serializer};

use crate::provenance::Provenance;

/// The summary of a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutSummary {
    /// The name of the benchmark.
    pub benchmark_name: String,
    /// Number of questions.
    pub total_tasks: u64,
    /// Questions that the model answered, correctly or not.
    pub successful_tasks: u64,
    /// Questions without an answer because of an error.
    pub failed_tasks: u64,
    /// The mean score of the scored questions, 0 if there are none; None if scoring is disabled.
    pub average_score: Option<f64>,
    /// Number of scored questions. Not in this file: it is in the evaluation file.
    #[serde(skip)]
    pub evaluated_tasks: u64,
    /// Answers for which the judge failed. They count as 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub judge_failures: u64,
    /// The metric; None if scoring is disabled.
    pub metric: Option<String>,
    /// Duration of all runs.
    pub total_time_seconds: f64,
    /// The file of answers, if they were saved.
    #[serde(serialize_with = "as_text")]
    pub results_file: Option<PathBuf>,
    /// The file of scores, if answers were scored and saved.
    #[serde(serialize_with = "as_text")]
    pub evaluation_file: Option<PathBuf>,
    /// When it ended, in local time.
    pub timestamp: String,
    /// The provenance of the last answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Arc<Provenance>>,
    /// The path of this summary. Not in the file itself.
    #[serde(default, serialize_with = "as_text", skip_serializing_if = "Option::is_none")]
    pub summary_file: Option<PathBuf>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Serializes a path as text. A path that is not UTF-8 is converted with replacement characters.
fn as_text<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_deref().map(Path::to_string_lossy).serialize(serializer)
}
