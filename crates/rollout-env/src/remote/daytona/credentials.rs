//! The key of an account, from the variables and the file that Daytona's own programs use.

use std::{path::Path, time::Duration};

use jiff::Timestamp;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;

use super::super::CloudConnectError;
use crate::host::CloudAccess;

/// The service, if no variable names another.
const SERVICE: &str = "https://app.daytona.io/api";

/// The file of Daytona's command line, in the home directory.
#[cfg(not(target_os = "macos"))]
const FILE: &str = ".config/daytona/config.json";
#[cfg(target_os = "macos")]
const FILE: &str = "Library/Application Support/daytona/config.json";

const HINT: &str = "set DAYTONA_API_KEY, or run `daytona login`, which writes daytona/config.json in your \
                    configuration directory";

/// A login whose token ends sooner is not used.
const LEAST_LEFT: Duration = Duration::from_secs(60);

/// An account.
pub(super) struct Credentials {
    /// The address of the API, without a slash at the end.
    pub(super) url: String,
    secret: SecretString,
    /// A login may belong to several organizations; a key belongs to one.
    organization: Option<String>,
    /// The region of the user's settings.
    pub(super) target: Option<String>,
}

impl Credentials {
    /// Finds an account; `None` if there is no key.
    pub(super) fn find(access: &CloudAccess) -> Result<Option<Self>, CloudConnectError> {
        let text = |name: &str| access.variable(name).map(str::to_owned);
        let url = text("DAYTONA_API_URL");
        let (organization, target) = (text("DAYTONA_ORGANIZATION_ID"), text("DAYTONA_TARGET"));
        if let Some(key) = text("DAYTONA_API_KEY") {
            let url = address(url.as_deref().unwrap_or(SERVICE));
            return Ok(Some(Self { url, secret: key.into(), organization, target }));
        }
        let Some(path) = access.home_file(FILE).filter(|path| path.exists()) else { return Ok(None) };
        let Some(profile) = active_profile(&path)? else { return Ok(None) };
        let said = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let api = &profile["api"];
        let url = address(&url.or_else(|| said(&api["url"])).unwrap_or_else(|| SERVICE.to_owned()));
        let organization = organization.or_else(|| said(&profile["activeOrganizationId"]));
        if let Some(key) = said(&api["key"]) {
            return Ok(Some(Self { url, secret: key.into(), organization: None, target }));
        }
        let Some(token) = said(&api["token"]["accessToken"]) else { return Ok(None) };
        let ends = said(&api["token"]["expiresAt"]).and_then(|time| time.parse::<Timestamp>().ok());
        if ends.is_some_and(|end| end < Timestamp::now() + LEAST_LEFT) {
            let reason = format!(
                "the login in {} has expired; run `daytona login`, or set DAYTONA_API_KEY",
                path.display()
            );
            return Err(CloudConnectError::Unauthorized { vendor: super::VENDOR, reason });
        }
        Ok(Some(Self { url, secret: token.into(), organization, target }))
    }

    /// The error for a machine without a key.
    pub(super) fn missing() -> CloudConnectError {
        CloudConnectError::NoCredentials { vendor: super::VENDOR, hint: HINT }
    }

    /// The headers that identify the account.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        // A value that is no header is refused by the service like any invalid key.
        if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", self.secret.expose_secret())) {
            value.set_sensitive(true);
            headers.insert(reqwest::header::AUTHORIZATION, value);
        }
        if let Some(value) = self.organization.as_deref().and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(HeaderName::from_static("x-daytona-organization-id"), value);
        }
        headers
    }

    /// Removes the key from a text of the service.
    pub(super) fn without_secret(&self, text: &str) -> String {
        let secret = self.secret.expose_secret();
        if secret.is_empty() { text.to_owned() } else { text.replace(secret, "***") }
    }
}

fn address(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}

/// The profile that Daytona's command line uses.
fn active_profile(path: &Path) -> Result<Option<Value>, CloudConnectError> {
    let invalid = |reason: String| CloudConnectError::Unauthorized {
        vendor: super::VENDOR,
        reason: format!("cannot read {}: {reason}", path.display()),
    };
    let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
    // The text of the error could show a part of the file.
    let file: Value =
        serde_json::from_str(&text).map_err(|error| invalid(format!("line {} is not JSON", error.line())))?;
    let profiles = file["profiles"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(profiles.iter().find(|profile| profile["id"] == file["activeProfile"]).cloned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn access(variables: &[(&str, &str)], file: Option<&Value>) -> (CloudAccess, tempfile::TempDir) {
        let home = tempfile::tempdir().unwrap();
        if let Some(file) = file {
            let path = home.path().join(FILE);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file.to_string()).unwrap();
        }
        let access = CloudAccess::from_variables(|name| match name {
            "HOME" => Some(home.path().into()),
            _ => variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()),
        });
        (access, home)
    }

    fn file(api: &Value) -> Value {
        json!({"activeProfile": "b", "profiles": [
            {"id": "a", "api": {"url": "http://other", "key": "wrong"}},
            {"id": "b", "api": api, "activeOrganizationId": "org"},
        ]})
    }

    fn sent(credentials: &Credentials) -> (String, Option<String>) {
        let headers = credentials.headers();
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        (text("authorization").unwrap(), text("x-daytona-organization-id"))
    }

    #[test]
    fn a_variable_comes_before_the_file() {
        let variables =
            [("DAYTONA_API_KEY", "dtn_1"), ("DAYTONA_API_URL", "http://here/api/"), ("DAYTONA_TARGET", "eu")];
        let (access, _home) = access(&variables, Some(&file(&json!({"key": "dtn_2"}))));
        let found = Credentials::find(&access).unwrap().unwrap();
        assert_eq!((found.url.as_str(), found.target.as_deref()), ("http://here/api", Some("eu")));
        assert_eq!(sent(&found), ("Bearer dtn_1".to_owned(), None));
        assert_eq!(found.without_secret("a dtn_1 b"), "a *** b");
    }

    #[test]
    fn the_active_profile_of_the_command_line_is_used() {
        let (with_key, _home) = access(&[], Some(&file(&json!({"url": "http://there", "key": "dtn_2"}))));
        let found = Credentials::find(&with_key).unwrap().unwrap();
        assert_eq!((found.url.as_str(), sent(&found)), ("http://there", ("Bearer dtn_2".to_owned(), None)));
        let token = json!({"token": {"accessToken": "jwt", "expiresAt": "2999-01-01T00:00:00Z"}});
        let (login, _home) = access(&[], Some(&file(&token)));
        let found = Credentials::find(&login).unwrap().unwrap();
        assert_eq!((found.url.as_str(), sent(&found).1.as_deref()), (SERVICE, Some("org")));
    }

    #[test]
    fn a_missing_key_and_a_login_that_has_expired_are_different_errors() {
        let (empty, _home) = access(&[], None);
        assert!(Credentials::find(&empty).unwrap().is_none());
        let token = json!({"token": {"accessToken": "jwt", "expiresAt": "2020-01-01T00:00:00Z"}});
        let (late, _home) = access(&[], Some(&file(&token)));
        let error = Credentials::find(&late).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("has expired") && !error.contains("jwt"), "{error}");
    }
}
