//! Job and task files as their authors write them: what is read, what is refused, and how that looks.
#![expect(clippy::unwrap_used, reason = "a helper that cannot set up its files fails its test")]

use std::{fs, path::Path};

use rollout::config::{Bytes, Cpus, LoadedJob, Override, Problems, load_job, load_task_config};

fn job(text: &str) -> Result<LoadedJob, Problems> {
    job_in(tempfile::tempdir().unwrap().path(), text, &[])
}

fn job_in(dir: &Path, text: &str, overrides: &[&str]) -> Result<LoadedJob, Problems> {
    for name in ["tasks", "path-to-dataset"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    fs::write(dir.join("path-to-registry"), "[]").unwrap();
    let path = dir.join("job.yaml");
    fs::write(&path, text).unwrap();
    let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    load_job(&path, &overrides, &|name| (name == "MY_API_KEY").then(|| "sk-very-secret".to_owned()))
}

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
      "instruction_path": "/tmp/instruction.md",
      "compat": null,
      "environment": {
        "type": "docker",
        "force_build": false,
        "preserve_env": "never",
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

#[test]
fn the_documented_task_is_read() {
    let text = r#"
version = "1.0"

[metadata]
author_name = "Steve Jobs"
tags = ["trivial"]

[verifier]
timeout_sec = 120.0

[agent]
install_timeout_sec = 300.0
timeout_sec = 120.0

[environment]
build_timeout_sec = 600.0
docker_image = "some-org/some-name:some-tag"
cpus = "1"
memory = "2048"
storage = "10240"
"#;
    let (config, warnings) = load_task_config(Path::new("task.toml"), text).unwrap();
    assert_eq!(config.memory, Bytes::mib(2048));
    assert_eq!(config.storage, Bytes::mib(10240));
    assert_eq!(config.cpus, Cpus { millis: 1000 });
    let warnings: Vec<String> = warnings.iter().map(|warning| warning.render(false)).collect();
    insta::assert_snapshot!(warnings.join("\n\n"), @r#"
    warning: `environment.memory = 2048` is taken as 2048 MiB
      --> task.toml:19:10
       |
    19 | memory = "2048"
       |          ^^^^^^
       |
       = help: write "2Gi" to say so exactly

    warning: `environment.storage = 10240` is taken as 10240 MiB
      --> task.toml:20:11
       |
    20 | storage = "10240"
       |           ^^^^^^^
       |
       = help: write "10Gi" to say so exactly
    "#);
}
