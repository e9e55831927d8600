//! Agents that are installed once: later trials start from what the first install made.

use std::{fs, path::Path};

use rollout_testkit::{Finished, Gate, TestJob, TestTask};
use serde_json::{Value, json};

/// Leaves a name of its own in the environment, which distinguishes one install from another.
const INSTALL: &str = "cat /proc/sys/kernel/random/uuid > /opt/agent\n";

/// Says which install it runs on, and solves the task.
const EXECUTE: &str = "cat /opt/agent; touch /app/done\n";

fn agent(install: &str) -> Value {
    json!({"name": "agent", "install": install, "execute": EXECUTE})
}

fn job_with(agent: Value) -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(agent)
        .set("environment/cache_agent_install", json!(true))
}

fn job(install: &str) -> TestJob {
    job_with(agent(install)).task(TestTask::new("task"))
}

fn named(job: &TestJob, name: &str, more: &[&str]) -> Finished {
    let name = format!("name={name}");
    let mut arguments = vec!["run", "job.yaml", "--output", "json", "--set", &name];
    arguments.extend(more);
    job.rollout(&arguments)
}

/// The directories of an agent's trials.
fn trials(job: &TestJob, name: &str) -> Vec<std::path::PathBuf> {
    let agent = job.root().join("jobs").join(name).join("agent");
    let mut found: Vec<_> =
        fs::read_dir(agent.join("set")).unwrap().map(|trial| trial.unwrap().path()).collect();
    found.sort();
    found
}

fn result(trial: &Path) -> Value {
    serde_json::from_slice(&fs::read(trial.join("result.json")).unwrap()).unwrap()
}

/// Which install the trials of a job ran on, without repetition.
fn installs(job: &TestJob, name: &str) -> Vec<String> {
    let mut found: Vec<_> = trials(job, name)
        .iter()
        .map(|trial| fs::read_to_string(trial.join("command/stdout.txt")).unwrap())
        .collect();
    found.sort();
    found.dedup();
    assert!(found.iter().all(|install| install.len() == 37), "{found:?}");
    found
}

/// Trials whose install script ran.
fn installed(results: &[Value]) -> usize {
    results.iter().filter(|result| result["durations"]["agent_setup_sec"].as_f64() > Some(0.0)).count()
}

fn results(job: &TestJob, name: &str) -> Vec<Value> {
    trials(job, name).iter().map(|trial| result(trial)).collect()
}

#[test]
fn all_trials_of_a_job_share_one_install() {
    let job = job(INSTALL).set("n_attempts", json!(6)).set("n_concurrent_trials", json!(3));
    job.run().expect(0);
    assert_eq!(installs(&job, "job").len(), 1);
    let results = results(&job, "job");
    assert!(
        results.iter().all(|result| result["reward"] == 1.0 && result["notes"].is_null()),
        "{results:#?}"
    );
    assert_eq!(installed(&results), 1);
    let snapshots: Vec<_> =
        results.iter().filter_map(|result| result["environment"]["agent_snapshot"].as_str()).collect();
    assert_eq!(snapshots.len(), 5);
    assert!(snapshots.iter().all(|snapshot| *snapshot == snapshots[0] && snapshot.len() == 64));
    let image = &results[0]["environment"]["image"];
    assert!(results.iter().all(|result| &result["environment"]["image"] == image), "the task's own image");
    job.expect_nothing_left();
}

#[test]
fn without_the_key_every_trial_installs() {
    let job = job(INSTALL).set("n_attempts", json!(2)).set("environment/cache_agent_install", json!(false));
    job.run().expect(0);
    assert_eq!(installs(&job, "job").len(), 2);
    assert!(!job.state_dir().join("snapshots").exists());
}

#[test]
fn a_later_job_starts_from_what_an_earlier_one_installed() {
    let job = job(INSTALL);
    named(&job, "one", &[]).expect(0);
    let two = named(&job, "two", &[]).expect(0);
    assert_eq!(installs(&job, "one"), installs(&job, "two"));
    let phases: Vec<_> = two.events().into_iter().filter(|event| event["event"] == "phase_started").collect();
    assert!(!phases.iter().any(|event| event["phase"] == "install"), "{phases:?}");
}

#[test]
fn another_script_image_or_variable_is_another_install_and_another_value_is_not() {
    let job = job_with(json!({"name": "agent", "install": INSTALL, "execute": EXECUTE, "env": {"A": "1"}}))
        .task(TestTask::new("task"));
    named(&job, "first", &[]).expect(0);
    named(&job, "value", &["--set", "agents.0.env.A=2"]).expect(0);
    named(&job, "variable", &["--set", "agents.0.env.B=1"]).expect(0);
    let script = format!("agents.0.install={}", json!(format!("{INSTALL}true\n")));
    named(&job, "script", &["--set", &script]).expect(0);
    let job = job.task(TestTask::new("task").dockerfile("FROM test\nWORKDIR /app\nENV B=2\n"));
    named(&job, "image", &[]).expect(0);
    let of = |name| installs(&job, name).pop().unwrap();
    assert_eq!(of("first"), of("value"));
    let others = [of("first"), of("variable"), of("script"), of("image")];
    assert!((1..4).all(|n| !others[..n].contains(&others[n])), "{others:?}");
}

#[test]
fn images_that_differ_only_in_their_settings_keep_them() {
    let job = job_with(json!({"name": "agent", "install": "true", "execute": "echo $WHICH\n"}))
        .task(TestTask::new("a").dockerfile("FROM test\nENV WHICH=a\n").tests(REWARD))
        .task(TestTask::new("b").dockerfile("FROM test\nENV WHICH=b\n").tests(REWARD))
        .set("n_attempts", json!(2));
    job.run().expect(0);
    for trial in trials(&job, "job") {
        let task = trial.file_name().unwrap().to_string_lossy().into_owned();
        let said = fs::read_to_string(trial.join("command/stdout.txt")).unwrap();
        assert_eq!(said.trim_end(), &task[..1], "{task}");
    }
}

const REWARD: &str = "echo 1 > /logs/verifier/reward.txt\n";

#[test]
fn others_wait_for_the_first_install_and_then_skip_theirs() {
    let gate = Gate::new();
    let job = job(&(gate.wait() + INSTALL)).set("n_attempts", json!(4)).set("n_concurrent_trials", json!(4));
    let mut running = job.start();
    let arrival = gate.arrival();
    running.until("all trials", |events| {
        events.iter().filter(|event| event["event"] == "trial_started").count() == 4
    });
    arrival.pass();
    running.finish().expect(0);
    assert_eq!(installs(&job, "job").len(), 1);
    assert_eq!(installed(&results(&job, "job")), 1);
}

#[test]
fn after_a_failed_install_the_others_try_for_themselves_side_by_side() {
    let gate = Gate::new();
    let job = job(&(gate.wait() + "exit 3")).set("n_attempts", json!(4)).set("n_concurrent_trials", json!(4));
    let running = job.start();
    gate.arrival().pass();
    // All three are at the gate at once, or this waits for ever.
    let others = [gate.arrival(), gate.arrival(), gate.arrival()];
    others.into_iter().for_each(|other| other.pass());
    running.finish().expect(1);
    let results = results(&job, "job");
    assert!(results.iter().all(|result| result["error"]["type"] == "agent_install_failed"), "{results:#?}");
    assert_eq!(fs::read_dir(job.state_dir().join("snapshots")).unwrap().count(), 0);
}

#[test]
fn an_install_that_succeeds_later_is_kept_all_the_same() {
    let gate = Gate::new();
    let turned_away = gate.wait().replace("read -r _ <&3;", "read -r _ <&3 || exit 3;");
    let job = job(&(turned_away + INSTALL)).set("n_attempts", json!(3)).set("n_concurrent_trials", json!(1));
    let running = job.start();
    drop(gate.arrival());
    gate.arrival().pass();
    running.finish().expect(1);
    let results = results(&job, "job");
    assert_eq!(results[0]["error"]["type"], "agent_install_failed");
    assert_eq!(results[1]["reward"], 1.0);
    assert_eq!(results[2]["reward"], 1.0);
    assert!(results[2]["environment"]["agent_snapshot"].is_string());
}

#[test]
fn nothing_of_the_trial_that_installed_is_visible_in_others() {
    let look = "find / -xdev -newer /etc/passwd -type f 2> /dev/null | grep -v ^/proc | sort
        cat /tmp/instruction.md; ls -A /logs/agent; pgrep sleep || echo nothing runs\n";
    let install = "touch /logs/agent/install.log /logs/loose; setsid sleep 600 &
        env | grep ROLLOUT; test ! -e /tmp/instruction.md || exit 5; echo installed\n";
    let job = job_with(json!({"name": "agent", "install": install, "execute": look}))
        .task(TestTask::new("first").file("instruction.md", "the first\n").tests(REWARD))
        .task(TestTask::new("second").file("instruction.md", "the second\n").tests(REWARD))
        .set("n_concurrent_trials", json!(1));
    let done = job.run().expect(0);
    assert_eq!(done.file("agent/set/first__1/setup/stdout.txt"), "installed\n", "no variables of the trial");
    let (first, second) = (
        done.file("agent/set/first__1/command/stdout.txt"),
        done.file("agent/set/second__1/command/stdout.txt"),
    );
    assert!(first.contains("the first\ninstall.log\nnothing runs\n"), "{first}");
    assert!(second.contains("the second\nnothing runs\n"), "{second}");
    for word in ["first", "install.log", "loose"] {
        assert!(!second.contains(word), "{second}");
    }
    assert!(done.file("agent/set/first__1/logs/agent/install.log").is_empty());
    assert!(!job.dir().join("agent/set/second__1/logs/loose").exists());
}

#[test]
fn what_the_install_removed_and_owned_is_so_in_later_trials() {
    let install = "rm -r /usr/share/doc /etc/passwd; mkdir -m 1751 /opt/own; ln -s own /opt/link\n";
    let look = "ls -d /usr/share/doc /etc/passwd 2> /dev/null; stat -c '%a %N' /opt/own /opt/link\n";
    let job = job_with(json!({"name": "agent", "install": install, "execute": look}))
        .task(TestTask::new("task").tests(REWARD))
        .set("n_attempts", json!(2));
    let done = job.run().expect(0);
    let said = |n| done.file(&format!("agent/set/task__{n}/command/stdout.txt"));
    assert_eq!(said(1), "1751 '/opt/own'\n777 '/opt/link' -> 'own'\n");
    assert_eq!(said(1), said(2));
}

#[test]
fn jobs_at_the_same_time_agree_on_one_snapshot() {
    let job = job(INSTALL);
    let started: Vec<_> = ["one", "two", "three"]
        .map(|name| job.command(&["run", "job.yaml", "--set", &format!("name={name}")]).spawn().unwrap())
        .into();
    for mut child in started {
        assert!(child.wait().unwrap().success());
    }
    named(&job, "after", &[]).expect(0);
    let mut before: Vec<_> = ["one", "two", "three"].map(|name| installs(&job, name).pop().unwrap()).into();
    let after = installs(&job, "after").pop().unwrap();
    before.retain(|install| *install == after);
    assert!(!before.is_empty());
    let slots: Vec<_> = fs::read_dir(job.state_dir().join("snapshots")).unwrap().collect();
    assert_eq!(slots.len(), 1);
    let made = fs::read_dir(slots[0].as_ref().unwrap().path()).unwrap();
    let is_snapshot = |entry: &fs::DirEntry| entry.file_type().unwrap().is_dir();
    assert_eq!(made.filter(|entry| is_snapshot(entry.as_ref().unwrap())).count(), 1);
}

#[test]
fn a_snapshot_that_a_killed_job_left_half_made_is_never_used() {
    let job = job(INSTALL);
    named(&job, "one", &[]).expect(0);
    let slot = fs::read_dir(job.state_dir().join("snapshots")).unwrap().next().unwrap().unwrap().path();
    let layer = slot.join("current").canonicalize().unwrap();
    fs::remove_file(slot.join("current")).unwrap();
    fs::rename(layer, slot.join("building-1-0")).unwrap();
    named(&job, "two", &[]).expect(0);
    named(&job, "three", &[]).expect(0);
    assert_ne!(installs(&job, "one"), installs(&job, "two"));
    assert_eq!(installs(&job, "two"), installs(&job, "three"));
    assert!(!slot.join("building-1-0").exists());
}

#[test]
fn a_snapshot_on_a_layer_that_was_made_anew_is_not_used() {
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nRUN cat /proc/sys/kernel/random/uuid > /stamp\n");
    let job = job_with(agent(INSTALL)).task(task);
    named(&job, "one", &[]).expect(0);
    job.expect_nothing_running();
    fs::remove_dir_all(job.state_dir().join("layers")).unwrap();
    named(&job, "two", &[]).expect(0);
    named(&job, "three", &[]).expect(0);
    assert_ne!(installs(&job, "one"), installs(&job, "two"));
    assert_eq!(installs(&job, "two"), installs(&job, "three"));
}

#[test]
fn a_forced_build_is_another_image_and_so_installs_again() {
    let task = TestTask::new("task").dockerfile("FROM test\nWORKDIR /app\nRUN true\n");
    let job = job_with(agent(INSTALL)).task(task);
    named(&job, "one", &[]).expect(0);
    named(&job, "forced", &["--set", "environment.force_build=true"]).expect(0);
    named(&job, "after", &[]).expect(0);
    assert_ne!(installs(&job, "one"), installs(&job, "forced"));
    assert_eq!(installs(&job, "forced"), installs(&job, "after"));
}

#[test]
fn a_snapshot_that_cannot_be_made_is_a_note() {
    let job = job(INSTALL).set("n_attempts", json!(2));
    fs::create_dir_all(job.state_dir()).unwrap();
    fs::write(job.state_dir().join("snapshots"), "in the way").unwrap();
    job.run().expect(0);
    let results = results(&job, "job");
    for result in &results {
        assert_eq!(result["reward"], 1.0);
        assert!(
            result["notes"]
                .to_string()
                .contains("cannot store a snapshot of the installed agent for other trials"),
            "{result:#}"
        );
    }
    assert_eq!(installed(&results), 2);
}

#[test]
fn an_ordinary_user_has_snapshots_too() {
    let job = job(INSTALL).set("n_attempts", json!(2)).set("n_concurrent_trials", json!(1));
    let output = job.command_as_user(&["run", "job.yaml"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(installed(&results(&job, "job")), 1);
}

#[test]
fn an_environment_on_a_snapshot_can_be_preserved() {
    let job = job(INSTALL).set("n_attempts", json!(2)).set("environment/preserve_env", json!("always"));
    job.run().expect(0);
    for result in results(&job, "job") {
        let place = result["environment"]["preserved"].as_str().unwrap();
        assert!(Path::new(place).join("sandbox.json").exists());
        assert!(place.ends_with(result["environment"]["id"].as_str().unwrap()));
    }
}
