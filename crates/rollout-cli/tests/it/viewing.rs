//! `list`, `show` and `logs`: what happened in a job, on the terminal and for programs.

use std::fs;

use rollout_testkit::{Gate, ModelReply, ModelServer, TestJob, TestTask};
use serde_json::{Value, json};

/// A job with a solved, an unsolved and a failed trial.
fn three() -> TestJob {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "good", "execute": "echo working; touch /app/done"}))
        .agent(json!({"name": "idle", "execute": "echo 'nothing to do' >&2"}))
        .agent(json!({"name": "broken", "execute": "echo trying; printf 'cannot find \\033[2Jthe tool\\n' >&2; exit 3"}))
        .task(TestTask::new("task"));
    job.run().expect(1);
    job
}

/// The output with times and dates replaced. The widths of columns depend on times, so they are replaced too.
fn timeless(text: &str) -> String {
    let is_time = |word: &str| {
        let number = word.trim_end_matches([',', ';']);
        let is_span = number.strip_suffix('s').is_some_and(|rest| rest.parse::<f64>().is_ok());
        is_span || (number.ends_with('Z') && number.contains('T'))
    };
    let line = |line: &str| {
        let cells = line.split("  ").filter(|cell| !cell.is_empty()).map(|cell| {
            let words = cell.split(' ').filter(|word| !word.is_empty());
            words.map(|word| if is_time(word) { "[time]" } else { word }).collect::<Vec<_>>().join(" ")
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn jobs_are_listed_with_their_progress_and_rates() {
    let job = three();
    insta::assert_snapshot!(timeless(&job.rollout(&["list"]).expect(0).stdout()), @"
    job  started  status  done  failed  pass rate  cost  agents and datasets
    job  [time]  finished  3/3  1  33.3%  —  good, idle, broken on set

    1 job; `rollout list jobs/job` lists trials
    ");
    let line: Value =
        serde_json::from_str(&job.rollout(&["list", "jobs", "--json"]).expect(0).stdout()).unwrap();
    assert_eq!((&line["job"], &line["status"]), (&json!("job"), &json!("finished")));
    assert_eq!((&line["planned_trials"], &line["finished_trials"]), (&json!(3), &json!(3)));
    assert_eq!((&line["failed_trials"], &line["agents"]), (&json!(1), &json!(["good", "idle", "broken"])));
}

#[test]
fn a_directory_without_jobs_is_no_error_and_a_missing_one_is() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"));
    fs::create_dir(job.root().join("empty")).unwrap();
    assert_eq!(job.rollout(&["list", "empty"]).expect(0).stdout(), "no jobs in empty\n");
    insta::assert_snapshot!(job.rollout(&["list"]).expect(2).stderr(), @"
    error: cannot read the directory jobs: No such file or directory (os error 2)
    hint: pass a job directory, or the directory that contains jobs
    ");
    insta::assert_snapshot!(job.rollout(&["list", "empty", "--status", "failed"]).expect(2).stderr(), @"
    error: empty is not a job directory
    hint: --agent, --task, --status, --tag and --sort select trials of one job
    ");
}

#[test]
fn trials_are_listed_filtered_and_sorted() {
    let job = three();
    insta::assert_snapshot!(timeless(&job.rollout(&["list", "jobs/job"]).expect(0).stdout()), @"
    status  trial  reward  time  cost  evidence
    solved  good/set/task__1  1  [time]  —
    unsolved  idle/set/task__1  0  [time]  —
    failed  broken/set/task__1  —  [time]  —  agent_execution_failed: the agent's execute script exited with code 3 — cannot find the tool

    3 trials: 1 solved, 1 unsolved, 1 failed
    `rollout show jobs/job/good/set/task__1` shows a trial
    ");
    let listed = |arguments: &[&str]| {
        let all = [&["list", "jobs/job", "--json"], arguments].concat();
        let lines = job.rollout(&all).expect(0).stdout();
        let line =
            |line: &str| serde_json::from_str::<Value>(line).unwrap()["trial"].as_str().unwrap().to_owned();
        lines.lines().map(line).collect::<Vec<_>>()
    };
    assert_eq!(listed(&["--status", "failed"]), ["broken/set/task__1"]);
    assert_eq!(
        listed(&["--status", "solved", "--status", "unsolved"]),
        ["good/set/task__1", "idle/set/task__1"]
    );
    assert_eq!(listed(&["--status", "failed,unsolved"]), ["idle/set/task__1", "broken/set/task__1"]);
    assert_eq!(listed(&["--agent", "b*", "--agent", "i*"]), ["idle/set/task__1", "broken/set/task__1"]);
    assert_eq!(listed(&["--task", "other"]), [""; 0]);
    let by_reward = listed(&["--sort", "reward"]);
    assert_eq!(by_reward, ["idle/set/task__1", "good/set/task__1", "broken/set/task__1"]);
}

/// A job of agents that report what they used. The slowest is the cheapest.
fn priced() -> TestJob {
    let agent = |name: &str, cost: &str, script: &str| {
        let usage = format!(
            r#"{{"input_tokens": 1200, "cached_tokens": 200, "output_tokens": 34, "cost_usd": {cost}}}"#
        );
        json!({"name": name, "execute": format!("{script}; echo '{usage}' > /logs/agent/usage.json")})
    };
    let tests = r#"#!/bin/sh
echo 'checked 3 files'
echo 'one is missing' >&2
echo '{"reward": 0.5, "style": 0.25}' > /logs/verifier/reward.json
"#;
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(agent("cheap", "0.01", "sleep 1.2"))
        .agent(agent("dear", "2.5", "true"))
        .agent(json!({"name": "free", "execute": "sleep 0.6"}))
        .agent(json!({"name": "broken", "execute": "exit 3"}))
        .task(TestTask::new("task").tests(tests));
    job.run().expect(1);
    job
}

#[test]
fn trials_are_sorted_by_time_by_cost_and_by_status() {
    let job = priced();
    let sorted = |by: &str| {
        let lines = job.rollout(&["list", "jobs/job", "--json", "--sort", by]).expect(0).stdout();
        let agent =
            |line: &str| serde_json::from_str::<Value>(line).unwrap()["agent"].as_str().unwrap().to_owned();
        lines.lines().map(agent).collect::<Vec<_>>()
    };
    assert_eq!(sorted("time")[..2], ["cheap", "free"]);
    assert_eq!(sorted("cost"), ["dear", "cheap", "free", "broken"]);
    assert_eq!(sorted("status"), ["cheap", "dear", "free", "broken"]);
    assert_eq!(sorted("plan"), ["cheap", "dear", "free", "broken"]);
}

#[test]
fn a_trial_is_shown_with_its_rewards_its_tokens_and_what_its_tests_printed() {
    let job = priced();
    let shown = job.rollout(&["show", "jobs/job/dear/set/task__1"]).expect(0).stdout();
    for part in [
        "dear/set/task__1  unsolved, reward 0.5\n",
        "rewards      style 0.25\n",
        "model        1200 tokens in (200 cached), 34 tokens out, $2.50\n",
        "\nverifier output (end of stdout.txt)\n  checked 3 files\n",
        "\nverifier output (end of stderr.txt)\n  one is missing\n",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
}

#[test]
fn a_failed_trial_shows_its_error_its_output_and_what_to_do_next() {
    let job = three();
    let shown = job.rollout(&["show", "jobs/job/broken/set/task__1"]).expect(0).stdout();
    insta::assert_snapshot!(timeless(&shown), @"
    broken/set/task__1  failed
    error  agent_execution_failed
    the agent's execute script exited with code 3
    last lines of command/stderr.txt:
    cannot find the tool
    started  [time]
    phases  environment [time] install [time] agent [time] in all [time]
    environment  native, network host

    agent output (end of stdout.txt)
    trying

    files  jobs/job/broken/set/task__1
    output  rollout logs jobs/job/broken/set/task__1
    run again  rollout reproduce jobs/job/broken/set/task__1
    comment  rollout note jobs/job/broken/set/task__1 'a comment' --tag broken
    ");
}

#[test]
fn a_trial_is_found_by_a_pattern_that_matches_only_it() {
    let job = three();
    let shown = job.rollout(&["show", "jobs/job/g*/set/task__1"]).expect(0).stdout();
    assert!(shown.starts_with("good/set/task__1  solved, reward 1"), "{shown}");
    insta::assert_snapshot!(job.rollout(&["show", "jobs/job/*/*/*"]).expect(2).stderr(), @"
    error: jobs/job/*/*/* matches 3 trials
    hint: pass one of them, such as jobs/job/good/set/task__1, jobs/job/idle/set/task__1, jobs/job/broken/set/task__1
    ");
    insta::assert_snapshot!(job.rollout(&["show", "jobs/job/good/set/task__2"]).expect(2).stderr(), @"
    error: the job jobs/job has no trial good/set/task__2
    hint: `rollout list jobs/job` lists its trials
    ");
    insta::assert_snapshot!(job.rollout(&["show", "jobs/job"]).expect(2).stderr(), @"
    error: jobs/job is a job, not a trial
    hint: `rollout list jobs/job` lists its trials
    ");
    insta::assert_snapshot!(job.rollout(&["show", "jobs/other/good/set/task__1"]).expect(2).stderr(), @"
    error: jobs/other/good/set/task__1 is not in a job directory
    hint: pass <job directory>/<agent>/<dataset>/<task>__<attempt>; `rollout list` lists the jobs
    ");
}

#[test]
fn logs_are_what_a_phase_printed_byte_by_byte() {
    let job = three();
    let logs = |arguments: &[&str]| {
        job.rollout(&[&["logs", "jobs/job/broken/set/task__1"], arguments].concat()).expect(0)
    };
    assert_eq!(
        (logs(&[]).stdout(), logs(&[]).stderr()),
        ("trying\n".to_owned(), "cannot find \u{1b}[2Jthe tool\n".to_owned())
    );
    assert_eq!(logs(&["--phase", "verifier"]).stderr(), "broken/set/task__1 has no output of its tests\n");
}

#[test]
fn the_log_of_a_running_trial_is_followed_to_its_end() {
    let gate = Gate::new();
    let script = format!("echo first\n{}echo last", gate.wait());
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "agent", "execute": script}))
        .task(TestTask::new("task"));
    let running = job.start();
    let arrival = gate.arrival();

    let listed: Value =
        serde_json::from_str(&job.rollout(&["list", "jobs/job", "--json"]).expect(0).stdout()).unwrap();
    assert_eq!(listed["status"], "running");
    let jobs: Value = serde_json::from_str(&job.rollout(&["list", "--json"]).expect(0).stdout()).unwrap();
    assert_eq!((&jobs["status"], &jobs["finished_trials"]), (&json!("running"), &json!(0)));
    let of_status = |status: &str| {
        let listed = job.rollout(&["list", "jobs/job", "--json", "--status", status]).expect(0).stdout();
        listed.lines().count()
    };
    assert_eq!(["running", "missing", "solved"].map(of_status), [1, 0, 0]);
    let shown = job.rollout(&["show", "jobs/job/agent/set/task__1"]).expect(0).stdout();
    assert!(shown.contains("\nphase        execute\n"), "{shown}");
    assert!(
        shown.contains("running") && shown.contains("rollout logs jobs/job/agent/set/task__1 -f"),
        "{shown}"
    );
    assert!(shown.contains("running for") && shown.contains("\n  first\n"), "{shown}");
    assert_eq!(job.rollout(&["logs", "jobs/job/agent/set/task__1"]).expect(0).stdout(), "first\n");

    let log = fs::File::create(job.root().join("followed")).unwrap();
    let mut follower =
        job.command(&["logs", "jobs/job/agent/set/task__1", "--follow"]).stdout(log).spawn().unwrap();
    arrival.pass();
    running.finish().expect(0);
    assert!(follower.wait().unwrap().success());
    assert_eq!(fs::read_to_string(job.root().join("followed")).unwrap(), "first\nlast\n");
}

#[test]
fn the_log_of_a_trial_is_followed_into_its_next_try() {
    let gate = Gate::new();
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .script(&format!("echo first try\n{}touch /app/done", gate.wait()))
        .task(TestTask::new("task"));
    let running = job.start();
    let arrival = gate.arrival();
    let followed = job.root().join("followed");
    let mut follower = job
        .command(&["logs", "jobs/job/agent/set/task__1", "--follow"])
        .stdout(fs::File::create(&followed).unwrap())
        .spawn()
        .unwrap();
    while fs::read_to_string(&followed).unwrap() != "first try\n" {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // As after a try that the infrastructure made fail: its files are moved away, and the next try has its own.
    let trial = job.dir().join("agent/set/task__1");
    fs::create_dir_all(trial.join("tries/1")).unwrap();
    fs::rename(trial.join("command"), trial.join("tries/1/command")).unwrap();
    fs::create_dir(trial.join("command")).unwrap();
    fs::write(trial.join("command/stdout.txt"), "second try\n").unwrap();
    arrival.pass();
    running.finish().expect(0);
    assert!(follower.wait().unwrap().success());
    assert_eq!(fs::read_to_string(&followed).unwrap(), "first try\nsecond try\n");
}

#[test]
fn the_log_of_a_trial_that_runs_again_is_that_of_the_new_run() {
    let gate = Gate::new();
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .script(&format!("date +%s%N\n{}exit 1", gate.wait()))
        .task(TestTask::new("task"));
    let running = job.start();
    gate.arrival().pass();
    running.finish().expect(1);
    let output = job.dir().join("agent/set/task__1/command/stdout.txt");
    let old = fs::read_to_string(&output).unwrap();
    let running = job.start_with(&["resume", "jobs/job", "--rerun", "error", "--output", "json"]);
    let arrival = gate.arrival();
    let new = job.rollout(&["logs", "jobs/job/agent/set/task__1"]).expect(0).stdout();
    assert!(!new.is_empty() && new != old, "{new}");
    let followed = job.root().join("followed");
    let mut follower = job
        .command(&["logs", "jobs/job/agent/set/task__1", "--follow"])
        .stdout(fs::File::create(&followed).unwrap())
        .spawn()
        .unwrap();
    arrival.pass();
    running.finish().expect(1);
    assert!(follower.wait().unwrap().success());
    assert_eq!([&fs::read_to_string(&followed).unwrap(), &fs::read_to_string(&output).unwrap()], [&new; 2]);
}

#[test]
fn the_conversation_of_a_model_is_printed_message_by_message() {
    let server = ModelServer::turns([
        ModelReply::tool_call("bash", &json!({"command": "touch /app/done; echo made"})),
        ModelReply::text("Done."),
    ]);
    let model =
        json!({"name": "model", "model": {"name": "scripted", "base_url": server.url(), "max_retries": 0}});
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout")).agent(model).task(TestTask::new("task"));
    job.run().expect(0);
    let said = job.rollout(&["logs", "jobs/job/model/set/task__1", "--conversation"]).expect(0).stdout();
    let turns = &said[said.find("user\n").unwrap()..];
    insta::assert_snapshot!(turns, @r#"
    user
      Create the file /app/done.

    assistant
      call bash({"command":"touch /app/done; echo made"})

    tool
      made
      [exit code 0]

    assistant
      Done.
    "#);
    let shown = job.rollout(&["show", "jobs/job/model/set/task__1"]).expect(0).stdout();
    assert!(shown.contains("1 tool call") && shown.contains("last: Done."), "{shown}");
    let failure =
        three().rollout(&["logs", "jobs/job/good/set/task__1", "--conversation"]).expect(2).stderr();
    insta::assert_snapshot!(failure, @"
    error: no conversation of good/set/task__1 is recorded
    hint: only models, and agents behind the model gateway, have conversations
    ");
}

#[test]
fn the_conversation_of_a_running_model_is_followed_to_its_end() {
    let gate = Gate::new();
    let command = format!("touch /app/done; {}", gate.wait());
    let server = ModelServer::turns([
        ModelReply::tool_call("bash", &json!({"command": command})),
        ModelReply::text("Done."),
    ]);
    let model =
        json!({"name": "model", "model": {"name": "scripted", "base_url": server.url(), "max_retries": 0}});
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout")).agent(model).task(TestTask::new("task"));
    let running = job.start();
    let arrival = gate.arrival();

    let logs = ["logs", "jobs/job/model/set/task__1", "--conversation"];
    let said = || String::from_utf8(job.command(&logs).output().unwrap().stdout).unwrap();
    while !said().contains("call bash") {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let shown = job.rollout(&["show", "jobs/job/model/set/task__1"]).expect(0).stdout();
    assert!(shown.contains("1 tool call") && shown.contains("--conversation -f"), "{shown}");
    assert!(shown.contains("1 call, ") && shown.contains(" tokens in, "), "{shown}");
    let hint = job.rollout(&["logs", "jobs/job/model/set/task__1"]).expect(0).stderr();
    insta::assert_snapshot!(hint, @"
    model/set/task__1 has no output of its agent
    `rollout logs jobs/job/model/set/task__1 --conversation` prints its messages
    ");
    let file = fs::File::create(job.root().join("followed")).unwrap();
    let mut follower = job.command(&[&logs[..], &["-f"]].concat()).stdout(file).spawn().unwrap();
    arrival.pass();
    running.finish().expect(0);
    assert!(follower.wait().unwrap().success());
    let followed = fs::read_to_string(job.root().join("followed")).unwrap();
    assert!(followed.ends_with("assistant\n  Done.\n\n"), "{followed}");
    assert_eq!(followed, said());
    let trial = job.root().join("jobs/job/model/set/task__1");
    assert!(trial.join("trajectory.json").exists() && !trial.join("conversation.jsonl").exists());
}

#[test]
fn unsolved_trials_are_listed_with_their_last_line_of_evidence() {
    let tests = "#!/bin/sh\necho 'line 7: wrong total'\necho 0 > /logs/verifier/reward.txt\n";
    let job =
        TestJob::new(env!("CARGO_BIN_EXE_rollout")).script("true").task(TestTask::new("task").tests(tests));
    job.run().expect(0);
    let listed = job.rollout(&["list", "jobs/job"]).expect(0).stdout();
    assert!(listed.contains("line 7: wrong total"), "{listed}");
}

/// A job of rollouts of which the first is solved, and the others are not.
fn rollouts() -> (ModelServer, TestJob) {
    let server = ModelServer::scripted(|request| match &*request.last_text() {
        "What is 2+3?" => ModelReply::text("5"),
        "What is 4+4?" => ModelReply::text("I add them.\n\nSo it is 9, I think."),
        _ => ModelReply::empty(),
    });
    let sums = json!([
        {"question": "What is 2+3?", "answer": "5"},
        {"question": "What is 4+4?", "answer": "8"},
        {"question": "What is 1+1?", "answer": "2"},
    ]);
    let interaction = json!({"dataset": sums, "rubric": [{"match": "numeric"}]});
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "model", "model": {"name": "scripted", "base_url": server.url()}}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    (server, job)
}

#[test]
fn unsolved_rollouts_are_named_listed_and_shown_with_what_they_ended_with() {
    let (server, job) = rollouts();
    let summary = job.run().expect(0).stdout().replace(&server.url(), "[url]");
    let named = &summary[summary.find("unsolved\n").unwrap()..summary.find("\n3 trials in").unwrap()];
    insta::assert_snapshot!(named, @"
    unsolved
      1 trial: assistant: I add them. So it is 9, I think. (expected: 8)
        rollout show jobs/job/model/sums/1__1
      1 trial: agent_execution_failed: EmptyModelResponseError: invalid response of model `scripted` at [url]/chat/completions: the response is empty: no text, no tool call, no reasoning (finish reason: stop)
        rollout show jobs/job/model/sums/2__1
    ");
    let listed = job.rollout(&["list", "jobs/job", "--status", "unsolved"]).expect(0).stdout();
    insta::assert_snapshot!(timeless(&listed.replace(&server.url(), "[url]")), @"
    status  trial  reward  time  cost  evidence
    unsolved  model/sums/1__1  0  [time]  —  assistant: I add them. So it is 9, I think. (expected: 8)
    unsolved  model/sums/2__1  0  [time]  —  agent_execution_failed: EmptyModelResponseError: invalid response of model `scripted` at [url]/chat/completions: the response is empty: no text, no tool call, no reasoning (finish reason: stop)

    2 of 3 trials: 2 unsolved
    `rollout show jobs/job/model/sums/1__1` shows a trial
    ");
    let shown = job.rollout(&["show", "jobs/job/model/sums/1__1"]).expect(0).stdout();
    assert!(shown.contains("expected      8") && shown.contains("last: So it is 9"), "{shown}");
    // There is no output to follow, so this ends at once.
    let hint = job.rollout(&["logs", "jobs/job/model/sums/1__1", "-f"]).expect(0).stderr();
    assert!(hint.contains("--conversation -f` prints its messages"), "{hint}");
}
