//! Registry files: lists of datasets, with the locations of their tasks.

use std::{
    cmp::Ordering,
    collections::HashSet,
    fs::{self, File},
    io::{self, Read, Write as _},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::{
    download::{self, DownloadError},
    git::{CommitId, GitUrl, RepoPath},
    shown,
    sources::blocking,
};
use crate::config::{Compat, RegistryLocation};
use rollout_core::{name::TaskName, text::hex};

/// The maximum size of a registry; the largest known one has 2 MiB.
pub(super) const MAX_REGISTRY_BYTES: u64 = 32 * 1024 * 1024;

/// Why a registry, or a dataset in it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The file cannot be read.
    #[error("cannot read the registry {}", shown(path))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file is too large.
    #[error("the registry {registry} is larger than 32 MiB")]
    TooLarge {
        /// The registry.
        registry: String,
    },
    /// The download failed.
    #[error("cannot download the registry")]
    Download(#[from] DownloadError),
    /// The registry was never downloaded, and the network must not be used.
    #[error("the registry {registry} is not in the cache, and network access is turned off")]
    Offline {
        /// The registry.
        registry: String,
    },
    /// A downloaded registry cannot be kept for later.
    #[error("cannot use the cache in {}; check its owner and the free space", shown(path))]
    Cache {
        /// The path in the cache.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No known registry has the dataset.
    #[error("no known dataset is named `{dataset}`; {}{}", known_names(known, dataset), listed(unread))]
    Unknown {
        /// The requested name, with its version.
        dataset: String,
        /// The known names.
        known: Vec<String>,
        /// The registries that could not be read, with the reasons.
        unread: Vec<String>,
    },
    /// The file is not JSON.
    #[error("the registry {registry} is not JSON")]
    Syntax {
        /// The registry.
        registry: String,
        /// The problem and its position.
        #[source]
        source: serde_json::Error,
    },
    /// The file, or the dataset in it, has the wrong structure: every problem, with its position.
    #[error("invalid registry {registry}:{}", listed(problems))]
    Invalid {
        /// The registry.
        registry: String,
        /// The problems, each with its path in the JSON.
        problems: Vec<String>,
    },
    /// The dataset is unknown.
    #[error("the registry {registry} has no dataset `{dataset}`; {}", available(known, dataset))]
    NoDataset {
        /// The registry.
        registry: String,
        /// The requested name.
        dataset: String,
        /// The known names.
        known: Vec<String>,
    },
    /// The version is unknown.
    #[error(
        "the registry {registry} has no version `{version}` of `{dataset}`; {}",
        available(known, version)
    )]
    NoVersion {
        /// The registry.
        registry: String,
        /// The dataset.
        dataset: String,
        /// The requested version.
        version: String,
        /// The known versions.
        known: Vec<String>,
    },
}

/// The problems, one per line, up to a limit.
fn listed(problems: &[String]) -> String {
    const SHOWN: usize = 20;
    let mut text: String = problems.iter().take(SHOWN).map(|problem| format!("\n- {problem}")).collect();
    if problems.len() > SHOWN {
        text.push_str(&format!("\n- and {} more", problems.len() - SHOWN));
    }
    text
}

fn known_names(known: &[String], wanted: &str) -> String {
    available(known, wanted).replacen("it is empty", "no registry with datasets could be read", 1).replacen(
        "it has",
        "similar ones:",
        1,
    )
}

/// The known names, most similar first, up to a limit.
fn available(known: &[String], wanted: &str) -> String {
    const SHOWN: usize = 8;
    let mut known: Vec<&String> = known.iter().collect();
    known.sort_by(|a, b| {
        let near = |name: &str| strsim::jaro_winkler(&name.to_lowercase(), &wanted.to_lowercase());
        near(b).total_cmp(&near(a)).then_with(|| a.cmp(b))
    });
    known.dedup();
    if known.is_empty() {
        return "it is empty".to_owned();
    }
    let names: Vec<String> =
        known.iter().take(SHOWN).map(|name| format!("`{}`", shown(Path::new(name)))).collect();
    match known.len().saturating_sub(SHOWN) {
        0 => format!("it has {}", names.join(", ")),
        more => format!("it has {} and {more} more", names.join(", ")),
    }
}

/// A task in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RegistryTask {
    pub(super) name: TaskName,
    pub(super) origin: Origin,
}

/// The location of a task in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// Next to the registry file.
    Local(PathBuf),
    /// In a repository; at its default branch without a commit.
    Git { url: GitUrl, commit: Option<CommitId>, path: RepoPath },
}

/// A dataset of a registry.
#[derive(Debug)]
pub(super) struct RegistryDataset {
    /// By name.
    pub(super) tasks: Vec<RegistryTask>,
    /// The version that was chosen.
    pub(super) version: Option<String>,
    /// The rules for its tasks.
    pub(super) compat: Option<Compat>,
}

/// A version of a dataset in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryEntry {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: Option<String>,
    /// What it is, in the words of the registry.
    pub description: Option<String>,
    /// How many tasks it has.
    pub tasks: usize,
    /// The path or URL of the registry.
    pub registry: String,
}

/// A registry file.
#[derive(Debug)]
pub(super) struct Registry {
    /// Its path or URL, for messages.
    name: String,
    /// The base of tasks without a repository; none for a downloaded registry.
    base: Option<PathBuf>,
    /// The rules for datasets whose entries name none.
    compat: Option<Compat>,
    entries: Vec<Value>,
}

impl Registry {
    /// Reads a registry from this machine or from the network. What was downloaded is kept in `cache`, and used if
    /// `offline`.
    pub(super) async fn open(
        location: &RegistryLocation,
        cache: &Path,
        offline: bool,
    ) -> Result<Self, RegistryError> {
        match location {
            RegistryLocation::Url(url) => {
                // Hashed with its query, which may select another content.
                let kept = cache.join("registries").join(format!("{}.json", hex(&Sha256::digest(url))));
                let failed = |source| RegistryError::Cache { path: kept.clone(), source };
                if offline {
                    let registry = download::shown_url(url)?;
                    let file = kept.clone();
                    return match blocking(move || fs::read(file)).await {
                        Ok(bytes) => {
                            let kept = format!("{registry}, as kept in {}", shown(&kept));
                            let read = Self::parse(kept, None, &bytes)?.of(location);
                            Ok(Self { name: registry, ..read })
                        }
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {
                            Err(RegistryError::Offline { registry })
                        }
                        Err(error) => Err(failed(error)),
                    };
                }
                let (name, bytes) = download::get(url, MAX_REGISTRY_BYTES).await?;
                let registry = Self::parse(name, None, &bytes)?.of(location);
                let file = kept.clone();
                blocking(move || keep(&file, &bytes)).await.map_err(failed)?;
                Ok(registry)
            }
            RegistryLocation::Path(path) => {
                let path = path.clone();
                blocking(move || Self::read(&path)).await
            }
        }
    }

    fn read(path: &Path) -> Result<Self, RegistryError> {
        let file = if path.is_dir() { path.join("registry.json") } else { path.to_owned() };
        let name = shown(&file);
        let mut bytes = Vec::new();
        File::open(&file)
            .and_then(|file| file.take(MAX_REGISTRY_BYTES + 1).read_to_end(&mut bytes))
            .map_err(|source| RegistryError::Unreadable { path: file.clone(), source })?;
        if bytes.len() as u64 > MAX_REGISTRY_BYTES {
            return Err(RegistryError::TooLarge { registry: name });
        }
        let base = file.parent().map(Path::to_owned).unwrap_or_default();
        Self::parse(name, Some(base), &bytes)
    }

    /// The public registries are lists of tasks that are made for Harbor, and many of these tasks are older than
    /// `schema_version`, which marks them.
    fn of(self, location: &RegistryLocation) -> Self {
        let is_public = RegistryLocation::public().contains(location);
        Self { compat: is_public.then_some(Compat::Harbor), ..self }
    }

    fn parse(name: String, base: Option<PathBuf>, bytes: &[u8]) -> Result<Self, RegistryError> {
        let value = serde_json::from_slice(bytes)
            .map_err(|source| RegistryError::Syntax { registry: name.clone(), source })?;
        let entries = match value {
            Value::Array(entries) => Some(entries),
            Value::Object(mut object) => match object.remove("datasets") {
                Some(Value::Array(entries)) => Some(entries),
                _ => None,
            },
            _ => None,
        };
        match entries {
            Some(entries) => Ok(Self { name, base, compat: None, entries }),
            None => Err(RegistryError::Invalid {
                registry: name,
                problems: vec!["it must be a list of datasets, or an object with `datasets`".to_owned()],
            }),
        }
    }

    /// Finds a dataset by its name and, if given, its version.
    ///
    /// Only this dataset must be valid: problems of other datasets in a registry do not matter.
    pub(super) fn dataset(
        &self,
        name: &str,
        version: Option<&str>,
    ) -> Result<RegistryDataset, RegistryError> {
        let named: Vec<(usize, &Map<String, Value>)> = self
            .entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| Some((index, entry.as_object()?)))
            .filter(|(_, entry)| entry.get("name").and_then(Value::as_str) == Some(name))
            .collect();
        if named.is_empty() {
            let known =
                self.entries.iter().filter_map(|entry| entry.get("name")?.as_str().map(str::to_owned));
            return Err(RegistryError::NoDataset {
                registry: self.name.clone(),
                dataset: name.to_owned(),
                known: known.collect(),
            });
        }
        let chosen = match version {
            Some(version) => named.iter().find(|(_, entry)| version_of(entry).as_deref() == Some(version)),
            None => named.iter().rev().max_by(|(_, a), (_, b)| {
                compare_versions(version_of(a).as_deref(), version_of(b).as_deref())
            }),
        };
        let (index, entry) = chosen.ok_or_else(|| RegistryError::NoVersion {
            registry: self.name.clone(),
            dataset: name.to_owned(),
            version: version.unwrap_or_default().to_owned(),
            known: named.iter().filter_map(|(_, entry)| version_of(entry)).collect(),
        })?;
        let mut reader = TaskReader { base: self.base.as_deref(), problems: Vec::new() };
        let mut tasks = reader.tasks(*index, entry);
        let compat = reader.compat(*index, entry).or(self.compat);
        if !reader.problems.is_empty() {
            return Err(RegistryError::Invalid { registry: self.name.clone(), problems: reader.problems });
        }
        tasks.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(RegistryDataset { tasks, version: version_of(entry), compat })
    }

    /// Its path or URL, without secrets.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The datasets in it, as they are written. Entries without a name are left out.
    pub(super) fn entries(&self) -> impl Iterator<Item = RegistryEntry> {
        self.entries.iter().filter_map(|entry| {
            let entry = entry.as_object()?;
            Some(RegistryEntry {
                name: entry.get("name")?.as_str()?.to_owned(),
                version: version_of(entry),
                description: entry.get("description").and_then(Value::as_str).map(str::to_owned),
                tasks: entry.get("tasks").and_then(Value::as_array).map_or(0, Vec::len),
                registry: self.name.clone(),
            })
        })
    }
}

/// Keeps a downloaded registry, complete or not at all.
fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

/// Compares versions number by number. One that is not made of numbers is older than one that is, and equal to others
/// of its kind.
pub(super) fn compare_versions(one: Option<&str>, other: Option<&str>) -> Ordering {
    let numbers = |version: Option<&str>| -> Option<Vec<u64>> {
        let version = version?.trim_start_matches('v');
        version.split('.').map(|number| number.parse().ok()).collect()
    };
    numbers(one).cmp(&numbers(other))
}

/// The version of an entry as text; some registries write `2.0` as a number.
fn version_of(entry: &Map<String, Value>) -> Option<String> {
    match entry.get("version")? {
        Value::String(version) => Some(version.clone()),
        Value::Number(version) => Some(version.to_string()),
        _ => None,
    }
}

/// Reads the tasks of one dataset and collects their problems.
struct TaskReader<'a> {
    base: Option<&'a Path>,
    problems: Vec<String>,
}

impl TaskReader<'_> {
    fn tasks(&mut self, index: usize, entry: &Map<String, Value>) -> Vec<RegistryTask> {
        let Some(Value::Array(list)) = entry.get("tasks") else {
            self.problem(format!("[{index}].tasks"), "must be a list of tasks");
            return Vec::new();
        };
        if list.is_empty() {
            self.problem(format!("[{index}].tasks"), "is empty");
        }
        let mut names = HashSet::new();
        let mut tasks = Vec::with_capacity(list.len());
        for (number, value) in list.iter().enumerate() {
            let at = format!("[{index}].tasks[{number}]");
            let Some(object) = value.as_object() else {
                self.problem(at, "must be an object with `name`, `git_url`, `git_commit_id` and `path`");
                continue;
            };
            let name = self.name(&at, object);
            let origin = self.origin(&at, object);
            let (Some(name), Some(origin)) = (name, origin) else { continue };
            if !names.insert(name.clone()) {
                self.problem(format!("{at}.name"), format!("duplicate task `{name}`; rename one"));
            }
            tasks.push(RegistryTask { name, origin });
        }
        tasks
    }

    /// The rules for the tasks. An unknown word would silently change scores.
    fn compat(&mut self, index: usize, entry: &Map<String, Value>) -> Option<Compat> {
        let at = format!("[{index}]");
        match self.text(&at, entry, "compat")?? {
            "harbor" => Some(Compat::Harbor),
            other => {
                let other = shown(Path::new(other));
                self.problem(format!("{at}.compat"), format!("unknown rules `{other}`; known: `harbor`"));
                None
            }
        }
    }

    fn name(&mut self, at: &str, object: &Map<String, Value>) -> Option<TaskName> {
        match self.text(at, object, "name")? {
            Some(name) => self.parsed(format!("{at}.name"), TaskName::new(name)),
            None => {
                self.problem(format!("{at}.name"), "is missing");
                None
            }
        }
    }

    fn origin(&mut self, at: &str, object: &Map<String, Value>) -> Option<Origin> {
        let path = match self.text(at, object, "path")? {
            Some(path) => Some(self.parsed(format!("{at}.path"), RepoPath::parse(path))?),
            None => None,
        };
        let commit = match self.text(at, object, "git_commit_id")? {
            Some(id) => Some(self.parsed(format!("{at}.git_commit_id"), CommitId::parse(id))?),
            None => None,
        };
        match self.text(at, object, "git_url")? {
            Some(url) => {
                let url = self.parsed(format!("{at}.git_url"), GitUrl::parse(url))?;
                if url.is_local() && self.base.is_none() {
                    self.problem(
                        format!("{at}.git_url"),
                        "a downloaded registry cannot name a repository on this machine",
                    );
                    return None;
                }
                Some(Origin::Git { url, commit, path: path.unwrap_or_else(RepoPath::root) })
            }
            None => match (self.base, path) {
                (None, _) => {
                    self.problem(format!("{at}.git_url"), "is missing; a downloaded registry needs it");
                    None
                }
                (Some(_), None) => {
                    self.problem(format!("{at}.path"), "is missing; a task without `git_url` needs it");
                    None
                }
                (Some(base), Some(path)) => Some(Origin::Local(base.join(path.as_str()))),
            },
        }
    }

    /// An optional text; the outer `None` means a value of another type.
    fn text<'v>(&mut self, at: &str, object: &'v Map<String, Value>, key: &str) -> Option<Option<&'v str>> {
        match object.get(key) {
            None | Some(Value::Null) => Some(None),
            Some(Value::String(text)) => Some(Some(text)),
            Some(_) => {
                self.problem(format!("{at}.{key}"), "must be a string");
                None
            }
        }
    }

    fn parsed<T, E: std::fmt::Display>(&mut self, at: String, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.problem(at, error.to_string())).ok()
    }

    fn problem(&mut self, at: String, text: impl Into<String>) {
        self.problems.push(format!("{at}: {}", text.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_number_by_number() {
        for (older, newer) in
            [("1.9", "1.10"), ("2.0", "2.0.1"), ("head", "0.1"), ("1", "v2"), ("9.9", "10.0")]
        {
            assert_eq!(compare_versions(Some(older), Some(newer)), Ordering::Less, "{older} {newer}");
        }
        assert_eq!(compare_versions(Some("head"), Some("next")), Ordering::Equal);
        assert_eq!(compare_versions(None, Some("1.0")), Ordering::Less);
    }

    #[tokio::test]
    async fn datasets_of_public_registries_have_the_rules_of_harbor() {
        let cache = tempfile::tempdir().unwrap();
        let list = r#"[{"name": "terminal-bench", "version": "2.0", "tasks": [
            {"name": "a", "git_url": "https://example.com/tasks.git", "path": "a"}]}]"#;
        let mut found = Vec::new();
        let own = RegistryLocation::Url("https://example.com/registry.json".to_owned());
        for location in RegistryLocation::public().into_iter().chain([own]) {
            let RegistryLocation::Url(url) = &location else { panic!("{location:?} is not a URL") };
            let kept = cache.path().join("registries").join(format!("{}.json", hex(&Sha256::digest(url))));
            keep(&kept, list.as_bytes()).unwrap();
            let registry = Registry::open(&location, cache.path(), true).await.unwrap();
            found.push(registry.dataset("terminal-bench", Some("2.0")).unwrap().compat);
        }
        assert_eq!(found.pop(), Some(None), "another registry names the rules itself");
        assert!(!found.is_empty() && found.iter().all(|compat| *compat == Some(Compat::Harbor)), "{found:?}");
    }
}
