//! The files of an eval log.

use std::{
    ffi::OsString,
    fs, io,
    path::{Component, Path, PathBuf},
    vec,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{EpisodeRecord, ExperimentRecord, RecordDialect, dialect};
use crate::atomic::{self, WriteError};
use rollout_core::python_json::PythonJson;

const EXPERIMENT: &str = "experiment_record.json";
const EPISODES: &str = "episodes";
const EPISODE: &str = "episode_record.json";

/// Why an eval log cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum EvalLogError {
    /// A file or directory could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not a valid record.
    #[error("{} is not a valid eval log record", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The id of an episode is not a valid directory name.
    #[error("the trajectory id {0:?} is not a valid directory name")]
    TrajectoryId(String),
}

/// An experiment with its episodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalLog {
    /// The record of the experiment.
    pub experiment: ExperimentRecord,
    /// The episodes.
    #[serde(default)]
    pub episodes: Vec<EpisodeRecord>,
}

impl EvalLog {
    /// Writes all records to a directory. Existing records of the same episodes are replaced.
    pub fn save(&self, output_dir: &Path) -> Result<(), EvalLogError> {
        self.experiment.save(output_dir)?;
        self.episodes.iter().try_for_each(|episode| episode.save(output_dir))
    }

    /// Reads all records of a directory into memory. [`Episodes`] reads them one by one.
    pub fn load(output_dir: &Path) -> Result<Self, EvalLogError> {
        Ok(Self {
            experiment: ExperimentRecord::load(output_dir)?,
            episodes: Episodes::read(output_dir)?.collect::<Result<_, _>>()?,
        })
    }

    /// Writes the episodes to one file, one per line.
    pub fn to_jsonl(&self, path: &Path) -> Result<(), EvalLogError> {
        write_lines(path, self.episodes.iter().map(Ok)).map(drop)
    }
}

impl ExperimentRecord {
    /// Writes the record to a directory, which is created if it is missing.
    pub fn save(&self, output_dir: &Path) -> Result<(), EvalLogError> {
        self.save_as(output_dir, RecordDialect::Document)
    }

    /// Writes the record with these field names.
    pub fn save_as(&self, output_dir: &Path, dialect: RecordDialect) -> Result<(), EvalLogError> {
        let path = output_dir.join(EXPERIMENT);
        match dialect {
            RecordDialect::Document => write_record(&path, self),
            RecordDialect::CubeHarness => write_record(&path, &dialect::experiment(self)),
        }
    }

    /// Reads the record of a directory.
    pub fn load(output_dir: &Path) -> Result<Self, EvalLogError> {
        read_record(&output_dir.join(EXPERIMENT))
    }
}

impl EpisodeRecord {
    /// Writes the record to a directory. An existing record of the same trajectory is replaced.
    pub fn save(&self, output_dir: &Path) -> Result<(), EvalLogError> {
        self.save_as(output_dir, RecordDialect::Document).map(drop)
    }

    /// Writes the record with these field names. Returns whether it was written: cube-harness does not support unscored
    /// episodes, so an existing record of such an episode is removed.
    pub fn save_as(&self, output_dir: &Path, dialect: RecordDialect) -> Result<bool, EvalLogError> {
        let path = episode_file(output_dir, &self.trajectory_id)?;
        match dialect {
            RecordDialect::Document => write_record(&path, self)?,
            RecordDialect::CubeHarness => match dialect::episode(self) {
                Some(record) => write_record(&path, &record)?,
                None => return remove_record(path).map(|()| false),
            },
        }
        Ok(true)
    }

    /// Reads the record of one trajectory in a directory.
    pub fn load(output_dir: &Path, trajectory_id: &str) -> Result<Self, EvalLogError> {
        read_record(&episode_file(output_dir, trajectory_id)?)
    }
}

/// Returns the path of a trajectory's record.
fn episode_file(output_dir: &Path, trajectory_id: &str) -> Result<PathBuf, EvalLogError> {
    let mut components = Path::new(trajectory_id).components();
    match (components.next(), components.next()) {
        // The whole text must be one component: `Path` would drop a separator at the end.
        (Some(Component::Normal(name)), None) if name == trajectory_id => {
            Ok(output_dir.join(EPISODES).join(trajectory_id).join(EPISODE))
        }
        _ => Err(EvalLogError::TrajectoryId(trajectory_id.to_owned())),
    }
}

/// Reads the episodes of a directory one by one, sorted by the names of their directories.
///
/// Only the names of all episodes are kept in memory.
#[derive(Debug)]
pub struct Episodes {
    dir: PathBuf,
    names: vec::IntoIter<OsString>,
}

impl Episodes {
    /// Lists the episodes. A directory without episodes is not an error.
    pub fn read(output_dir: &Path) -> Result<Self, EvalLogError> {
        let dir = output_dir.join(EPISODES);
        let list = || -> io::Result<Vec<OsString>> {
            let entries = match fs::read_dir(&dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                entries => entries?,
            };
            entries.map(|entry| Ok(entry?.file_name())).collect()
        };
        let mut names = list().map_err(|source| EvalLogError::Read { path: dir.clone(), source })?;
        names.sort_unstable();
        Ok(Self { dir, names: names.into_iter() })
    }

    /// Writes the remaining episodes to one file, one per line, and returns their number.
    pub fn to_jsonl(self, path: &Path) -> Result<u64, EvalLogError> {
        self.write_jsonl_as(path, RecordDialect::Document)
    }

    /// Writes the remaining episodes to one file with these field names. Unsupported episodes are skipped.
    pub(crate) fn write_jsonl_as(self, path: &Path, dialect: RecordDialect) -> Result<u64, EvalLogError> {
        match dialect {
            RecordDialect::Document => write_lines(path, self),
            RecordDialect::CubeHarness => write_lines(
                path,
                self.filter_map(|record| record.map(|record| dialect::episode(&record)).transpose()),
            ),
        }
    }
}

impl Iterator for Episodes {
    type Item = Result<EpisodeRecord, EvalLogError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match read_record(&self.dir.join(self.names.next()?).join(EPISODE)) {
                // Unfinished episodes have directories too, and there may be other files.
                Err(EvalLogError::Read { source, .. })
                    if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                record => return Some(record),
            }
        }
    }
}

fn read_record<T: DeserializeOwned>(path: &Path) -> Result<T, EvalLogError> {
    let text = fs::read(path).map_err(|source| EvalLogError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| EvalLogError::Record { path: path.to_owned(), source })
}

fn remove_record(path: PathBuf) -> Result<(), EvalLogError> {
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(EvalLogError::Write(WriteError { path, source }))
        }
        _ => Ok(()),
    }
}

fn write_record(path: &Path, record: &impl Serialize) -> Result<(), EvalLogError> {
    make_parent(path)?;
    Ok(atomic::write(path, |file| {
        PythonJson::pretty().write(&mut *file, record)?;
        file.write_all(b"\n")
    })?)
}

fn write_lines<T: Serialize>(
    path: &Path,
    episodes: impl Iterator<Item = Result<T, EvalLogError>>,
) -> Result<u64, EvalLogError> {
    make_parent(path)?;
    let mut written = 0;
    let mut unread = None;
    let result = atomic::write(path, |file| {
        for episode in episodes {
            let episode = episode.map_err(|error| {
                unread = Some(error);
                io::Error::other("an episode cannot be read")
            })?;
            PythonJson::compact().write(&mut *file, &episode)?;
            file.write_all(b"\n")?;
            written += 1;
        }
        Ok(())
    });
    match unread {
        Some(error) => Err(error),
        None => Ok(result.map(|()| written)?),
    }
}

fn make_parent(path: &Path) -> Result<(), EvalLogError> {
    let Some(parent) = path.parent() else { return Ok(()) };
    fs::create_dir_all(parent)
        .map_err(|source| EvalLogError::Write(WriteError { path: parent.to_owned(), source }))
}
