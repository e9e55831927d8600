//! Each agent solves two tasks. Its conversation, tokens and cost are recorded, and the key is nowhere.

use super::*;

/// The agent solves both tasks with this many turns.
#[track_caller]
fn solves(job: TestJob, agent: &str, base: &str, turns: usize) {
    let job = job.task(HELLO.task(base)).task(GREET.task(base));
    let ran = job.run().expect(0);
    for work in [&HELLO, &GREET] {
        let path = format!("{agent}/set/{}__1", work.task);
        let result = ran.trial(&path);
        assert_eq!(result["reward"], 1.0, "{result:#}");
        let calls = result["model_calls"]["turns"].as_u64().unwrap();
        assert!(calls >= turns as u64, "{result:#}");
        assert_eq!(result["model_calls"]["models"], json!(["scripted"]));
        assert!(result["model_calls"].get("errors").is_none(), "{result:#}");
        let usage = &result["usage"];
        assert_eq!(usage["input_tokens"], 1000 * calls, "{result:#}");
        assert_eq!(usage["output_tokens"], 20 * calls);
        assert_eq!(usage["cached_tokens"], 400 * calls);
        let expected = calls as f64 * (600.0 + 40.0 + 200.0) / 1e6;
        assert!((result["model_cost"].as_f64().unwrap() - expected).abs() < 1e-9, "{result:#}");
        let trajectory: Value = serde_json::from_str(&ran.file(&format!("{path}/trajectory.json"))).unwrap();
        let recorded = trajectory["turns"].as_array().unwrap();
        assert_eq!(recorded.len(), turns, "{trajectory:#}");
        let first = &recorded[0];
        if turns > 1 {
            let arguments = first["response"]["message"]["tool_calls"][0]["arguments"].as_str().unwrap();
            assert!(arguments.contains(work.file), "{arguments}");
            assert!(!first["answers"].as_array().unwrap().is_empty(), "{trajectory:#}");
        }
        assert!(trajectory["prompt"].to_string().contains(work.instruction.trim()), "{trajectory:#}");
        own_log_is_read(agent, &trajectory, &result, turns);
        has_files(&job, agent, &path);
        let called = recorded.iter().flat_map(|turn| turn["response"]["message"]["tool_calls"].as_array());
        assert_eq!(result["model_calls"]["tool_calls"], called.flatten().count(), "{result:#}");
    }
    recorded_everywhere(&job, &ran, agent);
    let holding = rollout_testkit::files_holding(&job.dir(), KEY);
    assert!(holding.is_empty(), "the key is in {holding:?}");
}

/// The agent's own log has the same turns and calls as the gateway's record, and the same tokens.
#[track_caller]
fn own_log_is_read(agent: &str, trajectory: &Value, result: &Value, turns: usize) {
    assert_eq!(trajectory["origin"], "gateway");
    // It writes Markdown, which has no form for it.
    if agent == "aider" {
        assert!(trajectory.get("agent_log").is_none(), "{trajectory:#}");
        return;
    }
    let log = &trajectory["agent_log"];
    assert_eq!(log["turns"], turns, "{log:#}\n{:#}", result["notes"]);
    let calls = trajectory["turns"].as_array().unwrap().iter();
    let calls = calls.flat_map(|turn| turn["response"]["message"]["tool_calls"].as_array()).flatten();
    assert_eq!(log["tool_calls"], calls.count(), "{log:#}");
    let [read, written, cached] = ["input_tokens", "output_tokens", "cached_tokens"];
    assert_eq!(log["usage"][read], 1000 * turns, "{log:#}");
    assert_eq!(log["usage"][written], 20 * turns, "{log:#}");
    assert_eq!(log["usage"][cached], 400 * turns, "{log:#}");
    // It ends with a call of a tool, whose answer is only in its own log.
    if agent == "mini-swe-agent" {
        assert_eq!(log["gave_last_answers"], true, "{log:#}");
    }
}

/// The agent's own logs are among the files of the trial.
#[track_caller]
fn has_files(job: &TestJob, agent: &str, path: &str) {
    let (dir, end) = match agent {
        "aider" => ("", "aider.md"),
        "claude-code" => ("claude/projects", ".jsonl"),
        "cline" => ("sessions", ".messages.json"),
        "codex" => ("codex/sessions", ".jsonl"),
        "copilot" => ("session-state", "events.jsonl"),
        "gemini-cli" => ("tmp", ".jsonl"),
        "goose" => ("sessions", "sessions.db"),
        "kimi-code" => ("sessions", "wire.jsonl"),
        "mini-swe-agent" => ("", "mini.json"),
        "opencode" => ("opencode/opencode", "opencode.db"),
        "openhands" => ("conversations", "base_state.json"),
        "qwen-code" => ("projects", ".jsonl"),
        other => panic!("which logs does {other} have?"),
    };
    let dir = job.dir().join(path).join("logs/agent").join(dir);
    let found =
        Command::new("find").arg(&dir).args(["-type", "f", "-name", &format!("*{end}")]).output().unwrap();
    assert!(!found.stdout.is_empty(), "no *{end} in {}", dir.display());
}

/// The numbers of both trials are in the job's result, on the terminal, and in exports.
#[track_caller]
fn recorded_everywhere(job: &TestJob, ran: &rollout_testkit::Finished, agent: &str) {
    let trials = ["hello", "greet"].map(|task| ran.trial(&format!("{agent}/set/{task}__1")));
    let sum =
        |part: &str, key: &str| trials.iter().map(|trial| trial[part][key].as_u64().unwrap()).sum::<u64>();
    let calls = json!({
        "calls": sum("model_calls", "calls"),
        "turns": sum("model_calls", "turns"),
        "tool_calls": sum("model_calls", "tool_calls"),
        "failed_calls": 0,
        "input_tokens": sum("usage", "input_tokens"),
        "output_tokens": sum("usage", "output_tokens"),
        "cached_tokens": sum("usage", "cached_tokens"),
    });
    assert_eq!(ran.result()["model_calls"], calls);
    assert_eq!(ran.result()["agents"][agent]["model_calls"], calls);
    let summary = format!(
        "{} model calls; {}; {} tokens read ({} from a cache), {} written",
        calls["calls"],
        match calls["tool_calls"].as_u64() {
            Some(1) => "1 tool call".to_owned(),
            _ => format!("{} tool calls", calls["tool_calls"]),
        },
        calls["input_tokens"],
        calls["cached_tokens"],
        calls["output_tokens"]
    );
    assert!(ran.stdout().contains(&summary), "{summary}\n{}", ran.stdout());
    let dir = job.dir().display().to_string();
    for format in ["csv", "atif"] {
        job.rollout(&["export", format, &dir, "-o", format]).expect(0);
    }
    let table = std::fs::read_to_string(job.root().join("csv/trials.csv")).unwrap();
    assert!(table.contains("\"\"models\"\":[\"\"scripted\"\"]"), "{table}");
    let atif = std::fs::read_to_string(job.root().join(format!("atif/{agent}/set/hello__1.json"))).unwrap();
    let atif: Value = serde_json::from_str(&atif).unwrap();
    assert_eq!(atif["extra"]["model_calls"], trials[0]["model_calls"]);
    assert_eq!(atif["final_metrics"]["total_prompt_tokens"], trials[0]["usage"]["input_tokens"]);
    assert_eq!(atif["final_metrics"]["total_cost_usd"], trials[0]["model_cost"]);
}

macro_rules! agents {
    ($($(#[$form:meta])? $test:ident: $agent:literal, $dialect:literal, $turns:literal, $base:expr;)*) => {
        /// The agents of these tests, for the table of the documentation.
        pub(super) const SOLVING: &[&str] = &[$($agent,)* openhands::NAME];
        mod in_a_sandbox {
            use super::*;
            $(#[test] $(#[$form])? fn $test() {
                let server = model();
                solves(native($agent, &served_by(&server, $dialect)), $agent, "test", $turns);
            })*
        }
        mod in_a_container {
            use super::*;
            $(#[test] $(#[$form])? fn $test() {
                let server = model();
                solves(docker($agent, &served_by(&server, $dialect)), $agent, $base, $turns);
            })*
        }
    };
}

#[test]
#[ignore = "part of ./test --full"]
fn mini_swe_agent_imports_no_modules_of_a_task() {
    let server = model();
    let modules = "RUN mkdir requests && echo 'raise SystemExit(9)' | tee requests/__init__.py > yaml.py\n";
    let task = HELLO.task("test").dockerfile(&format!("FROM test\n{}{modules}", HELLO.image));
    let ran = native("mini-swe-agent", &served_by(&server, "chat")).task(task).run().expect(0);
    assert_eq!(ran.trial("mini-swe-agent/set/hello__1")["reward"], 1.0);
}

// The last column is the image of the container.
agents! {
    claude_code_solves_two_tasks: "claude-code", "messages", 2, "test";
    codex_solves_two_tasks: "codex", "responses", 2, "test";
    gemini_cli_solves_two_tasks: "gemini-cli", "gemini", 2, "test";
    mini_swe_agent_solves_two_tasks: "mini-swe-agent", "chat", 2, with_python();
    #[ignore = "part of ./test --full"]
    aider_solves_two_tasks: "aider", "chat", 1, with_python();
    #[ignore = "part of ./test --full"]
    cline_solves_two_tasks: "cline", "chat", 2, "test";
    #[ignore = "part of ./test --full"]
    copilot_solves_two_tasks: "copilot", "chat", 2, "test";
    #[ignore = "part of ./test --full"]
    goose_solves_two_tasks: "goose", "chat", 2, "test";
    #[ignore = "part of ./test --full"]
    kimi_code_solves_two_tasks: "kimi-code", "chat", 2, "test";
    #[ignore = "part of ./test --full"]
    opencode_solves_two_tasks: "opencode", "chat", 2, "test";
    #[ignore = "part of ./test --full"]
    qwen_code_solves_two_tasks: "qwen-code", "chat", 2, "test";
}

/// It needs a newer Python than this machine has, so both environments use an image that has one.
mod openhands {
    use super::*;

    pub(super) const NAME: &str = "openhands";

    #[test]
    #[ignore = "part of ./test --full"]
    fn it_solves_two_tasks_in_a_container() {
        let server = model();
        let job = docker("openhands", &served_by(&server, "chat"));
        solves(job, "openhands", with_newer_python(), 2);
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn it_solves_two_tasks_in_a_sandbox() {
        let server = model();
        let registry = TestRegistry::shared();
        let image = registry.push(&TestEngine::shared(), with_newer_python(), "newer-python:1");
        let job = native("openhands", &served_by(&server, "chat"));
        let config = job.root().join("docker");
        registry.write_login(&config);
        let settings = json!({"network": "none", "insecure_registries": [registry.address()]});
        let job = job
            .set("environment/provider_config", settings)
            .env("DOCKER_CONFIG", &config.display().to_string());
        solves(job, "openhands", &image, 2);
    }
}

#[test]
fn claude_code_works_with_a_model_of_another_dialect() {
    let server = model();
    solves(native("claude-code", &served_by(&server, "chat")), "claude-code", "test", 2);
}

#[test]
fn codex_works_with_a_model_of_another_dialect() {
    let server = model();
    solves(native("codex", &served_by(&server, "messages")), "codex", "test", 2);
}

#[test]
fn claude_code_in_a_container_works_with_a_model_of_another_dialect() {
    let server = model();
    solves(docker("claude-code", &served_by(&server, "chat")), "claude-code", "test", 2);
}

#[test]
fn codex_in_a_container_works_with_a_model_of_another_dialect() {
    let server = model();
    solves(docker("codex", &served_by(&server, "messages")), "codex", "test", 2);
}

/// The branches of presets that speak several dialects. The first one is tested above.
mod in_other_dialects {
    use super::*;

    #[track_caller]
    fn solves_in(agent: &str, dialect: &str) {
        let server = model();
        solves(native(agent, &served_by(&server, dialect)), agent, "test", 2);
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn copilot_speaks_responses() {
        solves_in("copilot", "responses");
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn kimi_code_speaks_responses() {
        solves_in("kimi-code", "responses");
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn kimi_code_speaks_messages() {
        solves_in("kimi-code", "messages");
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn kimi_code_speaks_gemini() {
        solves_in("kimi-code", "gemini");
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn opencode_speaks_responses() {
        solves_in("opencode", "responses");
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn opencode_speaks_messages() {
        solves_in("opencode", "messages");
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn opencode_speaks_gemini() {
        solves_in("opencode", "gemini");
    }
}
