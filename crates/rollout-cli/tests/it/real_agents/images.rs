//! Agents in images of other kinds: with an ordinary user, with musl, and with less than an agent needs.

use super::*;

/// The agent solves the task in a container of an image that is made like this.
#[track_caller]
fn solves_in(agent: &str, dialect: &str, dockerfile: &str) -> Value {
    let server = model();
    let task = HELLO.task("test").dockerfile(dockerfile);
    let ran = docker(agent, &served_by(&server, dialect)).task(task).run().expect(0);
    let result = ran.trial(&format!("{agent}/set/hello__1"));
    assert_eq!(result["reward"], 1.0, "{result:#}");
    result
}

/// The error of an agent that cannot be installed in such an image.
#[track_caller]
fn refused_in(agent: &str, dialect: &str, dockerfile: &str) -> String {
    let server = model();
    let task = HELLO.task("test").dockerfile(dockerfile);
    let ran = docker(agent, &served_by(&server, dialect)).task(task).run().expect(1);
    let error = &ran.trial(&format!("{agent}/set/hello__1"))["error"];
    assert_eq!(error["type"], "agent_install_failed", "{error:#}");
    error["message"].as_str().unwrap().to_owned()
}

/// Lines of a Dockerfile for an ordinary user.
const USER: &str =
    "RUN useradd --create-home worker && mkdir /app && chown worker /app\nUSER worker\nWORKDIR /app\n";

/// Tests in images of one kind, and the list of their agents for the table of the documentation.
macro_rules! solving_in {
    ($kind:ident, $agents:ident, $lines:expr;
     $($(#[$form:meta])? $test:ident: $agent:literal, $dialect:literal, $base:expr;)*) => {
        pub(super) const $agents: &[&str] = &[$($agent),*];
        mod $kind {
            use super::*;
            $(#[test] $(#[$form])? fn $test() {
                solves_in($agent, $dialect, &format!("FROM {}\n{}", $base, $lines));
            })*
        }
    };
}

solving_in! {
    as_an_ordinary_user, AS_AN_ORDINARY_USER, USER;
    claude_code_solves_a_task: "claude-code", "messages", "test";
    codex_solves_a_task: "codex", "responses", "test";
    gemini_cli_solves_a_task: "gemini-cli", "gemini", "test";
    #[ignore = "part of ./test --full"]
    mini_swe_agent_solves_a_task: "mini-swe-agent", "chat", with_python();
    #[ignore = "part of ./test --full"]
    aider_solves_a_task: "aider", "chat", with_python();
    #[ignore = "part of ./test --full"]
    cline_solves_a_task: "cline", "chat", "test";
    #[ignore = "part of ./test --full"]
    copilot_solves_a_task: "copilot", "chat", "test";
    #[ignore = "part of ./test --full"]
    goose_solves_a_task: "goose", "chat", "test";
    #[ignore = "part of ./test --full"]
    kimi_code_solves_a_task: "kimi-code", "chat", "test";
    #[ignore = "part of ./test --full"]
    opencode_solves_a_task: "opencode", "chat", "test";
    #[ignore = "part of ./test --full"]
    qwen_code_solves_a_task: "qwen-code", "chat", "test";
    #[ignore = "part of ./test --full"]
    openhands_solves_a_task: "openhands", "chat", with_newer_python();
}

/// The image of a system with musl and without glibc.
fn musl() -> &'static str {
    imported("ROLLOUT_TEST_MUSL", "test-musl:latest")
}

solving_in! {
    with_musl, WITH_MUSL, "WORKDIR /app\n";
    codex_solves_a_task: "codex", "responses", musl();
    claude_code_solves_a_task: "claude-code", "messages", musl();
    #[ignore = "part of ./test --full"]
    copilot_solves_a_task: "copilot", "chat", musl();
}

#[test]
fn an_agent_without_a_program_for_musl_is_refused() {
    let message = refused_in("goose", "chat", &format!("FROM {}\nWORKDIR /app\n", musl()));
    assert!(message.contains("goose has no program for images with musl"), "{message}");
}

#[test]
fn an_agent_of_python_needs_python_in_the_image() {
    let message = refused_in("mini-swe-agent", "chat", "FROM test\nWORKDIR /app\n");
    assert!(
        message.contains(
            "it needs Python 3.12 or 3.13 or 3.11 or 3.10 in the image, but the image has no Python"
        ),
        "{message}"
    );
    let message = refused_in("openhands", "chat", &format!("FROM {}\nWORKDIR /app\n", with_python()));
    assert!(
        message.contains("it needs Python 3.12 or 3.13 in the image, but the image has 3.11"),
        "{message}"
    );
}

#[test]
fn a_preset_needs_bash_in_the_image() {
    let message = refused_in("codex", "responses", "FROM busybox\nWORKDIR /app\n");
    assert!(message.contains("bash"), "{message}");
}
