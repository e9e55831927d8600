//! Writes one `.eval` file.

use std::{
    fs::File,
    io::{self, BufWriter, Seek as _, SeekFrom, Write},
    path::PathBuf,
};

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use zip::{
    CompressionMethod, ZipWriter,
    write::{SimpleFileOptions, StreamWriter},
};

use super::{
    id,
    sample::{ModelUsage, REWARD, Trial},
};
use crate::{
    export::{Export, ExportError, NewFile},
    saved::SavedJob,
    stats::Clusters,
};
use rollout_core::result;

/// The version of the format.
const VERSION: u32 = 2;

/// The maximum number of score names in the header. Others are only in the samples, because a task could use a new name
/// in every trial.
const MAX_SCORES: usize = 64;

/// Archive members from this size on use the format for more than 4 GiB, which some readers do not support. It is well
/// below 4 GiB, because data that cannot be compressed grows a little.
const LARGE_MEMBER: u64 = 1 << 31;

/// A log that is being written.
pub(super) struct Log<'a> {
    job: &'a SavedJob,
    agent: String,
    dataset: String,
    model: String,
    id: String,
    created: Timestamp,
    path: PathBuf,
    zip: ZipWriter<StreamWriter<NewFile>>,
    /// The summaries, kept in a temporary file, because a zip archive is written one member after the other.
    summaries: BufWriter<File>,
    totals: Totals,
}

/// Totals over the samples so far.
#[derive(Default)]
struct Totals {
    samples: u64,
    failed: u64,
    solved: u64,
    /// The same trials, counted as in a job's result.
    trials: result::Totals,
    usage: Option<ModelUsage>,
    ended_at: Option<Timestamp>,
    /// By the name of the score. Tasks are identified by their index.
    scores: IndexMap<String, Clusters<usize>>,
}

/// One score of each task.
#[derive(Serialize)]
struct Reduction<'a> {
    scorer: &'a String,
    reducer: &'static str,
    samples: Tasks<'a>,
}

/// The tasks one by one, because there may be very many.
struct Tasks<'a> {
    job: &'a SavedJob,
    scores: &'a Clusters<usize>,
}

impl Serialize for Tasks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tasks = &self.job.header().tasks;
        serializer.collect_seq(self.scores.by_task().iter().map(|(number, values)| {
            json!({"value": values.mean().unwrap_or_default(), "sample_id": tasks[*number].name})
        }))
    }
}

impl<'a> Log<'a> {
    /// Creates the log of an agent with this model on a dataset.
    pub(super) fn create(
        export: &Export<'a>,
        agent: &str,
        model: &str,
        dataset: &str,
    ) -> Result<Self, ExportError> {
        let job = export.job;
        let created = job.runs().first().map_or(Timestamp::UNIX_EPOCH, |run| run.started_at);
        let id = id(&[&job.header().job_name, &created.to_string(), agent, dataset]);
        let name = format!("{}_{}_{id}.eval", in_name(&seconds(created)), in_name(dataset));
        let path = export.dir().join(&name);
        let file = export.file(name)?;
        let spool = match tempfile::tempfile_in(export.dir()) {
            Ok(spool) => spool,
            Err(source) => return Err(ExportError::Write { path, source }),
        };
        let mut log = Self {
            job,
            agent: agent.to_owned(),
            dataset: dataset.to_owned(),
            model: model.to_owned(),
            id,
            created,
            path,
            zip: ZipWriter::new_stream(file),
            summaries: BufWriter::new(spool),
            totals: Totals::default(),
        };
        let start = json!({"version": VERSION, "eval": log.spec(), "plan": log.plan()});
        log.member("_journal/start.json", |file| json_to(file, &start))?;
        Ok(log)
    }

    /// Whether the log belongs to this agent and dataset.
    pub(super) fn is_of(&self, agent: &str, dataset: &str) -> bool {
        self.agent == agent && self.dataset == dataset
    }

    /// Returns the unique id of the log.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Adds a sample.
    pub(super) fn add(&mut self, trial: &Trial<'_>) -> Result<(), ExportError> {
        let name = format!("samples/{}_epoch_{}.json", trial.saved.id.task, trial.saved.id.attempt);
        self.member(&name, |file| trial.write(file).map_err(io::Error::from))?;
        let separator: &[u8] = if self.totals.samples == 0 { b"[" } else { b"," };
        let summary = self.summaries.write_all(separator);
        summary
            .and_then(|()| trial.write_summary(&mut self.summaries).map_err(io::Error::from))
            .map_err(|source| self.failed(source))?;
        self.totals.add(trial);
        Ok(())
    }

    /// Writes the header and the summaries, and finishes the file.
    ///
    /// Trials that were left out by their tags are not missing.
    pub(super) fn finish(mut self, export: &Export<'_>) -> Result<PathBuf, ExportError> {
        self.summaries.write_all(b"]").map_err(|source| self.failed(source))?;
        for name in ["_journal/summaries/1.json", "summaries.json"] {
            let failed = |source| ExportError::Write { path: self.path.clone(), source };
            self.summaries.seek(SeekFrom::Start(0)).map_err(failed)?;
            let mut spool = self.summaries.get_ref().try_clone().map_err(failed)?;
            let is_large = spool.metadata().map_err(failed)?.len() >= LARGE_MEMBER;
            let options = options().large_file(is_large);
            self.member_with(options, name, |file| io::copy(&mut spool, file).map(|_| ()))?;
        }
        let (job, totals) = (self.job, std::mem::take(&mut self.totals));
        self.member("reductions.json", |file| json_to(file, &totals.reductions(job)))?;
        self.totals = totals;
        let header = self.header(export.excluded_of(&self.agent, &self.dataset));
        self.member("header.json", |file| json_to(file, &header))?;
        let Self { path, zip, .. } = self;
        match zip.finish() {
            Ok(stream) => stream.into_inner().finish(),
            Err(error) => Err(ExportError::Write { path, source: error.into() }),
        }
    }

    fn failed(&self, source: io::Error) -> ExportError {
        ExportError::Write { path: self.path.clone(), source }
    }

    /// Writes a member of the archive.
    fn member(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<&mut ZipWriter<StreamWriter<NewFile>>>) -> io::Result<()>,
    ) -> Result<(), ExportError> {
        self.member_with(options(), name, write)
    }

    fn member_with(
        &mut self,
        options: SimpleFileOptions,
        name: &str,
        write: impl FnOnce(&mut BufWriter<&mut ZipWriter<StreamWriter<NewFile>>>) -> io::Result<()>,
    ) -> Result<(), ExportError> {
        let started = self.zip.start_file(name, options).map_err(io::Error::from);
        let written = started.and_then(|()| {
            let mut file = BufWriter::with_capacity(1 << 16, &mut self.zip);
            write(&mut file)?;
            file.flush()
        });
        written.map_err(|source| self.failed(source))
    }

    /// Returns the specification of the evaluation.
    fn spec(&self) -> Value {
        let header = self.job.header();
        let provenance = self.job.runs().last().and_then(|run| run.provenance.as_deref());
        let created = seconds(self.created);
        let scorer = |name: &str| {
            let metrics = json!([{"name": "accuracy"}, {"name": "mean"}, {"name": "stderr"}]);
            json!({"name": name, "options": {}, "metrics": metrics, "metadata": {}})
        };
        json!({
            "eval_id": id(&[&self.id, "eval"]),
            "run_id": id(&[&header.job_name, &self.created.to_string()]),
            "created": created,
            "task": self.dataset,
            "task_id": self.id,
            "task_version": 0,
            "task_display_name": self.dataset,
            "task_attribs": {},
            "task_args": {},
            "task_args_passed": {},
            "solver": self.agent,
            "dataset": {
                "name": self.dataset,
                "samples": self.tasks().count(),
                "sample_ids": self.tasks().collect::<Vec<_>>(),
                "shuffled": false,
            },
            "model": self.model,
            "model_generate_config": {},
            "model_args": {},
            "config": {
                "epochs": header.attempts, "epochs_reducer": ["mean"], "fail_on_error": false,
                "log_samples": true,
            },
            "revision": provenance.and_then(|run| run.git.as_ref()).map(|git| json!({
                "type": "git", "commit": git.commit, "origin": git.remote_url.as_deref().unwrap_or_default(),
                "dirty": git.is_dirty,
            })),
            "packages": {"rollout": provenance.map_or(env!("CARGO_PKG_VERSION"), |run| &run.rollout_version)},
            "metadata": {"job": header.job_name, "agent": self.agent, "provenance": provenance},
            "scorers": [scorer(REWARD)],
        })
    }

    fn plan(&self) -> Value {
        json!({"name": "plan", "steps": [{"solver": self.agent, "params": {}, "params_passed": {}}], "config": {}})
    }

    /// Returns the header with the results.
    fn header(&self, excluded: u64) -> Value {
        let (job, totals) = (self.job, &self.totals);
        let planned = self.tasks().count() as u64 * u64::from(job.header().attempts);
        let planned = planned.saturating_sub(excluded);
        let usage: serde_json::Map<String, Value> =
            totals.usage.iter().map(|usage| (self.model.clone(), json!(usage))).collect();
        let ended_at = job.runs().last().and_then(|run| run.ended_at).or(totals.ended_at);
        json!({
            "version": VERSION,
            "status": if totals.samples == planned { "success" } else { "cancelled" },
            "eval": self.spec(),
            "plan": self.plan(),
            "results": {
                "total_samples": planned,
                "completed_samples": totals.samples - totals.failed,
                "scores": totals.scores.iter().map(|(name, score)| totals.score(name, score)).collect::<Value>(),
            },
            "stats": {
                "started_at": seconds(self.created),
                "completed_at": seconds(ended_at.unwrap_or(self.created)),
                "model_usage": usage,
                "role_usage": {},
            },
            "invalidated": false,
            "tags": [],
            "metadata": {"headline": totals.trials.headline()},
        })
    }

    fn tasks(&self) -> impl Iterator<Item = &str> {
        let tasks = self.job.header().tasks.iter();
        tasks.filter(|task| task.dataset == self.dataset).map(|task| task.name.as_str())
    }
}

impl Totals {
    fn add(&mut self, trial: &Trial<'_>) {
        let result = &trial.saved.result;
        self.samples += 1;
        self.failed += u64::from(trial.is_failed());
        self.solved += u64::from(result.is_solved() == Some(true));
        self.trials.add(result.into());
        self.ended_at = self.ended_at.max(Some(result.timestamps.ended_at));
        self.usage = match (self.usage, trial.usage()) {
            (Some(before), Some(now)) => Some(before.plus(now)),
            (before, now) => before.or(now),
        };
        for (name, value) in trial.scores() {
            if self.scores.len() < MAX_SCORES || self.scores.contains_key(name) {
                self.scores.entry(name.to_owned()).or_default().add(trial.saved.task, value);
            }
        }
    }

    /// Returns the scores of each task over its attempts.
    fn reductions<'a>(&'a self, job: &'a SavedJob) -> Vec<Reduction<'a>> {
        let reduction =
            |(name, scores)| Reduction { scorer: name, reducer: "mean", samples: Tasks { job, scores } };
        self.scores.iter().map(reduction).collect()
    }

    /// Returns the metrics of a score: over all attempts, as in `result.json`, with a standard error that treats the
    /// attempts of a task as a cluster.
    fn score(&self, name: &str, score: &Clusters<usize>) -> Value {
        let all = score.all();
        let mut metrics = serde_json::Map::new();
        // A metric that does not exist is omitted: the standard error of a single task is not 0.
        let mut metric = |name: &str, value: Option<f64>, params: Value| {
            if let Some(value) = value {
                metrics.insert(name.to_owned(), json!({"name": name, "value": value, "params": params}));
            }
        };
        if name == REWARD {
            metric("accuracy", Some(self.solved as f64 / all.count() as f64), json!({}));
        }
        metric("mean", all.mean(), json!({}));
        metric("stderr", score.standard_error(), json!({"cluster": "task"}));
        json!({
            "name": name, "scorer": name, "scored_samples": all.count(),
            "unscored_samples": self.samples - all.count(), "params": {}, "metrics": metrics,
        })
    }
}

fn options() -> SimpleFileOptions {
    SimpleFileOptions::default().compression_method(CompressionMethod::Deflated)
}

fn json_to(file: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(file, value).map_err(io::Error::from)
}

/// Formats a time in whole seconds, as in headers.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S+00:00").to_string()
}

/// Replaces characters that separate the parts of a file name.
fn in_name(word: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || c == '.' || c == '-' { c } else { '-' };
    word.chars().map(plain).collect()
}
