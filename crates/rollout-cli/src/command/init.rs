//! `rollout init`: creates a job or a task that is ready to run and easy to change.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use rollout::name::{NameError, TaskName};

use crate::{
    args::{Init, InitKind},
    exit::{Exit, Failure},
    report::shown,
};

/// The files of a task, by their path in it.
const TASK: [(&str, &str); 5] = [
    ("instruction.md", include_str!("../../templates/task/instruction.md")),
    ("task.toml", include_str!("../../templates/task/task.toml")),
    ("environment/Dockerfile", include_str!("../../templates/task/environment/Dockerfile")),
    ("solution/solve.sh", include_str!("../../templates/task/solution/solve.sh")),
    ("tests/test.sh", include_str!("../../templates/task/tests/test.sh")),
];

const JOB: &str = include_str!("../../templates/job/job.yaml");

/// Why `init` failed.
#[derive(Debug, thiserror::Error)]
enum InitError {
    #[error("{} already exists", .0.display())]
    Exists(PathBuf),
    #[error("{} is not a valid task name", .0.display())]
    Name(PathBuf, #[source] NameError),
    #[error("cannot write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
}

/// Writes the files, and prints the next steps.
pub(crate) fn run(args: &Init) -> Result<Exit, Failure> {
    let made = match args.kind {
        InitKind::Job => job(&args.name),
        InitKind::Task => task(&args.name),
    };
    let next = made.map_err(|error| {
        let exists = matches!(error, InitError::Exists(_));
        Failure::from(error).hint(exists.then_some("choose another name, or remove it first"))
    })?;
    super::print(&next)?;
    Ok(Exit::Success)
}

fn job(dir: &Path) -> Result<String, InitError> {
    claim(dir)?;
    write(&dir.join("job.yaml"), JOB)?;
    write_task(&dir.join("tasks/hello"))?;
    let place = |path: &str| shown(&dir.join(path)).display().to_string();
    let (job, tasks) = (place("job.yaml"), place("tasks"));
    Ok(format!(
        "created {job} and {tasks}/hello\n\nrun it      rollout {job}\nadd a task  rollout init task {tasks}/<name>"
    ))
}

fn task(dir: &Path) -> Result<String, InitError> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    TaskName::new(name).map_err(|error| InitError::Name(dir.to_owned(), error))?;
    claim(dir)?;
    write_task(dir)?;
    Ok(format!(
        "created the task {0}\n\nedit the instruction  {0}/instruction.md\nedit the tests        {0}/tests/test.sh\ncheck the task        rollout validate {0}",
        shown(dir).display(),
    ))
}

/// Creates the directory, or checks that it is empty, so that nothing is overwritten.
fn claim(dir: &Path) -> Result<(), InitError> {
    let failed = |error| InitError::Write(dir.to_owned(), error);
    match fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Err(InitError::Exists(dir.to_owned())),
            None => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(dir).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(InitError::Exists(dir.to_owned())),
        Err(error) => Err(failed(error)),
    }
}

fn write_task(dir: &Path) -> Result<(), InitError> {
    TASK.iter().try_for_each(|(path, text)| write(&dir.join(path), text))
}

fn write(path: &Path, text: &str) -> Result<(), InitError> {
    let failed = |error| InitError::Write(path.to_owned(), error);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)?;
    if path.extension().is_some_and(|extension| extension == "sh") {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    Ok(())
}
