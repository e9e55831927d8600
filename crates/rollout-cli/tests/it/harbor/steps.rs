//! Tasks with several steps.

use rollout_testkit::{ModelReply, ModelServer, TestJob, TestTask};
use serde_json::{Value, json};

use super::{docker, graded_by, native, result, task};

/// A task without an instruction of its own, whose steps are solved by creating `/app/<step>`.
pub(super) fn steps(name: &str, toml: &str, steps: &[(&str, &str)]) -> TestTask {
    let start =
        task(name, toml).without("instruction.md").without("tests/test.sh").without("solution/solve.sh");
    steps.iter().fold(start, |task, (step, solution)| {
        task.file(&format!("steps/{step}/instruction.md"), &format!("Create /app/{step}.\n"))
            .file(&format!("steps/{step}/solution/solve.sh"), solution)
            .file(&format!("steps/{step}/tests/test.sh"), &graded_by(&format!("[ -e /app/{step} ]")))
    })
}

pub(super) const TWO: &str = "[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n";

/// Tasks with the rewards of the oracle, and the number of steps that it attempts.
pub(super) fn rows() -> Vec<(TestTask, f64, usize)> {
    let both = [("one", "touch /app/one\n"), ("two", "true\n")];
    let shared = graded_by("[ \"$(cat /tests/level)\" = step ] && [ -e /tests/common ]");
    let prepared =
        "[ -e ready ] && [ \"$(cat /app/seed)\" = 2 ] && [ ! -e /tests/test.sh ] && touch /app/two\n";
    vec![
        (steps("mean", TWO, &both), 0.5, 2),
        (steps("final", &format!("multi_step_reward_strategy = \"final\"\n{TWO}"), &both), 0.0, 2),
        // The first step is not good enough, so the second is not attempted.
        (
            steps(
                "stops",
                "[[steps]]\nname = \"one\"\nmin_reward = 0.5\n[[steps]]\nname = \"two\"\n",
                &[("one", "true\n"), ("two", "touch /app/two\n")],
            ),
            0.0,
            1,
        ),
        (
            steps(
                "goes-on",
                "[[steps]]\nname = \"one\"\nmin_reward = {reward = 0.5}\n[[steps]]\nname = \"two\"\n",
                &[("one", "touch /app/one\n"), ("two", "touch /app/two\n")],
            ),
            1.0,
            2,
        ),
        // The tests of a step are laid over the shared ones.
        (
            steps("shared-tests", "[[steps]]\nname = \"one\"\n", &[("one", "true\n")])
                .without("steps/one/tests/test.sh")
                .without("tests/test.sh")
                .file("tests/common", "")
                .file("tests/level", "task")
                .file("steps/one/tests/level", "step")
                .file("tests/./test.sh", &shared),
            1.0,
            1,
        ),
        // Files for the working directory, a script that prepares it, and nothing of the tests before.
        (
            steps("prepared", TWO, &[("one", "touch /app/one\n"), ("two", prepared)])
                .file("steps/two/workdir/seed", "2")
                .file("steps/two/workdir/setup.sh", "touch ready\n"),
            1.0,
            2,
        ),
        // A solution of the task serves all steps without one.
        (
            steps("shared-solution", TWO, &[("one", ""), ("two", "")])
                .without("steps/one/solution/solve.sh")
                .without("steps/two/solution/solve.sh")
                .file("solution/./solve.sh", "touch /app/one /app/two\n"),
            1.0,
            2,
        ),
    ]
}

fn every_row(job: TestJob) {
    let rows = rows();
    let job = rows.iter().fold(job.oracle(), |job, (task, _, _)| job.task(task.clone()));
    let finished = job.run().expect(0);
    for (task, reward, ran) in &rows {
        let result = result(&finished, task.name());
        assert_eq!(result["reward"], json!(reward), "{}: {result:#}", task.name());
        assert_eq!(result["steps"].as_array().unwrap().len(), *ran, "{}: {result:#}", task.name());
    }
    let notes = result(&finished, "stops")["notes"].to_string();
    assert!(notes.contains("the steps after one were not attempted"), "{notes}");
    assert_eq!(finished.file("oracle/set/mean__1/steps/one/logs/verifier/reward.txt"), "1\n");
    assert_eq!(finished.file("oracle/set/mean__1/steps/two/logs/verifier/reward.txt"), "0\n");
    job.expect_nothing_left();
}

#[test]
fn steps_have_the_rewards_of_harbor_on_native() {
    every_row(native());
}

/// Harbor moves the logs and artifacts of a step away after it (`_archive_step_outputs` in its `multi_step.py`).
#[test]
fn logs_and_artifacts_of_a_step_are_not_there_in_the_next_one() {
    let toml = format!("artifacts = [\"/app\"]\n[verifier]\nenvironment_mode = \"separate\"\n{TWO}");
    let leaves = "touch /logs/agent/one /logs/artifacts/one\n";
    let looks = "ls /logs/agent /logs/artifacts > /app/seen; touch /logs/artifacts/two\n";
    let job = native()
        .task(
            steps("apart", &toml, &[("one", leaves), ("two", looks)])
                .file("steps/one/tests/test.sh", &graded_by("[ -e /logs/artifacts/one ]"))
                .file(
                    "steps/two/tests/test.sh",
                    &graded_by("! grep -q one /app/seen && [ \"$(ls /logs/artifacts)\" = two ]"),
                ),
        )
        .oracle();
    let finished = job.run().expect(0);
    let result = result(&finished, "apart");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    for (step, other) in [("one", "two"), ("two", "one")] {
        let kept = |name: &str| {
            let path = format!("oracle/set/apart__1/steps/{step}/artifacts/logs/artifacts/{name}");
            job.dir().join(path).exists()
        };
        assert!(kept(step) && !kept(other), "{step}");
    }
}

/// Tasks whose tests here are not only about the reward.
pub(super) fn others() -> Vec<TestTask> {
    vec![judged()]
}

/// The image of a step comes before that of the task, and its table alone means a separate environment
/// (`resolve_verifier_environment_definition` in Harbor's `verifier_mode.py`).
fn judged() -> TestTask {
    let toml = "artifacts = [\"/app\"]\n[[steps]]\nname = \"one\"\n[steps.verifier.environment.env]\nWHO = \"judge\"\n\
        [[steps]]\nname = \"two\"\n";
    let first = "[ -e /app/one ] && [ -e /judge ] && [ \"$WHO\" = judge ]";
    steps("judged", toml, &[("one", "touch /app/one\n"), ("two", "touch /app/two\n")])
        .file("steps/one/tests/Dockerfile", "FROM test\nCOPY . /tests\nRUN touch /judge\n")
        .file("steps/one/tests/test.sh", &graded_by(first))
        .file("steps/two/tests/test.sh", &graded_by("[ -e /app/two ] && [ ! -e /judge ] && [ -z \"$WHO\" ]"))
}

fn tests_of_a_step_in_their_image(job: TestJob) {
    let job = job.task(judged()).oracle();
    let result = result(&job.run().expect(0), "judged");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    job.expect_nothing_left();
}

#[test]
fn the_tests_of_a_step_can_have_an_image_of_their_own_on_native() {
    tests_of_a_step_in_their_image(native());
}

#[test]
fn the_tests_of_a_step_can_have_an_image_of_their_own_on_docker() {
    tests_of_a_step_in_their_image(docker());
}

#[test]
fn each_step_has_its_own_instruction_and_timeout() {
    let toml = "[[steps]]\nname = \"one\"\n[steps.agent]\ntimeout_sec = 77\n[[steps]]\nname = \"two\"\n";
    let job = native()
        .task(steps("own", toml, &[("one", ""), ("two", "")]))
        .script("echo \"$ROLLOUT_STEP ${ROLLOUT_AGENT_TIMEOUT_SEC-none}\"; cat /tmp/instruction.md");
    let finished = job.run().expect(0);
    let printed = |step: &str| finished.file(&format!("agent/set/own__1/steps/{step}/command/stdout.txt"));
    assert_eq!(printed("one"), "one 77\nCreate /app/one.\n");
    assert_eq!(printed("two"), "two none\nCreate /app/two.\n");
}

#[test]
fn a_step_that_fails_without_a_reward_ends_the_trial() {
    let job = native()
        .task(steps("cut", TWO, &[("one", ""), ("two", "")]).file("steps/one/tests/test.sh", "true\n"))
        .oracle();
    let result = result(&job.run().expect(1), "cut");
    assert_eq!(result["error"]["type"], "verifier_reward_missing", "{result:#}");
    assert_eq!(result["steps"].as_array().unwrap().len(), 1, "{result:#}");
}

#[test]
fn a_step_whose_setup_fails_ends_the_trial_with_its_output() {
    let job = native()
        .task(
            steps("unprepared", TWO, &[("one", ""), ("two", "")])
                .file("steps/one/workdir/setup.sh", "echo no seed >&2; exit 3\n"),
        )
        .oracle();
    let result = result(&job.run().expect(1), "unprepared");
    assert_eq!(result["error"]["type"], "environment_start_failed", "{result:#}");
    let message = result["error"]["message"].as_str().unwrap();
    assert!(message.contains("setup.sh of the step") && message.contains("no seed"), "{message}");
    assert_eq!(result["steps"].as_array().unwrap().len(), 1, "{result:#}");
}

/// Runs an agent on two steps, by the rules of Harbor or without them, and returns its result and the headline.
fn attempt(is_harbor: bool, two: &str, script: &str) -> (Value, Value) {
    let toml = format!("[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n{two}");
    let mut task = steps("two", &toml, &[("one", ""), ("two", "")])
        .file("steps/two/workdir/setup.sh", "[ ! -e /app/broken ]\n");
    if !is_harbor {
        task = task.config(&format!("version = \"1.0\"\n{toml}"));
    }
    let job = native()
        .task(task)
        .script(&format!("touch /app/$ROLLOUT_STEP\n{script}"))
        .set("retry", json!({"max_attempts": 3, "initial_delay_ms": 10}));
    let finished = job.run();
    job.expect_nothing_left();
    (finished.trial("agent/set/two__1"), finished.result()["headline"].clone())
}

#[test]
fn a_step_that_the_agent_fails_counts_as_0() {
    for (script, error) in
        [("[ $ROLLOUT_STEP = one ]", "agent_execution_failed"), (WITHOUT_BASH, "verifier_failed")]
    {
        let (result, headline) = attempt(false, "", script);
        assert_eq!((&result["reward"], &result["error"]["type"]), (&json!(0.5), &json!(error)), "{result:#}");
        assert_eq!(result["steps"][1]["reward"], Value::Null, "{result:#}");
        assert_eq!(headline["mean_reward"], 0.5, "{headline:#}");
    }
}

/// Removes the program that runs the tests of the last step.
const WITHOUT_BASH: &str = "[ $ROLLOUT_STEP = one ] || rm -f /bin/bash /usr/bin/bash";

/// Harbor computes the mean over the steps that were graded.
#[test]
fn a_reward_of_harbor_that_leaves_out_a_step_counts_as_failed() {
    let (result, headline) = attempt(true, "", WITHOUT_BASH);
    assert_eq!(result["reward"], 1.0, "{result:#}");
    assert_eq!(
        (&result["error"]["type"], &result["leaves_out_step"]),
        (&json!("verifier_failed"), &json!(true))
    );
    assert_eq!(headline["counted"]["failed_by_verifier"], 1, "{headline:#}");
    assert_eq!(
        (&headline["solved_trials"], &headline["mean_reward"]),
        (&json!(0), &json!(0.0)),
        "{headline:#}"
    );
}

#[test]
fn an_agent_that_breaks_the_start_of_the_next_step_fails_its_own_trial() {
    let healthcheck =
        "[steps.healthcheck]\ncommand = \"[ ! -e /app/sick ]\"\nretries = 1\nstart_period_sec = 0\n";
    for script in
        ["rm /tmp/instruction.md; mkdir /tmp/instruction.md", "touch /app/broken", "touch /app/sick"]
    {
        let (result, headline) = attempt(false, healthcheck, script);
        assert_eq!(result["error"]["type"], "agent_execution_failed", "{script}: {result:#}");
        assert_eq!((&result["reward"], &result["tries"]), (&json!(0.5), &json!(1)), "{script}: {result:#}");
        assert_eq!(headline["counted_trials"], 1, "{script}: {headline:#}");
    }
}

#[test]
fn a_missing_directory_of_a_step_is_named() {
    let job = native().task(task("gone", TWO)).oracle();
    let result = result(&job.run().expect(1), "gone");
    assert_eq!(result["error"]["type"], "task_invalid");
    let message = result["error"]["message"].as_str().unwrap();
    assert!(message.contains("`steps`: steps/one is missing"), "{message}");
}

/// Each step is a conversation of its own. Exports have both, one after the other.
#[test]
fn the_conversations_of_all_steps_are_exported() {
    let server = ModelServer::scripted(|request| {
        let step = if request.body.to_string().contains("/app/two") { "two" } else { "one" };
        match request.messages().iter().any(|message| message["role"] == "tool") {
            true => ModelReply::text(format!("{step} is there.")),
            false => ModelReply::tool_call("bash", &json!({"command": format!("touch /app/{step}")})),
        }
    });
    let model = json!({"name": "scripted", "base_url": server.url(), "max_retries": 0});
    let job = native()
        .task(steps("both", TWO, &[("one", ""), ("two", "")]))
        .agent(json!({"name": "model", "model": model}));
    let finished = job.run().expect(0);
    assert_eq!(finished.trial("model/set/both__1")["reward"], 1.0);
    let dir = job.dir().display().to_string();
    for format in ["sft", "atif", "csv"] {
        job.rollout(&["export", format, &dir, "-o", format]).expect(0);
    }
    let atif = std::fs::read_to_string(job.root().join("atif/model/set/both__1.json")).unwrap();
    let atif: Value = serde_json::from_str(&atif).unwrap();
    let said: Vec<_> = atif["steps"].as_array().unwrap().iter().map(|step| step["source"].clone()).collect();
    let users: Vec<_> = atif["steps"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|step| step["source"] == "user")
        .map(|step| step["message"].to_string())
        .collect();
    assert_eq!(users.len(), 2, "{said:?}");
    assert!(users[0].contains("Create /app/one.") && users[1].contains("Create /app/two."), "{users:?}");
    assert_eq!(said.iter().filter(|source| **source == "agent").count(), 4, "{said:?}");
    let shown = job.rollout(&["logs", "jobs/job/model/set/both__1", "--conversation"]).expect(0).stdout();
    assert!(shown.contains("one is there.") && shown.contains("two is there."), "{shown}");
}

#[test]
fn a_step_whose_tests_are_only_in_its_image_needs_the_rules_of_harbor() {
    let toml = "version = \"1.0\"\nartifacts = [\"/app\"]\n[[steps]]\nname = \"one\"\n\
        [steps.verifier]\nenvironment_mode = \"separate\"\n";
    let task = steps("older-step", "", &[("one", "touch /app/one\n")])
        .config(toml)
        .without("steps/one/tests/test.sh")
        .file("steps/one/tests/Dockerfile", "FROM test\n");
    let job = native().task(task).oracle();
    let message = result(&job.run().expect(1), "older-step")["error"]["message"].to_string();
    assert!(message.contains("tests/test.sh is missing (with `compat: harbor`"), "{message}");
}
