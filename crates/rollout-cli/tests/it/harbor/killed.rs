//! Trials whose run is killed while services start, in the second step, and while separate tests run.

use rollout_testkit::{TestEngine, TestTask, until};
use serde_json::json;

use super::{
    compose::{composed, nothing_left, on},
    graded_by,
    steps::TWO,
    task,
};

/// The service is unhealthy as long as the run is slow.
fn services() -> TestTask {
    composed(
        "late-services",
        "services:
  main: {volumes: ['data:/data'], depends_on: {db: {condition: service_healthy}}}
  db:
    image: test
    command: sleep infinity
    environment: [\"SLOW=${SLOW:-}\"]
    volumes: ['data:/data']
    healthcheck: {test: 'touch /tmp/reached; [ -z \"$$SLOW\" ]', interval: 1s, retries: 1000}
volumes: {data: {}}
",
    )
}

fn separate() -> TestTask {
    let toml = "artifacts = [\"/app/done\"]\n[verifier]\nenvironment_mode = \"separate\"\n\
                [verifier.env]\nSLOW = \"${SLOW:-}\"\n";
    let tests = graded_by("[ -e /app/done ]");
    task("late-separate", toml)
        .tests(&format!("if [ -n \"$SLOW\" ]; then touch /tmp/reached; sleep 600; fi\n{tests}"))
}

fn steps() -> TestTask {
    let tests = graded_by("[ -e /app/done ]");
    ["one", "two"].iter().fold(task("late-steps", TWO), |task, step| {
        task.file(&format!("steps/{step}/instruction.md"), "Go on.\n")
            .file(&format!("steps/{step}/tests/test.sh"), &tests)
    })
}

#[test]
fn a_kill_in_a_late_phase_leaves_nothing_behind_and_the_trials_are_run_again() {
    let engine = TestEngine::shared();
    let execute = "touch /app/done\n\
                   if [ -n \"$SLOW\" ] && [ \"$ROLLOUT_STEP\" = two ]; then touch /tmp/reached; sleep 600; fi";
    let agent = json!({"name": "agent", "execute": execute, "env": {"SLOW": "${SLOW:-}"}});
    let job = on(&engine).agent(agent).task(services()).task(separate()).task(steps());
    let job = job.set("n_concurrent_trials", json!(3)).env("SLOW", "yes");
    let running = job.start();
    // Each trial is at the point of interest when a container of it has the file.
    let has_reached = |task: &str| {
        let names = engine.running().into_iter().filter(|name| name.contains(task));
        names.into_iter().any(|name| {
            let mut look = engine.client();
            look.args(["exec", &name, "test", "-e", "/tmp/reached"]).output().unwrap().status.success()
        })
    };
    for task in ["late-services", "late-separate", "late-steps"] {
        until(&format!("{task} is reached"), || has_reached(task));
    }
    let is_composed = |name: &String| name.contains("late-services");
    let holdings = engine.holdings();
    assert!(holdings.networks.iter().any(is_composed), "{:?}", holdings.networks);
    assert!(holdings.volumes.iter().any(is_composed), "{:?}", holdings.volumes);
    running.signal("-KILL");
    running.finish();
    until("all containers stop", || !engine.running().iter().any(|name| name.contains("late-")));
    let resumed = job.env("SLOW", "").rollout(&["resume", "jobs/job"]).expect(0);
    assert_eq!(resumed.result()["completed_trials"], 3);
    for task in ["late-services", "late-separate", "late-steps"] {
        let result = resumed.trial(&format!("agent/set/{task}__1"));
        assert_eq!(result["reward"], 1.0, "{result:#}");
    }
    let steps = resumed.trial("agent/set/late-steps__1")["steps"].as_array().map(Vec::len);
    assert_eq!(steps, Some(2), "the trial starts again with the first step");
    nothing_left(&engine, "late-");
}
