//! The routes of the listener.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header},
};
use serde_json::Value;

use crate::{
    answer::{Refusal, respond},
    body::{MAX_REQUEST_BYTES, decoded},
    call::{self, Call},
    count,
    dialect::Dialect,
    endpoint::{Endpoint, split_token, tokens},
    session::SessionState,
    shared::Shared,
    translate::listing,
};

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new().fallback(move |request: Request| {
        let shared = Arc::clone(&shared);
        async move { serve(shared, request).await }
    })
}

async fn serve(shared: Arc<Shared>, request: Request) -> Response<Body> {
    let (in_path, path) = split_token(request.uri().path());
    let endpoint = Endpoint::of(request.method(), path, request.headers());
    let session =
        tokens(request.headers(), request.uri().query(), in_path).find_map(|token| shared.session(token));
    let dialect = match &endpoint {
        // Clients ask for it before they log in.
        Endpoint::Hello => return json(&Value::Object(serde_json::Map::new())),
        Endpoint::WebSocket => {
            let message = "WebSocket is not supported; use HTTP";
            return Refusal::new(StatusCode::UPGRADE_REQUIRED, message).response(Dialect::Responses);
        }
        Endpoint::Compact => Dialect::Responses,
        Endpoint::Generate { dialect, .. }
        | Endpoint::CountTokens { dialect, .. }
        | Endpoint::Models { dialect, .. }
        | Endpoint::Unknown(dialect) => *dialect,
    };
    let Some(session) = session else {
        let message = "the token is missing, unknown, or belongs to a session that has ended";
        return Refusal::new(StatusCode::UNAUTHORIZED, message).response(dialect);
    };
    let compacts = endpoint == Endpoint::Compact;
    match endpoint {
        Endpoint::Generate { .. } | Endpoint::Compact => {
            let (model, stream) = match endpoint {
                Endpoint::Generate { model, stream, .. } => (model, stream),
                _ => (None, Some(false)),
            };
            let query = request.uri().query().map(str::to_owned);
            let headers = request.headers().clone();
            match body_of(request, dialect).await {
                Ok(body) => {
                    let call =
                        Call { shared, session, dialect, model, stream, compacts, query, headers, body };
                    call::answer(call).await
                }
                Err(response) => response,
            }
        }
        Endpoint::Models { dialect, one: None } => {
            let names: Vec<&str> = session.names().collect();
            json(&listing::model_list(dialect, &names, 0))
        }
        Endpoint::Models { dialect, one: Some(name) } => one_model(&session, dialect, &name),
        Endpoint::CountTokens { dialect, model } => {
            let query = request.uri().query().map(str::to_owned);
            let headers = request.headers().clone();
            match body_of(request, dialect).await {
                Ok(body) => {
                    count::answer(&shared, &session, dialect, model, query.as_deref(), &headers, body).await
                }
                Err(response) => response,
            }
        }
        _ => unknown(request.method(), path, dialect),
    }
}

async fn body_of(request: Request, dialect: Dialect) -> Result<bytes::Bytes, Response<Body>> {
    let headers: HeaderMap = request.headers().clone();
    let body = rollout_http::read_json_body(request, MAX_REQUEST_BYTES).await;
    let body = body.map_err(|error| Refusal::new(error.status(), error.to_string()).response(dialect))?;
    decoded(&headers, body)
        .await
        .map_err(|error| Refusal::new(error.status(), error.to_string()).response(dialect))
}

fn one_model(session: &SessionState, dialect: Dialect, name: &str) -> Response<Body> {
    if session.route(name).is_some() {
        let list = listing::model_list(dialect, &[name], 0);
        return json(&list[if dialect == Dialect::Gemini { "models" } else { "data" }][0]);
    }
    Refusal::model(name).response(dialect)
}

fn unknown(method: &Method, path: &str, dialect: Dialect) -> Response<Body> {
    let message = format!("the gateway does not serve {method} {path}");
    Refusal::new(StatusCode::NOT_FOUND, message).response(dialect)
}

fn json(body: &Value) -> Response<Body> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    respond(StatusCode::OK, headers, Body::from(body.to_string()))
}
