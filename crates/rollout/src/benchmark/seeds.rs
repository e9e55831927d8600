//! The files that the tools of a benchmark read.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::BenchmarkItem;
use crate::config::{RolloutConfig, each_path, resolve};

/// The maximum number of single files that a tool server is allowed to read. With more, it may read their folders.
const MAX_FILES: usize = 64;
/// The maximum number of paths of questions that are checked before the first question.
const MAX_CHECKED: usize = 1000;

/// The files that the configuration and the questions of a benchmark name.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeedPaths {
    /// The paths of questions, as passed to tools; not more than are checked.
    pub(crate) of_questions: Vec<String>,
    /// The paths that a tool server started for the run may read.
    pub(crate) roots: Vec<PathBuf>,
}

/// Collects the paths that questions name.
#[derive(Debug)]
pub(super) struct SeedGatherer {
    beside: PathBuf,
    of_questions: BTreeSet<String>,
}

impl SeedGatherer {
    pub(super) fn new(config: &RolloutConfig) -> Self {
        Self { beside: beside_questions(config), of_questions: BTreeSet::new() }
    }

    pub(super) fn add(&mut self, item: &BenchmarkItem) {
        let mut kwargs = item.kwargs.clone();
        resolve(&mut kwargs, &self.beside);
        each_path(&mut kwargs, &mut |path| _ = self.of_questions.insert(path.clone()));
    }

    /// Finds the files. Blocks.
    ///
    /// Paths in the configuration may be read anywhere. Questions are often downloaded, so their paths may be read only
    /// below the folder of their file.
    pub(super) fn finish(self, config: &RolloutConfig) -> SeedPaths {
        let Self { beside, of_questions } = self;
        let mut roots = BTreeSet::new();
        for values in config.resource_init_configs.values() {
            each_path(&mut values.clone(), &mut |path| roots.extend(Path::new(path).canonicalize()));
        }
        let home = beside.canonicalize().ok();
        let below = |path: &String| {
            let path = Path::new(path).canonicalize().ok()?;
            path.starts_with(home.as_ref()?).then_some(path)
        };
        roots.extend(of_questions.iter().filter_map(below));
        SeedPaths { of_questions: of_questions.into_iter().take(MAX_CHECKED).collect(), roots: few(roots) }
    }
}

/// The same files with few enough paths. No path is below another.
fn few(mut roots: BTreeSet<PathBuf>) -> Vec<PathBuf> {
    if roots.len() > MAX_FILES {
        let folder = |path: PathBuf| match path.is_dir() {
            true => Some(path),
            false => path.parent().map(Path::to_owned),
        };
        roots = roots.into_iter().filter_map(folder).collect();
    }
    let mut kept: Vec<PathBuf> = Vec::new();
    // A folder is sorted before its content.
    for path in roots {
        if !kept.iter().any(|folder| path.starts_with(folder)) {
            kept.push(path);
        }
    }
    kept
}

/// The base of relative paths of questions: the folder of their file.
pub(crate) fn beside_questions(config: &RolloutConfig) -> PathBuf {
    match config.data_path.as_deref().and_then(Path::parent) {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The settings of sessions of a kind: the `content` of its configuration, or all of it.
pub(crate) fn session_config(kind: &str, init: &IndexMap<String, Map<String, Value>>) -> Map<String, Value> {
    let config = init.get(kind).map(|config| match config.get("content") {
        Some(Value::Object(content)) => content.clone(),
        _ => config.clone(),
    });
    config.unwrap_or_default()
}
