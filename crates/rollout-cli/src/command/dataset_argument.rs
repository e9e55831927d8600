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
