//! What a job file means.

use std::{fs, path::Path};

use rollout::config::{
    AfterAgentError, AgentKind, AgentProcesses, Bytes, Cpus, DatasetSource, EnvironmentKind, JobMetric,
    LogLevel, PreservePolicy, RegistryLocation, RetryConfig, load_job, load_job_record, load_job_text,
    load_task_config,
};

use super::{job, job_in, variables};

const SPEC: &str = r#"
name: my-eval-run
jobs_dir: jobs
n_attempts: 1
n_concurrent_trials: 4
timeout_multiplier: 1.0
log_level: error
instruction_path: /tmp/instruction.md
environment:
  type: "docker"
  force_build: false
  preserveEnv: false
  override_cpus: 1
  override_memory: 2G
  override_storage: 30G
verifier:
  override_timeout_sec: 0
  max_timeout_sec: 0
  disable: false
metrics:
  - type: "mean"
agents:
  - name: "some-agent"
    description: "description of some-agent"
    install: "install bash script"
    execute: "execute bash script"
    env:
      MY_API_KEY: ${MY_API_KEY}
  - name: oracle
datasets:
  - path: ./path-to-dataset
  - registry:
      path: ./path-to-registry
    name: "dataset-name"
    version: "dataset-version"
  - registry:
      url: https://example.org/registry.json
    name: "dataset-name"
    rename: other
    version: 2.0
"#;

#[test]
fn the_documented_job_is_read() {
    let loaded = job(SPEC).map_err(|problems| problems.render(false)).unwrap();
    insta::assert_json_snapshot!(loaded.record, @r#"
    {
      "name": "my-eval-run",
      "jobs_dir": "jobs",
      "base_dir": null,
      "n_attempts": 1,
      "n_concurrent_trials": 4,
      "timeout_multiplier": 1.0,
      "retry": {
        "max_attempts": 3,
        "initial_delay_ms": 1000,
        "max_delay_ms": 30000,
        "multiplier": 2.0
      },
      "log_level": "error",
      "eval_log": false,
      "instruction_path": "/tmp/instruction.md",
      "compat": null,
      "environment": {
        "type": "docker",
        "force_build": false,
        "cache_agent_install": false,
        "preserve_env": "never",
        "keep_images": null,
        "free_disk": null,
        "store_size": null,
        "provider_config": {},
        "override_cpus": "1",
        "override_memory": "2G",
        "override_storage": "30G"
      },
      "verifier": {
        "override_timeout_sec": null,
        "max_timeout_sec": null,
        "disable": false,
        "after_agent_error": "skip",
        "ignore_exit_code": false,
        "agent_processes": "keep",
        "env": {}
      },
      "metrics": [
        {
          "type": "mean"
        }
      ],
      "agents": [
        {
          "name": "some-agent",
          "description": "description of some-agent",
          "install": "install bash script",
          "execute": "execute bash script",
          "env": {
            "MY_API_KEY": "${MY_API_KEY}"
          }
        },
        {
          "name": "oracle",
          "description": null,
          "env": {}
        }
      ],
      "datasets": [
        {
          "path": "./path-to-dataset",
          "name": "path-to-dataset"
        },
        {
          "registry": {
            "path": "./path-to-registry"
          },
          "name": "dataset-name",
          "version": "dataset-version",
          "rename": null
        },
        {
          "registry": {
            "url": "https://example.org/registry.json"
          },
          "name": "dataset-name",
          "version": "2.0",
          "rename": "other"
        }
      ]
    }
    "#);
}

const SMALLEST: &str = "agents: [{name: oracle}]\ndatasets: [{path: tasks}]\n";

#[test]
fn everything_but_agents_and_datasets_has_a_default() {
    let config = job(SMALLEST).unwrap().config;
    assert_eq!(config.name, None);
    assert_eq!(config.jobs_dir, Path::new("jobs"));
    assert_eq!(config.n_attempts.get(), 1);
    assert_eq!(config.n_concurrent_trials.get(), 4);
    assert_eq!(config.timeout_multiplier, 1.0);
    assert_eq!(config.retry, RetryConfig::default());
    assert_eq!(config.log_level, LogLevel::Error);
    assert_eq!(config.instruction_path, "/tmp/instruction.md");
    assert_eq!(config.environment.kind, None);
    assert!(!config.environment.force_build && !config.environment.cache_agent_install);
    assert_eq!(config.environment.preserve, PreservePolicy::Never);
    assert!(config.environment.provider_config.is_empty());
    assert_eq!(config.environment.override_cpus, None);
    assert_eq!(config.environment.override_memory, None);
    assert_eq!(config.environment.override_storage, None);
    assert_eq!(config.verifier.override_timeout_sec, None);
    assert_eq!(config.verifier.max_timeout_sec, None);
    assert!(!config.verifier.disable);
    assert_eq!(config.verifier.after_agent_error(false), AfterAgentError::Skip);
    assert!(!config.verifier.ignores_exit_code(false));
    assert_eq!(config.verifier.agent_processes, AgentProcesses::Keep);
    assert!(config.verifier.env.is_empty());
    assert!(config.metrics.is_empty());
}

#[test]
fn every_setting_is_read() {
    let text = r#"
name: full
jobs_dir: out/jobs
n_attempts: 5
n_concurrent_trials: 16
timeout_multiplier: 2
retry: {max_attempts: 1, initial_delay_ms: 0, max_delay_ms: 10, multiplier: 1.5}
log_level: warning
instruction_path: /srv/instruction.md
environment:
  type: k8s
  force_build: true
  cache_agent_install: true
  preserve_env: on_failure
  provider_config: {namespace: evals, registry: r.test, tolerations: [{key: gpu}], cpu_request: 0.5, network_policy: true}
  override_cpus: 500m
  override_memory_mb: 2048
  override_storage: 10Gi
verifier:
  override_timeout_sec: 30
  max_timeout_sec: 60.5
  disable: true
  after_agent_error: run
  ignore_exit_code: true
  agent_processes: kill
  env: {JUDGE: x}
budget: {usd: 12.5}
metrics: [{type: sum}, {type: min}, {type: max}, {type: mean}, {type: sum}]
agents: [{name: nop, env: {A: b}}, {name: mine, execute: run}]
datasets: [{path: tasks, name: renamed}]
"#;
    let config = job(text).map_err(|problems| problems.render(false)).unwrap().config;
    assert_eq!(config.name.unwrap().as_str(), "full");
    assert_eq!(config.jobs_dir, Path::new("out/jobs"));
    assert_eq!((config.n_attempts.get(), config.n_concurrent_trials.get()), (5, 16));
    assert_eq!(config.timeout_multiplier, 2.0);
    assert_eq!(config.retry.max_attempts.get(), 1);
    assert_eq!((config.retry.initial_delay_ms, config.retry.max_delay_ms), (0, 10));
    assert_eq!(config.retry.multiplier, 1.5);
    assert_eq!(config.log_level, LogLevel::Warn);
    assert_eq!(config.instruction_path, "/srv/instruction.md");
    let environment = config.environment;
    assert_eq!(environment.kind, Some(EnvironmentKind::Kubernetes));
    assert!(environment.force_build && environment.cache_agent_install);
    assert_eq!(environment.preserve, PreservePolicy::OnFailure);
    assert_eq!(
        serde_json::Value::Object(environment.provider_config),
        serde_json::json!({
            "namespace": "evals", "registry": "r.test", "tolerations": [{"key": "gpu"}], "cpu_request": 0.5,
            "network_policy": true,
        })
    );
    assert_eq!(environment.override_cpus, Some(Cpus { millis: 500 }));
    assert_eq!(environment.override_memory, Some(Bytes::mib(2048)));
    assert_eq!(environment.override_storage, Some(Bytes::mib(10 << 10)));
    let verifier = config.verifier;
    assert_eq!((verifier.override_timeout_sec, verifier.max_timeout_sec), (Some(30.0), Some(60.5)));
    assert!(verifier.disable && verifier.ignores_exit_code(false));
    assert_eq!(verifier.after_agent_error(false), AfterAgentError::Run);
    assert_eq!(verifier.agent_processes, AgentProcesses::Kill);
    assert_eq!(verifier.env["JUDGE"].value, "x");
    assert_eq!(config.budget.usd, Some(12.5));
    assert_eq!(config.metrics, [JobMetric::Sum, JobMetric::Min, JobMetric::Max, JobMetric::Mean]);
    assert_eq!(config.agents[0].kind, AgentKind::Nop);
    assert_eq!(config.agents[1].kind, AgentKind::Script { install: None, execute: "run".to_owned() });
    assert_eq!(config.datasets[0].name.as_str(), "renamed");
}

#[test]
fn a_job_can_be_json() {
    let dir = tempfile::tempdir().unwrap();
    let yaml = job_in(dir.path(), SPEC, &[]).unwrap();
    let path = dir.path().join("job.json");
    fs::write(&path, serde_json::to_string_pretty(&yaml.record).unwrap().replace("  ", "\t")).unwrap();
    let json = load_job(&path, &[], &variables).map_err(|problems| problems.render(false)).unwrap();
    assert_eq!(json.record, yaml.record);

    fs::write(&path, "{\"agents\": [}").unwrap();
    let shown = load_job(&path, &[], &variables).unwrap_err().render(false);
    assert!(shown.starts_with("error: this is not JSON"), "{shown}");
}

#[test]
fn a_record_loads_again_as_the_same_job() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("run.sh"), "echo hello\n").unwrap();
    let text = "\
compat: harbor
environment: {override_memory: 1.5G, override_cpus: 0.25, provider_config: {image: 'x:${TAG:-1}'}}
agents: [{name: mine, execute_file: run.sh, env: {N: 1.10, B: true, E: ''}}]
datasets: [{path: ./tasks/}]
";
    let first = job_in(dir.path(), text, &[]).map_err(|problems| problems.render(false)).unwrap();
    let path = dir.path().join("job.yaml");
    let again = load_job_record(&path, &first.record, &[], &variables)
        .map_err(|problems| problems.render(false))
        .unwrap();
    assert_eq!(again.record, first.record);
    assert_eq!(again.hash, first.hash);
    assert_eq!(format!("{:?}", again.config), format!("{:?}", first.config));

    fs::write(dir.path().join("run.sh"), "echo changed\n").unwrap();
    let again = load_job_record(&path, &first.record, &[], &variables).unwrap();
    assert_eq!(again.hash, first.hash, "the record has the script as it was");
    let text = text.replace(
        "execute_file: run.sh",
        &format!("execute_file: run.sh, execute_sha256: 'sha256:{:064}'", 0),
    );
    let problems = job_in(dir.path(), &text, &[]).unwrap_err();
    assert!(problems.to_string().contains("`agents.0.execute_file` does not have the hash"), "{problems}");
}

#[test]
fn the_copy_of_a_job_has_the_base_of_its_paths() {
    let dir = tempfile::tempdir().unwrap();
    let first = job_in(dir.path(), SMALLEST, &[]).unwrap();
    let copy = first.copy();
    assert_eq!(copy["base_dir"], serde_json::json!(dir.path()));
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("config.json");
    let again = load_job_text(&path, &copy.to_string(), &[], &variables).unwrap();
    assert_eq!((&again.hash, again.copy()), (&first.hash, copy));
    assert_eq!(again.config.datasets[0].source, first.config.datasets[0].source);
}

#[test]
fn the_hash_covers_what_can_change_a_result() {
    let hash = |more: &str| job(&format!("{SMALLEST}{more}")).unwrap().hash;
    let base = hash("");
    assert!(base.starts_with("sha256:") && base.len() == 7 + 64, "{base}");
    for same in [
        "name: other\n",
        "jobs_dir: elsewhere\n",
        "n_concurrent_trials: 64\n",
        "log_level: trace\n",
        "n_attempts: 1\n",
        "timeout_multiplier: 1\n",
        "environment: {preserveEnv: false}\n",
    ] {
        assert_eq!(hash(same), base, "{same}");
    }
    for other in ["n_attempts: 2\n", "verifier: {env: {A: b}}\n", "environment: {type: native}\n"] {
        assert_ne!(hash(other), base, "{other}");
    }
    let limited = |more: &str| hash(&format!("gateway: {{max_calls: 5{more}}}\n"));
    for same in ["rate_limit: {requests_per_minute: 6}", "max_concurrent_calls: 2", "max_retries: 1"] {
        assert_eq!(limited(&format!(", {same}")), limited(""), "{same}");
    }
    for other in ["max_cost: 1", "provider_tools: true", "models: {\"small-*\": cheap}"] {
        assert_ne!(limited(&format!(", {other}")), limited(""), "{other}");
    }
}

#[test]
fn scripts_come_from_files_beside_the_job() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("scripts")).unwrap();
    fs::write(dir.path().join("scripts/install.sh"), "pip install ${NOT_EXPANDED}\n").unwrap();
    fs::write(dir.path().join("scripts/run.sh"), "agent\n").unwrap();
    let text = "\
agents: [{name: mine, install_file: scripts/install.sh, execute_file: ./scripts/run.sh}]
datasets: [{path: tasks}]
";
    let loaded = job_in(dir.path(), text, &[]).unwrap();
    let install = Some("pip install ${NOT_EXPANDED}\n".to_owned());
    assert_eq!(loaded.config.agents[0].kind, AgentKind::Script { install, execute: "agent\n".to_owned() });
    insta::assert_json_snapshot!(loaded.record["agents"][0], @r#"
    {
      "name": "mine",
      "description": null,
      "install": "pip install ${NOT_EXPANDED}\n",
      "install_sha256": "sha256:482d87151cefba34219fd448e03477b27cdac454ceb56d755aaea459ad99e4eb",
      "execute": "agent\n",
      "execute_sha256": "sha256:d20bc21bb3c7736d8d03ade3ddb4c68b665cdfbca6f6df0f7fdd192f37f59060",
      "env": {}
    }
    "#);
}

#[test]
fn an_empty_install_script_is_no_install_phase() {
    let loaded = job("agents: [{name: a, install: ' ', execute: x}]\ndatasets: [{path: tasks}]\n").unwrap();
    assert_eq!(loaded.config.agents[0].kind, AgentKind::Script { install: None, execute: "x".to_owned() });
}

#[test]
fn secrets_are_known_and_never_recorded() {
    let text = r#"
environment:
  type: modal
  provider_config:
    token_secret: literal-secret
    nested: [{api_key: "${MY_API_KEY}", model: "${MODEL}", region: "${MODEL}"}]
verifier:
  env: {JUDGE_KEY: "${MY_API_KEY}", JUDGE_MODEL: "${MODEL}"}
agents:
  - name: mine
    execute: run
    env:
      MY_API_KEY: ${MY_API_KEY}
      HEADER: Bearer ${MY_API_KEY}
      LITERAL_TOKEN: ghp_literal
      FALLBACK_KEY: ${UNSET:-fallback-secret}
      MODEL: ${MODEL}
      RETRIES: 3
      RATIO: 1.10
      DEBUG: true
datasets:
  - registry: {url: "https://user:${MY_API_KEY}@example.org/r.json"}
    name: bench
"#;
    let loaded = job(text).map_err(|problems| problems.render(false)).unwrap();
    assert_eq!(
        loaded.secrets,
        [
            "Bearer sk-very-secret",
            "fallback-secret",
            "ghp_literal",
            "https://user:sk-very-secret@example.org/r.json",
            "literal-secret",
            "sk-very-secret",
        ]
    );
    let record = loaded.record.to_string();
    for secret in ["sk-very-secret", "ghp_literal", "literal-secret", "fallback-secret"] {
        assert!(!record.contains(secret), "{record}");
        assert!(!format!("{loaded:?}").contains(secret));
        assert!(!format!("{:?}", loaded.config.agents).contains(secret));
        assert!(!format!("{:?}", loaded.config.environment).contains(secret));
    }
    insta::assert_json_snapshot!(loaded.record["agents"][0]["env"], @r#"
    {
      "MY_API_KEY": "${MY_API_KEY}",
      "HEADER": "Bearer ${MY_API_KEY}",
      "LITERAL_TOKEN": "[redacted]",
      "FALLBACK_KEY": "${UNSET:-[redacted]}",
      "MODEL": "${MODEL}",
      "RETRIES": "3",
      "RATIO": "1.10",
      "DEBUG": "true"
    }
    "#);
    insta::assert_debug_snapshot!(loaded.config.agents[0].env, @r#"
    {
        "MY_API_KEY": <secret>,
        "HEADER": <secret>,
        "LITERAL_TOKEN": <secret>,
        "FALLBACK_KEY": <secret>,
        "MODEL": some-model-name,
        "RETRIES": 3,
        "RATIO": 1.10,
        "DEBUG": true,
    }
    "#);
    assert_eq!(loaded.config.agents[0].env["HEADER"].value, "Bearer sk-very-secret");
    assert_eq!(loaded.config.environment.provider_config["nested"][0]["api_key"], "sk-very-secret");
    assert_eq!(loaded.record["environment"]["provider_config"]["nested"][0]["api_key"], "${MY_API_KEY}");
    assert_eq!(loaded.record["environment"]["provider_config"]["token_secret"], "[redacted]");
    assert_eq!(
        loaded.record["datasets"][0]["registry"]["url"],
        "https://user:${MY_API_KEY}@example.org/r.json"
    );
}

#[test]
fn a_secret_in_a_script_is_masked_in_the_record_alone() {
    let text = "\
agents: [{name: mine, execute: run --key hunter2-hunter2, env: {MY_KEY: hunter2-hunter2}}]
datasets: [{path: tasks}]
";
    let dir = tempfile::tempdir().unwrap();
    let loaded = job_in(dir.path(), text, &[]).unwrap();
    let execute = "run --key hunter2-hunter2".to_owned();
    assert_eq!(loaded.config.agents[0].kind, AgentKind::Script { install: None, execute });
    assert_eq!(loaded.record["agents"][0]["execute"], "run --key [redacted]");

    let path = dir.path().join("job.yaml");
    let problems = load_job_record(&path, &loaded.record, &[], &variables).unwrap_err();
    let messages: Vec<&str> = problems.diagnostics().iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(messages, ["a secret was masked here when the job was recorded"; 2]);
}

#[test]
fn compat_with_harbor_grades_like_harbor_by_default() {
    let verifier = |more: &str| job(&format!("{SMALLEST}compat: harbor\n{more}")).unwrap().config.verifier;
    let plain = verifier("");
    assert_eq!((plain.after_agent_error, plain.ignore_exit_code), (Some(AfterAgentError::Run), Some(true)));
    let explicit = verifier("verifier: {after_agent_error: skip, ignore_exit_code: false}\n");
    assert_eq!(
        (explicit.after_agent_error, explicit.ignore_exit_code),
        (Some(AfterAgentError::Skip), Some(false))
    );
}

#[test]
fn preserve_is_read_in_both_spellings() {
    for (text, expected) in [
        ("preserveEnv: true", PreservePolicy::Always),
        ("preserveEnv: false", PreservePolicy::Never),
        ("preserve_env: always", PreservePolicy::Always),
        ("preserve_env: on_failure", PreservePolicy::OnFailure),
        ("preserve_env: never", PreservePolicy::Never),
    ] {
        let loaded = job(&format!("{SMALLEST}environment: {{{text}}}\n")).unwrap();
        assert_eq!(loaded.config.environment.preserve, expected, "{text}");
    }
}

#[test]
fn inputs_are_found_beside_the_job_file() {
    let dir = tempfile::tempdir().unwrap();
    let text = "\
agents: [{name: oracle}]
datasets:
  - path: tasks/
  - path: .
    name: everything
  - path: tasks/..
  - registry: {path: '${UNSET:-path-to-registry}'}
    name: never
";
    let loaded = job_in(dir.path(), text, &[]).map_err(|problems| problems.render(false)).unwrap();
    let datasets = loaded.config.datasets;
    assert_eq!(datasets[0].name.as_str(), "tasks");
    assert_eq!(datasets[0].source, DatasetSource::Path(dir.path().join("tasks/")));
    assert_eq!(datasets[1].name.as_str(), "everything");
    let base = dir.path().canonicalize().unwrap();
    assert_eq!(datasets[2].name.as_str(), base.file_name().unwrap());
    let registry = RegistryLocation::Path(dir.path().join("path-to-registry"));
    assert_eq!(
        datasets[3].source,
        DatasetSource::Registry { registry, dataset: "never".to_owned(), version: None }
    );
}

#[test]
fn overrides_replace_values_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let text = "agents: [{name: mine, execute: run}]\ndatasets: [{path: tasks}]\nn_attempts: 1\n";
    let overrides = [
        "n_attempts=3",
        "environment.force_build=true",
        "environment.provider_config.images={'*': host}",
        "agents.0.env.MODEL=a=b",
        "agents.0.env.RATIO=1.10",
        "agents.0.env.KEY=${MY_API_KEY}",
        "metrics=[{type: mean}]",
        "name=",
    ];
    let loaded = job_in(dir.path(), text, &overrides).map_err(|problems| problems.render(false)).unwrap();
    assert_eq!(loaded.config.n_attempts.get(), 3);
    assert!(loaded.config.environment.force_build);
    assert_eq!(loaded.config.environment.provider_config["images"]["*"], "host");
    assert_eq!(loaded.config.agents[0].env["MODEL"].value, "a=b");
    assert_eq!(loaded.config.agents[0].env["RATIO"].value, "1.10");
    assert!(loaded.config.agents[0].env["KEY"].secret);
    assert_eq!(loaded.config.metrics, [JobMetric::Mean]);
    assert_eq!(loaded.config.name, None);
    assert_eq!(loaded.record["n_attempts"], 3);
    assert_eq!(loaded.record["agents"][0]["env"]["KEY"], "${MY_API_KEY}");
}

#[test]
fn yaml_anchors_share_settings_between_agents() {
    let text = "\
agents:
  - &base
    name: one
    execute: run
    env: {A: 1}
  - <<: *base
    name: two
datasets: [{path: tasks}]
";
    let config = job(text).map_err(|problems| problems.render(false)).unwrap().config;
    assert_eq!(config.agents[1].name.as_str(), "two");
    assert_eq!(config.agents[1].kind, config.agents[0].kind);
    assert_eq!(config.agents[1].env["A"].value, "1");
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_do_no_harm() {
    let text = format!("\u{feff}{}", SMALLEST.replace('\n', "\r\n"));
    assert!(job(&text).is_ok());
    let text = "\u{feff}version = \"1.0\"\r\n[agent]\r\ntimeout_sec = 5\r\n";
    let (config, _) = load_task_config(Path::new("task.toml"), text).unwrap();
    assert_eq!(config.agent_timeout_sec, Some(5.0));
}

#[test]
fn both_spellings_of_preserve_may_be_given_if_they_agree() {
    let same = "agents: [{name: nop}]\ndatasets: [{path: tasks}]\nenvironment: {preserveEnv: true, preserve_env: always}";
    assert!(job(same).is_ok());
}

#[test]
fn one_dataset_of_two_registries_is_named_apart_by_registry() {
    let text = "\
agents: [{name: oracle}]
datasets:
  - {registry: {path: ./path-to-registry}, name: dataset-name, version: '1'}
  - {registry: {url: 'https://example.org/registry.json'}, name: dataset-name, version: '1'}
";
    let loaded = job(text).map_err(|problems| problems.render(false)).unwrap();
    let names: Vec<_> = loaded.config.datasets.iter().map(|dataset| dataset.name.to_string()).collect();
    assert_eq!(names, ["dataset-name@path-to-registry", "dataset-name@example.org"]);
    let renames: Vec<_> =
        loaded.record["datasets"].as_array().unwrap().iter().map(|entry| &entry["rename"]).collect();
    assert_eq!(renames, [&names[0], &names[1]]);
}

#[test]
fn a_missing_job_file_is_reported_with_a_similar_one() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("nightly.yaml"), SMALLEST).unwrap();
    let problems = load_job(&dir.path().join("nightly.yml"), &[], &variables).unwrap_err();
    assert!(problems.to_string().contains("did you mean"), "{problems}");
    assert!(problems.to_string().contains("nightly.yaml"), "{problems}");
}
