//! How a registry wants to be asked: its challenge, and the tokens of its token service.

use std::{collections::HashMap, time::Duration};

use reqwest::{Response, Url, header};
use serde::Deserialize;

use super::{
    PATIENCE, RegistryLogin,
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

/// Exchanges an identity token, as `docker login` stores it for some registries, for a token that permits these actions
/// on a repository, such as `pull,push`. `registry` is an address such as `https://registry.example.com`. None if the
/// registry uses no tokens.
pub async fn exchange_identity(
    registry: &str,
    (repository, actions): (&str, &str),
    identity: String,
) -> Result<Option<String>, ImageRegistryError> {
    let clients = RegistryClients::new(PATIENCE);
    let host = registry.split_once("://").map_or(registry, |(_, host)| host).to_owned();
    let request = clients.ordinary().await?.get(format!("{registry}/v2/"));
    let asked = tokio::time::timeout(PATIENCE, request.send()).await;
    let asked = asked.map_err(|_| ImageRegistryError::Stalled { host: host.clone(), time: PATIENCE })?;
    let answer = asked.map_err(|source| connection_failed(host, source))?;
    let login = RegistryLogin::Identity(identity);
    // The challenge is about the registry, not about the repository.
    let scope = |_| format!("repository:{repository}:{actions}");
    Ok(match authorize_for(&clients, &answer, &login, scope, PATIENCE).await? {
        Some(Authorization::Bearer(token)) => Some(token),
        _ => None,
    })
}

/// Gets what a registry requires, after it rejected a request; None if nothing can be done.
pub(super) async fn authorize(
    clients: &RegistryClients,
    rejection: &Response,
    login: &RegistryLogin,
    repository: &str,
    patience: Duration,
) -> Result<Option<Authorization>, ImageRegistryError> {
    let scope = |asked: Option<String>| asked.unwrap_or_else(|| format!("repository:{repository}:pull"));
    authorize_for(clients, rejection, login, scope, patience).await
}

/// The same. `scope` makes the scope of the token, from the one that the registry asks for.
async fn authorize_for(
    clients: &RegistryClients,
    rejection: &Response,
    login: &RegistryLogin,
    scope: impl FnOnce(Option<String>) -> String,
    patience: Duration,
) -> Result<Option<Authorization>, ImageRegistryError> {
    let headers = rejection.headers().get_all(header::WWW_AUTHENTICATE);
    let challenges = challenges(headers.iter().filter_map(|value| value.to_str().ok()));
    let basic = || match login {
        RegistryLogin::Password { user, password } => {
            Some(Authorization::Basic { user: user.clone(), password: password.clone() })
        }
        _ => None,
    };
    match challenges.into_iter().next() {
        Some(Challenge::Basic) => Ok(basic()),
        Some(Challenge::Bearer { realm, service, scope: asked }) => {
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
            let scope = scope(asked);
            let host = host_of(&realm);
            let sent = token(clients, realm, service.as_deref(), &scope, login);
            let answered = tokio::time::timeout(patience, sent).await;
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

impl Token {
    /// The token, under the name that it has. The other one may be empty.
    fn known(self) -> Option<String> {
        [self.token, self.access_token].into_iter().flatten().find(|token| !token.is_empty())
    }
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
        .and_then(Token::known)
        .ok_or_else(|| ImageRegistryError::Invalid { host, problem: "it has no token".to_owned() })
}

/// The challenges of a registry that can be met, from all of its headers: those with tokens first, because a registry
/// that offers both lets only these pull without a login.
fn challenges<'h>(headers: impl Iterator<Item = &'h str>) -> Vec<Challenge> {
    let mut all: Vec<Challenge> = headers.flat_map(challenges_of).collect();
    all.sort_by_key(|challenge| matches!(challenge, Challenge::Basic));
    all
}

/// Parses a `WWW-Authenticate` header, which may have several challenges.
fn challenges_of(header: &str) -> Vec<Challenge> {
    let mut schemes = Vec::<(&str, HashMap<String, &str>)>::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if rest.is_empty() {
            break;
        }
        let (word, after) = rest.split_at(rest.find(['=', ' ', '\t', ',']).unwrap_or(rest.len()));
        // A word with a value is a parameter, and any other one begins the next challenge.
        let Some(value) = after.trim_start_matches([' ', '\t']).strip_prefix('=') else {
            schemes.push((word, HashMap::new()));
            rest = after;
            continue;
        };
        let value = value.trim_start_matches([' ', '\t']);
        // Commas separate parameters, but are also in quoted values.
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => value.split_at(value.find([' ', '\t', ',']).unwrap_or(value.len())),
        };
        if let Some((_, parameters)) = schemes.last_mut() {
            parameters.insert(word.to_ascii_lowercase(), value);
        }
        rest = after;
    }
    let known = schemes.into_iter().filter_map(|(scheme, parameters)| {
        let parameter = |name: &str| parameters.get(name).map(|value| (*value).to_owned());
        match scheme.to_ascii_lowercase().as_str() {
            "basic" => Some(Challenge::Basic),
            "bearer" => Some(Challenge::Bearer {
                realm: parameter("realm")?,
                service: parameter("service"),
                scope: parameter("scope"),
            }),
            _ => None,
        }
    });
    known.collect()
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
            ("Basic", Some(Challenge::Basic)),
            ("Bearer realm=\"https://a/token\"", bearer("https://a/token", None, None)),
            (
                "bearer realm=\"https://a/t?x=1\",service=\"s\", scope=\"repository:a/b:pull,push\",error=\"e\"",
                bearer("https://a/t?x=1", Some("s"), Some("repository:a/b:pull,push")),
            ),
            ("Bearer service=s,realm=https://a", bearer("https://a", Some("s"), None)),
            ("Bearer realm = \"https://a\" service=\"s\"", bearer("https://a", Some("s"), None)),
            ("Basic realm=\"x\", Bearer realm=\"https://a\",service=s", bearer("https://a", Some("s"), None)),
            ("Basic, Bearer realm=\"https://a\"", bearer("https://a", None, None)),
            ("Bearer realm=\"https://a\", Basic realm=\"x\"", bearer("https://a", None, None)),
            ("Negotiate abc==, Bearer realm=\"https://a\"", bearer("https://a", None, None)),
            // The text is that of the realm.
            ("Basic realm=\"x, Bearer realm=https://a\"", Some(Challenge::Basic)),
            ("Bearer realm=\"https://a", bearer("https://a", None, None)),
            ("Bearer service=\"s\"", None),
            ("Bearer service=\"s\", Basic", Some(Challenge::Basic)),
            ("=,\"= , =", None),
            ("", None),
            ("Negotiate", None),
        ] {
            assert_eq!(challenges([text].into_iter()).into_iter().next(), expected, "{text}");
        }
    }

    #[test]
    fn a_challenge_for_tokens_is_preferred_in_all_headers() {
        let headers = ["Negotiate", "Basic realm=\"x\"", "Bearer realm=\"https://a\""];
        let bearer = Challenge::Bearer { realm: "https://a".into(), service: None, scope: None };
        assert_eq!(challenges(headers.into_iter()), [bearer, Challenge::Basic]);
    }

    #[test]
    fn an_empty_token_is_ignored() {
        for (answer, expected) in [
            (r#"{"token": "", "access_token": "x"}"#, Some("x")),
            (r#"{"token": "x", "access_token": ""}"#, Some("x")),
            (r#"{"token": "x", "access_token": "y"}"#, Some("x")),
            (r#"{"token": null, "access_token": ""}"#, None),
        ] {
            let token: Token = serde_json::from_str(answer).unwrap();
            assert_eq!(token.known().as_deref(), expected, "{answer}");
        }
    }
}
