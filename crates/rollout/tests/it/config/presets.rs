//! Agents by name: presets, models by name, and matrices.

use std::fs;

use rollout::config::{
    AgentKind, LoadedJob, PresetAgentConfig, Problems, load_job_record, load_job_text, load_preset_text,
    preset, preset_names,
};

use super::models::Files;

const DATASETS: &str = "datasets: [{path: tasks}]\n";

fn vars(name: &str) -> Option<String> {
    match name {
        "ANTHROPIC_API_KEY" | "OPENAI_API_KEY" | "GEMINI_API_KEY" => Some("sk-very-secret".to_owned()),
        _ => None,
    }
}

fn load(text: &str) -> Result<LoadedJob, Problems> {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tasks")).unwrap();
    load_job_text(&dir.path().join("job.yaml"), &format!("{text}{DATASETS}"), &[], &vars)
}

fn loaded(text: &str) -> LoadedJob {
    load(text).unwrap_or_else(|problems| panic!("{}", problems.render(false)))
}

fn problems(text: &str) -> String {
    let text = load(text).expect_err("the job is refused").render(false);
    // The directory is another one each time.
    let place = |line: &str| match line.split_once("--> ") {
        Some((indent, place)) => format!("{indent}--> {}", place.rsplit('/').next().unwrap_or(place)),
        None => line.to_owned(),
    };
    text.lines().map(place).collect::<Vec<_>>().join("\n")
}

fn of_preset(loaded: &LoadedJob, index: usize) -> &PresetAgentConfig {
    match &loaded.config.agents[index].kind {
        AgentKind::Preset(agent) => agent,
        other => panic!("{other:?} is not a preset"),
    }
}

#[test]
fn the_presets_of_the_program_are_valid_and_name_the_tested_version() {
    for name in preset_names() {
        let preset = preset(name).unwrap();
        assert_eq!(preset.name, name);
        assert!(!preset.description.is_empty(), "{name}");
        assert_ne!(preset.tested.is_some(), preset.untested, "{name} is either tested or not");
        let runs = loaded(&format!("agents: [{{preset: {name}, model: openai/gpt-5.5}}]\n"));
        assert_eq!(of_preset(&runs, 0).preset, preset);
    }
}

#[test]
fn an_agent_by_name_has_the_tested_version_and_a_model_in_its_own_dialect() {
    let job = loaded("agents: [{preset: claude-code, model: anthropic/claude-sonnet-4-5}]\n");
    let agent = of_preset(&job, 0);
    assert_eq!(job.config.agents[0].name.as_str(), "claude-code");
    assert_eq!(agent.version, agent.preset.tested.clone().unwrap());
    let model = agent.model.as_ref().unwrap();
    assert_eq!(
        (model.name.as_str(), model.base_urls[0].as_str()),
        ("claude-sonnet-4-5", "https://api.anthropic.com")
    );
    assert_eq!(model.api_key.as_ref().unwrap().value, "sk-very-secret");
    assert_eq!(format!("{:?}", model.dialect), "Messages");
    assert!(job.config.agents[0].keeps_install(&job.config.environment));

    for (preset, model, dialect) in [
        ("codex", "openai/gpt-5.5", "Responses"),
        ("mini-swe-agent", "openai/gpt-5.5", "Chat"),
        ("gemini-cli", "google/gemini-3-pro", "Gemini"),
        ("mini-swe-agent", "gemini/gemini-3-pro", "Chat"),
        // It does not speak it, so the gateway translates.
        ("claude-code", "vllm/qwen3", "Chat"),
    ] {
        let job = loaded(&format!("agents: [{{preset: {preset}, model: {model}}}]\n"));
        let model = of_preset(&job, 0).model.clone().unwrap();
        assert_eq!(format!("{:?}", model.dialect), dialect, "{preset}");
    }
}

#[test]
fn a_model_by_name_is_an_agent_of_its_own() {
    let job = loaded("agents: [{model: openai/gpt-5.5}]\n");
    assert_eq!(job.config.agents[0].name.as_str(), "gpt-5.5");
    let AgentKind::Model(agent) = &job.config.agents[0].kind else { panic!("it is a model") };
    assert_eq!(agent.model.base_urls, ["https://api.openai.com/v1"]);
    assert_eq!(format!("{:?}", agent.model.dialect), "Chat");
}

#[test]
fn a_version_can_be_pinned_and_the_install_kept_from_others() {
    let job = loaded("agents: [{preset: codex, model: openai/x, version: 0.99.0, cache_install: false}]\n");
    assert_eq!(of_preset(&job, 0).version, "0.99.0");
    assert!(!job.config.agents[0].keeps_install(&job.config.environment));
    assert_eq!(of_preset(&loaded("agents: [{preset: crush, model: openai/x}]\n"), 0).version, "latest");
}

#[test]
fn a_matrix_is_every_agent_with_every_model() {
    let job = loaded(
        "matrix:\n  agents: [codex, {preset: claude-code, version: latest}]\n  models: [openai/a, anthropic/b]\n\
         agents: [{name: oracle}]\n",
    );
    let names: Vec<_> = job.config.agents.iter().map(|agent| agent.name.as_str()).collect();
    assert_eq!(names, ["oracle", "codex-a", "codex-b", "claude-code-a", "claude-code-b"]);
    assert_eq!(of_preset(&job, 3).version, "latest");
}

#[test]
fn the_record_of_a_job_has_the_whole_preset_and_no_key() {
    let job = loaded("agents: [{preset: codex, model: openai/gpt-5.5}]\n");
    let text = job.record.to_string();
    assert!(text.contains("vendor/{cpu}-unknown-linux-musl/bin/codex") && !text.contains("sk-very-secret"));
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tasks")).unwrap();
    let path = dir.path().join("job.yaml");
    let again = load_job_record(&path, &job.record, &[], &vars).unwrap();
    assert_eq!(again.config.agents[0].kind, job.config.agents[0].kind);
    assert_eq!(again.hash, job.hash);
}

#[test]
fn a_preset_file_is_named_by_its_path_and_its_problems_have_lines() {
    let files = Files::new(&[(
        "mine.yaml",
        "name: mine\nuntested: true\ninstall: {npm: mine, bin: {mine: run}}\nexecute: mine\n",
    )]);
    let job = files.load("agents: [{preset: ./mine.yaml}]\ndatasets: [{path: tasks}]\n");
    assert_eq!(job.config.agents[0].name.as_str(), "mine");
    let text = "name: mine\ntested: 1\ndialect: [chat]\nexecute: run\ninstall: {nmp: x}\n";
    let problems = load_preset_text("mine.yaml".as_ref(), text).err().unwrap().render(false);
    insta::assert_snapshot!(problems, @"
    error: unknown key `dialect`
     --> mine.yaml:3:1
      |
    3 | dialect: [chat]
      | ^^^^^^^
      |
      = help: did you mean `dialects`? known keys: `name`, `description`, `tested`, `untested`, `dialects`, `install`, `execute`, `max_instruction_bytes`, `logs`, `trajectory`, `mcp`, `skills`

    error: unknown key `nmp` in `install`
     --> mine.yaml:5:11
      |
    5 | install: {nmp: x}
      |           ^^^
      |
      = help: did you mean `npm`? known keys in `install`: `npm`, `npm_musl`, `node`, `pip`, `pip_build`, `any_python`, `python`, `bin`, `script`, `check`
    ");
}

#[test]
fn a_limit_in_dollars_needs_a_price() {
    let agent = |more: &str| {
        format!(
            "agents: [{{preset: codex, model: {{name: mine, base_url: \"http://h/v1\"{more}}}, limits: {{max_cost: 5}}}}]\n"
        )
    };
    insta::assert_snapshot!(problems(&agent("")), @r#"
    error: `limits.max_cost` needs a price for the model `mine`, which has none
     --> job.yaml:1:91
      |
    1 | agents: [{preset: codex, model: {name: mine, base_url: "http://h/v1"}, limits: {max_cost: 5}}]
      |                                                                                           ^
      |
      = help: set `prices: {input: …, output: …}` of the model, in US dollars per million tokens, or limit `max_total_tokens` instead
    "#);
    loaded(&agent(", prices: {input: 1, output: 2}"));
    let job =
        |model: &str| format!("agents: [{{preset: codex, model: {model}}}]\ngateway: {{max_cost: 5}}\n");
    insta::assert_snapshot!(problems(&job("openai/not-a-model")), @"
    error: `gateway.max_cost` needs a price for the model `not-a-model`, which has none
     --> job.yaml:2:21
      |
    2 | gateway: {max_cost: 5}
      |                     ^
      |
      = help: set `prices: {input: …, output: …}` of the model, in US dollars per million tokens, or limit `max_total_tokens` instead
    ");
    loaded(&job("openai/gpt-5.5"));
}

#[test]
fn the_models_that_agents_may_request_are_patterns_and_names() {
    let job = |gateway: &str| {
        format!(
            "agents: [{{preset: claude-code, model: anthropic/claude-sonnet-4-5}}]\ngateway: {{{gateway}}}\n"
        )
    };
    let models = loaded(&job("models: {\"claude-haiku-*\": claude-haiku-4-5, \"claude-*\": null}"))
        .config
        .gateway
        .models;
    let models: Vec<_> = models.iter().map(|(pattern, name)| (pattern.as_str(), name.as_deref())).collect();
    assert_eq!(models, [("claude-haiku-*", Some("claude-haiku-4-5")), ("claude-*", None)]);
    assert!(loaded(&job("")).config.gateway.models.is_empty());
    insta::assert_snapshot!(problems(&job("models: {\"claude-[\": x, b: [1]}, max_cost: 1")), @r#"
    error: `gateway.models.claude-[` is not a pattern of names: unclosed character class; missing ']'
     --> job.yaml:2:20
      |
    2 | gateway: {models: {"claude-[": x, b: [1]}, max_cost: 1}
      |                    ^^^^^^^^^^

    error: `gateway.models.b` is not the name of a model
     --> job.yaml:2:38
      |
    2 | gateway: {models: {"claude-[": x, b: [1]}, max_cost: 1}
      |                                      ^
      |
      = help: write a name, or `null` for the agent's own model
    "#);
    insta::assert_snapshot!(problems(&job("models: {b: mine}, max_cost: 1")), @"
    error: `max_cost` needs a price for the model `mine`, which has none
     --> job.yaml:2:19
      |
    2 | gateway: {models: {b: mine}, max_cost: 1}
      |                   ^
      |
      = help: use a model with a known price in `gateway.models`, or limit `max_total_tokens` instead
    ");
}

#[test]
fn mistakes_are_explained() {
    insta::assert_snapshot!(problems("agents: [{preset: claudecode, model: openai/x}]\n"), @"
    error: unknown agent preset `claudecode`
     --> job.yaml:1:19
      |
    1 | agents: [{preset: claudecode, model: openai/x}]
      |                   ^^^^^^^^^^
      |
      = help: did you mean `claude-code`? `rollout agents list` shows all presets
    ");
    insta::assert_snapshot!(problems("agents: [{preset: codex}]\n"), @"
    error: `model` is missing in `agents.0`
     --> job.yaml:1:10
      |
    1 | agents: [{preset: codex}]
      |          ^
      |
      = help: set the model that the agent uses, such as `model: anthropic/claude-sonnet-4-5`
    ");
    insta::assert_snapshot!(problems("agents: [{preset: codex, model: opnai/x}]\n"), @"
    error: unknown model server in `opnai/x`: expected `server/name`
     --> job.yaml:1:33
      |
    1 | agents: [{preset: codex, model: opnai/x}]
      |                                 ^^^^^^^
      |
      = help: did you mean `openai/…`?
    ");
    insta::assert_snapshot!(problems("agents: [{preset: codex, model: gpt-5, execute: x}]\n"), @"
    error: unknown model server in `gpt-5`: expected `server/name`
     --> job.yaml:1:33
      |
    1 | agents: [{preset: codex, model: gpt-5, execute: x}]
      |                                 ^^^^^
      |
      = help: known servers: anthropic, openai, google, gemini, openrouter, together, groq, deepseek, mistral, xai, moonshot, fireworks, cerebras, nvidia, huggingface, vllm, ollama; for another server, write `model: {name: …, base_url: …}`, or pass --base-url

    error: `preset` and `execute` cannot both be set
     --> job.yaml:1:40
      |
    1 | agents: [{preset: codex, model: gpt-5, execute: x}]
      |           ------ also given here       ^^^^^^^
      |
      = help: keep one of them
    ");
    insta::assert_snapshot!(problems("agents: [{preset: codex, model: mistral/x}]\n"), @"
    error: the variable `MISTRAL_API_KEY` is not set
     --> job.yaml:1:33
      |
    1 | agents: [{preset: codex, model: mistral/x}]
      |                                 ^^^^^^^^^
      |
      = help: set it in your environment, or write a default value: `${MISTRAL_API_KEY:-default}`
    ");
    insta::assert_snapshot!(problems("agents: [{name: a, execute: x, version: 1}]\n"), @"
    error: `version` is only supported together with `preset`
     --> job.yaml:1:32
      |
    1 | agents: [{name: a, execute: x, version: 1}]
      |                                ^^^^^^^
      |
      = help: remove `version`
    ");
    insta::assert_snapshot!(problems("matrix: {agents: [codex], modles: [openai/x]}\n"), @"
    error: `matrix` has no agents or no models
     --> job.yaml:1:1
      |
    1 | matrix: {agents: [codex], modles: [openai/x]}
      | ^^^^^^
      |
      = help: write it as `matrix: {agents: [claude-code, codex], models: [anthropic/claude-sonnet-4-5]}`

    error: `agents` is missing
     --> job.yaml:1:1
      |
    1 | matrix: {agents: [codex], modles: [openai/x]}
      | ^
      |
      = help: a job needs at least one agent, such as `- name: oracle`

    error: unknown key `matrix.modles`
     --> job.yaml:1:27
      |
    1 | matrix: {agents: [codex], modles: [openai/x]}
      |                           ^^^^^^
      |
      = help: write it as `matrix: {agents: [claude-code, codex], models: [anthropic/claude-sonnet-4-5]}`
    ");
}
