//! A dataset as the command line names it: a path, an address of git or of a hub, or a name in a registry.

use std::path::Path;

use rollout::config::{HubAddress, NamedDataset, is_git_address, is_hub_address};
use serde_json::{Value, json};

use crate::exit::Failure;

/// The entry of a job file for a dataset. `found` gives a path as the job file finds it.
pub(crate) fn entry(text: &str, found: impl Fn(&str) -> Result<String, Failure>) -> Result<Value, Failure> {
    let path = Path::new(text);
    if is_git_address(text) {
        return Ok(json!({"path": text}));
    }
    if is_hub_address(text) {
        let address: HubAddress = text.parse()?;
        let interaction = json!({"dataset": text, "rubric": [{"match": "exact"}]});
        return Ok(json!({"name": address.repo.name(), "interaction": interaction}));
    }
    if path.is_dir() {
        return Ok(json!({"path": found(text)?}));
    }
    if path.is_file() {
        return Ok(json!({"interaction": found(text)?}));
    }
    if text.contains('/') {
        if let Some(name) = package(text) {
            let failure = Failure::from(format!(
                "there is no file or directory {text:?}, and packages of Harbor's registry are not supported"
            ));
            let hint = format!(
                "download the package with `harbor download {text}`, and name its directory, such as `-d ./{name}`; \
                 `rollout datasets list` shows the datasets that have a name"
            );
            return Err(failure.hint(Some(hint)));
        }
        let failure = Failure::from(format!("there is no file or directory {text:?}"));
        return Err(failure.hint(Some("`rollout datasets list` shows the datasets that have a name")));
    }
    let NamedDataset { name, version } = text.into();
    let mut dataset = json!({"name": name});
    if let Some(version) = version {
        dataset["version"] = json!(version);
    }
    Ok(dataset)
}

/// The name of a package in Harbor's registry, as `org/name` or `org/name@ref`, without its organization.
fn package(text: &str) -> Option<&str> {
    let (name, reference) = text.split_once('@').unwrap_or((text, "latest"));
    let (org, name) = name.split_once('/')?;
    let is_word = |word: &str| {
        let allowed = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
        word.starts_with(|char: char| char.is_ascii_alphanumeric()) && word.chars().all(allowed)
    };
    let has_extension =
        [".yaml", ".yml", ".json", ".jsonl"].iter().any(|extension| name.ends_with(extension));
    (is_word(org) && is_word(name) && !reference.is_empty() && !has_extension).then_some(name)
}

/// Whether an argument that is not a path can only name a dataset. A name of a job file does not.
pub(crate) fn is_dataset(path: &Path) -> bool {
    let Some(text) = path.to_str().filter(|_| !path.exists()) else { return false };
    let is_file =
        path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|one| extension == *one));
    is_git_address(text) || is_hub_address(text) || !text.is_empty() && !text.contains('/') && !is_file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_has_an_organization_and_a_name() {
        for (text, expected) in [
            ("org/name", Some("name")),
            ("org/my-tasks@1.0", Some("my-tasks")),
            ("org/name@sha256:abc", Some("name")),
            ("./name", None),
            ("../name", None),
            ("/org/name", None),
            ("a/b/c", None),
            ("tasks/", None),
            ("jobs/job.yaml", None),
        ] {
            assert_eq!(package(text), expected, "{text}");
        }
    }

    #[test]
    fn a_name_is_no_path_and_no_job_file() {
        for (text, expected) in [
            ("terminal-bench", true),
            ("terminal-bench@2.0", true),
            ("git+https://example.org/tasks.git@main", true),
            ("hf:owner/name", true),
            ("job.yaml", false),
            ("tasks/sort", false),
            (".", false),
            ("", false),
        ] {
            assert_eq!(is_dataset(Path::new(text)), expected, "{text}");
        }
    }
}
