//! The package registries of this machine, from the settings that npm and pip use.

use std::{collections::HashMap, fs, path::PathBuf, sync::Arc};

use rollout::packages::{PackageSources, Packages};

use crate::{exit::Failure, state::state_dir};

/// Variables that programs which fetch packages need to reach the registries.
const PASSED_ON: [&str; 10] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "PATH",
];

/// Returns the packages of this machine. Nothing is fetched yet.
pub(crate) fn packages() -> Result<Arc<Packages>, Failure> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let npmrc = std::env::home_dir().and_then(|home| fs::read_to_string(home.join(".npmrc")).ok());
    let npmrc = npmrc.as_deref().map(parse_npmrc).unwrap_or_default();
    let npm_registry = ["npm_config_registry", "NPM_CONFIG_REGISTRY"].into_iter().find_map(variable);
    let npm_registry = npm_registry.or_else(|| npmrc.get("registry").cloned());
    let pypi_index = ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"].into_iter().find_map(variable);
    let mut variables: Vec<(String, String)> =
        PASSED_ON.iter().filter_map(|name| Some(((*name).to_owned(), variable(name)?))).collect();
    if let (Some(file), None) = (npmrc.get("cafile"), variable("NODE_EXTRA_CA_CERTS")) {
        variables.push(("NODE_EXTRA_CA_CERTS".to_owned(), file.clone()));
    }
    let sources = PackageSources {
        cache_dir: packages_dir()?,
        npm_token: npm_registry.as_ref().and_then(|registry| token(&npmrc, registry)).map(Into::into),
        npm_registry,
        pypi_index,
        python: PathBuf::from("python3"),
        variables,
    };
    Ok(Arc::new(Packages::new(sources)))
}

/// `$ROLLOUT_PACKAGES_DIR`, else a part of the state directory.
fn packages_dir() -> Result<PathBuf, Failure> {
    match std::env::var_os("ROLLOUT_PACKAGES_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => Ok(std::path::absolute(dir)?),
        None => Ok(state_dir()?),
    }
}

/// The keys and values of an .npmrc, with `${VAR}` expanded.
fn parse_npmrc(text: &str) -> HashMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs
        .map(|(key, value)| {
            let value = value.trim().trim_matches('"');
            let value = match value.strip_prefix("${").and_then(|value| value.strip_suffix('}')) {
                Some(name) => std::env::var(name).unwrap_or_default(),
                None => value.to_owned(),
            };
            (key.trim().to_owned(), value)
        })
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

/// The token of a registry, which an .npmrc has under its address without the scheme.
fn token(npmrc: &HashMap<String, String>, registry: &str) -> Option<String> {
    let (_, place) = registry.split_once(':')?;
    npmrc.get(&format!("{}/:_authToken", place.trim_end_matches('/'))).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_and_its_token_are_read_from_npmrc() {
        let npmrc = parse_npmrc(
            "# comment\nregistry = https://npm.example/x/\n//npm.example/x/:_authToken=\"t0\"\n; other\nempty=\n",
        );
        assert_eq!(npmrc["registry"], "https://npm.example/x/");
        assert_eq!(token(&npmrc, &npmrc["registry"]).as_deref(), Some("t0"));
        assert_eq!(token(&npmrc, "https://other.example"), None);
        assert!(!npmrc.contains_key("empty"));
    }
}
