//! Files from a registry, bounded in time and size. A download that was cut off goes on where it stopped.

use std::{io, path::Path, time::Duration};

use reqwest::{Client, RequestBuilder, Response, StatusCode, Url, header::RANGE};
use tokio::{fs::File, io::AsyncWriteExt as _};

use super::PackageError;
use crate::download_client::{download_client, without_secrets};

/// How long a server may stay silent.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The description of a package with thousands of versions is far below.
const MAX_DESCRIPTION: u64 = 256 << 20;

/// The largest known package has 150 MiB.
const MAX_ARCHIVE: u64 = 2 << 30;

pub(super) fn client() -> Result<Client, PackageError> {
    download_client(READ_TIMEOUT).map_err(PackageError::Client)
}

/// Reads a URL that packages can be fetched from.
pub(super) fn url(text: &str) -> Result<Url, PackageError> {
    let parsed = Url::parse(text).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
    parsed.ok_or_else(|| PackageError::Url(text.to_owned()))
}

/// The whole answer to a request.
pub(super) async fn text(url: &Url, request: RequestBuilder) -> Result<Vec<u8>, PackageError> {
    let mut response = success(url, send(url, request).await?)?;
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed(url))? {
        if (bytes.len() + chunk.len()) as u64 > MAX_DESCRIPTION {
            return Err(PackageError::TooLarge { url: without_secrets(url), limit: MAX_DESCRIPTION });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Fetches an archive into a file, which may hold the beginning of it.
pub(super) async fn archive(url: &Url, request: RequestBuilder, path: &Path) -> Result<(), PackageError> {
    let io = |source: io::Error| PackageError::io(path, source);
    let mut file = File::options().create(true).append(true).read(true).open(path).await.map_err(io)?;
    let begun = file.metadata().await.map_err(io)?.len();
    let request = match begun {
        0 => request,
        begun => request.header(RANGE, format!("bytes={begun}-")),
    };
    let response = send(url, request).await?;
    let (mut response, mut length) = match response.status() {
        StatusCode::PARTIAL_CONTENT => (response, begun),
        // The whole file is there, or what is there does not belong to it: the hash shows which.
        StatusCode::RANGE_NOT_SATISFIABLE => return Ok(()),
        _ => {
            file.set_len(0).await.map_err(io)?;
            (success(url, response)?, 0)
        }
    };
    while let Some(chunk) = response.chunk().await.map_err(failed(url))? {
        length += chunk.len() as u64;
        if length > MAX_ARCHIVE {
            return Err(PackageError::TooLarge { url: without_secrets(url), limit: MAX_ARCHIVE });
        }
        file.write_all(&chunk).await.map_err(io)?;
    }
    file.flush().await.map_err(io)
}

async fn send(url: &Url, request: RequestBuilder) -> Result<Response, PackageError> {
    request.send().await.map_err(failed(url))
}

fn success(url: &Url, response: Response) -> Result<Response, PackageError> {
    match response.status() {
        status if status.is_success() => Ok(response),
        status => Err(PackageError::Status { url: without_secrets(url), status }),
    }
}

fn failed(url: &Url) -> impl Fn(reqwest::Error) -> PackageError {
    let url = without_secrets(url);
    move |source| PackageError::Request { url: url.clone(), source: source.without_url() }
}
