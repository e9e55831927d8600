use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Json, Router,
    extract::Query,
    http::{HeaderMap, StatusCode},
    response::IntoResponse as _,
    routing::{get, post},
};
use indexmap::IndexMap;
use insta::assert_snapshot;
use rollout_tools::{
    ErrorCode, Params, Resource as _,
    web::{Web, WebConfig},
};
use serde_json::{Value, json};

use super::{call, serve};

type Pairs = Query<IndexMap<String, String>>;

fn pairs(Query(pairs): Pairs) -> Vec<(String, String)> {
    pairs.into_iter().collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn searxng_is_asked_for_json() {
    let app = Router::new().route(
        "/sub/search",
        get(|query: Pairs| async move {
            assert_eq!(pairs(query), owned(&[("q", "巴黎 & co"), ("format", "json"), ("language", "fr"), ("safesearch", "1")]));
            Json(json!({"query": "x", "number_of_results": 0, "results": [
                {"title": "Paris", "url": "https://a.example/1", "content": "The capital\n of France", "engine": "x"},
                {"title": "No address"},
                {"title": "Paris &amp; co", "url": "https://a.example/2"},
                {"title": "Third", "url": "https://a.example/3", "content": ""},
            ]}))
        }),
    );
    let address = serve(app).await;
    let params = json!({"language": "fr", "safesearch": 1});
    let search = json!({"backend": "searxng", "url": format!("http://{address}/sub/"), "params": params});
    let answer = call(json!({"search": search}), "search", json!({"query": "巴黎 & co", "max_results": 2}))
        .await
        .unwrap();
    assert_snapshot!(answer["result"].as_str().unwrap(), @r"
    1. Paris
       https://a.example/1
       The capital of France

    2. Paris & co
       https://a.example/2
    ");
    let expected = json!({"query": "巴黎 & co", "title": "Paris", "url": "https://a.example/1", "snippet": "The capital of France"});
    assert_eq!(answer["results"][0], expected);
    assert_eq!(answer["failed"], json!([]));
}

#[tokio::test]
async fn brave_gets_its_token() {
    let app = Router::new().route(
        "/res/v1/web/search",
        get(|headers: HeaderMap, query: Pairs| async move {
            assert_eq!(headers["x-subscription-token"], "BSA-key");
            assert_eq!(headers["accept"], "application/json");
            // The service rejects more than 20.
            assert_eq!(pairs(query), owned(&[("q", "paris"), ("count", "20")]));
            Json(json!({"type": "search", "web": {"results": [
                {"title": "Paris", "url": "https://b.example/", "description": "The <strong>capital</strong> of France &#x27;s"},
            ]}}))
        }),
    );
    let address = serve(app).await;
    let search = json!({"backend": "brave", "api_key": "BSA-key", "url": format!("http://{address}/res/v1/web/search")});
    let answer = call(json!({"search": search}), "search", json!({"query": ["paris"], "max_results": 30}))
        .await
        .unwrap();
    assert_eq!(answer["results"][0]["snippet"], "The capital of France 's");
}

#[tokio::test]
async fn serper_gets_its_key() {
    let app = Router::new().route(
        "/search",
        post(|headers: HeaderMap, Json(body): Json<Value>| async move {
            assert_eq!(headers["x-api-key"], "serper-key");
            assert_eq!(body, json!({"q": "paris", "num": 10, "gl": "fr"}));
            Json(json!({"organic": [{"title": "Paris", "link": "https://c.example/", "snippet": "Capital", "position": 1}]}))
        }),
    );
    let address = serve(app).await;
    let url = format!("http://{address}/search");
    let search = json!({"backend": "serper", "api_key": "serper-key", "url": url, "params": {"gl": "fr"}});
    let answer = call(json!({"search": search}), "search", json!({"query": "paris"})).await.unwrap();
    assert_eq!(answer["results"][0]["url"], "https://c.example/");
}

#[tokio::test]
async fn a_custom_service_gets_the_query_unchanged() {
    let app = Router::new().route(
        "/find",
        post(|headers: HeaderMap, Json(body): Json<Value>| async move {
            assert_eq!(headers["authorization"], "Bearer own-key");
            assert_eq!(body, json!({"query": "paris", "max_results": 3}));
            Json(json!({"results": [{"title": "Paris", "url": "https://d.example/", "snippet": "Capital"}]}))
        }),
    );
    let address = serve(app).await;
    let search = json!({"backend": "custom", "api_key": "own-key", "url": format!("http://{address}/find")});
    let answer =
        call(json!({"search": search}), "search", json!({"query": "paris", "max_results": 3})).await.unwrap();
    assert_eq!(answer["results"][0]["title"], "Paris");
}

fn custom(address: std::net::SocketAddr) -> Value {
    json!({"search": {"backend": "custom", "api_key": "own-key", "url": format!("http://{address}/")}})
}

#[tokio::test]
async fn several_queries_are_sent_and_failures_are_reported() {
    let app = Router::new().route(
        "/",
        post(|Json(body): Json<Value>| async move {
            match body["query"].as_str().unwrap() {
                "bad" => (StatusCode::BAD_REQUEST, "no such thing for own-key").into_response(),
                "none" => Json(json!({"results": []})).into_response(),
                query => {
                    let url = format!("https://x.example/{query}");
                    Json(json!({"results": [{"title": query, "url": url, "snippet": "text"}]}))
                        .into_response()
                }
            }
        }),
    );
    let address = serve(app).await;
    let answer =
        call(custom(address), "search", json!({"query": ["one", "bad", "none", "two"]})).await.unwrap();
    assert_snapshot!(answer["result"].as_str().unwrap(), @r#"
    Results for "one":

    1. one
       https://x.example/one
       text

    Results for "bad":

    [the search failed: the search service answers 400 Bad Request: no such thing for …]

    Results for "none":

    [nothing was found]

    Results for "two":

    1. two
       https://x.example/two
       text
    "#);
    assert_eq!(answer["failed"][0]["query"], "bad");
    let error = call(custom(address), "search", json!({"query": ["bad", "bad"]})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AllFailed);
    assert!(!error.message.contains("own-key") && !error.data.to_string().contains("own-key"));
    let error = call(custom(address), "search", json!({"query": ["none"]})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::NoResults);
}

#[tokio::test]
async fn a_busy_service_is_retried_after_its_delay() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let app = Router::new().route(
        "/",
        post(move || async move {
            match counted.fetch_add(1, Ordering::Relaxed) {
                0 => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "0")], "slow down").into_response(),
                1 => (StatusCode::BAD_GATEWAY, [("retry-after", "0")], "down").into_response(),
                _ => Json(json!({"results": [{"title": "t", "url": "https://x.example/"}]})).into_response(),
            }
        }),
    );
    let address = serve(app).await;
    call(custom(address), "search", json!({"query": "x"})).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_service_that_stays_busy_fails() {
    for (status, retry_after, times) in [
        (StatusCode::TOO_MANY_REQUESTS, "0", 4),
        (StatusCode::SERVICE_UNAVAILABLE, "3600", 1),
        (StatusCode::SERVICE_UNAVAILABLE, "Fri, 01 Jan 2500 00:00:00 GMT", 1),
        (StatusCode::UNAUTHORIZED, "0", 1),
    ] {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let app = Router::new().route(
            "/",
            post(move || async move {
                counted.fetch_add(1, Ordering::Relaxed);
                (status, [("retry-after", retry_after)])
            }),
        );
        let address = serve(app).await;
        let error = call(custom(address), "search", json!({"query": "x"})).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::RequestFailed);
        assert!(error.message.contains(&status.to_string()), "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), times, "{status}");
    }
}

#[tokio::test]
async fn a_key_is_not_sent_to_the_target_of_a_redirect() {
    let keys = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&keys);
    let other = serve(Router::new().fallback(move |headers: HeaderMap| async move {
        seen.lock().unwrap().push(headers.len());
    }))
    .await;
    let target = format!("http://{other}/");
    let app = Router::new()
        .fallback(move || async move { (StatusCode::TEMPORARY_REDIRECT, [("location", target)]) });
    let address = serve(app).await;
    let search = json!({"backend": "brave", "api_key": "BSA-key", "url": format!("http://{address}/")});
    let error = call(json!({"search": search}), "search", json!({"query": "x"})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::RequestFailed);
    assert!(keys.lock().unwrap().is_empty());
}

#[tokio::test]
async fn invalid_answers_are_reported() {
    for (answer, why) in [
        ("<html>Captcha</html>", "it is not JSON"),
        ("[1]", "it is not an object"),
        ("{\"results\": {}}", "/results is not a list"),
    ] {
        let address = serve(Router::new().route("/", post(move || async move { answer }))).await;
        let error = call(custom(address), "search", json!({"query": "x"})).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::ResponseUnreadable);
        assert!(error.message.ends_with(why), "{error}");
    }
    let endless = serve(Router::new().route("/", post(|| async { "[".repeat(5 << 20) }))).await;
    let error = call(custom(endless), "search", json!({"query": "x"})).await.unwrap_err();
    assert!(error.message.ends_with("it is too long"), "{error}");
}

#[tokio::test]
async fn missing_settings_are_reported_with_advice() {
    let error = call(json!({}), "search", json!({"query": "x"})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::DependencyMissing);
    assert!(error.message.contains(r#"{"backend": "searxng", "url": "http://localhost:8888"}"#), "{error}");
    let error =
        call(json!({"search": {"backend": "serper"}}), "search", json!({"query": "x"})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::KeyMissing);
    assert!(error.message.contains("https://serper.dev and set resources.web.search.api_key"), "{error}");
    let config: WebConfig = serde_json::from_value(json!({"search": {"backend": "searxng"}})).unwrap();
    let error = Web::new(config).unwrap_err();
    assert_eq!(error.to_string(), "search.url is missing; searxng has no default");
}

#[tokio::test]
async fn invalid_parameters_are_reported() {
    let config = || json!({"search": {"backend": "custom", "url": "http://127.0.0.1:1/"}});
    for (params, code) in [
        (json!({}), ErrorCode::MissingField),
        (json!({"query": true}), ErrorCode::InvalidType),
        (json!({"query": ["x", {}]}), ErrorCode::InvalidType),
        (json!({"query": []}), ErrorCode::InvalidInput),
        (json!({"query": "  "}), ErrorCode::InvalidInput),
        (json!({"query": vec!["x"; 11]}), ErrorCode::InvalidInput),
        (json!({"query": "x".repeat(1001)}), ErrorCode::InvalidInput),
        (json!({"query": "x", "max_results": "many"}), ErrorCode::InvalidType),
    ] {
        let error = call(config(), "search", params.clone()).await.unwrap_err();
        assert_eq!(error.code, code, "{params}: {error}");
    }
    let web = Web::new(WebConfig::default()).unwrap();
    let session: Params = serde_json::from_value(json!({"allow_private": true})).unwrap();
    let error = web.open(&session).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
}
