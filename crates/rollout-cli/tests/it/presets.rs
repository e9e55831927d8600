//! Agents by name: how they are listed, installed from packages, and run without a job file.

use std::{fs, path::Path, time::Duration};

use assert_cmd::Command;
use rollout_testkit::{
    Finished, ModelReply, ModelServer, NpmRegistry, TestJob, TestTask, TokenCounts, long_enough,
};
use serde_json::{Value, json};

/// An agent without a model, whose program does the task.
const PRESET: &str = "
name: tiny
tested: 1.2.0
install:
  npm: '@tiny/agent-linux-{arch}'
  npm_musl: '@tiny/agent-linux-{arch}'
  bin: {tiny: bin/tiny}
  check: tiny --version
execute: tiny \"$ROLLOUT_TASK_INSTRUCTION\"; echo \"$ROLLOUT_AGENT_VERSION\"
logs: ['~/tiny-*.log']
";

/// Its program, in a version.
fn program(version: &str) -> String {
    format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo tiny {version}; exit; fi\n\
         test -f \"$1\" && touch /app/done && echo worked > ~/tiny-1.log\n"
    )
}

fn registry(versions: &[&str]) -> NpmRegistry {
    let registry = NpmRegistry::default();
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    for version in versions {
        let package = format!("@tiny/agent-linux-{arch}");
        registry.publish(&package, version, &[("bin/tiny", 0o755, &program(version))]);
    }
    registry
}

fn package() -> &'static str {
    if cfg!(target_arch = "aarch64") { "@tiny/agent-linux-arm64" } else { "@tiny/agent-linux-x64" }
}

fn job(registry: &NpmRegistry) -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .file("tiny.yaml", PRESET)
        .task(TestTask::new("task"))
        .env("npm_config_registry", &registry.url())
}

#[test]
fn an_agent_is_fetched_once_checked_and_copied_into_each_environment() {
    let registry = registry(&["1.2.0", "1.3.0"]);
    let job = job(&registry).agent(json!({"preset": "./tiny.yaml"})).set("n_attempts", json!(2));
    let ran = job.run().expect(0);
    assert_eq!(ran.trial("tiny/set/task__1")["reward"], 1.0);
    assert_eq!(ran.trial("tiny/set/task__2")["reward"], 1.0);
    assert_eq!(ran.file("tiny/set/task__1/logs/agent/tiny-1.log"), "worked\n", "its own logs are collected");
    let snapshot = |attempt: u32| {
        ran.trial(&format!("tiny/set/task__{attempt}"))["environment"]["agent_snapshot"].is_string()
    };
    assert!(snapshot(1) != snapshot(2), "one installs, and the other starts from its snapshot");

    registry.remove(package());
    let own = json!({"preset": "./tiny.yaml", "cache_install": false});
    let again = job.set("name", json!("again")).set("agents", json!([own]));
    let again = again.rollout(&["run", "job.yaml"]);
    assert_eq!(again.code(), 0, "what was fetched is kept: {}", again.stderr());
}

#[test]
fn the_latest_version_is_installed_where_it_is_asked_for() {
    let registry = registry(&["1.2.0", "1.3.0"]);
    let ran = job(&registry).agent(json!({"preset": "./tiny.yaml", "version": "latest"})).run().expect(0);
    assert_eq!(ran.file("tiny/set/task__1/setup/stdout.txt"), "tiny 1.3.0\n");
}

#[test]
fn the_latest_version_is_settled_once_for_a_job_and_recorded() {
    let registry = registry(&["1.2.0", "1.3.0"]);
    let latest = json!({"preset": "./tiny.yaml", "version": "latest"});
    let pinned = json!({"preset": "./tiny.yaml", "name": "pinned"});
    let job = job(&registry).agent(latest).agent(pinned).set("n_attempts", json!(2));
    let ran = job.run().expect(0);
    let version = |ran: &Finished, agent: &str, attempt: u32| {
        let trial = format!("{agent}/set/task__{attempt}");
        assert_eq!(ran.trial(&trial)["reward"], 1.0);
        let version = ran.trial(&trial)["provenance"]["agent_version"].as_str().unwrap().to_owned();
        assert_eq!(ran.file(&format!("{trial}/command/stdout.txt")), format!("{version}\n"));
        version
    };
    for attempt in [1, 2] {
        assert_eq!(version(&ran, "tiny", attempt), "1.3.0");
        assert_eq!(version(&ran, "pinned", attempt), "1.2.0");
    }
    assert_eq!(ran.result()["provenance"]["agent_versions"], json!({"tiny": "1.3.0", "pinned": "1.2.0"}));

    registry.publish(package(), "1.4.0", &[("bin/tiny", 0o755, &program("1.4.0"))]);
    let grown = job.rollout(&["resume", "jobs/job", "--attempts", "3"]);
    assert_eq!(grown.code(), 0, "{}", grown.stderr());
    assert_eq!(version(&grown, "tiny", 3), "1.3.0", "a job has one version");
    let new = job.rollout(&["run", "job.yaml", "--set", "name=new"]).expect(0);
    assert_eq!(version(&new, "../new/tiny", 1), "1.4.0");
}

#[test]
fn what_a_script_installs_as_the_latest_is_not_kept_for_later_jobs() {
    const SCRIPTED: &str =
        "name: scripted\nuntested: true\ninstall: {script: 'true'}\nexecute: touch /app/done\n";
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .file("scripted.yaml", SCRIPTED)
        .task(TestTask::new("task"))
        .set("n_attempts", json!(2));
    // How many trials of a job start from a snapshot.
    let starts = |job: &TestJob, name: &str| {
        job.rollout(&["run", "job.yaml", "--set", &format!("name={name}")]).expect(0);
        let trial = |attempt: &u32| {
            let path = format!("jobs/{name}/scripted/set/task__{attempt}/result.json");
            let result = fs::read_to_string(job.root().join(path)).unwrap();
            let result: serde_json::Value = result.parse().unwrap();
            result["environment"]["agent_snapshot"].is_string()
        };
        [1, 2].iter().filter(|attempt| trial(attempt)).count()
    };
    let latest = job.agent(json!({"preset": "./scripted.yaml"}));
    assert_eq!([starts(&latest, "a"), starts(&latest, "b")], [1, 1]);
    let pinned = latest.set("agents", json!([{"preset": "./scripted.yaml", "version": "1"}]));
    assert_eq!([starts(&pinned, "c"), starts(&pinned, "d")], [1, 2]);
}

#[test]
fn a_version_of_an_agent_of_a_file_is_fetched_before_it_is_needed() {
    let registry = registry(&["1.2.0", "1.3.0"]);
    let job = job(&registry).agent(json!({"preset": "./tiny.yaml", "version": "1.3.0"}));
    let fetched = job.rollout(&["agents", "fetch", "./tiny.yaml@1.3.0", "./tiny.yaml"]).expect(0);
    assert_eq!(fetched.stdout(), "./tiny.yaml 1.3.0\n./tiny.yaml 1.2.0\n");
    registry.remove(package());
    let ran = job.run().expect(0);
    assert_eq!(ran.file("tiny/set/task__1/setup/stdout.txt"), "tiny 1.3.0\n");
    let missing = job.rollout(&["agents", "fetch", "./none.yaml"]);
    assert!(missing.stderr().contains("cannot read the preset ./none.yaml"), "{}", missing.stderr());
}

#[test]
fn a_package_with_another_hash_than_in_the_registry_is_refused() {
    let registry = registry(&["1.2.0"]);
    registry.tamper(package(), "1.2.0");
    let ran = job(&registry).agent(json!({"preset": "./tiny.yaml"})).run().expect(1);
    let error = &ran.trial("tiny/set/task__1")["error"];
    assert_eq!(error["type"], "agent_install_failed");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("does not have the hash that the registry gives for it"), "{message}");
}

#[test]
fn a_version_that_does_not_exist_or_is_not_what_was_asked_for_fails_the_install() {
    let registry = registry(&["1.2.0"]);
    let missing = job(&registry).agent(json!({"preset": "./tiny.yaml", "version": "9.9.9"})).run().expect(1);
    let message = missing.trial("tiny/set/task__1")["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("has no version 9.9.9; the latest is 1.2.0"), "{message}");

    registry.publish(package(), "2.0.0", &[("bin/tiny", 0o755, &program("1.9.9"))]);
    let other = job(&registry).agent(json!({"preset": "./tiny.yaml", "version": "2.0.0"})).run().expect(1);
    let message = other.trial("tiny/set/task__1")["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("expected version 2.0.0, found tiny 1.9.9"), "{message}");
}

#[test]
fn an_agent_can_complete_its_log_after_its_timeout() {
    const SLOW: &str = r#"
name: slow
untested: true
execute: |
  bash -c 'trap "sleep 1; echo saved > ~/slow.log; exit 3" TERM; echo ready; while true; do sleep 0.1; done'
  echo "it ended with $?"
  sleep 1000
logs: ["~/slow.log"]
"#;
    long_enough(Duration::from_secs(2), |timeout| {
        let seconds = timeout.as_secs();
        let config = format!("version = \"1.0\"\n[agent]\ntimeout_sec = {seconds}\n");
        let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
            .file("slow.yaml", SLOW)
            .task(TestTask::new("task").config(&config))
            .agent(json!({"preset": "./slow.yaml"}));
        let ran = job.run().expect(1);
        let result = ran.trial("slow/set/task__1");
        let error = &result["error"];
        assert_eq!(error["type"], "agent_execution_timeout", "{error:#}");
        let expected = format!("exceeded its timeout of {seconds} seconds");
        assert!(error["message"].as_str().unwrap().contains(&expected), "{error:#}");
        // The rest of the script would take another 1000 seconds.
        let took = result["durations"]["agent_execution_sec"].as_f64().unwrap();
        let least = timeout.as_secs_f64() + 10.0;
        assert!((least..least + 900.0).contains(&took), "it had {took} seconds");
        let stdout = ran.file("slow/set/task__1/command/stdout.txt");
        // Otherwise the agent had no time to start, or after its timeout none to get the signal.
        if !stdout.contains("it ended with 3") {
            return None;
        }
        assert_eq!(stdout, "ready\nit ended with 3\n");
        assert_eq!(ran.file("slow/set/task__1/logs/agent/slow.log"), "saved\n");
        Some(())
    });
}

/// An agent that asks its model once, and reports another usage than the gateway records.
const CALLER: &str = r#"
name: caller
untested: true
dialects: [chat]
execute: |
  exec 3<> "/dev/tcp/127.0.0.1/${ROLLOUT_MODEL_URL##*:}"
  body='{"model": "'$ROLLOUT_MODEL'", "messages": [{"role": "user", "content": "hello"}]}'
  printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer %s\r\n' "$ROLLOUT_MODEL_TOKEN" >&3
  printf 'Content-Type: application/json\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s' "${#body}" "$body" >&3
  cat <&3
  touch /app/done
  echo '{"input_tokens": 5, "output_tokens": 7, "cost_usd": 0.5}' > /logs/agent/usage.json
"#;

#[test]
fn usage_that_an_agent_reports_stays_beside_what_the_gateway_recorded() {
    let counts = TokenCounts { prompt: 100, completion: 10, cached: 40, ..TokenCounts::default() };
    let server = ModelServer::always(ModelReply::text("hello").usage(counts));
    let model = json!({"name": "m", "base_url": server.url(), "prices": {"input": 1, "output": 10}});
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .file("caller.yaml", CALLER)
        .task(TestTask::new("task"))
        .agent(json!({"preset": "./caller.yaml", "model": model}));
    let result = job.run().expect(0).trial("caller/set/task__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    assert_eq!(
        result["usage"],
        json!({"input_tokens": 100, "output_tokens": 10, "cached_tokens": 40, "cost_usd": 0.0002})
    );
    assert_eq!(
        result["reported_usage"],
        json!({"input_tokens": 5, "output_tokens": 7, "cached_tokens": null, "cost_usd": 0.5})
    );
    assert_eq!(result["model_calls"], json!({"calls": 1, "turns": 1, "tool_calls": 0, "models": ["m"]}));
    let trial = job.dir().join("caller/set/task__1").display().to_string();
    let shown = job.rollout(&["show", &trial]).expect(0).stdout();
    assert!(shown.contains("the agent reports 5 tokens in, 7 tokens out, $0.5"), "{shown}");
    let dir = job.dir().display().to_string();
    for (format, place) in [("verifiers", ""), ("eee", "/metadata")] {
        job.rollout(&["export", format, &dir, "-o", format]).expect(0);
        let exported = rollout_testkit::files_holding(&job.root().join(format), "reported_usage");
        let [found] = &exported[..] else { panic!("{format}: {exported:?}") };
        let line: Value = serde_json::from_str(found.split_once(": ").unwrap().1).unwrap();
        for key in ["model_calls", "reported_usage"] {
            // The values of metadata are texts there.
            let exported = match &line.pointer(place).unwrap()[key] {
                Value::String(text) => serde_json::from_str(text).unwrap(),
                value => value.clone(),
            };
            assert_eq!(exported, result[key], "{format}: {line:#}");
        }
    }
}

#[test]
fn an_instruction_that_is_too_long_for_an_agent_is_refused_before_the_agent_starts() {
    let agent = "name: short\nuntested: true\nmax_instruction_bytes: 10\nexecute: touch /app/done\n";
    let job = |instruction: &str| {
        TestJob::new(env!("CARGO_BIN_EXE_rollout"))
            .file("short.yaml", agent)
            .task(TestTask::new("task").file("instruction.md", instruction))
            .agent(json!({"preset": "./short.yaml"}))
            .run()
    };
    assert_eq!(job("- Do it.\n").expect(0).trial("short/set/task__1")["reward"], 1.0);
    let result = job("- Do it now.\n").expect(1).trial("short/set/task__1");
    assert_eq!(result["error"]["type"], "task_invalid", "{result:#}");
    let message = result["error"]["message"].as_str().unwrap();
    assert!(message.contains("instruction.md has 13 bytes, but short can read at most 10"), "{message}");
}

/// An agent with a model of its own, which prints what it does as Claude Code does.
const PRINTER: &str = r#"
name: printer
untested: true
execute: |
  echo 'not an event'
  cat <<'EOF'
  {"type": "system", "subtype": "init", "model": "own"}
  {"type": "assistant", "message": {"id": "1", "content": [{"type": "tool_use", "id": "a", "name": "Bash", "input": {}}]}}
  {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "a", "content": "a-secret-of-mine"}]}}
  {"type": "result", "usage": {"input_tokens": 6, "cache_read_input_tokens": 4, "output_tokens": 2}}
  EOF
  touch /app/done
trajectory: claude
"#;

#[test]
fn the_own_log_of_an_agent_without_a_gateway_is_its_conversation() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .file("printer.yaml", PRINTER)
        .task(TestTask::new("task").file("instruction.md", "Do it.\n"))
        .env("MINE", "a-secret-of-mine")
        .agent(json!({"preset": "./printer.yaml", "env": {"MINE": "${MINE}"}}));
    let ran = job.run().expect(0);
    let result = ran.trial("printer/set/task__1");
    let usage = json!({"input_tokens": 10, "output_tokens": 2, "cached_tokens": 4, "cost_usd": null});
    assert_eq!(result["usage"], usage, "{result:#}");
    let file = ran.file("printer/set/task__1/trajectory.json");
    assert!(!file.contains("a-secret-of-mine"), "{file}");
    let file: serde_json::Value = serde_json::from_str(&file).unwrap();
    assert_eq!((&file["origin"], &file["model"]), (&json!("agent_log"), &json!("own")));
    assert_eq!(file["prompt"], json!([{"role": "user", "content": "Do it.\n"}]));
    assert_eq!(file["turns"][0]["response"]["message"]["tool_calls"][0]["name"], "Bash");
    assert_eq!(file["turns"][0]["answers"][0]["tool_call_id"], "a");
    let log = json!({"turns": 1, "tool_calls": 1, "usage": usage, "gave_last_answers": false});
    assert_eq!(file["agent_log"], log);
    let shown = job.rollout(&["show", &job.dir().join("printer/set/task__1").display().to_string()]);
    assert!(shown.expect(0).stdout().contains("1 tool call"));
}

/// The machine's own system as the image of every task.
const HOST: [&str; 4] = ["-e", "native", "--set", "environment.provider_config={images: {\"*\": host}}"];

fn seen(dir: &Path, args: &[&str]) -> String {
    let output = Command::cargo_bin("rollout")
        .unwrap()
        .current_dir(dir)
        .args(args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", dir)
        .env("OPENAI_API_KEY", "sk-secret")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&dir.display().to_string(), "[DIR]");
    format!("{}{}--- exit {}", text(&output.stdout), text(&output.stderr), output.status.code().unwrap())
}

#[test]
fn the_agents_are_listed_with_what_was_tested() {
    let dir = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(seen(dir.path(), &["agents", "list"]), @"
    agent           version  dialects                           status    description
    aider           0.86.2   chat                               tested    aider by Paul Gauthier
    amp             latest   none                               untested  Amp by Sourcegraph, with an account of its own in AMP_API_KEY
    claude-code     2.1.325  messages                           tested    Claude Code by Anthropic
    cline           3.0.65   chat                               tested    Cline CLI
    codex           0.166.0  responses                          tested    Codex CLI by OpenAI
    copilot         1.0.102  chat, responses                    tested    GitHub Copilot CLI
    crush           latest   chat                               untested  Crush by Charm
    cursor-cli      latest   none                               untested  Cursor CLI, with an account of its own in CURSOR_API_KEY
    gemini-cli      0.61.0   gemini                             tested    Gemini CLI by Google
    goose           1.52.0   chat                               tested    goose by Block
    kimi-code       2.1.0    chat, responses, messages, gemini  tested    Kimi Code by Moonshot AI
    mini-swe-agent  2.4.6    chat                               tested    mini-SWE-agent by Princeton and Stanford
    opencode        1.18.33  chat, responses, messages, gemini  tested    opencode by Anomaly
    openhands       1.16.0   chat                               tested    OpenHands CLI by All Hands AI
    qwen-code       0.24.4   chat                               tested    Qwen Code by Alibaba
    swe-agent       latest   chat                               untested  SWE-agent by Princeton
    --- exit 0
    ");
    insta::assert_snapshot!(seen(dir.path(), &["agents", "show", "codx"]), @r#"
    error: unknown agent "codx"
    hint: did you mean codex?
    --- exit 2
    "#);
    assert!(seen(dir.path(), &["agents", "show", "codex"]).starts_with("name: codex\n"));
}

#[test]
fn a_job_without_a_file_can_be_planned_and_saved() {
    let dir = tempfile::tempdir().unwrap();
    TestTask::new("task").write(&dir.path().join("tasks"));
    let options = ["run", "-d", "tasks", "--dry-run", "--save", "job.yaml"];
    let more = ["-a", "codex", "-a", "oracle", "-m", "openai/gpt-5.5", "-k", "2", "-n", "3"];
    let options = [&options[..], &more, &HOST].concat();
    let planned = seen(dir.path(), &options);
    assert!(planned.contains("4 trials = 2 agents × 1 task × 2 attempts, 3 at a time"), "{planned}");
    insta::assert_snapshot!(fs::read_to_string(dir.path().join("job.yaml")).unwrap(), @r#"
    n_attempts: 2
    n_concurrent_trials: 3
    environment: {type: native, provider_config: {images: {"*": host}}}
    agents:
      - {preset: codex, model: openai/gpt-5.5}
      - {name: oracle}
    datasets:
      - {path: tasks}
    "#);
    // The options of `--set` are in the file too.
    let again = seen(dir.path(), &["run", "job.yaml", "--dry-run"]);
    assert!(again.contains("4 trials = 2 agents × 1 task × 2 attempts, 3 at a time"), "{again}");
    insta::assert_snapshot!(seen(dir.path(), &options), @"
    error: cannot save the job as job.yaml: File exists (os error 17)
    hint: choose another file, or remove it: --save never replaces a file
    --- exit 2
    ");
}

#[test]
fn several_models_give_an_agent_several_names_and_a_server_can_be_named() {
    let dir = tempfile::tempdir().unwrap();
    TestTask::new("task").write(&dir.path().join("tasks"));
    let options =
        ["run", "-d", "tasks", "-a", "mini-swe-agent", "--dry-run", "--save", "job.yaml", "-e", "native"];
    let more = ["-m", "qwen3", "-m", "org/llama", "--base-url", "http://127.0.0.1:8000/v1"];
    seen(dir.path(), &[&options[..], &more].concat());
    insta::assert_snapshot!(fs::read_to_string(dir.path().join("job.yaml")).unwrap(), @r#"
    environment: {type: native}
    agents:
      - {preset: mini-swe-agent, model: {name: qwen3, base_url: "http://127.0.0.1:8000/v1", api_key: "${OPENAI_API_KEY:-}"}, name: mini-swe-agent-qwen3}
      - {preset: mini-swe-agent, model: {name: org/llama, base_url: "http://127.0.0.1:8000/v1", api_key: "${OPENAI_API_KEY:-}"}, name: mini-swe-agent-llama}
    datasets:
      - {path: tasks}
    "#);
}

#[test]
fn a_job_without_a_file_needs_a_dataset_and_someone_to_work_on_it() {
    let dir = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(seen(dir.path(), &["run"]), @"
    error: no job file and no dataset
    hint: write `rollout run job.yaml`, or `rollout run -d TASKS -a AGENT -m MODEL`; `rollout run --help` shows all options
    --- exit 2
    ");
    fs::create_dir(dir.path().join("tasks")).unwrap();
    insta::assert_snapshot!(seen(dir.path(), &["run", "-d", "tasks"]), @"
    error: no agent and no model
    hint: set the agent with -a, such as `-a claude-code`, `-a oracle` or the path of a preset; with -m and without -a, the model itself attempts the tasks
    --- exit 2
    ");
}

#[test]
fn variables_come_from_an_env_file_and_the_environment_wins() {
    let dir = tempfile::tempdir().unwrap();
    TestTask::new("task").write(&dir.path().join("tasks"));
    fs::write(dir.path().join("keys"), "# keys\nexport ANTHROPIC_API_KEY=\"sk-a\"\n\nOPENAI_API_KEY=x\n")
        .unwrap();
    let options =
        ["run", "-d", "tasks", "-a", "claude-code", "-m", "anthropic/claude-sonnet-4-5", "--dry-run"];
    let options = [&options[..], &HOST].concat();
    let without = seen(dir.path(), &options);
    assert!(without.contains("ANTHROPIC_API_KEY") && without.ends_with("exit 2"), "{without}");
    let with = seen(dir.path(), &[&options[..], &["--env-file", "keys"]].concat());
    assert!(with.ends_with("exit 0"), "{with}");
    fs::write(dir.path().join("keys"), "sk-secret-without-a-name\n").unwrap();
    let wrong = seen(dir.path(), &[&options[..], &["--env-file", "keys"]].concat());
    assert!(
        wrong.contains("line 1 of keys is not of the form NAME=value") && !wrong.contains("sk-secret"),
        "{wrong}"
    );
}
