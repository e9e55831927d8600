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

/// An eval log could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum EvalLogError {
    /// A file or directory could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file holds no record.
    #[error("{} is no record of an eval log", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An episode has no place among the files.
    #[error("the trajectory id {0:?} cannot be the name of a directory")]
    TrajectoryId(String),
}

/// An experiment with its episodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalLog {
    /// What the episodes share.
    pub experiment: ExperimentRecord,
    /// The episodes.
    #[serde(default)]
    pub episodes: Vec<EpisodeRecord>,
}

impl EvalLog {
    /// Writes all records into a directory. Those of episodes that were there already are replaced.
    pub fn save(&self, output_dir: &Path) -> Result<(), EvalLogError> {
        self.experiment.save(output_dir)?;
        self.episodes.iter().try_for_each(|episode| episode.save(output_dir))
    }

    /// Reads all records of a directory into memory; [`Episodes`] reads them one by one.
    pub fn load(output_dir: &Path) -> Result<Self, EvalLogError> {
        Ok(Self {
            experiment: ExperimentRecord::load(output_dir)?,
            episodes: Episodes::read(output_dir)?.collect::<Result<_, _>>()?,
        })
    }

    /// Writes the episodes into one file, a line for each.
    pub fn to_jsonl(&self, path: &Path) -> Result<(), EvalLogError> {
        write_lines(path, self.episodes.iter().map(Ok)).map(drop)
    }
}

impl ExperimentRecord {
    /// Writes the record into a directory, which is made if it is not there.
    pub fn save(&self, output_dir: &Path) -> Result<(), EvalLogError> {
        self.save_as(output_dir, RecordDialect::Document)
    }

    /// Writes the record with these names for its fields.
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
    /// Writes the record to its place in a directory. One of the same trajectory that was there is replaced.
    pub fn save(&self, output_dir: &Path) -> Result<(), EvalLogError> {
        self.save_as(output_dir, RecordDialect::Document).map(drop)
    }

    /// Writes the record with these names for its fields. Returns whether these names can hold it: those of
    /// cube-harness have no place for an episode that was not scored, and one that was there is removed.
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

/// Where the record of a trajectory is.
fn episode_file(output_dir: &Path, trajectory_id: &str) -> Result<PathBuf, EvalLogError> {
    let mut components = Path::new(trajectory_id).components();
    match (components.next(), components.next()) {
        // Not only one component, but all of the text: a separator at its end would be dropped.
        (Some(Component::Normal(name)), None) if name == trajectory_id => {
            Ok(output_dir.join(EPISODES).join(trajectory_id).join(EPISODE))
        }
        _ => Err(EvalLogError::TrajectoryId(trajectory_id.to_owned())),
    }
}

/// Reads the episodes of a directory one by one, in the order of the names of their directories.
///
/// Of all episodes only the names are kept in memory.
#[derive(Debug)]
pub struct Episodes {
    dir: PathBuf,
    names: vec::IntoIter<OsString>,
}

impl Episodes {
    /// Lists the episodes. A directory without any is fine.
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

    /// Writes the remaining episodes into one file, a line for each, and tells how many there were.
    pub fn to_jsonl(self, path: &Path) -> Result<u64, EvalLogError> {
        self.to_jsonl_as(path, RecordDialect::Document)
    }

    /// Writes the remaining episodes into one file, with these names for their fields, as far as they can hold them.
    pub fn to_jsonl_as(self, path: &Path, dialect: RecordDialect) -> Result<u64, EvalLogError> {
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
                // Episodes that are not over have directories too, and other files may lie between them.
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
