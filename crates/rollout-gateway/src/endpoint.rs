//! What a request is for, and the token that it carries.

use axum::http::{HeaderMap, Method, header};

use crate::dialect::Dialect;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// An answer of a model. Gemini has the model and the wish for a stream in the path.
    Generate { dialect: Dialect, model: Option<String>, stream: Option<bool> },
    /// A shorter form of a conversation, which only OpenAI's Responses have.
    Compact,
    /// The number of tokens of a request.
    CountTokens { dialect: Dialect, model: Option<String> },
    /// The models that may be asked for, or one of them.
    Models { dialect: Dialect, one: Option<String> },
    /// A sign of life.
    Hello,
    /// A WebSocket, which is refused so that clients use HTTP at once.
    WebSocket,
    /// Something else, with the dialect that its path resembles.
    Unknown(Dialect),
}

/// The token in the path, and the rest of the path.
pub(crate) fn split_token(path: &str) -> (Option<&str>, &str) {
    let Some((token, rest)) = path.strip_prefix("/t/").and_then(|rest| rest.split_once('/')) else {
        return (None, path);
    };
    // The rest begins with the slash that ended the token.
    (Some(token), &path[path.len() - rest.len() - 1..])
}

/// Every token that a request carries; clients differ in the place.
pub(crate) fn tokens<'r>(
    headers: &'r HeaderMap,
    query: Option<&'r str>,
    in_path: Option<&'r str>,
) -> impl Iterator<Item = &'r str> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let bearer = header(header::AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let in_query = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("key=")));
    [in_path, header("x-api-key"), header("x-goog-api-key"), bearer, in_query].into_iter().flatten()
}

impl Endpoint {
    /// Finds out what a request is for, from its path without the token.
    pub(crate) fn of(method: &Method, path: &str, headers: &HeaderMap) -> Self {
        let mut rest = path;
        let mut google = false;
        // Some agents add the version to a base URL that has it already.
        while let Some((version, longer)) = ["/v1beta/", "/v1alpha/", "/v1/"]
            .iter()
            .find_map(|version| Some((*version, rest.strip_prefix(version.trim_end_matches('/'))?)))
            .filter(|(_, longer)| longer.starts_with('/'))
        {
            google |= version != "/v1/";
            rest = longer;
        }
        let post = method == Method::POST;
        match rest {
            "/chat/completions" if post => Self::generate(Dialect::Chat),
            "/responses" if post => Self::generate(Dialect::Responses),
            "/responses/compact" if post => Self::Compact,
            "/responses" if is_upgrade(headers) => Self::WebSocket,
            "/messages" if post => Self::generate(Dialect::Messages),
            "/messages/count_tokens" if post => Self::CountTokens { dialect: Dialect::Messages, model: None },
            "/responses/input_tokens" if post => {
                Self::CountTokens { dialect: Dialect::Responses, model: None }
            }
            "/models" if !post => Self::Models { dialect: list_dialect(google, headers), one: None },
            "/" | "/api/hello" | "/health" if !post => Self::Hello,
            _ => match rest.strip_prefix("/models/") {
                Some(one) if !post => {
                    Self::Models { dialect: list_dialect(google, headers), one: Some(decode(one)) }
                }
                Some(call) => Self::of_google(call),
                None => Self::Unknown(resembles(rest)),
            },
        }
    }

    fn generate(dialect: Dialect) -> Self {
        Self::Generate { dialect, model: None, stream: None }
    }

    fn of_google(call: &str) -> Self {
        let dialect = Dialect::Gemini;
        let Some((model, action)) = call.rsplit_once(':') else { return Self::Unknown(dialect) };
        let model = Some(decode(model));
        match action {
            "generateContent" => Self::Generate { dialect, model, stream: Some(false) },
            "streamGenerateContent" => Self::Generate { dialect, model, stream: Some(true) },
            "countTokens" => Self::CountTokens { dialect, model },
            _ => Self::Unknown(dialect),
        }
    }
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

fn list_dialect(google: bool, headers: &HeaderMap) -> Dialect {
    if google || headers.contains_key("x-goog-api-key") {
        Dialect::Gemini
    } else if headers.contains_key("anthropic-version") || headers.contains_key("x-api-key") {
        Dialect::Messages
    } else {
        Dialect::Chat
    }
}

fn resembles(path: &str) -> Dialect {
    match path {
        path if path.starts_with("/responses") => Dialect::Responses,
        path if path.starts_with("/messages") => Dialect::Messages,
        _ => Dialect::Chat,
    }
}

/// Decodes `%2F` and the like in a model's name.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &Method, path: &str) -> Endpoint {
        Endpoint::of(method, path, &HeaderMap::new())
    }

    #[test]
    fn every_dialect_is_found_with_and_without_a_version() {
        for (path, dialect) in [
            ("/v1/chat/completions", Dialect::Chat),
            ("/chat/completions", Dialect::Chat),
            ("/v1/v1/messages", Dialect::Messages),
            ("/messages", Dialect::Messages),
            ("/v1/responses", Dialect::Responses),
        ] {
            assert_eq!(of(&Method::POST, path), Endpoint::generate(dialect), "{path}");
        }
    }

    #[test]
    fn the_path_of_a_gemini_call_names_the_model_and_the_form() {
        let gemini = |model: &str, stream| Endpoint::Generate {
            dialect: Dialect::Gemini,
            model: Some(model.to_owned()),
            stream: Some(stream),
        };
        for (path, endpoint) in [
            ("/v1beta/models/gemini-2.5-pro:generateContent", gemini("gemini-2.5-pro", false)),
            ("/v1/models/gemini-2.5-pro:streamGenerateContent", gemini("gemini-2.5-pro", true)),
            ("/models/tuned%2Fmine:streamGenerateContent", gemini("tuned/mine", true)),
            ("/v1beta/models/a:b:generateContent", gemini("a:b", false)),
        ] {
            assert_eq!(of(&Method::POST, path), endpoint, "{path}");
        }
        assert_eq!(of(&Method::POST, "/v1beta/models/x:embed"), Endpoint::Unknown(Dialect::Gemini));
    }

    #[test]
    fn a_token_is_found_in_the_path() {
        assert_eq!(split_token("/t/abc/v1/messages"), (Some("abc"), "/v1/messages"));
        assert_eq!(split_token("/t/abc"), (None, "/t/abc"));
        assert_eq!(split_token("/v1/models"), (None, "/v1/models"));
    }
}
