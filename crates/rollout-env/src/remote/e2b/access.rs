//! The credentials of E2B, from the places where its own programs look for them.

use std::fs;

use secrecy::SecretString;
use serde::Deserialize;

use super::{super::CloudConnectError, VENDOR};
use crate::host::CloudAccess;

/// The domain of the service.
const DOMAIN: &str = "e2b.app";

/// The file that `e2b auth login` writes, in the home directory.
const CONFIG: &str = ".e2b/config.json";

/// How to reach E2B.
#[derive(Debug, Clone)]
pub(super) struct Access {
    pub(super) key: SecretString,
    /// The address of the API, without a slash at the end.
    pub(super) api: String,
    pub(super) domain: String,
    /// One address for all sandboxes, for installations without a domain of their own.
    pub(super) sandboxes: Option<String>,
}

/// The part of the file that is needed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LoginFile {
    team_api_key: Option<String>,
}

impl Access {
    /// Finds the key and the addresses. `domain` is that of the job.
    pub(super) fn find(place: &CloudAccess, domain: Option<&str>) -> Result<Self, CloudConnectError> {
        let text = |name: &str| place.variable(name).map(|url| url.trim_end_matches('/').to_owned());
        let key = match place.variable("E2B_API_KEY") {
            Some(key) => Some(key.to_owned()),
            None => login_key(place)?,
        };
        let key = key.ok_or(CloudConnectError::NoCredentials {
            vendor: VENDOR,
            hint: "set E2B_API_KEY, or run `e2b auth login`, which writes ~/.e2b/config.json",
        })?;
        let domain =
            domain.map(str::to_owned).or_else(|| text("E2B_DOMAIN")).unwrap_or_else(|| DOMAIN.to_owned());
        Ok(Self {
            key: SecretString::from(key.trim().to_owned()),
            api: text("E2B_API_URL").unwrap_or_else(|| format!("https://api.{domain}")),
            sandboxes: text("E2B_SANDBOX_URL"),
            domain,
        })
    }
}

fn login_key(place: &CloudAccess) -> Result<Option<String>, CloudConnectError> {
    let Some(path) = place.home_file(CONFIG).filter(|path| path.exists()) else { return Ok(None) };
    let unreadable = |reason: &str| CloudConnectError::Unauthorized {
        vendor: VENDOR,
        // The text of the file may be secret.
        reason: format!("{} {reason}", path.display()),
    };
    let text = fs::read(&path).map_err(|error| unreadable(&format!("cannot be read: {error}")))?;
    let file: LoginFile =
        serde_json::from_slice(&text).map_err(|_| unreadable("is not a valid login file"))?;
    Ok(file.team_api_key.filter(|key| !key.is_empty()))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn the_variable_goes_before_the_file_of_the_login() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().to_owned();
        let variables = |key: Option<&'static str>| {
            CloudAccess::from_variables(|name| match name {
                "HOME" => Some(path.clone().into()),
                "E2B_API_KEY" => key.map(Into::into),
                _ => None,
            })
        };
        let missing = Access::find(&variables(None), None).unwrap_err();
        assert!(missing.hint().unwrap().contains("E2B_API_KEY"));
        fs::create_dir(path.join(".e2b")).unwrap();
        fs::write(path.join(CONFIG), r#"{"email": "a@b", "teamApiKey": "e2b_file"}"#).unwrap();
        let access = Access::find(&variables(None), None).unwrap();
        assert_eq!((access.key.expose_secret(), access.api.as_str()), ("e2b_file", "https://api.e2b.app"));
        let access = Access::find(&variables(Some("e2b_variable")), Some("own.example")).unwrap();
        assert_eq!(access.key.expose_secret(), "e2b_variable");
        assert_eq!(access.api, "https://api.own.example");
        assert!(!format!("{access:?}").contains("e2b_variable"));
        fs::write(path.join(CONFIG), "secret words").unwrap();
        let error = Access::find(&variables(None), None).unwrap_err().to_string();
        assert!(error.contains("config.json") && !error.contains("secret words"), "{error}");
    }
}
