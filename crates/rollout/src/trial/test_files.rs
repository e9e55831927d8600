//! The tests of a step on the host: one directory, or several laid over each other.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::{context::TrialContext, failure::Failure};
use rollout_core::result::ErrorType;
use rollout_env::blocking::blocking;

/// A directory with the tests of a step.
pub(super) enum TestFiles {
    /// A directory of the task.
    Own(PathBuf),
    /// Several directories of the task, one over the other.
    Merged(TempDir),
}

impl TestFiles {
    /// Finds the tests of a step, or lays them together.
    pub(super) async fn open(context: &TrialContext<'_>) -> Result<Self, Failure> {
        let dirs = match context.step.tests.as_slice() {
            [only] => return Ok(Self::Own(only.clone())),
            dirs => dirs.to_vec(),
        };
        let merged = blocking(move || {
            let merged = tempfile::tempdir()?;
            for dir in dirs {
                lay_over(&dir, merged.path())?;
            }
            Ok(merged)
        });
        merged.await.map(Self::Merged).map_err(|error| {
            Failure::new(
                ErrorType::InternalError,
                format!("cannot combine the tests of the task and the step: {error}"),
            )
        })
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Own(path) => path,
            Self::Merged(dir) => dir.path(),
        }
    }
}

/// Copies a directory over another one. Files replace those with the same name.
fn lay_over(source: &Path, target: &Path) -> io::Result<()> {
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        let kind = entry.file_type()?;
        match fs::symlink_metadata(&to) {
            Ok(found) if found.is_dir() && kind.is_dir() => {}
            Ok(found) if found.is_dir() => fs::remove_dir_all(&to)?,
            Ok(_) => fs::remove_file(&to)?,
            Err(_) => {}
        }
        if kind.is_dir() {
            fs::create_dir_all(&to)?;
            lay_over(&from, &to)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
        } else {
            fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_later_directory_replace_those_before() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [shared, step, merged] = dirs.each_ref().map(TempDir::path);
        fs::create_dir_all(shared.join("data")).unwrap();
        fs::create_dir_all(step.join("data")).unwrap();
        for (path, text) in [("test.sh", "shared"), ("data/a", "a"), ("data/b", "b")] {
            fs::write(shared.join(path), text).unwrap();
        }
        fs::write(step.join("test.sh"), "step").unwrap();
        fs::write(step.join("data/b"), "other").unwrap();
        lay_over(shared, merged).unwrap();
        lay_over(step, merged).unwrap();
        let text = |path: &str| fs::read_to_string(merged.join(path)).unwrap();
        assert_eq!([text("test.sh"), text("data/a"), text("data/b")], ["step", "a", "other"]);
    }
}
