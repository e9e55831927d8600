//! Which engine a docker job finds, and what `provider_config` makes of its containers.

use rollout_testkit::{Finished, TestEngine, TestJob, TestTask};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

/// What a script prints in a container that these settings make.
#[track_caller]
fn printed(task: &str, provider_config: Value, script: &str) -> (String, Finished) {
    let job = job()
        .on(&TestEngine::shared())
        .set("environment/provider_config", provider_config)
        .task(TestTask::new(task))
        .script(script);
    let finished = job.run().expect(0);
    (finished.file(&format!("agent/set/{task}__1/command/stdout.txt")), finished)
}

/// The output of the command for settings with which no container can be created, before anything runs.
#[track_caller]
fn refused(provider_config: Value) -> String {
    let job = job()
        .on(&TestEngine::shared())
        .set("environment/provider_config", provider_config)
        .task(TestTask::new("refused"))
        .oracle();
    let refused = job.run().expect(2);
    assert!(!job.dir().exists(), "a refused job has no directory");
    refused.stderr()
}

#[test]
fn an_engine_that_does_not_answer_is_reported_before_anything_runs() {
    let job = job()
        .set("environment", json!({"type": "docker"}))
        .env("DOCKER_HOST", "unix:///nonexistent/engine.sock")
        .task(TestTask::new("task"))
        .oracle();
    let refused = job.run().expect(2);
    let stderr = refused.stderr();
    assert!(stderr.contains("no Docker engine answers"), "{stderr}");
    assert!(stderr.contains("/nonexistent/engine.sock"), "{stderr}");
    assert!(stderr.contains("hint: ") && stderr.contains("type: native"), "{stderr}");
    assert!(!job.dir().exists());
}

#[test]
fn without_an_address_every_usual_socket_is_tried_and_named() {
    let job = job().set("environment", json!({"type": "docker"})).task(TestTask::new("task")).oracle();
    let stderr = job.run().expect(2).stderr();
    for socket in ["/var/run/docker.sock", ".docker/run/docker.sock", "/run/podman/podman.sock"] {
        assert!(stderr.contains(socket), "{socket} is not in {stderr}");
    }
}

#[test]
fn an_engine_behind_ssh_is_refused_with_the_way_to_reach_it() {
    let job = job()
        .set("environment", json!({"type": "docker"}))
        .env("DOCKER_HOST", "ssh://user@example.test")
        .task(TestTask::new("task"))
        .oracle();
    let stderr = job.run().expect(2).stderr();
    assert!(stderr.contains("ssh -nNT -L"), "{stderr}");
}

#[test]
fn a_context_of_the_docker_command_leads_to_the_engine() {
    let engine = TestEngine::shared();
    // A context's directory is named by the SHA-256 of its name.
    let digest = "59830ebc3a4184110566bf1a290d08473dfdcbd492ce498b14cd1a5e2fa2e441";
    let meta = json!({"Name": "tests", "Endpoints": {"docker": {"Host": engine.host()}}});
    let job = job()
        .set("environment", json!({"type": "docker"}))
        .file(".docker/config.json", r#"{"currentContext": "tests"}"#)
        .file(&format!(".docker/contexts/meta/{digest}/meta.json"), &meta.to_string())
        .task(TestTask::new("by-context"))
        .oracle();
    let finished = job.run().expect(0);
    assert_eq!(finished.trial("oracle/set/by-context__1")["environment"]["provider"], "docker");
}

#[test]
fn a_job_that_names_no_environment_runs_on_docker_where_an_engine_answers_and_natively_elsewhere() {
    let run = |job: TestJob| {
        let finished = job.task(TestTask::new("unnamed")).oracle().run().expect(0);
        (finished.trial("oracle/set/unnamed__1")["environment"]["provider"].clone(), finished.stdout())
    };
    let (provider, stdout) =
        run(job().set("environment", json!({})).env("DOCKER_HOST", TestEngine::shared().host()));
    assert_eq!(provider, "docker");
    assert!(stdout.contains("on docker 20"), "{stdout}");
    let unnamed = job().set("environment", json!({"provider_config": {"images": {"*": "host"}}}));
    let (provider, stdout) = run(unnamed.env("DOCKER_HOST", "unix:///nonexistent/engine.sock"));
    assert_eq!(provider, "native");
    assert!(stdout.contains("on native"), "{stdout}");
}

#[test]
fn a_dry_run_of_a_job_that_names_no_environment_shows_the_engine_that_answers() {
    let job = job().set("environment", json!({})).env("DOCKER_HOST", TestEngine::shared().host());
    let job = job.task(TestTask::new("dry")).oracle();
    let shown = job.rollout(&["run", "job.yaml", "--dry-run"]).expect(0).stdout();
    assert!(shown.contains("provider  docker 20"), "{shown}");
    assert!(!job.dir().exists());
}

#[test]
fn the_default_network_is_the_engines_bridge() {
    let (interfaces, finished) = printed("bridge", json!({}), "ls /sys/class/net");
    assert_eq!(interfaces, "eth0\nlo\n");
    assert_eq!(finished.trial("agent/set/bridge__1")["environment"]["network"], "bridge");
}

#[test]
fn network_none_has_loopback_alone() {
    let (interfaces, finished) = printed("none", json!({"network": "none"}), "ls /sys/class/net");
    assert_eq!(interfaces, "lo\n");
    assert_eq!(finished.trial("agent/set/none__1")["environment"]["network"], "none");
}

#[test]
fn a_named_network_is_used_and_no_network_is_made() {
    let engine = TestEngine::shared();
    engine.docker(&["network", "create", "--subnet", "10.213.0.0/24", "settings-named"]);
    let before = engine.networks();
    let (addresses, finished) =
        printed("named", json!({"network": "settings-named"}), "cat /proc/net/fib_trie");
    assert!(addresses.contains("10.213.0."), "{addresses}");
    assert_eq!(finished.trial("agent/set/named__1")["environment"]["network"], "settings-named");
    assert_eq!(engine.networks(), before);
    engine.docker(&["network", "rm", "settings-named"]);
}

#[test]
fn a_network_that_does_not_exist_is_refused_with_those_that_do() {
    let stderr = refused(json!({"network": "settings-missing"}));
    assert!(stderr.contains("settings-missing") && stderr.contains("bridge"), "{stderr}");
    assert!(stderr.contains("docker network create"), "{stderr}");
    let stderr = refused(json!({"network": "container:settings-missing"}));
    assert!(stderr.contains("no such container"), "{stderr}");
}

#[test]
fn an_unknown_runtime_is_refused_with_those_that_are_known() {
    let stderr = refused(json!({"runtime": "settings-runtime"}));
    assert!(stderr.contains("settings-runtime") && stderr.contains("runc"), "{stderr}");
}

#[test]
fn a_runtime_that_the_engine_knows_is_used() {
    let (printed, _) = printed("runtime", json!({"runtime": "runc"}), "echo runs");
    assert_eq!(printed, "runs\n");
}

#[test]
fn an_unknown_key_is_refused_with_the_known_ones() {
    let stderr = refused(json!({"netwrok": "host"}));
    assert!(stderr.contains("netwrok") && stderr.contains("extra_hosts"), "{stderr}");
}

#[test]
fn mounts_can_be_directories_volumes_and_memory() {
    let engine = TestEngine::shared();
    engine.docker(&["volume", "create", "settings-volume"]);
    let job = job().on(&engine).file("shared/from-host", "hello\n");
    let mounts = json!([
        {"type": "bind", "source": job.root().join("shared"), "target": "/mnt/bind", "read_only": true},
        {"type": "volume", "source": "settings-volume", "target": "/mnt/volume"},
        {"type": "tmpfs", "target": "/mnt/memory"},
    ]);
    let script = "cat /mnt/bind/from-host
        touch /mnt/bind/new 2>/dev/null || echo read-only
        touch /mnt/volume/kept
        grep -c ' /mnt/memory tmpfs' /proc/mounts";
    let job = job
        .set("environment/provider_config", json!({"mounts": mounts}))
        .task(TestTask::new("mounts"))
        .script(script);
    let printed = job.run().expect(0).file("agent/set/mounts__1/command/stdout.txt");
    assert_eq!(printed, "hello\nread-only\n1\n");
    let kept = ["run", "--rm", "--volume", "settings-volume:/v", "test", "ls", "/v"];
    assert_eq!(engine.docker(&kept), "kept");
    engine.docker(&["volume", "rm", "settings-volume"]);
}

#[test]
fn a_mount_whose_source_is_missing_fails_the_start_once_and_says_so() {
    let mounts = json!([{"type": "bind", "source": "/nonexistent/source", "target": "/mnt"}]);
    let job = job()
        .on(&TestEngine::shared())
        .set("environment/provider_config", json!({"mounts": mounts}))
        .task(TestTask::new("no-source"))
        .oracle();
    let finished = job.run().expect(1);
    let trial = finished.trial("oracle/set/no-source__1");
    assert_eq!(trial["tries"], 1);
    let error = &trial["error"];
    assert_eq!(error["type"], "environment_start_failed");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("/nonexistent/source") && message.contains("must exist"), "{message}");
    TestEngine::shared().expect_no_container("no-source");
}

#[test]
fn logs_that_cannot_be_written_fail_the_start_once_and_are_named() {
    let job = job().on(&TestEngine::shared()).file("read-only/file", "");
    let mounts = json!([{"source": job.root().join("read-only"), "target": "/logs", "read_only": true}]);
    let job = job
        .set("environment/provider_config", json!({"mounts": mounts}))
        .task(TestTask::new("no-logs"))
        .oracle();
    let trial = job.run().expect(1).trial("oracle/set/no-logs__1");
    assert_eq!(trial["error"]["type"], "environment_start_failed");
    let message = trial["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("/logs/agent") && message.contains("Read-only"), "{message}");
    assert_eq!(trial["tries"], 1);
}

#[test]
fn extra_hosts_and_name_servers_reach_the_containers_files() {
    let config = json!({"extra_hosts": {"model.test": "192.0.2.7"}, "dns": ["192.0.2.53"]});
    let (printed, _) =
        printed("hosts", config, "grep -c '192.0.2.7.*model.test' /etc/hosts; cat /etc/resolv.conf");
    assert!(printed.starts_with("1\n") && printed.contains("nameserver 192.0.2.53"), "{printed}");
}

#[test]
fn commands_run_as_the_user_of_the_job() {
    let (printed, _) = printed("user", json!({"user": "nobody"}), "id -un; touch /logs/agent/mine");
    assert_eq!(printed, "nobody\n");
    let (printed, _) = self::printed("number", json!({"user": 1234}), "id -u");
    assert_eq!(printed, "1234\n");
}

#[test]
fn the_error_names_a_user_that_is_missing_in_the_image() {
    let job = job()
        .on(&TestEngine::shared())
        .set("environment/provider_config", json!({"user": "settings-stranger"}))
        .task(TestTask::new("stranger"))
        .oracle();
    let finished = job.run().expect(1);
    let error = finished.trial("oracle/set/stranger__1")["error"].clone();
    assert!(error["message"].as_str().unwrap().contains("settings-stranger"), "{error}");
}

#[test]
fn the_number_of_processes_is_limited() {
    let script = "cat /sys/fs/cgroup/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids/pids.max";
    let (printed, finished) = printed("pids", json!({"pids": 77}), script);
    assert_eq!(printed, "77\n");
    assert_eq!(finished.trial("agent/set/pids__1")["environment"]["enforced"]["pids"], true);
}

#[test]
fn storage_that_cannot_be_limited_is_said_once_and_recorded() {
    let job = job()
        .on(&TestEngine::shared())
        .set("environment/override_storage", json!("1G"))
        .task(TestTask::new("storage"))
        .set("n_attempts", json!(2))
        .oracle();
    let finished = job.run().expect(0);
    let said = format!("{}{}", finished.stdout(), finished.stderr());
    assert_eq!(said.matches("override_storage is not enforced").count(), 1, "{said}");
    for trial in ["oracle/set/storage__1", "oracle/set/storage__2"] {
        assert_eq!(finished.trial(trial)["environment"]["enforced"]["storage"], false);
    }
}

#[test]
fn more_memory_or_processors_than_the_engine_has_is_a_failed_allocation() {
    for (name, key, value) in [("much", "memory", "\"4096G\""), ("many", "cpus", "4096")] {
        let config = format!("version = \"1.0\"\n[environment]\n{key} = {value}\n");
        let job = job().on(&TestEngine::shared()).task(TestTask::new(name).config(&config)).oracle();
        let finished = job.run().expect(1);
        let error = finished.trial(&format!("oracle/set/{name}__1"))["error"].clone();
        assert_eq!(error["type"], "environment_resource_allocation_failed", "{error}");
    }
}

#[test]
fn podman_runs_the_same_job() {
    let engine = TestEngine::podman();
    let job = job().on(&engine).task(TestTask::new("on-podman")).set("n_attempts", json!(3)).oracle();
    let finished = job.run().expect(0);
    assert_eq!(finished.result()["completed_trials"], 3);
    assert!(finished.stdout().contains("podman 4"), "{}", finished.stdout());
    engine.expect_no_container("on-podman");
}
