//! The artifacts of a step: what the agent left is copied out, with a list of it, before the tests run.

use std::{
    io,
    path::{Path, PathBuf},
};

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
    /// Whether it is a directory that was empty. Its copy may have a later artifact then, which has the same place.
    pub(super) is_empty: bool,
}

/// What came of an artifact.
struct ArtifactCopy {
    kind: Option<&'static str>,
    /// Its status in the list.
    status: &'static str,
    is_copied: bool,
}

impl ArtifactCopy {
    fn not(kind: Option<&'static str>, status: &'static str) -> Self {
        Self { kind, status, is_copied: false }
    }
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
        // The first one gets a place that two want, unless it has nothing to put there.
        let service = artifact.service.as_deref().filter(|name| *name != MAIN_SERVICE);
        let is_taken = copied.iter().any(|other| {
            let is_same = other.source == source && other.service.as_deref() == service;
            is_same || !other.is_empty && other.copy == copy
        });
        let environment = match service {
            None => Some(main),
            Some(name) => services.service(name).map(|(environment, _)| environment),
        };
        let ArtifactCopy { kind, status, is_copied } = match (is_taken, environment) {
            (true, _) => ArtifactCopy::not(None, "skipped"),
            (false, Some(environment)) => copy_one(context, environment, artifact, &copy, notes).await?,
            (false, None) => {
                let name = service.unwrap_or_default();
                notes.push(format!("the artifact {source} is of the service {name}, which does not exist"));
                ArtifactCopy::not(None, "failed")
            }
        };
        if is_copied {
            let (service, is_empty) = (service.map(str::to_owned), status == "empty");
            copied.push(Artifact { source: source.to_owned(), service, copy, is_empty });
        }
        if !is_taken || source != ALWAYS_COPIED {
            let (service, exclude) = (artifact.service.clone(), artifact.exclude.clone());
            listed.push(Listed { source: source.to_owned(), destination, kind, status, service, exclude });
        }
    }
    // Also if nothing was copied: without a list, the tests could not run again.
    notes.extend(write_list(&dir, &listed).await.err());
    Ok(copied)
}

/// The artifacts in the order in which they are copied into the tests' environment.
///
/// The agent may have emptied a directory that the image of the tests fills. That comes first, and not at all where the
/// content of another artifact goes.
pub(super) fn in_order(artifacts: &[Artifact]) -> Vec<&Artifact> {
    let (empty, full): (Vec<_>, Vec<_>) = artifacts.iter().partition(|artifact| artifact.is_empty);
    let is_filled =
        |empty: &Artifact| full.iter().any(|other| Path::new(&other.source).starts_with(&empty.source));
    let emptied: Vec<_> = empty.into_iter().filter(|empty| !is_filled(empty)).collect();
    emptied.into_iter().chain(full).collect()
}

/// Copies one artifact.
async fn copy_one(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    artifact: &ArtifactConfig,
    copy: &Path,
    notes: &mut Vec<String>,
) -> Result<ArtifactCopy, Failure> {
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
            return Ok(ArtifactCopy::not(None, if source == ALWAYS_COPIED { "empty" } else { "failed" }));
        }
    };
    let kind = Some(if is_file { "file" } else { "directory" });
    // A file is copied into a directory, under its own name.
    let parent = copy.parent().unwrap_or(copy);
    let target = if is_file { parent } else { copy };
    if is_file {
        // An empty directory that was copied before gives up its place.
        let place = copy.to_owned();
        let _ = blocking(move || std::fs::remove_dir(place)).await;
    }
    let redactor = &context.trial.redactor;
    let report = match bounded(environment.copy_from(CopyOut { source, target, first: None, redactor })).await
    {
        Ok(report) => report,
        Err(EnvironmentError::Command(reason)) => {
            notes.push(format!("cannot copy the artifact {source}: {reason}"));
            return Ok(ArtifactCopy::not(kind, "failed"));
        }
        Err(error) => return Err(Failure::environment(phase, &error)),
    };
    let is_whole = report.skipped.is_empty();
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
        finish(&copy, is_whole, excluded.as_ref())
    });
    match finished.await {
        Ok((status, is_copied)) => Ok(ArtifactCopy { kind, status, is_copied }),
        Err(error) => {
            notes.push(format!("cannot copy the artifact {source}: {error}"));
            Ok(ArtifactCopy::not(kind, "failed"))
        }
    }
}

/// Removes what is excluded from a copy. Returns the status of the artifact, and whether it is copied to the tests.
fn finish(copy: &Path, is_whole: bool, excluded: Option<&GlobSet>) -> io::Result<(&'static str, bool)> {
    if is_whole && is_empty_dir(copy)? {
        return Ok(("empty", true));
    }
    if let Some(excluded) = excluded {
        remove_excluded(copy, Path::new(""), excluded)?;
    }
    if is_empty_dir(copy)? {
        // The directory was not empty, so it must not empty that of the tests, now or when they run again.
        std::fs::remove_dir(copy)?;
        return Ok(("empty", false));
    }
    Ok(if copy.exists() { ("ok", true) } else { ("failed", false) })
}

fn is_empty_dir(path: &Path) -> io::Result<bool> {
    let is_dir = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    Ok(is_dir && std::fs::read_dir(path)?.next().is_none())
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
fn remove_excluded(root: &Path, below: &Path, excluded: &GlobSet) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_comes_first_and_not_where_content_of_another_artifact_goes() {
        let artifact = |source: &str, service: Option<&str>, is_empty: bool| Artifact {
            source: source.to_owned(),
            service: service.map(str::to_owned),
            copy: PathBuf::new(),
            is_empty,
        };
        let all = [
            artifact("/app/out", None, false),
            artifact("/app", Some("db"), true),
            artifact("/app/out", Some("db"), true),
            artifact("/app/o", None, true),
        ];
        let order: Vec<_> = in_order(&all).iter().map(|artifact| artifact.source.as_str()).collect();
        assert_eq!(order, ["/app/o", "/app/out"]);
    }

    #[test]
    fn only_a_directory_that_was_empty_is_copied_as_an_empty_one() {
        let root = tempfile::tempdir().unwrap();
        let copy = root.path().join("copy");
        let all = patterns(&["*".to_owned()]);
        for (file, is_whole, excluded, expected) in [
            (None, true, None, ("empty", true)),
            (None, true, all.as_ref(), ("empty", true)),
            (None, false, None, ("empty", false)),
            (Some("a"), true, all.as_ref(), ("empty", false)),
            (Some("a"), true, None, ("ok", true)),
        ] {
            std::fs::create_dir_all(&copy).unwrap();
            if let Some(file) = file {
                std::fs::write(copy.join(file), "").unwrap();
            }
            assert_eq!(finish(&copy, is_whole, excluded).unwrap(), expected);
            assert_eq!(copy.exists(), expected.1);
        }
    }
}
