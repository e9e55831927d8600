//! The native environment as tasks and agents find it, as root and as an ordinary user.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::BTreeSet,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
};

use rollout_testkit::{Gate, TestJob, TestTask};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

fn trial(job: &TestJob, path: &str) -> Value {
    let path = job.dir().join(path).join("result.json");
    serde_json::from_slice(&fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        .unwrap()
}

#[test]
fn an_ordinary_user_runs_a_whole_job_and_nothing_is_left() {
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nCOPY data /data/\nRUN echo built > /app/built && chown root /app/built\n")
        .file("environment/data/x", "x\n")
        .solution("cat /app/built /data/x && id -u && mkdir -p /opt/new && touch /app/done\n");
    let job = job().task(task).oracle().script("sleep 600 & touch /app/done").set("n_attempts", json!(2));
    let output = job.command_as_nobody(&["run", "job.yaml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for path in ["oracle/set/task__1", "oracle/set/task__2", "agent/set/task__1", "agent/set/task__2"] {
        assert_eq!(trial(&job, path)["reward"], 1.0, "{path}");
    }
    let said = fs::read_to_string(job.dir().join("oracle/set/task__1/command/stdout.txt")).unwrap();
    assert_eq!(said, "built\nx\n0\n");
    job.expect_nothing_left();
    assert!(job.command_as_nobody(&["clean", "--preserved"]).output().unwrap().status.success());
}

#[test]
fn without_root_another_user_of_a_dockerfile_is_a_clear_error_and_nothing_is_left() {
    let task = TestTask::new("task").dockerfile("FROM test\nWORKDIR /app\nUSER daemon\n");
    let job = job().task(task).oracle();
    let output = job.command_as_nobody(&["run", "job.yaml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let message = trial(&job, "oracle/set/task__1")["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("cannot run as daemon") && message.contains("run as root"), "{message}");
    job.expect_nothing_left();
}

#[test]
fn user_directory_and_variables_of_the_dockerfile_hold_for_agent_and_tests() {
    let say = "echo $(id -un) $(pwd) $GREETING $HOME";
    let task = TestTask::new("task")
        .dockerfile(
            "FROM test\nARG WHO=world\nENV GREETING=\"hello-$WHO\"\nWORKDIR /srv/work\nWORKDIR deep\nRUN chown daemon .\nUSER daemon\n",
        )
        .tests(&format!("{say}; test -O mine && echo 1 > /logs/verifier/reward.txt\n"));
    let agent = json!({"name": "agent", "install": say, "execute": format!("{say}; touch mine")});
    let finished = job().task(task).agent(agent).run().expect(0);
    assert_eq!(finished.trial("agent/set/task__1")["reward"], 1.0);
    let files = ["setup/stdout.txt", "command/stdout.txt", "logs/verifier/stdout.txt"];
    for file in files {
        let said = finished.file(&format!("agent/set/task__1/{file}"));
        assert_eq!(said, "daemon /srv/work/deep hello-world /usr/sbin\n", "{file}");
    }
}

#[test]
fn the_network_is_none_or_the_hosts_as_configured_and_recorded() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached; true");
    for (network, said) in [("none", ""), ("host", "reached\n")] {
        let job = job()
            .task(TestTask::new("task"))
            .script(&script)
            .set("environment/provider_config/network", json!(network));
        let finished = job.run().expect(0);
        assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), said, "{network}");
        assert_eq!(finished.trial("agent/set/task__1")["environment"]["network"], network);
    }
}

#[test]
fn without_a_network_there_is_still_a_loopback_of_its_own() {
    let script = "python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 0)); socket.create_connection(s.getsockname()); print(\"reached\")'";
    let job = job()
        .task(TestTask::new("task"))
        .script(script)
        .set("environment/provider_config/network", json!("none"));
    assert_eq!(job.run().expect(0).file("agent/set/task__1/command/stdout.txt"), "reached\n");
}

#[test]
fn limits_are_enforced_and_the_result_says_so() {
    let task = TestTask::new("task").config("[environment]\ncpus = 0.2\nmemory = \"64Mi\"\n");
    let script =
        "timeout 2 sh -c 'while :; do :; done'; awk '{print int(($14 + $15 + $16 + $17))}' /proc/$$/stat";
    let job = job().task(task).script(script);
    let finished = job.run().expect(0);
    let enforced = finished.trial("agent/set/task__1")["environment"]["enforced"].clone();
    assert_eq!(enforced, json!({"cpus": true, "memory": true, "pids": true, "storage": false}));
    // Two seconds of a fifth of a processor are forty ticks; all of it would be two hundred.
    let ticks: u32 = finished.file("agent/set/task__1/command/stdout.txt").trim().parse().unwrap();
    assert!(ticks < 100, "{ticks} ticks of processor time");
}

#[test]
fn tests_of_the_task_take_the_place_of_those_in_the_image() {
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nRUN mkdir /tests && echo forged > /tests/helper.sh && echo 'exit 1' > /tests/test.sh\n")
        .tests("ls -A /tests; echo 1 > /logs/verifier/reward.txt\n");
    let finished = job().task(task).script("ls -A /tests; echo more > /tests/more").run().expect(0);
    assert_eq!(finished.trial("agent/set/task__1")["reward"], 1.0);
    assert_eq!(finished.file("agent/set/task__1/logs/verifier/stdout.txt"), "test.sh\n");
}

#[test]
fn a_tests_link_of_the_image_leads_nowhere() {
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nRUN mkdir /elsewhere && ln -s /elsewhere /tests\n")
        .tests("ls -A /elsewhere; echo 1 > /logs/verifier/reward.txt\n");
    let finished = job().task(task).oracle().run().expect(0);
    assert_eq!(finished.file("oracle/set/task__1/logs/verifier/stdout.txt"), "");
}

#[test]
fn a_pipe_that_a_process_of_the_agent_keeps_open_does_not_hold_up_the_trial() {
    let gate = Gate::new();
    let task = TestTask::new("task").tests(&(gate.wait() + "echo 1 > /logs/verifier/reward.txt\n"));
    let started = "until grep -qx sleep /proc/[0-9]*/comm 2>/dev/null; do :; done";
    let job =
        job().task(task).script(&format!("echo before; (sleep 600; echo never) & {started}; echo after"));
    let running = job.start();
    gate.arrival().pass();
    let finished = running.finish().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null));
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "before\nafter\n");
    assert!(result.to_string().contains("sleep 600"), "survivors are recorded: {result:#}");
    job.expect_nothing_left();
}

#[test]
fn jobs_at_the_same_time_do_not_sweep_each_other() {
    let gate = Gate::new();
    let first = job().task(TestTask::new("task")).script(&(gate.wait() + "touch /app/done"));
    let running = first.start();
    let arrival = gate.arrival();
    let alive = first.environments();
    let state = first.state_dir();
    let second =
        job().task(TestTask::new("task")).oracle().env("ROLLOUT_STATE_DIR", &state.to_string_lossy());
    for name in ["name=a", "name=b"] {
        second.rollout(&["run", "job.yaml", "--set", name]).expect(0);
    }
    second.rollout(&["clean"]).expect(0);
    second.rollout(&["clean", "--preserved"]).expect(0);
    assert_eq!(first.environments(), alive, "only that of the first job is there, and it still is");
    arrival.pass();
    assert_eq!(running.finish().expect(0).trial("agent/set/task__1")["reward"], 1.0);
    first.expect_nothing_left();
}

/// The processes below one, deepest last.
fn descendants(of: u32) -> Vec<u32> {
    let mut found = vec![of];
    let mut next = 0;
    while next < found.len() {
        let tasks = fs::read_dir(format!("/proc/{}/task", found[next])).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        next += 1;
    }
    found.split_off(1)
}

fn cgroups_named(ids: &BTreeSet<String>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = pending.pop() {
        let below = fs::read_dir(dir).into_iter().flatten().flatten();
        for path in
            below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
        {
            if ids.iter().any(|id| path.to_string_lossy().contains(id.as_str())) {
                found.push(path.clone());
            }
            pending.push(path);
        }
    }
    found
}

fn id_of(environment: &Path) -> String {
    environment.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn after_a_kill_of_the_command_and_all_its_helpers_clean_leaves_nothing() {
    let gate = Gate::new();
    let job = job().task(TestTask::new("task")).script(&("setsid sleep 600 & ".to_owned() + &gate.wait()));
    let running = job.start();
    let _waiting = gate.arrival();
    let ids: BTreeSet<String> = job.environments().iter().map(|path| id_of(path)).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let helpers = descendants(running.child.id());
    assert!(!helpers.is_empty());
    running.signal("-KILL");
    for pid in helpers {
        // Those whose parent is gone may have ended by themselves.
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).output();
    }
    assert_eq!(running.finish().code(), -1);
    job.rollout(&["clean"]).expect(0);
    job.expect_nothing_left();
    assert_eq!(cgroups_named(&ids), Vec::<PathBuf>::new());
}

#[test]
fn the_next_start_sweeps_what_a_killed_job_left() {
    let gate = Gate::new();
    let job = job().task(TestTask::new("task")).script(&gate.wait());
    let running = job.start();
    let waiting = gate.arrival();
    let helpers = descendants(running.child.id());
    running.signal("-KILL");
    for pid in helpers {
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).output();
    }
    running.finish();
    drop(waiting);
    let other = self::job().task(TestTask::new("task")).oracle();
    let other = other.env("ROLLOUT_STATE_DIR", &job.state_dir().to_string_lossy());
    other.run().expect(0);
    job.expect_nothing_left();
}

/// A directory that nobody can change or move, until it is dropped.
struct Immutable(PathBuf);

impl Immutable {
    fn new(dir: PathBuf) -> Self {
        assert!(Self::attribute("+i", &dir), "chattr needs root, and a file system that knows attributes");
        Self(dir)
    }

    fn attribute(change: &str, dir: &Path) -> bool {
        Command::new("chattr").arg(change).arg(dir).status().unwrap().success()
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        Self::attribute("-i", &self.0);
    }
}

#[test]
fn an_environment_that_cannot_be_taken_away_is_a_teardown_error_that_fails_nothing() {
    let gate = Gate::new();
    let job = job().task(TestTask::new("task")).script(&(gate.wait() + "touch /app/done"));
    let running = job.start();
    let arrival = gate.arrival();
    let immutable = Immutable::new(job.environments().remove(0));
    arrival.pass();
    let finished = running.finish().expect(0);
    drop(immutable);
    let result = finished.trial("agent/set/task__1");
    assert_eq!(
        (&result["error"]["type"], &result["reward"]),
        (&json!("environment_teardown_failed"), &json!(1.0))
    );
    assert_eq!(
        (&finished.result()["completed_trials"], &finished.result()["failed_trials"]),
        (&json!(1), &json!(0))
    );
    job.rollout(&["clean"]).expect(0);
    job.expect_nothing_left();
}

#[test]
fn doctor_says_what_this_machine_can_run() {
    let finished = job().rollout(&["doctor"]).expect(0);
    assert!(finished.stdout().contains("native  works, as root"), "{}", finished.stdout());
}

#[test]
fn where_namespaces_are_forbidden_the_job_is_refused_with_what_to_change() {
    let job = job().task(TestTask::new("task")).oracle();
    let forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all -- \"$@\"";
    for (arguments, code) in [(["run", "job.yaml"].as_slice(), 2), (["doctor"].as_slice(), 2)] {
        let command = job.command(arguments);
        let output = Command::new("unshare")
            .args(["--user", "--map-root-user", "sh", "-c", forbid, "sh"])
            .arg(command.get_program())
            .args(command.get_args())
            .current_dir(job.root())
            .env_clear()
            .envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("namespace"), "{said}");
    }
    assert!(!job.root().join("jobs").exists());
}
