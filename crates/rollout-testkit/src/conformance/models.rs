//! A model as the agent: its tools run in the environment of its trial.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::time::Duration;

use serde_json::{Value, json};

use super::{Ability, Suite, verdict::KILL_ENVIRONMENT};
use crate::{ModelReply, ModelServer, TestTask, long_enough};

fn agent(server: &ModelServer) -> Value {
    json!({
        "name": "model",
        "model": {"name": "scripted", "base_url": server.url(), "max_retries": 0},
        "env": {"MY_SETTING": "of the agent"},
    })
}

/// The answers of the tools to each turn of the last conversation.
fn answers(server: &ModelServer) -> Vec<String> {
    let requests = server.requests();
    let messages = requests.last().unwrap().messages().iter();
    messages
        .filter(|message| message["role"] == "tool")
        .map(|message| message["content"].as_str().unwrap().to_owned())
        .collect()
}

pub fn a_model_works_with_its_tools_where_scripts_of_agents_run(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    let patch =
        "*** Begin Patch\n*** Update File: notes/plan.txt\n@@\n first\n-second\n+done\n*** End Patch\n";
    let server = ModelServer::turns([
        ModelReply::tool_call(
            "bash",
            &json!({"command": "pwd; id -un; echo $MY_SETTING; echo $ROLLOUT_TRIAL; cat $ROLLOUT_TASK_INSTRUCTION"}),
        ),
        ModelReply::tool_call("write_file", &json!({"path": "notes/plan.txt", "content": "first\nsecond\n"})),
        ModelReply::tool_call("apply_patch", &json!({"patch": patch})),
        ModelReply::tool_call("read_file", &json!({"path": "/app/notes/plan.txt"})),
        ModelReply::tool_call(
            "bash",
            &json!({"command": "stat -c %U notes/plan.txt; touch $(tail -n 1 notes/plan.txt); exit 3"}),
        ),
        ModelReply::text("The file is there."),
    ]);
    let dockerfile = "FROM test\nRUN mkdir /app && chown nobody /app\nUSER nobody\nWORKDIR /app\n";
    let task = TestTask::new("task").dockerfile(dockerfile);
    let job = suite.job().task(task).agent(agent(&server));
    let finished = job.run().expect(0);
    let [place, written, patched, read, made] = &answers(&server)[..] else {
        panic!("{:?}", answers(&server))
    };
    assert_eq!(
        place,
        "/app\nnobody\nof the agent\nmodel/set/task__1\nCreate the file /app/done.\n[exit code 0]"
    );
    assert!(written.contains("notes/plan.txt") && patched.contains("notes/plan.txt"), "{written} {patched}");
    assert_eq!(read, "first\ndone\n");
    assert_eq!(made, "nobody\n[exit code 3]");
    let result = finished.trial("model/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null), "{result:#}");
    let trajectory: Value = finished.file("model/set/task__1/trajectory.json").parse().unwrap();
    assert_eq!(trajectory["turns"].as_array().unwrap().len(), 6);
    assert_eq!(trajectory["stop_condition"], "no_tools_called");
    job.expect_nothing_left();
}

pub fn a_model_that_has_its_environment_killed_fails_its_own_trial(suite: &Suite) {
    if suite.lacks(Ability::LimitMemory) {
        return;
    }
    let server = ModelServer::turns([
        ModelReply::tool_call("bash", &json!({"command": KILL_ENVIRONMENT})),
        ModelReply::text("It still runs."),
    ]);
    let task = TestTask::new("task")
        .tests("echo 0 > /logs/verifier/reward.txt\n")
        .config("[environment]\nmemory = \"64Mi\"\n");
    let retry = json!({"max_attempts": 3, "initial_delay_ms": 10});
    let job = suite.job().task(task).agent(agent(&server)).set("retry", retry);
    let finished = job.run();
    let result = finished.trial("model/set/task__1");
    assert_eq!(result["tries"], 1, "{result:#}");
    if result["reward"].is_null() {
        assert_eq!(result["error"]["type"], "agent_execution_failed", "{result:#}");
        assert!(result["error"]["message"].as_str().unwrap().contains("memory"), "{result:#}");
    } else {
        // The provider kills only the command.
        assert_eq!((&result["reward"], &result["error"]), (&json!(0.0), &Value::Null), "{result:#}");
    }
    job.expect_nothing_left();
}

pub fn a_model_whose_time_is_up_is_stopped_with_everything_it_started(suite: &Suite) {
    let first = ModelReply::tool_call(
        "bash",
        &json!({"command": "setsid sleep 4321 >/dev/null 2>&1 & touch started"}),
    );
    let tests = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep [4]321' > left\n\
                 [ -e started ] && touch /logs/verifier/started\n\
                 [ $(cat left) = 0 ] && echo 1 > /logs/verifier/reward.txt\n";
    long_enough(Duration::from_secs(5), |timeout| {
        let server = ModelServer::turns([
            first.clone(),
            ModelReply::tool_call("bash", &json!({"command": "sleep 4321"})),
        ]);
        let config = format!("[agent]\ntimeout_sec = {}\n", timeout.as_secs());
        let job = suite
            .job()
            .task(TestTask::new("task").config(&config).tests(tests))
            .agent(agent(&server))
            .set("verifier", json!({"after_agent_error": "run"}));
        let finished = job.run();
        let result = finished.trial("model/set/task__1");
        assert_eq!(result["error"]["type"], "agent_execution_timeout", "{result:#}");
        assert_eq!(result["reward"], 1.0, "{result:#}");
        job.expect_nothing_left();
        job.dir().join("model/set/task__1/logs/verifier/started").exists().then_some(())
    });
}
