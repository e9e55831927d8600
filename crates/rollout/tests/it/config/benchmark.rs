//! The configuration of a benchmark: what it means, what is kept of it, and what is refused.

use std::{fs, path::Path, time::Duration};

use rollout::{
    config::{
        AgentKind, LoadedBenchmark, Override, Problems, RolloutConfig, RolloutOverrides, load_benchmark,
        load_benchmark_record, load_benchmark_text,
    },
    model::metric::Metric,
};
use serde_json::{Value, json};

fn vars(name: &str) -> Option<String> {
    match name {
        "MY_API_KEY" => Some("sk-very-secret".to_owned()),
        "MODEL" => Some("some-model".to_owned()),
        "DATA" => Some("questions".to_owned()),
        _ => None,
    }
}

fn read(text: &str) -> Result<LoadedBenchmark, Problems> {
    load_benchmark_text(Path::new("config.json"), text, &[], &vars)
}

fn load(config: &Value) -> LoadedBenchmark {
    read(&config.to_string()).unwrap_or_else(|problems| panic!("{problems}"))
}

/// What is wrong with a configuration that names a server of this machine, and says this besides.
fn problems(more: &str) -> String {
    let text = format!("{{\n  \"base_url\": \"http://localhost:8000/v1\",\n  {more}\n}}");
    read(&text).unwrap_err().to_string()
}

fn warnings(loaded: &LoadedBenchmark) -> String {
    loaded.warnings.iter().map(|warning| warning.render(false)).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_setting_has_its_default() {
    let loaded = load(&json!({"base_url": "http://127.0.0.1:8000/v1"}));
    let expected =
        RolloutConfig { base_url: "http://127.0.0.1:8000/v1".to_owned(), ..RolloutConfig::default() };
    assert_eq!(loaded.config, expected);
    assert!(loaded.warnings.is_empty());
    let nothing = |key: &str| (key.to_owned(), Value::Null);
    let mut nulls: serde_json::Map<_, _> =
        loaded.record.as_object().unwrap().keys().map(|key| nothing(key)).collect();
    nulls["base_url"] = json!("http://127.0.0.1:8000/v1");
    assert_eq!(load(&Value::Object(nulls)).config, expected, "null is the same as absent");
}

#[test]
fn every_setting_is_read_from_json_and_from_yaml() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("q.jsonl", "{}"), ("prompt.txt", "Be brief."), ("tools.json", "{}")] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let config = json!({
        "$schema": "s.json", "_comment": "not read", "data_path": "q.jsonl", "output_dir": "results/a", "model_name": "${MODEL}",
        "api_key": "${MY_API_KEY}", "base_url": "https://api.example.org/v1", "max_turns": 50, "max_retries": 0,
        "max_workers": 4, "available_tools": ["web:search", "vm:*"], "system_prompt": ["a", "b"],
        "system_prompt_file": "prompt.txt", "evaluate_results": true, "evaluation_metric": "llm_judgement", "pass_threshold": 0.9,
        "evaluator_model_name": "judge", "evaluator_api_key": "sk-another-secret",
        "evaluator_base_url": "https://judge.example.org", "evaluator_temperature": 2, "evaluator_max_retries": 1,
        "evaluator_extra_params": {"max_tokens": 1024}, "evaluator_include_question": true,
        "resource_types": ["doc"], "resource_init_configs": {"doc": {"content": {"seed_path": "/data/${DATA}"}}},
        "sandbox_server_url": "http://127.0.0.1:9", "sandbox_token": "a-token-of-mine", "sandbox_auto_start": true,
        "sandbox_config_path": "tools.json", "sandbox_timeout": 7, "benchmark_name": "中文", "number_of_tasks": 3,
        "task_ids": ["a", 7], "parallel": true, "save_results": true, "save_trajectories": false,
        "trajectory_only": false, "save_summary": false,
    });
    let secret = |value: &str| Some(rollout::config::EnvValue { value: value.to_owned(), secret: true });
    let expected = RolloutConfig {
        data_path: Some(dir.path().join("q.jsonl")),
        output_dir: Some("results/a".into()),
        model_name: "some-model".to_owned(),
        api_key: secret("sk-very-secret"),
        base_url: "https://api.example.org/v1".to_owned(),
        max_turns: 50.try_into().unwrap(),
        max_retries: 0,
        max_workers: 4.try_into().unwrap(),
        available_tools: vec!["web:search".to_owned(), "vm:*".to_owned()],
        system_prompt: "Be brief.".to_owned(),
        system_prompt_file: Some(dir.path().join("prompt.txt")),
        evaluate_results: true,
        evaluation_metric: Metric::LlmJudgement,
        pass_threshold: 0.9,
        evaluator_model_name: Some("judge".to_owned()),
        evaluator_api_key: secret("sk-another-secret"),
        evaluator_base_url: Some("https://judge.example.org".to_owned()),
        evaluator_temperature: 2.0,
        evaluator_max_retries: 1,
        evaluator_extra_params: json!({"max_tokens": 1024}).as_object().unwrap().clone(),
        evaluator_include_question: true,
        resource_types: vec!["doc".to_owned()],
        resource_init_configs: [(
            "doc".to_owned(),
            json!({"content": {"seed_path": "/data/questions"}}).as_object().unwrap().clone(),
        )]
        .into(),
        sandbox_server_url: "http://127.0.0.1:9".to_owned(),
        sandbox_token: secret("a-token-of-mine"),
        sandbox_auto_start: true,
        sandbox_config_path: Some(dir.path().join("tools.json")),
        sandbox_timeout: Duration::from_secs(7),
        benchmark_name: Some("中文".to_owned()),
        number_of_tasks: Some(3),
        task_ids: Some(vec!["a".to_owned(), "7".to_owned()]),
        parallel: true,
        save_results: true,
        save_trajectories: false,
        trajectory_only: false,
        save_summary: false,
    };
    let yaml: String =
        config.as_object().unwrap().iter().map(|(key, value)| format!("{key}: {value}\n")).collect();
    for (name, text) in
        [("config.json", config.to_string()), ("config.yaml", yaml.clone()), ("config.YML", yaml)]
    {
        let path = dir.path().join(name);
        fs::write(&path, format!("\u{feff}{text}")).unwrap();
        let loaded = load_benchmark(&path, &[], &vars).unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(loaded.config, expected, "{name}");
        assert_eq!(warnings(&loaded), "");
    }
    let path = dir.path().join("config.toml");
    fs::write(&path, "").unwrap();
    let refused = load_benchmark(&path, &[], &vars).unwrap_err().to_string();
    assert!(refused.contains("name the file .json, .yaml or .yml"), "{refused}");
}

#[test]
fn a_missing_key_and_url_come_from_the_environment() {
    let vars = |name: &str| match name {
        "OPENAI_API_KEY" => Some("sk-from-outside".to_owned()),
        "OPENAI_BASE_URL" => Some("https://outside.example.org".to_owned()),
        _ => None,
    };
    let text = r#"{"api_key": "", "base_url": ""}"#;
    let loaded = load_benchmark_text(Path::new("c.json"), text, &[], &vars).unwrap();
    assert_eq!(loaded.config.api_key.as_ref().unwrap().value, "sk-from-outside");
    assert_eq!(loaded.config.base_url, "https://outside.example.org");
    assert!(loaded.secrets.contains(&"sk-from-outside".to_owned()));
    assert_eq!((&loaded.record["api_key"], &loaded.record["base_url"]), (&json!(""), &json!("")));
    let text = r#"{"api_key": "sk-of-my-own", "base_url": "https://inside.example.org"}"#;
    let config = load_benchmark_text(Path::new("c.json"), text, &[], &vars).unwrap().config;
    assert_eq!(config.api_key.unwrap().value, "sk-of-my-own");
    assert_eq!(config.base_url, "https://inside.example.org");
}

#[test]
fn no_secret_is_in_the_record_or_in_messages() {
    let config = json!({
        "base_url": "https://me:hunter22-url@example.org/v1", "api_key": "sk-literal-0001",
        "evaluator_api_key": "${MY_API_KEY}", "sandbox_token": "tok-literal-0002",
        "evaluator_extra_params": {"extra_headers": {"Authorization": "Bearer hdr-literal-0003"}, "user": "me"},
        "resource_init_configs": {"web": {"content": {"serper_api_key": "web-literal-0004", "n": 3}}},
        "system_prompt": "the key is sk-literal-0001",
    });
    let loaded = load(&config);
    let code = LoadedBenchmark::new(loaded.config.clone(), &|_| None).unwrap();
    for shown in [
        format!("{loaded:?} {:?}", loaded.config),
        loaded.record.to_string(),
        format!("{code:?}"),
        code.record.to_string(),
    ] {
        for secret in ["literal", "hunter22", "very-secret"] {
            assert!(!shown.contains(secret), "{secret} is in {shown}");
        }
    }
    for secrets in [&loaded.secrets, &code.secrets] {
        for secret in ["sk-literal-0001", "sk-very-secret", "tok-literal-0002", "web-literal-0004"] {
            assert!(secrets.iter().any(|known| known == secret), "{secret} is not known as one");
        }
    }
    assert_eq!(loaded.record["evaluator_api_key"], "${MY_API_KEY}");
    assert_eq!(loaded.record["evaluator_extra_params"]["user"], "me");
    assert_eq!(loaded.record["resource_init_configs"]["web"]["content"]["n"], 3);
}

#[test]
fn a_record_is_the_same_configuration_again_unless_a_secret_was_masked() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("prompt.txt"), "Say ${NOT_A_VARIABLE}.").unwrap();
    let path = dir.path().join("gone.json");
    let config = json!({
        "base_url": "https://example.org", "api_key": "${MY_API_KEY}", "model_name": "${MODEL}",
        "system_prompt_file": "prompt.txt", "task_ids": ["a"], "trajectory_only": true,
    });
    let loaded = load_benchmark_text(&path, &config.to_string(), &[], &vars).unwrap();
    let again = load_benchmark_record(&path, &loaded.record, &vars).unwrap();
    assert_eq!((&again.config, &again.record, &again.hash), (&loaded.config, &loaded.record, &loaded.hash));
    assert_eq!(again.config.system_prompt, "Say ${NOT_A_VARIABLE}.");

    fs::write(dir.path().join("prompt.txt"), "Say nothing.").unwrap();
    let changed = load_benchmark_text(&path, &config.to_string(), &[], &vars).unwrap();
    assert_ne!(changed.hash, loaded.hash);
    let refused = load_benchmark_record(&path, &loaded.record, &vars).unwrap_err().to_string();
    assert!(refused.contains("has changed since"), "{refused}");

    let masked = load(&json!({"base_url": "https://example.org", "api_key": "sk-literal"})).record;
    let refused = load_benchmark_record(&path, &masked, &vars).unwrap_err().to_string();
    assert!(refused.contains("a secret was masked here"), "{refused}");
}

#[test]
fn the_hash_is_of_what_changes_answers_and_scores() {
    let base = json!({"base_url": "http://localhost:1", "model_name": "m"});
    let hash = |key: &str, value: Value| {
        let mut config = base.clone();
        config[key] = value;
        load(&config).hash
    };
    let same = load(&base).hash;
    for (key, value) in [
        ("base_url", json!("http://localhost:2")),
        ("api_key", json!("sk-any-other")),
        ("output_dir", json!("elsewhere")),
        ("parallel", json!(true)),
        ("max_workers", json!(9)),
        ("save_summary", json!(false)),
    ] {
        assert_eq!(hash(key, value), same, "{key}");
    }
    for (key, value) in [
        ("model_name", json!("n")),
        ("max_turns", json!(3)),
        ("system_prompt", json!("x")),
        ("evaluation_metric", json!("f1_score")),
        ("available_tools", json!(["web:search"])),
        ("save_trajectories", json!(false)),
        ("benchmark_name", json!("other")),
    ] {
        assert_ne!(hash(key, value), same, "{key}");
    }
}

#[test]
fn inputs_are_found_beside_the_file_and_else_where_the_command_works() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("Cargo.toml"), "").unwrap();
    let load = |data: &str, overrides: &[Override]| {
        let text = json!({"base_url": "http://localhost", "data_path": data}).to_string();
        load_benchmark_text(&dir.path().join("c.json"), &text, overrides, &vars)
            .unwrap()
            .config
            .data_path
            .unwrap()
    };
    assert_eq!(load("Cargo.toml", &[]), dir.path().join("Cargo.toml"));
    assert_eq!(load("src/lib.rs", &[]), Path::new("src/lib.rs"));
    let typed = RolloutOverrides { data_path: Some("Cargo.toml".into()), ..RolloutOverrides::default() };
    let here = std::env::current_dir().unwrap().join("Cargo.toml");
    assert_eq!(load("absent", &typed.settings().unwrap()), here, "so that a resume from elsewhere finds it");
}

#[test]
fn a_prompt_file_that_is_not_there_is_a_warning() {
    let loaded = load(
        &json!({"base_url": "http://localhost", "system_prompt": "own", "system_prompt_file": "absent"}),
    );
    assert_eq!((loaded.config.system_prompt.as_str(), loaded.config.system_prompt_file), ("own", None));
    assert_eq!(
        loaded.warnings[0].message,
        "`system_prompt_file`: the file does not exist, so `system_prompt` is used"
    );
    let problem = problems(r#""system_prompt_file": "src""#);
    assert!(problem.contains("this is a directory, not a file"), "{problem}");
}

#[test]
fn a_run_can_override_settings() {
    let text = json!({"base_url": "http://localhost", "number_of_tasks": 9, "parallel": true}).to_string();
    let overrides = RolloutOverrides {
        data_path: Some("Cargo.toml".into()),
        output_dir: Some("o u t".into()),
        model_name: Some("yes: no".to_owned()),
        max_tasks: Some(2),
        task_ids: Some(vec!["1".to_owned(), "true".to_owned()]),
        evaluate: Some(false),
        metric: Some(Metric::NumericMatch),
    };
    let mut settings = overrides.settings().unwrap();
    settings.push("max_workers=16".parse().unwrap());
    let config = load_benchmark_text(Path::new("c.json"), &text, &settings, &vars).unwrap().config;
    let expected = RolloutConfig {
        base_url: "http://localhost".to_owned(),
        data_path: Some(std::path::absolute("Cargo.toml").unwrap()),
        output_dir: Some("o u t".into()),
        model_name: "yes: no".to_owned(),
        number_of_tasks: Some(2),
        task_ids: Some(vec!["1".to_owned(), "true".to_owned()]),
        evaluate_results: false,
        evaluation_metric: Metric::NumericMatch,
        max_workers: 16.try_into().unwrap(),
        parallel: true,
        ..RolloutConfig::default()
    };
    assert_eq!(config, expected);
}

#[test]
fn trajectories_alone_are_saved_and_nothing_is_scored() {
    let config = load(&json!({
        "base_url": "http://localhost", "trajectory_only": true, "evaluate_results": true, "save_results": false,
    }));
    let RolloutConfig { evaluate_results, save_results, save_trajectories, .. } = config.config;
    assert_eq!((evaluate_results, save_results, save_trajectories), (false, true, true));
}

#[test]
fn the_judge_defaults_to_the_model() {
    let mut config = load(&json!({
        "base_url": "https://example.org", "api_key": "sk-very-secret", "model_name": "m", "max_retries": 7,
        "evaluator_temperature": 0.5, "evaluator_extra_params": {"max_tokens": 9},
    }))
    .config;
    let judge = config.evaluator();
    assert_eq!(judge.name, "m");
    assert_eq!(judge.base_urls, ["https://example.org"]);
    assert_eq!(judge.api_key.as_ref().unwrap().value, "sk-very-secret");
    assert_eq!(Value::Object(judge.sampling), json!({"temperature": 0.5, "max_tokens": 9}));
    assert_eq!((judge.max_retries, config.model().max_retries), (3, 7));
    assert!(config.model().sampling.is_empty());
    config.evaluator_model_name = Some("j".to_owned());
    assert_eq!((config.evaluator().name.as_str(), config.model().name.as_str()), ("j", "m"));
}

#[test]
fn a_benchmark_is_a_job_of_one_model() {
    let job = load(&json!({
        "base_url": "http://localhost", "model_name": "org/m", "output_dir": "results/run 1", "parallel": true,
        "max_workers": 6, "max_turns": 5,
    }))
    .job();
    assert_eq!(job.config.name.as_ref().unwrap().as_str(), "run 1");
    assert_eq!(job.config.jobs_dir, Path::new("results"));
    assert_eq!(job.config.n_concurrent_trials.get(), 6);
    assert_eq!(job.config.agents[0].name.as_str(), "org--m");
    let AgentKind::Model(agent) = &job.config.agents[0].kind else { panic!("it is a model") };
    assert_eq!(agent.model.name, "org/m");
    let one = load(&json!({"base_url": "http://localhost", "max_workers": 6})).job().config;
    assert_eq!((one.n_concurrent_trials.get(), one.name.unwrap().as_str()), (1, "rollout_results"));
}

#[test]
fn a_benchmark_is_named_by_itself_or_by_its_questions() {
    let named = |name: Option<&str>, data: Option<&str>| {
        let config = RolloutConfig {
            benchmark_name: name.map(str::to_owned),
            data_path: data.map(Into::into),
            ..RolloutConfig::default()
        };
        (config.name(), config.dataset_name().to_string())
    };
    let both = |name: &str| (name.to_owned(), name.to_owned());
    assert_eq!(named(Some("v1"), Some("a/q.jsonl")), both("v1"));
    assert_eq!(named(None, Some("a/my_benchmark.jsonl")), both("my_benchmark"));
    assert_eq!(named(None, None), both("benchmark"));
    assert_eq!(named(Some("a/b"), None), ("a/b".to_owned(), "a--b".to_owned()));
}

#[test]
fn a_configuration_created_in_code_follows_the_same_rules() {
    let config = RolloutConfig {
        model_name: String::new(),
        evaluator_temperature: f64::NAN,
        ..RolloutConfig::default()
    };
    insta::assert_snapshot!(LoadedBenchmark::new(config, &vars).unwrap_err(), @"
    error: `model_name` must not be empty
    --> the configuration
     = help: set the name of the model on its server

    error: `base_url` is missing
    --> the configuration
     = help: write the base URL of the model's server, or set OPENAI_BASE_URL: `https://api.openai.com/v1`, `http://127.0.0.1:8000/v1`

    error: `evaluator_temperature` must be from 0 to 2, not NaN
    --> the configuration
     = help: write a number from 0 to 2; 0 gives the most consistent scores
    ");
}

#[test]
fn a_path_that_is_not_utf8_is_recorded_approximately_and_rejected_as_a_setting() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};
    let path = Path::new(OsStr::from_bytes(b"q\xff.jsonl"));
    let config = RolloutConfig {
        base_url: "http://localhost".to_owned(),
        data_path: Some(path.to_owned()),
        output_dir: Some(path.to_owned()),
        ..RolloutConfig::default()
    };
    assert!(format!("{config:?}").contains("q\u{fffd}.jsonl"));
    let loaded = LoadedBenchmark::new(config, &|_| None).unwrap();
    assert_eq!(
        (loaded.config.data_path.as_deref(), &loaded.record["output_dir"]),
        (Some(path), &json!("q\u{fffd}.jsonl"))
    );
    let overrides = RolloutOverrides { output_dir: Some(path.to_owned()), ..RolloutOverrides::default() };
    let refused = overrides.settings().unwrap_err().to_string();
    assert!(refused.contains("is not UTF-8"), "{refused}");
}

#[test]
fn a_key_must_be_given_unless_the_server_is_on_this_machine() {
    for url in [
        "http://127.0.0.1:1/v1",
        "http://127.8.9.1",
        "http://[::1]:80",
        "http://localhost/v1",
        "http://x.localhost",
    ] {
        assert_eq!(load(&json!({"base_url": url})).config.api_key, None, "{url}");
    }
    for url in [
        "http://10.0.0.1",
        "http://127.0.0.1.example.org",
        "http://localhost.example.org",
        "http://127.0.0.1@example.org",
    ] {
        assert!(read(&json!({"base_url": url}).to_string()).is_err(), "{url}");
    }
}

#[test]
fn an_unknown_key_is_a_warning_with_the_nearest_one() {
    let text = "{\"base_url\": \"http://localhost\",\n \"_a\": 1, \"_a\": 2, \"max_turn\": 3, \"llm\": {}}";
    insta::assert_snapshot!(warnings(&read(text).unwrap()), @r#"
    warning: unknown key `max_turn`, which is ignored
     --> config.json:2:20
      |
    2 |  "_a": 1, "_a": 2, "max_turn": 3, "llm": {}}
      |                    ^^^^^^^^^^
      |
      = help: did you mean `max_turns`?
    warning: unknown key `llm`, which is ignored
     --> config.json:2:35
      |
    2 |  "_a": 1, "_a": 2, "max_turn": 3, "llm": {}}
      |                                   ^^^^^
      |
      = help: keys that start with `_` are comments
    "#);
}

#[test]
fn settings_without_effect_give_warnings() {
    let loaded = load(&json!({
        "base_url": "https://a.example.org", "api_key": "sk-very-secret", "max_workers": 8,
        "evaluation_metric": "llm_judgement", "evaluator_base_url": "https://b.example.org",
    }));
    let messages: Vec<_> = loaded.warnings.iter().map(|warning| warning.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "`max_workers` has no effect without `parallel`",
            "the server of the judge gets the key of the model that answers",
        ]
    );
}
