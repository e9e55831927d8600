//! What a benchmark came to: `summary_<benchmark>_<time>.json`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Zoned;
use serde::{Deserialize, Serialize, Serializer};

use crate::{
    config::RolloutConfig,
    record::{atomic, atomic::WriteError, provenance::Provenance},
    result::Totals,
};

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

impl RolloutSummary {
    /// What a benchmark came to that is over now.
    pub(crate) fn new(config: &RolloutConfig, totals: &Totals, seconds: f64, now: &Zoned) -> Self {
        let metric = config.evaluate_results.then_some(config.evaluation_metric);
        Self {
            benchmark_name: config.name(),
            total_tasks: totals.total_trials,
            successful_tasks: totals.completed_trials,
            failed_tasks: totals.failed_trials,
            average_score: metric.map(|_| totals.mean_reward()),
            evaluated_tasks: metric.map_or(0, |_| totals.rewarded_trials),
            judge_failures: 0,
            metric: metric.map(|metric| metric.as_str().to_owned()),
            total_time_seconds: seconds,
            results_file: None,
            evaluation_file: None,
            timestamp: now.strftime("%Y-%m-%dT%H:%M:%S").to_string(),
            provenance: None,
            summary_file: None,
        }
    }

    /// Saves it in a directory, under a name that no other file has.
    pub(crate) fn save(&mut self, dir: &Path, benchmark: &str, now: &Zoned) -> Result<(), WriteError> {
        fs::create_dir_all(dir).map_err(|source| WriteError { path: dir.to_owned(), source })?;
        let time = now.strftime("%Y%m%dT%H%M%S");
        for number in 1.. {
            let again = if number == 1 { String::new() } else { format!("-{number}") };
            let path = dir.join(format!("summary_{benchmark}_{time}{again}.json"));
            match fs::File::create_new(&path) {
                Ok(_) => {
                    atomic::write_json(&path, self)?;
                    self.summary_file = Some(path);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(WriteError { path, source }),
            }
        }
        Ok(())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A path as a file of JSON can have it: one that is no text is told as well as it can be.
fn as_text<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_deref().map(Path::to_string_lossy).serialize(serializer)
}
