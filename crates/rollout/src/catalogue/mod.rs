//! Known datasets: public registries, built-in question benchmarks, and a catalogue of benchmarks.
//!
//! All of it is data in files beside this one, which are part of the program.

use rollout_settings::yaml;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The public registries of tasks.
const REGISTRIES: &str = include_str!("registries.txt");

const CATALOGUE: &str = include_str!("catalogue.yaml");

/// The built-in benchmarks, by name: each is an interaction file.
const DEFINITIONS: [(&str, &str); 9] = [
    ("aime-2024", include_str!("definitions/aime-2024.yaml")),
    ("aime-2025", include_str!("definitions/aime-2025.yaml")),
    ("gpqa-diamond", include_str!("definitions/gpqa-diamond.yaml")),
    ("gsm8k", include_str!("definitions/gsm8k.yaml")),
    ("hotpotqa", include_str!("definitions/hotpotqa.yaml")),
    ("humaneval", include_str!("definitions/humaneval.yaml")),
    ("math-500", include_str!("definitions/math-500.yaml")),
    ("mmlu-pro", include_str!("definitions/mmlu-pro.yaml")),
    ("simpleqa", include_str!("definitions/simpleqa.yaml")),
];

/// The URLs of the public registries of tasks, in the order in which they are searched.
pub(crate) fn public_registries() -> impl Iterator<Item = &'static str> {
    REGISTRIES.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// The names of the built-in benchmarks.
pub fn definition_names() -> impl Iterator<Item = &'static str> {
    DEFINITIONS.iter().map(|(name, _)| *name)
}

/// The interaction file of a built-in benchmark.
pub fn definition_text(name: &str) -> Option<&'static str> {
    DEFINITIONS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// A well-known benchmark. What is not known for certain is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueEntry {
    /// Its name on the command line.
    pub name: String,
    /// Its name in publications.
    pub title: String,
    /// What its tasks are.
    pub kind: CatalogueKind,
    /// What it measures.
    pub measures: String,
    /// The address of a dataset, or the URL of the project.
    pub source: String,
    /// A commit of the source that others have used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The licence of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub licence: Option<String>,
    /// How many tasks it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// How scores are usually reported.
    pub reported: String,
    /// The publication to cite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub citation: Option<String>,
    /// The date on which the source was last fetched and run, or `never`.
    pub checked: String,
}

/// What the tasks of a benchmark are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatalogueKind {
    /// Questions for a model.
    Questions,
    /// Tasks in containers, for agents.
    Tasks,
}

/// The catalogue of benchmarks.
pub fn catalogue() -> Vec<CatalogueEntry> {
    parsed().expect("a test checks the catalogue")
}

fn parsed() -> Result<Vec<CatalogueEntry>, String> {
    let tree = yaml::parse(CATALOGUE, 0).map_err(|error| format!("{error:?}"))?;
    let json = tree.to_json("", &mut |_, text, _| Value::String(text.to_owned()));
    serde_json::from_value(json).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_entry_of_the_catalogue_is_well_formed() {
        let entries = parsed().unwrap();
        let names: BTreeSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names.len(), entries.len(), "names are unique");
        for entry in &entries {
            let name = &entry.name;
            assert!(
                name.chars().all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-'),
                "{name}"
            );
            for text in [&entry.title, &entry.measures, &entry.reported] {
                assert!(!text.trim().is_empty() && !text.ends_with('.'), "{name}: {text:?}");
            }
            assert!(["hf:", "https://"].iter().any(|start| entry.source.starts_with(start)), "{name}");
            let is_commit = |id: &String| id.len() == 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(entry.revision.as_ref().is_none_or(is_commit), "{name}");
            assert!(entry.size != Some(0), "{name}");
            let is_date = |text: &str| text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok();
            assert!(entry.checked == "never" || is_date(&entry.checked), "{name}: {}", entry.checked);
        }
    }

    #[test]
    fn every_definition_is_in_the_catalogue_with_the_same_source() {
        let entries = parsed().unwrap();
        for (name, text) in DEFINITIONS {
            let entry = entries.iter().find(|entry| entry.name == name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(entry.kind, CatalogueKind::Questions, "{name}");
            assert!(text.contains(&format!("\ndataset: {}\n", entry.source)), "{name}: {}", entry.source);
        }
        assert!(DEFINITIONS.is_sorted(), "by name, because lists show them in this order");
    }

    #[test]
    fn the_public_registries_are_encrypted_urls() {
        assert!(public_registries().count() > 0);
        assert!(public_registries().all(|url| url.starts_with("https://")));
    }
}
