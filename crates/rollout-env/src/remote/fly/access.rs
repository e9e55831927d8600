//! The credentials and addresses of Fly, from the variables and the file of its own program.

use std::path::Path;

use rollout_settings::tree::Value;
use secrecy::{ExposeSecret as _, SecretString};

use crate::{host::CloudAccess, remote::CloudConnectError};

/// The name of the vendor in messages and job files.
pub(super) const VENDOR: &str = "fly";

const API: &str = "https://api.machines.dev";
const REGISTRY: &str = "registry.fly.io";

const HINT: &str = "set FLY_API_TOKEN to a token of `fly tokens create org`, or run `fly auth login`";

/// How Fly is reached.
#[derive(Clone)]
pub(super) struct Access {
    token: SecretString,
    /// The scheme of the token: tokens with limits have one of their own.
    scheme: &'static str,
    /// The address of the API, without a slash at its end.
    pub(super) api: String,
    /// The host of the registry.
    pub(super) registry: String,
    pub(super) app: Option<String>,
    pub(super) org: Option<String>,
    pub(super) region: Option<String>,
}

impl Access {
    /// Finds the credentials. Blocks.
    pub(super) fn find(clouds: &CloudAccess) -> Result<Self, CloudConnectError> {
        let missing = CloudConnectError::NoCredentials { vendor: VENDOR, hint: HINT };
        let variable = |name: &str| clouds.variable(name).map(str::to_owned);
        let from_file = || {
            let path = match clouds.variable("FLY_CONFIG_DIR") {
                Some(dir) => Some(Path::new(dir).join("config.yml")),
                None => clouds.home_file(".fly/config.yml"),
            };
            access_token(&std::fs::read_to_string(path?).ok()?)
        };
        let text = variable("FLY_ACCESS_TOKEN").or_else(|| variable("FLY_API_TOKEN")).or_else(from_file);
        let (scheme, token) = text.as_deref().and_then(parse_token).ok_or(missing)?;
        Ok(Self {
            token,
            scheme,
            api: variable("FLY_FLAPS_BASE_URL")
                .map_or_else(|| API.to_owned(), |url| url.trim_end_matches('/').to_owned()),
            registry: variable("FLY_REGISTRY_HOST").unwrap_or_else(|| REGISTRY.to_owned()),
            app: variable("FLY_APP"),
            org: variable("FLY_ORG"),
            region: variable("FLY_REGION"),
        })
    }

    /// The value of the header `Authorization`.
    pub(super) fn authorization(&self) -> SecretString {
        format!("{} {}", self.scheme, self.token.expose_secret()).into()
    }

    /// The password of the registry.
    pub(super) fn password(&self) -> &SecretString {
        &self.token
    }

    /// A text of the vendor without the token, should it quote a request.
    pub(super) fn without_token(&self, text: &str) -> String {
        text.replace(self.token.expose_secret(), "***")
    }
}

/// The token in the file of `fly auth login`.
fn access_token(text: &str) -> Option<String> {
    let tree = rollout_settings::yaml::parse(text, 0).ok()?;
    match &tree.get("access_token")?.value {
        Value::String(token) => Some(token.clone()),
        _ => None,
    }
}

/// Splits a list of tokens, and returns those that the API of machines accepts, with their scheme. Tokens with limits
/// exclude those of users.
fn parse_token(text: &str) -> Option<(&'static str, SecretString)> {
    let mut text = text.trim();
    while let Some((scheme, rest)) = text.split_once(' ')
        && (scheme.eq_ignore_ascii_case("Bearer") || scheme.eq_ignore_ascii_case("FlyV1"))
    {
        text = rest.trim();
    }
    let tokens = || text.split(',').map(str::trim).filter(|token| !token.is_empty());
    let is_limited = |token: &&str| ["fm1r_", "fm1a_", "fm2_"].iter().any(|start| token.starts_with(start));
    let limited: Vec<&str> = tokens().filter(is_limited).collect();
    let (scheme, tokens) = match limited.is_empty() {
        false => ("FlyV1", limited),
        true => ("Bearer", tokens().collect()),
    };
    // Anything else would not be a header.
    let is_clean = tokens.iter().all(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
    (!tokens.is_empty() && is_clean).then(|| (scheme, SecretString::from(tokens.join(","))))
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, fs};

    use super::*;

    fn access(pairs: &[(&str, &str)]) -> Result<Access, CloudConnectError> {
        let variable = |name: &str| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Access::find(&CloudAccess::from_variables(variable))
    }

    #[test]
    fn tokens_are_sent_with_the_scheme_of_their_kind() {
        for (text, expected) in [
            ("fo1_abc", "Bearer fo1_abc"),
            ("Bearer fo1_abc", "Bearer fo1_abc"),
            ("FlyV1 fm2_a,fm2_b", "FlyV1 fm2_a,fm2_b"),
            ("fm2_a, fo1_x ,fm1r_b", "FlyV1 fm2_a,fm1r_b"),
        ] {
            let found = access(&[("FLY_API_TOKEN", text)]).unwrap();
            assert_eq!(found.authorization().expose_secret(), expected);
        }
    }

    #[test]
    fn the_variables_come_before_the_file() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".fly")).unwrap();
        fs::write(home.path().join(".fly/config.yml"), "send_metrics: true\naccess_token: fo1_file\n")
            .unwrap();
        let home = home.path().to_str().unwrap().to_owned();
        let token = |pairs: &[(&str, &str)]| access(pairs).unwrap().password().expose_secret().to_owned();
        assert_eq!(token(&[("HOME", &home)]), "fo1_file");
        assert_eq!(token(&[("HOME", &home), ("FLY_API_TOKEN", "fo1_api")]), "fo1_api");
        assert_eq!(token(&[("FLY_ACCESS_TOKEN", "fo1_first"), ("FLY_API_TOKEN", "fo1_api")]), "fo1_first");
        let dir = format!("{home}/.fly");
        assert_eq!(token(&[("FLY_CONFIG_DIR", &dir)]), "fo1_file");
    }

    #[test]
    fn missing_and_unusable_tokens_are_no_credentials() {
        for pairs in [&[][..], &[("FLY_API_TOKEN", " , ")], &[("FLY_API_TOKEN", "two words")]] {
            assert!(matches!(access(pairs), Err(CloudConnectError::NoCredentials { .. })), "{pairs:?}");
        }
    }

    #[test]
    fn the_addresses_can_be_changed() {
        let found = access(&[
            ("FLY_API_TOKEN", "t"),
            ("FLY_FLAPS_BASE_URL", "http://127.0.0.1:1/"),
            ("FLY_REGISTRY_HOST", "127.0.0.1:2"),
            ("FLY_ORG", "team"),
        ])
        .unwrap();
        assert_eq!((&*found.api, &*found.registry), ("http://127.0.0.1:1", "127.0.0.1:2"));
        assert_eq!((found.org.as_deref(), found.app), (Some("team"), None));
    }
}
