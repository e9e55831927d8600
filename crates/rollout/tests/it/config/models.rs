//! What a job file says about models, and what of it is shown and recorded.

use std::{fs, path::Path, time::Duration};

use rollout::{
    config::{AgentKind, DatasetSource, InteractionConfig, LoadedJob, ModelAgentConfig},
    model::Limits,
};
use serde_json::json;

use super::job_in;

pub(super) const MODEL: &str = "
agents:
  - name: gpt
    model: {name: gpt-4.1-mini, base_url: 'https://api.example.org/v1'}
";

pub(super) const MATH: &str = "
dataset: [{question: 1 + 1?, answer: '2'}]
rubric: [{match: exact}]
";

pub(super) struct Files(tempfile::TempDir);

impl Files {
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(dir)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn load(&self, job: &str) -> LoadedJob {
        self.load_with(job, &[])
    }

    pub(super) fn load_with(&self, job: &str, overrides: &[&str]) -> LoadedJob {
        job_in(self.path(), job, overrides).unwrap_or_else(|problems| panic!("{}", problems.render(false)))
    }
}

/// A job with one model, and one interaction from a file of this content.
pub(super) fn with_file(text: &str) -> LoadedJob {
    let files = Files::new(&[("math.yaml", text), ("data.jsonl", "{\"question\": \"1 + 1?\"}\n")]);
    files.load(&format!("{MODEL}datasets: [{{interaction: math.yaml}}]\n"))
}

pub(super) fn interaction(loaded: &LoadedJob) -> &InteractionConfig {
    match &loaded.config.datasets[0].source {
        DatasetSource::Interaction(interaction) => interaction,
        other => panic!("{other:?} is no interaction"),
    }
}

pub(super) fn agent(loaded: &LoadedJob) -> &ModelAgentConfig {
    match &loaded.config.agents[0].kind {
        AgentKind::Model(agent) => agent,
        other => panic!("{other:?} is no model"),
    }
}

#[test]
fn a_model_needs_a_name_and_a_server_only() {
    let loaded = with_file(MATH);
    let model = &agent(&loaded).model;
    assert_eq!(model.name, "gpt-4.1-mini");
    assert_eq!(model.base_urls, ["https://api.example.org/v1"]);
    assert_eq!((model.timeout, model.connect_timeout), (Duration::from_secs(3600), Duration::from_secs(5)));
    assert_eq!(model.max_retries, 10);
    assert_eq!((&model.api_key, model.stream, model.token_ids), (&None, false, false));
    insta::assert_json_snapshot!(loaded.record["agents"][0], @r#"
    {
      "name": "gpt",
      "description": null,
      "model": {
        "name": "gpt-4.1-mini",
        "base_url": "https://api.example.org/v1",
        "api_key": null,
        "dialect": "chat",
        "sampling": {},
        "extra_body": {},
        "headers": {},
        "stream": false,
        "token_ids": false,
        "max_seq_len": null,
        "timeout_sec": 3600.0,
        "connect_timeout_sec": 5.0,
        "max_retries": 10,
        "rate_limit": {
          "requests_per_minute": null,
          "tokens_per_minute": null
        },
        "prices": null
      },
      "system_prompt": null,
      "limits": {
        "max_turns": null,
        "max_completion_tokens": null,
        "max_total_tokens": null,
        "max_cost": null,
        "timeout_sec": null
      },
      "env": {}
    }
    "#);
}

#[test]
fn every_setting_of_a_model_is_read() {
    let files = Files::new(&[("math.yaml", MATH)]);
    let loaded = files.load(
        "
agents:
  - name: mine
    model:
      name: m
      base_url: [http://one:8000/v1, '${BASE:-http://two:8000/v1}']
      api_key: ${MY_API_KEY}
      dialect: messages
      sampling: {temperature: 0.7, max_tokens: 1024, stop: ['\\n'], min_p: 0.1}
      extra_body: {chat_template_kwargs: {enable_thinking: false}}
      headers: {X-Team: blue, Authorization: 'Bearer ${MY_API_KEY}'}
      stream: true
      token_ids: true
      max_seq_len: 8192
      timeout_sec: 60
      connect_timeout_sec: 0.5
      max_retries: 0
      rate_limit: {requests_per_minute: 500, tokens_per_minute: 100000}
      prices: {input: 0.4, output: 1.6, cached_input: 0.1, cache_write: 0.5}
    system_prompt: Be quick.
    limits: {max_turns: 50, max_completion_tokens: 1000, max_total_tokens: 2000, max_cost: 0.5, timeout_sec: 90}
datasets: [{interaction: math.yaml}]
",
    );
    let ModelAgentConfig { model, system_prompt, limits } = agent(&loaded);
    assert_eq!(model.base_urls, ["http://one:8000/v1", "http://two:8000/v1"]);
    assert_eq!(model.api_key.as_ref().unwrap().value, "sk-very-secret");
    assert_eq!(model.headers["Authorization"].value, "Bearer sk-very-secret");
    assert_eq!(model.headers["X-Team"].value, "blue");
    assert_eq!(
        serde_json::Value::Object(model.sampling.clone()),
        json!({"temperature": 0.7, "max_tokens": 1024, "stop": ["\\n"], "min_p": 0.1})
    );
    assert_eq!(model.extra_body["chat_template_kwargs"], json!({"enable_thinking": false}));
    assert_eq!(system_prompt.as_deref(), Some("Be quick."));
    assert_eq!(
        *limits,
        Limits {
            max_turns: Some(50),
            max_completion_tokens: Some(1000),
            max_total_tokens: Some(2000),
            max_cost: Some(0.5),
            timeout: Some(Duration::from_secs(90)),
        }
    );
    insta::assert_json_snapshot!(loaded.record["agents"][0], @r#"
    {
      "name": "mine",
      "description": null,
      "model": {
        "name": "m",
        "base_url": [
          "http://one:8000/v1",
          "${BASE:-http://two:8000/v1}"
        ],
        "api_key": "${MY_API_KEY}",
        "dialect": "messages",
        "sampling": {
          "temperature": 0.7,
          "max_tokens": 1024,
          "stop": [
            "\\n"
          ],
          "min_p": 0.1
        },
        "extra_body": {
          "chat_template_kwargs": {
            "enable_thinking": false
          }
        },
        "headers": {
          "X-Team": "blue",
          "Authorization": "Bearer ${MY_API_KEY}"
        },
        "stream": true,
        "token_ids": true,
        "max_seq_len": 8192,
        "timeout_sec": 60.0,
        "connect_timeout_sec": 0.5,
        "max_retries": 0,
        "rate_limit": {
          "requests_per_minute": 500,
          "tokens_per_minute": 100000
        },
        "prices": {
          "input": 0.4,
          "output": 1.6,
          "cached_input": 0.1,
          "cache_write": 0.5
        }
      },
      "system_prompt": "Be quick.",
      "limits": {
        "max_turns": 50,
        "max_completion_tokens": 1000,
        "max_total_tokens": 2000,
        "max_cost": 0.5,
        "timeout_sec": 90.0
      },
      "env": {}
    }
    "#);
}

#[test]
fn keys_are_shown_nowhere() {
    let files = Files::new(&[("math.yaml", MATH)]);
    let loaded = files.load(
        "
agents:
  - name: mine
    model:
      name: m
      base_url: https://user:hunter2hunter2@api.example.org/v1
      api_key: sk-literal-secret
      headers: {Authorization: 'Bearer literal-token', X-Api-Key: 'another-secret-key'}
datasets: [{interaction: math.yaml}]
",
    );
    let model = &loaded.record["agents"][0]["model"];
    assert_eq!(model["base_url"], "https://[redacted]@api.example.org/v1");
    assert_eq!(model["api_key"], "[redacted]");
    assert_eq!(model["headers"], json!({"Authorization": "Bearer [redacted]", "X-Api-Key": "[redacted]"}));
    let shown = format!("{loaded:?} {:?} {}", loaded.config, loaded.record);
    for secret in ["sk-literal-secret", "literal-token", "another-secret-key"] {
        assert!(!shown.contains(secret), "{secret} is in {shown}");
        assert!(
            loaded.secrets.iter().any(|known| known.contains(secret)),
            "{secret} is not kept out of output"
        );
    }
}

#[test]
fn prices_come_from_a_list_by_the_name_of_the_model() {
    let list = "'*': {input: 1, output: 2}\nm: {input: 0.4, output: 1.6}\n";
    let files = Files::new(&[
        ("math.yaml", MATH),
        ("lists/prices.yaml", list),
        ("own.yaml", "input: 3\noutput: 4\n"),
    ]);
    let price = |file: &str| {
        let loaded = files.load(&format!(
            "agents: [{{name: a, model: {{name: m, base_url: 'http://x', prices: {file}}}}}]\n\
             datasets: [{{interaction: math.yaml}}]\n"
        ));
        loaded.record["agents"][0]["model"]["prices"].clone()
    };
    let expected = json!({"input": 0.4, "output": 1.6});
    assert_eq!(price("lists/prices.yaml"), expected);
    assert_eq!(price("own.yaml")["input"], 3.0);
}
