//! Writes the eval log of a job from its directory, or trial by trial while it runs.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    EpisodeRecord, Episodes, EvalLogError, ExperimentRecord, RecordDialect,
    records::{Records, place},
};
use crate::{
    export::{Export, ExportError, Exported},
    saved::{Conversation, SavedError, SavedJob, SavedTrial},
};
use rollout_core::name::{AgentName, DatasetName};

/// The directory of the eval log in the job's directory.
pub const DIRECTORY: &str = "eval-log";

/// Options of [`write()`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EvalLogOptions {
    /// The field names.
    pub dialect: RecordDialect,
    /// Whether the episodes of each experiment are also written to one file, `episodes.jsonl`.
    pub jsonl: bool,
}

/// Writes the records of each agent on each dataset to `<agent>/<dataset>/`.
///
/// Later additions to a record are kept: the verifier, findings and fields of other programs come from existing records
/// in the output directory or in the job's own eval log. A directory with the records of another experiment is
/// rejected.
pub fn write(export: &Export<'_>, options: EvalLogOptions) -> Result<Exported, ExportError> {
    let log = Log { job: export.job, dir: export.dir().to_owned(), dialect: options.dialect };
    let mut made = Exported::default();
    let mut unscored = 0_u64;
    for (agent, dataset) in export.job.groups() {
        log.experiment(agent, dataset)?;
        made.files.push(place(&log.dir, agent, dataset));
    }
    for trial in export.trials()? {
        let trial = trial?;
        match log.episode(&trial, export.job.conversation(&trial)?.as_ref())? {
            true => made.rows += 1,
            false => unscored += 1,
        }
    }
    if unscored > 0 {
        let episodes = if unscored == 1 { "episode that was" } else { "episodes that were" };
        made.left_out.push(format!("{unscored} {episodes} not scored, which cube-harness does not support"));
    }
    if options.jsonl {
        for dir in &mut made.files {
            let file = dir.join("episodes.jsonl");
            Episodes::read(dir)?.write_jsonl_as(&file, options.dialect)?;
            *dir = file;
        }
    }
    Ok(made)
}

/// Writes the missing and outdated episodes of the job's own eval log.
pub fn complete(job: &SavedJob) -> Result<PathBuf, ExportError> {
    let log = Log::own(job);
    for (agent, dataset) in job.groups() {
        log.experiment(agent, dataset)?;
    }
    for trial in job.trials()? {
        let trial = trial?;
        let record = log.episode_at(&log.dir, &trial);
        let is_there = record.is_some_and(|record| record.timestamp == Records(job).timestamp(&trial));
        if !is_there {
            log.episode(&trial, job.conversation(&trial)?.as_ref())?;
        }
    }
    Ok(log.dir)
}

/// The eval log of a running job.
#[derive(Debug)]
pub struct LiveLog(SavedJob);

impl LiveLog {
    /// Writes the records of the experiments, and the missing records of earlier runs.
    pub fn open(dir: &Path) -> Result<Self, ExportError> {
        let job = SavedJob::open(dir)?;
        complete(&job)?;
        Ok(Self(job))
    }

    /// Writes the record of a finished trial. `row` is the row of an example.
    pub fn trial(&self, trial: &SavedTrial, row: Option<&[u8]>) -> Result<(), ExportError> {
        let said = match row {
            Some(row) => serde_json::from_slice(row).ok().map(rollout_core::row::RolloutOutput::into),
            None if self.0.task(trial).example_id.is_some() => None,
            None => self.0.conversation(trial)?,
        };
        Log::own(&self.0).episode(trial, said.as_ref()).map(drop)
    }
}

/// An output directory for records.
struct Log<'a> {
    job: &'a SavedJob,
    dir: PathBuf,
    dialect: RecordDialect,
}

impl<'a> Log<'a> {
    fn own(job: &'a SavedJob) -> Self {
        Self { job, dir: job.path().join(DIRECTORY), dialect: RecordDialect::default() }
    }

    /// The directories with records of the same job. The output directory comes first.
    fn places(&self) -> [PathBuf; 2] {
        [self.dir.clone(), self.job.path().join(DIRECTORY)]
    }

    fn experiment(&self, agent: &str, dataset: &str) -> Result<(), ExportError> {
        // The journal of an untrusted job may contain any text.
        if AgentName::new(agent).is_err() || DatasetName::new(dataset).is_err() {
            let reason = format!("{agent:?} or {dataset:?} is not a valid directory name");
            return Err(ExportError::Nothing { path: self.job.path().to_owned(), reason });
        }
        let mut record = Records(self.job).experiment(agent, dataset);
        let dir = place(&self.dir, agent, dataset);
        for log in self.places() {
            let earlier = match ExperimentRecord::load(&place(&log, agent, dataset)) {
                Ok(earlier) if earlier.experiment_id == record.experiment_id => earlier,
                Err(EvalLogError::Read { source, .. })
                    if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
                {
                    continue;
                }
                Ok(_) | Err(_) if log == self.dir => return Err(ExportError::Exists(dir)),
                Ok(_) | Err(_) => continue,
            };
            record.timestamp = earlier.timestamp;
            record.keep(earlier.agent, earlier.benchmark_subset);
            record.investigator_llm_config = earlier.investigator_llm_config;
            record.unknown = earlier.unknown;
            break;
        }
        Ok(record.save_as(&dir, self.dialect)?)
    }

    /// Writes the record of a trial. Returns whether the field names support it.
    fn episode(&self, trial: &SavedTrial, said: Option<&Conversation>) -> Result<bool, ExportError> {
        let mut record = Records(self.job).episode(trial, said)?;
        let mut earlier = self.places().into_iter().filter_map(|log| self.episode_at(&log, trial));
        // Findings about another run of the trial do not apply to this one.
        if let Some(earlier) = earlier.find(|earlier| earlier.timestamp == record.timestamp) {
            record.verifier = earlier.verifier.or(record.verifier);
            record.findings = earlier.findings;
            record.split = record.split.or(earlier.split);
            record.task_description = record.task_description.or(earlier.task_description);
            record.usage.unknown = earlier.usage.unknown;
            record.unknown = earlier.unknown;
        }
        Ok(record
            .save_as(&place(&self.dir, trial.id.agent.as_str(), trial.id.dataset.as_str()), self.dialect)?)
    }

    /// Returns the record of a trial in an eval log, if there is a valid one.
    fn episode_at(&self, log: &Path, trial: &SavedTrial) -> Option<EpisodeRecord> {
        let dir = place(log, trial.id.agent.as_str(), trial.id.dataset.as_str());
        EpisodeRecord::load(&dir, &trial.name()).ok()
    }
}

impl From<EvalLogError> for ExportError {
    fn from(error: EvalLogError) -> Self {
        let path = match &error {
            EvalLogError::Read { path, .. } | EvalLogError::Record { path, .. } => path.clone(),
            EvalLogError::Write(error) => error.path.clone(),
            EvalLogError::TrajectoryId(name) => PathBuf::from(name),
        };
        match error {
            EvalLogError::Write(error) => Self::Write { path, source: error.source },
            EvalLogError::Read { source, .. } => Self::Job(SavedError::Read { path, source }),
            EvalLogError::Record { source, .. } => Self::Job(SavedError::Damaged { path, source }),
            EvalLogError::TrajectoryId(_) => Self::Write { path, source: io::Error::other(error) },
        }
    }
}
