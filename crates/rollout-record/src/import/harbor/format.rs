//! The parts of Harbor's files that an import reads. Unknown fields are ignored.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use indexmap::IndexMap;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use serde::Deserialize;
use serde_json::Value;

use super::ImportError;

/// Larger files are not results.
const MAX_BYTES: u64 = 64 << 20;

/// A job directory.
#[derive(Debug)]
pub(super) struct HarborJob {
    /// config.json as it is.
    pub(super) config: Vec<u8>,
    parsed: Value,
    /// The trials with a result, by their start.
    pub(super) trials: Vec<HarborTrial>,
    /// Whether trials have no result.
    pub(super) is_incomplete: bool,
}

/// A trial with a result.
#[derive(Debug)]
pub(super) struct HarborTrial {
    /// The name of its directory.
    pub(super) directory: PathBuf,
    pub(super) result: HarborResult,
}

/// result.json of a trial.
#[derive(Debug, Deserialize)]
pub(super) struct HarborResult {
    pub(super) task_name: String,
    #[serde(default)]
    pub(super) task_id: HarborTaskId,
    #[serde(default)]
    pub(super) source: Option<String>,
    pub(super) agent_info: HarborAgent,
    #[serde(default)]
    pub(super) agent_result: Option<HarborUsage>,
    #[serde(default)]
    pub(super) verifier_result: Option<HarborRewards>,
    #[serde(default)]
    pub(super) exception_info: Option<HarborException>,
    #[serde(default, deserialize_with = "moment")]
    pub(super) started_at: Option<Timestamp>,
    #[serde(default, deserialize_with = "moment")]
    pub(super) finished_at: Option<Timestamp>,
    #[serde(default)]
    pub(super) environment_setup: Option<HarborTiming>,
    #[serde(default)]
    pub(super) agent_setup: Option<HarborTiming>,
    #[serde(default)]
    pub(super) agent_execution: Option<HarborTiming>,
    #[serde(default)]
    pub(super) verifier: Option<HarborTiming>,
    #[serde(default)]
    pub(super) step_results: Option<Vec<HarborStep>>,
}

/// Where a task comes from.
#[derive(Debug, Default, Deserialize)]
pub(super) struct HarborTaskId {
    #[serde(default)]
    pub(super) git_commit_id: Option<String>,
}

/// The agent of a trial.
#[derive(Debug, Deserialize)]
pub(super) struct HarborAgent {
    pub(super) name: String,
    #[serde(default)]
    pub(super) version: Option<String>,
    #[serde(default)]
    model_info: Option<HarborModel>,
}

#[derive(Debug, Deserialize)]
struct HarborModel {
    name: String,
    #[serde(default)]
    provider: Option<String>,
}

impl HarborAgent {
    /// The model in the form that Harbor's configuration has.
    pub(super) fn model(&self) -> Option<String> {
        let model = self.model_info.as_ref()?;
        Some(match &model.provider {
            Some(provider) => format!("{provider}/{}", model.name),
            None => model.name.clone(),
        })
    }
}

/// What an agent used.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct HarborUsage {
    pub(super) n_input_tokens: Option<u64>,
    pub(super) n_cache_tokens: Option<u64>,
    pub(super) n_output_tokens: Option<u64>,
    pub(super) cost_usd: Option<f64>,
}

/// The rewards of a trial or a step.
#[derive(Debug, Default, Deserialize)]
pub(super) struct HarborRewards {
    #[serde(default)]
    pub(super) rewards: Option<IndexMap<String, f64>>,
}

/// An exception that ended a trial or a step.
#[derive(Debug, Deserialize)]
pub(super) struct HarborException {
    pub(super) exception_type: String,
    #[serde(default)]
    pub(super) exception_message: String,
    #[serde(default, deserialize_with = "moment")]
    pub(super) occurred_at: Option<Timestamp>,
}

/// The times of a phase.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct HarborTiming {
    #[serde(deserialize_with = "moment")]
    pub(super) started_at: Option<Timestamp>,
    #[serde(deserialize_with = "moment")]
    pub(super) finished_at: Option<Timestamp>,
}

/// A step of a trial.
#[derive(Debug, Deserialize)]
pub(super) struct HarborStep {
    pub(super) step_name: String,
    #[serde(default)]
    pub(super) agent_result: Option<HarborUsage>,
    #[serde(default)]
    pub(super) verifier_result: Option<HarborRewards>,
    #[serde(default)]
    pub(super) exception_info: Option<HarborException>,
    #[serde(default)]
    pub(super) agent_execution: Option<HarborTiming>,
    #[serde(default)]
    pub(super) verifier: Option<HarborTiming>,
}

impl HarborJob {
    /// Reads a job directory. Trials without a valid result become warnings.
    pub(super) fn read(path: &Path) -> Result<(Self, Vec<String>), ImportError> {
        let not_a_job =
            |reason: &str| ImportError::NotAJob { path: path.to_owned(), reason: reason.to_owned() };
        let file = path.join("config.json");
        if !file.is_file() {
            return Err(not_a_job("it has no config.json"));
        }
        if path.join("journal.jsonl").exists() {
            return Err(not_a_job("it is a job directory of Rollout"));
        }
        let config = read(&file).map_err(|source| ImportError::Read { path: file.clone(), source })?;
        let parsed: Value =
            serde_json::from_slice(&config).map_err(|error| not_a_job(&format!("config.json: {error}")))?;
        if parsed.get("trial_name").is_some_and(|name| name.is_string()) && parsed.get("agents").is_none() {
            return Err(not_a_job("it is the directory of a trial"));
        }
        let failed = |source| ImportError::Read { path: path.to_owned(), source };
        let mut directories = BTreeMap::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_trial =
                entry.file_type().map_err(failed)?.is_dir() && entry.path().join("config.json").is_file();
            if is_trial {
                directories.insert(PathBuf::from(entry.file_name()), entry.path());
            }
        }
        if directories.is_empty() {
            return Err(not_a_job("it has no trial"));
        }
        let (mut trials, mut warnings, mut is_incomplete) = (Vec::new(), Vec::new(), false);
        for (directory, path) in directories {
            let parsed = read(&path.join("result.json")).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => "it has no result.json".to_owned(),
                _ => error.to_string(),
            });
            let parsed = parsed.and_then(|bytes| {
                serde_json::from_slice::<HarborResult>(&bytes)
                    .map_err(|error| format!("result.json: {error}"))
            });
            match parsed {
                Ok(result) if result.is_cancelled() => {
                    is_incomplete = true;
                    warnings
                        .push(format!("trial {} was cancelled, so it has no result", directory.display()));
                }
                Ok(result) => trials.push(HarborTrial { directory, result }),
                Err(reason) => {
                    is_incomplete = true;
                    warnings.push(format!("trial {} is left out: {reason}", directory.display()));
                }
            }
        }
        if trials.is_empty() {
            return Err(not_a_job("none of its trials has a result"));
        }
        trials.sort_by_key(|trial| trial.result.started_at);
        Ok((Self { config, parsed, trials, is_incomplete }, warnings))
    }

    /// The kind of its environments.
    pub(super) fn provider(&self) -> &str {
        let environment = &self.parsed["environment"];
        environment["type"].as_str().or_else(|| environment["import_path"].as_str()).unwrap_or("docker")
    }
}

impl HarborResult {
    fn is_cancelled(&self) -> bool {
        self.exception_info.as_ref().is_some_and(|error| error.exception_type == "CancelledError")
    }
}

/// Reads a regular file of a reasonable size.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_file() || found.len() > MAX_BYTES {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!("not a regular file of at most {} MiB", MAX_BYTES >> 20),
        ));
    }
    fs::read(path)
}

/// A time with or without an offset. Harbor writes times of trials in UTC.
fn moment<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let parsed = text.parse::<Timestamp>().ok().or_else(|| {
        let local = text.parse::<DateTime>().ok()?;
        Some(local.to_zoned(TimeZone::UTC).ok()?.timestamp())
    });
    parsed.map(Some).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a time")))
}
