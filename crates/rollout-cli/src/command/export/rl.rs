//! `rollout export rl`: training samples from the turns of a model.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use rollout::{
    export::{Export, ExportError, NewFile},
    model::{
        Advantage,
        advantage::{GroupMember, group_advantages},
        samples::{Sample, SampleError, TrialSampleError, group_member, trial_samples},
    },
    record::saved::{Conversation, SavedJob, SavedTrial},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    args::{ExportFormat, ExportRl},
    command::progress::progress,
    exit::{Exit, Failure, hinted},
    report::text::{DIM, count, paint},
};

/// Why the export failed.
#[derive(Debug, thiserror::Error)]
enum RlError {
    #[error("no training samples in {}: {reasons}", path.display())]
    NoSamples { path: PathBuf, reasons: String },
    #[error(
        "the advantages of {agent} on {dataset} must be computed again, but their estimator is not recorded, because \
         a program ran the job"
    )]
    UnknownEstimator { agent: String, dataset: String },
    #[error(transparent)]
    Export(#[from] ExportError),
    #[cfg(not(feature = "parquet"))]
    #[error("this build of Rollout cannot write Parquet")]
    NoParquet,
}

impl RlError {
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::UnknownEstimator { .. } => Some(
                "name an estimator with `--advantage`, or set `include_errors` in the program and run the job again",
            ),
            Self::Export(error) => error.hint(),
            _ => None,
        }
    }
}

/// Exports the turns of a job as samples.
pub(super) fn run(args: &ExportRl) -> Result<Exit, Failure> {
    #[cfg(not(feature = "parquet"))]
    if args.format == ExportFormat::Parquet {
        return Err(no_parquet("export as jsonl"));
    }
    let failed = hinted(ExportError::hint);
    let job = SavedJob::open(&args.from.directory).map_err(|error| failed(error.into()))?;
    let export = Export::new(&job, &args.from.out).and_then(|export| export.without(&args.from.exclude_tag));
    let export = export.map_err(&failed)?.progress(progress("read", "trial"));
    let choices = Choices { includes_errors: args.include_errors, advantage: args.advantage };
    let sections = read(&export, args.format, choices).map_err(hinted(RlError::hint))?;
    if sections.iter().all(|section| section.file.is_none()) {
        let mut without: BTreeMap<Lack, u64> = BTreeMap::new();
        let all = sections.iter().flat_map(|section| &section.tally.without);
        all.for_each(|(lack, number)| *without.entry(*lack).or_default() += number);
        let mut left_out: BTreeMap<String, u64> = BTreeMap::new();
        let all = sections.iter().flat_map(|section| &section.tally.left_out);
        all.for_each(|(cause, number)| *left_out.entry(cause.clone()).or_default() += number);
        let tally = Tally { without, left_out, ..Tally::default() };
        let reasons: Vec<String> = tally.reasons().chain(export.by_tag()).collect();
        let reasons = match reasons.is_empty() {
            true => "the job has no model turns".to_owned(),
            false => reasons.join(", "),
        };
        let error = RlError::NoSamples { path: args.from.directory.clone(), reasons };
        return Err(Failure::from(error).hint(tally.hint()));
    }
    for Section { dir, tally, file, summary } in sections {
        let made = file.map(NewFile::finish).transpose().map_err(&failed)?;
        summary.map(NewFile::finish).transpose().map_err(&failed)?;
        super::super::print(&tally.render(&made.unwrap_or(dir)))?;
    }
    super::print_left_out(&export)?;
    Ok(Exit::Success)
}

/// Returns the error for Parquet in a build without Parquet.
#[cfg(not(feature = "parquet"))]
pub(super) fn no_parquet(instead: &str) -> Failure {
    let hint =
        format!("build with `cargo install --path crates/rollout-cli --features parquet`, or {instead}");
    Failure::from(RlError::NoParquet).hint(Some(&hint))
}

/// The export of one agent on one dataset.
struct Section {
    dir: PathBuf,
    tally: Tally,
    /// The complete file, not yet renamed to its final path. None if there are no samples.
    file: Option<NewFile>,
    /// A file with the counts of exported and omitted rollouts.
    summary: Option<NewFile>,
}

/// The options of the export.
#[derive(Debug, Clone, Copy)]
struct Choices {
    includes_errors: bool,
    advantage: Option<Advantage>,
}

/// The settings with which the advantages of a dataset were computed.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Recorded {
    #[serde(default)]
    advantage: Advantage,
    #[serde(default)]
    include_errors: bool,
    #[serde(default)]
    independent_scoring: bool,
}

impl Recorded {
    /// Reads them from the configuration of a job. None for container tasks, and for interactions of a program.
    fn of(config: &Value, dataset: &str) -> Option<Self> {
        let mut datasets = config.get("datasets")?.as_array()?.iter();
        let entry = datasets.find(|entry| entry.get("name").is_some_and(|name| name == dataset))?;
        Self::deserialize(entry.get("interaction")?).ok()
    }
}

/// The advantages of a group must be computed again, and their estimator is unknown.
struct UnknownEstimator;

/// The rollouts of one example. Their samples are written after all of them are read.
#[derive(Default)]
struct Group {
    members: Vec<Option<GroupMember>>,
    /// Samples with the index of their rollout in `members`.
    samples: Vec<(usize, Vec<Sample>)>,
    /// Whether a member that failed or timed out is now included, but is not in the baseline of the recorded
    /// advantages, or the reverse. A member that is left out by its tags may be in the baseline too.
    has_stale_baseline: bool,
}

impl Group {
    /// Returns the samples with the requested advantages.
    fn finish(
        self,
        choices: Choices,
        recorded: Option<Recorded>,
    ) -> Result<Vec<Vec<Sample>>, UnknownEstimator> {
        let has_advantages =
            || self.samples.iter().flat_map(|(_, samples)| samples).any(|sample| sample.advantage.is_some());
        // If all members failed, none of them has an advantage.
        let is_grouped = recorded.map_or_else(has_advantages, |recorded| !recorded.independent_scoring);
        let is_stale = is_grouped && self.has_stale_baseline;
        let mut samples = self.samples;
        if choices.advantage.is_some() || is_stale {
            let estimator = choices.advantage.or(recorded.map(|recorded| recorded.advantage));
            let estimator = estimator.ok_or(UnknownEstimator)?;
            let member = |member: &Option<GroupMember>| match member {
                Some(member) => {
                    GroupMember { is_excluded: member.is_excluded && !choices.includes_errors, ..*member }
                }
                None => GroupMember { reward: 0.0, is_excluded: true },
            };
            let members: Vec<_> = self.members.iter().map(member).collect();
            let advantages = group_advantages(&estimator, &members)
                .expect("the estimators with a name return a finite number for each reward");
            for (place, samples) in &mut samples {
                samples.iter_mut().for_each(|sample| sample.replace_advantage(advantages[*place]));
            }
        }
        Ok(samples.into_iter().map(|(_, samples)| samples).collect())
    }
}

/// Returns the recorded advantage of a rollout.
fn recorded_advantage(said: &Conversation) -> Option<f64> {
    let columns = &said.row.as_ref()?.columns;
    let of_turns =
        || columns.get("trajectory")?.as_array()?.iter().find_map(|step| step.get("advantage")?.as_f64());
    columns.get("advantage").and_then(Value::as_f64).or_else(of_turns)
}

/// Writes one file for each agent and dataset.
fn read(export: &Export<'_>, format: ExportFormat, choices: Choices) -> Result<Vec<Section>, RlError> {
    let examples = export.examples();
    let mut trials = export.all_trials()?.peekable();
    let mut sections = Vec::new();
    while let Some(first) = trials.next() {
        let first = first?;
        let (agent, dataset) = (first.id.agent.to_string(), first.id.dataset.to_string());
        let dir = export.section(&agent, &dataset);
        let recorded = Recorded::of(export.job.config(), &dataset);
        let includes_errors =
            choices.includes_errors || recorded.is_some_and(|recorded| recorded.include_errors);
        let choices = Choices { includes_errors, ..choices };
        let mut tally = Tally::default();
        let mut writer: Option<Writer> = None;
        let mut group = Group::default();
        let mut next = Some(first);
        while let Some(trial) = next {
            add(export, &trial, examples[trial.task], choices, &mut group, &mut tally)?;
            // Trials are sorted by agent and dataset, then by example.
            let is_near =
                |other: &SavedTrial| other.id.agent == trial.id.agent && other.id.dataset == trial.id.dataset;
            next = trials.next_if(|other| other.as_ref().is_ok_and(is_near)).transpose()?;
            if next.as_ref().is_some_and(|next| next.task == trial.task) {
                continue;
            }
            let finished = std::mem::take(&mut group).finish(choices, recorded);
            let unknown = |UnknownEstimator| RlError::UnknownEstimator {
                agent: agent.clone(),
                dataset: dataset.clone(),
            };
            for samples in finished.map_err(unknown)? {
                tally.add(&samples);
                let writer = match &mut writer {
                    Some(writer) => writer,
                    None => writer.insert(Writer::new(export, &dir, format)?),
                };
                samples.into_iter().try_for_each(|sample| writer.write(sample))?;
            }
        }
        let file = writer.map(Writer::end).transpose()?;
        let summary = file
            .as_ref()
            .map(|_| tally.file(export, &dir.join(summary_name(format)), choices, recorded))
            .transpose()?;
        sections.push(Section { dir: export.dir().join(dir), tally, file, summary });
    }
    Ok(sections)
}

/// Adds a trial and its samples to its group.
fn add(
    export: &Export<'_>,
    trial: &SavedTrial,
    example: u64,
    choices: Choices,
    group: &mut Group,
    tally: &mut Tally,
) -> Result<(), ExportError> {
    if export.excludes(trial) {
        // Its reward is in the recorded advantages of the others, and may be if its row cannot be read.
        let said = export.job.conversation(trial);
        group.has_stale_baseline |=
            said.map_or(true, |said| said.as_ref().and_then(recorded_advantage).is_some());
        return Ok(());
    }
    let said = export.job.conversation(trial)?;
    let member = group_member(trial, said.as_ref());
    let place = group.members.len();
    group.members.push(member.as_ref().map(|(member, _)| *member));
    if let (Some((_, Some(cause))), Some(said)) = (member, &said) {
        group.has_stale_baseline |= recorded_advantage(said).is_some() != choices.includes_errors;
        if !choices.includes_errors {
            *tally.left_out.entry(cause).or_default() += 1;
            return Ok(());
        }
    }
    let samples = match said {
        Some(said) => trial_samples(trial, example, &said).map_err(|error| Lack::of(&error)),
        None => Err(Lack::Conversation),
    };
    match samples {
        Err(lack) => *tally.without.entry(lack).or_default() += 1,
        Ok(samples) if samples.is_empty() => {}
        Ok(samples) => group.samples.push((place, samples)),
    }
    Ok(())
}

/// A file of samples that is being written.
struct Writer {
    path: PathBuf,
    form: Form,
}

enum Form {
    Jsonl(NewFile),
    #[cfg(feature = "parquet")]
    Parquet(Box<rollout::model::samples::ParquetWriter<NewFile>>),
}

impl Writer {
    fn new(export: &Export<'_>, dir: &Path, format: ExportFormat) -> Result<Self, ExportError> {
        let name = match format {
            ExportFormat::Jsonl => "samples.jsonl",
            ExportFormat::Parquet => "samples.parquet",
        };
        let path = export.dir().join(dir).join(name);
        let file = export.file(dir.join(name))?;
        let form = match format {
            #[cfg(feature = "parquet")]
            ExportFormat::Parquet => {
                let writer = rollout::model::samples::ParquetWriter::new(file);
                let failed =
                    |error| ExportError::Write { path: path.clone(), source: io::Error::other(error) };
                Form::Parquet(Box::new(writer.map_err(failed)?))
            }
            _ => Form::Jsonl(file),
        };
        Ok(Self { path, form })
    }

    fn write(&mut self, sample: Sample) -> Result<(), ExportError> {
        let written = match &mut self.form {
            Form::Jsonl(file) => sample.write_jsonl(file),
            #[cfg(feature = "parquet")]
            Form::Parquet(file) => file.write(sample).map_err(io::Error::other),
        };
        written.map_err(|source| ExportError::Write { path: self.path.clone(), source })
    }

    fn end(self) -> Result<NewFile, ExportError> {
        match self.form {
            Form::Jsonl(file) => Ok(file),
            #[cfg(feature = "parquet")]
            Form::Parquet(file) => file
                .finish()
                .map_err(|error| ExportError::Write { path: self.path, source: io::Error::other(error) }),
        }
    }
}

/// The name of the summary file beside the samples.
fn summary_name(format: ExportFormat) -> &'static str {
    match format {
        #[cfg(feature = "parquet")]
        ExportFormat::Parquet => "samples.parquet.summary.json",
        _ => "samples.jsonl.summary.json",
    }
}

const LEFT_OUT_HINT: &str =
    "`rollout resume --rerun error` runs failed rollouts again; `--include-errors` exports them";

/// Why a trial has no samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Lack {
    Benchmark,
    Conversation,
    Trajectory,
    Tokens,
    Alignment,
    Reward,
    Damage,
}

impl Lack {
    fn of(error: &TrialSampleError) -> Self {
        match error {
            TrialSampleError::Benchmark => Self::Benchmark,
            TrialSampleError::NoTrajectory => Self::Trajectory,
            TrialSampleError::Turns(SampleError::NoTokens) => Self::Tokens,
            TrialSampleError::Turns(SampleError::Misaligned { .. }) => Self::Alignment,
            TrialSampleError::NoReward => Self::Reward,
            TrialSampleError::Damaged(_) => Self::Damage,
        }
    }

    fn describe(self, number: u64) -> String {
        match self {
            Self::Benchmark => format!("{} without tokens", count(number, "benchmark answer")),
            Self::Conversation => format!("{} without a recorded conversation", count(number, "trial")),
            Self::Trajectory => format!("{} saved without `trajectory`", count(number, "rollout")),
            Self::Tokens => format!("{} without token ids", count(number, "rollout")),
            Self::Alignment => {
                format!("{} with different numbers of tokens and probabilities", count(number, "rollout"))
            }
            Self::Reward => format!("{} without a reward", count(number, "trial")),
            Self::Damage => format!("{} with an invalid `trajectory`", count(number, "rollout")),
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Self::Benchmark => {
                "benchmarks do not record tokens; run the questions as the interaction of a job, with \
                 `state_columns: [trajectory]` and `token_ids: true` for the model"
            }
            Self::Conversation => "only agents that are models have turns to train on",
            Self::Trajectory => "set `state_columns: [trajectory]` in the interaction, and run the job again",
            Self::Tokens => {
                "set `token_ids: true` for the model, and run the job again; the model's server must return \
                 token ids, as vLLM does"
            }
            Self::Alignment => {
                "the model's server returned more or fewer probabilities than tokens; update the server"
            }
            Self::Reward => "these trials failed; `rollout resume --rerun error` runs them again",
            Self::Damage => "the file of rows may have been edited",
        }
    }
}

/// Counts of exported and omitted rollouts.
#[derive(Debug, Default)]
struct Tally {
    samples: u64,
    tokens: u64,
    sampled: u64,
    rollouts: u64,
    /// Rollouts that failed or timed out, by cause.
    left_out: BTreeMap<String, u64>,
    without: BTreeMap<Lack, u64>,
}

/// The summary file beside the samples.
#[derive(Serialize)]
struct SummaryFile<'a> {
    samples: u64,
    tokens: u64,
    sampled_tokens: u64,
    rollouts: u64,
    include_errors: bool,
    /// The estimator of the advantages: the requested one, or that of the job. Null if a program ran the job, and for
    /// container tasks.
    advantage: Option<Advantage>,
    left_out: &'a BTreeMap<String, u64>,
    without_samples: &'a BTreeMap<Lack, u64>,
}

impl Tally {
    /// Counts the samples of a rollout.
    fn add(&mut self, samples: &[Sample]) {
        self.rollouts += 1;
        self.samples += samples.len() as u64;
        for sample in samples {
            self.tokens += sample.token_ids.len() as u64;
            self.sampled += sample.loss_mask.iter().map(|&mask| u64::from(mask)).sum::<u64>();
        }
    }

    /// Returns why trials have no samples.
    fn reasons(&self) -> impl Iterator<Item = String> {
        self.without.iter().map(|(lack, number)| lack.describe(*number)).chain(self.causes())
    }

    /// Returns the number of omitted rollouts for each cause.
    fn causes(&self) -> impl Iterator<Item = String> {
        self.left_out.iter().map(|(cause, number)| format!("{} ended by {cause}", count(*number, "rollout")))
    }

    /// Writes the summary file.
    fn file(
        &self,
        export: &Export<'_>,
        path: &Path,
        choices: Choices,
        recorded: Option<Recorded>,
    ) -> Result<NewFile, ExportError> {
        let of_job =
            || recorded.filter(|recorded| !recorded.independent_scoring).map(|recorded| recorded.advantage);
        let mut file = export.file(path)?;
        let summary = SummaryFile {
            samples: self.samples,
            tokens: self.tokens,
            sampled_tokens: self.sampled,
            rollouts: self.rollouts,
            include_errors: choices.includes_errors,
            advantage: choices.advantage.or_else(of_job),
            left_out: &self.left_out,
            without_samples: &self.without,
        };
        let written = serde_json::to_writer_pretty(&mut file, &summary).map_err(io::Error::from);
        let written = written.and_then(|()| io::Write::write_all(&mut file, b"\n"));
        written.map_err(|source| ExportError::Write { path: export.dir().join(path), source })?;
        Ok(file)
    }

    fn hint(&self) -> Option<&'static str> {
        // The most useful hint is about a setting, then about failed trials, then about agents that are not models.
        let priority = |lack: Lack| match lack {
            Lack::Conversation => 0,
            Lack::Reward => 1,
            Lack::Benchmark | Lack::Trajectory | Lack::Tokens | Lack::Alignment | Lack::Damage => 2,
        };
        match self.without.iter().max_by_key(|(lack, number)| (priority(**lack), **number)) {
            Some((lack, _)) if self.left_out.is_empty() || priority(*lack) == 2 => Some(lack.hint()),
            _ => (!self.left_out.is_empty()).then_some(LEFT_OUT_HINT),
        }
    }

    fn render(&self, target: &Path) -> String {
        let mut text = format!(
            "{}: {} with {}, {} of them sampled, from {}",
            target.display(),
            count(self.samples, "sample"),
            count(self.tokens, "token"),
            self.sampled,
            count(self.rollouts, "rollout"),
        );
        for cause in self.causes() {
            text.push_str(&format!("\nleft out: {cause}; {}", paint(DIM, LEFT_OUT_HINT)));
        }
        for (lack, number) in &self.without {
            text.push_str(&format!("\nleft out: {}; {}", lack.describe(*number), paint(DIM, lack.hint())));
        }
        text
    }
}
