//! Single questions by the command, against a scripted server.

use std::net::TcpListener;

use rollout_testkit::{Hold, ModelReply, ModelServer, TestJob};
use serde_json::{Value, json};

const KEY: &str = "sk-0123456789abcdef";

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout")).env("OPENAI_API_KEY", KEY)
}

#[test]
fn the_answer_alone_is_on_standard_output() {
    let server = ModelServer::arithmetic().key(KEY);
    let job = job().env("OPENAI_BASE_URL", &server.url());
    let finished = job.rollout(&["ask", "What is 2+2?"]).expect(0);
    assert_eq!((finished.stdout().as_str(), finished.stderr().as_str()), ("4\n", ""));
    let request = &server.requests()[0];
    assert_eq!(request.model(), "gpt-4.1-2025-04-14");
    let [system, _] = request.messages() else { panic!("{request:?}") };
    // Nothing that the model reads is hidden.
    let shown = job.rollout(&["ask", "What is 2+2?", "--show-trajectory"]).expect(0).stderr();
    let prompt = system["content"].as_str().unwrap();
    assert!(shown.starts_with(&format!("system\n{prompt}\n\nuser\n")), "{shown}");

    let finished = job
        .rollout(&["ask", "What is 2+2?", "--model", "m", "--system", "Be brief.", "--show-trajectory"])
        .expect(0);
    assert_eq!(finished.stdout(), "4\n");
    insta::assert_snapshot!(finished.stderr(), @"
    system
    Be brief.

    user
    What is 2+2?

    assistant
    4
    ");
    assert_eq!(server.requests()[2].model(), "m");
}

#[test]
fn a_question_comes_from_standard_input_and_nothing_need_be_said_before_it() {
    let server = ModelServer::arithmetic().key(KEY);
    let job = job().env("OPENAI_BASE_URL", &server.url());
    let mut command = job.command(&["ask", "-", "--system", ""]);
    let mut child =
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"What is 2+2?\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "4\n");
    let messages = server.requests()[0].messages().to_vec();
    assert_eq!(messages.len(), 1, "{messages:?}");
    let empty = job.rollout(&["ask", "-"]).expect(2);
    assert!(empty.stderr().contains("the question is empty"), "{}", empty.stderr());
}

#[test]
fn a_program_gets_the_whole_result_without_the_key() {
    let server = ModelServer::always(ModelReply::text(format!("Final answer: {KEY}"))).key(KEY);
    let finished = job()
        .rollout(&["ask", "What is your key?", "--base-url", &server.url(), "--output", "json"])
        .expect(0);
    let result: Value = serde_json::from_str(&finished.stdout()).unwrap();
    assert_eq!((&result["answer"], &result["success"]), (&json!("[redacted]"), &json!(true)));
    assert_eq!(result["trajectory"]["task_id"], "quick_task");
    let keys: Vec<_> = result.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["question", "answer", "success", "error", "trajectory"]);
}

#[test]
fn what_is_missing_is_reported_with_what_to_set() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"));
    let nowhere = job.rollout(&["ask", "Well?"]).expect(2);
    assert!(nowhere.stderr().contains("set OPENAI_BASE_URL"), "{}", nowhere.stderr());
    let keyless = job.rollout(&["ask", "Well?", "--base-url", "https://api.example.com/v1"]).expect(2);
    assert!(keyless.stderr().contains("set OPENAI_API_KEY"), "{}", keyless.stderr());
}

#[test]
fn a_question_that_fails_is_an_exit_status_of_1() {
    let server = ModelServer::always(ModelReply::error(400, "not today"));
    let finished = job().rollout(&["ask", "Well?", "--base-url", &server.url()]).expect(1);
    assert_eq!(finished.stdout(), "");
    assert!(finished.stderr().contains("not today"), "{}", finished.stderr());
}

#[test]
fn a_question_that_is_cancelled_is_an_exit_status_of_130() {
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("4").held(&held));
    let job = job();
    let running = job.start_with(&["ask", "Well?", "--base-url", &server.url()]);
    while server.served() == 0 {
        std::thread::yield_now();
    }
    running.signal("-INT");
    running.finish().expect(130);
}

#[test]
fn an_unreachable_tool_server_is_reported_with_the_command_that_starts_it() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = ModelServer::always(ModelReply::text("4"));
    let url = format!("http://127.0.0.1:{port}");
    let finished = job()
        .rollout(&[
            "ask",
            "Well?",
            "--base-url",
            &server.url(),
            "--tools",
            "web:search",
            "--sandbox-url",
            &url,
        ])
        .expect(2);
    assert!(finished.stderr().contains("rollout tools serve"), "{}", finished.stderr());
    assert_eq!(server.served(), 0);
}
