//! How a registry wants to be asked: its challenge, and the tokens of its token service.

use std::time::Duration;

use reqwest::{Response, Url, header};
use serde::Deserialize;

use super::{
    RegistryLogin,
    answer::{accepted, connection_failed, host_of, text},
    clients::RegistryClients,
    error::ImageRegistryError,
};

/// The largest answer of a token service.
const MAX_TOKEN: usize = 1 << 20;

/// The name by which token services know this program.
const CLIENT_ID: &str = "rollout";

/// What a request says about its sender.
#[derive(Clone)]
pub(super) enum Authorization {
    Bearer(String),
    Basic { user: String, password: String },
}

impl Authorization {
    pub(super) fn add_to(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match self {
            Self::Bearer(token) => request.bearer_auth(token),
            Self::Basic { user, password } => request.basic_auth(user, Some(password)),
        }
    }
}

/// What a registry requires.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// Gets what a registry requires, after it rejected a request; None if nothing can be done.
pub(super) async fn authorize(
    clients: &RegistryClients,
    rejection: &Response,
    login: &RegistryLogin,
    repository: &str,
    patience: Duration,
) -> Result<Option<Authorization>, ImageRegistryError> {
    let headers = rejection.headers().get_all(header::WWW_AUTHENTICATE);
    let mut challenges = headers.iter().filter_map(|value| challenge(value.to_str().ok()?));
    let basic = || match login {
        RegistryLogin::Password { user, password } => {
            Some(Authorization::Basic { user: user.clone(), password: password.clone() })
        }
        _ => None,
    };
    match challenges.next() {
        Some(Challenge::Basic) => Ok(basic()),
        Some(Challenge::Bearer { realm, service, scope }) => {
            let invalid = |problem: &str| ImageRegistryError::Invalid {
                host: host_of(rejection.url()),
                problem: problem.to_owned(),
            };
            let realm =
                Url::parse(&realm).map_err(|_| invalid("the address of its token service is not a URL"))?;
            // A login must not be sent over a weaker connection than that to the registry.
            if rejection.url().scheme() == "https" && realm.scheme() != "https" {
                return Err(invalid("its token service does not use HTTPS"));
            }
            let scope = scope.unwrap_or_else(|| format!("repository:{repository}:pull"));
            let host = host_of(&realm);
            let asked = token(clients, realm, service.as_deref(), &scope, login);
            let answered = tokio::time::timeout(patience, asked).await;
            let token = answered.map_err(|_| ImageRegistryError::Stalled { host, time: patience })??;
            Ok(Some(Authorization::Bearer(token)))
        }
        None => Ok(None),
    }
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

async fn token(
    clients: &RegistryClients,
    mut realm: Url,
    service: Option<&str>,
    scope: &str,
    login: &RegistryLogin,
) -> Result<String, ImageRegistryError> {
    let host = host_of(&realm);
    let mut fields = vec![("scope", scope)];
    fields.extend(service.map(|service| ("service", service)));
    let request = match login {
        RegistryLogin::Identity(secret) => {
            fields.extend([
                ("grant_type", "refresh_token"),
                ("client_id", CLIENT_ID),
                ("refresh_token", secret),
            ]);
            let mut form = realm.clone();
            form.query_pairs_mut().clear().extend_pairs(fields);
            let client = clients.of_secrets().await?;
            client
                .post(realm)
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(form.query().unwrap_or_default().to_owned())
        }
        login => {
            realm.query_pairs_mut().extend_pairs(fields);
            let request = clients.ordinary().await?.get(realm);
            match login {
                RegistryLogin::Password { user, password } => request.basic_auth(user, Some(password)),
                _ => request,
            }
        }
    };
    let sent = request.send().await;
    let answer = sent.map_err(|source| connection_failed(host.clone(), source))?;
    let answer = text(accepted(answer).await?, MAX_TOKEN).await?;
    let known = serde_json::from_slice::<Token>(&answer).ok();
    known
        .and_then(|token| token.token.or(token.access_token))
        .ok_or_else(|| ImageRegistryError::Invalid { host, problem: "it has no token".to_owned() })
}

/// Parses a `WWW-Authenticate` header.
fn challenge(text: &str) -> Option<Challenge> {
    let (scheme, mut rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut scope) = (None, None, None);
    while let Some((name, after)) = rest.split_once('=') {
        // Commas separate parameters, but are also in quoted values.
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        rest = after;
        let target = match name.trim_matches([' ', ',']).to_ascii_lowercase().as_str() {
            "realm" => &mut realm,
            "service" => &mut service,
            "scope" => &mut scope,
            _ => continue,
        };
        *target = Some(value.to_owned());
    }
    Some(Challenge::Bearer { realm: realm?, service, scope })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_of_registries_are_read() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            Some(Challenge::Bearer { realm: realm.into(), service: owned(service), scope: owned(scope) })
        };
        for (text, expected) in [
            ("Basic realm=\"x\"", Some(Challenge::Basic)),
            ("Bearer realm=\"https://a/token\"", bearer("https://a/token", None, None)),
            (
                "bearer realm=\"https://a/t?x=1\",service=\"s\", scope=\"repository:a/b:pull,push\",error=\"e\"",
                bearer("https://a/t?x=1", Some("s"), Some("repository:a/b:pull,push")),
            ),
            ("Bearer service=s,realm=https://a", bearer("https://a", Some("s"), None)),
            ("Bearer service=\"s\"", None),
            ("Negotiate", None),
        ] {
            assert_eq!(challenge(text), expected, "{text}");
        }
    }
}
