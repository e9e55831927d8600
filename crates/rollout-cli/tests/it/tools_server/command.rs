//! `rollout tools` without a client.

use rollout_testkit::TestJob;
use serde_json::{Value, json};

use super::server::{Server, place};

#[test]
fn a_tool_can_be_tried_without_a_server() {
    let job = place(&json!({"resources": {"code": {"roots": ["."]}}})).file("data.txt", "seed");
    let done = job.rollout(&["tools", "call", "code:python", r#"{"code": "print(6 * 7)"}"#]).expect(0);
    let data: Value = serde_json::from_str(&done.stdout()).unwrap();
    assert_eq!(data["result"], "42\n");
    let arguments = [
        "tools",
        "call",
        "bash",
        r#"{"command": "cat data.txt"}"#,
        "--config",
        "tools.json",
        "--session-config",
        r#"{"seed_path": "data.txt"}"#,
    ];
    let data: Value = serde_json::from_str(&job.rollout(&arguments).expect(0).stdout()).unwrap();
    assert_eq!(data["result"], "seed");
    let wrong = job.rollout(&["tools", "call", "code:pyton", "{}"]).expect(1);
    insta::assert_snapshot!(wrong.stderr(), @"error: unknown tool `code:pyton`; did you mean code:python? (code 4002)");
    let wrong = job.rollout(&["tools", "call", "code:python", "[1]"]).expect(2);
    insta::assert_snapshot!(wrong.stderr(), @"error: invalid tool parameters: expected a JSON object");
    job.expect_nothing_left();
}

#[test]
fn relative_roots_begin_at_the_configuration_file() {
    let config = json!({"resources": {"code": {"roots": ["notes"]}}});
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .file("sub/tools.json", &config.to_string())
        .file("sub/notes/data.txt", "beside the configuration")
        .file("notes/data.txt", "where the command runs");
    let read = |file: &str| {
        let session = json!({"seed_path": job.root().join(file)}).to_string();
        let command = ["tools", "call", "bash", r#"{"command": "cat data.txt"}"#];
        job.rollout(&[&command[..], &["--config", "sub/tools.json", "--session-config", &session]].concat())
    };
    let data: Value = serde_json::from_str(&read("sub/notes/data.txt").expect(0).stdout()).unwrap();
    assert_eq!(data["result"], "beside the configuration");
    let refused = read("notes/data.txt").expect(1).stderr();
    assert!(refused.contains("is not below a folder that this server may read"), "{refused}");
}

#[test]
fn tools_are_listed_with_what_they_do() {
    let job =
        place(&json!({"resources": {"doc": false, "rag": false, "sql": false, "vm": false, "web": false}}));
    let listed = job.rollout(&["tools", "list", "--config", "tools.json"]).expect(0);
    insta::assert_snapshot!(listed.stdout(), @"
    code:python(code, timeout)
        Runs a Python program and returns what it prints. Each call is a program of its own: print what you want to see. Files in the working directory stay for later calls.
    code:shell(command, timeout)
        Runs a shell command and returns its output. Each call starts in a new shell in the working directory; files there stay for later calls.
    ");
    let all = job.rollout(&["tools", "list"]).expect(0).stdout();
    for tool in [
        "code:shell(",
        "doc:read(",
        "doc:search(",
        "rag:search(",
        "sql:execute(",
        "vm:screenshot(",
        "web:search(",
        "web:browse(",
    ] {
        assert!(all.lines().any(|line| line.starts_with(tool)), "{tool}\n{all}");
    }
}

#[test]
fn an_invalid_configuration_is_reported_with_all_of_its_problems() {
    let job = place(&json!({}))
        .file("wrong.yaml", "server:\n  port: 1\n  max_sessions: none\nresources: {cdoe: {}}\n");
    let refused = job.rollout(&["tools", "serve", "--config", "wrong.yaml"]).expect(2);
    insta::assert_snapshot!(refused.stderr(), @"
    error: unknown key `port` in `server`
     --> wrong.yaml:2:3
      |
    2 |   port: 1
      |   ^^^^
      |
      = help: known keys in `server`: `session_ttl_sec`, `max_sessions`, `max_sessions_per_worker`, `max_calls`, `max_connections`, `max_body_bytes`, `timeout_sec`, `max_timeout_sec`, `config_dir`

    error: `server.max_sessions` must be a whole number, not a string
     --> wrong.yaml:3:17
      |
    3 |   max_sessions: none
      |                 ^^^^

    error: unknown key `cdoe` in `resources`
     --> wrong.yaml:4:13
      |
    4 | resources: {cdoe: {}}
      |             ^^^^
      |
      = help: did you mean `code`? known keys in `resources`: `code`, `doc`, `rag`, `sql`, `vm`, `web`

    error: invalid tools configuration
    ");
}

#[test]
fn a_server_is_never_open_to_others_by_mistake() {
    let job = place(&json!({})).file("short", "secret");
    let refused = job.rollout(&["tools", "serve", "--port", "0", "--host", "0.0.0.0"]).expect(2);
    insta::assert_snapshot!(refused.stderr(), @"
    error: other machines can reach 0.0.0.0; without a token, anyone could run code and read files with the tools
    hint: pass --token-file FILE; clients send the token as `Authorization: Bearer …`
    ");
    let refused = job.rollout(&["tools", "serve", "--port", "0", "--token-file", "short"]).expect(2);
    insta::assert_snapshot!(refused.stderr(), @"
    error: the token in short is not one line of at least 16 visible ASCII characters
    hint: create a token with `openssl rand -hex 32`
    ");
}

#[test]
fn a_server_may_open_more_files_than_programs_usually_may() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("rollout");
    let text = format!("#!/bin/sh\nulimit -S -n 256\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_rollout"));
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let off = json!({"resources": {"code": false}});
    let server = Server::in_place(TestJob::new(&script).file("tools.json", &off.to_string()), &[]);
    assert!(server.open_files() > 256, "{}", server.open_files());
    server.stop();
}
