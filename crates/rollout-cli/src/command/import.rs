//! `rollout import`: converts a job directory of another program.

use std::io::Write as _;

use rollout::{
    import::harbor::{self, ImportError},
    name::JobName,
};
use serde_json::json;

use crate::{
    args::{Answer, ImportHarbor},
    exit::{Exit, Failure, hinted},
    report::text::{ODD, count, first_line, paint},
};

/// Imports a job directory of Harbor.
pub(crate) fn harbor(args: &ImportHarbor) -> Result<Exit, Failure> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => {
            let path = args.directory.canonicalize().map_err(|error| {
                Failure::from(format!("cannot read {}: {error}", args.directory.display()))
            })?;
            path.file_name().unwrap_or_default().to_string_lossy().into_owned()
        }
    };
    let name = JobName::new(&name)?;
    std::fs::create_dir_all(&args.jobs_dir)?;
    let target = args.jobs_dir.join(name.as_str());
    let imported = harbor::import(&args.directory, &target).map_err(hinted(ImportError::hint))?;
    for warning in &imported.warnings {
        writeln!(anstream::stderr().lock(), "{} {}", paint(ODD, "warning:"), first_line(warning))?;
    }
    let directory = imported.directory.display().to_string();
    super::print(&match args.output {
        Answer::Human => format!("imported {} to {directory}", count(imported.trials, "trial")),
        Answer::Json => {
            json!({"directory": directory, "trials": imported.trials, "warnings": imported.warnings})
                .to_string()
        }
    })?;
    Ok(Exit::Success)
}
