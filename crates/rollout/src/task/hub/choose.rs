//! Chooses the files of a configuration and split of a dataset on a hub.
//!
//! The card of a dataset may list its configurations and splits. Otherwise they are found by the names of directories
//! and files, such as `main/test-00000-of-00001.parquet`.

use std::collections::BTreeSet;

use globset::GlobBuilder;
use serde_json::Value;

use super::{HubDataError, HubFile};
use crate::{config::HubAddress, rows::RowFormat};
use rollout_core::text::listed;
use rollout_settings::yaml;

/// The file with the description of a dataset.
pub(super) const CARD: &str = "README.md";

/// The maximum size of a description that is read.
pub(super) const MAX_CARD: u64 = 4 << 20;

/// The split that is used if several exist and none is asked for.
const DEFAULT_SPLIT: &str = "test";

/// Splits by the words that stand for them in names.
const SPLITS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Descriptions of data, which are not data.
const DESCRIPTIONS: [&str; 3] = ["dataset_info.json", "dataset_infos.json", "dataset_dict.json"];

/// The files with the rows of an address, in order.
pub(super) fn files(
    all: &[HubFile],
    card: Option<&str>,
    address: &HubAddress,
) -> Result<Vec<HubFile>, HubDataError> {
    let choice = Choice { address, data: all.iter().filter(|file| is_data(&file.path)).collect() };
    if choice.data.is_empty() {
        return Err(choice.failed("it has no JSON Lines, JSON, CSV or Parquet file"));
    }
    let configs = card.map(configs).unwrap_or_default();
    let found = if configs.is_empty() { choice.by_names()? } else { choice.by_card(&configs)? };
    choice.of_one_format(found)
}

fn is_data(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    RowFormat::of(name).is_some()
        && !DESCRIPTIONS.contains(&name)
        && path.split('/').all(|part| !part.starts_with('.'))
}

/// The configurations in the front matter of a card.
fn configs(card: &str) -> Vec<Value> {
    let front = || {
        let rest = card.trim_start_matches('\u{feff}').strip_prefix("---")?;
        let (front, _) = rest.split_once("\n---")?;
        let tree = yaml::parse(front, 0).ok()?;
        let configs =
            tree.get("configs")?.to_json("configs", &mut |_, text, _| Value::String(text.to_owned()));
        configs.as_array().cloned()
    };
    front().unwrap_or_default()
}

struct Choice<'a> {
    address: &'a HubAddress,
    data: Vec<&'a HubFile>,
}

impl<'a> Choice<'a> {
    fn failed(&self, reason: impl Into<String>) -> HubDataError {
        HubDataError::Choice { address: self.address.to_string(), reason: reason.into() }
    }

    fn by_card(&self, configs: &[Value]) -> Result<Vec<&'a HubFile>, HubDataError> {
        let name = |config: &Value| config["config_name"].as_str().unwrap_or("default").to_owned();
        let chosen = match &self.address.config {
            Some(wanted) => configs.iter().find(|config| name(config) == *wanted),
            None => match configs {
                [only] => Some(only),
                several => several
                    .iter()
                    .find(|config| config["default"] == true)
                    .or_else(|| several.iter().find(|config| name(config) == "default")),
            },
        };
        let config = chosen.ok_or_else(|| {
            let known = listed(configs.iter().map(name));
            self.failed(match &self.address.config {
                Some(wanted) => format!("it has no configuration `{wanted}`; it has {known}"),
                None => {
                    format!("choose a configuration, as in hf:{}/NAME; it has {known}", self.address.repo)
                }
            })
        })?;
        let dir = config["data_dir"].as_str().map(|dir| dir.trim_matches('/'));
        let splits: Vec<(Option<String>, Vec<&str>)> = match &config["data_files"] {
            Value::Null => {
                let inside = |file: &&&HubFile| {
                    dir.is_none_or(|dir| {
                        file.path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
                    })
                };
                return self.of_split(self.data.iter().filter(inside).copied().collect());
            }
            Value::Array(entries) if entries.iter().any(Value::is_object) => entries
                .iter()
                .map(|entry| (entry["split"].as_str().map(str::to_owned), patterns(&entry["path"])))
                .collect(),
            other => vec![(None, patterns(other))],
        };
        let matching = |patterns: &[&str]| self.matching(patterns, dir);
        if let [(None, patterns)] = &splits[..] {
            return self.of_split(matching(patterns));
        }
        let known: Vec<&str> = splits.iter().filter_map(|(split, _)| split.as_deref()).collect();
        let split = self.split_of(&known)?;
        let found = splits.iter().find(|(name, _)| name.as_deref() == Some(split));
        Ok(found.map(|(_, patterns)| matching(patterns)).unwrap_or_default())
    }

    fn matching(&self, patterns: &[&str], dir: Option<&str>) -> Vec<&'a HubFile> {
        let globs = patterns.iter().filter_map(|pattern| {
            let pattern = pattern.trim_start_matches("./");
            let pattern = dir.map_or_else(|| pattern.to_owned(), |dir| format!("{dir}/{pattern}"));
            GlobBuilder::new(&pattern).literal_separator(true).build().ok().map(|glob| glob.compile_matcher())
        });
        let globs: Vec<_> = globs.collect();
        self.data.iter().filter(|file| globs.iter().any(|glob| glob.is_match(&file.path))).copied().collect()
    }

    fn by_names(&self) -> Result<Vec<&'a HubFile>, HubDataError> {
        let Some(config) = &self.address.config else { return self.of_split(self.data.clone()) };
        let is_of = |file: &&&HubFile| {
            let mut parts = file.path.split('/').rev();
            let stem = parts.next().and_then(|name| name.rsplit_once('.')).map_or("", |(stem, _)| stem);
            stem == config
                || stem.strip_prefix(config.as_str()).is_some_and(|rest| rest.starts_with(['-', '_']))
                || parts.any(|part| part == config)
        };
        let found: Vec<_> = self.data.iter().filter(is_of).copied().collect();
        if found.is_empty() {
            let names = listed(self.data.iter().map(|file| file.path.as_str()));
            return Err(self.failed(format!("it has no files of a configuration `{config}`; it has {names}")));
        }
        self.of_split(found)
    }

    /// The files of the split among some files, by their names.
    fn of_split(&self, files: Vec<&'a HubFile>) -> Result<Vec<&'a HubFile>, HubDataError> {
        let wanted = self.address.split.as_deref();
        // A split that has an unusual name, such as `gpqa_diamond`.
        if let Some(wanted) = wanted.filter(|wanted| SPLITS.iter().all(|(split, _)| split != wanted)) {
            let is_of = |file: &&HubFile| {
                file.path.split(['/', '.']).any(|part| {
                    part == wanted || part.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('-'))
                })
            };
            let found: Vec<_> = files.iter().copied().filter(is_of).collect();
            return match found.is_empty() {
                false => self.of_one_directory(found),
                true => {
                    let names = listed(files.iter().map(|file| file.path.as_str()));
                    Err(self.failed(format!("it has no files of a split `{wanted}`; it has {names}")))
                }
            };
        }
        let splits: BTreeSet<&str> = files.iter().filter_map(|file| split_in(&file.path)).collect();
        if splits.is_empty() {
            // All rows are one split, which is called `train` by convention.
            return match wanted {
                None | Some("train") => self.of_one_directory(files),
                Some(wanted) => {
                    Err(self.failed(format!("it has no split `{wanted}`; its files name no split")))
                }
            };
        }
        let split = self.split_of(&splits.into_iter().collect::<Vec<_>>())?;
        self.of_one_directory(files.into_iter().filter(|file| split_in(&file.path) == Some(split)).collect())
    }

    /// The split to use: the one asked for, the only one, or `test`.
    fn split_of<'s>(&self, known: &[&'s str]) -> Result<&'s str, HubDataError> {
        let wanted = self.address.split.as_deref();
        let found = match (wanted, known) {
            (Some(wanted), _) => known.iter().find(|split| **split == wanted),
            (None, [only]) => Some(only),
            (None, _) => known.iter().find(|split| **split == DEFAULT_SPLIT),
        };
        found.copied().ok_or_else(|| {
            let splits = listed(known);
            self.failed(match wanted {
                Some(wanted) => format!("it has no split `{wanted}`; it has {splits}"),
                None => format!("choose a split, as in hf:{}:NAME; it has {splits}", self.address.repo),
            })
        })
    }

    /// Files in several directories are different configurations, unless one was chosen.
    fn of_one_directory(&self, files: Vec<&'a HubFile>) -> Result<Vec<&'a HubFile>, HubDataError> {
        let directory = |file: &HubFile| file.path.rsplit_once('/').map_or(".", |(dir, _)| dir).to_owned();
        let directories: BTreeSet<String> = files.iter().map(|file| directory(file)).collect();
        if self.address.config.is_none() && directories.len() > 1 {
            let names = listed(directories);
            let repo = &self.address.repo;
            return Err(self
                .failed(format!("choose a configuration, as in hf:{repo}/NAME; its files are in {names}")));
        }
        Ok(files)
    }

    /// Keeps the files of one format: datasets often have the same rows in several.
    fn of_one_format(&self, files: Vec<&HubFile>) -> Result<Vec<HubFile>, HubDataError> {
        let formats: BTreeSet<RowFormat> =
            files.iter().filter_map(|file| RowFormat::of(&file.path)).collect();
        let Some(best) = formats.iter().find(|format| format.is_readable()).or_else(|| formats.first())
        else {
            return Err(self.failed("no file matches the patterns in its card"));
        };
        Ok(files.into_iter().filter(|file| RowFormat::of(&file.path) == Some(*best)).cloned().collect())
    }
}

fn patterns(value: &Value) -> Vec<&str> {
    match value {
        Value::String(pattern) => vec![pattern],
        Value::Array(patterns) => patterns.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// The split that the name of a file, or otherwise a directory around it, contains as a word.
fn split_in(path: &str) -> Option<&'static str> {
    path.rsplit('/').find_map(|part| {
        let lower = part.to_ascii_lowercase();
        let words: Vec<&str> = lower.split(|char: char| !char.is_ascii_alphabetic()).collect();
        let known = |(split, names): &(&'static str, &[&str])| {
            names.iter().any(|name| words.contains(name)).then_some(*split)
        };
        SPLITS.iter().find_map(known)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(paths: &[&str], card: Option<&str>, address: &str) -> Result<Vec<String>, String> {
        let file =
            |path: &&str| HubFile { path: (*path).to_owned(), size: 1, id: String::new(), is_cached: false };
        let all: Vec<_> = paths.iter().map(file).collect();
        let found = files(&all, card, &address.parse().unwrap()).map_err(|error| error.to_string())?;
        Ok(found.into_iter().map(|file| file.path).collect())
    }

    const GSM8K: [&str; 5] = [
        "README.md",
        "main/test-00000-of-00001.jsonl",
        "main/train-00000-of-00001.jsonl",
        "socratic/test.jsonl",
        "x.py",
    ];

    #[test]
    fn splits_and_configurations_are_found_by_names() {
        for (paths, address, expected) in [
            (&["test.jsonl", "README.md"][..], "hf:a/b", &["test.jsonl"][..]),
            (&["train.csv", "test.csv"], "hf:a/b", &["test.csv"]),
            (&["train.csv", "test.csv"], "hf:a/b:train", &["train.csv"]),
            (&["data/dev.jsonl", "data/train.jsonl"], "hf:a/b:validation", &["data/dev.jsonl"]),
            (&GSM8K, "hf:a/b/main", &["main/test-00000-of-00001.jsonl"]),
            (&GSM8K, "hf:a/b/socratic:test", &["socratic/test.jsonl"]),
            (
                &["main/test/0000.json", "main/test/0001.json"],
                "hf:a/b",
                &["main/test/0000.json", "main/test/0001.json"],
            ),
            (&["gpqa_diamond.csv", "gpqa_main.csv"], "hf:a/b/gpqa_diamond", &["gpqa_diamond.csv"]),
            (&["gpqa_diamond.csv", "gpqa_main.csv"], "hf:a/b:gpqa_diamond", &["gpqa_diamond.csv"]),
            (&["simple_qa_test_set.csv"], "hf:a/b", &["simple_qa_test_set.csv"]),
            (&["latest/x.jsonl"], "hf:a/b", &["latest/x.jsonl"]),
            (&["data.csv", "data.jsonl", ".hidden/x.csv", "dataset_info.json"], "hf:a/b", &["data.jsonl"]),
        ] {
            assert_eq!(chosen(paths, None, address).unwrap(), expected, "{address} of {paths:?}");
        }
    }

    #[test]
    fn the_card_decides_if_it_lists_configurations() {
        let card = "---\nlicense: mit\nconfigs:\n- config_name: main\n  default: true\n  data_files:\n  - split: train\n    path: main/train-*\n  - split: test\n    path: [main/test-*]\n- config_name: socratic\n  data_files: socratic/*.jsonl\n---\n# GSM8K\n";
        assert_eq!(chosen(&GSM8K, Some(card), "hf:a/b").unwrap(), ["main/test-00000-of-00001.jsonl"]);
        assert_eq!(chosen(&GSM8K, Some(card), "hf:a/b:train").unwrap(), ["main/train-00000-of-00001.jsonl"]);
        assert_eq!(chosen(&GSM8K, Some(card), "hf:a/b/socratic").unwrap(), ["socratic/test.jsonl"]);
        insta::assert_snapshot!(
            chosen(&GSM8K, Some(card), "hf:a/b/other").unwrap_err(),
            @"hf:a/b/other: it has no configuration `other`; it has main, socratic"
        );
        insta::assert_snapshot!(
            chosen(&GSM8K, Some(card), "hf:a/b:dev").unwrap_err(),
            @"hf:a/b:dev: it has no split `dev`; it has train, test"
        );
    }

    #[test]
    fn what_is_not_clear_is_asked_for() {
        insta::assert_snapshot!(
            chosen(&GSM8K, None, "hf:a/b").unwrap_err(),
            @"hf:a/b: choose a configuration, as in hf:a/b/NAME; its files are in main, socratic"
        );
        insta::assert_snapshot!(
            chosen(&["train.csv", "dev.csv"], None, "hf:a/b").unwrap_err(),
            @"hf:a/b: choose a split, as in hf:a/b:NAME; it has train, validation"
        );
        insta::assert_snapshot!(
            chosen(&["README.md", "x.bin"], None, "hf:a/b").unwrap_err(),
            @"hf:a/b: it has no JSON Lines, JSON, CSV or Parquet file"
        );
    }
}
