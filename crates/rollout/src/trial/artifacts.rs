//! The artifacts of a step: what the agent left is copied out, with a list of it, before the tests run.

use std::path::{Path, PathBuf};

use globset::{Glob, GlobSet, GlobSetBuilder};
use serde::Serialize;

use super::{
    calls::{bounded, required},
    context::TrialContext,
    failure::Failure,
    services::Services,
};
use crate::config::ArtifactConfig;
use rollout_core::event::Phase;
use rollout_env::{
    CopyOut, Environment, EnvironmentError, FileRead, blocking::blocking, compose::MAIN_SERVICE,
};

/// A directory that is always an artifact.
pub(super) const ALWAYS_COPIED: &str = "/logs/artifacts";

/// The list of artifacts, below their directory.
pub(super) const MANIFEST: &str = "manifest.json";

/// A copied artifact.
#[derive(Debug)]
pub(crate) struct Artifact {
    /// Its path in the environment.
    pub(super) source: String,
    /// The other service that it comes from.
    pub(super) service: Option<String>,
    /// Its copy on the host.
    pub(super) copy: PathBuf,
}

/// An entry of the list.
#[derive(Debug, Serialize)]
struct Listed {
    source: String,
    destination: String,
    #[serde(rename = "type")]
    kind: Option<&'static str>,
    status: &'static str,
    service: Option<String>,
    exclude: Vec<String>,
}

/// Whether artifacts are copied even if the tests do not need them.
pub(super) fn are_wanted(context: &TrialContext<'_>) -> bool {
    context.task.is_harbor || !context.step.artifacts.is_empty()
}

/// Copies the artifacts of a step to its directory. A missing one is a note.
pub(super) async fn collect(
    context: &TrialContext<'_>,
    main: &dyn Environment,
    services: &Services,
    notes: &mut Vec<String>,
) -> Result<Vec<Artifact>, Failure> {
    let dir = context.step.dir.artifacts();
    let always = ArtifactConfig::path(ALWAYS_COPIED);
    let (mut listed, mut copied) = (Vec::new(), Vec::<Artifact>::new());
    for artifact in context.step.artifacts.iter().chain([&always]) {
        let source = artifact.source.as_str();
        let destination =
            artifact.destination.clone().unwrap_or_else(|| source.trim_start_matches('/').to_owned());
        let copy = dir.join(&destination);
        // The first one gets a place that two want.
        let service = artifact.service.as_deref().filter(|name| *name != MAIN_SERVICE);
        let is_taken = copied.iter().any(|other| {
            (other.source == source && other.service.as_deref() == service) || other.copy == copy
        });
        let environment = match service {
            None => Some(main),
            Some(name) => services.service(name).map(|(environment, _)| environment),
        };
        let (kind, status) = match (is_taken, environment) {
            (true, _) => (None, "skipped"),
            (false, Some(environment)) => copy_one(context, environment, artifact, &copy, notes).await?,
            (false, None) => {
                let name = service.unwrap_or_default();
                notes.push(format!("the artifact {source} is of the service {name}, which does not exist"));
                (None, "failed")
            }
        };
        // The agent may have emptied a directory that the image of the tests fills.
        if status == "ok" || status == "empty" && kind.is_some() {
            let service = service.map(str::to_owned);
            copied.push(Artifact { source: source.to_owned(), service, copy });
        }
        if !is_taken || source != ALWAYS_COPIED {
            let (service, exclude) = (artifact.service.clone(), artifact.exclude.clone());
            listed.push(Listed { source: source.to_owned(), destination, kind, status, service, exclude });
        }
    }
    if are_wanted(context) {
        notes.extend(write_list(&dir, &listed).await.err());
    }
    Ok(copied)
}

/// Copies one artifact. Returns its kind and its status in the list.
async fn copy_one(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    artifact: &ArtifactConfig,
    copy: &Path,
    notes: &mut Vec<String>,
) -> Result<(Option<&'static str>, &'static str), Failure> {
    let phase = Phase::Verify;
    let source = artifact.source.as_str();
    // With a limit of 0 bytes, a regular file is either empty or too large.
    let is_file = match required(phase, environment.read_file(source, 0)).await? {
        FileRead::Content(_) | FileRead::TooLarge(_) => true,
        FileRead::NotRegular => false,
        FileRead::Missing => {
            if source != ALWAYS_COPIED {
                notes.push(format!("the artifact {source} is missing in the agent's environment"));
            }
            return Ok((None, if source == ALWAYS_COPIED { "empty" } else { "failed" }));
        }
    };
    let kind = Some(if is_file { "file" } else { "directory" });
    // A file is copied into a directory, under its own name.
    let parent = copy.parent().unwrap_or(copy);
    let target = if is_file { parent } else { copy };
    let redactor = &context.trial.redactor;
    let report = match bounded(environment.copy_from(CopyOut { source, target, first: None, redactor })).await
    {
        Ok(report) => report,
        Err(EnvironmentError::Command(reason)) => {
            notes.push(format!("cannot copy the artifact {source}: {reason}"));
            return Ok((kind, "failed"));
        }
        Err(error) => return Err(Failure::environment(phase, &error)),
    };
    notes.extend(
        report.skipped.into_iter().map(|what| format!("not copied from the artifact {source}: {what}")),
    );
    let own_name = parent.join(source.rsplit('/').next().unwrap_or(source));
    let (copy, excluded) = (copy.to_owned(), patterns(&artifact.exclude));
    let finished = blocking(move || {
        if is_file && own_name != copy && own_name.exists() {
            std::fs::rename(own_name, &copy)?;
        } else if !is_file {
            std::fs::create_dir_all(&copy)?;
        }
        if let Some(excluded) = excluded {
            remove_excluded(&copy, Path::new(""), &excluded)?;
        }
        let metadata = std::fs::symlink_metadata(&copy);
        let is_empty =
            metadata.is_ok_and(|found| found.is_dir()) && std::fs::read_dir(&copy)?.next().is_none();
        Ok((copy.exists(), is_empty))
    });
    match finished.await {
        Ok((_, true)) => Ok((kind, "empty")),
        Ok((true, false)) => Ok((kind, "ok")),
        Ok((false, false)) => Ok((kind, "failed")),
        Err(error) => {
            notes.push(format!("cannot copy the artifact {source}: {error}"));
            Ok((kind, "failed"))
        }
    }
}

/// The patterns of what is not copied. A pattern that cannot be read matches itself.
fn patterns(exclude: &[String]) -> Option<GlobSet> {
    let mut set = GlobSetBuilder::new();
    for pattern in exclude {
        let written = pattern.trim_end_matches('/');
        let glob = Glob::new(written).or_else(|_| Glob::new(&globset::escape(written))).ok()?;
        set.add(glob);
    }
    set.build().ok().filter(|_| !exclude.is_empty())
}

/// Removes entries whose name or path below the artifact matches.
fn remove_excluded(root: &Path, below: &Path, excluded: &GlobSet) -> std::io::Result<()> {
    let dir = root.join(below);
    if !std::fs::symlink_metadata(&dir).is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    for entry in std::fs::read_dir(&dir)? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        let is_dir = entry.file_type()?.is_dir();
        if excluded.is_match(&path) || excluded.is_match(entry.file_name()) {
            if is_dir { std::fs::remove_dir_all(entry.path())? } else { std::fs::remove_file(entry.path())? }
        } else if is_dir {
            remove_excluded(root, &path, excluded)?;
        }
    }
    Ok(())
}

async fn write_list(dir: &Path, listed: &[Listed]) -> Result<(), String> {
    let text = serde_json::to_string_pretty(listed).map_err(|error| error.to_string())?;
    let dir = dir.to_owned();
    let written = blocking(move || {
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join(MANIFEST), text + "\n")
    });
    written.await.map_err(|error| format!("cannot write the list of artifacts: {error}"))
}
