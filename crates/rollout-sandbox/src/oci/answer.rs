//! Answers of registries and token services: what a refusal means, and bodies of limited size.

use std::time::Duration;

use reqwest::{Response, Url, header};
use serde::Deserialize;

use super::error::ImageRegistryError;

/// How much of a refusal is read.
const MAX_REFUSAL: usize = 64 << 10;

/// How much of a refusal is shown, in characters.
const SHOWN: usize = 300;

/// The code of a refused request that came too early.
const TOO_MANY: &str = "TOOMANYREQUESTS";

/// The body that registries send with a refusal.
#[derive(Deserialize)]
struct Refusal {
    errors: Vec<Problem>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Problem {
    code: String,
    message: String,
}

/// The server of an address, for messages.
pub(super) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// The error of a connection. Addresses of files may contain a signature that replaces a login, so it has only the
/// server's name.
pub(super) fn connection_failed(host: String, source: reqwest::Error) -> ImageRegistryError {
    let host = source.url().map_or(host, host_of);
    ImageRegistryError::Connection { host, source: source.without_url() }
}

/// The answer, unless it is a refusal.
pub(super) async fn accepted(response: Response) -> Result<Response, ImageRegistryError> {
    if response.status().is_success() {
        return Ok(response);
    }
    let (host, status) = (host_of(response.url()), response.status().as_u16());
    let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|value| {
        // A date instead of seconds is rare, and the usual waits serve as well.
        Some(Duration::from_secs(value.to_str().ok()?.trim().parse().ok()?))
    });
    // The status is enough if the rest does not arrive.
    let body = text(response, MAX_REFUSAL).await.unwrap_or_default();
    let problems = serde_json::from_slice::<Refusal>(&body).map_or_else(|_| Vec::new(), |body| body.errors);
    let is_rate_limit = status == 429 || problems.iter().any(|problem| problem.code == TOO_MANY);
    let detail = match problems.first() {
        Some(problem) => format!("{} {}", problem.code, problem.message),
        None => String::from_utf8_lossy(&body).into_owned(),
    };
    let detail: String = detail.trim().chars().filter(|c| !c.is_control()).take(SHOWN).collect();
    let detail = if detail.is_empty() { detail } else { format!(": {detail}") };
    Err(ImageRegistryError::Status { host, status, detail, is_rate_limit, retry_after })
}

/// The body of an answer, which must not be larger than this.
pub(super) async fn text(mut response: Response, limit: usize) -> Result<Vec<u8>, ImageRegistryError> {
    let host = host_of(response.url());
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(bytes)) => body.extend_from_slice(&bytes),
            Ok(None) => return Ok(body),
            Err(source) => return Err(connection_failed(host, source)),
        }
        if body.len() > limit {
            return Err(ImageRegistryError::Invalid {
                host,
                problem: format!("it has more than {limit} bytes"),
            });
        }
    }
}
