//! Budgets, rates, fairness, prices and the cache.

use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};

use rollout_gateway::{Budget, CallErrorKind, Dialect, Gateway, GatewayConfig, GatewayError, SessionSpec};
use rollout_model::client::{Price, Prices};
use rollout_testkit::{Hold, ModelReply, ModelServer, TokenCounts};

use crate::support::{DIALECTS, Setup, question, route, text_of};

fn counted() -> ModelReply {
    ModelReply::text("4").usage(TokenCounts {
        prompt: 1000,
        cached: 400,
        completion: 100,
        ..TokenCounts::default()
    })
}

fn prices() -> Prices {
    let price = Price { input: 10.0, output: 20.0, cached_input: Some(1.0), cache_write: None };
    Prices::new([("real-model".to_owned(), price)]).unwrap()
}

#[tokio::test]
async fn a_budget_of_calls_ends_with_the_status_that_stops_each_dialect() {
    for (dialect, status) in DIALECTS.into_iter().zip([401, 429, 403, 403]) {
        let server = ModelServer::always(counted());
        let budget = Budget { calls: Some(1), ..Budget::default() };
        let setup = Setup::with(&server, dialect, |_| (), |spec| spec.budget = budget).await;
        assert_eq!(setup.ask(dialect, true).await.0, 200);
        let (refused, body) = setup.ask(dialect, true).await;
        assert_eq!(refused, status, "{dialect:?}");
        assert!(body.contains("the budget of this session is used up: 1 calls"), "{body}");
        setup.session.exhausted().await;
        let closed = setup.close().await;
        assert_eq!(closed.summary.errors[&CallErrorKind::BudgetExhausted], 1);
        assert_eq!((closed.summary.calls, closed.summary.turns, server.served()), (2, 1, 1));
    }
}

#[tokio::test]
async fn budgets_in_tokens_and_dollars_count_what_calls_used() {
    for budget in [
        Budget { tokens: Some(1500), ..Budget::default() },
        Budget { dollars: Some(0.01), ..Budget::default() },
    ] {
        let server = ModelServer::always(counted());
        let priced = |config: &mut GatewayConfig| config.prices = prices();
        let setup = Setup::with(&server, Dialect::Chat, priced, |spec| spec.budget = budget).await;
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(setup.ask(Dialect::Chat, false).await.0);
        }
        assert_eq!(statuses, [200, 200, 401], "{budget:?}");
    }
}

#[tokio::test]
async fn a_budget_of_the_gateway_counts_all_sessions() {
    let server = ModelServer::always(counted());
    let calls = |config: &mut GatewayConfig| config.budget = Budget { calls: Some(1), ..Budget::default() };
    let setup = Setup::with(&server, Dialect::Chat, calls, |_| ()).await;
    let second = setup.second(&server, Dialect::Chat);
    assert_eq!(setup.ask(Dialect::Chat, false).await.0, 200);
    let (path, body) = question(Dialect::Chat, false);
    let refused = setup.post_as(second.token(), path, &body).send().await.unwrap();
    assert_eq!(refused.status(), 401);
    assert!(refused.text().await.unwrap().contains("the budget of this gateway is used up"));
    second.exhausted().await;
    setup.session.exhausted().await;
}

#[tokio::test]
async fn cost_comes_from_prices_and_is_null_without_one() {
    let server = ModelServer::always(counted());
    let setup = Setup::with(&server, Dialect::Chat, |config| config.prices = prices(), |_| ()).await;
    setup.ask(Dialect::Chat, true).await;
    let closed = setup.close().await;
    let cost = (600.0 * 10.0 + 400.0 * 1.0 + 100.0 * 20.0) / 1e6;
    assert_eq!((closed.calls[0].cost, closed.summary.cost), (Some(cost), Some(cost)));
    let unpriced = Setup::new(&server, Dialect::Chat).await;
    unpriced.ask(Dialect::Chat, true).await;
    let closed = unpriced.close().await;
    assert_eq!((closed.calls[0].cost, closed.summary.cost), (None, None));
}

#[tokio::test]
async fn the_price_of_a_route_comes_before_the_table() {
    let server = ModelServer::always(counted());
    let own = Price { input: 1.0, output: 2.0, cached_input: None, cache_write: None };
    let priced = |spec: &mut SessionSpec| {
        spec.routes[0].price = Some(own);
        spec.budget.dollars = Some(1.0);
    };
    for table in [Prices::default(), prices()] {
        let setup = Setup::with(&server, Dialect::Chat, |config| config.prices = table, priced).await;
        setup.ask(Dialect::Chat, true).await;
        let closed = setup.close().await;
        assert_eq!(closed.summary.cost, Some((1000.0 * 1.0 + 100.0 * 2.0) / 1e6));
    }
}

#[tokio::test]
async fn a_budget_in_dollars_needs_a_price() {
    let server = ModelServer::always(counted());
    let gateway = Gateway::start(GatewayConfig::default()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut spec = SessionSpec::new(dir.path().join("calls.jsonl"), route(&server, Dialect::Chat));
    spec.budget.dollars = Some(1.0);
    let refused = gateway.open(spec).unwrap_err();
    assert!(matches!(&refused, GatewayError::NoPrice { model } if model == "real-model"), "{refused}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_budget_of_the_gateway_in_dollars_needs_a_price_too() {
    let server = ModelServer::always(counted());
    let budget = Budget { dollars: Some(1.0), ..Budget::default() };
    let gateway = Gateway::start(GatewayConfig { budget, ..GatewayConfig::default() }).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let spec = || SessionSpec::new(dir.path().join("calls.jsonl"), route(&server, Dialect::Chat));
    let refused = gateway.open(spec()).unwrap_err();
    assert!(matches!(&refused, GatewayError::NoPrice { model } if model == "real-model"), "{refused}");
    gateway.stop().await;
    let priced = GatewayConfig { budget, prices: prices(), ..GatewayConfig::default() };
    let gateway = Gateway::start(priced).await.unwrap();
    assert!(gateway.open(spec()).is_ok());
    gateway.stop().await;
}

#[tokio::test]
async fn sessions_share_the_places_fairly() {
    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("4").held(&hold));
    let setup = Setup::with(&server, Dialect::Chat, |config| config.max_concurrent_calls = 1, |_| ()).await;
    let other = setup.second(&server, Dialect::Chat);
    let ask = |token: &str, user: &str| {
        let (path, mut body) = question(Dialect::Chat, false);
        body["user"] = user.into();
        tokio::spawn(setup.post_as(token, path, &body).send())
    };
    let waiting = async |calls: usize| {
        while setup.gateway.waiting_calls() < calls {
            tokio::task::yield_now().await;
        }
    };
    let mut calls = vec![ask(setup.session.token(), "a0")];
    hold.waiting(1).await;
    for number in 1..4 {
        calls.push(ask(setup.session.token(), &format!("a{number}")));
    }
    waiting(3).await;
    calls.push(ask(other.token(), "b"));
    waiting(4).await;
    hold.open();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    let requests = server.requests();
    let order: Vec<&str> = requests.iter().map(|request| request.body["user"].as_str().unwrap()).collect();
    assert_eq!(order.iter().position(|user| *user == "b"), Some(2), "{order:?}");
    assert_eq!(server.most_at_once(), 1);
}

#[tokio::test]
async fn a_stream_has_its_place_until_its_end() {
    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("one two three four").held_midway(&hold));
    let setup = Setup::with(&server, Dialect::Chat, |config| config.max_concurrent_calls = 1, |_| ()).await;
    let (path, body) = question(Dialect::Chat, true);
    let first = setup.post(path, &body).send().await.unwrap();
    hold.waiting(1).await;
    let second = tokio::spawn(setup.post(path, &body).send());
    while setup.gateway.waiting_calls() < 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.served(), 1);
    hold.open();
    for response in [first, second.await.unwrap().unwrap()] {
        assert!(response.text().await.unwrap().ends_with("data: [DONE]\n\n"));
    }
}

#[tokio::test]
async fn a_stream_that_waits_gets_signs_of_life_that_its_client_ignores() {
    let signs = [": keep-alive", ": keep-alive", "event: ping", "data: {\"candidates\""];
    for (dialect, sign) in DIALECTS.into_iter().zip(signs) {
        let hold = Hold::new();
        let server = ModelServer::always(ModelReply::text("It is 4.").held(&hold));
        let soon = |config: &mut GatewayConfig| config.keep_alive = Duration::from_millis(20);
        let setup = Setup::with(&server, dialect, soon, |_| ()).await;
        let (path, body) = question(dialect, true);
        let mut response = setup.post(path, &body).send().await.unwrap();
        let first = response.chunk().await.unwrap().unwrap();
        assert!(first.starts_with(sign.as_bytes()), "{dialect:?} {first:?}");
        hold.open();
        assert!(response.text().await.unwrap().contains("4."));
        let closed = setup.close().await;
        assert_eq!(text_of(dialect, closed.calls[0].response.as_ref().unwrap()), "It is 4.");
    }
}

#[tokio::test]
async fn a_rate_limit_holds_requests_instead_of_refusing_them() {
    let server = ModelServer::always(ModelReply::text("4"));
    let limit = |config: &mut GatewayConfig| config.rate_limit.requests_per_minute = NonZeroU32::new(600);
    let setup = Setup::with(&server, Dialect::Chat, limit, |_| ()).await;
    let begun = Instant::now();
    for _ in 0..13 {
        assert_eq!(setup.ask(Dialect::Chat, false).await.0, 200);
    }
    // A second's worth goes at once, and the rest one after the other.
    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn tokens_per_minute_hold_requests_too() {
    let server = ModelServer::always(counted());
    // The first request is estimated to be small, and turns out to use 1100 tokens: the allowance of 1.1 seconds.
    let limit = |config: &mut GatewayConfig| config.rate_limit.tokens_per_minute = NonZeroU32::new(60_000);
    let setup = Setup::with(&server, Dialect::Chat, limit, |_| ()).await;
    let begun = Instant::now();
    for _ in 0..3 {
        assert_eq!(setup.ask(Dialect::Chat, false).await.0, 200);
    }
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn sessions_take_turns_at_the_rate_limit() {
    // On a busy machine, the calls of the first session may be through before the one of the second arrives.
    for _ in 0..20 {
        if let Some(order) = order_at_the_rate_limit().await {
            let Order { calls_before, most } = order;
            assert!(calls_before <= most, "{calls_before} calls came first, but at most {most} should");
            return;
        }
    }
    panic!("the second session never had to wait");
}

/// How a call of a second session fared beside many calls of a first one.
struct Order {
    /// The calls of the first session that were served before it.
    calls_before: usize,
    /// How many of them a fair limit serves first.
    most: usize,
}

/// None if at most one call of the first session waited when the call of the second arrived.
async fn order_at_the_rate_limit() -> Option<Order> {
    const CALLS: usize = 6;
    let server = ModelServer::always(ModelReply::text("4"));
    let limit = |config: &mut GatewayConfig| config.rate_limit.requests_per_minute = NonZeroU32::new(120);
    let setup = Setup::with(&server, Dialect::Chat, limit, |_| ()).await;
    let other = setup.second(&server, Dialect::Chat);
    let ask = |token: &str, user: &str| {
        let (path, mut body) = question(Dialect::Chat, false);
        body["user"] = user.into();
        tokio::spawn(setup.post_as(token, path, &body).send())
    };
    let mut calls: Vec<_> =
        (0..CALLS).map(|number| ask(setup.session.token(), &format!("a{number}"))).collect();
    // The limit lets two calls pass at once, and then two each second. One waits for it, and the others for their turn.
    let waiting = || setup.gateway.waiting_calls();
    while server.served() + 1 + waiting() < CALLS {
        tokio::task::yield_now().await;
    }
    let mut last = waiting();
    let late = ask(other.token(), "b");
    // All calls of the first session have arrived, so only the other one makes the number grow.
    let waiting_then = loop {
        let now = waiting();
        if late.is_finished() || now > last {
            break now;
        }
        last = now;
        tokio::task::yield_now().await;
    };
    let behind = waiting_then.saturating_sub(1);
    if late.is_finished() || behind < 2 {
        return None;
    }
    calls.push(late);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    let requests = server.requests();
    let position = requests.iter().position(|request| request.body["user"] == "b").unwrap();
    // Those that did not wait behind it, and at most one that gets its turn in between.
    Some(Order { calls_before: position, most: CALLS - behind + 1 })
}

#[tokio::test]
async fn the_session_that_a_request_names_does_not_matter_to_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let server = ModelServer::scripted(|request| ModelReply::text(format!("answer {}", request.number)));
    let cached = |config: &mut GatewayConfig| config.cache = Some(cache.path().to_owned());
    let mut answers = Vec::new();
    for (session, content) in [("s-1", "2+2?"), ("s-2", "2+2?"), ("s-3", "3+3?")] {
        let setup = Setup::with(&server, Dialect::Responses, cached, |_| ()).await;
        let (path, mut body) = question(Dialect::Responses, false);
        body["input"][0]["content"] = content.into();
        for field in ["prompt_cache_key", "user", "safety_identifier"] {
            body[field] = session.into();
        }
        for field in ["metadata", "client_metadata"] {
            body[field] = serde_json::json!({"session_id": session});
        }
        let response = setup.post(path, &body).send().await.unwrap();
        answers.push(response.text().await.unwrap());
        // The response is saved before the session is closed.
        setup.close().await;
    }
    assert_eq!(server.served(), 2, "{answers:?}");
    assert_eq!(answers[0], answers[1]);
    assert_ne!(answers[0], answers[2]);
    assert_eq!(server.requests()[0].body["prompt_cache_key"], "s-1", "the server still gets it");
}

#[tokio::test]
async fn cached_responses_are_replayed_in_order_and_cost_nothing() {
    let cache = tempfile::tempdir().unwrap();
    let server = ModelServer::scripted(|request| ModelReply::text(format!("answer {}", request.number)));
    let cached = |config: &mut GatewayConfig| {
        config.cache = Some(cache.path().to_owned());
        config.prices = prices();
    };
    let setup = Setup::with(&server, Dialect::Chat, cached, |_| ()).await;
    let again = setup.second(&server, Dialect::Chat);
    let mut bodies = Vec::new();
    for stream in [true, true, false] {
        bodies.push(setup.ask(Dialect::Chat, stream).await.1);
    }
    assert_ne!(bodies[0], bodies[1], "the same request may have another answer each time");
    // The records are written when the responses are saved.
    setup.close().await;
    let setup = Setup::with(&server, Dialect::Chat, cached, |_| ()).await;
    drop(again);
    for (stream, expected) in [true, true, false].into_iter().zip(&bodies) {
        assert_eq!(&setup.ask(Dialect::Chat, stream).await.1, expected);
    }
    assert_eq!(server.served(), 3);
    let closed = setup.close().await;
    assert!(closed.calls.iter().all(|call| call.cached));
    assert_eq!((closed.summary.turns, closed.summary.cost), (3, Some(0.0)));
    assert!(closed.summary.usage.completion_tokens > 0);
}

#[tokio::test]
async fn a_response_with_an_error_is_not_saved_in_the_cache() {
    let failed = serde_json::json!({"type": "response.failed", "response": {
        "id": "r", "status": "failed", "output": [], "error": {"code": "server_error", "message": "out of order"}}});
    let chunk = serde_json::json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}],
                                   "error": {"code": 502, "message": "out of order"}});
    for (dialect, event) in [(Dialect::Responses, failed), (Dialect::Chat, chunk)] {
        let cache = tempfile::tempdir().unwrap();
        let failure = ModelReply::raw(200, format!("data: {event}\n\n")).content_type("text/event-stream");
        let server = ModelServer::sequence([failure, ModelReply::text("4")]);
        let cached = |config: &mut GatewayConfig| config.cache = Some(cache.path().to_owned());
        for is_answered in [false, true, true] {
            let setup = Setup::with(&server, dialect, cached, |_| ()).await;
            setup.ask(dialect, true).await;
            assert_eq!(setup.close().await.summary.succeeded(), is_answered, "{dialect:?}");
        }
        assert_eq!(server.served(), 2, "{dialect:?}: the answer is saved");
    }
}
