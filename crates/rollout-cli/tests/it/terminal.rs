//! Shells in environments, typed into as a person would.

use std::{fs, path::Path, process::Command};

use rollout_testkit::{Gate, TestJob, TestTask};
use serde_json::json;

use crate::screen::{Screen, typed};

fn rollout(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollout"));
    let path = std::env::var_os("PATH").unwrap();
    command.current_dir(dir).args(args).env_clear().env("PATH", path).env("HOME", dir).env("TERM", "xterm");
    // Tests must not use an engine of the developer.
    command.env("DOCKER_HOST", "unix:///nonexistent/engine.sock");
    command
}

#[test]
fn a_shell_opens_where_the_agent_would_work_without_the_tests() {
    let dir = tempfile::tempdir().unwrap();
    assert!(rollout(dir.path(), &["init", "task", "hello"]).status().unwrap().success());
    let keys = "pwd; cat $ROLLOUT_TASK_INSTRUCTION; ls -d /tests; exit\r";
    let seen = typed(rollout(dir.path(), &["shell", "hello"]), keys);
    for line in ["/app\r\n", "Write the line `Hello, world!`", "'/tests': No such file"] {
        assert!(seen.contains(line), "{line:?} is not in {seen}");
    }
    let seen = typed(rollout(dir.path(), &["shell", "hello", "--with-tests"]), "echo /tests/*; exit\r");
    assert!(seen.contains("/tests/test.sh\r\n"), "{seen}");
    let run = dir.path().join(".cache/rollout/run");
    assert!(
        fs::read_dir(&run).unwrap().all(|entry| !entry.unwrap().path().is_dir()),
        "the environment is gone"
    );
}

#[test]
fn attach_opens_what_a_trial_left_and_keeps_what_is_changed_there() {
    let dir = tempfile::tempdir().unwrap();
    assert!(rollout(dir.path(), &["init", "job", "."]).status().unwrap().success());
    let run =
        ["job.yaml", "--agent", "oracle", "--set", "name=job", "--set", "environment.preserve_env=always"];
    let output = rollout(dir.path(), &run).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("rollout attach jobs/job/oracle/tasks/hello__1"), "{text}");

    let attach = || rollout(dir.path(), &["attach", "jobs/job/oracle/tasks/hello__1"]);
    let seen = typed(attach(), "cat greeting.txt; echo more > more.txt; exit\r");
    assert!(seen.contains("Hello, world!\r\n"), "{seen}");
    let seen = typed(attach(), "cat more.txt; exit\r");
    assert!(seen.contains("more\r\n"), "{seen}");

    assert!(rollout(dir.path(), &["clean", "--preserved"]).status().unwrap().success());
    let output = attach().output().unwrap();
    assert_eq!(output.status.code(), Some(2), "what was cleaned cannot be opened");
}

#[test]
fn a_job_on_a_terminal_is_shown_live_and_without_colours_if_asked() {
    let dir = tempfile::tempdir().unwrap();
    assert!(rollout(dir.path(), &["init", "job", "."]).status().unwrap().success());
    let mut command = rollout(dir.path(), &["job.yaml"]);
    command.env("NO_COLOR", "1");
    let seen = typed(command, "");
    assert!(seen.contains("0/3 · 0 completed · 0 failed · 0:00"), "{seen}");
    assert!(seen.contains("3 completed, 0 failed"), "{seen}");
    assert!(!seen.contains("[1/3]"), "a finished trial needs no line: {seen}");
    assert!(!seen.contains("\u{1b}[32m") && !seen.contains("\u{1b}[1m"), "a colour: {seen}");
    let seen = typed(rollout(dir.path(), &["job.yaml"]), "");
    assert!(seen.contains("\u{1b}[32m"), "{seen}");
}

#[test]
fn the_live_display_survives_a_resize() {
    let gate = Gate::new();
    let agent = "an-agent-whose-name-alone-is-wider-than-a-narrow-terminal";
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": agent, "execute": gate.wait()}))
        .task(TestTask::new("task").tests("echo 1 > /logs/verifier/reward.txt\n"));
    let mut command = job.command(&["run", "job.yaml"]);
    command.env("TERM", "xterm").env_remove("CI");
    let mut screen = Screen::start(command, Some(120));
    let arrival = gate.arrival();
    let names_agent = |lines: &[&str]| lines.iter().any(|line| line.contains(agent));
    screen.until(names_agent);
    screen.resize(40);
    // Frames that were drawn before are still to be read. A frame has a line for the trial and one for the job, and both
    // are filled up to the width of the terminal.
    let fits = |lines: &[&str]| {
        let frames: Vec<_> = lines.iter().filter(|line| line.contains("0/1 ·")).collect();
        let last = &frames[frames.len().saturating_sub(3)..];
        let is_narrow = |frame: &&&str| frame.chars().count() <= 2 * 40 && frame.contains("an-agent-w");
        last.len() == 3 && last.iter().all(is_narrow)
    };
    screen.until(fits);
    screen.resize(120);
    screen.until(names_agent);
    arrival.pass();
    let seen = screen.end();
    assert!(seen.contains("1 completed, 0 failed"), "{seen}");
}

#[test]
fn a_shell_without_a_terminal_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(rollout(dir.path(), &["init", "task", "hello"]).status().unwrap().success());
    let output = rollout(dir.path(), &["shell", "hello"]).output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (output.status.code(), reported.as_str()),
        (Some(2), "error: a shell needs a terminal, but stdin is not a terminal\n")
    );
}
