//! The questions of a benchmark that are rows of a dataset on a hub.

use std::{fs, io, path::PathBuf};

use rollout::config::{HubAddress, LoadedBenchmark, Override, is_hub_address};
use serde_json::json;

use super::{datasets, sources::sources};
use crate::{exit::Failure, state::state_dir};

/// The settings that replace an address on a hub by a file with its rows, fetched where they are not there yet. Empty if
/// the questions are in a file already.
pub(crate) async fn overrides(loaded: &LoadedBenchmark) -> Result<Vec<Override>, Failure> {
    let config = &loaded.config;
    let address =
        config.data_path.as_deref().and_then(|path| path.to_str()).filter(|text| is_hub_address(text));
    let Some(text) = address else { return Ok(Vec::new()) };
    let address: HubAddress = text.parse()?;
    let file = fetched(text).await?;
    let over = |key: &str, value: &str| Override { key: key.to_owned(), value: json!(value).to_string() };
    let path = file.to_str().ok_or_else(|| format!("the path {} is not UTF-8", file.display()))?;
    let mut overrides = vec![over("data_path", path)];
    // Otherwise the benchmark would have the name of that file.
    if config.benchmark_name.is_none() {
        overrides.push(over("benchmark_name", address.repo.name()));
    }
    Ok(overrides)
}

/// The file with the rows of a dataset. Its name holds the revision, so a later run of the same one finds it.
async fn fetched(text: &str) -> Result<PathBuf, Failure> {
    let config = datasets::parsed(text)?;
    let dataset = datasets::fetch(&config, &sources(false)?).await?;
    let rows = dataset.rows.ok_or_else(|| format!("{text} has no rows"))?;
    let revisions: Vec<&str> = dataset.resolved.values().map(String::as_str).collect();
    let name = file_name(&format!("{text} {}", revisions.join(" ")));
    let dir = state_dir()?.join("questions");
    let file = dir.join(format!("{name}.jsonl"));
    let failed = |error: io::Error| Failure::from(format!("cannot write {}: {error}", file.display()));
    if !file.exists() {
        fs::create_dir_all(&dir).map_err(failed)?;
        let unfinished = dir.join(format!("{name}.{}", std::process::id()));
        let written =
            datasets::write_questions(&rows, &unfinished).and_then(|()| fs::rename(&unfinished, &file));
        written.map_err(failed)?;
    }
    Ok(file)
}

/// A text as the name of a file: different texts have different names.
fn file_name(text: &str) -> String {
    let mut name = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => name.push(char::from(byte)),
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn different_addresses_have_different_files() {
        assert_eq!(file_name("hf:a/b:test c0"), "hf%3aa%2fb%3atest%20c0");
        assert_ne!(file_name("hf:a/b"), file_name("hf:a_b"));
    }
}
