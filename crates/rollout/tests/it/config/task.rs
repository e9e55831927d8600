//! What a task.toml means, and what people see when it is wrong.

use std::path::Path;

use rollout::config::{Bytes, Cpus, McpEndpoint, NetworkPolicy, TaskMcpServer, load_task_config};

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
    let bounds = config.bounds(false);
    assert_eq!((bounds.memory, bounds.storage), (Some(Bytes::mib(2048)), Some(Bytes::mib(10240))));
    assert_eq!(bounds.cpus, Some(Cpus { millis: 1000 }));
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
        is_made_for_harbor: false,
        source: None,
        metadata: {},
        verifier_timeout_sec: 600.0,
        verifier_env: [],
        verifier_environment: None,
        verifier_image: None,
        verifier_agent_hostname: None,
        verifier_user: None,
        verifier_network: None,
        verifier_own_environment: None,
        collect: [],
        artifacts: [],
        steps: [],
        step_rewards: Mean,
        agent_install_timeout_sec: None,
        agent_timeout_sec: None,
        agent_user: None,
        agent_network: None,
        solution_env: [],
        build_timeout_sec: 600.0,
        docker_image: None,
        cpus: None,
        memory: None,
        storage: None,
        environment_env: [],
        workdir: None,
        healthcheck: None,
        network: None,
        gpus: 0,
        gpu_types: [],
        tpu: None,
        os: "linux",
        mcp_servers: [],
        skills_dir: None,
        unknown: {},
    }
    "#);
}

#[test]
fn a_timeout_of_zero_is_not_set() {
    let text = "[agent]\ntimeout_sec = 0\ninstall_timeout_sec = 0.0\n[verifier]\ntimeout_sec = 0\n[environment]\nbuild_timeout_sec = 0\n";
    let (config, _) = load_task_config(Path::new("task.toml"), text).unwrap();
    let bounds = config.bounds(false);
    assert_eq!((bounds.agent_timeout_sec, bounds.install_timeout_sec), (Some(600.0), 300.0));
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
    assert_eq!(config.cpus, Some(Cpus { millis: 2000 }));
    let bounds = config.bounds(true);
    assert_eq!((bounds.memory, bounds.storage), (Some(Bytes::mib(4096)), Some(Bytes::mib(20 << 10))));
    let env = [("JUDGE_KEY", "${JUDGE_KEY}"), ("PORT", "8080")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(config.verifier_env, env);
    assert_eq!(
        serde_json::Value::Object(config.unknown),
        serde_json::json!({ "extra": 1, "task": { "name": "org/name" } })
    );
    assert_eq!(config.gpus, 2);
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn mcp_servers_and_skills_of_a_task_are_read() {
    let text = "\
[environment]
skills_dir = \"/srv/skills\"
[[environment.mcp_servers]]
name = \"notes\"
transport = \"stdio\"
command = \"python3\"
args = [\"/srv/notes.py\"]
headers = {}
[[environment.mcp_servers]]
name = \"search\"
url = \"http://127.0.0.1:8000/sse\"
";
    let (config, warnings) = load_task_config(Path::new("task.toml"), text).unwrap();
    assert!(warnings.is_empty());
    assert_eq!(config.skills_dir.as_deref(), Some("/srv/skills"));
    let command =
        McpEndpoint::Stdio { command: "python3".to_owned(), args: vec!["/srv/notes.py".to_owned()] };
    let servers = [
        TaskMcpServer { name: "notes".to_owned(), endpoint: command },
        TaskMcpServer {
            name: "search".to_owned(),
            endpoint: McpEndpoint::Sse("http://127.0.0.1:8000/sse".to_owned()),
        },
    ];
    assert_eq!(config.mcp_servers, servers);
}

#[test]
fn an_mcp_server_that_cannot_be_reached_is_a_problem_of_the_task() {
    let problem = |server: &str| refused(&format!("[[environment.mcp_servers]]\n{server}"));
    for (server, expected) in [
        (
            "name = \"a\"\ntransport = \"stdio\"\nurl = \"http://x\"\n",
            "has the transport `stdio`, but no `command`",
        ),
        (
            "name = \"a\"\ntransport = \"streamable-http\"\n",
            "has the transport `streamable-http`, but no `url`",
        ),
        ("name = \"a b\"\nurl = \"http://x\"\n", "cannot be the name of an MCP server"),
        (
            "name = \"a\"\nurl = \"u\"\n[[environment.mcp_servers]]\nname = \"a\"\nurl = \"u\"\n",
            "two MCP servers are named",
        ),
    ] {
        let shown = problem(server);
        assert!(shown.contains(expected), "{shown}");
    }
}

#[test]
fn a_whole_benchmark_of_tasks_is_read() {
    let text =
        "version = \"1.0\"\n[metadata]\ntags = [\"a\", \"b\"]\n[environment]\nmemory = \"2048\"\ngpus = 1\n";
    for _ in 0..3500 {
        let (config, warnings) = load_task_config(Path::new("task.toml"), text).unwrap();
        assert_eq!((config.bounds(false).memory, warnings.len()), (Some(Bytes::mib(2048)), 1));
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
fn every_key_of_harbor_is_read() {
    let text = r#"
schema_version = "1.1"
artifacts = [{source = "/out", exclude = ["*.tmp"], service = "main"}]
multi_step_reward_strategy = "final"
[[steps]]
name = "first"
min_reward = {reward = 0.5}
[steps.agent]
timeout_sec = 5
[steps.healthcheck]
command = "true"
[environment]
memory = "2G"
workdir = "/work"
allow_internet = false
gpus = 1
os = "Windows"
[environment.env]
A = 1
[environment.healthcheck]
command = "true"
retries = 9
[agent]
user = 1000
network_mode = "public"
[verifier]
user = "judge"
allowed_hosts = ["example.org"]
[[verifier.collect]]
command = "dump"
[solution.env]
X = "1"
"#;
    let (config, warnings) = load_task_config(Path::new("task.toml"), text).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert!(config.is_made_for_harbor);
    assert_eq!(config.unknown.len(), 0, "{:?}", config.unknown);
    let step = &config.steps[0];
    assert_eq!(
        (step.name.as_str(), step.agent_timeout_sec, step.verifier_timeout_sec),
        ("first", Some(5.0), 600.0)
    );
    assert_eq!(step.min_reward, [("reward".to_owned(), 0.5)]);
    assert_eq!(config.network, Some(NetworkPolicy::NoNetwork));
    assert_eq!(config.agent_network, Some(NetworkPolicy::Public));
    assert!(matches!(config.verifier_network, Some(NetworkPolicy::Allowlist(_))));
    assert_eq!(
        (config.agent_user.as_deref(), config.verifier_user.as_deref()),
        (Some("1000"), Some("judge"))
    );
    assert_eq!(config.healthcheck.unwrap().retries, 9);
    assert_eq!((config.gpus, config.os.as_str()), (1, "windows"));
}

#[test]
fn limits_that_a_task_does_not_set_exist_only_without_harbor() {
    let (config, _) = load_task_config(Path::new("task.toml"), "[environment]\nmemory = \"2G\"\n").unwrap();
    let (plain, harbor) = (config.bounds(false), config.bounds(true));
    assert_eq!((plain.memory, harbor.memory), (Some(Bytes(2_000_000_000)), Some(Bytes(2 << 30))));
    assert_eq!((plain.cpus, harbor.cpus), (Some(Cpus { millis: 1000 }), None));
    assert_eq!((plain.agent_timeout_sec, harbor.agent_timeout_sec), (Some(600.0), None));
    assert_eq!((plain.install_timeout_sec, harbor.install_timeout_sec), (300.0, 360.0));
}

#[test]
fn names_of_steps_are_directories_of_their_own() {
    for names in [&["a/b"][..], &[".."], &["a", "A"]] {
        let steps: String = names.iter().map(|name| format!("[[steps]]\nname = \"{name}\"\n")).collect();
        assert!(load_task_config(Path::new("task.toml"), &steps).is_err(), "{names:?}");
    }
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
fn artifacts_are_paths_or_tables_that_name_one() {
    let load = |text: &str| load_task_config(Path::new("task.toml"), text);
    let (config, _) = load("artifacts = [\"/app/a\", {source = \"/app/b\", destination = \"c\"}]").unwrap();
    let found: Vec<_> =
        config.artifacts.iter().map(|a| (a.source.as_str(), a.destination.as_deref())).collect();
    assert_eq!(found, [("/app/a", None), ("/app/b", Some("c"))]);
    for (written, source) in [("/a/", "/a"), ("a/b", "/a/b"), ("./a", "/a"), ("/a//b/./c", "/a/b/c")] {
        let (config, _) = load(&format!("artifacts = [\"{written}\"]")).unwrap();
        assert_eq!(config.artifacts[0].source, source, "{written}");
    }
    for wrong in [
        "\"\"",
        "\"/\"",
        "\"/a/../b\"",
        "\"/a\\nb\"",
        "{destination = \"x\"}",
        "7",
        "{source = \"/a\", destination = \"../b\"}",
    ] {
        assert!(load(&format!("artifacts = [{wrong}]")).is_err(), "{wrong}");
    }
}

#[test]
fn names_of_steps_are_names_of_one_directory_on_every_system() {
    let load = |names: &[&str]| {
        let steps: String = names.iter().map(|name| format!("[[steps]]\nname = '{name}'\n")).collect();
        load_task_config(Path::new("task.toml"), &steps)
    };
    let valid = ["first step", "étape-1", ".hidden", "a.b", "第一步"];
    let (config, _) = load(&valid).unwrap();
    assert_eq!(config.steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>(), valid);
    let long = "x".repeat(256);
    for wrong in [".", "..", "a/b", "a\\b", "a:b", "a?", "end.", "end ", "tab\there", long.as_str()] {
        let problems = load(&[wrong]).unwrap_err().to_string();
        assert!(problems.contains("cannot be the name of a step"), "{wrong}: {problems}");
    }
    assert!(load(&["Étape", "étape"]).unwrap_err().to_string().contains("two steps are named"));
}
