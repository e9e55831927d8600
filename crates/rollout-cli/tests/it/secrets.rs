//! Secrets reach the scripts they are meant for, and no file or output.

use std::fs;

use rollout_testkit::{TestJob, TestTask, files_holding, until};
use serde_json::json;

const SECRET: &str = "sk-test-0123456789abcdef";

#[test]
fn a_secret_is_in_no_file_of_the_job_and_in_no_output() {
    let agent = json!({
        "name": "agent",
        "install": "echo installing with $API_KEY",
        "execute": "echo $API_KEY; echo $API_KEY >&2; echo key=$API_KEY > /logs/agent/trace.txt; exit 1",
        "env": {"API_KEY": "${THE_KEY}", "MODEL": "${THE_MODEL}"},
    });
    let task = TestTask::new("task")
        .config("[verifier.env]\nJUDGE_KEY = \"${THE_KEY}\"\n")
        .tests("echo $JUDGE_KEY; echo $JUDGE_KEY > /logs/verifier/judge.txt; exit 1\n");
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(task)
        .agent(agent)
        .set("verifier", json!({"after_agent_error": "run"}))
        .set("log_level", json!("trace"))
        .env("THE_KEY", SECRET)
        .env("THE_MODEL", "a-model-of-some-name");
    let finished = job.rollout(&["run", "job.yaml", "--output", "json"]).expect(1);
    assert_eq!(files_holding(&job.dir(), SECRET), Vec::<String>::new());
    assert!(!finished.stdout().contains(SECRET) && !finished.stderr().contains(SECRET));
    assert_eq!(finished.file("agent/set/task__1/setup/stdout.txt"), "installing with [redacted]\n");
    assert_eq!(finished.file("agent/set/task__1/logs/agent/trace.txt"), "key=[redacted]\n");
    assert_eq!(finished.file("agent/set/task__1/logs/verifier/judge.txt"), "[redacted]\n");
    assert!(finished.trial("agent/set/task__1")["error"]["message"].as_str().unwrap().contains("[redacted]"));
    let config: serde_json::Value = finished.file("config.json").parse().unwrap();
    assert_eq!(config["agents"][0]["env"]["API_KEY"], "${THE_KEY}");
}

#[test]
fn a_key_written_into_the_job_file_is_masked_in_the_record_and_redacted() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout")).task(TestTask::new("task")).agent(
        json!({"name": "agent", "execute": "echo $OPENAI_API_KEY", "env": {"OPENAI_API_KEY": SECRET}}),
    );
    let finished = job.run().expect(0);
    assert_eq!(files_holding(&job.dir(), SECRET), Vec::<String>::new());
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "[redacted]\n");
}

#[test]
fn values_that_are_no_secrets_stay_readable() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(TestTask::new("task"))
        .agent(json!({"name": "agent", "execute": "echo $MODEL", "env": {"MODEL": "${THE_MODEL}"}}))
        .env("THE_MODEL", "a-model-of-some-name");
    let finished = job.run().expect(0);
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "a-model-of-some-name\n");
}

#[test]
fn a_secret_given_on_the_command_line_is_not_recorded_and_resume_says_so() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(TestTask::new("task"))
        .agent(json!({"name": "agent", "execute": "true", "env": {"API_KEY": "x"}}));
    let set = format!("agents.0.env.API_KEY={SECRET}");
    job.rollout(&["run", "job.yaml", "--set", &set]).expect(0);
    assert_eq!(files_holding(&job.dir(), SECRET), Vec::<String>::new());
    let refused = job.rollout(&["resume", "jobs/job"]).expect(2);
    assert!(refused.stderr().contains("agents.0.env.API_KEY"), "{}", refused.stderr());
}

#[test]
fn names_and_links_with_secrets_stay_inside_and_planted_links_are_not_followed() {
    let script = "cd /logs/agent; touch $API_KEY.txt; ln -s $API_KEY target; echo $API_KEY > a; echo fine > b
                  mkdir dir; echo key=$API_KEY > dir/c; ln -s ../verifier/reward.txt a.redacting; touch /app/done";
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(TestTask::new("task"))
        .agent(json!({"name": "agent", "execute": script, "env": {"API_KEY": "${THE_KEY}"}}))
        .env("THE_KEY", SECRET);
    let finished = job.run().expect(0);
    let mut names: Vec<_> = fs::read_dir(job.dir().join("agent/set/task__1/logs/agent"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["a", "a.redacting", "b", "dir"]);
    assert_eq!(finished.file("agent/set/task__1/logs/agent/a"), "[redacted]\n");
    assert_eq!(finished.file("agent/set/task__1/logs/agent/dir/c"), "key=[redacted]\n");
    assert_eq!(finished.file("agent/set/task__1/logs/verifier/reward.txt"), "1\n");
    let result = finished.trial("agent/set/task__1");
    assert!(result["notes"].to_string().contains("2 entries"), "{result:#}");
}

#[test]
fn a_kill_while_logs_are_collected_leaves_no_secret_on_the_disk() {
    let script =
        "mkdir /logs/agent/many; cd /logs/agent/many; yes key=$API_KEY | head -c 60000000 | split -b 3000";
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(TestTask::new("task"))
        .agent(json!({"name": "agent", "execute": script, "env": {"API_KEY": "${THE_KEY}"}}))
        .env("THE_KEY", SECRET);
    let running = job.start();
    let many = job.dir().join("agent/set/task__1/logs/agent/many");
    until("files are copied", || fs::read_dir(&many).is_ok_and(|entries| entries.count() > 10));
    running.signal("-KILL");
    running.finish();
    assert_eq!(files_holding(&job.dir(), SECRET), Vec::<String>::new());
}

#[test]
fn a_secret_that_a_service_prints_in_two_writes_is_redacted() {
    let (start, end) = SECRET.split_at(10);
    let script = format!(
        "(sleep 0.2; printf '{start}'; sleep 0.2; printf '{end}\\n'; touch /app/printed) & touch /app/done"
    );
    let job =
        TestJob::new(env!("CARGO_BIN_EXE_rollout"))
            .task(TestTask::new("task").tests(
                "until [ -e /app/printed ]; do sleep 0.05; done; echo 1 > /logs/verifier/reward.txt\n",
            ))
            .agent(json!({"name": "agent", "execute": script, "env": {"API_KEY": "${THE_KEY}"}}))
            .env("THE_KEY", SECRET);
    let finished = job.run().expect(0);
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "[redacted]\n");
}
