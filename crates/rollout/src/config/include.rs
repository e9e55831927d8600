//! Includes the content of files that a job names in its tree, as if it were written there.

use std::path::Path;

use super::{preset::is_preset_path, shorthand};
use crate::catalogue::definition_text;
use rollout_settings::{Code, Diagnostic, Entry, Node, Override, SourceFiles, Span, Value, read_text, yaml};

/// Whether the value may be in a file that the job names.
pub(super) fn reaches_into_files(over: &Override) -> bool {
    [".interaction.", ".prices.", ".preset."].iter().any(|part| over.key.contains(part))
}

/// Replaces the names of presets, models, interaction files and price lists by their content. A name that cannot be
/// read stays, and is among the returned problems.
pub(super) fn include(tree: &mut Node, dir: &Path, sources: &mut SourceFiles) -> Vec<Diagnostic> {
    let mut files = Files { sources, problems: Vec::new() };
    shorthand::spread_matrix(tree, files.sources, &mut files.problems);
    for (index, agent) in list(tree, "agents").iter_mut().enumerate() {
        files.preset(agent, &format!("agents.{index}.preset"), dir);
        let spoken = shorthand::spoken(agent.get("preset"));
        if let Some(model) = agent.get_mut("model") {
            shorthand::spell_model(model, &spoken, files.sources, &mut files.problems);
        }
        shorthand::name_agent(agent);
        if let Some(model) = agent.get_mut("model") {
            files.prices(model, &format!("agents.{index}.model"), dir);
        }
    }
    for (index, dataset) in list(tree, "datasets").iter_mut().enumerate() {
        files.definition(dataset);
        files.interaction(dataset, &format!("datasets.{index}.interaction"), dir);
    }
    files.problems
}

struct Files<'a> {
    sources: &'a mut SourceFiles,
    problems: Vec<Diagnostic>,
}

impl Files<'_> {
    fn preset(&mut self, agent: &mut Node, path: &str, dir: &Path) {
        let Some(preset) = agent.get_mut("preset") else { return };
        let content = match &preset.value {
            Value::String(name) if !is_preset_path(name) => {
                shorthand::named_preset(name, preset.span, self.sources, &mut self.problems)
            }
            _ => self.read(preset, path, dir).map(|(content, _)| content),
        };
        if let Some(content) = content {
            *preset = content;
        }
    }

    /// Replaces the name of a built-in benchmark with its interaction. With a version, it is a dataset of a registry.
    fn definition(&mut self, dataset: &mut Node) {
        let is_alone = ["path", "registry", "interaction", "version"]
            .iter()
            .all(|key| dataset.get(key).is_none_or(Node::is_null));
        let Some(Node { value: Value::String(name), .. }) = dataset.get("name").filter(|_| is_alone) else {
            return;
        };
        let Some(text) = definition_text(name) else { return };
        match yaml::parse_file(self.sources, &format!("definition {name}"), Path::new("yaml"), text) {
            Ok(content) => {
                let rename = dataset.get("rename").filter(|rename| !rename.is_null()).cloned();
                put(dataset, "interaction", content);
                if let Some(rename) = rename {
                    put(dataset, "name", rename);
                }
                if let Value::Map(entries) = &mut dataset.value {
                    entries.retain(|entry| !["rename", "version"].contains(&entry.key.as_str()));
                }
            }
            Err(found) => self.problems.extend_from_slice(found.diagnostics()),
        }
    }

    fn interaction(&mut self, dataset: &mut Node, path: &str, dir: &Path) {
        let Some(interaction) = dataset.get_mut("interaction") else { return };
        if let Some((mut content, file)) = self.read(interaction, path, dir) {
            let span = interaction.span;
            let directory = Path::new(&file).parent().unwrap_or(Path::new(""));
            enter(&mut content, directory, span);
            *interaction = content;
            let stem = Path::new(&file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if dataset.get("name").is_none_or(Node::is_null) {
                put(dataset, "name", Node { value: Value::String(stem), span });
            }
        }
        let Some(interaction) = dataset.get_mut("interaction") else { return };
        let dir = match interaction.get("directory").map(|node| &node.value) {
            Some(Value::String(directory)) => dir.join(directory),
            _ => dir.to_owned(),
        };
        if let Some(model) = interaction.get_mut("user").and_then(|user| user.get_mut("model")) {
            self.prices(model, &format!("{path}.user.model"), &dir);
        }
        for (index, entry) in list(interaction, "rubric").iter_mut().enumerate() {
            if let Some(model) = entry.get_mut("judge").and_then(|judge| judge.get_mut("model")) {
                self.prices(model, &format!("{path}.rubric.{index}.judge.model"), &dir);
            }
        }
    }

    fn prices(&mut self, model: &mut Node, path: &str, dir: &Path) {
        if let Some(prices) = model.get_mut("prices")
            && let Some((content, _)) = self.read(prices, &format!("{path}.prices"), dir)
        {
            *prices = content;
        }
    }

    /// The content of the file that a node names, and that name.
    fn read(&mut self, node: &Node, path: &str, dir: &Path) -> Option<(Node, String)> {
        let Value::String(name) = &node.value else { return None };
        let file = dir.join(name);
        let text = match read_text(&file) {
            Ok(text) => text,
            Err(message) => {
                let message = format!("`{path}`: {message}");
                let problem = Diagnostic::error(self.sources, node.span, Code::Unreadable, message)
                    .hint("the path is relative to the file that names it");
                self.problems.push(problem);
                return None;
            }
        };
        match yaml::parse_file(self.sources, &file.display().to_string(), Path::new("yaml"), &text) {
            Ok(content) => Some((content, name.clone())),
            Err(problems) => {
                self.problems.extend_from_slice(problems.diagnostics());
                None
            }
        }
    }
}

/// Makes paths in the content of a file relative to the base of the job's paths.
fn enter(content: &mut Node, parent: &Path, span: Span) {
    let directory = match content.get("directory") {
        None => parent.display().to_string(),
        Some(Node { value: Value::String(own), .. }) => parent.join(own).display().to_string(),
        // The type is wrong, so it is rejected when it is read.
        Some(_) => return,
    };
    if !directory.is_empty() {
        put(content, "directory", Node { value: Value::String(directory), span });
    }
}

fn put(mapping: &mut Node, key: &str, node: Node) {
    if let Value::Map(entries) = &mut mapping.value {
        entries.retain(|entry| entry.key != key);
        entries.push(Entry { key: key.to_owned(), key_span: node.span, node });
    }
}

fn list<'n>(node: &'n mut Node, key: &str) -> &'n mut [Node] {
    match node.get_mut(key).map(|node| &mut node.value) {
        Some(Value::List(items)) => items,
        _ => &mut [],
    }
}
