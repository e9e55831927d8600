//! Reads the `datasets` of a job file.

use std::{collections::HashMap, path::Path};

use super::{
    DatasetConfig, DatasetSource, RegistryLocation,
    diagnostic::{Code, Diagnostic, quoted},
    expand::{has_password, names_a_secret},
    load_job::Loader,
    reader::Section,
    tree::Value,
};
use rollout_core::name::DatasetName;

pub(super) const KEYS: [&str; 6] = ["path", "registry", "interaction", "name", "version", "rename"];
pub(super) const REGISTRY_KEYS: [&str; 2] = ["path", "url"];

impl Loader<'_> {
    pub(super) fn datasets(&self, root: &Section<'_>) -> Vec<DatasetConfig> {
        let hint = "a job needs at least one dataset, such as `- path: ./tasks`";
        let Some(nodes) = root.list("datasets") else {
            if root.node("datasets").is_none() {
                root.missing("datasets", hint);
            }
            return Vec::new();
        };
        if nodes.is_empty() {
            self.reader.error_with_hint(
                root.value_span("datasets"),
                Code::Missing,
                "`datasets` is empty",
                hint,
            );
        }
        let mut datasets = Vec::new();
        let mut seen = HashMap::new();
        for (index, node) in nodes.iter().enumerate() {
            let Some(section) = self.reader.section(node, &format!("datasets.{index}"), &KEYS) else {
                continue;
            };
            let Some(dataset) = self.dataset(&section) else { continue };
            let key = ["rename", "name", "path", "interaction"]
                .into_iter()
                .find(|key| section.entry(key).is_some());
            let span = section.value_span(key.unwrap_or("path"));
            if let Some(first) = seen.insert(dataset.name.clone(), span) {
                let rename = if section.entry("registry").is_some() { "rename" } else { "name" };
                let message = format!("two datasets are named {}", quoted(dataset.name.as_str()));
                let sources = self.reader.sources;
                self.reader.report(
                    Diagnostic::error(sources, span, Code::InvalidName, message)
                        .related(sources, first, "the first one")
                        .hint(format!(
                            "give this one another name with `{rename}:`; results are grouped by it"
                        )),
                );
            }
            datasets.push(dataset);
        }
        datasets
    }

    fn dataset(&self, section: &Section<'_>) -> Option<DatasetConfig> {
        let kinds = ["path", "registry", "interaction"];
        let given: Vec<&str> = kinds.into_iter().filter(|key| section.entry(key).is_some()).collect();
        for pair in given.windows(2) {
            self.exclude(section, pair[0], pair[1]);
        }
        match given[..] {
            ["path"] => self.path_dataset(section),
            ["registry"] => self.registry_dataset(section),
            ["interaction"] => self.interaction_dataset(section),
            [] => {
                let hint = "a dataset has a `path:`, a `registry:` with a `name:`, or an `interaction:`";
                section.missing("path", hint);
                None
            }
            _ => None,
        }
    }

    fn refuse_registry_keys(&self, section: &Section<'_>, kind: &str) {
        for (key, hint) in [
            ("version", "versions exist only in a registry"),
            ("rename", "a dataset that is not in a registry is renamed with `name:`"),
        ] {
            if let Some(entry) = section.entry(key) {
                let message = format!("`{key}` has no meaning beside `{kind}`");
                self.reader.error_with_hint(entry.key_span, Code::Conflict, message, hint);
            }
        }
    }

    fn interaction_dataset(&self, section: &Section<'_>) -> Option<DatasetConfig> {
        self.refuse_registry_keys(section, "interaction");
        if section.entry("name").is_none() && !matches!(section.node("interaction")?.value, Value::String(_))
        {
            section.missing("name", "an interaction that has no file of its own has a `name:`");
        }
        let interaction = self.interaction(section);
        let name = self.dataset_name(section, "name", section.string("name")?, "name")?;
        Some(DatasetConfig { name, source: DatasetSource::Interaction(Box::new(interaction?)) })
    }

    fn path_dataset(&self, section: &Section<'_>) -> Option<DatasetConfig> {
        self.refuse_registry_keys(section, "path");
        let written = section.filled_string("path")?;
        let path = self.dir.join(written);
        if !path.is_dir() {
            let message = format!("{} is not a directory", quoted(&path.display().to_string()));
            let hint = "write the directory of a task, or one that holds tasks, relative to the job file";
            section.invalid_with_hint("path", message, hint);
            return None;
        }
        let name = match section.node("name") {
            Some(_) => self.dataset_name(section, "name", section.string("name")?, "name")?,
            None => self.dataset_name(section, "path", &base_name(&path), "name")?,
        };
        Some(DatasetConfig { name, source: DatasetSource::Path(path) })
    }

    fn registry_dataset(&self, section: &Section<'_>) -> Option<DatasetConfig> {
        let registry = section.section("registry", &REGISTRY_KEYS)?;
        let registry = self.registry(&registry);
        let dataset = section.filled_string("name");
        if section.entry("name").is_none() {
            section.missing("name", "write the `name:` that the dataset has in the registry");
        }
        let version = section.text("version");
        let name = match section.node("rename") {
            Some(_) => self.dataset_name(section, "rename", section.string("rename")?, "rename")?,
            None => self.dataset_name(section, "name", dataset?, "rename")?,
        };
        let source = DatasetSource::Registry { registry: registry?, dataset: dataset?.to_owned(), version };
        Some(DatasetConfig { name, source })
    }

    fn registry(&self, registry: &Section<'_>) -> Option<RegistryLocation> {
        self.exclude(registry, "path", "url");
        if registry.entry("path").is_none() && registry.entry("url").is_none() {
            registry.missing("path", "a registry has a `path:` or a `url:`");
            return None;
        }
        if registry.entry("path").is_some() {
            let path = self.dir.join(self.expanded(registry, "path")?);
            if !path.exists() {
                let message = format!("{} does not exist", quoted(&path.display().to_string()));
                registry.invalid_with_hint("path", message, "the path is relative to the job file");
                return None;
            }
            return Some(RegistryLocation::Path(path));
        }
        let url = self.expanded(registry, "url")?;
        let rest = url.strip_prefix("https://").or(url.strip_prefix("http://"));
        let has_host = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
        if !has_host || url.contains(|char: char| char.is_whitespace() || char.is_control()) {
            // What was expanded may be secret, so only what was written is shown.
            let message = "`registry.url` must be an `http` or `https` URL";
            registry.invalid_with_hint("url", message, "a file on this machine goes under `path:`");
            return None;
        }
        Some(RegistryLocation::Url(url))
    }

    fn expanded(&self, section: &Section<'_>, key: &str) -> Option<String> {
        let expanded = self.expand(section.filled_string(key)?, section.node(key)?);
        if expanded.names().any(names_a_secret) || has_password(&expanded.text) {
            self.secrets.borrow_mut().extend(expanded.secrets());
        }
        // A variable that is missing has been noted.
        Some(expanded.text).filter(|text| !text.is_empty())
    }

    fn dataset_name(
        &self,
        section: &Section<'_>,
        key: &str,
        name: &str,
        rename: &str,
    ) -> Option<DatasetName> {
        match DatasetName::new(name) {
            Ok(name) => Some(name),
            Err(error) => {
                let message = format!("{} cannot be the name of a dataset: {error}", quoted(name));
                let hint = format!("name its directory in the results with `{rename}:`");
                self.reader.error_with_hint(section.value_span(key), Code::InvalidName, message, hint);
                None
            }
        }
    }
}

/// The last part of a path, also where it is written as `.` or ends in `..`.
fn base_name(path: &Path) -> String {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    name(path).or_else(|| name(&path.canonicalize().ok()?)).unwrap_or_default()
}
