//! The command as a person meets it: help, mistakes, and what needs no engine.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Output};

use assert_cmd::Command;

fn rollout(dir: &Path, args: &[&str]) -> Output {
    let mut output = Command::cargo_bin("rollout")
        .unwrap()
        .current_dir(dir)
        .args(args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", dir)
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    output.stdout = without_disk_space(&output.stdout);
    output.stderr = without_disk_space(&output.stderr);
    output
}

/// Text without warnings about the disk of the machine that runs the tests.
fn without_disk_space(text: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut is_after = false;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let is_warning = line.starts_with(b"warning: low disk space for ");
        let is_its_end = is_after && line == b"\n";
        if !is_warning && !is_its_end {
            kept.extend_from_slice(line);
        }
        is_after = is_warning;
    }
    kept
}

/// What the command prints and how it ends. The directory it runs in is shown as `[DIR]`.
fn seen(dir: &Path, args: &[&str]) -> String {
    let output = rollout(dir, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&dir.display().to_string(), "[DIR]");
    let mut seen = text(&output.stdout);
    if !output.stderr.is_empty() {
        seen.push_str("--- stderr\n");
        seen.push_str(&text(&output.stderr));
    }
    format!("{seen}--- exit {}", output.status.code().unwrap())
}

fn stderr(dir: &Path, args: &[&str]) -> String {
    String::from_utf8_lossy(&rollout(dir, args).stderr).into_owned()
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn help_teaches_the_first_steps() {
    insta::assert_snapshot!(seen(temporary().path(), &["--help"]), @"
    Run agents on tasks in isolated environments, and score the results

    `rollout job.yaml` is short for `rollout run job.yaml`.

    Usage: rollout <JOB> [OPTIONS]
           rollout <COMMAND>

    Commands:
      run          Run a job: every agent attempts every task
      eval         Run a benchmark: ask a model its questions, and score the answers
      ask          Ask a model one question
      resume       Continue an interrupted job or benchmark, or add trials to a job
      score        Score saved answers with another metric, judge or rubric
      serve        Serve model rollouts to a training loop over HTTP
      gateway      Serve a model to agents over HTTP, with records and limits
      agents       List, fetch and describe the agents that can be run by name
      datasets     List, show and fetch datasets that can be run by name
      tools        Serve tools to models over HTTP: code, documents, databases, the web
      list         List jobs, or the trials of a job
      show         Show one trial: outcome, error, phases, output, cost
      logs         Print the output of a trial, also while it runs
      note         Tag and comment trials, or list their notes
      view         Show jobs and trials in a browser
      export       Export the results of a job to files for other programs
      import       Convert a job directory of another program, to compare, view and export it here
      compare      Compare jobs or agents task by task, with statistical tests
      investigate  Ask a model why trials of a job were not solved
      regrade      Run the tests of a finished job again, without its agents, and report what changed
      reproduce    Run one trial again, and report what differs
      flakes       Find tasks whose own solution does not always pass, or that pass without any work
      check        Check the quality of tasks: solutions, tests, leaks, pinned versions, time and size
      validate     Check a job, a task, a dataset or a benchmark without running anything
      shell        Open a shell in a new environment of a task
      attach       Open a shell in the preserved environment of a trial
      init         Create a job or a task that is ready to run
      schema       Print the JSON Schema of a file, for editors
      doctor       Check what this machine can run, and suggest fixes
      clean        Remove containers and files left by earlier runs
      completions  Print a completion script for a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Examples:
      rollout init job my-eval               Create a job that is ready to run
      rollout my-eval/job.yaml               Run it
      rollout my-eval/job.yaml --dry-run     Show what would run
      rollout run -d terminal-bench@2.0 -a codex -m openai/gpt-5.5
                                             Run an agent on a known dataset, without a job file
      rollout resume jobs/2026-01-15__10-30-00
                                             Continue after Ctrl-C or a crash
      rollout doctor                         Check what this machine can run

    Exit status:
      0    every trial completed, with any reward
      1    a trial failed, or the result is below --fail-under
      2    nothing ran: the command, the configuration or the container engine has a problem
      130  cancelled
    --- exit 0
    ");
}

#[test]
fn help_of_run_groups_its_options() {
    insta::assert_snapshot!(seen(temporary().path(), &["run", "--help"]), @r#"
    Run a job: every agent attempts every task

    Usage: rollout run [OPTIONS] [JOB]

    Arguments:
      [JOB]
              The job file, a directory with a job.yaml, or - for stdin; without it, --dataset, --agent
              and --model define the job

    Options:
          --dry-run
              Show the plan without running it

          --strict
              Reject the job if a task is invalid or uses an unsupported setting

          --allow-unsupported
              Also run tasks with unsupported settings; each result lists these settings

      -h, --help
              Print help (see a summary with '-h')

    Selection:
      -a, --agent <AGENT>
              Run only agents whose name matches this pattern. Without a job file: the agent to run,
              which is a name of `rollout agents list`, oracle, nop, or the path of a preset. Can be
              repeated

          --task <GLOB>
              Run only tasks whose name matches this pattern; can be repeated

      -d, --dataset <DATASET>
              Run only datasets whose name matches this pattern. Without a job file: a name of `rollout
              datasets list`, a directory of tasks, a task, an interaction file, git+URL, or
              hf:OWNER/NAME. Can be repeated

          --limit <N>
              Run at most this many tasks of each dataset

    Without a job file:
      -m, --model <MODEL>
              The model of the agents, such as anthropic/claude-sonnet-4-5; without --agent, the model
              itself attempts the tasks; can be repeated

          --base-url <URL>
              The URL of an OpenAI-compatible model server; its API key is read from OPENAI_API_KEY

          --save <FILE>
              Save the job as a new job file

    Execution:
      -k, --attempts <N>
              Number of attempts per task; overrides n_attempts

      -n, --concurrency <N>
              Number of trials that run at the same time; overrides n_concurrent_trials

      -e, --environment <PROVIDER>
              The environment provider, such as docker or native; overrides environment.type

          --env-file <FILE>
              Read variables for ${VAR} from a file with lines of the form NAME=value; variables of the
              environment take precedence

          --offline
              Find datasets without a network; reject the job if a file is not on this machine

          --set <KEY=VALUE>
              Override a setting of the job file, such as environment.type=docker; can be repeated

    Output:
          --fail-under <RATE=BOUND>
              Exit with status 1 if the pass_rate or the mean_reward is lower than this bound, such as
              pass_rate=0.9; can be repeated

          --junit <FILE>
              Write a JUnit report: an unsolved trial is a failure, a failed trial is an error

          --output <FORMAT>
              Output format

              Possible values:
              - human: A live display on a terminal, lines of text in a pipe or in CI
              - json:  One JSON event per line

    Examples:
      rollout run -d gsm8k -m openai/gpt-5.5
                                             Ask a model the questions of a known benchmark
      rollout run -d tasks/ -a claude-code -m anthropic/claude-sonnet-4-5
                                             Run an agent on tasks without a job file
      rollout run -d tasks/ -a oracle -k 3 --save job.yaml --dry-run
                                             Save the job as a file, without running it
      rollout job.yaml --agent oracle --task 'sort-*'
                                             Run part of the job
      rollout job.yaml --limit 5 --attempts 1 --set environment.preserve_env=always
                                             Run a few trials and keep their environments
      rollout job.yaml --fail-under pass_rate=0.9 --junit report.xml
                                             Fail a CI build if the pass rate is too low
      rollout job.yaml --output json | jq -c 'select(.event == "trial_finished")'
                                             Read the events with another program
    --- exit 0
    "#);
}

#[test]
fn mistakes_in_arguments_exit_with_2_and_list_the_possible_values() {
    let dir = temporary();
    let said = |args: &[&str]| {
        let output = rollout(dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap().lines().next().unwrap_or_default().to_owned()
    };
    insta::assert_snapshot!(said(&["jobb"]), @"error: unrecognized subcommand 'jobb'");
    insta::assert_snapshot!(said(&["job.yaml", "--fail-under", "cost=1"]), @r#"error: invalid value 'cost=1' for '--fail-under <RATE=BOUND>': unknown rate "cost": expected pass_rate or mean_reward"#);
    insta::assert_snapshot!(said(&["job.yaml", "--output", "xml"]), @"error: invalid value 'xml' for '--output <FORMAT>'");
    insta::assert_snapshot!(said(&["resume", "jobs/x", "--rerun", "all"]), @"error: invalid value 'all' for '--rerun <WHICH>'");
    insta::assert_snapshot!(said(&["init", "agent", "x"]), @"error: invalid value 'agent' for '<KIND>'");
}

#[test]
fn init_makes_a_job_that_is_valid_and_overwrites_nothing() {
    let dir = temporary();
    insta::assert_snapshot!(seen(dir.path(), &["init", "job", "my-eval"]), @"
    created my-eval/job.yaml and my-eval/tasks/hello

    run it      rollout my-eval/job.yaml
    add a task  rollout init task my-eval/tasks/<name>
    --- exit 0
    ");
    insta::assert_snapshot!(seen(dir.path(), &["validate", "my-eval/job.yaml", "--strict"]), @"
    ✓ my-eval/job.yaml (3 agents, 1 dataset, 1 task): no problems
    --- exit 0
    ");
    insta::assert_snapshot!(seen(dir.path(), &["init", "job", "my-eval"]), @"
    --- stderr
    error: my-eval already exists
    hint: choose another name, or remove it first
    --- exit 2
    ");
}

#[test]
fn init_makes_a_task_whose_scripts_can_be_run() {
    let dir = temporary();
    insta::assert_snapshot!(seen(dir.path(), &["init", "task", "tasks/sort"]), @"
    created the task tasks/sort

    edit the instruction  tasks/sort/instruction.md
    edit the tests        tasks/sort/tests/test.sh
    check the task        rollout validate tasks/sort
    --- exit 0
    ");
    for script in ["solution/solve.sh", "tests/test.sh"] {
        let mode = fs::metadata(dir.path().join("tasks/sort").join(script)).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{script}");
    }
    fs::write(dir.path().join("taken"), "").unwrap();
    insta::assert_snapshot!(seen(dir.path(), &["init", "task", "taken"]), @"
    --- stderr
    error: taken already exists
    hint: choose another name, or remove it first
    --- exit 2
    ");
    insta::assert_snapshot!(seen(dir.path(), &["init", "task", ".."]), @"
    --- stderr
    error: .. is not a valid task name
    cause: a name cannot be empty
    --- exit 2
    ");
}

#[test]
fn a_dry_run_shows_the_plan_and_makes_nothing() {
    let dir = temporary();
    rollout(dir.path(), &["init", "job", "."]);
    let text = seen(dir.path(), &["job.yaml", "--dry-run", "--agent", "[on]*", "--attempts", "2"]);
    insta::assert_snapshot!(text, @"
    the job: 4 trials = 2 agents × 1 task × 2 attempts, 4 at a time

    agents    oracle, nop
    datasets  tasks (1 task)
    provider  native, network host
    results   jobs/<start time>

    first trials             build  install   agent  verifier
    oracle/tasks/hello__1  10m 00s   5m 00s  5m 00s    1m 00s
    oracle/tasks/hello__2  10m 00s   5m 00s  5m 00s    1m 00s
    nop/tasks/hello__1     10m 00s   5m 00s  5m 00s    1m 00s
    nop/tasks/hello__2     10m 00s   5m 00s  5m 00s    1m 00s

    nothing was run
    --- exit 0
    ");
    assert!(!dir.path().join("jobs").exists());
    insta::assert_snapshot!(seen(dir.path(), &["job.yaml", "--dry-run", "--task", "sort-*"]), @r#"
    --- stderr
    error: no task matches "sort-*"; available: hello
    --- exit 2
    "#);
    insta::assert_snapshot!(seen(dir.path(), &["job.yaml", "--task", "[x"]), @"
    --- stderr
    error: invalid pattern `[x`: unclosed character class; missing ']'
    --- exit 2
    ");
}

#[test]
fn every_problem_of_a_job_is_shown_before_anything_runs() {
    let dir = temporary();
    fs::write(dir.path().join("job.yaml"), "agents:\n  - name: a\n    exceute: x\ndatasets: []\n").unwrap();
    let text = seen(dir.path(), &["job.yaml", "--set", "n_attempts=0"]);
    insta::assert_snapshot!(text, @"
    --- stderr
    error: `execute` is missing in `agents.0`
     --> job.yaml:2:5
      |
    2 |   - name: a
      |     ^
      |
      = help: set `execute:` to a script, or set `execute_file:`, `preset:` or `model:`; only the agents `oracle` and `nop` need none of these

    error: unknown key `exceute` in `agents.0`
     --> job.yaml:3:5
      |
    3 |     exceute: x
      |     ^^^^^^^
      |
      = help: did you mean `execute`? known keys in `agents.0`: `name`, `description`, `preset`, `version`, `cache_install`, `install`, `install_file`, `install_sha256`, `execute`, `execute_file`, `execute_sha256`, `model`, `system_prompt`, `limits`, `env`

    error: `datasets` is empty
     --> job.yaml:4:11
      |
    4 | datasets: []
      |           ^
      |
      = help: a job needs at least one dataset, such as `- path: ./tasks`

    error: `n_attempts` must be at least 1, not 0
     --> --set:1:12
      |
    1 | n_attempts=0
      |            ^

    error: job.yaml has 4 problems
    --- exit 2
    ");
}

#[test]
fn validate_shows_every_broken_task_of_a_dataset() {
    let dir = temporary();
    for task in ["tasks/good", "tasks/no-tests", "tasks/odd", "tasks/wrong"] {
        rollout(dir.path(), &["init", "task", task]);
    }
    let task = |path: &str| dir.path().join("tasks").join(path);
    fs::remove_dir_all(task("no-tests/tests")).unwrap();
    fs::remove_dir_all(task("odd/solution")).unwrap();
    fs::write(task("odd/task.toml"), "[environment]\nos = \"windows\"\n").unwrap();
    fs::write(task("wrong/task.toml"), "[agent]\ntimeout_sec = \"soon\"\n").unwrap();
    insta::assert_snapshot!(seen(dir.path(), &["validate", "tasks"]), @r#"
    task no-tests
    [DIR]/tasks/no-tests is not a complete task:
    - tests/test.sh is missing

    task wrong
    error: `agent.timeout_sec` must be a number, not a string
     --> [DIR]/tasks/wrong/task.toml:2:15
      |
    2 | timeout_sec = "soon"
      |               ^^^^^^

    error: task odd: `environment.os` is not supported: only Linux environments are supported

    warning: task odd: solution/solve.sh is missing, so the oracle cannot run

    ✗ tasks (4 tasks): 3 problems, 1 warning
    --- exit 2
    "#);
    insta::assert_snapshot!(seen(dir.path(), &["validate", "tasks/odd"]), @"
    error: task odd: `environment.os` is not supported: only Linux environments are supported

    warning: task odd: solution/solve.sh is missing, so the oracle cannot run

    ✗ tasks/odd (1 task): 1 problem, 1 warning
    --- exit 2
    ");
}

#[test]
fn strict_refuses_a_job_whose_tasks_are_not_all_right() {
    let dir = temporary();
    rollout(dir.path(), &["init", "job", "."]);
    rollout(dir.path(), &["init", "task", "tasks/broken"]);
    fs::remove_file(dir.path().join("tasks/broken/tests/test.sh")).unwrap();
    fs::write(dir.path().join("tasks/hello/task.toml"), "[environment]\nos = \"windows\"\n").unwrap();
    rollout(dir.path(), &["init", "task", "tasks/fine"]);
    fs::write(dir.path().join("tasks/fine/task.toml"), "[environment]\nmemory = \"2048\"\n").unwrap();
    insta::assert_snapshot!(seen(dir.path(), &["job.yaml", "--strict"]), @"
    --- stderr
    task tasks/broken
    [DIR]/tasks/broken is not a complete task:
    - tests/test.sh is missing

    error: task tasks/hello: `environment.os` is not supported: only Linux environments are supported

    error: rejected by --strict: the tasks have 2 problems
    --- exit 2
    ");
    let other = rollout(dir.path(), &["job.yaml", "--strict", "--task", "fine", "--dry-run"]);
    assert!(other.status.success(), "tasks that do not run do not matter, nor does a number without a unit");
    insta::assert_snapshot!(stderr(dir.path(), &["job.yaml", "--dry-run"]), @r#"
    warning: task fine: `environment.memory = 2048` is taken as 2048 MiB; write "2Gi" to be explicit
    warning: task tasks/hello: `environment.os` is not supported: only Linux environments are supported
    "#);
}

#[test]
fn what_cannot_be_continued_is_reported_with_what_to_do() {
    let dir = temporary();
    insta::assert_snapshot!(seen(dir.path(), &["resume", "."]), @"
    --- stderr
    error: . is not a job directory: it has no journal.jsonl
    hint: pass the directory that the run printed, <jobs_dir>/<name>
    --- exit 2
    ");
    insta::assert_snapshot!(seen(dir.path(), &["attach", "."]), @"
    --- stderr
    error: . is not a trial directory
    cause: No such file or directory (os error 2)
    hint: pass a directory of the form <job>/<agent>/<dataset>/<task>__<attempt>
    --- exit 2
    ");
}

#[test]
fn a_provider_that_is_not_there_ends_the_command_before_anything_runs() {
    let dir = temporary();
    rollout(dir.path(), &["init", "job", "."]);
    let kubeconfig = "environment={type: kubernetes, provider_config: {registry: r, kubeconfig: /none}}";
    let text = seen(dir.path(), &["job.yaml", "--set", kubeconfig]);
    insta::assert_snapshot!(text, @"
    --- stderr
    error: no Kubernetes cluster is configured: there is no kubeconfig file at /none
    hint: set KUBECONFIG, or `provider_config.kubeconfig`
    --- exit 2
    ");
    assert!(!dir.path().join("jobs").exists());
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_rollout"))
        .args(["completions", "bash"])
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn schemas_are_those_that_are_checked_in() {
    for of in ["benchmark", "interaction", "job", "task"] {
        let file = format!("{of}.schema.json");
        let output = rollout(temporary().path(), &["schema", of]);
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas").join(&file);
        let kept: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert_eq!(printed, kept, "{file}");
    }
}

#[test]
fn validate_recognises_a_benchmark_and_checks_its_questions() {
    let dir = temporary();
    let config = r#"{"base_url": "http://127.0.0.1:1/v1", "data_path": "q.jsonl", "max_turn": 3}"#;
    fs::write(dir.path().join("config.json"), config).unwrap();
    fs::write(dir.path().join("q.jsonl"), "{\"id\": 1, \"question\": \"一加一?\"}\n").unwrap();
    insta::assert_snapshot!(seen(dir.path(), &["validate", "config.json"]), @r#"
    warning: unknown key `max_turn`, which is ignored
     --> config.json:1:63
      |
    1 | {"base_url": "http://127.0.0.1:1/v1", "data_path": "q.jsonl", "max_turn": 3}
      |                                                               ^^^^^^^^^^
      |
      = help: did you mean `max_turns`?

    warning: the model: the model server at http://127.0.0.1:1 does not answer: error sending request: client error (Connect): tcp connect error: Connection refused (os error 111)

    ✓ config.json (1 question): 2 warnings
    --- exit 0
    "#);
    fs::write(dir.path().join("q.jsonl"), "{\"id\": 1}\n?\n").unwrap();
    insta::assert_snapshot!(seen(dir.path(), &["validate", "config.json", "--strict"]), @r#"
    error: q.jsonl has 2 invalid questions:
      line 1: missing `question`
      line 2: not JSON: expected value at column 1

    warning: unknown key `max_turn`, which is ignored
     --> config.json:1:63
      |
    1 | {"base_url": "http://127.0.0.1:1/v1", "data_path": "q.jsonl", "max_turn": 3}
      |                                                               ^^^^^^^^^^
      |
      = help: did you mean `max_turns`?

    warning: the model: the model server at http://127.0.0.1:1 does not answer: error sending request: client error (Connect): tcp connect error: Connection refused (os error 111)

    ✗ config.json: 1 problem, 2 warnings
    --- exit 2
    "#);
    fs::write(dir.path().join("config.json"), r#"{"max_turns": 0, "data_path": "absent"}"#).unwrap();
    insta::assert_snapshot!(seen(dir.path(), &["validate", "config.json"]), @r#"
    --- stderr
    error: `base_url` is missing
     --> config.json:1:1
      |
    1 | {"max_turns": 0, "data_path": "absent"}
      | ^
      |
      = help: write the base URL of the model's server, or set OPENAI_BASE_URL: `https://api.openai.com/v1`, `http://127.0.0.1:8000/v1`

    error: `max_turns` must be at least 1, not 0
     --> config.json:1:15
      |
    1 | {"max_turns": 0, "data_path": "absent"}
      |               ^

    error: `data_path`: the file does not exist
     --> config.json:1:31
      |
    1 | {"max_turns": 0, "data_path": "absent"}
      |                               ^^^^^^^^
      |
      = help: the path is relative to this file or to the working directory

    error: config.json has 3 problems
    --- exit 2
    "#);
}

#[test]
fn every_shell_gets_completions_for_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = rollout(temporary().path(), &["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && script.contains("validate") && script.contains("fail-under"),
            "{shell}"
        );
    }
}
