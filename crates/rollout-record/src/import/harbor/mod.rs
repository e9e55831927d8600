//! Imports a job directory of Harbor.
//!
//! ```text
//! <harbor job>/config.json, result.json, <trial>/…  ──▶  journal.jsonl, config.json, <agent>/<dataset>/<task>__<n>/…
//! ```

mod convert;
mod files;
mod format;
mod names;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use rollout_core::{
    event::JobKind,
    name::{TrialId, TrialIndex},
    result::TrialResult,
    text::hex,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use self::{
    format::{HarborJob, HarborTrial},
    names::{Named, named},
};
use crate::{
    atomic::{self, WriteError},
    journal::{self, Header, ImportRecord, Journal, JournalEntry, JournalError, PlannedTask},
    layout::JobDir,
};

/// An imported job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Its new directory.
    pub directory: PathBuf,
    /// The number of its trials.
    pub trials: u64,
    /// What could not be imported, one sentence each.
    pub warnings: Vec<String>,
}

/// Why a directory cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is not a job directory of Harbor.
    #[error("{} is not a job directory of Harbor: {reason}", path.display())]
    NotAJob {
        /// The directory.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The new directory exists.
    #[error("{} already exists; results are never overwritten", .0.display())]
    Exists(PathBuf),
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A result cannot be written.
    #[error(transparent)]
    Record(#[from] WriteError),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl ImportError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotAJob { .. } => {
                Some("pass the directory of one job, which Harbor names <jobs_dir>/<job_name>")
            }
            Self::Exists(_) => Some("choose another name with --name, or another directory with -o"),
            Self::Read { .. } | Self::Write { .. } | Self::Record(_) | Self::Journal(_) => None,
        }
    }
}

/// Imports a job directory of Harbor to a new directory. Blocks.
///
/// The new directory appears complete or not at all.
pub fn import(source: &Path, target: &Path) -> Result<Imported, ImportError> {
    if fs::symlink_metadata(target).is_ok() {
        return Err(ImportError::Exists(target.to_owned()));
    }
    let (job, mut warnings) = HarborJob::read(source)?;
    let named = named(&job.trials);
    let parent = target.parent().unwrap_or(Path::new("."));
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let unfinished = parent.join(format!(".{name}.importing-{}", std::process::id()));
    let failed = |source| ImportError::Write { path: target.to_owned(), source };
    fs::create_dir_all(&unfinished).map_err(failed)?;
    let written = write(source, &job, &named, &JobDir::new(&unfinished), target, &mut warnings)
        .and_then(|()| fs::rename(&unfinished, target).map_err(failed));
    if written.is_err() {
        // What remains has a name that says what it is.
        let _ = fs::remove_dir_all(&unfinished);
    }
    written?;
    Ok(Imported { directory: target.to_owned(), trials: job.trials.len() as u64, warnings })
}

fn write(
    source: &Path,
    job: &HarborJob,
    named: &[Named],
    dir: &JobDir,
    target: &Path,
    warnings: &mut Vec<String>,
) -> Result<(), ImportError> {
    let results: Vec<TrialResult> =
        job.trials.iter().zip(named).map(|(trial, named)| convert::result(trial, named)).collect();
    let header = header(source, job, named, target);
    for (trial, result) in job.trials.iter().zip(&results) {
        let place = dir.trial(&id(result));
        files::copy(&source.join(&trial.directory), place.path(), &trial.directory, warnings)?;
        atomic::write_json(&place.result(), result)?;
        if let Some(error) = &result.error {
            let text =
                format!("{}\n\n{}\n", error.kind, rollout_core::text::printable(error.message.trim_end()));
            let failed = |source| ImportError::Write { path: place.error(), source };
            fs::write(place.error(), text).map_err(failed)?;
        }
    }
    files::copy_job(source, dir.path(), warnings)?;
    atomic::write_json(&dir.config(), header.config.as_ref().unwrap_or(&json!({})))?;
    let index = |result: &TrialResult| {
        let mut offset = 0;
        for task in &header.tasks {
            if (task.dataset.as_str(), task.name.as_str())
                == (result.dataset_name.as_str(), result.task_name.as_str())
            {
                break;
            }
            offset += u64::from(header.attempts_of(task));
        }
        let per_agent: u64 = header.tasks.iter().map(|task| u64::from(header.attempts_of(task))).sum();
        let agent = header.agents.iter().position(|agent| agent == result.agent_name.as_str());
        TrialIndex(agent.unwrap_or(0) as u64 * per_agent + offset + u64::from(result.attempt) - 1)
    };
    let indexes: Vec<TrialIndex> = results.iter().map(index).collect();
    let times = results.iter().map(|result| result.timestamps);
    let started = times.clone().map(|times| times.started_at).min().unwrap_or(Timestamp::UNIX_EPOCH);
    let ended = times.map(|times| times.ended_at).max().unwrap_or(started);
    let mut journal =
        Journal::create(&dir.journal(), header, std::iter::empty::<Result<PlannedTask, ImportError>>())?;
    journal.push(&JournalEntry::RunStarted { at: started, provenance: None });
    for (index, result) in indexes.into_iter().zip(results) {
        journal.push(&JournalEntry::Trial { index, result: Arc::new(result) });
    }
    journal.push(&JournalEntry::RunEnded { at: ended, cancelled: job.is_incomplete });
    Ok(journal.sync()?)
}

/// The plan of an imported job: every agent with every task that one of them attempted.
fn header(source: &Path, job: &HarborJob, named: &[Named], target: &Path) -> Header {
    let mut agents: Vec<String> = Vec::new();
    let mut configs = Vec::new();
    let mut datasets: Vec<String> = Vec::new();
    let mut tasks: Vec<PlannedTask> = Vec::new();
    for (trial, Named { id, .. }) in job.trials.iter().zip(named) {
        if !agents.iter().any(|agent| agent == id.agent.as_str()) {
            agents.push(id.agent.to_string());
            configs.push(agent_config(trial, id));
        }
        if !datasets.iter().any(|dataset| dataset == id.dataset.as_str()) {
            datasets.push(id.dataset.to_string());
        }
        let known = tasks
            .iter_mut()
            .find(|task| (&*task.dataset, &*task.name) == (id.dataset.as_str(), id.task.as_str()));
        match known {
            Some(task) => task.attempts = task.attempts.max(Some(id.attempt)),
            None => tasks.push(PlannedTask {
                dataset: id.dataset.to_string(),
                name: id.task.to_string(),
                content_hash: None,
                git_commit_id: trial.result.task_id.git_commit_id.clone(),
                example_id: None,
                attempts: Some(id.attempt),
                source: None,
            }),
        }
    }
    tasks.sort_by_key(|task| datasets.iter().position(|dataset| *dataset == task.dataset));
    let attempts = tasks.iter().filter_map(|task| task.attempts).max().unwrap_or(1);
    for task in &mut tasks {
        task.attempts = task.attempts.filter(|own| *own != attempts);
    }
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let config = json!({
        "name": name,
        "n_attempts": attempts,
        "compat": "harbor",
        "agents": configs,
        "datasets": datasets.iter().map(|dataset| json!({"name": dataset})).collect::<Vec<_>>(),
    });
    Header {
        version: journal::VERSION,
        kind: JobKind::Job,
        job_name: name,
        directory: std::path::absolute(target).ok().filter(|path| path.to_str().is_some()),
        job_file: PathBuf::new(),
        overrides: Vec::new(),
        config_hash: format!("sha256:{}", hex(&Sha256::digest(&job.config))),
        config: Some(config),
        provider: job.provider().to_owned(),
        agents,
        attempts,
        pins: Default::default(),
        selection: None,
        dataset_sizes: Default::default(),
        regrade: None,
        imported: Some(ImportRecord {
            program: "harbor".to_owned(),
            directory: std::path::absolute(source).unwrap_or_else(|_| source.to_owned()),
        }),
        tasks,
    }
}

fn agent_config(trial: &HarborTrial, id: &TrialId) -> serde_json::Value {
    let info = &trial.result.agent_info;
    let mut config = json!({"name": id.agent.as_str(), "version": info.version});
    if let Some(model) = info.model() {
        config["model"] = json!({"model": model});
    }
    config
}

fn id(result: &TrialResult) -> TrialId {
    TrialId {
        agent: result.agent_name.clone(),
        dataset: result.dataset_name.clone(),
        task: result.task_name.clone(),
        attempt: result.attempt,
    }
}
