//! What a trial does: its phases, its variables, its files and its reward.

use std::fs;

use rollout_testkit::{Gate, TestJob, TestTask};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

#[test]
fn a_trial_leaves_the_documented_directory_behind() {
    let agent = json!({
        "name": "agent",
        "install": "echo installing; echo careful >&2",
        "execute": "echo working; echo hm >&2; echo trace > /logs/agent/trace.txt; touch /app/done",
    });
    let task =
        TestTask::new("task").tests("echo testing; echo ok >&2; echo 0.5 > /logs/verifier/reward.txt\n");
    let finished = job().task(task).agent(agent).run().expect(0);
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
            assert!(!value.is_null(), "every phase ran");
            *value = json!("[time]");
        }
    }
    insta::assert_json_snapshot!(result, {
        ".environment.id" => "[id]",
        ".environment.image" => "[image]",
        ".environment.enforced" => "[limits]",
    }, @r#"
    {
      "task_name": "task",
      "dataset_name": "set",
      "agent_name": "agent",
      "attempt": 1,
      "task_git_commit_id": null,
      "reward": 0.5,
      "cost": 0.0,
      "environment_cost": 0.0,
      "model_cost": null,
      "error": null,
      "durations": {
        "total_sec": "[time]",
        "environment_setup_sec": "[time]",
        "agent_setup_sec": "[time]",
        "agent_execution_sec": "[time]",
        "verifier_sec": "[time]"
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
        "ended_at": "[time]"
      },
      "environment": {
        "provider": "native",
        "id": "[id]",
        "image": "[image]",
        "network": "host",
        "enforced": "[limits]"
      },
      "tries": 1
    }
    "#);
    assert_eq!(finished.result()["mean_reward"], 0.5);
    assert_eq!(finished.file("config.json").parse::<Value>().unwrap()["n_attempts"], 1);
}

#[test]
fn agent_scripts_get_the_documented_variables() {
    let script = "cat $ROLLOUT_TASK_INSTRUCTION; env | grep ^ROLLOUT_ | sort; pwd; env | grep ^MY_";
    let agent = json!({"name": "agent", "execute": script, "env": {"MY_MODEL": "${MODEL}", "MY_N": 3}});
    let job = job()
        .task(TestTask::new("task").config("[agent]\ntimeout_sec = 40\n"))
        .agent(agent)
        .env("MODEL", "tiny")
        .set("timeout_multiplier", json!(1.5))
        .set("instruction_path", json!("/app/order.md"));
    let finished = job.run().expect(0);
    insta::assert_snapshot!(finished.file("agent/set/task__1/command/stdout.txt"), @"
    Create the file /app/done.
    ROLLOUT_AGENT_TIMEOUT_SEC=60
    ROLLOUT_ATTEMPT=1
    ROLLOUT_JOB=job
    ROLLOUT_TASK_INSTRUCTION=/app/order.md
    ROLLOUT_TRIAL=agent/set/task__1
    /app
    MY_MODEL=tiny
    MY_N=3
    ");
}

#[test]
fn variables_of_the_agent_are_not_those_of_the_verifier() {
    let agent = json!({"name": "agent", "execute": "true", "env": {"AGENT_SETTING": "a"}});
    let task = TestTask::new("task")
        .config("[verifier.env]\nJUDGE = \"${JUDGE:-nobody}\"\nLEVEL = \"task\"\n")
        .tests("env | grep -E '^(AGENT_SETTING|JUDGE|LEVEL|EXTRA)=' | sort; echo 1 > /logs/verifier/reward.txt\n");
    let job = job().task(task).agent(agent).set("verifier/env", json!({"LEVEL": "job", "EXTRA": "x"}));
    let finished = job.run().expect(0);
    assert_eq!(
        finished.file("agent/set/task__1/logs/verifier/stdout.txt"),
        "EXTRA=x\nJUDGE=nobody\nLEVEL=job\n"
    );
}

#[test]
fn a_missing_variable_in_a_task_fails_that_task_alone() {
    let task = TestTask::new("needy").config("[verifier.env]\nKEY = \"${NOT_SET_ANYWHERE}\"\n");
    let finished = job().task(TestTask::new("good")).task(task).oracle().run().expect(1);
    assert_eq!(finished.trial("oracle/set/good__1")["reward"], 1.0);
    let result = finished.trial("oracle/set/needy__1");
    assert_eq!(result["error"]["type"], "task_invalid");
    assert!(result["error"]["message"].as_str().unwrap().contains("NOT_SET_ANYWHERE"));
}

#[test]
fn tests_and_solution_are_out_of_the_agents_sight() {
    let script = "ls -d /tests /oracle /solution 2>/dev/null; find / -name 'test.sh' -path '*tests*' 2>/dev/null | grep -v /usr/ ; true";
    let finished = job().task(TestTask::new("task")).script(script).run().expect(0);
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "");
}

#[test]
fn the_oracle_finds_its_solution_under_both_names() {
    let task = TestTask::new("task").file("solution/data/answer.txt", "42\n").solution(
        "cat /oracle/data/answer.txt /solution/data/answer.txt; readlink /solution; touch /app/done\n",
    );
    let finished = job().task(task).oracle().run().expect(0);
    assert_eq!(finished.file("oracle/set/task__1/command/stdout.txt"), "42\n42\n/oracle\n");
    assert_eq!(finished.trial("oracle/set/task__1")["reward"], 1.0);
}

#[test]
fn the_oracle_fails_a_task_without_a_solution_and_other_agents_do_not() {
    let task = TestTask::new("task").without("solution/solve.sh");
    let finished = job().task(task).oracle().script("touch /app/done").run().expect(1);
    let result = finished.trial("oracle/set/task__1");
    assert_eq!(result["error"]["type"], "task_invalid");
    assert!(result["error"]["message"].as_str().unwrap().contains("solution/solve.sh"));
    assert_eq!(finished.trial("agent/set/task__1")["reward"], 1.0);
}

#[test]
fn the_nop_agent_does_nothing_and_earns_nothing() {
    let finished = job().task(TestTask::new("task")).agent(json!({"name": "nop"})).run().expect(0);
    let result = finished.trial("nop/set/task__1");
    assert_eq!(result["reward"], 0.0);
    assert_eq!(result["error"], Value::Null);
}

#[test]
fn a_script_of_hundreds_of_kilobytes_runs() {
    let script = format!("{}touch /app/done\n", ": a line of padding\n".repeat(20_000));
    assert!(script.len() > 300_000);
    let job = job()
        .task(TestTask::new("task"))
        .file("agents/long.sh", &script)
        .agent(json!({"name": "agent", "execute_file": "agents/long.sh"}));
    assert_eq!(job.run().expect(0).trial("agent/set/task__1")["reward"], 1.0);
}

#[test]
fn an_install_file_is_found_beside_the_job() {
    let agent = json!({"name": "agent", "install_file": "install.sh", "execute": "greet"});
    let job = job()
        .task(TestTask::new("task"))
        .file("install.sh", "printf '#!/bin/sh\\necho hello from $0\\n' > /usr/local/bin/greet; chmod +x /usr/local/bin/greet")
        .agent(agent);
    let finished = job.run().expect(0);
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "hello from /usr/local/bin/greet\n");
}

#[test]
fn shell_variables_in_scripts_belong_to_the_shell() {
    let finished = job().task(TestTask::new("task")).script("X=1; echo ${X} ${Y:-two}").run().expect(0);
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "1 two\n");
}

#[test]
fn what_the_agent_reports_to_have_used_goes_into_the_result() {
    let usage = r#"{"input_tokens": 100, "output_tokens": 20, "cost_usd": 0.25, "anything": "else"}"#;
    let finished = job()
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

#[test]
fn without_a_report_the_model_cost_is_unknown_and_not_zero() {
    let finished =
        job().task(TestTask::new("task")).script("echo nonsense > /logs/agent/usage.json").run().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["model_cost"], &result["environment_cost"]), (&Value::Null, &json!(0.0)));
    assert!(result["notes"][0].as_str().unwrap().contains("usage.json"), "{result:#}");
}

#[test]
fn reward_json_gives_a_reward_and_named_rewards() {
    let task =
        TestTask::new("task").tests("echo '{\"reward\": 0.75, \"speed\": 2}' > /logs/verifier/reward.json\n");
    let result = job().task(task).oracle().run().expect(0).trial("oracle/set/task__1");
    assert_eq!(result["reward"], 0.75);
    assert_eq!(result["rewards"], json!({"speed": 2.0}));
}

#[test]
fn reward_txt_wins_over_reward_json() {
    let task = TestTask::new("task").tests("cd /logs/verifier; echo 0 > reward.txt; echo 1 > reward.json\n");
    assert_eq!(job().task(task).oracle().run().expect(0).trial("oracle/set/task__1")["reward"], 0.0);
}

#[test]
fn a_reward_that_the_agent_forged_is_gone_before_the_tests_run() {
    let script = "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 555 /tests
                  echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json; chmod 500 /logs/verifier";
    let task = TestTask::new("task").tests("ls /logs/verifier\n");
    let finished = job().task(task).script(script).run().expect(1);
    assert_eq!(finished.trial("agent/set/task__1")["error"]["type"], "verifier_reward_missing");
    assert_eq!(finished.file("agent/set/task__1/logs/verifier/stdout.txt"), "");
}

#[test]
fn directories_that_the_agent_made_links_are_directories_again() {
    let script = "rm -rf /logs/verifier /tests; mkdir /elsewhere; ln -s /elsewhere /logs/verifier; ln -s /elsewhere /tests";
    let finished = job()
        .task(TestTask::new("task").tests("ls /elsewhere; echo 1 > /logs/verifier/reward.txt\n"))
        .script(script)
        .run()
        .expect(0);
    assert_eq!(finished.file("agent/set/task__1/logs/verifier/stdout.txt"), "");
}

#[test]
fn a_daemon_that_rewrites_the_reward_is_ended_where_the_job_says_so() {
    let script =
        "setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.txt; done' >/dev/null 2>&1 & echo started";
    let task = TestTask::new("task").tests("sleep 0.3; echo 0 > /logs/verifier/reward.txt\n");
    let job = job().task(task).script(script).set("verifier", json!({"agent_processes": "kill"}));
    let result = job.run().expect(0).trial("agent/set/task__1");
    assert_eq!(result["reward"], 0.0);
    assert!(result["survivors"][0].as_str().unwrap().contains("reward.txt"), "{result:#}");
}

#[test]
fn a_service_that_the_tests_need_stays_by_default() {
    let script = "mkfifo /app/ask /app/answer; (while read -r x < /app/ask; do echo got $x > /app/answer; echo served; done) & echo up";
    let task = TestTask::new("task").tests(
        "echo ping > /app/ask; read -r reply < /app/answer\n\
         if [ \"$reply\" = 'got ping' ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
    );
    let finished = job().task(task).script(script).run().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    assert!(!result["survivors"].as_array().unwrap().is_empty());
    // The service could still write its log: it was not cut off when the agent's script ended.
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "up\nserved\n");
}

#[test]
fn an_agent_error_can_be_graded_all_the_same() {
    let job = job()
        .task(TestTask::new("task"))
        .script("touch /app/done; exit 9")
        .set("verifier", json!({"after_agent_error": "run"}));
    let finished = job.run().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!(result["error"]["type"], "agent_execution_failed");
    assert_eq!(result["reward"], 1.0);
    assert_eq!(finished.result()["completed_trials"], 1);
}

#[test]
fn the_exit_code_of_the_tests_can_be_ignored() {
    let task = TestTask::new("task").tests("echo 0 > /logs/verifier/reward.txt; exit 1\n");
    let job = job().task(task).oracle().set("verifier", json!({"ignore_exit_code": true}));
    let result = job.run().expect(0).trial("oracle/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(0.0), &Value::Null));
}

#[test]
fn compat_harbor_grades_failed_agents_and_ignores_the_exit_code_of_tests() {
    let task = TestTask::new("task").tests("echo 0.5 > /logs/verifier/reward.txt; exit 1\n");
    let job = job().task(task).script("exit 1").set("compat", json!("harbor"));
    let result = job.run().expect(0).trial("agent/set/task__1");
    assert_eq!(
        (&result["reward"], &result["error"]["type"]),
        (&json!(0.5), &json!("agent_execution_failed"))
    );
}

#[test]
fn without_a_verifier_a_trial_completes_without_a_reward() {
    let job = job()
        .task(TestTask::new("task").tests("exit 1\n"))
        .oracle()
        .set("verifier", json!({"disable": true}));
    let finished = job.run().expect(0);
    let result = finished.trial("oracle/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&Value::Null, &Value::Null));
    assert_eq!(result["durations"]["verifier_sec"], Value::Null);
    let job = finished.result();
    assert_eq!(
        (&job["completed_trials"], &job["pass_rate"], &job["mean_reward"]),
        (&json!(1), &json!(0.0), &json!(0.0))
    );
}

#[test]
fn the_verifiers_timeout_is_the_override_under_the_ceiling_times_the_multiplier() {
    for (verifier, multiplier, expected) in [
        (json!({}), 1.0, "0.4 seconds"),
        (json!({"override_timeout_sec": 0.2}), 1.0, "0.2 seconds"),
        (json!({"override_timeout_sec": 0, "max_timeout_sec": 0}), 1.0, "0.4 seconds"),
        (json!({"max_timeout_sec": 0.1}), 3.0, "0.3 seconds"),
        (json!({"override_timeout_sec": 0.2, "max_timeout_sec": 0.3}), 2.0, "0.4 seconds"),
    ] {
        let task = TestTask::new("task").tests("sleep 600\n").config("[verifier]\ntimeout_sec = 0.4\n");
        let job = job()
            .task(task)
            .oracle()
            .set("verifier", verifier.clone())
            .set("timeout_multiplier", json!(multiplier));
        let result = job.run().expect(1).trial("oracle/set/task__1");
        let message = result["error"]["message"].as_str().unwrap();
        assert!(message.contains(expected), "{verifier} × {multiplier}: {message}");
    }
}

#[test]
fn output_files_grow_while_the_trial_runs() {
    let gate = Gate::new();
    let job = job().task(TestTask::new("task")).script(&format!("echo early\n{}", gate.wait()));
    let running = job.start();
    let arrival = gate.arrival();
    let path = job.dir().join("agent/set/task__1/command/stdout.txt");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while fs::read_to_string(&path).unwrap_or_default() != "early\n" {
        assert!(std::time::Instant::now() < deadline, "the output never came");
        std::thread::yield_now();
    }
    arrival.pass();
    running.finish().expect(0);
}

#[test]
fn an_image_is_built_once_for_all_its_trials_and_again_only_when_forced() {
    let task = TestTask::new("task")
        .dockerfile(
            "FROM test\nWORKDIR /app\nRUN date +%N > /stamp; cat /proc/sys/kernel/random/uuid >> /stamp\n",
        )
        .tests("cat /stamp; echo 1 > /logs/verifier/reward.txt\n");
    let job = job().task(task).oracle().set("n_attempts", json!(4));
    let stamps = |name: &str| -> Vec<String> {
        let finished = job.rollout(&["run", "job.yaml", "--set", &format!("name={name}")]).expect(0);
        drop(finished);
        (1..=4)
            .map(|n| {
                fs::read_to_string(
                    job.root().join(format!("jobs/{name}/oracle/set/task__{n}/logs/verifier/stdout.txt")),
                )
                .unwrap()
            })
            .collect()
    };
    let first = stamps("first");
    assert!(first.iter().all(|stamp| stamp == &first[0]), "{first:?}");
    assert_eq!(stamps("second"), first, "the image is kept between jobs");
    let forced = job
        .rollout(&["run", "job.yaml", "--set", "name=forced", "--set", "environment.force_build=true"])
        .expect(0);
    drop(forced);
    let anew = fs::read_to_string(job.root().join("jobs/forced/oracle/set/task__1/logs/verifier/stdout.txt"))
        .unwrap();
    assert_ne!(anew, first[0]);
}

#[test]
fn force_build_builds_the_dockerfile_even_where_the_task_names_an_image() {
    let task = TestTask::new("task")
        .config("[environment]\ndocker_image = \"some/image\"\n")
        .solution("true\n")
        .dockerfile("FROM test\nWORKDIR /app\nRUN touch /from-dockerfile\n")
        .tests("ls /from-dockerfile && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n");
    let job = job().task(task).oracle();
    assert_eq!(job.run().expect(0).trial("oracle/set/task__1")["reward"], 0.0, "the image alone is enough");
    let forced = job
        .rollout(&["run", "job.yaml", "--set", "name=forced", "--set", "environment.force_build=true"])
        .expect(0);
    drop(forced);
    let result = fs::read_to_string(job.root().join("jobs/forced/oracle/set/task__1/result.json")).unwrap();
    assert_eq!(result.parse::<Value>().unwrap()["reward"], 1.0);
}

#[test]
fn environments_are_preserved_as_the_policy_says() {
    for (setting, value, kept) in [
        ("preserve_env", json!("never"), [false, false]),
        ("preserve_env", json!("always"), [true, true]),
        ("preserve_env", json!("on_failure"), [false, true]),
        ("preserveEnv", json!(true), [true, true]),
        ("preserveEnv", json!(false), [false, false]),
    ] {
        let job = job()
            .task(TestTask::new("a-solved"))
            .task(TestTask::new("b-unsolved").solution("true\n"))
            .oracle()
            .set(&format!("environment/{setting}"), value.clone());
        let finished = job.run().expect(0);
        let found = ["a-solved", "b-unsolved"].map(|task| {
            let result = finished.trial(&format!("oracle/set/{task}__1"));
            result["environment"].get("preserved").is_some()
        });
        assert_eq!(found, kept, "{setting}: {value}");
        job.rollout(&["clean", "--preserved"]).expect(0);
        assert_eq!(job.environments(), Vec::<std::path::PathBuf>::new(), "{setting}: {value}");
    }
}
