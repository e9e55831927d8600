//! Where in accounts the jobs of this machine have created sandboxes, recorded so that `rollout clean` finds them.
//!
//! A job file can name another app, organization, environment or domain than the default. Each combination is a file
//! `<state>/clouds/<vendor>-place-<hash>.json`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rollout_core::text::hex;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// The settings of `provider_config` that choose a place in an account.
pub(crate) type PlaceSettings = Map<String, Value>;

/// The directory of the files, in the state directory.
const DIRECTORY: &str = "clouds";

/// Records a place before the first sandbox is created in it. The default of an account that has only one is empty, and
/// is not recorded.
pub(super) fn record(state_dir: &Path, vendor: &str, settings: &PlaceSettings) -> io::Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    let text = serde_json::to_string(settings)?;
    let hash = &hex(&Sha256::digest(&text))[..12];
    let path = state_dir.join(DIRECTORY).join(format!("{vendor}-place-{hash}.json"));
    if path.exists() {
        return Ok(());
    }
    let dir = state_dir.join(DIRECTORY);
    fs::create_dir_all(&dir)?;
    let file = tempfile::NamedTempFile::new_in(&dir)?;
    fs::write(file.path(), text)?;
    file.persist(path)?;
    Ok(())
}

/// The recorded places of a vendor, with their files. Invalid files are ignored.
pub(super) fn recorded(state_dir: &Path, vendor: &str) -> Vec<(PlaceSettings, PathBuf)> {
    let entries = fs::read_dir(state_dir.join(DIRECTORY)).into_iter().flatten().flatten();
    let start = format!("{vendor}-place-");
    let mut files: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&start))
        .map(|entry| entry.path())
        .collect();
    files.sort_unstable();
    let read = |path: PathBuf| Some((serde_json::from_slice(&fs::read(&path).ok()?).ok()?, path));
    files.into_iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_place_is_recorded_once_for_its_vendor() {
        let state = tempfile::tempdir().unwrap();
        let place = |app: &str| json!({"app": app}).as_object().unwrap().clone();
        for (vendor, app) in [("modal", "one"), ("modal", "two"), ("modal", "one"), ("fly", "three")] {
            record(state.path(), vendor, &place(app)).unwrap();
        }
        record(state.path(), "modal", &PlaceSettings::new()).unwrap();
        let mut found: Vec<_> = recorded(state.path(), "modal").into_iter().map(|(place, _)| place).collect();
        found.sort_by_key(|place| place["app"].to_string());
        assert_eq!(found, [place("one"), place("two")]);
        fs::write(state.path().join("clouds/fly-place-x.json"), "{").unwrap();
        assert_eq!(recorded(state.path(), "fly").len(), 1);
        assert!(recorded(state.path(), "e2b").is_empty());
    }
}
