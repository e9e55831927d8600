//! JSON bodies of requests, with limits on size and time.

use std::time::Duration;

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, StatusCode, header},
};
use futures_util::StreamExt as _;

/// The timeout for receiving a body.
const BODY_TIME: Duration = Duration::from_secs(60);

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The `Content-Type` is not JSON. A web page of another origin cannot send JSON without permission.
    #[error("Content-Type must be application/json")]
    NotJson,
    /// The body is larger than the limit.
    #[error("the request body is larger than {0} bytes")]
    TooLarge(usize),
    /// The body did not arrive in time.
    #[error("timed out reading the request body")]
    Late,
    /// The client closed the connection, or sent invalid HTTP.
    #[error("cannot read the request body: {0}")]
    Broken(axum::Error),
}

impl BodyError {
    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::Broken(_) => StatusCode::BAD_REQUEST,
        }
    }
}

/// Reads the body of a request whose `Content-Type` is JSON, up to `limit` bytes.
pub async fn read_json_body(request: Request, limit: usize) -> Result<Vec<u8>, BodyError> {
    let (parts, body) = request.into_parts();
    check_headers(&parts.headers, limit)?;
    tokio::time::timeout(BODY_TIME, collect(body, limit)).await.unwrap_or(Err(BodyError::Late))
}

fn check_headers(headers: &HeaderMap, limit: usize) -> Result<(), BodyError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(BodyError::NotJson);
    }
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let too_large = length.is_some_and(|length: u64| length > limit as u64);
    if too_large { Err(BodyError::TooLarge(limit)) } else { Ok(()) }
}

async fn collect(body: Body, limit: usize) -> Result<Vec<u8>, BodyError> {
    let mut pieces = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(BodyError::Broken)?;
        if piece.len() > limit - whole.len() {
            return Err(BodyError::TooLarge(limit));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn pieces(sizes: &[usize]) -> Body {
        let pieces: Vec<_> = sizes.iter().map(|size| Ok::<_, std::io::Error>(vec![b' '; *size])).collect();
        Body::from_stream(stream::iter(pieces))
    }

    #[tokio::test]
    async fn a_body_without_a_length_is_read_up_to_the_limit() {
        assert_eq!(collect(pieces(&[4, 6]), 10).await.unwrap().len(), 10);
        let refused = collect(pieces(&[4, 7]), 10).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test]
    async fn an_incomplete_body_is_a_bad_request() {
        let pieces = [Ok(vec![b' ']), Err(std::io::Error::other("gone"))];
        let refused = collect(Body::from_stream(stream::iter(pieces)), 10).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    }
}
