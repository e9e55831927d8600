//! Moves rows of a job that had one pair of agent and dataset, and gets another.
//!
//! The rows of a single pair are in the job's own directory, and those of several in a directory per pair. They are
//! linked to the new location before the journal has the larger job, and removed from the old one after. So the job
//! finds all its rows after a crash at any point.

use std::{fs, io, path::Path};

use super::{JobError, Plan, PlanTask};
use rollout_record::{journal::Header, layout::JobDir, rows};

/// The files of a pair of agent and dataset.
const FILES: [&str; 2] = [rows::OUTPUTS, rows::METADATA];

/// Links rows in the job's own directory to the location for the larger job.
pub(super) fn link(dir: &JobDir, before: &Header, now: &Header) -> Result<(), JobError> {
    let Some((agent, dataset)) = only_pair(before) else { return Ok(()) };
    if only_pair(now).is_some() {
        return Ok(());
    }
    let to = dir.path().join(agent).join(dataset);
    for file in FILES {
        let (from, to) = (dir.path().join(file), to.join(file));
        if from.is_file() {
            linked(&from, &to).map_err(|source| JobError::Rows { path: to, source })?;
        }
    }
    Ok(())
}

/// Removes rows from the old location if they exist at the new one.
pub(super) fn remove_from_root(dir: &JobDir, plan: &Plan) -> Result<(), JobError> {
    let mut datasets = plan.tasks.iter().map(PlanTask::dataset);
    let first = datasets.next();
    if plan.agents.len() == 1 && datasets.all(|dataset| Some(dataset) == first) {
        return Ok(());
    }
    for path in FILES.map(|file| dir.path().join(file)) {
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(JobError::Rows { path, source });
            }
            _ => {}
        }
    }
    Ok(())
}

fn linked(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Not every file system supports links.
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))?;
    fs::File::open(to)?.sync_all()
}

/// The agent and the dataset of a job, if it has only one of each.
fn only_pair(header: &Header) -> Option<(&str, &str)> {
    let first = header.tasks.first()?;
    let alone = header.agents.len() == 1 && header.tasks.iter().all(|task| task.dataset == first.dataset);
    alone.then_some((header.agents.first()?.as_str(), first.dataset.as_str()))
}
