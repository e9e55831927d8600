//! The phases of a trial: their scripts, variables, files and processes.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use serde_json::{Value, json};

use super::{Ability, Suite};
use crate::{Gate, TestTask};

pub fn a_trial_leaves_the_documented_directory_behind(suite: &Suite) {
    let agent = json!({
        "name": "agent",
        "install": "echo installing; echo careful >&2",
        "execute": "echo working; echo hm >&2; echo trace > /logs/agent/trace.txt; touch /app/done",
    });
    let task =
        TestTask::new("task").tests("echo testing; echo ok >&2; echo 0.5 > /logs/verifier/reward.txt\n");
    let finished = suite.job().task(task).agent(agent).run().expect(0);
    for (path, content) in [
        ("setup/stdout.txt", "installing\n"),
        ("setup/stderr.txt", "careful\n"),
        ("command/stdout.txt", "working\n"),
        ("command/stderr.txt", "hm\n"),
        ("logs/agent/trace.txt", "trace\n"),
        ("logs/verifier/stdout.txt", "testing\n"),
        ("logs/verifier/stderr.txt", "ok\n"),
        ("logs/verifier/reward.txt", "0.5\n"),
    ] {
        assert_eq!(finished.file(&format!("agent/set/task__1/{path}")), content, "{path}");
    }
    let mut result = finished.trial("agent/set/task__1");
    for section in ["durations", "timestamps"] {
        for value in result[section].as_object_mut().unwrap().values_mut() {
            assert!(!value.is_null(), "every phase ran: {result:#}");
            *value = json!("[time]");
        }
    }
    let environment = &mut result["environment"];
    for fact in ["provider", "id", "image", "network"] {
        assert!(!environment[fact].as_str().unwrap().is_empty(), "{fact}: {environment}");
    }
    let (image, enforced) = (environment["image"].clone(), environment["enforced"].clone());
    // Some providers also say what a kill reaches.
    let limits = environment["enforced"].as_object().unwrap().keys().filter(|name| *name != "killed");
    let limits: Vec<_> = limits.collect();
    assert_eq!(limits, ["cpus", "memory", "pids", "storage"]);
    *environment = json!("[facts]");
    let provenance = &mut result["provenance"];
    assert_eq!((&provenance["image"], &provenance["enforced_limits"]), (&image, &enforced));
    for hash in ["config_hash", "task_content_hash", "agent_install_hash"] {
        assert!(provenance[hash].as_str().unwrap().starts_with("sha256:"), "{hash}: {provenance}");
    }
    *provenance = json!("[facts]");
    let expected = json!({
        "task_name": "task",
        "dataset_name": "set",
        "agent_name": "agent",
        "attempt": 1,
        "task_git_commit_id": null,
        "reward": 0.5,
        "pass_threshold": 1.0,
        "cost": 0.0,
        "environment_cost": 0.0,
        "model_cost": null,
        "error": null,
        "durations": {
            "total_sec": "[time]",
            "environment_setup_sec": "[time]",
            "agent_setup_sec": "[time]",
            "agent_execution_sec": "[time]",
            "verifier_sec": "[time]",
        },
        "timestamps": {
            "started_at": "[time]",
            "environment_setup_started_at": "[time]",
            "environment_setup_ended_at": "[time]",
            "agent_setup_started_at": "[time]",
            "agent_setup_ended_at": "[time]",
            "agent_execution_started_at": "[time]",
            "agent_execution_ended_at": "[time]",
            "verifier_started_at": "[time]",
            "verifier_ended_at": "[time]",
            "ended_at": "[time]",
        },
        "environment": "[facts]",
        "tries": 1,
        "agent_starts": 1,
        "provenance": "[facts]",
    });
    // Compared as text, so that the order of the keys is checked too.
    assert_eq!(format!("{result:#}"), format!("{expected:#}"));
    assert_eq!(finished.result()["mean_reward"], 0.5);
    assert_eq!(finished.file("config.json").parse::<Value>().unwrap()["n_attempts"], 1);
}

pub fn agent_scripts_get_the_documented_variables(suite: &Suite) {
    let script = "cat $ROLLOUT_TASK_INSTRUCTION; env | grep ^ROLLOUT_ | sort; pwd; env | grep ^MY_";
    let agent = json!({"name": "agent", "execute": script, "env": {"MY_MODEL": "${MODEL}", "MY_N": 3}});
    let job = suite
        .job()
        .task(TestTask::new("task").config("[agent]\ntimeout_sec = 40\n"))
        .agent(agent)
        .env("MODEL", "tiny")
        .set("timeout_multiplier", json!(1.5))
        .set("instruction_path", json!("/app/order.md"));
    let finished = job.run().expect(0);
    let expected = format!(
        "Create the file /app/done.\n\
         ROLLOUT_AGENT_TIMEOUT_SEC=60\n\
         ROLLOUT_ATTEMPT=1\n\
         ROLLOUT_JOB={}\n\
         ROLLOUT_TASK_INSTRUCTION=/app/order.md\n\
         ROLLOUT_TRIAL=agent/set/task__1\n\
         /app\n\
         MY_MODEL=tiny\n\
         MY_N=3\n",
        job.name()
    );
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), expected);
}

pub fn variables_of_the_agent_are_not_those_of_the_verifier(suite: &Suite) {
    let agent = json!({"name": "agent", "execute": "true", "env": {"AGENT_SETTING": "a"}});
    let task = TestTask::new("task")
        .config("[verifier.env]\nJUDGE = \"${JUDGE:-none}\"\nLEVEL = \"task\"\n")
        .tests("env | grep -E '^(AGENT_SETTING|JUDGE|LEVEL|EXTRA)=' | sort; echo 1 > /logs/verifier/reward.txt\n");
    let job = suite.job().task(task).agent(agent).set("verifier/env", json!({"LEVEL": "job", "EXTRA": "x"}));
    let finished = job.run().expect(0);
    assert_eq!(
        finished.file("agent/set/task__1/logs/verifier/stdout.txt"),
        "EXTRA=x\nJUDGE=none\nLEVEL=job\n"
    );
}

pub fn a_missing_variable_in_a_task_fails_that_task_alone(suite: &Suite) {
    let task = TestTask::new("needy").config("[verifier.env]\nKEY = \"${NOT_SET_ANYWHERE}\"\n");
    let finished = suite.job().task(TestTask::new("good")).task(task).oracle().run().expect(1);
    assert_eq!(finished.trial("oracle/set/good__1")["reward"], 1.0);
    let result = finished.trial("oracle/set/needy__1");
    assert_eq!(result["error"]["type"], "task_invalid");
    assert!(result["error"]["message"].as_str().unwrap().contains("NOT_SET_ANYWHERE"));
}

pub fn tests_and_solution_are_out_of_the_agents_sight(suite: &Suite) {
    let script = "ls -A /tests 2>/dev/null; ls -d /oracle /solution 2>/dev/null; find / -name 'test.sh' -path '*tests*' 2>/dev/null | grep -v /usr/ ; true";
    let finished = suite.job().task(TestTask::new("task")).script(script).run().expect(0);
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "");
}

pub fn the_oracle_finds_its_solution_under_both_names(suite: &Suite) {
    let task = TestTask::new("task").file("solution/data/answer.txt", "42\n").solution(
        "cat /oracle/data/answer.txt /solution/data/answer.txt; readlink /solution; touch /app/done\n",
    );
    let finished = suite.job().task(task).oracle().run().expect(0);
    assert_eq!(finished.file("oracle/set/task__1/command/stdout.txt"), "42\n42\n/oracle\n");
    assert_eq!(finished.trial("oracle/set/task__1")["reward"], 1.0);
}

pub fn the_oracle_fails_a_task_without_a_solution_and_other_agents_do_not(suite: &Suite) {
    let task = TestTask::new("task").without("solution/solve.sh");
    let finished = suite.job().task(task).oracle().script("touch /app/done").run().expect(1);
    let result = finished.trial("oracle/set/task__1");
    assert_eq!(result["error"]["type"], "task_invalid");
    assert!(result["error"]["message"].as_str().unwrap().contains("solution/solve.sh"));
    assert_eq!(finished.trial("agent/set/task__1")["reward"], 1.0);
}

pub fn the_nop_agent_does_nothing_and_earns_nothing(suite: &Suite) {
    let finished = suite.job().task(TestTask::new("task")).agent(json!({"name": "nop"})).run().expect(0);
    let result = finished.trial("nop/set/task__1");
    assert_eq!(result["reward"], 0.0);
    assert_eq!(result["error"], Value::Null);
}

pub fn a_script_of_hundreds_of_kilobytes_runs(suite: &Suite) {
    let script = format!("{}touch /app/done\n", ": a line of padding\n".repeat(20_000));
    assert!(script.len() > 300_000);
    let job = suite
        .job()
        .task(TestTask::new("task"))
        .file("agents/long.sh", &script)
        .agent(json!({"name": "agent", "execute_file": "agents/long.sh"}));
    assert_eq!(job.run().expect(0).trial("agent/set/task__1")["reward"], 1.0);
}

pub fn an_install_file_is_found_beside_the_job(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    let agent = json!({"name": "agent", "install_file": "install.sh", "execute": "greet"});
    let job = suite
        .job()
        .task(TestTask::new("task"))
        .file(
            "install.sh",
            "printf '#!/bin/sh\\necho hello from $0\\n' > /usr/local/bin/greet; chmod +x /usr/local/bin/greet",
        )
        .agent(agent);
    let finished = job.run().expect(0);
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "hello from /usr/local/bin/greet\n");
}

pub fn shell_variables_in_scripts_belong_to_the_shell(suite: &Suite) {
    let finished = suite.job().task(TestTask::new("task")).script("X=1; echo ${X} ${Y:-two}").run().expect(0);
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "1 two\n");
}

pub fn usage_reported_by_the_agent_is_in_the_result(suite: &Suite) {
    let usage = r#"{"input_tokens": 100, "output_tokens": 20, "cost_usd": 0.25, "anything": "else"}"#;
    let finished = suite
        .job()
        .task(TestTask::new("task"))
        .script(&format!("echo '{usage}' > /logs/agent/usage.json"))
        .run()
        .expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!(result["usage"]["input_tokens"], 100);
    assert_eq!(result["usage"]["cached_tokens"], Value::Null);
    assert_eq!(
        (&result["cost"], &result["environment_cost"], &result["model_cost"]),
        (&json!(0.25), &json!(0.0), &json!(0.25))
    );
    assert_eq!(finished.result()["total_cost"], 0.25);
}

pub fn without_a_report_the_model_cost_is_unknown_and_not_zero(suite: &Suite) {
    let finished = suite
        .job()
        .task(TestTask::new("task"))
        .script("echo nonsense > /logs/agent/usage.json")
        .run()
        .expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["model_cost"], &result["environment_cost"]), (&Value::Null, &json!(0.0)));
    assert!(result["notes"][0].as_str().unwrap().contains("usage.json"), "{result:#}");
}

pub fn output_files_grow_while_the_trial_runs(suite: &Suite) {
    let gate = Gate::new();
    let job = suite.job().task(TestTask::new("task")).script(&format!("echo early\n{}", gate.wait()));
    let running = job.start();
    let arrival = running.arrival(&gate);
    let path = job.dir().join("agent/set/task__1/command/stdout.txt");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(600);
    while fs::read_to_string(&path).unwrap_or_default() != "early\n" {
        assert!(std::time::Instant::now() < deadline, "the output never came");
        std::thread::yield_now();
    }
    arrival.pass();
    running.finish().expect(0);
}

pub fn scripts_need_no_executable_bit(suite: &Suite) {
    let job = suite
        .job()
        .task(
            TestTask::new("task")
                .file("tests/lib/more.sh", "echo 1\n")
                .tests("/tests/lib/more.sh > /logs/verifier/reward.txt\n"),
        )
        .oracle();
    for script in ["tests/test.sh", "solution/solve.sh"] {
        fs::set_permissions(job.root().join("set/task").join(script), fs::Permissions::from_mode(0o644))
            .unwrap();
    }
    assert_eq!(job.run().expect(0).trial("oracle/set/task__1")["reward"], 1.0, "and others keep theirs");
}

pub fn modes_and_links_of_solution_and_tests_are_kept(suite: &Suite) {
    let list = |dir: &str| format!("cd {dir}; stat -c '%n %a' data tool; readlink link; cat link\n");
    let mut task = TestTask::new("task")
        .solution(&(list("/oracle") + "touch /app/done\n"))
        .tests(&(list("/tests") + "echo 1 > /logs/verifier/reward.txt\n"));
    for dir in ["solution", "tests"] {
        task = task.file(&format!("{dir}/data"), "data\n").file(&format!("{dir}/tool"), "#!/bin/bash\n");
    }
    let job = suite.job().task(task).oracle();
    for dir in ["solution", "tests"] {
        let dir = job.root().join("set/task").join(dir);
        fs::set_permissions(dir.join("data"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(dir.join("tool"), fs::Permissions::from_mode(0o751)).unwrap();
        symlink("data", dir.join("link")).unwrap();
    }
    let finished = job.run().expect(0);
    for file in ["command/stdout.txt", "logs/verifier/stdout.txt"] {
        let said = finished.file(&format!("oracle/set/task__1/{file}"));
        assert_eq!(said, "data 600\ntool 751\ndata\ndata\n", "{file}");
    }
}
