//! Creates and saves the summary of a benchmark: `summary_<benchmark>_<time>.json`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use jiff::Zoned;
use rollout_core::{result::Totals, summary::RolloutSummary};
use rollout_record::{
    atomic::{self, WriteError},
    rows,
};

use crate::config::RolloutConfig;

/// The summary of a finished benchmark.
pub(super) fn summary(config: &RolloutConfig, totals: &Totals, seconds: f64, now: &Zoned) -> RolloutSummary {
    let metric = config.evaluate_results.then_some(config.evaluation_metric);
    RolloutSummary {
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

/// The last summary of an earlier run, if all its files exist.
pub(super) fn saved(config: &RolloutConfig, totals: &Totals) -> Option<RolloutSummary> {
    let start = format!("summary_{}_", config.dataset_name());
    let named = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&start) && name.ends_with(".json"))
    };
    let files = fs::read_dir(config.results_dir()).ok()?;
    let files = files.filter_map(|entry| Some(entry.ok()?.path())).filter(named);
    let last = files.max_by_key(|path| fs::metadata(path).and_then(|file| file.modified()).ok())?;
    let summary: RolloutSummary = serde_json::from_slice(&fs::read(&last).ok()?).ok()?;
    let evaluation_file = config.evaluate_results.then(|| config.results_dir().join(rows::EVALUATION));
    if evaluation_file.as_ref().is_some_and(|file| !file.is_file()) {
        return None;
    }
    // The directory may have been moved.
    Some(RolloutSummary {
        evaluated_tasks: evaluation_file.as_ref().map_or(0, |_| totals.rewarded_trials),
        results_file: Some(config.results_dir().join(rows::RESULTS)),
        evaluation_file,
        summary_file: Some(last),
        ..summary
    })
}

/// Saves it in a directory, under a unique name.
pub(super) fn save(
    summary: &mut RolloutSummary,
    dir: &Path,
    benchmark: &str,
    now: &Zoned,
) -> Result<(), WriteError> {
    fs::create_dir_all(dir).map_err(|source| WriteError { path: dir.to_owned(), source })?;
    let time = now.strftime("%Y%m%dT%H%M%S");
    for number in 1.. {
        let again = if number == 1 { String::new() } else { format!("-{number}") };
        let path = dir.join(format!("summary_{benchmark}_{time}{again}.json"));
        match fs::File::create_new(&path) {
            Ok(_) => {
                atomic::write_json(&path, summary)?;
                summary.summary_file = Some(path);
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(WriteError { path, source }),
        }
    }
    Ok(())
}
