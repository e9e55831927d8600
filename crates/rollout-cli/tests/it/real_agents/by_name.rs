//! A real agent and a model by their names, without a job file.

use super::*;

#[test]
fn an_agent_works_with_a_model_by_name_whose_key_is_in_an_env_file() {
    let server = model();
    let keys = format!("ANTHROPIC_API_KEY={KEY}\nANTHROPIC_BASE_URL={}\n", server.root());
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(HELLO.task("test"))
        .file("keys", &keys)
        .env("ROLLOUT_PACKAGES_DIR", packages().to_str().unwrap());
    let options = ["run", "-d", "set", "-a", "claude-code", "-m", "anthropic/claude-sonnet-4-5", "-k", "2"];
    let more = ["-e", "native", "--env-file", "keys", "--set", "name=job"];
    let images = "environment.provider_config={network: none, images: {\"*\": host}}";
    let ran = job.rollout(&[&options[..], &more, &["--set", images]].concat()).expect(0);
    for attempt in [1, 2] {
        let result = ran.trial(&format!("claude-code/set/hello__{attempt}"));
        assert_eq!(result["reward"], 1.0, "{result:#}");
        assert_eq!(result["model_calls"]["models"], json!(["claude-sonnet-4-5"]));
        // A model with a known price.
        assert!(result["model_cost"].as_f64().unwrap() > 0.0, "{result:#}");
    }
    assert!(rollout_testkit::files_holding(&job.dir(), KEY).is_empty());
}

#[test]
fn a_matrix_of_agents_and_models_runs_every_pair() {
    let server = model();
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .set("environment/provider_config/network", json!("none"))
        .task(HELLO.task("test"))
        .set(
            "matrix",
            json!({
                "agents": ["claude-code", "codex"],
                "models": ["anthropic/claude-sonnet-4-5", "openai/gpt-5.5"],
            }),
        )
        .env("ROLLOUT_PACKAGES_DIR", packages().to_str().unwrap())
        .env("ANTHROPIC_API_KEY", KEY)
        .env("ANTHROPIC_BASE_URL", &server.root())
        .env("OPENAI_API_KEY", KEY)
        .env("OPENAI_BASE_URL", &server.url());
    let ran = job.run().expect(0);
    for (agent, model) in [
        ("claude-code", "claude-sonnet-4-5"),
        ("claude-code", "gpt-5.5"),
        ("codex", "claude-sonnet-4-5"),
        ("codex", "gpt-5.5"),
    ] {
        let result = ran.trial(&format!("{agent}-{model}/set/hello__1"));
        assert_eq!(result["reward"], 1.0, "{result:#}");
        assert_eq!(result["model_calls"]["models"], json!([model]));
    }
}
