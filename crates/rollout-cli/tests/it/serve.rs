//! `rollout serve` over real HTTP, against a scripted model server.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use rollout_testkit::{Finished, Gate, Hold, ModelReply, ModelServer, Running, TestJob};
use serde_json::{Value, json};

use crate::http::{Answer, get, head, post, post_with, send};

/// How long anything may take before a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(600);

/// A job with one model and the examples `0+1`, `1+1` and so on.
fn job(server: &ModelServer, examples: usize) -> TestJob {
    let rows: Vec<Value> = (0..examples)
        .map(|n| json!({"question": format!("What is {n}+1?"), "answer": (n + 1).to_string()}))
        .collect();
    let model = json!({
        "name": "policy", "base_url": server.url(), "api_key": "${POLICY_KEY}", "max_retries": 0,
        "token_ids": true, "sampling": {"temperature": 1.0, "max_tokens": 64},
    });
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .env("POLICY_KEY", "sk-of-the-policy")
        .agent(json!({"name": "policy", "model": model}))
        .set("retry", json!({"max_attempts": 1}))
        .set("log_level", json!("error"))
        .set(
            "datasets",
            json!([{"name": "sums", "interaction": {"dataset": rows, "rubric": [{"match": "numeric"}]}}]),
        )
}

/// A service that runs.
struct Service {
    address: SocketAddr,
    running: Running,
    _job: TestJob,
}

impl Service {
    fn start(job: TestJob) -> Self {
        Self::start_with(job, &[])
    }

    fn start_with(job: TestJob, arguments: &[&str]) -> Self {
        let arguments = [&["serve", "job.yaml", "--port", "0"], arguments].concat();
        let mut running = job.start_with(&arguments);
        let deadline = Instant::now() + PATIENCE;
        let address = loop {
            let shown = fs::read_to_string(job.root().join("stdout")).unwrap_or_default();
            if let Some((_, address)) = shown.lines().next().and_then(|line| line.split_once(" at http://"))
                && shown.ends_with('\n')
            {
                break address.parse::<SocketAddr>().unwrap();
            }
            let stderr = || fs::read_to_string(job.root().join("stderr")).unwrap_or_default();
            assert!(running.is_running() && Instant::now() < deadline, "it did not start:\n{}", stderr());
            std::thread::sleep(Duration::from_millis(5));
        };
        let address = SocketAddr::new([127, 0, 0, 1].into(), address.port());
        Self { address, running, _job: job }
    }

    fn rollouts(&self, body: &Value) -> Answer {
        let answer = post(self.address, "/v1/rollouts", body);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
        answer
    }

    fn in_flight(&self) -> Value {
        get(self.address, "/v1/info").json()["in_flight"].take()
    }

    /// Waits until the counts of what is in flight are these.
    #[track_caller]
    fn until(&self, expected: &Value) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.in_flight();
            let reached =
                expected.as_object().unwrap().iter().all(|(key, value)| now[key.as_str()] == *value);
            if reached {
                return;
            }
            assert!(Instant::now() < deadline, "still {now} instead of {expected}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn finish(self) -> Finished {
        self.running.finish()
    }
}

fn idle() -> Value {
    json!({"requests": 0, "rollouts_running": 0, "rollouts_waiting": 0, "groups_unread": 0})
}

/// Waits for something that a model server is asked.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("it comes in time") })
}

/// The summary without its time.
fn summary(line: Option<Value>) -> Value {
    let mut summary = line.expect("the last line");
    assert!(summary.as_object_mut().unwrap().remove("seconds").is_some_and(|seconds| seconds.is_f64()));
    summary
}

#[test]
fn a_group_is_told_as_soon_as_it_is_scored() {
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |request| match request.last_text().as_str() {
        "What is 0+1?" => ModelReply::text("1").held(&held),
        _ => ModelReply::text("2"),
    });
    let service = Service::start(job(&server, 2).set("n_concurrent_trials", json!(4)));
    let mut answer = service.rollouts(&json!({"example_ids": [0, 1], "rollouts_per_example": 2}));

    let first = answer.next().unwrap();
    assert_eq!((&first["type"], &first["example_id"]), (&json!("group"), &json!(1)));
    assert_eq!((&first["rewards"], &first["advantages"]), (&json!([1.0, 1.0]), &json!([0.0, 0.0])));
    assert_eq!(first["metrics"][1], json!({"numeric": 1.0, "num_turns": 1.0}));
    assert_eq!(first["errors"], json!([null, null]));
    service.until(&json!({"requests": 1, "rollouts_running": 2}));

    hold.open();
    assert_eq!(answer.next().unwrap()["example_id"], 0);
    insta::assert_snapshot!(summary(answer.next()), @r#"{"type":"summary","groups":2,"rollouts":4,"errors":0,"avg_reward":1.0,"samples":0,"rollouts_without_tokens":0,"cancelled":false}"#);
    assert_eq!(answer.next(), None);
    service.until(&idle());
}

#[test]
fn a_client_gets_its_own_inputs_sampled_its_own_way() {
    let server = ModelServer::echo();
    let service = Service::start(job(&server, 1));
    let mut answer = service.rollouts(&json!({
        "inputs": [
            {"question": "5", "answer": "5", "info": {"level": 3}},
            {"prompt": [{"role": "system", "content": "Count."}, {"role": "user", "content": "7"}], "answer": 8},
        ],
        "model": "policy-step-12",
        "sampling": {"temperature": 0.2, "top_k": 5},
        "rollouts_per_example": 1,
    }));
    let mut lines = answer.lines();
    assert_eq!(summary(lines.pop())["avg_reward"], 0.5);
    lines.sort_by_key(|line| line["example_id"].as_u64());
    let row = &lines[0]["rollouts"][0];
    assert_eq!(
        (&row["info"]["level"], &row["reward"], &row["task"]),
        (&json!(3), &json!(1.0), &json!("sums"))
    );
    assert_eq!(row["completion"], json!([{"role": "assistant", "content": "5"}]));
    let turn = &row["trajectory"][0];
    let tokens = &turn["tokens"];
    assert!(tokens["completion_ids"].as_array().is_some_and(|ids| !ids.is_empty()), "{tokens}");
    assert_eq!((&turn["advantage"], &row["trajectory_id"]), (&row["advantage"], &turn["trajectory_id"]));
    assert_eq!(lines[1]["rewards"], json!([0.0]));

    for request in server.requests() {
        let body = &request.body;
        assert_eq!(body["model"], "policy-step-12");
        assert_eq!((&body["temperature"], &body["top_k"]), (&json!(0.2), &json!(5)));
        assert_eq!(body["max_completion_tokens"], 64);
    }
    assert_eq!(get(service.address, "/v1/info").json()["model"], "policy");
}

#[test]
fn samples_are_tokens_with_masks_and_advantages() {
    let server = ModelServer::sequence([
        ModelReply::text("1").tokens(&[10, 11], &[(12, -0.5)]),
        ModelReply::text("9").tokens(&[10, 11], &[(13, -0.25), (14, -0.125)]),
    ]);
    let service = Service::start(job(&server, 1).set("n_concurrent_trials", json!(1)));
    let mut answer =
        service.rollouts(&json!({"example_ids": [0], "rollouts_per_example": 2, "return": "samples"}));
    let group = answer.next().unwrap();
    assert_eq!(group["rollouts"], Value::Null);
    let samples = group["samples"].as_array().unwrap();
    let rewards: Vec<&Value> = samples.iter().map(|sample| &sample["reward"]).collect();
    assert_eq!(json!(rewards), group["rewards"], "they are in the order of the rollouts");
    let of_reward = |reward: f64| samples.iter().find(|sample| sample["reward"] == reward).unwrap();
    let (right, wrong) = (of_reward(1.0), of_reward(0.0));
    assert_eq!(right["token_ids"], json!([10, 11, 12]));
    assert_eq!(right["loss_mask"], json!([0, 0, 1]));
    assert_eq!(right["advantages"], json!([0.0, 0.0, 0.5]));
    assert_eq!(wrong["token_ids"], json!([10, 11, 13, 14]));
    assert_eq!(wrong["logprobs"], json!([0.0, 0.0, -0.25, -0.125]));
    assert_eq!(wrong["advantages"], json!([0.0, 0.0, -0.5, -0.5]));
    let summary = summary(answer.next());
    assert_eq!((&summary["samples"], &summary["rollouts_without_tokens"]), (&json!(2), &json!(0)));
}

#[test]
fn a_client_that_goes_away_cancels_its_rollouts() {
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("1").held(&held));
    let service = Service::start(job(&server, 8).set("n_concurrent_trials", json!(2)));
    let all = json!([0, 1, 2, 3, 4, 5, 6, 7]);
    let answer = service.rollouts(&json!({"example_ids": all, "rollouts_per_example": 3}));
    block_on(hold.waiting(2));
    service.until(&json!({"rollouts_running": 2, "rollouts_waiting": 2}));
    drop(answer);
    block_on(hold.waiting(0));
    service.until(&idle());
    assert_eq!(server.served(), 2, "what had not begun never begins");

    hold.open();
    assert_eq!(service.rollouts(&json!({"example_ids": [7]})).lines().len(), 2);
}

#[test]
fn what_a_rollout_started_ends_when_its_client_goes_away() {
    let gate = Gate::new();
    let server = ModelServer::always(ModelReply::tool_call("wait", &json!({})));
    let tool = json!({"name": "wait", "description": "Waits.", "command": ["bash", "-c", gate.wait()]});
    let interaction =
        json!({"dataset": [{"question": "?"}], "rubric": [{"match": "exact"}], "tools": [tool]});
    let job = job(&server, 1).set("datasets", json!([{"name": "waits", "interaction": interaction}]));
    let service = Service::start(job);
    let answer = service.rollouts(&json!({"example_ids": [0]}));
    let tool = gate.arrival();
    drop(answer);
    tool.ended();
    service.until(&idle());
}

#[test]
fn a_slow_reader_stops_its_own_rollouts_and_nobody_elses() {
    let long = "x".repeat(256 << 10);
    let server = ModelServer::scripted(move |_| ModelReply::text(long.clone()).no_usage());
    let service = Service::start(job(&server, 60).set("n_concurrent_trials", json!(2)));
    let all: Vec<usize> = (0..60).collect();
    let mut slow = service.rollouts(&json!({"example_ids": all, "rollouts_per_example": 1}));
    // One in the channel, one that waits for it, and one more that was under way: nothing moves until it is read.
    service.until(&json!({"requests": 1, "rollouts_running": 0, "rollouts_waiting": 0, "groups_unread": 3}));
    let served = server.served();
    assert!(served < 60, "{served} rollouts for a client that reads none");

    let mut quick = service.rollouts(&json!({"example_ids": [0], "rollouts_per_example": 1}));
    assert_eq!(quick.lines().len(), 2);
    assert_eq!(server.served(), served + 1);

    let lines = slow.lines();
    assert_eq!((lines.len(), &lines[60]["groups"]), (61, &json!(60)));
}

#[test]
fn clients_share_the_places_fairly() {
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("1").held(&held));
    let service = Service::start(job(&server, 1).set("n_concurrent_trials", json!(4)));
    let inputs = |who: &str, number: usize| -> Vec<Value> {
        (0..number).map(|_| json!({"question": who, "answer": "1"})).collect()
    };
    let mut greedy = service.rollouts(&json!({"inputs": inputs("greedy", 20), "rollouts_per_example": 1}));
    block_on(hold.waiting(4));
    let mut late = service.rollouts(&json!({"inputs": inputs("late", 4), "rollouts_per_example": 1}));
    service.until(&json!({"requests": 2, "rollouts_running": 4, "rollouts_waiting": 4}));

    for passed in 1..=3 {
        hold.pass(1);
        block_on(async {
            while server.served() < 4 + passed {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        // The place is taken again, and the client that had it has asked for another one.
        service.until(&json!({"rollouts_running": 4, "rollouts_waiting": 4}));
    }
    let asked: Vec<String> = server.requests().iter().map(|request| request.last_text()).collect();
    assert_eq!(asked[4..], ["late", "late", "greedy"], "two of four places each");

    hold.open();
    assert_eq!((greedy.lines().len(), late.lines().len()), (21, 5));
    assert_eq!(server.most_at_once(), 4, "no more than `n_concurrent_trials` over both");
}

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
    insta::assert_snapshot!(refused.json(), @r#"{"error":{"message":"too many requests are under way","hint":"ask again later; 64 are served at a time, and each may have many inputs"}}"#);
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
fn every_problem_of_a_request_is_told_on_its_own_line() {
    let server = ModelServer::echo();
    let service = Service::start(job(&server, 2));
    let refused = |body: Value| {
        let answer = post(service.address, "/v1/rollouts", &body);
        assert_eq!(answer.status, 400, "{body}");
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    insta::assert_snapshot!(refused(json!({
        "inputs": [{"question": "?"}, {"answer": "4"}, {"prompt": []}, {"question": 4}],
        "rollouts_per_example": 0, "model": "", "sampling": [], "return": "all", "base_url": "http://evil.example",
    })), @r#"
    "base_url" is unknown; there are `inputs`, `example_ids`, `rollouts_per_example`, `model`, `sampling`, `return`
    inputs[1]: a row has a `prompt` or a `question`
    inputs[2]: `prompt` has no message
    inputs[3]: `question` is a text
    `rollouts_per_example` is not a whole number from 1 to 1024
    `model` is not the server's name for a model
    `sampling` is not an object
    `return` is neither "samples" nor "rollouts"
    "#);
    insta::assert_snapshot!(refused(json!({"example_ids": [0, 2, -1, "0", 0, {"deep": ["x".repeat(100)]}]})), @r#"
    example_ids[1]: the job has no example 2
    example_ids[2]: the job has no example -1
    example_ids[3]: the job has no example "0"
    example_ids[4]: example 0 is example_ids[0] too; ask for more rollouts per example
    example_ids[5]: the job has no example {"deep":["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
    "#);
    assert_eq!(server.served(), 0);
}

#[test]
fn hostile_requests_are_refused_and_cost_nothing() {
    let server = ModelServer::echo();
    let service = Service::start(job(&server, 1));
    let told = |answer: Answer| {
        let status = answer.status;
        format!("{status} {}", answer.json()["error"]["message"].as_str().unwrap())
    };
    let raw = |head: String, body: &[u8]| told(send(service.address, &head, body));
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
    413 the body of the request has more than 16777216 bytes
    415 the body is not said to be JSON
    415 the body is not said to be JSON
    403 the Host of the request is not this machine
    405 the path does not have this method
    404 there is nothing at this path
    405 the path does not have this method
    ");
    service.until(&idle());
    assert_eq!(server.served(), 0);
    assert_eq!(service.rollouts(&json!({"example_ids": [0]})).lines().len(), 2);
}

#[test]
fn a_refused_key_ends_the_request_with_a_hint_and_without_the_key() {
    let server = ModelServer::always(ModelReply::error(401, "Incorrect API key provided: sk-of-the-policy"));
    let service = Service::start(job(&server, 3).set("n_concurrent_trials", json!(1)));
    let lines = service.rollouts(&json!({"example_ids": [0, 1, 2]})).lines();
    assert_eq!(server.served(), 1);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    insta::assert_snapshot!(line.to_string().replace(&server.root(), "[SERVER]"), @r#"{"type":"error","error":{"message":"no rollout can be done: [SERVER]/v1/chat/completions refuses the API key for model `policy`; check that `api_key` is the right one and may use the model: 401 Unauthorized: Incorrect API key provided: [redacted]","hint":"set the right api_key in the job file, and start the service again"}}"#);
}

#[test]
fn an_error_of_a_rollout_is_told_in_its_place() {
    let server = ModelServer::sequence([ModelReply::text("1"), ModelReply::error(400, "no such thing")]);
    let service = Service::start(job(&server, 1).set("n_concurrent_trials", json!(1)));
    let lines = service.rollouts(&json!({"example_ids": [0], "rollouts_per_example": 2})).lines();
    let rewards = lines[0]["rewards"].as_array().unwrap();
    for (reward, error) in rewards.iter().zip(lines[0]["errors"].as_array().unwrap()) {
        match error.as_str() {
            None => assert_eq!(reward, 1.0),
            Some(error) => assert!(error.contains("no such thing") && reward == 0.0, "{error}"),
        }
    }
    assert_eq!((&lines[1]["rollouts"], &lines[1]["errors"]), (&json!(2), &json!(1)));
}

#[test]
fn info_tells_what_is_served() {
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
    error: other machines can reach 0.0.0.0; without a token, anybody could spend the model's budget
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
fn a_job_is_served_only_with_one_model_and_one_interaction() {
    let server = ModelServer::echo();
    let twice =
        job(&server, 1).agent(json!({"name": "other", "model": {"name": "m", "base_url": server.url()}}));
    let finished = twice.rollout(&["serve", "job.yaml", "--port", "0"]).expect(2);
    insta::assert_snapshot!(finished.stderr(), @"
    error: a service has one model and one interaction, and job.yaml has 2 models and 1 interaction
    hint: write a job file with the pair that is trained; each pair has a service of its own
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
fn a_second_signal_waits_for_nobody() {
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

/// The first block of Python in the documentation.
fn documented_client() -> String {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/training.md")).unwrap();
    let (_, rest) = text.split_once("```python\n").expect("the documentation has a client");
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_documented_client_works_as_it_is() {
    let server = ModelServer::arithmetic();
    let service = Service::start(job(&server, 3));
    let output = std::process::Command::new("python3")
        .args(["-c", &documented_client()])
        .env("ROLLOUT_URL", format!("http://{}", service.address))
        .output()
        .expect("run python3");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}\n{}", String::from_utf8_lossy(&output.stderr));
    let mut lines: Vec<&str> = shown.lines().collect();
    lines[..3].sort_unstable();
    insta::assert_snapshot!(lines.join("\n"), @"
    example 0 rewards [1.0, 1.0, 1.0, 1.0] sampled tokens 8
    example 1 rewards [1.0, 1.0, 1.0, 1.0] sampled tokens 8
    example 2 rewards [1.0, 1.0, 1.0, 1.0] sampled tokens 8
    12 rollouts, mean reward 1.0
    ");
    assert_eq!(server.served(), 12);
}
