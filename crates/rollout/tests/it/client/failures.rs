//! Servers that refuse, fail, or go away.

use std::time::Duration;

use rollout::model::{
    Error, ErrorKind,
    client::{Client, ClientConfig, ClientError},
};
use rollout_testkit::{Cut, Hold, ModelReply, ModelServer};
use serde_json::json;

use super::support::{ask, messages_dialect, model, model_with};

/// The error's words, with the port left out.
fn words(server: &ModelServer, error: &Error) -> String {
    error.to_string().replace(&server.root(), "http://server")
}

#[tokio::test]
async fn a_rejected_key_ends_the_run_with_the_servers_message_and_without_the_key() {
    let echoed =
        |status| ModelReply::error(status, "Incorrect API key provided: sk-12345678. See example.com/keys.");
    let server = ModelServer::sequence([echoed(401), echoed(403), ModelReply::error(401, "no key")]);
    let keyed = model_with(&server, |config| config.api_key = Some("sk-12345678".into()));
    let refused = ask(&keyed).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unauthorized);
    assert_eq!(refused.chain(), "Unauthorized -> AuthenticationError");
    insta::assert_snapshot!(words(&server, &refused), @"http://server/v1/chat/completions rejected the API key for model `m`; check that `api_key` is correct and has access to the model: 401 Unauthorized: Incorrect API key provided: [redacted]. See example.com/keys.");
    let forbidden = ask(&keyed).await.unwrap_err();
    assert_eq!(forbidden.chain(), "Unauthorized -> PermissionDeniedError");
    let keyless = ask(&model(&server)).await.unwrap_err();
    insta::assert_snapshot!(words(&server, &keyless), @"http://server/v1/chat/completions requires an API key; set `api_key`: 401 Unauthorized: no key");
    // None of them was tried again.
    assert_eq!(server.served(), 3);
}

#[tokio::test]
async fn a_key_that_google_rejects_with_status_400_ends_the_run() {
    let refusal = |reason: &str| {
        let details = json!([{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}]);
        json!({"error": {"code": 400, "message": "API key not valid.", "details": details}})
    };
    let invalid = refusal("API_KEY_INVALID");
    for (body, kind) in [
        (invalid.clone(), ErrorKind::Unauthorized),
        // Google's endpoint for Chat Completions wraps errors in a list.
        (json!([invalid]), ErrorKind::Unauthorized),
        (refusal("FIELD_INVALID"), ErrorKind::Model),
    ] {
        let server = ModelServer::always(ModelReply::raw(400, body.to_string()));
        let keyed = model_with(&server, |config| config.api_key = Some("sk-12345678".into()));
        assert_eq!(ask(&keyed).await.unwrap_err().kind, kind, "{body}");
        assert_eq!(server.served(), 1);
    }
}

#[tokio::test]
async fn no_key_no_header_and_no_password_is_ever_shown() {
    let config = ClientConfig {
        api_key: Some("sk-12345678".into()),
        headers: [("x-token".to_owned(), "tok-12345678".into())].into_iter().collect(),
        ..ClientConfig::new("http://user:pass-12345678@127.0.0.1:1/v1?token=query-12345678")
    };
    let shown = format!("{config:?}");
    let client = Client::new(config).unwrap();
    for shown in [shown, format!("{client:?}")] {
        assert!(!shown.contains("12345678") && shown.contains("http://127.0.0.1:1/v1"), "{shown}");
    }
    let model = rollout::model::Model { client, ..model_with(&ModelServer::echo(), |_| {}) };
    let server = ModelServer::always(ModelReply::error(400, "tok-12345678 is wrong"));
    let with_header = model_with(&server, |config| {
        config.headers.insert("x-token".to_owned(), "tok-12345678".into());
    });
    assert!(!format!("{:?}", ask(&with_header).await.unwrap_err()).contains("12345678"));
    assert!(!format!("{model:?}").contains("12345678"));
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_recognised_in_the_words_of_every_server() {
    let refusals = [
        (400, "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000."),
        (400, "the prompt is longer than the model's context length"),
        (400, "The decoder prompt (length 9000) is longer than the maximum model length of 8192."),
        (400, "the request exceeds the model's context length"),
        (400, "input tokens exceed the configured limit"),
        (400, "The input exceeds the configured limit of 8192"),
        (400, "tokens exceeded model maximum"),
        (400, "PROMPT_TOO_LONG"),
        (400, "prompt is too long: 210000 tokens > 200000 maximum"),
        (400, "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000"),
        (400, "the request exceeds the available context size, try increasing it"),
        (400, "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
        (413, "Prompt is too long"),
    ];
    for change in [|_: &mut ClientConfig| {}, messages_dialect] {
        let server =
            ModelServer::sequence(refusals.into_iter().map(|(status, body)| ModelReply::error(status, body)));
        let model = model_with(&server, change);
        for (_, body) in refusals {
            assert_eq!(ask(&model).await.unwrap_err().kind, ErrorKind::OverlongPrompt, "{body}");
        }
        assert_eq!(server.served(), refusals.len());
    }
    let server = ModelServer::always(ModelReply::error(400, "unknown field").code("context_length_exceeded"));
    assert_eq!(ask(&model(&server)).await.unwrap_err().kind, ErrorKind::OverlongPrompt);
    let server = ModelServer::always(ModelReply::raw(400, "Bad request: CONTEXT LENGTH"));
    assert_eq!(ask(&model(&server)).await.unwrap_err().kind, ErrorKind::OverlongPrompt);
    let server = ModelServer::always(ModelReply::overlong());
    let error = ask(&model(&server)).await.unwrap_err();
    insta::assert_snapshot!(words(&server, &error), @"the conversation is longer than the context of model `m` at http://server/v1/chat/completions: 400 Bad Request: This model's maximum context length is 8192 tokens, however you requested 9000 tokens");
}

#[tokio::test]
async fn the_words_of_a_long_prompt_count_only_in_a_refusal_of_the_request() {
    let server = ModelServer::always(ModelReply::error(404, "no such context length"));
    assert_eq!(ask(&model(&server)).await.unwrap_err().kind, ErrorKind::Model);
}

#[tokio::test]
async fn permanent_errors_are_reported_without_retries() {
    let refusals = [
        (400, "ModelError -> BadRequestError"),
        (402, "ModelError -> StatusError"),
        (404, "ModelError -> NotFoundError"),
        (413, "ModelError -> RequestTooLargeError"),
        (422, "ModelError -> UnprocessableEntityError"),
    ];
    let server = ModelServer::sequence(refusals.map(|(status, _)| ModelReply::error(status, "no")));
    let model = model(&server);
    for (_, chain) in refusals {
        let error = ask(&model).await.unwrap_err();
        assert_eq!((&error.kind, error.chain().as_str()), (&ErrorKind::Model, chain));
    }
    assert_eq!(server.served(), refusals.len());
}

#[tokio::test]
async fn refusals_that_pass_are_tried_again() {
    let statuses = [408, 409, 429, 500, 502, 503, 504, 529];
    let server = ModelServer::sequence(statuses.into_iter().flat_map(|status| {
        let refusal = ModelReply::error(status, "later").header("retry-after-ms", "1");
        [refusal.clone(), refusal, ModelReply::text("4")]
    }));
    let model = model_with(&server, |config| config.max_retries = 2);
    for status in statuses {
        assert_eq!(ask(&model).await.unwrap().message.text(), "4", "{status}");
    }
    assert_eq!(server.served(), 3 * statuses.len());
}

#[tokio::test]
async fn an_error_has_the_url_the_number_of_tries_and_the_servers_message() {
    let refusal = |status, body| ModelReply::error(status, body).header("retry-after-ms", "1");
    let server = ModelServer::always(refusal(429, "Rate limit reached for m"));
    let error = ask(&model_with(&server, |config| config.max_retries = 2)).await.unwrap_err();
    assert_eq!(error.chain(), "ModelError -> RateLimitError");
    assert_eq!(server.served(), 3);
    insta::assert_snapshot!(words(&server, &error), @"no response from model `m` at http://server/v1/chat/completions in 3 tries: 429 Too Many Requests: Rate limit reached for m");
    let server = ModelServer::sequence([
        ModelReply::error(404, "The model `m` does not exist"),
        ModelReply::raw(400, "x".repeat(5000)),
        ModelReply::raw(418, ""),
        ModelReply::raw(422, r#"{"detail":"no such field"}"#),
        ModelReply::raw(307, "").header("location", "http://127.0.0.1:1/elsewhere"),
    ]);
    let model = model(&server);
    insta::assert_snapshot!(words(&server, &ask(&model).await.unwrap_err()), @"no response from model `m` at http://server/v1/chat/completions: 404 Not Found: The model `m` does not exist; check the model's name and `base_url`, which usually ends in /v1");
    let long = ask(&model).await.unwrap_err().to_string();
    assert!(long.len() < 800 && long.ends_with("x…"), "{long}");
    for said in [
        "418 I'm a teapot",
        "422 Unprocessable Entity: no such field",
        "307 Temporary Redirect; redirects are not followed, so set `base_url` to the final URL of the server",
    ] {
        let message = words(&server, &ask(&model).await.unwrap_err());
        let place = "no response from model `m` at http://server/v1/chat/completions";
        assert_eq!(message, format!("{place}: {said}"));
    }
}

#[tokio::test]
async fn an_error_with_a_success_status_is_an_error() {
    let body = json!({"error": {"code": 429, "message": "slow down"}}).to_string();
    let server = ModelServer::always(ModelReply::raw(200, body));
    let error = ask(&model_with(&server, |config| config.max_retries = 0)).await.unwrap_err();
    assert_eq!(error.chain(), "ModelError -> RateLimitError");
    let body =
        json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}).to_string();
    let server = ModelServer::always(ModelReply::raw(200, body));
    let model = model_with(&server, |config| {
        config.max_retries = 0;
        messages_dialect(config);
    });
    assert_eq!(ask(&model).await.unwrap_err().chain(), "ModelError -> InternalServerError");
}

#[tokio::test]
async fn a_connection_that_breaks_is_made_anew() {
    for cut in [Cut::BeforeHeaders, Cut::AfterHeaders, Cut::Midway] {
        let server = ModelServer::sequence([ModelReply::text("half").cut(cut), ModelReply::text("4")]);
        assert_eq!(ask(&model(&server)).await.unwrap().message.text(), "4", "{cut:?}");
        let server = ModelServer::always(ModelReply::text("half").cut(cut));
        let error = ask(&model_with(&server, |config| config.max_retries = 0)).await.unwrap_err();
        assert!(error.chain().starts_with("ModelError -> ConnectionError"), "{}", error.chain());
    }
}

#[tokio::test]
async fn an_unreachable_server_is_reported() {
    let address = ModelServer::echo().url();
    let client = Client::new(ClientConfig { max_retries: 0, ..ClientConfig::new(&address) }).unwrap();
    let model = rollout::model::Model { client, ..model_with(&ModelServer::echo(), |_| {}) };
    let error = ask(&model).await.unwrap_err();
    assert!(error.chain().starts_with("ModelError -> ConnectionError"), "{}", error.chain());
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("no response from model `m` at {address}/chat/completions: ")),
        "{text}"
    );
    assert!(text.contains("onnection refused"), "{text}");
}

#[tokio::test]
async fn a_slow_server_times_out() {
    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("4").held(&hold));
    let model = model_with(&server, |config| {
        config.timeout = Duration::from_millis(50);
        config.max_retries = 0;
    });
    let error = ask(&model).await.unwrap_err();
    assert!(error.chain().starts_with("ModelError -> TimeoutError"), "{}", error.chain());
}

#[test]
fn a_request_has_an_hour_a_connection_five_seconds_and_both_ten_tries_more() {
    let ClientConfig { timeout, connect_timeout, max_retries, .. } = ClientConfig::new("http://h/v1");
    let expected = (Duration::from_secs(3600), Duration::from_secs(5), 10);
    assert_eq!((timeout, connect_timeout, max_retries), expected);
}

#[test]
fn invalid_settings_are_rejected_with_an_example() {
    let refused = |change: fn(&mut ClientConfig)| {
        let mut config = ClientConfig::new("http://h/v1");
        change(&mut config);
        Client::new(config).unwrap_err()
    };
    assert!(matches!(refused(|config| config.base_urls.clear()), ClientError::NoUrl));
    assert!(matches!(refused(|config| config.base_urls = vec!["h:8000/v1".into()]), ClientError::Url { .. }));
    assert!(matches!(refused(|config| config.api_key = Some("a\nb".into())), ClientError::Key));
    let header = refused(|config| {
        config.headers.insert("a b".to_owned(), "c".into());
    });
    assert_eq!(header.to_string(), "invalid header `a b`: names and values must be printable ASCII text");
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let server = ModelServer::always(ModelReply::raw(200, vec![b' '; (64 << 20) + 1]));
    let error = ask(&model(&server)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidModelResponse);
    assert!(error.message.ends_with("is larger than 64 MiB"), "{error}");
}
