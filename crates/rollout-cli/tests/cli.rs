//! The command as a person meets it: help, mistakes, and what needs no engine.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Output};

use assert_cmd::Command;

fn rollout(dir: &Path, args: &[&str]) -> Output {
    Command::cargo_bin("rollout")
        .unwrap()
        .current_dir(dir)
        .args(args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", dir)
        .env("COLUMNS", "100")
        .output()
        .unwrap()
}

/// What the command printed and how it ended.
fn seen(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut seen = text(&output.stdout);
    if !output.stderr.is_empty() {
        seen.push_str("--- stderr\n");
        seen.push_str(&text(&output.stderr));
    }
    format!("{seen}--- exit {}", output.status.code().unwrap())
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn help_teaches_the_first_steps() {
    let output = rollout(temporary().path(), &["--help"]);
    insta::assert_snapshot!(seen(&output), @"
    Run agents against tasks in isolated environments, and score them

    `rollout job.yaml` is short for `rollout run job.yaml`.

    Usage: rollout <COMMAND>

    Commands:
      run          Run a job
      resume       Continue a job that was cut short
      validate     Check a job, a task or a dataset without running anything
      shell        Open a shell in a fresh environment of a task
      attach       Open a shell in the environment that a trial left behind
      init         Make a job or a task that runs as it is
      schema       Print the JSON Schema of a file, for editors
      doctor       Tell what this machine can run, and what to change where it cannot
      clean        Remove what ended runs left behind
      completions  Print a completion script for a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Examples:
      rollout init job my-eval               Make a job that runs as it is
      rollout my-eval/job.yaml               Run it
      rollout my-eval/job.yaml --dry-run     See what would run
      rollout resume jobs/2026-01-15__10-30-00
                                             Go on after Ctrl-C or a crash
      rollout doctor                         See what this machine can run

    Exit status:
      0    every trial completed, whatever its reward
      1    some trial failed, or --fail-under was not met
      2    the command, the configuration or the engine is wrong, and nothing ran
      130  cancelled
    --- exit 0
    ");
}

#[test]
fn help_of_run_groups_its_options() {
    let output = rollout(temporary().path(), &["run", "--help"]);
    insta::assert_snapshot!(seen(&output), @r#"
    Run a job

    Usage: rollout run [OPTIONS] <JOB>

    Arguments:
      <JOB>
              The job file

    Options:
          --dry-run
              Show the plan and run nothing

          --strict
              Refuse the job if any of its tasks is invalid, or means something that Rollout would
              ignore

      -h, --help
              Print help (see a summary with '-h')

    What runs:
          --agent <GLOB>
              Run only agents whose name matches; can be given several times

          --task <GLOB>
              Run only tasks whose name matches; can be given several times

          --dataset <GLOB>
              Run only datasets whose name matches; can be given several times

          --limit <N>
              Run at most this many trials, in the order of the plan

    How it runs:
          --attempts <N>
              Attempt each task this often, instead of n_attempts

          --concurrency <N>
              Run this many trials at the same time, instead of n_concurrent_trials

          --set <KEY=VALUE>
              Replace a value of the job file, by its dotted key; can be given several times

    What comes out:
          --fail-under <RATE=BOUND>
              Exit with 1 if a rate over completed trials is below this: pass_rate=0.9 or
              mean_reward=0.5

          --junit <FILE>
              Write a JUnit report; a reward below 1 is a failure, a failed trial an error

          --output <FOR>
              Choose who reads the output

              Possible values:
              - human: A person: a live display on a terminal, lines in a pipe or in CI
              - json:  A program: one event per line
              
              [default: human]

    Examples:
      rollout job.yaml --agent oracle --task 'sort-*'
                                             Run a part of the job
      rollout job.yaml --limit 5 --attempts 1 --set environment.preserve_env=always
                                             Look closer at a few trials
      rollout job.yaml --fail-under pass_rate=0.9 --junit report.xml
                                             Use the job as a gate in CI
      rollout job.yaml --output json | jq -c 'select(.event == "trial_finished")'
                                             Follow it with a program
    --- exit 0
    "#);
}

#[test]
fn mistakes_in_arguments_exit_with_2_and_say_what_is_possible() {
    let dir = temporary();
    let said = |args: &[&str]| {
        let output = rollout(dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap().lines().next().unwrap_or_default().to_owned()
    };
    insta::assert_snapshot!(said(&["jobb"]), @"error: unrecognized subcommand 'jobb'");
    insta::assert_snapshot!(said(&["job.yaml", "--fail-under", "cost=1"]), @r#"error: invalid value 'cost=1' for '--fail-under <RATE=BOUND>': unknown rate "cost": it can be pass_rate or mean_reward"#);
    insta::assert_snapshot!(said(&["job.yaml", "--output", "xml"]), @"error: invalid value 'xml' for '--output <FOR>'");
    insta::assert_snapshot!(said(&["resume", "jobs/x", "--rerun", "all"]), @"error: invalid value 'all' for '--rerun <WHICH>'");
    insta::assert_snapshot!(said(&["init", "agent", "x"]), @"error: invalid value 'agent' for '<KIND>'");
}

#[test]
fn init_makes_a_job_that_is_valid_and_overwrites_nothing() {
    let dir = temporary();
    insta::assert_snapshot!(seen(&rollout(dir.path(), &["init", "job", "my-eval"])), @"
    made my-eval/job.yaml and my-eval/tasks/hello

    run it      rollout my-eval/job.yaml
    add a task  rollout init task my-eval/tasks/<name>
    --- exit 0
    ");
    insta::assert_snapshot!(seen(&rollout(dir.path(), &["validate", "my-eval/job.yaml", "--strict"])), @"--- exit 2");
    insta::assert_snapshot!(seen(&rollout(dir.path(), &["init", "job", "my-eval"])), @"
    --- stderr
    error: my-eval exists already
    hint: choose another name, or remove it first
    --- exit 2
    ");
}

#[test]
fn init_makes_a_task_whose_scripts_can_be_run() {
    let dir = temporary();
    insta::assert_snapshot!(seen(&rollout(dir.path(), &["init", "task", "tasks/sort"])), @"
    made the task tasks/sort

    say what to do     tasks/sort/instruction.md
    say what is right  tasks/sort/tests/test.sh
    check it           rollout validate tasks/sort
    --- exit 0
    ");
    for script in ["solution/solve.sh", "tests/test.sh"] {
        let mode = fs::metadata(dir.path().join("tasks/sort").join(script)).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{script}");
    }
    fs::write(dir.path().join("taken"), "").unwrap();
    insta::assert_snapshot!(seen(&rollout(dir.path(), &["init", "task", "taken"])), @"
    --- stderr
    error: taken exists already
    hint: choose another name, or remove it first
    --- exit 2
    ");
    insta::assert_snapshot!(seen(&rollout(dir.path(), &["init", "task", ".."])), @"
    --- stderr
    error: .. cannot be the name of a task
    cause: a name cannot be empty
    --- exit 2
    ");
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
