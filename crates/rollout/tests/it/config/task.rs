//! What a task.toml means, and what people see when it is wrong.

use std::path::Path;

use rollout::config::{Bytes, Code, Cpus, Severity, load_task_config};

fn refused(text: &str) -> String {
    load_task_config(Path::new("task.toml"), text).unwrap_err().render(false)
}

fn warned(text: &str) -> String {
    let (_, warnings) = load_task_config(Path::new("task.toml"), text).unwrap();
    warnings.iter().map(|warning| warning.render(false)).collect::<Vec<_>>().join("\n")
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
       = help: write "2Gi" to be explicit

    warning: `environment.storage = 10240` is taken as 10240 MiB
      --> task.toml:20:11
       |
    20 | storage = "10240"
       |           ^^^^^^^
       |
       = help: write "10Gi" to be explicit
    "#);
}

#[test]
fn an_empty_task_has_the_documented_defaults() {
    let (config, warnings) = load_task_config(Path::new("task.toml"), "").unwrap();
    assert!(warnings.is_empty());
    insta::assert_debug_snapshot!(config, @r#"
    TaskConfig {
        version: "1.0",
        source: None,
        metadata: {},
        verifier_timeout_sec: 600.0,
        verifier_env: [],
        verifier_environment: None,
        verifier_image: None,
        verifier_agent_hostname: None,
        artifacts: [],
        agent_install_timeout_sec: 300.0,
        agent_timeout_sec: 600.0,
        build_timeout_sec: 600.0,
        docker_image: None,
        cpus: Cpus {
            millis: 1000,
        },
        memory: Bytes(
            2000000000,
        ),
        storage: Bytes(
            10000000000,
        ),
        unknown: {},
    }
    "#);
}

#[test]
fn a_timeout_of_zero_is_not_set() {
    let text = "[agent]\ntimeout_sec = 0\ninstall_timeout_sec = 0.0\n[verifier]\ntimeout_sec = 0\n[environment]\nbuild_timeout_sec = 0\n";
    let (config, _) = load_task_config(Path::new("task.toml"), text).unwrap();
    assert_eq!((config.agent_timeout_sec, config.agent_install_timeout_sec), (600.0, 300.0));
    assert_eq!((config.verifier_timeout_sec, config.build_timeout_sec), (600.0, 600.0));
}

#[test]
fn unknown_task_keys_are_kept() {
    let text = "\
schema_version = \"1.4\"
extra = 1
[task]
name = \"org/name\"
[environment]
gpus = 2
cpus = 2
memory_mb = 4096
storage = \"20Gi\"
docker_image = \"\"
[verifier.env]
JUDGE_KEY = \"${JUDGE_KEY}\"
PORT = 8080
";
    let (config, warnings) = load_task_config(Path::new("task.toml"), text).unwrap();
    assert_eq!(config.version, "1.4");
    assert_eq!(config.docker_image, None);
    assert_eq!(config.cpus, Cpus { millis: 2000 });
    assert_eq!((config.memory, config.storage), (Bytes::mib(4096), Bytes::mib(20 << 10)));
    let env = [("JUDGE_KEY", "${JUDGE_KEY}"), ("PORT", "8080")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(config.verifier_env, env);
    assert_eq!(
        serde_json::Value::Object(config.unknown),
        serde_json::json!({ "extra": 1, "task": { "name": "org/name" }, "environment.gpus": 2 })
    );
    assert_eq!(warnings.len(), 1);
    assert_eq!((warnings[0].severity, warnings[0].code), (Severity::Warning, Code::Unsupported));
}

#[test]
fn a_whole_benchmark_of_tasks_is_read() {
    let text =
        "version = \"1.0\"\n[metadata]\ntags = [\"a\", \"b\"]\n[environment]\nmemory = \"2048\"\ngpus = 1\n";
    for _ in 0..3500 {
        let (config, warnings) = load_task_config(Path::new("task.toml"), text).unwrap();
        assert_eq!((config.memory, warnings.len()), (Bytes::mib(2048), 2));
    }
}

#[test]
fn a_huge_or_deep_task_is_rejected() {
    insta::assert_snapshot!(refused(&"#".repeat(2 << 20)), @"
    error: the file has 2097152 bytes; the limit is 1048576
    --> task.toml
    ");
    assert!(load_task_config(Path::new("task.toml"), &format!("a = {}", "[".repeat(100_000))).is_err());
}

#[test]
fn task_keys_that_change_the_meaning_give_warnings() {
    insta::assert_snapshot!(warned("\
schema_version = \"2.0\"
artifacts = [\"/out\"]
multi_step_reward_strategy = \"mean\"
[task]
name = \"org/name\"
[[steps]]
name = \"first\"
[environment]
gpus = 1
os = \"windows\"
network_mode = \"no-network\"
allow_internet = false
memory = \"2G\"
memory_mb = 4096
[environment.healthcheck]
command = \"true\"
[verifier]
environment_mode = \"separate\"
[solution.env]
X = \"1\"
"), @r#"
    warning: unknown version `2.0` of the task format
     --> task.toml:1:18
      |
    1 | schema_version = "2.0"
      |                  ^^^^^
      |
      = help: the task is read as version 1.0
    warning: `multi_step_reward_strategy` is not supported: rewards of several steps are not combined
     --> task.toml:3:1
      |
    3 | multi_step_reward_strategy = "mean"
      | ^^^^^^^^^^^^^^^^^^^^^^^^^^
    warning: `steps` is not supported: only the task's own instruction.md is attempted, not its steps
     --> task.toml:6:3
      |
    6 | [[steps]]
      |   ^^^^^
    warning: `environment.gpus` is not supported: the environment gets no GPU
     --> task.toml:9:1
      |
    9 | gpus = 1
      | ^^^^
    warning: `environment.os` is not supported: only Linux environments are supported
      --> task.toml:10:1
       |
    10 | os = "windows"
       | ^^
    warning: `environment.network_mode` is not supported: the provider decides about the network
      --> task.toml:11:1
       |
    11 | network_mode = "no-network"
       | ^^^^^^^^^^^^
    warning: `environment.allow_internet` is not supported: the provider decides about the network
      --> task.toml:12:1
       |
    12 | allow_internet = false
       | ^^^^^^^^^^^^^^
    warning: `memory_mb` is 4Gi and `memory` is 2G: `memory` is used
      --> task.toml:14:13
       |
    14 | memory_mb = 4096
       |             ^^^^
       |
       = help: keep one of them
    warning: `environment.healthcheck` is not supported: the agent starts without waiting for a health check
      --> task.toml:15:14
       |
    15 | [environment.healthcheck]
       |              ^^^^^^^^^^^
    warning: `solution.env` is not supported: the solution runs without these variables
      --> task.toml:19:11
       |
    19 | [solution.env]
       |           ^^^
    "#);
}

#[test]
fn task_keys_that_ask_for_nothing_give_no_warnings() {
    insta::assert_snapshot!(warned("\
schema_version = \"1.4\"
artifacts = []
my_own_key = true
[environment]
gpus = 0
os = \"linux\"
network_mode = \"public\"
allow_internet = true
mcp_servers = []
memory_mb = 2048
[verifier]
environment_mode = \"shared\"
[solution.env]
"), @"");
}

#[test]
fn a_key_that_is_almost_a_known_one_is_warned_of() {
    let text = "[verifier]\ntimeout_secs = 60\n\n[enviroment]\ncpus = 3\n\n[environment]\ngpus = 0\n";
    let (config, warnings) = load_task_config(Path::new("task.toml"), text).unwrap();
    assert_eq!(config.verifier_timeout_sec, 600.0);
    let hints: Vec<_> = warnings.iter().filter_map(|warning| warning.hint.clone()).collect();
    assert_eq!(hints, ["did you mean `timeout_sec`?"]);
    let (_, warnings) = load_task_config(Path::new("task.toml"), "[enviroment]\ncpus = 3\n").unwrap();
    assert_eq!(warnings[0].hint.as_deref(), Some("did you mean `environment`?"));
}

#[test]
fn a_key_without_its_unit_or_in_the_wrong_section_is_warned_of() {
    for (text, hint) in [
        ("[agent]\ntimeout = 5\n", "did you mean `timeout_sec`?"),
        ("[agent]\ninstall_timeout_seconds = 5\n", "did you mean `install_timeout_sec`?"),
        ("[environment]\nimage = \"x\"\n", "did you mean `docker_image`?"),
        ("timeout_sec = 5\n", "did you mean `agent.timeout_sec`?"),
        ("docker_image = \"x\"\n", "did you mean `environment.docker_image`?"),
    ] {
        let (_, warnings) = load_task_config(Path::new("task.toml"), text).unwrap();
        let hints: Vec<_> = warnings.iter().filter_map(|warning| warning.hint.as_deref()).collect();
        assert_eq!(hints, [hint], "{text}");
    }
    for text in ["name = \"x\"\n", "[metadata]\ntimeout = 5\n", "[agent]\nnotes = 1\n"] {
        let (_, warnings) = load_task_config(Path::new("task.toml"), text).unwrap();
        assert!(warnings.is_empty(), "{text}");
    }
}

#[test]
fn errors_of_a_task_file_come_before_its_warnings() {
    let text = "[agent]\ntimeout = 5\n\n[verifier]\ntimeout_sec = \"x\"\n";
    let problems = load_task_config(Path::new("task.toml"), text).unwrap_err();
    assert!(problems.to_string().starts_with("error: "), "{problems}");
}

#[test]
fn artifacts_are_absolute_paths_or_tables_that_name_one() {
    let load = |text: &str| load_task_config(Path::new("task.toml"), text);
    let (config, _) = load("artifacts = [\"/app/a\", {source = \"/app/b\", destination = \"c\"}]").unwrap();
    assert_eq!(config.artifacts, ["/app/a", "/app/b"]);
    for wrong in ["\"app\"", "\"/a/../b\"", "\"/a/\"", "{destination = \"x\"}", "7"] {
        assert!(load(&format!("artifacts = [{wrong}]")).is_err(), "{wrong}");
    }
}
