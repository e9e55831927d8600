//! The native environment as tasks and agents find it, as root and as an ordinary user.

use std::{
    collections::BTreeSet,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
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
    let output = job.command_as_user(&["run", "job.yaml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for path in ["oracle/set/task__1", "oracle/set/task__2", "agent/set/task__1", "agent/set/task__2"] {
        assert_eq!(trial(&job, path)["reward"], 1.0, "{path}");
    }
    let said = fs::read_to_string(job.dir().join("oracle/set/task__1/command/stdout.txt")).unwrap();
    assert_eq!(said, "built\nx\n0\n");
    job.expect_nothing_left();
    assert!(job.command_as_user(&["clean", "--preserved"]).output().unwrap().status.success());
}

#[test]
fn without_root_another_user_of_a_dockerfile_is_a_clear_error_and_nothing_is_left() {
    let task = TestTask::new("task").dockerfile("FROM test\nWORKDIR /app\nUSER daemon\n");
    let job = job().task(task).oracle();
    let output = job.command_as_user(&["run", "job.yaml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let message = trial(&job, "oracle/set/task__1")["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("cannot run as daemon") && message.contains("run rollout as root"), "{message}");
    job.expect_nothing_left();
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
fn as_root_every_limit_but_that_of_storage_holds() {
    let result = job().task(TestTask::new("task")).oracle().run().expect(0).trial("oracle/set/task__1");
    let enforced = &result["environment"]["enforced"];
    assert_eq!(*enforced, json!({"cpus": true, "memory": true, "pids": true, "storage": false}));
}

#[test]
fn an_image_whose_registry_does_not_answer_is_reported_with_the_mapping_to_write() {
    // Nothing listens on this port.
    let image = "127.0.0.1:1/app:1";
    let base = TestTask::new("task").dockerfile(&format!("FROM {image}\n"));
    let named = TestTask::new("task").config(&format!("[environment]\ndocker_image = \"{image}\"\n"));
    for (task, kind) in [(base, "environment_build_failed"), (named, "environment_image_pull_failed")] {
        let job = job().task(task).oracle().set("environment/provider_config", json!({}));
        let result = job.run().expect(1).trial("oracle/set/task__1");
        assert_eq!(result["error"]["type"], kind, "{result:#}");
        let message = result["error"]["message"].as_str().unwrap();
        assert!(message.contains("images: {\"127.0.0.1:1/app:1\": host}"), "{message}");
    }
}

#[test]
fn an_image_that_goes_missing_is_environment_start_failed_after_every_try() {
    let gate = Gate::new();
    let task = TestTask::new("task").dockerfile("FROM test\nRUN touch /built\n");
    let job = job()
        .task(task)
        .script(&gate.wait())
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(1))
        .set("retry/max_attempts", json!(2));
    let running = job.start();
    let first = gate.arrival();
    fs::rename(job.state_dir().join("layers"), job.root().join("gone")).unwrap();
    first.pass();
    let finished = running.finish().expect(1);
    let result = finished.trial("agent/set/task__2");
    assert_eq!(result["error"]["type"], "environment_start_failed", "{result:#}");
    assert_eq!(result["tries"], 2);
    assert!(finished.file("agent/set/task__2/tries/1/error.txt").starts_with("environment_start_failed"));
}

#[test]
fn the_host_is_out_of_sight() {
    // Of its variable data, only the list of the installed packages is there, because package managers need it.
    let script = "diff -r /etc/skel /root; ls -A /home /mnt /srv | grep -v ':$'; cat /etc/shadow /proc/1/environ 2>/dev/null
                  find /run /var -path /var/lib/dpkg -prune -o -type f -print -o -type s -print; ls /dev | sort | tr '\\n' ' '; echo; id -u; hostname; touch /usr/local/rollout-was-here";
    let finished = job().task(TestTask::new("task")).script(script).run().expect(0);
    let output = finished.file("agent/set/task__1/command/stdout.txt");
    assert!(!Path::new("/usr/local/rollout-was-here").exists());
    insta::assert_snapshot!(output.trim_start(), @"
    fd full null ptmx pts random shm stderr stdin stdout tty urandom zero 
    0
    task-agent-1
    ");
}

#[test]
fn an_agent_gets_no_new_privileges_no_devices_and_no_namespaces() {
    let script = "mknod /app/disk b 8 0 && echo device
        unshare -U true && echo user namespace
        awk '/NoNewPrivs/ { print $2 }' /proc/self/status";
    let finished = job().task(TestTask::new("task")).script(script).run().expect(0);
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "1\n");
}

/// A process that outlives the agent's script, and looks for the word `needle` where the tests and their variables are.
const SPY: &str = "cat > /tmp/spy.sh <<'END'
while :; do
    grep -qs needle /tests/* /logs/verifier/* /proc/[0-9]*/environ && touch /app/seen
    touch /app/looked
done
END
setsid bash /tmp/spy.sh > /dev/null 2>&1 < /dev/null &
until [ -e /app/looked ]; do sleep 0.01; done
";

#[test]
fn a_process_of_the_agent_reads_neither_the_tests_nor_the_secrets_of_the_verifier() {
    let tests = "echo needle > /logs/verifier/log.txt
        # The spy has looked at everything at least once.
        for round in 1 2 3; do rm -f /app/looked; until [ -e /app/looked ]; do sleep 0.01; done; done
        if [ $KEY = needle ] && [ ! -e /app/seen ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n";
    let config = "[verifier]\ntimeout_sec = 60\n[verifier.env]\nKEY = \"needle\"\n";
    let job = job().task(TestTask::new("task").tests(tests).config(config)).script(SPY);
    let result = job.run().expect(0).trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null), "{result:#}");
    assert_eq!(result["tampering"], Value::Null, "{result:#}");
    assert!(result["survivors"].to_string().contains("spy.sh"), "{result:#}");
    job.expect_nothing_left();
}

#[test]
fn preserved_environments_outlive_other_jobs_and_clean_until_they_are_named() {
    let job = job().task(TestTask::new("task")).oracle().set("environment/preserve_env", json!("always"));
    let place = job.run().expect(0).trial("oracle/set/task__1")["environment"]["preserved"].clone();
    let place = PathBuf::from(place.as_str().unwrap());
    job.rollout(&["run", "job.yaml", "--set", "name=other", "--set", "environment.preserve_env=never"])
        .expect(0);
    job.rollout(&["clean"]).expect(0);
    assert!(place.is_dir(), "{} is gone", place.display());
    job.rollout(&["clean", "--preserved"]).expect(0);
    assert!(!place.exists());
    assert_eq!(job.environments(), Vec::<PathBuf>::new());
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

/// A directory that cannot be changed or moved until it is dropped.
struct Immutable(PathBuf);

impl Immutable {
    fn new(dir: PathBuf) -> Self {
        assert!(Self::attribute("+i", &dir), "chattr needs root, and a file system that knows attributes");
        Self(dir)
    }

    fn attribute(change: &str, dir: &Path) -> bool {
        Command::new("chattr").arg(change).arg(dir).status().unwrap().success()
    }

    /// Makes a file that the agent has made immutable, from outside: inside, this is forbidden.
    #[track_caller]
    fn file(job: &TestJob, name: &str) -> PathBuf {
        let upper = job.environments().remove(0).join("upper");
        let found = Command::new("find").arg(&upper).args(["-name", name]).output().unwrap();
        let path = PathBuf::from(String::from_utf8(found.stdout).unwrap().trim_end());
        assert!(path.is_file(), "no {name} in {}", upper.display());
        assert!(Self::attribute("+i", &path), "chattr needs root, and a file system that knows attributes");
        path
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
fn an_immutable_file_is_removed_with_its_environment() {
    let gate = Gate::new();
    let script = "touch /app/done /app/immutable\n".to_owned() + &gate.wait();
    let job = job().task(TestTask::new("task")).script(&script);
    let running = job.start();
    let arrival = gate.arrival();
    let file = Immutable::file(&job, "immutable");
    arrival.pass();
    let result = running.finish().expect(0).trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null), "{result:#}");
    assert!(!file.exists());
    job.expect_nothing_left();
}

#[test]
fn files_that_cannot_be_removed_are_named_at_the_end_of_the_job_and_clean_removes_them() {
    let gate = Gate::new();
    let script = "touch /app/done /app/immutable\n".to_owned() + &gate.wait();
    let job = job().task(TestTask::new("task")).script(&script);
    let plain = job.command(&["run", "job.yaml"]);
    let mut restricted = Command::new("setpriv");
    restricted.args(["--bounding-set=-linux_immutable", "--inh-caps=-linux_immutable"]);
    restricted.arg(plain.get_program()).args(plain.get_args()).current_dir(job.root()).env_clear();
    restricted.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let running = restricted.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let arrival = gate.arrival();
    Immutable::file(&job, "immutable");
    arrival.pass();
    let output = running.wait_with_output().unwrap();
    let left = job.environments();
    job.rollout(&["clean"]).expect(0);
    job.expect_nothing_left();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(left.len(), 1, "{left:?}");
    let warning = said.lines().find(|line| line.starts_with("warning: cannot remove ")).unwrap_or(&said);
    assert!(warning.contains(&*left[0].to_string_lossy()), "{warning}");
    assert!(warning.contains("/immutable: Operation not permitted"), "{warning}");
    assert!(warning.ends_with("`rollout clean` tries again"), "{warning}");
    let result: Value = serde_json::from_slice(&fs::read(job.dir().join("result.json")).unwrap()).unwrap();
    assert_eq!(result["teardown_warnings"], json!([warning.trim_start_matches("warning: ")]));
    let at = |line: &str| said.find(line).unwrap_or(usize::MAX);
    assert!(at(warning) < at("agent  dataset"), "the summary comes last: {said}");
    assert_eq!(trial(&job, "agent/set/task__1")["error"], Value::Null);
}

#[test]
fn doctor_reports_what_this_machine_can_run() {
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
