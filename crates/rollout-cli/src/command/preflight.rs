//! The checks of a plan before its first trial, which `run`, its dry run, `validate` and `resume` share.

use std::{io::Write as _, path::Path, sync::Arc};

use rollout::{
    config::JobConfig,
    environment::Provider,
    job::{AddedTrials, Plan},
    preflight::{self, Finding, Preflight},
};

use super::warnings::{findings, line};
use crate::{
    disk,
    exit::Failure,
    report::text::{ODD, paint},
    state::state_dir,
};

/// What was found before the first trial.
#[derive(Debug)]
pub(crate) struct Checked {
    /// The problems of images, scripts and settings.
    pub(crate) found: Preflight,
    /// The model servers that do not answer. They may answer when a trial needs them.
    pub(crate) unreachable: Vec<Finding>,
}

impl Checked {
    /// Renders all findings, as errors or as warnings.
    pub(crate) fn render(&self, certain: bool) -> Vec<String> {
        findings(&self.all(), certain)
    }

    fn all(&self) -> Vec<Finding> {
        self.found.findings.iter().chain(&self.unreachable).cloned().collect()
    }

    /// Refuses to start `trials`, such as "trial", if none of them can succeed.
    pub(crate) fn refuse_if_hopeless(&self, trials: &str, provider: &dyn Provider) -> Result<(), Failure> {
        if !self.found.hopeless {
            return Ok(());
        }
        // The notes explain the choice of the provider.
        let notes = provider.notes().into_iter().map(|note| line(provider.name(), &note));
        let details: Vec<_> = notes.chain(self.render(true)).collect();
        let failure = Failure::from(format!("no {trials} can succeed, so nothing was started"));
        Err(failure.details(details.join("\n")))
    }
}

/// Checks what the trials of a plan need: images, scripts and model servers. If only some trials are new, only those
/// are checked.
pub(crate) async fn check(
    plan: Plan,
    added: Option<AddedTrials>,
    provider: Option<Arc<dyn Provider>>,
) -> Result<(Plan, Checked), Failure> {
    let config = Arc::clone(plan.config());
    let looked = tokio::task::spawn_blocking(move || {
        let found = match &added {
            None => preflight::check(&plan, provider.as_deref()),
            Some(added) => preflight::check_added(&plan, added, provider.as_deref()),
        };
        (plan, found)
    });
    let (looked, unreachable) = tokio::join!(looked, preflight::unreachable_models(&config));
    let (plan, found) = looked?;
    Ok((plan, Checked { found, unreachable }))
}

/// Returns warnings about low disk space for the results of a job and for the environments.
pub(crate) fn low_disk_space(results: &Path) -> Vec<String> {
    // Without a state directory, nothing can run on this machine, and what needs it reports that.
    let state = state_dir().ok();
    let directories: Vec<&Path> = state.as_deref().into_iter().chain([results]).collect();
    disk::shortages(&directories)
}

/// The same for a job that has not started, as lines.
pub(crate) fn low_disk_space_of(config: &JobConfig) -> Vec<String> {
    let results = config.name.as_ref().map(|name| config.jobs_dir.join(name.as_str()));
    let shortages = low_disk_space(results.as_deref().unwrap_or(&config.jobs_dir));
    shortages.iter().map(|text| format!("{} {text}", paint(ODD, "warning:"))).collect()
}

/// Prints warnings before a job starts.
pub(crate) fn print_warnings(warnings: &[String]) -> Result<(), Failure> {
    let mut stderr = anstream::stderr().lock();
    for warning in warnings {
        writeln!(stderr, "{warning}")?;
    }
    Ok(())
}
