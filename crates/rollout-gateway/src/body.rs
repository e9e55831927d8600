//! The bodies of requests, which may be compressed.

use std::io::{self, Read};

use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;

/// The largest request, compressed or not.
pub(crate) const MAX_REQUEST_BYTES: usize = 64 << 20;

/// Why a compressed body cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EncodingError {
    #[error("the content encoding `{0}` is unknown; use gzip, deflate, br or zstd")]
    Unknown(String),
    #[error("the request body is not valid {0}: {1}")]
    Invalid(&'static str, io::Error),
    #[error("the request body is larger than {MAX_REQUEST_BYTES} bytes after decompression")]
    TooLarge,
}

impl EncodingError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Unknown(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Invalid(..) => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        }
    }
}

/// Decompresses a body as its `Content-Encoding` says.
pub(crate) async fn decoded(headers: &HeaderMap, body: Vec<u8>) -> Result<Bytes, EncodingError> {
    let Some(encoding) = headers.get(header::CONTENT_ENCODING) else { return Ok(body.into()) };
    let name = String::from_utf8_lossy(encoding.as_bytes()).trim().to_ascii_lowercase();
    if matches!(name.as_str(), "" | "identity") {
        return Ok(body.into());
    }
    tokio::task::spawn_blocking(move || match name.as_str() {
        "gzip" | "x-gzip" => read("gzip", flate2::read::MultiGzDecoder::new(body.as_slice())),
        "deflate" => inflate(&body),
        "br" => read("br", brotli_decompressor::Decompressor::new(body.as_slice(), 4096)),
        "zstd" => {
            let decoder = zstd::stream::read::Decoder::new(body.as_slice());
            read("zstd", decoder.map_err(|error| EncodingError::Invalid("zstd", error))?)
        }
        _ => Err(EncodingError::Unknown(name)),
    })
    .await
    .expect("decompression does not panic, and the runtime outlives its requests")
}

/// HTTP's `deflate` has a zlib header, but some clients leave it out.
fn inflate(body: &[u8]) -> Result<Bytes, EncodingError> {
    match read("deflate", flate2::read::ZlibDecoder::new(body)) {
        Err(EncodingError::Invalid(..)) => read("deflate", flate2::read::DeflateDecoder::new(body)),
        read => read,
    }
}

fn read(name: &'static str, decoder: impl Read) -> Result<Bytes, EncodingError> {
    let mut whole = Vec::new();
    let mut limited = decoder.take(MAX_REQUEST_BYTES as u64 + 1);
    limited.read_to_end(&mut whole).map_err(|error| EncodingError::Invalid(name, error))?;
    if whole.len() > MAX_REQUEST_BYTES {
        return Err(EncodingError::TooLarge);
    }
    Ok(whole.into())
}
