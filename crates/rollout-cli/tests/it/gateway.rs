//! `rollout gateway serve`, as people start it.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use rollout_testkit::{ModelReply, ModelServer, TestJob, TokenCounts, files_holding};
use serde_json::{Value, json};

use crate::http::post_with;

/// How long anything may take before a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(600);

const KEY: &str = "sk-real-key-of-the-user";

#[test]
fn an_agent_of_another_dialect_is_served_recorded_and_summed_up() {
    let counts = TokenCounts { prompt: 1200, cached: 200, completion: 30, ..TokenCounts::default() };
    let server = ModelServer::always(ModelReply::text("It is 4.").usage(counts)).key(KEY);
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout")).env("REAL_KEY", KEY);
    let arguments = [
        "gateway",
        "serve",
        "--upstream",
        &server.url(),
        "--key-variable",
        "REAL_KEY",
        "--route",
        "claude-*=gpt-4.1",
        "--max-calls",
        "1",
    ];
    let mut running = job.start_with(&arguments);
    let deadline = Instant::now() + PATIENCE;
    let shown = loop {
        let shown = fs::read_to_string(job.root().join("stdout")).unwrap_or_default();
        if shown.contains("GEMINI_API_KEY") && shown.ends_with('\n') {
            break shown;
        }
        let stderr = || fs::read_to_string(job.root().join("stderr")).unwrap_or_default();
        assert!(running.is_running() && Instant::now() < deadline, "it did not start:\n{}", stderr());
        std::thread::sleep(Duration::from_millis(5));
    };
    let word = |after: &str| shown.split_once(after).unwrap().1.split_whitespace().next().unwrap().to_owned();
    let (address, token) = (word("gateway at http://"), word("token "));
    let address: SocketAddr = address.parse().unwrap();
    let ask = |model: &str| {
        let body =
            json!({"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "2+2?"}]});
        post_with(address, "/v1/messages", &[("x-api-key", &token)], &body)
    };
    let answer = ask("claude-x");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["content"][0]["text"], "It is 4.");
    assert_eq!((ask("gpt-5").status, ask("claude-x").status), (404, 403));
    running.signal("-INT");
    let finished = running.finish();
    assert_eq!(finished.code(), 0, "{}", finished.stderr());
    let shown = finished.stdout();
    let end: Vec<&str> = shown.lines().skip_while(|line| !line.contains("GEMINI")).skip(1).collect();
    insta::assert_snapshot!(end.join("\n"), @"
    3 calls, 1 answered: 1200 tokens read (200 cached), 30 written, $0.0023
    1 failed: model not allowed
    1 failed: budget exhausted
    ");
    let record = fs::read_to_string(job.root().join("calls.jsonl")).unwrap();
    let mut calls: Vec<Value> = record.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // A refusal is recorded at once, and an answer at its end, so lines are not always in the order of calls.
    calls.sort_by_key(|call| call["id"].as_u64());
    assert_eq!((calls.len(), &calls[0]["model"]), (3, &json!("gpt-4.1")));
    assert_eq!(files_holding(job.root(), KEY), [""; 0]);
}

#[test]
fn missing_settings_are_named() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"));
    let wrong = |arguments: &[&str]| {
        let finished =
            job.rollout(&[&["gateway", "serve", "--upstream", "http://127.0.0.1:1"], arguments].concat());
        assert_eq!(finished.code(), 2);
        finished.stderr()
    };
    let shown = [
        wrong(&[]),
        wrong(&["--model", "m", "--key-variable", "NO_SUCH_KEY"]),
        wrong(&["--route", "m"]),
        wrong(&["--model", "m", "--max-dollars", "1"]),
    ];
    insta::assert_snapshot!(shown.join(""), @"
    error: no model is set
    hint: add --model NAME, or --route PATTERN=NAME for each model
    error: the environment variable NO_SUCH_KEY is not set
    hint: set it, for example: NO_SUCH_KEY=… rollout gateway serve …
    error: invalid route `m`: write PATTERN=NAME, such as 'claude-*=gpt-5'
    error: a budget in dollars needs a price for `m`, which is unknown; set its price, or use a budget in tokens
    ");
}
