//! A task with steps: the output and the conversations of all of them are found.

use std::{fs, thread, time::Duration};

use rollout_testkit::{Gate, ModelReply, ModelServer, TestJob, TestTask};
use serde_json::json;

use super::RunningViewer;

/// A task of two steps, of which the second is never solved.
fn task() -> TestTask {
    let toml = "schema_version = \"1.1\"\n[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n";
    let task = TestTask::new("task").config(toml);
    let task = task.without("instruction.md").without("tests/test.sh").without("solution/solve.sh");
    [("one", 1, "one is right"), ("two", 0, "line 7: wrong total")].into_iter().fold(
        task,
        |task, (step, reward, printed)| {
            let tests = format!("echo '{printed}'\necho {reward} > /logs/verifier/reward.txt\n");
            task.file(&format!("steps/{step}/instruction.md"), &format!("Create /app/{step}.\n"))
                .file(&format!("steps/{step}/tests/test.sh"), &tests)
        },
    )
}

#[test]
fn the_steps_of_a_task_are_shown_while_it_runs_and_after_it() {
    let server = ModelServer::scripted(|request| {
        let step = if request.body.to_string().contains("/app/two") { "two" } else { "one" };
        match request.messages().iter().any(|message| message["role"] == "tool") {
            true => ModelReply::text(format!("{step} is there.")),
            false => ModelReply::tool_call("bash", &json!({"command": format!("touch /app/{step}")})),
        }
    });
    let model = json!({"name": "scripted", "base_url": server.url(), "max_retries": 0});
    let gate = Gate::new();
    let script = format!("echo in $ROLLOUT_STEP\nif [ $ROLLOUT_STEP = two ]; then\n{}fi\n", gate.wait());
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(task())
        .script(&script)
        .agent(json!({"name": "model", "model": model}));
    let running = job.start();
    let arrival = gate.arrival();
    let viewer = RunningViewer::start(&job);
    let page = |agent: &str| {
        let path = format!("jobs/job/trials/{agent}/set/task__1/index.html");
        viewer.get(&viewer.path(&path), "")
    };
    let logs = |arguments: &[&str]| {
        job.rollout(&[&["logs", "jobs/job/agent/set/task__1"], arguments].concat()).expect(0).stdout()
    };
    assert_eq!(logs(&[]), "in one\nin two\n");
    let shown = job.rollout(&["show", "jobs/job/agent/set/task__1"]).expect(0).stdout();
    assert!(shown.contains("agent output of step two (end of stdout.txt)\n  in two\n"), "{shown}");
    let open = page("agent");
    assert!(open.contains("in one\n") && open.contains("in two\n"), "{open}");

    let path = job.root().join("followed");
    let file = fs::File::create(&path).unwrap();
    let mut follower =
        job.command(&["logs", "jobs/job/agent/set/task__1", "-f"]).stdout(file).spawn().unwrap();
    while fs::read_to_string(&path).unwrap() != "in one\nin two\n" {
        thread::sleep(Duration::from_millis(50));
    }
    arrival.pass();
    let finished = running.finish().expect(0);
    assert!(follower.wait().unwrap().success());
    assert_eq!(fs::read_to_string(&path).unwrap(), "in one\nin two\n");
    assert_eq!(finished.trial("agent/set/task__1")["reward"], 0.5);

    assert_eq!(logs(&[]), "in one\nin two\n");
    assert_eq!(logs(&["--phase", "verifier"]), "one is right\nline 7: wrong total\n");
    let shown = job.rollout(&["show", "jobs/job/agent/set/task__1"]).expect(0).stdout();
    for part in [
        "steps        one: reward 1, two: reward 0\n",
        "\nagent output of step two (end of stdout.txt)\n  in two\n",
        "\nverifier output of step two (end of stdout.txt)\n  line 7: wrong total\n",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let listed = job.rollout(&["list", "jobs/job"]).expect(0).stdout();
    assert_eq!(listed.matches("line 7: wrong total").count(), 2, "{listed}");

    let done = page("agent");
    for part in [
        "in one\n",
        "in two\n",
        "one is right\n",
        "line 7: wrong total\n",
        "Verifier, step two",
        "2 trials with this cause</a> <code>line 7: wrong total</code>",
    ] {
        assert!(done.contains(part), "{part} in {done}");
    }
    let said = page("model");
    assert!(said.contains("one is there.") && said.contains("two is there."), "{said}");
}
