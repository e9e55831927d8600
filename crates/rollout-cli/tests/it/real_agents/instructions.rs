//! Instructions that are too long for an argument of a program.

use std::fmt::Write as _;

use super::*;

/// The last words of a long instruction.
const END: &str = "These are the last words of the instruction.";

/// The task of [`HELLO`] with an instruction of more than 128 KiB.
fn long_task(base: &str) -> TestTask {
    let mut instruction = HELLO.instruction.to_owned();
    for line in 1..=3000 {
        let _ = writeln!(instruction, "- Line {line} of this list says nothing about it.");
    }
    instruction += END;
    assert!(instruction.len() > 128 << 10, "{}", instruction.len());
    HELLO.task(base).file("instruction.md", &instruction)
}

/// The agent gets the whole of it.
#[track_caller]
fn reads_all_of_it(agent: &str, dialect: &str) {
    let server = model();
    let job = native(agent, &served_by(&server, dialect)).task(long_task("test"));
    // Some agents need more than the usual 2 GB for so long a text.
    let ran = job.set("environment/override_memory", json!("4G")).run().expect(0);
    let result = ran.trial(&format!("{agent}/set/hello__1"));
    assert_eq!(result["reward"], 1.0, "{result:#}");
    let asked = server.requests();
    let asks = |words: &str| asked.iter().any(|request| request.body.to_string().contains(words));
    assert!(asks(HELLO.instruction.trim()) && asks(END), "the first or the last words are missing");
}

#[test]
fn claude_code_reads_a_long_instruction() {
    reads_all_of_it("claude-code", "messages");
}

#[test]
fn codex_reads_a_long_instruction() {
    reads_all_of_it("codex", "responses");
}

#[test]
fn gemini_cli_reads_a_long_instruction() {
    reads_all_of_it("gemini-cli", "gemini");
}

#[test]
fn mini_swe_agent_reads_a_long_instruction() {
    reads_all_of_it("mini-swe-agent", "chat");
}

#[test]
#[ignore = "part of ./test --full"]
fn copilot_reads_a_long_instruction() {
    reads_all_of_it("copilot", "chat");
}

#[test]
#[ignore = "part of ./test --full"]
fn goose_reads_a_long_instruction() {
    reads_all_of_it("goose", "chat");
}

#[test]
#[ignore = "part of ./test --full"]
fn opencode_reads_a_long_instruction() {
    reads_all_of_it("opencode", "chat");
}

#[test]
#[ignore = "part of ./test --full"]
fn qwen_code_reads_a_long_instruction() {
    reads_all_of_it("qwen-code", "chat");
}

/// These have an option for it, and no other way.
#[test]
#[ignore = "part of ./test --full"]
fn a_long_instruction_is_refused_for_agents_that_cannot_read_it() {
    for agent in ["cline", "kimi-code"] {
        let server = model();
        let ran = native(agent, &served_by(&server, "chat")).task(long_task("test")).run().expect(1);
        let error = &ran.trial(&format!("{agent}/set/hello__1"))["error"];
        assert_eq!(error["type"], "task_invalid", "{error:#}");
        assert!(error["message"].as_str().unwrap().contains("can read at most 131000"), "{error:#}");
        assert_eq!(server.served(), 0);
    }
}
