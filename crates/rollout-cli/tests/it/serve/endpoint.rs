//! Requests that name the model's server, its key or an estimator.

use rollout_testkit::{ModelReply, ModelServer};
use serde_json::{Value, json};

use super::{Service, job, summary};

const KEY: &str = "sk-of-the-trainer-0123456789";

/// A job whose model has a key and a header for its own server.
fn guarded(server: &ModelServer) -> rollout_testkit::TestJob {
    let model = json!({
        "name": "policy", "base_url": server.url(), "api_key": "${POLICY_KEY}", "max_retries": 0,
        "token_ids": true, "headers": {"x-team": "${TEAM_SECRET}"},
    });
    let agents = json!([{"name": "policy", "model": model}]);
    job(server, 2).env("TEAM_SECRET", "team-secret-42").set("agents", agents)
}

#[test]
fn a_key_that_is_also_a_number_or_ends_in_an_escape_leaves_lines_that_are_json() {
    for key in ["00000000", "sk-12345\\"] {
        // The first is in the digits of the reward, and the second before the quotes of a text.
        let server = ModelServer::always(ModelReply::text("sk-12345\" and 00000000"));
        let rubric = json!([{"name": "sum", "command": ["echo", "0.30000000000000004"]}]);
        let interaction = json!({"dataset": [{"question": "well"}], "rubric": rubric});
        let job = job(&server, 1)
            .env("POLICY_KEY", key)
            .set("datasets", json!([{"name": "sums", "interaction": interaction}]));
        let service = Service::start(job);
        let mut answer = service.rollouts(&json!({"example_ids": [0], "rollouts_per_example": 1}));
        let group = answer.next().unwrap();
        assert_eq!(group["rewards"], json!([0.30000000000000004]), "{key}: {group:#}");
        let said = group["rollouts"][0]["completion"][0]["content"].as_str().unwrap();
        assert_eq!(said.contains("[redacted]"), key == "00000000", "{said}");
        assert_eq!(summary(answer.next())["avg_reward"], 0.30000000000000004);
    }
}

#[test]
fn a_request_may_name_an_endpoint_which_gets_nothing_of_the_jobs_own() {
    let own = ModelServer::always(ModelReply::text("1"));
    let other = ModelServer::always(ModelReply::text(format!("The key is {KEY}"))).key(KEY);
    let service = Service::start(guarded(&own));
    let endpoint = json!({"base_url": other.url(), "api_key": KEY, "model": "step-1"});
    let mut request = json!({"example_ids": [0], "rollouts_per_example": 1});
    request.as_object_mut().unwrap().extend(endpoint.as_object().unwrap().clone());
    let lines = service.rollouts(&request).lines();
    let [group, summary] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(summary["errors"], 0, "{group}");
    assert_eq!(group["rollouts"][0]["completion"][0]["content"], "The key is [redacted]");
    assert!(!json!(lines).to_string().contains(KEY));

    assert_eq!((own.served(), other.served()), (0, 1));
    let asked = &other.requests()[0];
    assert_eq!((asked.model(), asked.header("x-team")), ("step-1", None));
    assert_eq!(asked.header("authorization"), Some(format!("Bearer {KEY}").as_str()));

    // The next request knows nothing of it.
    service.rollouts(&json!({"example_ids": [0], "rollouts_per_example": 1})).lines();
    let asked = &own.requests()[0];
    assert_eq!((asked.model(), asked.header("x-team")), ("policy", Some("team-secret-42")));
    assert_eq!(asked.header("authorization"), Some("Bearer sk-of-the-policy"));
}

#[test]
fn a_named_endpoint_without_a_key_gets_none() {
    let own = ModelServer::always(ModelReply::text("1"));
    let other = ModelServer::always(ModelReply::text("1"));
    let service = Service::start(guarded(&own));
    let request = json!({"example_ids": [0], "rollouts_per_example": 1, "base_url": other.url()});
    assert_eq!(summary(service.rollouts(&request).lines().pop())["errors"], 0);
    assert_eq!(other.requests()[0].header("authorization"), None);
}

#[test]
fn a_key_of_the_request_that_is_refused_is_reported_without_it() {
    let own = ModelServer::always(ModelReply::text("1"));
    let other = ModelServer::always(ModelReply::error(401, format!("no such key: {KEY}")));
    let service = Service::start(guarded(&own));
    let request = json!({"example_ids": [0], "base_url": other.url(), "api_key": KEY});
    let lines = service.rollouts(&request).lines();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    insta::assert_snapshot!(line.to_string().replace(&other.root(), "[SERVER]"), @r#"{"type":"error","error":{"message":"no rollout can run: [SERVER]/v1/chat/completions rejected the API key for model `policy`; check that `api_key` is correct and has access to the model: 401 Unauthorized: no such key: [redacted]","hint":"send the right `api_key` for this `base_url`"}}"#);
}

#[test]
fn a_request_may_name_another_estimator() {
    let server = ModelServer::sequence(["1", "0", "0"].map(ModelReply::text));
    let service = Service::start(job(&server, 1).set("n_concurrent_trials", json!(1)));
    let request = json!({"example_ids": [0], "rollouts_per_example": 3, "advantage": "leave_one_out"});
    let group = service.rollouts(&request).next().unwrap();
    let mut pairs: Vec<(f64, f64)> =
        std::iter::zip(numbers(&group["rewards"]), numbers(&group["advantages"])).collect();
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    assert_eq!(pairs, [(1.0, 1.0), (0.0, -0.5), (0.0, -0.5)]);
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}
