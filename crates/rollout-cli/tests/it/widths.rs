//! The commands that show results, on terminals of 60, 80 and 200 columns, in a pipe, and without colours.

use std::process::Command;

use rollout_testkit::{ModelReply, ModelServer, TestJob, TestTask};
use serde_json::json;

use crate::eval::benchmark;

/// A job with long names, long output and a long error.
fn job() -> TestJob {
    let words = "a line of output that is longer than every narrow terminal ".repeat(4);
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "an-agent-with-quite-a-long-name", "execute": format!("echo '{words}'")}))
        .agent(json!({"name": "broken", "execute": format!("echo '{words}' >&2; exit 3")}))
        .task(TestTask::new("a-task-with-an-even-longer-name"));
    job.run().expect(1);
    let trial = "jobs/job/broken/set/a-task-with-an-even-longer-name__1";
    job.rollout(&["note", trial, &words, "--tag", "broken", "--tag", "needs-another-look"]).expect(0);
    job
}

/// Runs a command on a terminal of this width.
fn on_terminal(job: &TestJob, columns: usize, command: &str, variables: &[(&str, &str)]) -> String {
    let rollout = env!("CARGO_BIN_EXE_rollout");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("stty cols {columns} rows 24; {rollout} {command}; true")]);
    shell.current_dir(job.root()).env_remove("NO_COLOR").env("TERM", "xterm").env("HOME", job.root());
    shell.envs(variables.iter().copied());
    crate::screen::typed(shell, "").replace("\r\n", "\n")
}

const TRIAL: &str = "jobs/job/broken/set/a-task-with-an-even-longer-name__1";

/// The lines that are too wide, other than commands and paths, which are copied.
fn too_wide(text: &str, columns: usize) -> Vec<&str> {
    let text = text.lines().filter(|line| !line.contains("rollout ") && !line.contains("jobs/job"));
    text.filter(|line| line.chars().count() >= columns).collect()
}

#[test]
fn lines_fit_into_a_terminal_of_any_width() {
    let job = job();
    for columns in [60, 80, 200] {
        for command in [
            "list jobs",
            "list jobs/job",
            &format!("show {TRIAL}"),
            &format!("note {TRIAL}"),
            "note jobs/job",
        ] {
            let seen = on_terminal(&job, columns, command, &[("NO_COLOR", "1")]);
            assert_eq!(too_wide(&seen, columns), [""; 0], "{command} at {columns}: {seen}");
            let is_shown = seen.contains("broken") || seen.contains("finished");
            assert!(is_shown, "{command} at {columns}: {seen}");
        }
    }
    let jobs = |columns| on_terminal(&job, columns, "list jobs", &[("NO_COLOR", "1")]);
    assert!(jobs(80).contains("pass rate") && jobs(60).contains("pass rate"), "{}", jobs(60));
    assert!(jobs(200).contains("agents and datasets"), "{}", jobs(200));
    // A narrow terminal has a short date, and loses less useful columns first.
    for (columns, columns_shown) in [
        (80, &["started", "status", "done", "pass rate", "cost"][..]),
        (60, &["started", "status", "done", "pass rate", "cost"]),
    ] {
        let seen = jobs(columns);
        for column in columns_shown {
            assert!(seen.contains(column), "{column} at {columns}: {seen}");
        }
    }
    let started = |columns| {
        let lines = jobs(columns);
        let line = lines.lines().find(|line| line.starts_with("job  ") && line.contains("finished"));
        let words: Vec<String> = line.unwrap().split_whitespace().map(str::to_owned).collect();
        words[1..3].join(" ")
    };
    let short = jiff::Timestamp::now().strftime("%m-").to_string();
    let is_short = |text: &str| text.starts_with(&short) && text.len() == "01-15 10:30".len();
    assert!(is_short(&started(60)) && started(200).ends_with("Z finished"), "{}", jobs(60));
    // A narrow terminal loses the start of a name, never its end.
    let trials = on_terminal(&job, 60, "list jobs/job", &[("NO_COLOR", "1")]);
    assert!(trials.contains("longer-name__1 "), "{trials}");
}

#[test]
fn the_summary_of_a_job_fits_into_a_terminal_of_any_width() {
    let job = job();
    for columns in [60, 80, 200] {
        // Without a live display, which would be between the lines.
        let seen =
            on_terminal(&job, columns, "resume jobs/job --rerun error", &[("NO_COLOR", "1"), ("CI", "true")]);
        let summary = &seen[seen.find("\n\n").unwrap_or(0)..];
        assert_eq!(too_wide(summary, columns), [""; 0], "{columns}: {seen}");
        for part in ["pass rate", "agent_execution_failed", "rollout show", "1 failed"] {
            assert!(summary.contains(part), "{part} at {columns}: {seen}");
        }
    }
}

#[test]
fn unsolved_rollouts_and_questions_are_named_in_a_terminal_of_any_width() {
    let said = "I computed the sum of all numbers of the list, one by one, and the answer must be 7";
    let server = ModelServer::always(ModelReply::text(said));
    let question = json!({"id": "q1", "question": "What is 4+4?", "answer": "8"});
    let model = json!({"name": "model", "model": {"name": "scripted", "base_url": server.url()}});
    let interaction = json!({"dataset": [question], "rubric": [{"match": "numeric"}]});
    let rollouts = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(model)
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    let questions = benchmark(&server, &[question], json!({"evaluation_metric": "exact_match"}));
    rollouts.rollout(&["validate", "job.yaml"]).expect(0);
    for columns in [60, 80, 200] {
        for (job, command, trial) in [
            (&rollouts, "run job.yaml", "jobs/job/model/sums/0__1"),
            (&questions, "eval config.json", "jobs/job/m/questions/q1__1"),
        ] {
            let _ = std::fs::remove_dir_all(job.dir());
            // Without a live display, which would be between the lines.
            let plain = [("CI", "true")];
            let with_colours = on_terminal(job, columns, command, &plain);
            let _ = std::fs::remove_dir_all(job.dir());
            let seen = on_terminal(job, columns, command, &[plain[0], ("NO_COLOR", "1")]);
            assert!(
                with_colours.contains("\u{1b}[33munsolved") && !seen.contains('\u{1b}'),
                "{with_colours}"
            );
            let summary = &seen[seen.find("\n\n").unwrap_or(0)..];
            assert_eq!(too_wide(summary, columns), [""; 0], "{columns}: {seen}");
            let on_one_line = summary.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(on_one_line.contains("must be 7 (expected: 8)"), "{columns}: {seen}");
            assert!(summary.contains(&format!("rollout show {trial}")), "{columns}: {seen}");
            let shown = on_terminal(job, columns, &format!("show {trial}"), &[("NO_COLOR", "1")]);
            assert_eq!(too_wide(&shown, columns), [""; 0], "{columns}: {shown}");
            assert!(shown.contains("expected      8"), "{columns}: {shown}");
        }
    }
}

#[test]
fn a_pipe_gets_whole_lines_and_no_colours() {
    let job = job();
    for arguments in
        [&["list"][..], &["list", "jobs/job"], &["show", TRIAL], &["note", TRIAL], &["logs", TRIAL]]
    {
        let seen = job.rollout(arguments).expect(0);
        let text = seen.stdout() + &seen.stderr();
        assert!(!text.contains('\u{1b}') && !text.contains('…'), "{arguments:?}: {text}");
    }
    let listed = job.rollout(&["list", "jobs/job"]).expect(0).stdout();
    assert!(
        listed.contains("an-agent-with-quite-a-long-name/set/a-task-with-an-even-longer-name__1"),
        "{listed}"
    );
    let noted = job.rollout(&["note", TRIAL]).expect(0).stdout();
    assert_eq!(noted.lines().count(), 2, "a comment is not wrapped in a pipe: {noted}");
}

#[test]
fn a_terminal_has_colours_unless_they_are_unwanted() {
    let job = job();
    for command in ["list jobs/job", &format!("show {TRIAL}"), &format!("note {TRIAL}")] {
        let with = on_terminal(&job, 80, command, &[]);
        assert!(with.contains("\u{1b}["), "{command}: {with}");
        let without = on_terminal(&job, 80, command, &[("NO_COLOR", "1")]);
        assert!(!without.contains('\u{1b}'), "{command}: {without}");
        let plain = |text: &str| anstream::adapter::strip_str(text).to_string();
        assert_eq!(plain(&with), without, "{command}");
    }
    // The output of an agent is what it printed, in any width.
    let logs = on_terminal(&job, 60, &format!("logs {TRIAL}"), &[("NO_COLOR", "1")]);
    assert!(logs.contains("longer than every narrow terminal a line of output"), "{logs}");
}
