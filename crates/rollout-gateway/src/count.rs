//! Counts the tokens of a request, without a record and without limits.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
};
use bytes::Bytes;

use crate::{
    answer::{Refusal, respond},
    dialect::Dialect,
    edit::{self, Fields},
    exchange::{self, MAX_ERROR_BYTES},
    session::SessionState,
    shared::Shared,
    translate::{Target, listing},
    upstream::{Operation, response_headers},
};

/// Asks the upstream if it has the same dialect, and estimates otherwise.
pub(crate) async fn answer(
    shared: &Shared,
    session: &SessionState,
    dialect: Dialect,
    model: Option<String>,
    query: Option<&str>,
    headers: &HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let mut fields = match Fields::parse(body) {
        Ok(fields) => fields,
        Err(error) => return Refusal::not_json(&error).response(dialect),
    };
    let asked = model.or_else(|| fields.text("model")).unwrap_or_default();
    let Some(route) = session.route(&asked) else {
        return Refusal::model(&asked).response(dialect);
    };
    let model = route.model(&asked);
    let server = &route.server;
    if !session.provider_tools {
        edit::remove_provider_side(&mut fields, dialect);
    }
    edit::set_model(&mut fields, dialect, model);
    let original = fields.into_bytes();
    let estimate = || {
        let body = serde_json::from_slice(&original).unwrap_or_default();
        counted(dialect, listing::estimate_tokens(&body))
    };
    let is_same = server.dialect == dialect;
    let body = if is_same {
        original.clone()
    } else {
        let target = Target { model, asked: &asked, stream: false, now: 0 };
        let body = serde_json::from_slice(&original).unwrap_or_default();
        match listing::count_request(dialect, server.dialect, body, &target) {
            Ok(Some(translated)) => translated.body.to_string().into(),
            Ok(None) => return estimate(),
            Err(error) => return Refusal::new(StatusCode::BAD_REQUEST, error.to_string()).response(dialect),
        }
    };
    let request = shared
        .http
        .post(server.url(Operation::CountTokens, model, query.filter(|_| is_same)))
        .headers(server.headers(headers, is_same))
        .body(body);
    let counted_there = async {
        let mut response = request.send().await?;
        let (status, headers) = (response.status(), response_headers(response.headers()));
        Ok::<_, reqwest::Error>((status, headers, exchange::read(&mut response, MAX_ERROR_BYTES).await?))
    };
    let counted_there = tokio::select! {
        counted_there = counted_there => counted_there,
        () = session.closed.cancelled() => {
            return Refusal::new(StatusCode::BAD_GATEWAY, "the session of this call was closed").response(dialect);
        }
    };
    let Ok((status, headers, body)) = counted_there else { return estimate() };
    // Many servers do not count.
    if matches!(status.as_u16(), 404 | 405 | 501) {
        return estimate();
    }
    let text = String::from_utf8_lossy(&body).into_owned();
    if !is_same {
        let counted_there =
            serde_json::from_str(&text).ok().and_then(|body| listing::read_count(server.dialect, &body));
        return counted_there.map_or_else(estimate, |tokens| counted(dialect, tokens));
    }
    let text = if status.is_success() { text } else { session.masked_text(&text) };
    respond(status, headers, Body::from(text))
}

fn counted(dialect: Dialect, tokens: u64) -> Response<Body> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    respond(StatusCode::OK, headers, Body::from(listing::write_count(dialect, tokens).to_string()))
}
