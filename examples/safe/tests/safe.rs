//! The program, run with scripted models, and the tutorial that shows it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use rollout_testkit::{ModelReply, ModelServer, Script};
use serde_json::json;

/// What the program prints, and what its cleanup wrote.
fn run(server: &ModelServer) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_rollout-example-safe"));
    let output = program.current_dir(&dir).env("MODEL_URL", server.url()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(server.refusals(), [""; 0]);
    (String::from_utf8(output.stdout).unwrap(), fs::read_to_string(dir.path().join("safe.log")).unwrap())
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn a_model_that_goes_by_halves_opens_the_safe() {
    let (printed, log) = run(&ModelServer::start(Script::examples()));
    insta::assert_snapshot!(printed, @r#"
    Some("no_tools_called"): reward 1.5
    Some("no_tools_called"): reward 1.5
    "#);
    assert!(log.contains("turns: 8"), "{log}");
}

#[test]
fn the_quickest_of_a_group_gets_more() {
    let rollouts = AtomicU64::new(0);
    let server = ModelServer::start(Script::by(move |request| match request.turns() {
        0 => {
            let code = if rollouts.fetch_add(1, SeqCst) == 0 { 42 } else { 41 };
            ModelReply::tool_call("dial", &json!({ "code": code }))
        }
        _ if request.messages().iter().any(|message| message["content"] == "open") => {
            ModelReply::text("Open.")
        }
        _ => ModelReply::tool_call("dial", &json!({"code": 42})),
    }));
    let (printed, _) = run(&server);
    let mut lines: Vec<_> = printed.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, [r#"Some("no_tools_called"): reward 1"#, r#"Some("no_tools_called"): reward 1.5"#]);
}

#[test]
fn the_alarm_ends_it_after_eight_tries() {
    let server = ModelServer::always(ModelReply::tool_call("dial", &json!({"code": 1})));
    let (printed, log) = run(&server);
    assert_eq!(printed, "Some(\"alarm\"): reward 0\n".repeat(2));
    assert!(log.contains("turns: 9"), "{log}");
    let requests = server.requests();
    let last = requests.iter().max_by_key(|request| request.messages().len()).unwrap();
    let said: Vec<_> = last.messages().iter().rev().take(2).map(|message| &message["content"]).collect();
    assert_eq!(said, ["That was try 8 of 8.", "higher"]);
}

#[test]
fn the_tutorial_shows_this_program_which_has_at_most_fifty_lines() {
    let program = fs::read_to_string(repository().join("examples/safe/src/main.rs")).unwrap();
    let tutorial = fs::read_to_string(repository().join("docs/environments.md")).unwrap();
    let (_, shown) = tutorial.split_once("```rust,no_run\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    assert_eq!(shown, program);
    assert!(program.lines().count() <= 50, "{} lines", program.lines().count());
}
