//! What holds for every service: limits, refusals, tokens, signals.

use std::time::{Duration, Instant};

use rollout_testkit::{Hold, ModelReply, ModelServer, TestJob, TestTask, long_enough};
use serde_json::{Value, json};

use super::{PATIENCE, Service, block_on, idle, job, summary};
use crate::http::{Answer, get, head, post, post_with, send};

#[test]
fn too_many_requests_are_asked_to_come_again() {
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("1").held(&held));
    let service = Service::start(job(&server, 1).set("n_concurrent_trials", json!(1)));
    let request = json!({"example_ids": [0], "rollouts_per_example": 1});
    let mut served: Vec<Answer> = (0..64).map(|_| service.rollouts(&request)).collect();
    service.until(&json!({"requests": 64, "rollouts_running": 1, "rollouts_waiting": 63}));

    let refused = post(service.address, "/v1/rollouts", &request);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    insta::assert_snapshot!(refused.json(), @r#"{"error":{"message":"too many running requests","hint":"retry later; 64 requests are served at a time, and each may have many inputs"}}"#);
    assert_eq!(get(service.address, "/health").status, 200);

    drop(served.pop());
    service.until(&json!({"requests": 63}));
    served.push(service.rollouts(&request));
    hold.open();
    for mut answer in served {
        assert_eq!(answer.lines().len(), 2);
    }
}

#[test]
fn every_problem_of_a_request_is_reported_on_its_own_line() {
    let server = ModelServer::echo();
    let service = Service::start(job(&server, 2));
    let refused = |body: Value| {
        let answer = post(service.address, "/v1/rollouts", &body);
        assert_eq!(answer.status, 400, "{body}");
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    insta::assert_snapshot!(refused(json!({
        "inputs": [{"question": "?"}, {"answer": "4"}, {"prompt": []}, {"question": 4}],
        "rollouts_per_example": 0, "model": "", "sampling": [], "return": "all",
        "base_url": "evil.example", "api_key": 7, "advantage": "best", "include_errors": 1, "task_ids": ["0"], "endpoint": "x",
    })), @r#"
    unknown key "endpoint"; known keys: `inputs`, `example_ids`, `task_ids`, `rollouts_per_example`, `model`, `base_url`, `api_key`, `sampling`, `advantage`, `include_errors`, `return`
    `task_ids` are for container tasks, and the job has an interaction; send `example_ids` or `inputs`
    inputs[1]: missing `prompt` or `question`
    inputs[2]: `prompt` is empty
    inputs[3]: `question` must be a string
    `rollouts_per_example` must be a whole number from 1 to 1024
    `model` must be a text that is not empty
    `base_url` must be an http or https URL, such as http://127.0.0.1:8000/v1, without credentials; send a key as `api_key`
    `api_key` must contain only visible ASCII characters
    `sampling` is not an object
    `advantage` must be one of "group_mean", "leave_one_out", "normalised"
    `include_errors` must be true or false
    `return` must be "samples" or "rollouts"
    "#);
    insta::assert_snapshot!(refused(json!({"example_ids": [0, 2, -1, "0", 0, {"deep": ["x".repeat(100)]}]})), @r#"
    example_ids[1]: the job has no example 2
    example_ids[2]: the job has no example -1
    example_ids[3]: the job has no example "0"
    example_ids[4]: duplicate of example_ids[0]; to repeat it, set `rollouts_per_example`
    example_ids[5]: the job has no example {"deep":["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
    "#);
    assert_eq!(server.served(), 0);
}

#[test]
fn hostile_requests_are_refused_and_cost_nothing() {
    let server = ModelServer::echo();
    let service = Service::start(job(&server, 1));
    let reported = |answer: Answer| {
        let status = answer.status;
        format!("{status} {}", answer.json()["error"]["message"].as_str().unwrap())
    };
    let raw = |head: String, body: &[u8]| reported(send(service.address, &head, body));
    let json_of = |length: usize| {
        let length = length.to_string();
        head("POST", "/v1/rollouts", &[("Content-Type", "application/json"), ("Content-Length", &length)])
    };
    let deep = "[".repeat(100_000);
    let seen = [
        raw(json_of(0), b""),
        raw(json_of(2), b"[]"),
        raw(json_of(4), b"{\"\xff\""),
        raw(json_of(deep.len()), deep.as_bytes()),
        raw(json_of(17 << 20), b""),
        raw(head("POST", "/v1/rollouts", &[("Content-Type", "text/plain"), ("Content-Length", "2")]), b"{}"),
        raw(head("POST", "/v1/rollouts", &[("Content-Length", "2")]), b"{}"),
        raw(head("GET", "/v1/info", &[("Host", "evil.example")]), b""),
        raw(head("GET", "/v1/rollouts", &[]), b""),
        raw(head("GET", "/v1/../etc/passwd", &[]), b""),
        raw(head("DELETE", "/health", &[]), b""),
    ];
    insta::assert_snapshot!(seen.join("\n"), @"
    400 the body is not JSON: EOF while parsing a value at line 1 column 0
    400 the body is not a JSON object
    400 the body is not JSON: invalid unicode code point at line 1 column 3
    400 the body is not JSON: recursion limit exceeded at line 1 column 128
    413 the request body is larger than 16777216 bytes
    415 Content-Type must be application/json
    415 Content-Type must be application/json
    403 the Host of the request is not this machine
    405 this path does not support the method
    404 unknown path
    405 this path does not support the method
    ");
    service.until(&idle());
    assert_eq!(server.served(), 0);
    assert_eq!(service.rollouts(&json!({"example_ids": [0]})).lines().len(), 2);
}

/// The first rollout has one turn, and then its time ends. The server fails the second one; the third is right.
fn of_three_ends(timeout: Duration) -> (ModelServer, TestJob) {
    let hold = Hold::new();
    let ends = std::sync::atomic::AtomicUsize::new(0);
    let server = ModelServer::scripted(move |request| match request.turns() {
        0 => ModelReply::tool_call("look", &json!({})).tokens(&[1, 2], &[(3, -0.5)]),
        _ => match ends.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => ModelReply::text("2").held(&hold),
            1 => ModelReply::error(500, "out of memory"),
            _ => ModelReply::text("2").tokens(&[1, 2, 3, 4], &[(5, -0.25)]),
        },
    });
    let look = json!({"command": ["true"], "name": "look", "description": "Looks.", "parameters": {"type": "object"}});
    let interaction = json!({
        "dataset": [{"question": "What is 1+1?", "answer": "2"}], "tools": [look],
        "rubric": [{"match": "numeric"}], "limits": {"timeout_sec": timeout.as_secs()},
    });
    let job = job(&server, 1).set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    (server, job.set("n_concurrent_trials", json!(1)))
}

#[test]
fn rollouts_that_are_left_out_of_samples_are_counted_by_cause_unless_a_client_includes_them() {
    let lines_of = |request: &Value| {
        long_enough(Duration::from_secs(5), |timeout| {
            let (server, job) = of_three_ends(timeout);
            let service = Service::start(job);
            let lines = service.rollouts(request).lines();
            let conditions = lines[0]["stop_conditions"].as_array()?;
            let timeouts = conditions.iter().filter(|condition| **condition == "timeout_reached").count();
            // Otherwise the time of a rollout was up before its second turn, which the first one waits for.
            (server.served() == 6 && timeouts == 1).then_some(lines)
        })
    };
    let request = json!({"example_ids": [0], "rollouts_per_example": 3, "return": "samples"});
    let lines = lines_of(&request);
    assert_eq!(lines[0]["stop_conditions"], json!(["timeout_reached", "has_error", "no_tools_called"]));
    assert_eq!(lines[0]["advantages"], json!([null, null, 0.0]));
    let last = summary(lines.last().cloned());
    assert_eq!(last["left_out"], json!({"ModelError -> InternalServerError": 1, "timeout_reached": 1}));
    assert_eq!((&last["samples"], &last["errors"]), (&json!(1), &json!(1)));

    let mut request = request;
    request["include_errors"] = json!(true);
    let lines = lines_of(&request);
    let advantages: Vec<f64> = serde_json::from_value(lines[0]["advantages"].clone()).unwrap();
    assert!(advantages.iter().sum::<f64>().abs() < 1e-9 && advantages[2] > 0.0, "{advantages:?}");
    let last = summary(lines.last().cloned());
    assert_eq!((&last["samples"], &last["left_out"]), (&json!(3), &json!({})));
}

#[test]
fn a_refused_key_ends_the_request_with_a_hint_and_without_the_key() {
    let server = ModelServer::always(ModelReply::error(401, "Incorrect API key provided: sk-of-the-policy"));
    let service = Service::start(job(&server, 3).set("n_concurrent_trials", json!(1)));
    let lines = service.rollouts(&json!({"example_ids": [0, 1, 2]})).lines();
    assert_eq!(server.served(), 1);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    insta::assert_snapshot!(line.to_string().replace(&server.root(), "[SERVER]"), @r#"{"type":"error","error":{"message":"no rollout can run: [SERVER]/v1/chat/completions rejected the API key for model `policy`; check that `api_key` is correct and has access to the model: 401 Unauthorized: Incorrect API key provided: [redacted]","hint":"set the right api_key in the job file, and start the service again"}}"#);
}

#[test]
fn info_describes_the_served_job() {
    let server = ModelServer::echo();
    let interaction = json!({
        "dataset": [{"question": "?"}], "rubric": [{"match": "exact"}],
        "limits": {"max_completion_tokens": 100, "timeout_sec": 60},
    });
    let job = job(&server, 1).set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    let service = Service::start(job.set("n_attempts", json!(4)));
    insta::assert_json_snapshot!(get(service.address, "/v1/info").json(), @r#"
    {
      "env_id": "sums",
      "model": "policy",
      "sampling": {
        "temperature": 1.0,
        "max_tokens": 64
      },
      "token_ids": true,
      "examples": 1,
      "rollouts_per_example": 4,
      "n_concurrent_trials": 4,
      "limits": {
        "max_turns": null,
        "max_completion_tokens": 100,
        "max_total_tokens": null,
        "max_cost": null,
        "timeout_sec": 60.0,
        "max_requests": 64,
        "max_body_bytes": 16777216
      },
      "in_flight": {
        "requests": 0,
        "rollouts_running": 0,
        "rollouts_waiting": 0,
        "groups_unread": 0
      }
    }
    "#);
    insta::assert_snapshot!(get(service.address, "/health").json(), @r#"{"status":"ok"}"#);
}

#[test]
fn a_service_that_others_can_reach_needs_a_token() {
    let server = ModelServer::echo();
    let open = job(&server, 1);
    let finished = open.rollout(&["serve", "job.yaml", "--host", "0.0.0.0", "--port", "0"]).expect(2);
    insta::assert_snapshot!(finished.stderr(), @"
    error: other machines can reach 0.0.0.0; without a token, anyone could send requests to the model
    hint: pass --token-file FILE; clients send the token as `Authorization: Bearer …`
    ");
    let weak = open.file("weak", "secret\n");
    let weak = weak.rollout(&["serve", "job.yaml", "--token-file", "weak", "--port", "0"]).expect(2);
    insta::assert_snapshot!(weak.stderr(), @"
    error: the token in weak is not one line of at least 16 visible ASCII characters
    hint: create a token with `openssl rand -hex 32`
    ");

    let guarded = job(&server, 1).file("token", "0123456789abcdef0123456789abcdef\n");
    let service = Service::start_with(guarded, &["--host", "0.0.0.0", "--token-file", "token"]);
    assert_eq!(get(service.address, "/health").status, 200);
    assert_eq!(get(service.address, "/v1/info").status, 401);
    let request = json!({"example_ids": [0]});
    let refused = post(service.address, "/v1/rollouts", &request);
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    insta::assert_snapshot!(refused.json(), @r#"{"error":{"message":"the token is missing or wrong","hint":"send `Authorization: Bearer <content of the token file>`"}}"#);
    let token = ("Authorization", "Bearer 0123456789abcdef0123456789abcdef");
    let mut answer =
        post_with(service.address, "/v1/rollouts", &[token, ("Host", "trainer.example")], &request);
    assert_eq!((answer.status, answer.lines().len()), (200, 2));
}

#[test]
fn a_job_is_served_only_with_one_model_and_one_dataset() {
    let server = ModelServer::echo();
    let twice =
        job(&server, 1).agent(json!({"name": "other", "model": {"name": "m", "base_url": server.url()}}));
    let finished = twice.rollout(&["serve", "job.yaml", "--port", "0"]).expect(2);
    insta::assert_snapshot!(finished.stderr(), @"
    error: a service needs one model and one dataset, but job.yaml has 2 models and 1 dataset
    hint: write a job file with one model and one dataset, and start one service for each such pair
    ");

    let neither = TestJob::new(env!("CARGO_BIN_EXE_rollout")).task(TestTask::new("task")).oracle();
    let neither = neither.set("datasets", json!([{"path": "set"}, {"path": "set", "name": "again"}]));
    let finished = neither.rollout(&["serve", "job.yaml", "--port", "0"]).expect(2);
    insta::assert_snapshot!(finished.stderr(), @"
    error: a service needs one model and one dataset, but job.yaml has 0 models and 2 datasets
    hint: write a job file with one model and one dataset, and start one service for each such pair
    ");
}

#[test]
fn an_interrupt_ends_requests_with_what_is_done() {
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |request| match request.last_text().as_str() {
        "What is 0+1?" => ModelReply::text("1"),
        _ => ModelReply::text("2").held(&held),
    });
    let service = Service::start(job(&server, 3).set("n_concurrent_trials", json!(2)));
    let mut answer = service.rollouts(&json!({"example_ids": [0, 1, 2], "rollouts_per_example": 1}));
    assert_eq!(answer.next().unwrap()["example_id"], 0);
    block_on(hold.waiting(2));
    service.running.signal("-INT");
    let summary = summary(answer.next());
    assert_eq!((&summary["groups"], &summary["cancelled"]), (&json!(1), &json!(true)));
    assert_eq!(answer.next(), None);
    block_on(hold.waiting(0));
    service.finish().expect(0);
}

#[test]
fn a_second_signal_does_not_wait() {
    let long = "x".repeat(256 << 10);
    let server = ModelServer::scripted(move |_| ModelReply::text(long.clone()).no_usage());
    let service = Service::start(job(&server, 60).set("n_concurrent_trials", json!(1)));
    let all: Vec<usize> = (0..60).collect();
    let stuck = service.rollouts(&json!({"example_ids": all, "rollouts_per_example": 1}));
    service.until(&json!({"rollouts_running": 0, "groups_unread": 2}));
    service.running.signal("-TERM");
    let deadline = Instant::now() + PATIENCE;
    while std::net::TcpStream::connect(service.address).is_ok() {
        assert!(Instant::now() < deadline, "it still lets clients in");
        std::thread::sleep(Duration::from_millis(5));
    }
    service.running.signal("-TERM");
    service.finish().expect(130);
    drop(stuck);
}
