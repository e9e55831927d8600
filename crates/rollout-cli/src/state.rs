//! The directory for images, layers, checkouts and running environments.

use std::{ffi::OsString, path::PathBuf};

/// No state directory is configured.
#[derive(Debug, thiserror::Error)]
#[error("no directory for Rollout's cache: HOME is not set; set ROLLOUT_STATE_DIR to a directory")]
pub(crate) struct NoStateDir;

/// `$ROLLOUT_STATE_DIR`, else `$XDG_CACHE_HOME/rollout`, else `~/.cache/rollout`.
pub(crate) fn state_dir() -> Result<PathBuf, NoStateDir> {
    choose(|name| std::env::var_os(name))
}

fn choose(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, NoStateDir> {
    let path = |name: &str| variable(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
    let absolute = |name: &str| path(name).filter(|path| path.is_absolute());
    path("ROLLOUT_STATE_DIR")
        .map(|path| std::path::absolute(&path).unwrap_or(path))
        .or_else(|| absolute("XDG_CACHE_HOME").map(|cache| cache.join("rollout")))
        .or_else(|| absolute("HOME").map(|home| home.join(".cache/rollout")))
        .ok_or(NoStateDir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(variables: &[(&str, &str)]) -> Option<String> {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        choose(variable).ok().map(|path| path.display().to_string())
    }

    #[test]
    fn the_state_directory_follows_the_environment() {
        let all = [("ROLLOUT_STATE_DIR", "/s"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/h")];
        assert_eq!(chosen(&all).as_deref(), Some("/s"));
        assert_eq!(chosen(&all[1..]).as_deref(), Some("/c/rollout"));
        assert_eq!(chosen(&all[2..]).as_deref(), Some("/h/.cache/rollout"));
        assert_eq!(chosen(&[("XDG_CACHE_HOME", "relative"), ("HOME", "")]), None);
    }
}
