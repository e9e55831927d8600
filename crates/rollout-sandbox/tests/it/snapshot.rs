//! Snapshots: their content, how they are found, and what happens to the sandbox.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
};

use rollout_sandbox::{Image, RunningSandbox, SandboxSpec};

use crate::common::{Host, engine, out, start};

async fn sandbox_on(host: &Host, image: Image) -> RunningSandbox {
    let spec = SandboxSpec { image, ..host.spec().await };
    host.engine.create(spec).await.unwrap()
}

#[tokio::test]
async fn a_sandbox_continues_after_its_snapshot_with_only_its_files() {
    let host = Host::start().await;
    let mut sandbox = host.sandbox().await;
    let (id, dir) = (sandbox.id().to_owned(), sandbox.root_dir().to_owned());
    out(&sandbox, "echo kept > /opt/file; rm /etc/passwd; chmod 700 /opt; ln /opt/file /opt/hard").await;
    let _process = start(&sandbox, "setsid sleep 1000 & exec sleep 1000").await;
    sandbox.snapshot("key").await.unwrap();
    assert_eq!((sandbox.id(), sandbox.root_dir()), (id.as_str(), dir.as_path()));
    assert!(sandbox.survivors().await.unwrap().is_empty());
    let look = "cat /opt/hard; test ! -e /etc/passwd; stat -c %a /opt; echo later > /opt/later";
    assert_eq!(out(&sandbox, look).await, "kept\n700\n");

    let image = host.engine.snapshot("key").await.unwrap().unwrap();
    let other = sandbox_on(&host, image).await;
    assert_eq!(out(&other, "cat /opt/hard; test ! -e /etc/passwd; ls /opt").await, "kept\nfile\nhard\n");
    sandbox.destroy().await.unwrap();
    assert!(!dir.exists());
    assert_eq!(out(&other, "cat /opt/file").await, "kept\n", "it does not need the first one");
    other.destroy().await.unwrap();
}

#[tokio::test]
async fn the_first_snapshot_of_a_key_stays() {
    let host = Host::start().await;
    for text in ["first", "second"] {
        let mut sandbox = host.sandbox().await;
        out(&sandbox, &format!("echo {text} > /opt/file")).await;
        sandbox.snapshot("key").await.unwrap();
        assert_eq!(out(&sandbox, "cat /opt/file").await, format!("{text}\n"));
        sandbox.destroy().await.unwrap();
    }
    let image = host.engine.snapshot("key").await.unwrap().unwrap();
    let sandbox = sandbox_on(&host, image).await;
    assert_eq!(out(&sandbox, "cat /opt/file").await, "first\n");
    assert!(host.engine.snapshot("other").await.unwrap().is_none());
    assert!(host.engine.snapshot("../other").await.is_err());
}

#[tokio::test]
async fn snapshots_can_be_made_on_snapshots() {
    let host = Host::start().await;
    let mut image = host.engine.host_image().await.unwrap();
    for key in ["a", "b", "c"] {
        let mut sandbox = sandbox_on(&host, image).await;
        out(&sandbox, &format!("touch /opt/{key}")).await;
        sandbox.snapshot(key).await.unwrap();
        sandbox.destroy().await.unwrap();
        image = host.engine.snapshot(key).await.unwrap().unwrap();
    }
    assert_eq!(out(&sandbox_on(&host, image).await, "ls /opt").await, "a\nb\nc\n");
}

const STATE_DIR: &str = "ROLLOUT_SANDBOX_TEST_SNAPSHOT_STATE_DIR";

/// Creates snapshots until it is killed, in the process that the next test starts.
async fn make_snapshots_if_child() {
    let Some(state_dir) = std::env::var_os(STATE_DIR) else { return };
    let engine = engine(Path::new(&state_dir)).await;
    for number in 0.. {
        let spec = SandboxSpec {
            name: "test".into(),
            image: engine.host_image().await.unwrap(),
            network: rollout_sandbox::Network::None,
            limits: rollout_sandbox::SandboxLimits::default(),
            private_dirs: Vec::new(),
            hosts: Vec::new(),
        };
        let mut sandbox = engine.create(spec).await.unwrap();
        out(&sandbox, "mkdir /opt/d; for n in $(seq 50); do echo $n > /opt/d/$n; done").await;
        println!("\nmaking {number}");
        sandbox.snapshot(&number.to_string()).await.unwrap();
        sandbox.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn a_kill_in_the_middle_leaves_whole_snapshots_or_none() {
    make_snapshots_if_child().await;
    let host = Host::start().await;
    let name = "snapshot::a_kill_in_the_middle_leaves_whole_snapshots_or_none";
    let mut found = 0;
    for last in [1, 2, 3, 4] {
        let state = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(STATE_DIR, state.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let wanted = format!("making {last}");
        assert!(lines.map_while(Result::ok).any(|line| line == wanted));
        child.kill().unwrap();
        child.wait().unwrap();
        let engine = engine(state.path()).await;
        for number in 0..=last {
            let Some(image) = engine.snapshot(&number.to_string()).await.unwrap() else {
                assert_eq!(number, last, "those that were made are found");
                continue;
            };
            found += 1;
            let spec = SandboxSpec { image, ..host.spec().await };
            let sandbox = engine.create(spec).await.unwrap();
            assert_eq!(out(&sandbox, "cat /opt/d/* | wc -l").await, "50\n");
            sandbox.destroy().await.unwrap();
        }
        assert!(fs::read_dir(state.path().join("snapshots")).unwrap().count() <= last + 1);
    }
    assert!(found >= 10);
}
