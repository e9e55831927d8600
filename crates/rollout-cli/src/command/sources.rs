//! The registries, the hub and the cache of datasets, from the settings of this machine.

use std::{fs, path::PathBuf};

use rollout::{
    config::RegistryLocation,
    hub::DEFAULT_ENDPOINT,
    task::{HubAccess, Sources},
};

use super::load::variable;
use crate::{exit::Failure, state::state_dir};

/// The registries that datasets are looked up in: paths and URLs, separated by white space.
const REGISTRIES: &str = "ROLLOUT_REGISTRIES";

/// The word that stands for the public registries.
const PUBLIC: &str = "default";

/// Returns the sources of datasets. With `offline`, only files of this machine are used.
pub(crate) fn sources(offline: bool) -> Result<Sources, Failure> {
    let registries = filled(REGISTRIES).map_or_else(RegistryLocation::public, |text| registries(&text));
    let endpoint = filled("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
    let hub =
        HubAccess { endpoint, token: token(&filled, &|path| fs::read_to_string(path).ok()).map(Into::into) };
    Ok(Sources { registries, hub, offline, ..Sources::new(state_dir()?) })
}

fn filled(name: &str) -> Option<String> {
    variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn registries(text: &str) -> Vec<RegistryLocation> {
    let location = |word: &str| match word {
        PUBLIC => RegistryLocation::public(),
        url if url.starts_with("https://") || url.starts_with("http://") => {
            vec![RegistryLocation::Url(url.to_owned())]
        }
        path => vec![RegistryLocation::Path(PathBuf::from(path))],
    };
    text.split_whitespace().flat_map(location).collect()
}

/// The token of the hub, from where its own client keeps it: `HF_TOKEN`, or the file that `hf auth login` writes.
fn token(
    variable: &dyn Fn(&str) -> Option<String>,
    read: &dyn Fn(PathBuf) -> Option<String>,
) -> Option<String> {
    let file = || {
        let cache = || {
            let xdg = variable("XDG_CACHE_HOME").map(PathBuf::from);
            xdg.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))
        };
        let home = || variable("HF_HOME").map(PathBuf::from).or_else(|| Some(cache()?.join("huggingface")));
        let path = variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home()?.join("token")))?;
        read(path)
    };
    let token = variable("HF_TOKEN").or_else(file).map(|token| token.trim().to_owned());
    token.filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_token_is_found_where_the_hub_keeps_it() {
        let found = |variables: &[(&str, &str)], file: &str| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            token(&variable, &|path| (path.as_path() == Path::new(file)).then(|| "hf_file\n".to_owned()))
        };
        let file = Some("hf_file".to_owned());
        assert_eq!(found(&[("HF_TOKEN", "hf_x"), ("HF_TOKEN_PATH", "/t")], "/t"), Some("hf_x".to_owned()));
        assert_eq!(found(&[("HF_TOKEN_PATH", "/t"), ("HF_HOME", "/h")], "/t"), file);
        assert_eq!(found(&[("HF_HOME", "/h")], "/h/token"), file);
        assert_eq!(found(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/u")], "/c/huggingface/token"), file);
        assert_eq!(found(&[("HOME", "/u")], "/u/.cache/huggingface/token"), file);
        assert_eq!(found(&[], "/u/.cache/huggingface/token"), None);
    }

    #[test]
    fn registries_are_paths_urls_and_the_public_ones() {
        let mut expected = vec![
            RegistryLocation::Path(PathBuf::from("mine/registry.json")),
            RegistryLocation::Url("https://example.com/r.json".to_owned()),
        ];
        expected.extend(RegistryLocation::public());
        assert_eq!(registries("mine/registry.json  https://example.com/r.json\ndefault"), expected);
    }
}
