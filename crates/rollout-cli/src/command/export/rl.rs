//! `rollout export rl`: training samples, made of the turns of a model.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufReader, BufWriter},
    path::{Path, PathBuf},
};

use rollout::model::samples::{ReadError, Sample, SampleError, SampleReader};
use tempfile::NamedTempFile;

use crate::{
    args::{ExportFormat, ExportRl},
    exit::{Exit, Failure},
    report::text::{DIM, count, paint},
};

/// Names that rows have: Rollout's own, and that of programs whose directories it can continue.
const ROWS: [&str; 2] = ["outputs.jsonl", "results.jsonl"];

/// Why nothing can be exported.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("cannot look into the job directory {}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("{} has no outputs.jsonl, so it has no rollouts of a model", .0.display())]
    NoRows(PathBuf),
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{} exists, and results are never overwritten", .0.display())]
    Exists(PathBuf),
    #[error("{} gives no training samples: {reasons}", path.display())]
    NoSamples { path: PathBuf, reasons: String },
    #[cfg(not(feature = "parquet"))]
    #[error("this build of Rollout cannot write Parquet")]
    NoParquet,
}

/// Makes samples of the rollouts of a job.
pub(super) fn run(args: &ExportRl) -> Result<Exit, Failure> {
    #[cfg(not(feature = "parquet"))]
    if args.format == ExportFormat::Parquet {
        return Err(no_parquet("export as jsonl, which every library for data reads too"));
    }
    let sections = sections(&args.from.directory)?;
    let name = match args.format {
        ExportFormat::Jsonl => "samples.jsonl",
        ExportFormat::Parquet => "samples.parquet",
    };
    let targets: Vec<PathBuf> =
        sections.iter().map(|section| args.from.out.join(section).join(name)).collect();
    if let Some(taken) = targets.iter().find(|target| target.exists()) {
        let hint = "give another directory, or remove the file";
        return Err(Failure::from(ExportError::Exists(taken.clone())).hint(Some(hint)));
    }
    for (section, target) in sections.iter().zip(&targets) {
        let rows = rows_file(&args.from.directory.join(section)).expect("a section is where rows are");
        let tally = export(&rows, target, args.format)?;
        super::super::print(&tally.render(target))?;
    }
    Ok(Exit::Success)
}

/// A build without Parquet was asked for it.
#[cfg(not(feature = "parquet"))]
pub(super) fn no_parquet(instead: &str) -> Failure {
    let hint =
        format!("build it with `cargo install --path crates/rollout-cli --features parquet`, or {instead}");
    Failure::from(ExportError::NoParquet).hint(Some(&hint))
}

/// Where rows are below a job directory, relative to it: in itself, or for each agent and dataset.
fn sections(job: &Path) -> Result<Vec<PathBuf>, ExportError> {
    let failed = |source| ExportError::Directory { path: job.to_owned(), source };
    fs::read_dir(job).map_err(failed)?;
    if rows_file(job).is_some() {
        return Ok(vec![PathBuf::new()]);
    }
    let mut sections = Vec::new();
    for agent in directories(job).map_err(failed)? {
        for dataset in directories(&job.join(&agent)).map_err(failed)? {
            let section = Path::new(&agent).join(dataset);
            if rows_file(&job.join(&section)).is_some() {
                sections.push(section);
            }
        }
    }
    if sections.is_empty() { Err(ExportError::NoRows(job.to_owned())) } else { Ok(sections) }
}

/// The names of the directories in one, in order. Links are left out: they lead elsewhere.
fn directories(path: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name());
        }
    }
    names.sort();
    Ok(names)
}

fn rows_file(section: &Path) -> Option<PathBuf> {
    let is_file = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.is_file());
    ROWS.iter().map(|name| section.join(name)).find(is_file)
}

/// Writes the samples of one file of rows. Nothing is left behind unless all of it worked.
fn export(rows: &Path, target: &Path, format: ExportFormat) -> Result<Tally, Failure> {
    let read = |source| ExportError::Read { path: rows.to_owned(), source };
    let write = |source| ExportError::Write { path: target.to_owned(), source };
    let dir = target.parent().expect("a file is in a directory");
    fs::create_dir_all(dir).map_err(write)?;
    let file = NamedTempFile::new_in(dir).map_err(write)?;
    let mut tally = Tally::default();
    let mut samples = Writer::new(file, format).map_err(write)?;
    for sample in SampleReader::new(BufReader::with_capacity(1 << 16, File::open(rows).map_err(read)?)) {
        match sample {
            Ok(sample) => {
                tally.sample(&sample);
                samples.write(sample).map_err(write)?;
            }
            Err(ReadError::Io { source, .. }) => return Err(read(source).into()),
            Err(error) => tally.without(&error),
        }
    }
    let file = samples.finish().map_err(write)?;
    if tally.samples == 0 {
        let hint = tally.hint();
        let error = ExportError::NoSamples { path: rows.to_owned(), reasons: tally.reasons() };
        return Err(Failure::from(error).hint(hint));
    }
    file.as_file().sync_all().map_err(write)?;
    file.persist_noclobber(target).map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => ExportError::Exists(target.to_owned()),
        _ => write(error.error),
    })?;
    Ok(tally)
}

/// A file of samples that is being written.
enum Writer {
    Jsonl(BufWriter<NamedTempFile>),
    #[cfg(feature = "parquet")]
    Parquet(rollout::model::samples::ParquetWriter<NamedTempFile>),
}

impl Writer {
    fn new(file: NamedTempFile, format: ExportFormat) -> io::Result<Self> {
        match format {
            #[cfg(feature = "parquet")]
            ExportFormat::Parquet => {
                rollout::model::samples::ParquetWriter::new(file).map(Self::Parquet).map_err(io::Error::other)
            }
            _ => Ok(Self::Jsonl(BufWriter::with_capacity(1 << 16, file))),
        }
    }

    fn write(&mut self, sample: Sample) -> io::Result<()> {
        match self {
            Self::Jsonl(file) => sample.write_jsonl(file),
            #[cfg(feature = "parquet")]
            Self::Parquet(file) => file.write(sample).map_err(io::Error::other),
        }
    }

    fn finish(self) -> io::Result<NamedTempFile> {
        match self {
            Self::Jsonl(file) => file.into_inner().map_err(io::IntoInnerError::into_error),
            #[cfg(feature = "parquet")]
            Self::Parquet(file) => file.finish().map_err(io::Error::other),
        }
    }
}

/// Why a row gave no samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lack {
    Benchmark,
    Trajectory,
    Tokens,
    Alignment,
    Row,
}

impl Lack {
    fn of(error: &ReadError) -> Self {
        match error {
            ReadError::Benchmark { .. } => Self::Benchmark,
            ReadError::NoTrajectory { .. } => Self::Trajectory,
            ReadError::NoSamples { source: SampleError::NoTokens, .. } => Self::Tokens,
            ReadError::NoSamples { source: SampleError::Misaligned { .. }, .. } => Self::Alignment,
            ReadError::NotARow { .. } | ReadError::Io { .. } => Self::Row,
        }
    }

    fn told(self, number: u64) -> String {
        match self {
            Self::Benchmark => format!("{} of a benchmark, without tokens", count(number, "answer")),
            Self::Trajectory => format!("{} saved without `trajectory`", count(number, "rollout")),
            Self::Tokens => format!("{} without token ids", count(number, "rollout")),
            Self::Alignment => {
                format!("{} whose tokens and probabilities do not belong together", count(number, "rollout"))
            }
            Self::Row => format!("{} without a rollout", count(number, "line")),
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Self::Benchmark => {
                "run the questions as the interaction of a job, with `state_columns: [trajectory]` and \
                 `token_ids: true` for the model: benchmarks keep conversations, not tokens"
            }
            Self::Trajectory => {
                "set `state_columns: [trajectory]` in the interaction, and run the job again: turns that were \
                 not saved cannot be made up"
            }
            Self::Tokens => {
                "set `token_ids: true` for the model, whose server has to give token ids (vLLM does), and run \
                 the job again"
            }
            Self::Alignment => {
                "the server of the model gave more or fewer probabilities than tokens; update it"
            }
            Self::Row => "look at the file: it may be cut off or of another program",
        }
    }
}

/// What was exported, and what could not be.
#[derive(Debug, Default)]
struct Tally {
    samples: u64,
    tokens: u64,
    sampled: u64,
    rollouts: u64,
    last: Option<(u64, std::sync::Arc<str>)>,
    without: BTreeMap<Lack, u64>,
}

impl Tally {
    fn sample(&mut self, sample: &Sample) {
        self.samples += 1;
        self.tokens += sample.token_ids.len() as u64;
        self.sampled += sample.loss_mask.iter().map(|&mask| u64::from(mask)).sum::<u64>();
        // The samples of a rollout follow each other.
        let rollout = (sample.example_id, std::sync::Arc::clone(&sample.trajectory_id));
        if self.last.as_ref() != Some(&rollout) {
            self.rollouts += 1;
            self.last = Some(rollout);
        }
    }

    fn without(&mut self, error: &ReadError) {
        *self.without.entry(Lack::of(error)).or_default() += 1;
    }

    fn reasons(&self) -> String {
        if self.without.is_empty() {
            return "it has no turns".to_owned();
        }
        self.without.iter().map(|(lack, number)| lack.told(*number)).collect::<Vec<_>>().join(", ")
    }

    fn hint(&self) -> Option<&'static str> {
        let (lack, _) = self.without.iter().max_by_key(|(_, number)| **number)?;
        Some(lack.hint())
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
        for (lack, number) in &self.without {
            text.push_str(&format!("\nleft out: {}; {}", lack.told(*number), paint(DIM, lack.hint())));
        }
        text
    }
}
