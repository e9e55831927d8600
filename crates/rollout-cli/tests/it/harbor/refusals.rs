//! Settings that change the meaning of a task and cannot be honoured.

use rollout_testkit::{TestJob, TestTask};

use super::{docker, native, result, steps::steps, task};

const APP: &str = "artifacts = [\"/app\"]\n";
const ONE: [(&str, &str); 1] = [("one", "touch /app/one\n")];
const COMPOSE: &str = "services: {main: {build: .}, db: {image: db}}\n";

/// Tasks with settings that no provider supports, by the setting.
fn nowhere() -> Vec<(&'static str, TestTask)> {
    vec![
        ("environment.tpu", task("tpu", "[environment]\ntpu = {type = \"v4\", topology = \"2x2\"}\n")),
        ("environment.os", task("windows", "[environment]\nos = \"windows\"\n")),
        ("environment.gpu_types", task("gpu-types", "[environment]\ngpu_types = [\"A100\"]\n")),
        (
            "verifier.environment.gpus",
            task("tests-gpus", "artifacts = [\"/app/done\"]\n[verifier.environment]\ngpus = 2\n"),
        ),
        (
            "steps.verifier.environment.tpu",
            steps(
                "step-tpu",
                &format!("{APP}[[steps]]\nname = \"one\"\n[steps.verifier.environment]\ntpu = \"v4\"\n"),
                &ONE,
            ),
        ),
        (
            "steps/one/tests/docker-compose.yaml",
            steps(
                "step-compose",
                &format!(
                    "{APP}[[steps]]\nname = \"one\"\n[steps.verifier]\nenvironment_mode = \"separate\"\n"
                ),
                &ONE,
            )
            .file("steps/one/tests/docker-compose.yaml", "services: {main: {}}\n"),
        ),
        ("agent.network_mode", task("agent-hosts", "[agent]\nallowed_hosts = [\"example.org\"]\n")),
        ("verifier.network_mode", task("tests-hosts", "[verifier]\nnetwork_mode = \"allowlist\"\n")),
    ]
}

/// Each task is refused by the name of its setting, and runs if the job allows it.
fn refused(job: TestJob, rows: Vec<(&'static str, TestTask)>) {
    let job = rows.iter().fold(job.oracle(), |job, (_, task)| job.task(task.clone()));
    let finished = job.run().expect(1);
    for (setting, task) in &rows {
        let result = result(&finished, task.name());
        assert_eq!(result["error"]["type"], "task_invalid", "{setting}: {result:#}");
        let message = result["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{setting}` is not supported")), "{setting}: {message}");
        assert!(message.contains("--allow-unsupported"), "{setting}: {message}");
        assert!(result["environment"].is_null(), "nothing was started for {setting}");
    }
    let strict = job.rollout(&["run", "job.yaml", "--strict", "--set", "name=strict"]).expect(2).stderr();
    assert!(strict.contains("is not supported"), "{strict}");
    job.rollout(&["run", "job.yaml", "--allow-unsupported", "--set", "name=allowed"]).expect(0);
    for (setting, task) in &rows {
        let path = job.root().join(format!("jobs/allowed/oracle/set/{}__1/result.json", task.name()));
        let result: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(result["reward"], 1.0, "{setting}: {result:#}");
        assert!(result["notes"].to_string().contains(setting), "{setting}: {result:#}");
    }
}

#[test]
fn settings_that_cannot_be_honoured_refuse_the_task_on_native() {
    let mut rows = nowhere();
    rows.push(("environment.gpus", task("gpus", "[environment]\ngpus = 1\n")));
    rows.push(("agent.network_mode", task("agent-network", "[agent]\nnetwork_mode = \"no-network\"\n")));
    rows.push((
        "environment/docker-compose.yaml",
        task("compose", "").file("environment/docker-compose.yaml", COMPOSE),
    ));
    refused(native(), rows);
}

#[test]
fn settings_that_cannot_be_honoured_refuse_the_task_on_docker() {
    refused(docker(), nowhere());
}

#[test]
fn an_agent_that_cannot_continue_a_conversation_is_refused() {
    let one = "[[steps]]\nname = \"one\"\n";
    let job = native()
        .task(task("prior", "").file("trajectory.json", "{}"))
        .task(steps("prior-step", one, &ONE).file("steps/one/trajectory.json", "{}"))
        // With steps, Harbor does not read it (`_task_trajectory_path` in its `trial.py`).
        .task(steps("unused", one, &ONE).file("trajectory.json", "{}"))
        .script("touch /app/one");
    let finished = job.run().expect(1);
    for task in ["prior", "prior-step"] {
        let result = finished.trial(&format!("agent/set/{task}__1"));
        assert_eq!(result["error"]["type"], "task_invalid", "{result:#}");
        assert!(result["error"]["message"].as_str().unwrap().contains("`trajectory.json`"), "{result:#}");
    }
    assert_eq!(finished.trial("agent/set/unused__1")["reward"], 1.0);
}
