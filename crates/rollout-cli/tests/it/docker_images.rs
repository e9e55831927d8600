//! Images of docker jobs: pulled only when absent, with the user's credentials, and built by either builder.

use std::{fs, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rollout_testkit::{TestEngine, TestJob, TestRegistry, TestTask, until};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout")).on(&TestEngine::shared())
}

/// A task that runs in this image as it is.
fn in_image(name: &str, image: &str) -> TestTask {
    TestTask::new(name)
        .without("environment/Dockerfile")
        .solution("mkdir /app && touch /app/done\n")
        .config(&format!("version = \"1.0\"\n[environment]\ndocker_image = \"{image}\"\n"))
}

/// The job with a login to the registry.
fn logged_in(job: TestJob, registry: &TestRegistry) -> TestJob {
    registry.write_login(&job.root().join("docker"));
    let config = job.root().join("docker");
    job.env("DOCKER_CONFIG", &config.display().to_string())
}

/// Every file below a directory that holds this text.
fn holding(dir: &Path, needle: &str) -> Vec<String> {
    let mut found = Vec::new();
    // There may be no state at all.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(holding(&entry.path(), needle));
        } else if String::from_utf8_lossy(&fs::read(entry.path()).unwrap_or_default()).contains(needle) {
            found.push(entry.path().display().to_string());
        }
    }
    found
}

#[test]
fn a_private_image_is_pulled_once_for_all_trials_and_not_again_while_it_is_there() {
    let registry = TestRegistry::shared();
    let image = registry.push(&TestEngine::shared(), "test", "pulled-once:1");
    let pushes = registry.requests("pulled-once").len();
    let run = || {
        let job = logged_in(job(), &registry)
            .task(in_image("pulled", &image))
            .set("n_attempts", json!(4))
            .set("log_level", json!("trace"))
            .oracle();
        let finished = job.rollout(&["run", "job.yaml", "--output", "json"]).expect(0);
        assert_eq!(finished.result()["completed_trials"], 4);
        let secret = BASE64_STANDARD.encode(format!("tester:{}", registry.password()));
        for needle in [registry.password(), &secret] {
            assert_eq!(holding(&job.dir(), needle), Vec::<String>::new());
            assert_eq!(holding(&job.state_dir(), needle), Vec::<String>::new());
            assert!(!finished.stdout().contains(needle) && !finished.stderr().contains(needle));
        }
    };
    run();
    let pulls = registry.requests("pulled-once").split_off(pushes);
    let manifests =
        pulls.iter().filter(|request| request.starts_with("GET") && request.contains("/manifests/"));
    assert_eq!(manifests.count(), 1, "{pulls:#?}");
    run();
    assert_eq!(registry.requests("pulled-once").len(), pushes + pulls.len());
}

#[test]
fn wrong_credentials_fail_the_pull_without_a_retry_and_appear_nowhere() {
    let registry = TestRegistry::shared();
    let image = registry.push(&TestEngine::shared(), "test", "wrong-login:1");
    let wrong = "a-password-that-is-wrong";
    let job = job().task(in_image("wrong", &image)).set("log_level", json!("trace")).oracle();
    let config = job.root().join("docker");
    registry.write_wrong_login(&config, wrong);
    let job = job.env("DOCKER_CONFIG", &config.display().to_string());
    let finished = job.rollout(&["run", "job.yaml", "--output", "json"]).expect(1);
    let trial = finished.trial("oracle/set/wrong__1");
    assert_eq!(trial["error"]["type"], "environment_image_pull_failed");
    assert_eq!(trial["tries"], 1);
    let message = trial["error"]["message"].as_str().unwrap();
    assert!(message.contains(&image) && message.contains("docker login"), "{message}");
    for needle in [wrong, &BASE64_STANDARD.encode(format!("tester:{wrong}"))] {
        assert_eq!(holding(&job.dir(), needle), Vec::<String>::new());
        assert_eq!(holding(&job.state_dir(), needle), Vec::<String>::new());
        assert!(!finished.stdout().contains(needle) && !finished.stderr().contains(needle));
    }
}

#[test]
fn an_image_that_does_not_exist_fails_the_pull_by_name() {
    let registry = TestRegistry::shared();
    let image = registry.image("never-pushed:1");
    let job = logged_in(job(), &registry).task(in_image("absent", &image)).oracle();
    let finished = job.run().expect(1);
    let error = finished.trial("oracle/set/absent__1")["error"].clone();
    assert_eq!(error["type"], "environment_image_pull_failed");
    assert!(error["message"].as_str().unwrap().contains(&image), "{error}");
}

#[test]
fn a_missing_image_that_a_build_copies_from_is_reported_by_name() {
    let registry = TestRegistry::shared();
    let image = registry.image("never-copied:1");
    let dockerfile = format!("FROM test\nWORKDIR /app\nCOPY --from={image} /x /x\n");
    let task = TestTask::new("copies").dockerfile(&dockerfile);
    let finished = logged_in(job(), &registry).task(task).oracle().run().expect(1);
    let error = finished.trial("oracle/set/copies__1")["error"].clone();
    assert_eq!(error["type"], "environment_build_failed");
    let message = error["message"].as_str().unwrap();
    let blamed = message.split(" is not available").next().unwrap();
    assert!(blamed.contains(&image) && !blamed.contains("test"), "{message}");
}

#[test]
fn a_failed_pull_of_a_task_with_a_dockerfile_says_how_to_build_it() {
    let registry = TestRegistry::shared();
    let image = registry.image("never-pushed:2");
    let task = TestTask::new("both")
        .config(&format!("version = \"1.0\"\n[environment]\ndocker_image = \"{image}\"\n"));
    let job = logged_in(job(), &registry).task(task).oracle();
    let finished = job.run().expect(1);
    let error = finished.trial("oracle/set/both__1")["error"].clone();
    assert_eq!(error["type"], "environment_image_pull_failed");
    assert!(
        error["message"].as_str().unwrap().contains("`environment.force_build: true` builds it"),
        "{error}"
    );
    job.rollout(&["run", "job.yaml", "--set", "name=built", "--set", "environment.force_build=true"])
        .expect(0);
}

#[test]
fn an_image_for_another_platform_only_is_reported_with_both_platforms() {
    let registry = TestRegistry::shared();
    let image = registry.push(&TestEngine::shared(), "test", "other-platform:1");
    let job = logged_in(job(), &registry)
        .set("environment/provider_config", json!({"platform": "linux/s390x"}))
        .task(in_image("platform", &image))
        .oracle();
    let finished = job.run().expect(1);
    let error = finished.trial("oracle/set/platform__1")["error"].clone();
    assert_eq!(error["type"], "environment_image_pull_failed");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("linux/s390x") && message.contains("linux/amd64"), "{message}");
}

#[test]
fn a_registry_that_cannot_be_reached_is_tried_again() {
    let job = job().task(in_image("unreachable", "127.0.0.1:9/nothing:1")).oracle();
    let finished = job.run().expect(1);
    let trial = finished.trial("oracle/set/unreachable__1");
    assert_eq!(trial["error"]["type"], "environment_image_pull_failed");
    assert_eq!(trial["tries"], 3, "{trial}");
}

#[test]
fn a_credential_helper_is_asked_for_the_login() {
    let registry = TestRegistry::shared();
    let image = registry.push(&TestEngine::shared(), "test", "by-helper:1");
    let address = registry.image("").trim_end_matches('/').to_owned();
    let answer = json!({"ServerURL": address, "Username": "tester", "Secret": registry.password()});
    let config = json!({"credHelpers": {&address: "tests"}});
    let job = job()
        .file("docker/config.json", &config.to_string())
        .file("bin/docker-credential-tests", &format!("#!/bin/sh\ncat >/dev/null\necho '{answer}'\n"))
        .task(in_image("helped", &image))
        .oracle();
    let root = job.root().display().to_string();
    let helper = job.root().join("bin/docker-credential-tests");
    fs::set_permissions(helper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{root}/bin:{}", std::env::var("PATH").unwrap());
    let job = job.env("DOCKER_CONFIG", &format!("{root}/docker")).env("PATH", &path);
    job.run().expect(0);
    assert_eq!(holding(&job.dir(), registry.password()), Vec::<String>::new());
}

/// Each builder's case: its name, and the job that uses it.
fn builders() -> [(&'static str, Value); 2] {
    ["classic", "buildkit"].map(|builder| (builder, json!({"network": "host", "builder": builder})))
}

#[test]
fn both_builders_make_the_image_and_leave_their_log() {
    for (builder, config) in builders() {
        let dockerfile = format!(
            "FROM test\nWORKDIR /app\nCOPY greeting /app/\nRUN echo made-by-{builder} | tee /app/by\n"
        );
        let task = TestTask::new("built")
            .file("environment/greeting", "hello\n")
            .file("environment/.dockerignore", "left-out\n")
            .file("environment/left-out", "")
            .dockerfile(&dockerfile);
        let job = job()
            .set("environment/provider_config", config)
            .task(task)
            .script("cat by greeting; ls; cat /.dockerenv")
            .set("n_attempts", json!(3));
        let finished = job.run().expect(0);
        let printed = finished.file("agent/set/built__1/command/stdout.txt");
        assert_eq!(printed, format!("made-by-{builder}\nhello\nby\ngreeting\n"));
        let logs: Vec<String> = (1..=3)
            .map(|attempt| job.dir().join(format!("agent/set/built__{attempt}/environment/build.txt")))
            .filter_map(|log| fs::read_to_string(log).ok())
            .collect();
        let [log] = logs.as_slice() else { panic!("one trial built the image: {logs:#?}") };
        assert!(log.contains(&format!("made-by-{builder}")), "{log}");
    }
}

#[test]
fn a_failing_command_of_a_dockerfile_is_quoted_with_either_builder() {
    for (builder, config) in builders() {
        let task = TestTask::new("failing")
            .dockerfile(&format!("FROM test\nRUN echo words-of-{builder} && exit 7\n"));
        let job = job().set("environment/provider_config", config).task(task).oracle();
        let finished = job.run().expect(1);
        let trial = finished.trial("oracle/set/failing__1");
        assert_eq!(trial["error"]["type"], "environment_build_failed");
        assert_eq!(trial["tries"], 1);
        let message = trial["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("words-of-{builder}")) && message.contains('7'), "{message}");
    }
}

#[test]
fn a_private_base_image_is_fetched_with_the_login_by_either_builder() {
    let registry = TestRegistry::shared();
    for (builder, config) in builders() {
        let name = format!("base-for-{builder}:1");
        let image = registry.push(&TestEngine::shared(), "test", &name);
        let task = TestTask::new("private").dockerfile(&format!("FROM {image}\nWORKDIR /app\n"));
        let job = job().set("environment/provider_config", config.clone()).task(task.clone()).oracle();
        logged_in(job, &registry).run().expect(0);

        let other = registry.push(&TestEngine::shared(), "test", &format!("refused-to-{builder}:1"));
        let task = task.dockerfile(&format!("FROM {other}\nWORKDIR /app\n"));
        let job = self::job().set("environment/provider_config", config).task(task).oracle();
        let finished = job.run().expect(1);
        let error = finished.trial("oracle/set/private__1")["error"].clone();
        assert_eq!(error["type"], "environment_build_failed", "{error}");
        assert!(error["message"].as_str().unwrap().contains(&other), "{error}");
    }
}

#[test]
fn a_build_over_its_time_is_stopped_in_the_engine_with_either_builder() {
    for (builder, config) in builders() {
        // Found again among the machine's processes by the number of seconds.
        let seconds = format!("86{}", builder.len());
        let task = TestTask::new("slow")
            .dockerfile(&format!("FROM test\nRUN sleep {seconds}\n"))
            .config("version = \"1.0\"\n[environment]\nbuild_timeout_sec = 3\n");
        let job = job().set("environment/provider_config", config).task(task).oracle();
        let finished = job.run().expect(1);
        assert_eq!(finished.trial("oracle/set/slow__1")["error"]["type"], "environment_build_timeout");
        until(&format!("no sleep of {builder}"), || !processes().contains(&format!("sleep {seconds}")));
        let of_build =
            || TestEngine::shared().docker(&["ps", "--all", "--no-trunc", "--format", "{{.Command}}"]);
        until("no container of the build", || !of_build().contains(&format!("sleep {seconds}")));
    }
}

/// The command lines of everything that runs.
fn processes() -> String {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ") + "\n").collect()
}

/// A server that counts the lines it gets, and answers `no` to the first line of each kind that it should fail.
fn counting_server(fails_once: &'static str) -> (u16, std::sync::Arc<std::sync::Mutex<Vec<String>>>) {
    use std::io::{BufRead as _, BufReader, Write as _};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let lines = std::sync::Arc::clone(&seen);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut line = String::new();
            if BufReader::new(&client).read_line(&mut line).is_err() {
                continue;
            }
            let line = line.trim().to_owned();
            let mut lines = lines.lock().unwrap();
            let answer = if line == fails_once && !lines.contains(&line) { "no" } else { "yes" };
            lines.push(line);
            let _ = client.write_all(format!("{answer}\n").as_bytes());
        }
    });
    (port, seen)
}

#[test]
fn a_forced_build_continues_after_a_network_failure_and_is_done_once_for_a_job() {
    for (builder, config) in builders() {
        let (port, seen) = counting_server("second");
        let asks = |word: &str| {
            let script = format!(
                "exec 3<>/dev/tcp/127.0.0.1/{port}; echo {word} >&3; read -r answer <&3; [ $answer = yes ] || \
                 {{ echo Temporary failure resolving packages.example; exit 1; }}"
            );
            format!("RUN {}\n", json!(["bash", "-c", script]))
        };
        let dockerfile = format!("FROM test\nWORKDIR /app\n{}{}", asks("first"), asks("second"));
        let job = job()
            .set("environment/provider_config", config)
            .set("environment/force_build", json!(true))
            .set("n_attempts", json!(3))
            .set("n_concurrent_trials", json!(1))
            .task(TestTask::new("forced").dockerfile(&dockerfile))
            .oracle();
        let finished = job.run().expect(0);
        assert_eq!(finished.trial("oracle/set/forced__1")["tries"], 2, "{builder}");
        assert_eq!(*seen.lock().unwrap(), ["first", "second", "second"], "{builder}");
        // Another job builds again, without the cache.
        job.rollout(&["run", "job.yaml", "--set", "name=again"]).expect(0);
        assert_eq!(seen.lock().unwrap().len(), 5, "{builder}");
    }
}
