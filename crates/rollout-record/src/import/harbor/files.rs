//! Copies the files of a trial of Harbor to their places in a trial directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::ImportError;

/// Where the directories of a trial or a step go. Harbor's own files go to `harbor/`.
const PLACES: [(&str, &str); 4] = [
    ("agent", "logs/agent"),
    ("verifier", "logs/verifier"),
    ("artifacts", "artifacts"),
    ("user-agent", "logs/user-agent"),
];

/// The output of the tests, in Harbor and here.
const OUTPUT: [(&str, &str); 2] = [("test-stdout.txt", "stdout.txt"), ("test-stderr.txt", "stderr.txt")];

/// Directories below this depth are not copied: paths would be too long.
const MAX_DEPTH: usize = 64;

/// Copies the files of a trial. What is neither a file nor a directory is left out, with a warning.
pub(super) fn copy(
    from: &Path,
    to: &Path,
    name: &Path,
    warnings: &mut Vec<String>,
) -> Result<(), ImportError> {
    make(to)?;
    let mut left_out = 0;
    for entry in entries(from)? {
        let (source, file) = (entry.path(), entry.file_name());
        let file = file.to_string_lossy();
        match PLACES.iter().find(|(harbor, _)| *harbor == file) {
            Some((_, place)) => tree(&source, &to.join(place), 0, &mut left_out)?,
            None if file == "steps" => steps(&source, &to.join("steps"), &mut left_out)?,
            None => tree(&source, &to.join("harbor").join(&*file), 0, &mut left_out)?,
        }
    }
    rename_output(&to.join("logs/verifier"))?;
    if left_out > 0 {
        warnings.push(format!("trial {}: {left_out} links or special files are left out", name.display()));
    }
    Ok(())
}

/// Copies the files of a job that belong to no trial.
pub(super) fn copy_job(from: &Path, to: &Path, warnings: &mut Vec<String>) -> Result<(), ImportError> {
    let mut left_out = 0;
    for entry in entries(from)? {
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            tree(&entry.path(), &to.join("harbor").join(entry.file_name()), 0, &mut left_out)?;
        }
    }
    if left_out > 0 {
        warnings.push(format!("{left_out} links or special files of the job are left out"));
    }
    Ok(())
}

fn steps(from: &Path, to: &Path, left_out: &mut u64) -> Result<(), ImportError> {
    for step in entries(from)? {
        let target = to.join(step.file_name());
        for entry in entries(&step.path())? {
            let file = entry.file_name();
            let known = PLACES.iter().find(|(harbor, _)| *harbor == file.to_string_lossy());
            let place = known.map_or_else(|| PathBuf::from(&file), |(_, place)| PathBuf::from(place));
            tree(&entry.path(), &target.join(place), 0, left_out)?;
        }
        rename_output(&target.join("logs/verifier"))?;
    }
    Ok(())
}

fn rename_output(dir: &Path) -> Result<(), ImportError> {
    for (harbor, own) in OUTPUT {
        let (from, to) = (dir.join(harbor), dir.join(own));
        if from.is_file() && !to.exists() {
            fs::rename(&from, &to).map_err(|source| ImportError::Write { path: to, source })?;
        }
    }
    Ok(())
}

/// Copies a file or a directory, without following links.
fn tree(from: &Path, to: &Path, depth: usize, left_out: &mut u64) -> Result<(), ImportError> {
    let read = |source| ImportError::Read { path: from.to_owned(), source };
    let kind = fs::symlink_metadata(from).map_err(read)?.file_type();
    if kind.is_dir() && depth < MAX_DEPTH {
        make(to)?;
        for entry in entries(from)? {
            tree(&entry.path(), &to.join(entry.file_name()), depth + 1, left_out)?;
        }
    } else if kind.is_file() {
        make(to.parent().unwrap_or(to))?;
        fs::copy(from, to).map_err(read)?;
    } else {
        *left_out += 1;
    }
    Ok(())
}

fn make(dir: &Path) -> Result<(), ImportError> {
    fs::create_dir_all(dir).map_err(|source| ImportError::Write { path: dir.to_owned(), source })
}

/// The entries of a directory; none if it is not one.
fn entries(dir: &Path) -> Result<Vec<fs::DirEntry>, ImportError> {
    let read = |source| ImportError::Read { path: dir.to_owned(), source };
    if !fs::symlink_metadata(dir).map_err(read)?.is_dir() {
        return Ok(Vec::new());
    }
    fs::read_dir(dir).and_then(Iterator::collect::<io::Result<_>>).map_err(read)
}
