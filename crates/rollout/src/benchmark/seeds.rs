//! The files that the tools of a benchmark are going to read.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::BenchmarkItem;
use crate::config::{RolloutConfig, each_path, resolve};

/// The most files that a tool server is allowed to read one by one. Of more, it may read the folders.
const MAX_FILES: usize = 64;
/// The most paths of questions that are checked before the first question is asked.
const MAX_CHECKED: usize = 1000;

/// The files that the configuration and the questions of a benchmark name.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeedPaths {
    /// Those of questions, as tools are given them; not more than are checked.
    pub(crate) of_questions: Vec<String>,
    /// What a tool server that is started for the run may read.
    pub(crate) roots: Vec<PathBuf>,
}

/// Gathers the paths that questions name.
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

    /// Looks for the files. Blocks.
    ///
    /// What the configuration names may be read, wherever it is. Questions are often downloaded: what they name may be
    /// read only below the folder of their file.
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

/// The same files by few enough paths, none of which is below another.
fn few(mut roots: BTreeSet<PathBuf>) -> Vec<PathBuf> {
    if roots.len() > MAX_FILES {
        let folder = |path: PathBuf| match path.is_dir() {
            true => Some(path),
            false => path.parent().map(Path::to_owned),
        };
        roots = roots.into_iter().filter_map(folder).collect();
    }
    let mut kept: Vec<PathBuf> = Vec::new();
    // A folder comes before what is in it.
    for path in roots {
        if !kept.iter().any(|folder| path.starts_with(folder)) {
            kept.push(path);
        }
    }
    kept
}

/// The folder that relative paths of questions begin in: that of their file.
pub(crate) fn beside_questions(config: &RolloutConfig) -> PathBuf {
    match config.data_path.as_deref().and_then(Path::parent) {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// What sessions of a kind are opened with: the `content` of its configuration, or all of it.
pub(crate) fn session_config(kind: &str, init: &IndexMap<String, Map<String, Value>>) -> Map<String, Value> {
    let config = init.get(kind).map(|config| match config.get("content") {
        Some(Value::Object(content)) => content.clone(),
        _ => config.clone(),
    });
    config.unwrap_or_default()
}
