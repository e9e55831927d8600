//! The `datasets` of a job file.

use std::{
    collections::{HashMap, HashSet},
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use globset::{Glob, GlobMatcher};
use serde_json::{Value as Json, json};

use crate::catalogue;

use super::{Compat, GitAddress, InteractionConfig, interaction, is_git_address, job::COMPAT};
use rollout_core::{name::DatasetName, result::DEFAULT_PASS_THRESHOLD};
use rollout_settings::{
    Form, Section, Settings as _, Value, Written,
    declare::{entry, one_of},
    diagnostic::{Code, quoted},
    forms::{finite, number_or_text, path, some_count, some_section, text, texts, word},
};

/// One entry of `datasets`.
#[derive(Debug, Clone)]
pub struct DatasetConfig {
    /// Its name in results and directories. For a path: its `name:`, or the base name of the directory.
    pub name: DatasetName,
    /// Where its tasks come from.
    pub source: DatasetSource,
    /// The lowest reward that counts as solved.
    pub pass_threshold: f64,
    /// The rules for its tasks, if the job has none.
    pub compat: Option<Compat>,
    /// The part of it that is run.
    pub filter: TaskFilter,
}

impl DatasetConfig {
    /// A dataset with the default of every other setting.
    pub fn new(name: DatasetName, source: DatasetSource) -> Self {
        let filter = TaskFilter::default();
        Self { name, source, pass_threshold: DEFAULT_PASS_THRESHOLD, compat: None, filter }
    }
}

/// Selects tasks of a dataset by name.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// The tasks to run; all when empty.
    pub include: Vec<GlobMatcher>,
    /// The tasks to leave out of these.
    pub exclude: Vec<GlobMatcher>,
    /// How many of the rest are run: the first ones by name.
    pub limit: Option<NonZeroU32>,
}

impl TaskFilter {
    /// Whether a task is selected, as far as its name decides it.
    pub fn selects(&self, name: &str) -> bool {
        let matches = |globs: &[GlobMatcher]| globs.iter().any(|glob| glob.is_match(name));
        (self.include.is_empty() || matches(&self.include)) && !matches(&self.exclude)
    }

    /// The patterns that match none of these names.
    pub(crate) fn unmatched<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = &'a str> {
        let all = self.include.iter().chain(&self.exclude);
        all.filter(|glob| !names.iter().any(|name| glob.is_match(name))).map(|glob| glob.glob().glob())
    }
}

/// Where the tasks of a dataset come from.
#[derive(Debug, Clone, PartialEq)]
pub enum DatasetSource {
    /// A directory of tasks, or a single task.
    Path(PathBuf),
    /// The same in a git repository.
    Git(GitAddress),
    /// A dataset that is looked up by name in the known registries.
    Named {
        /// Its name in the registries.
        dataset: String,
        /// The version; the newest one when absent.
        version: Option<String>,
    },
    /// An entry of a registry file.
    Registry {
        /// The registry.
        registry: RegistryLocation,
        /// The name of the dataset in the registry.
        dataset: String,
        /// The version; the newest one when absent.
        version: Option<String>,
    },
    /// Examples for a model.
    Interaction(Box<InteractionConfig>),
}

/// The location of a registry file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RegistryLocation {
    /// On this machine.
    Path(PathBuf),
    /// Behind an `http` or `https` URL.
    Url(String),
}

impl RegistryLocation {
    /// The public registries, in the order in which they are searched.
    pub fn public() -> Vec<Self> {
        catalogue::public_registries().map(|url| Self::Url(url.to_owned())).collect()
    }
}

rollout_settings::settings! {
    /// Tasks from a directory, a repository or a registry, or examples for a model.
    pub(super) struct DatasetKeys {
        /// The directory of a task, or of several tasks, relative to this file; or a directory in a git repository.
        ///
        /// A directory in a git repository is written as `git+URL[@revision][#path]`; see
        /// [datasets](datasets.md#git-repositories). Files, hidden directories, and directories without any file of a
        /// task are skipped; an empty directory is an incomplete task. Symbolic links to directories are followed.
        path: Option<String> = path().optional(),
        /// The location of the registry. `${VAR}` is expanded.
        ///
        /// A `path` may also be a directory that contains `registry.json`.
        registry: Option<RegistryKeys> = some_section::<RegistryKeys>()
            .refine(|schema| one_of(&["path", "url"], schema))
            .kind("`path:` or `url:`")
            .optional(),
        /// Examples for a model: the path of an interaction file, relative to this file, or the content of such a file.
        ///
        /// See [interactions](models.md#interactions). Only agents with a `model` can attempt them. An agent that can
        /// attempt nothing in a job is rejected.
        interaction: Option<InteractionConfig> = interaction().optional(),
        /// With `path` and `interaction`: the name in results; the base name of the directory or file when absent. With
        /// `registry`: the name of the dataset in the registry. Alone: the name of a [known dataset](datasets.md).
        name: Option<String> = text().kind("name").optional(),
        /// The version in the registry; the newest one when absent.
        ///
        /// Versions are compared number by number. A version that is not a number, such as `head`, counts as older.
        version: Option<String> = number_or_text().optional(),
        /// With `registry`, and with `name` alone: the name in results; `name` when absent.
        rename: Option<String> = text().kind("name").optional(),
        /// The lowest reward that counts as solved: in the pass rate, pass@k, comparisons and exports.
        ///
        /// See [how numbers are counted](trust.md#how-numbers-are-counted).
        pass_threshold: Option<f64> = finite().optional().unset("1; for an interaction, its own"),
        /// The rules for the tasks of this dataset. With `harbor`, Harbor's rules also apply to tasks without
        /// `schema_version`.
        ///
        /// An entry of a registry can have this key too. See [tasks made for Harbor](tasks.md#tasks-made-for-harbor).
        compat: Option<Compat> = word(&COMPAT).optional().unset("the setting of the job, or of the registry"),
        /// The tasks to run: names, or patterns with `*`, `?` and `[…]`.
        ///
        /// `--task` and `--limit` on the command line select from the tasks that `include`, `exclude` and `limit`
        /// leave.
        include: Vec<String> = patterns("all"),
        /// The tasks to leave out, in the same form.
        exclude: Vec<String> = patterns("none"),
        /// How many tasks are run, after `include` and `exclude`: the first ones by name.
        limit: Option<NonZeroU32> = some_count().optional().unset("all"),
    }
}

rollout_settings::settings! {
    /// The location of a registry.
    pub(super) struct RegistryKeys {
        /// The path of a registry file, relative to this file.
        path: Option<String> = path().optional().as_written(),
        /// The http or https URL of a registry file.
        url: Option<String> = path().kind("URL").optional().as_written(),
    }
}

fn patterns(unset: &'static str) -> Form<Vec<String>> {
    texts().check(|patterns, section, key| check_patterns(patterns, section, key)).unset(unset)
}

fn check_patterns(patterns: &[String], section: &Section<'_>, key: &str) {
    for pattern in patterns {
        if let Err(error) = Glob::new(pattern) {
            section.invalid(key, format!("invalid pattern {}: {}", quoted(pattern), error.kind()));
        }
    }
}

fn interaction() -> Form<InteractionConfig> {
    let schema = || json!({ "anyOf": [{ "type": "string" }, entry::<InteractionConfig>()] });
    Form::written("path, or mapping", schema, |section, key| match section.node(key)?.value {
        // The file could not be read, which was reported.
        Value::String(_) => None,
        _ => interaction::read(&section.section::<InteractionConfig>(key)?),
    })
    .recorded(|config, written| InteractionConfig::record(config, written).into())
}

pub(super) const REQUIRED: &str = "a job needs at least one dataset, such as `- path: ./tasks`";

pub(super) fn schema() -> Json {
    let mut schema = entry::<DatasetKeys>();
    let kinds = ["path", "registry", "interaction"].map(|key| json!({ "required": [key] }));
    let named = json!({ "required": ["name"], "not": { "anyOf": kinds } });
    schema["oneOf"] = kinds.iter().cloned().chain([named]).collect();
    schema["dependentRequired"] = json!({ "registry": ["name"], "version": ["name"], "rename": ["name"] });
    schema
}

pub(super) fn read(root: &Section<'_>, key: &str) -> Vec<DatasetConfig> {
    root.refuse_empty(key, REQUIRED);
    let mut datasets = Vec::new();
    let mut seen = HashMap::new();
    let mut read: Vec<_> = root
        .sections::<DatasetKeys>(key)
        .into_iter()
        .filter_map(|section| Some((dataset(&section)?, section)))
        .collect();
    name_apart(&mut read);
    for (dataset, section) in read {
        let named =
            ["rename", "name", "path", "interaction"].into_iter().find(|key| section.entry(key).is_some());
        let span = section.value_span(named.unwrap_or("path"));
        if let Some(first) = seen.insert(dataset.name.clone(), span) {
            let is_own = ["path", "interaction"].iter().any(|key| section.entry(key).is_some());
            let rename = if is_own { "name" } else { "rename" };
            let hint =
                format!("give this dataset another name with `{rename}:`; results are grouped by name");
            section.same_name("datasets", dataset.name.as_str(), span, first, &hint);
        }
        datasets.push(dataset);
    }
    datasets
}

/// Distinguishes datasets by their registries if several have the same name there and no `rename:`.
fn name_apart(read: &mut [(DatasetConfig, Section<'_>)]) {
    let mut registries: HashMap<DatasetName, HashSet<RegistryLocation>> = HashMap::new();
    for (dataset, _) in read.iter() {
        if let DatasetSource::Registry { registry, .. } = &dataset.source {
            registries.entry(dataset.name.clone()).or_default().insert(registry.clone());
        }
    }
    for (dataset, section) in read {
        let DatasetSource::Registry { registry, .. } = &dataset.source else { continue };
        let shared = registries.get(&dataset.name).is_some_and(|registries| registries.len() > 1);
        if shared && section.entry("rename").is_none() {
            let apart = DatasetName::new(format!("{}@{}", dataset.name, label(registry)));
            dataset.name = apart.unwrap_or_else(|_| dataset.name.clone());
        }
    }
}

/// A short name for a registry: the host of its URL, or the last part of its path.
fn label(registry: &RegistryLocation) -> String {
    let name = match registry {
        RegistryLocation::Url(url) => {
            let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            authority.rsplit('@').next().unwrap_or_default().to_owned()
        }
        RegistryLocation::Path(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
    };
    name.chars().map(|char| if char.is_alphanumeric() || "._-".contains(char) { char } else { '-' }).collect()
}

fn dataset(section: &Section<'_>) -> Option<DatasetConfig> {
    let keys = DatasetKeys::read(section)?;
    let kinds = ["path", "registry", "interaction"];
    if section.entry("name").is_some() && kinds.iter().all(|key| section.entry(key).is_none()) {
        return named_dataset(section, keys);
    }
    let hint = "a dataset has a `path:`, a `registry:` with a `name:`, an `interaction:`, or the `name:` of a known one";
    let kind = section.one_of(&kinds, hint)?;
    if kind != "registry" {
        section.refuse(&["version", "rename"], kind, |key| match key {
            "version" => "only datasets of a registry have versions".to_owned(),
            _ => "a dataset that is not in a registry is renamed with `name:`".to_owned(),
        });
    }
    if kind == "interaction" {
        section.refuse(&["compat", "include", "exclude", "limit"], kind, |key| match key {
            "compat" => "Harbor's rules apply only to tasks in directories".to_owned(),
            _ => "select questions with `--task` and `--limit` on the command line".to_owned(),
        });
    }
    match kind {
        "path" => path_dataset(section, keys),
        "registry" => registry_dataset(section, keys),
        _ => interaction_dataset(section, keys),
    }
}

/// A dataset of tasks, with the settings that all of them have.
fn tasks(name: DatasetName, source: DatasetSource, settings: TaskSettings) -> DatasetConfig {
    let TaskSettings { pass_threshold, compat, filter } = settings;
    let plain = DatasetConfig::new(name, source);
    DatasetConfig { pass_threshold: pass_threshold.unwrap_or(plain.pass_threshold), compat, filter, ..plain }
}

/// The settings of every dataset of tasks, wherever they come from.
struct TaskSettings {
    pass_threshold: Option<f64>,
    compat: Option<Compat>,
    filter: TaskFilter,
}

impl TaskSettings {
    fn of(keys: &DatasetKeys) -> Self {
        let DatasetKeys { include, exclude, limit, .. } = keys;
        // Invalid patterns were reported.
        let globs = |patterns: &[String]| {
            let valid = patterns.iter().filter_map(|pattern| Glob::new(pattern).ok());
            valid.map(|glob| glob.compile_matcher()).collect()
        };
        let filter = TaskFilter { include: globs(include), exclude: globs(exclude), limit: *limit };
        Self { pass_threshold: keys.pass_threshold, compat: keys.compat, filter }
    }
}

fn interaction_dataset(section: &Section<'_>, keys: DatasetKeys) -> Option<DatasetConfig> {
    if section.entry("name").is_none() && keys.interaction.is_some() {
        section.missing("name", "an interaction without a file needs a `name:`");
    }
    let name = dataset_name(section, "name", &keys.name?, "name")?;
    let mut interaction = Box::new(keys.interaction?);
    if let Some(threshold) = keys.pass_threshold {
        interaction.pass_threshold = threshold;
    }
    let pass_threshold = interaction.pass_threshold;
    let source = DatasetSource::Interaction(interaction);
    Some(DatasetConfig { pass_threshold, ..DatasetConfig::new(name, source) })
}

fn path_dataset(section: &Section<'_>, keys: DatasetKeys) -> Option<DatasetConfig> {
    let settings = TaskSettings::of(&keys);
    let written = keys.path?;
    if is_git_address(&written) {
        return git_dataset(section, &written, keys.name, settings);
    }
    let path = section.reader.dir.join(written);
    if !path.is_dir() {
        let message = format!("{} is not a directory", quoted(&path.display().to_string()));
        let hint = "write the directory of a task, or of several tasks, relative to the job file";
        section.invalid_with_hint("path", message, hint);
        return None;
    }
    let name = match section.node("name") {
        Some(_) => dataset_name(section, "name", &keys.name?, "name")?,
        None => dataset_name(section, "path", &base_name(&path), "name")?,
    };
    Some(tasks(name, DatasetSource::Path(path), settings))
}

fn git_dataset(
    section: &Section<'_>,
    written: &str,
    name: Option<String>,
    settings: TaskSettings,
) -> Option<DatasetConfig> {
    let address: GitAddress = match written.parse() {
        Ok(address) => address,
        Err(error) => {
            let hint = error.hint().unwrap_or("such as `git+https://example.com/team/tasks.git@v1.0#tasks`");
            section.invalid_with_hint("path", error.to_string(), hint);
            return None;
        }
    };
    let name = match section.node("name") {
        Some(_) => dataset_name(section, "name", &name?, "name")?,
        None => dataset_name(section, "path", &last_name(&address), "name")?,
    };
    Some(tasks(name, DatasetSource::Git(address), settings))
}

/// The name of the directory, otherwise of the repository.
fn last_name(address: &GitAddress) -> String {
    let last =
        |path: &str| path.trim_end_matches('/').rsplit(['/', ':']).next().unwrap_or_default().to_owned();
    match last(&address.path) {
        name if name.is_empty() => {
            let name = last(&address.url);
            name.strip_suffix(".git").unwrap_or(&name).to_owned()
        }
        name => name,
    }
}

fn named_dataset(section: &Section<'_>, keys: DatasetKeys) -> Option<DatasetConfig> {
    let settings = TaskSettings::of(&keys);
    let dataset = keys.name.filter(|_| section.filled_string("name").is_some())?;
    let name = match section.node("rename") {
        Some(_) => dataset_name(section, "rename", &keys.rename?, "rename")?,
        None => dataset_name(section, "name", &dataset, "rename")?,
    };
    let source = DatasetSource::Named { dataset, version: keys.version };
    Some(tasks(name, source, settings))
}

fn registry_dataset(section: &Section<'_>, keys: DatasetKeys) -> Option<DatasetConfig> {
    let settings = TaskSettings::of(&keys);
    let registry = keys.registry.and_then(|keys| registry(&section.inside("registry"), keys));
    let dataset = keys.name.filter(|_| section.filled_string("name").is_some());
    if section.entry("name").is_none() {
        section.missing("name", "write the `name:` of the dataset in the registry");
    }
    let name = match section.node("rename") {
        Some(_) => dataset_name(section, "rename", &keys.rename?, "rename")?,
        None => dataset_name(section, "name", dataset.as_ref()?, "rename")?,
    };
    let source = DatasetSource::Registry { registry: registry?, dataset: dataset?, version: keys.version };
    Some(tasks(name, source, settings))
}

fn registry(section: &Section<'_>, keys: RegistryKeys) -> Option<RegistryLocation> {
    section.one_of(&["path", "url"], "a registry has a `path:` or a `url:`")?;
    if section.entry("url").is_some() {
        let hint = "a file on this machine goes under `path:`";
        keys.url?;
        let named = Section { path: "registry".to_owned(), ..section.empty("") };
        return named.url("url", section.node("url")?, hint).map(RegistryLocation::Url);
    }
    // A missing variable was reported.
    let path = section.expanded_text(&keys.path?, section.node("path")?).text;
    let path = Some(path).filter(|path| !path.is_empty()).map(|path| section.reader.dir.join(path))?;
    if !path.exists() {
        let message = format!("{} does not exist", quoted(&path.display().to_string()));
        section.invalid_with_hint("path", message, "the path is relative to the job file");
        return None;
    }
    Some(RegistryLocation::Path(path))
}

fn dataset_name(section: &Section<'_>, key: &str, name: &str, rename: &str) -> Option<DatasetName> {
    DatasetName::new(name)
        .map_err(|error| {
            let message = format!("invalid name of a dataset: {}: {error}", quoted(name));
            let hint = format!("name its directory in the results with `{rename}:`");
            section.reader.error_with_hint(section.value_span(key), Code::InvalidName, message, hint);
        })
        .ok()
}

/// The last part of a path, also for `.` and `..`.
fn base_name(path: &Path) -> String {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    name(path).or_else(|| name(&path.canonicalize().ok()?)).unwrap_or_default()
}

/// A dataset in the form of config.json.
pub(super) fn record(config: &DatasetConfig, written: Written<'_>) -> Json {
    let mut record = match &config.source {
        DatasetSource::Path(_) | DatasetSource::Git(_) => {
            json!({ "path": written.key("path").plain(), "name": config.name })
        }
        DatasetSource::Named { dataset, version } => json!({
            "name": dataset,
            "version": version,
            "rename": (config.name.as_str() != dataset).then(|| config.name.to_string()),
        }),
        DatasetSource::Interaction(interaction) => {
            let interaction = InteractionConfig::record(interaction, written.key("interaction"));
            json!({ "interaction": interaction, "name": config.name })
        }
        DatasetSource::Registry { registry, dataset, version } => {
            let key = if matches!(registry, RegistryLocation::Path(_)) { "path" } else { "url" };
            json!({
                "registry": { key: written.key("registry").key(key).plain() },
                "name": dataset,
                "version": version,
                "rename": (config.name.as_str() != dataset).then(|| config.name.to_string()),
            })
        }
    };
    // Only if it was set: older jobs are resumed by the hash of a record without it.
    let threshold = written.key("pass_threshold").plain();
    if !threshold.is_null() && !matches!(config.source, DatasetSource::Interaction(_)) {
        record["pass_threshold"] = threshold;
    }
    for key in ["compat", "include", "exclude", "limit"] {
        let value = written.key(key).plain();
        if !value.is_null() {
            record[key] = value;
        }
    }
    record
}
