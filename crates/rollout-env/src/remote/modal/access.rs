//! The credentials of the user, from the variables and the file of Modal's own program.

use std::path::Path;

use secrecy::SecretString;

use crate::host::CloudAccess;

/// The servers, if the user names none. The second is for outages of the first.
const SERVERS: &str = "https://api.modal.com,https://api.modal2.com";

/// Where credentials are looked for.
pub(super) const HINT: &str =
    "run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET; the file is ~/.modal.toml";

/// The profile of a file in which none is marked as active.
const PROFILE: &str = "default";

/// The user's access to an account.
pub(super) struct Access {
    /// The addresses of the API, in the order in which they are tried.
    pub(super) servers: Vec<String>,
    pub(super) token_id: String,
    pub(super) token_secret: SecretString,
    /// The environment of the profile.
    pub(super) environment: Option<String>,
}

/// Why the user's file cannot be used. It never quotes the file, which has the secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    #[error("cannot read {path}: {source}")]
    Unreadable { path: String, source: std::io::Error },
    #[error("{0} is not a valid TOML file with a table for each profile")]
    Invalid(String),
    #[error("{path} has no profile `{profile}`")]
    NoProfile { path: String, profile: String },
}

impl Access {
    /// Finds the credentials; `None` if there are none.
    pub(super) fn find(place: &CloudAccess) -> Result<Option<Self>, AccessError> {
        let file = match place.variable("MODAL_CONFIG_PATH") {
            Some(path) => Some(path.into()),
            None => place.home_file(".modal.toml"),
        };
        let profile = match file {
            Some(path) => profile(&path, place.variable("MODAL_PROFILE"))?,
            None => toml::Table::new(),
        };
        let setting = |variable: &str, key: &str| {
            let of_file = || profile.get(key).and_then(toml::Value::as_str);
            place.variable(variable).or_else(of_file).filter(|value| !value.is_empty()).map(str::to_owned)
        };
        let id = setting("MODAL_TOKEN_ID", "token_id");
        let secret = setting("MODAL_TOKEN_SECRET", "token_secret");
        let (Some(token_id), Some(token_secret)) = (id, secret) else { return Ok(None) };
        let servers = setting("MODAL_SERVER_URL", "server_url").unwrap_or_else(|| SERVERS.to_owned());
        Ok(Some(Self {
            servers: servers.split(',').map(|url| url.trim().to_owned()).collect(),
            token_id,
            token_secret: token_secret.into(),
            environment: setting("MODAL_ENVIRONMENT", "environment"),
        }))
    }
}

/// The table of a profile. A missing file has none.
fn profile(path: &Path, name: Option<&str>) -> Result<toml::Table, AccessError> {
    let shown = || path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(toml::Table::new()),
        Err(source) => return Err(AccessError::Unreadable { path: shown(), source }),
    };
    // The parser's message would quote a line of the file.
    let profiles: toml::Table = text.parse().map_err(|_| AccessError::Invalid(shown()))?;
    if !profiles.values().all(toml::Value::is_table) {
        return Err(AccessError::Invalid(shown()));
    }
    let is_active = |table: &toml::Value| table.get("active").and_then(toml::Value::as_bool) == Some(true);
    let active = profiles.iter().find(|(_, table)| is_active(table)).map(|(name, _)| name.as_str());
    let chosen = name.or(active).unwrap_or(PROFILE);
    match profiles.get(chosen) {
        Some(toml::Value::Table(table)) => Ok(table.clone()),
        _ if name.is_some() => Err(AccessError::NoProfile { path: shown(), profile: chosen.to_owned() }),
        _ => Ok(toml::Table::new()),
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    fn find(file: &str, variables: &[(&str, &str)]) -> Result<Option<Access>, AccessError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(".modal.toml"), file).unwrap();
        Access::find(&CloudAccess::from_variables(|name| {
            if name == "HOME" {
                return Some(dir.path().into());
            }
            variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into())
        }))
    }

    const FILE: &str = "[one]\ntoken_id = \"ak-1\"\ntoken_secret = \"as-1\"\nenvironment = \"dev\"\n\
                        [two]\ntoken_id = \"ak-2\"\ntoken_secret = \"as-2\"\nactive = true\n";

    #[test]
    fn the_active_profile_is_used() {
        let access = find(FILE, &[]).unwrap().unwrap();
        assert_eq!((access.token_id.as_str(), access.token_secret.expose_secret()), ("ak-2", "as-2"));
        assert_eq!(access.servers, ["https://api.modal.com", "https://api.modal2.com"]);
        assert_eq!(access.environment, None);
    }

    #[test]
    fn variables_win_over_the_file() {
        let access = find(FILE, &[("MODAL_PROFILE", "one"), ("MODAL_TOKEN_ID", "ak-3")]).unwrap().unwrap();
        assert_eq!((access.token_id.as_str(), access.token_secret.expose_secret()), ("ak-3", "as-1"));
        assert_eq!(access.environment.as_deref(), Some("dev"));
        let access = find(FILE, &[("MODAL_SERVER_URL", "http://127.0.0.1:1")]).unwrap().unwrap();
        assert_eq!(access.servers, ["http://127.0.0.1:1"]);
    }

    #[test]
    fn half_a_token_is_none() {
        assert!(find("", &[("MODAL_TOKEN_ID", "ak-3")]).unwrap().is_none());
        assert!(find("[one]\ntoken_id = \"ak-1\"\n", &[]).unwrap().is_none());
    }

    #[test]
    fn errors_do_not_quote_the_file() {
        let error = |file, variables| find(file, variables).err().unwrap().to_string();
        let text = error("token_secret = as-secret", &[]);
        assert!(text.contains("not a valid TOML file") && !text.contains("as-secret"), "{text}");
        assert!(error("token_secret = \"as-1\"", &[]).contains("a table for each profile"));
        assert!(error(FILE, &[("MODAL_PROFILE", "three")]).contains("has no profile `three`"));
    }
}
