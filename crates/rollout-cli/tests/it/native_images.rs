//! Images of native jobs: pulled from a registry without an engine, verified, and kept.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use rollout_testkit::{TestEngine, TestJob, TestRegistry, TestTask};
use serde_json::json;

/// A job whose images come from the registry at this address.
fn job(registry: &TestRegistry, address: &str) -> TestJob {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"));
    let config = job.root().join("docker");
    registry.write_login_for(&config, address);
    let environment =
        json!({"type": "native", "provider_config": {"network": "none", "insecure_registries": [address]}});
    job.set("environment", environment).env("DOCKER_CONFIG", &config.display().to_string()).oracle()
}

/// A task that runs in this image as it is.
fn in_image(name: &str, image: &str) -> TestTask {
    TestTask::new(name)
        .without("environment/Dockerfile")
        .solution("mkdir /app && touch /app/done\n")
        .config(&format!("version = \"1.0\"\n[environment]\ndocker_image = \"{image}\"\n"))
}

#[test]
fn an_image_is_pulled_once_and_serves_every_task_that_names_it() {
    let registry = TestRegistry::shared();
    let image = registry.push(&TestEngine::shared(), "test", "native-once:1");
    let pushes = registry.requests("native-once").len();
    let job = job(&registry, registry.address())
        .task(in_image("as-it-is", &image))
        .task(
            TestTask::new("built")
                .dockerfile(&format!("FROM {image}\nWORKDIR /app\nRUN grep -q Debian /etc/os-release\n")),
        )
        .set("n_attempts", json!(2));
    let finished = job.run().expect(0);
    assert_eq!(finished.result()["mean_reward"], 1.0, "{:#}", finished.result());
    let pulls = registry.requests("native-once").split_off(pushes);
    let manifests = pulls.iter().filter(|request| request.contains("/manifests/"));
    assert_eq!(manifests.count(), 1, "{pulls:#?}");
    let again = job.rollout(&["run", "job.yaml", "--set", "name=again"]).expect(0);
    assert!(again.stdout().contains("4 completed"), "{}", again.stdout());
    assert_eq!(registry.requests("native-once").len(), pushes + pulls.len());
}

#[test]
fn a_credential_helper_gives_the_login() {
    let registry = TestRegistry::shared();
    let image = registry.push(&TestEngine::shared(), "test", "native-helper:1");
    let job = job(&registry, registry.address()).task(in_image("pulled", &image));
    let config = json!({"credHelpers": {registry.address(): "test"}});
    fs::write(job.root().join("docker/config.json"), config.to_string()).unwrap();
    let helper = job.root().join("helpers/docker-credential-test");
    fs::create_dir(helper.parent().unwrap()).unwrap();
    let answer = json!({"Username": "tester", "Secret": registry.password()});
    let script =
        format!("#!/bin/sh\nread registry\n[ $registry = {} ] && echo '{answer}'\n", registry.address());
    fs::write(&helper, script).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", helper.parent().unwrap().display(), std::env::var("PATH").unwrap());
    job.env("PATH", &path).run().expect(0);
}

#[test]
fn an_image_of_a_registry_that_is_down_comes_from_its_mirror() {
    let registry = TestRegistry::shared();
    registry.push(&TestEngine::shared(), "test", "mirrored/native:1");
    let down = "127.0.0.1:1";
    let mirrors = json!({down: [format!("{}/mirrored", registry.address())]});
    let job = job(&registry, registry.address())
        .task(in_image("pulled", &format!("{down}/native:1")))
        .set("environment/provider_config/mirrors", mirrors);
    let finished = job.run().expect(0);
    assert_eq!(finished.result()["mean_reward"], 1.0, "{:#}", finished.result());
}

#[test]
fn a_small_image_without_the_usual_directories_runs() {
    let registry = TestRegistry::shared();
    let image = registry.push(&TestEngine::shared(), "busybox", "native-small:1");
    let task = in_image("small", &image)
        .solution("#!/bin/sh\nmkdir /app && touch /app/done\n")
        .tests("#!/bin/sh\nls /proc/self /dev/null >/dev/null && echo 1 > /logs/verifier/reward.txt\n");
    let script = json!({"name": "agent", "execute": "mkdir /app"});
    let job = job(&registry, registry.address()).task(task).set("agents", json!([script]));
    // It has no bash, which scripts of tasks are run by.
    let finished = job.run().expect(1);
    let error = &finished.trial("agent/set/small__1")["error"];
    assert_eq!(error["type"], "agent_execution_failed", "{error:#}");
    assert!(error["message"].as_str().unwrap().contains("bash"), "{error:#}");
}

#[test]
fn an_image_that_does_not_exist_is_reported_with_what_to_do() {
    let registry = TestRegistry::shared();
    let image = registry.image("native-missing:1");
    let job = job(&registry, registry.address()).task(in_image("absent", &image));
    let finished = job.run().expect(1);
    let trial = finished.trial("oracle/set/absent__1");
    assert_eq!(
        (&trial["error"]["type"], &trial["tries"]),
        (&json!("environment_image_pull_failed"), &json!(1))
    );
    let message = trial["error"]["message"].as_str().unwrap();
    for words in ["native-missing:1", "docker login", "images: {"] {
        assert!(message.contains(words), "{words:?} is not in: {message}");
    }
}

/// What goes wrong with the first downloads of layers.
#[derive(Clone, Copy)]
enum Fault {
    /// The connection is cut in the middle.
    Cut,
    /// The server has too much to do.
    Busy,
    /// A byte is another one.
    Corrupt,
}

/// Stands between a client and the registry. Returns its address, and the number of faults so far.
fn faulty(registry: &TestRegistry, fault: Fault, times: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (upstream, faults) = (registry.address().to_owned(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&faults);
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, upstream, counted) = (client.unwrap(), upstream.clone(), Arc::clone(&counted));
            // A client may close its end at any time.
            thread::spawn(move || drop(pass_on(client, &upstream, fault, times, &counted)));
        }
    });
    (address, faults)
}

fn pass_on(
    mut client: TcpStream,
    upstream: &str,
    fault: Fault,
    times: usize,
    faults: &AtomicUsize,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(client.try_clone()?);
    let mut head = String::new();
    while lines.read_line(&mut head)? > 2 {}
    let is_blob = head.starts_with("GET") && head.contains("/blobs/");
    let is_large = |length: usize| length > 1 << 20;
    let head = head.trim_end().replace("\r\nconnection: keep-alive", "");
    let mut server = TcpStream::connect(upstream)?;
    write!(server, "{head}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    if !is_blob || !is_large(answer.len()) || faults.fetch_add(1, Ordering::SeqCst) >= times {
        return client.write_all(&answer);
    }
    match fault {
        Fault::Cut => client.write_all(&answer[..answer.len() / 2]),
        Fault::Busy => client
            .write_all(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        Fault::Corrupt => {
            let last = answer.len() - 1;
            answer[last] ^= 1;
            client.write_all(&answer)
        }
    }
}

#[test]
fn a_pull_recovers_from_cut_downloads_and_a_busy_registry() {
    let registry = TestRegistry::shared();
    for (name, fault) in [("native-cut:1", Fault::Cut), ("native-busy:1", Fault::Busy)] {
        registry.push(&TestEngine::shared(), "test", name);
        let (address, faults) = faulty(&registry, fault, 2);
        let task = in_image("pulled", &format!("{address}/{name}"));
        job(&registry, &address).task(task).run().expect(0);
        assert!(faults.load(Ordering::SeqCst) > 2, "{name}: the faults happened");
    }
}

#[test]
fn a_corrupt_layer_is_never_used() {
    let registry = TestRegistry::shared();
    registry.push(&TestEngine::shared(), "test", "native-corrupt:1");
    // A corrupt layer is downloaded once more.
    let (address, faults) = faulty(&registry, Fault::Corrupt, 2);
    let task = in_image("corrupt", &format!("{address}/native-corrupt:1"));
    let job = job(&registry, &address).task(task);
    let finished = job.run().expect(1);
    let error = &finished.trial("oracle/set/corrupt__1")["error"];
    assert_eq!(error["type"], "environment_image_pull_failed", "{error:#}");
    assert!(error["message"].as_str().unwrap().contains("does not have that hash"), "{error:#}");
    job.rollout(&["resume", "jobs/job", "--rerun", "error"]).expect(0);
    assert!(faults.load(Ordering::SeqCst) > 2);
}
