//! The calls that the client library lacks or implements incorrectly.

use std::time::Duration;

use bollard::BollardRequest;
use serde::Deserialize;

use super::endpoint::Endpoint;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Re-encodes credentials in the alphabet that engines decode.
pub(super) fn url_safe_credentials(mut request: BollardRequest) -> BollardRequest {
    for name in ["X-Registry-Auth", "X-Registry-Config"] {
        let Some(value) = request.headers_mut().get_mut(name) else { continue };
        let safe = value.to_str().map(|text| text.replace('+', "-").replace('/', "_")).unwrap_or_default();
        if let Ok(mut safe) = safe.parse::<reqwest::header::HeaderValue>() {
            safe.set_sensitive(true);
            *value = safe;
        }
    }
    request
}

/// The builder that an engine prefers, if it reports one.
pub(super) async fn preferred_builder(endpoint: &Endpoint) -> Option<String> {
    let answer = get(endpoint, "/_ping").await.ok()?;
    Some(answer.headers().get("Builder-Version")?.to_str().ok()?.to_owned())
}

/// The size of an engine's build cache, in bytes.
pub(super) async fn build_cache_size(endpoint: &Endpoint, api_version: &str) -> reqwest::Result<u64> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Usage {
        build_cache: Option<Vec<Entry>>,
        build_cache_usage: Option<Total>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Entry {
        #[serde(default)]
        size: u64,
        #[serde(default)]
        shared: bool,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Total {
        #[serde(default)]
        total_size: u64,
    }
    // The client library supports only the newer of the two forms of this answer.
    let usage: Usage = get(endpoint, &format!("/v{api_version}/system/df")).await?.json().await?;
    let entries = usage.build_cache.into_iter().flatten();
    let listed: u64 = entries.filter(|entry| !entry.shared).map(|entry| entry.size).sum();
    Ok(usage.build_cache_usage.map_or(listed, |usage| usage.total_size))
}

async fn get(endpoint: &Endpoint, path: &str) -> reqwest::Result<reqwest::Response> {
    let builder = reqwest::Client::builder().no_proxy().timeout(TIMEOUT);
    let (client, base) = match endpoint {
        Endpoint::Unix(socket) => (builder.unix_socket(socket.as_path()), "http://localhost".to_owned()),
        Endpoint::Tcp(address) => (builder, format!("http://{address}")),
        Endpoint::Tls(address, dir) => (with_certificates(builder, dir).await, format!("https://{address}")),
    };
    client.build()?.get(format!("{base}{path}")).send().await?.error_for_status()
}

async fn with_certificates(builder: reqwest::ClientBuilder, dir: &std::path::Path) -> reqwest::ClientBuilder {
    let read = async |name: &str| tokio::fs::read(dir.join(name)).await.unwrap_or_default();
    let (authority, mut identity) = (read("ca.pem").await, read("cert.pem").await);
    identity.extend(read("key.pem").await);
    let mut builder = builder;
    if let Ok(authority) = reqwest::Certificate::from_pem(&authority) {
        builder = builder.add_root_certificate(authority);
    }
    if let Ok(identity) = reqwest::Identity::from_pem(&identity) {
        builder = builder.identity(identity);
    }
    builder
}
