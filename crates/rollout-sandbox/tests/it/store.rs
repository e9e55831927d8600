//! The limit of the store: what is removed, and what stays usable.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rollout_sandbox::{SandboxEngine, SandboxSpec, StoreLimit, StoreLimiter};

use crate::common::{Host, engine, out};
use crate::project::{Project, look};

/// A line that makes a layer of 200 KiB with a name.
fn layer(name: &str) -> String {
    format!("RUN head -c 200000 /dev/urandom > /{name}\n")
}

fn limiter(engine: &SandboxEngine, kib: u64) -> Arc<Mutex<StoreLimiter>> {
    let limit = StoreLimit { size: Some(kib << 10), free: None };
    Arc::new(Mutex::new(StoreLimiter::new(engine.state_dir(), limit)))
}

fn layers(state_dir: &Path) -> usize {
    fs::read_dir(state_dir.join("layers")).unwrap().count()
}

/// The size of the host image in KiB, which is part of the store.
fn host_kib(state_dir: &Path) -> u64 {
    rollout_sandbox::disk_use(&state_dir.join("images")) >> 10
}

#[tokio::test]
async fn the_images_that_were_not_used_for_long_go_with_their_own_layers_alone() {
    let host = Host::start().await;
    let state = host.engine.state_dir();
    let shared = layer("shared");
    let one = Project::new(&format!("FROM base\n{shared}{}{}", layer("a"), layer("b")));
    let two = Project::new(&format!("FROM base\n{shared}{}", layer("c")));
    let image = one.build(&host).await.unwrap();
    two.build(&host).await.unwrap();
    assert_eq!(layers(state), 4);
    drop(image);
    // The first image is used again, so the layer of the second one goes.
    drop(one.build(&host).await.unwrap());
    let host_kib = host_kib(state);
    host.engine.limit_store(&limiter(&host.engine, host_kib + 700)).await.unwrap();
    assert_eq!(layers(state), 3);
    assert!(one.build(&host).await.unwrap().cached);
    // Of an image, the layers that others are built on go last.
    host.engine.limit_store(&limiter(&host.engine, host_kib + 450)).await.unwrap();
    assert_eq!(layers(state), 2);
    host.engine.limit_store(&limiter(&host.engine, host_kib + 250)).await.unwrap();
    let rest = Project::new(&format!("FROM base\n{shared}"));
    assert!(rest.build(&host).await.unwrap().cached, "the lowest layer is left");
    assert!(!one.build(&host).await.unwrap().cached, "what was removed is built again");
}

#[tokio::test]
async fn layers_of_images_in_use_stay() {
    let host = Host::start().await;
    let state = host.engine.state_dir();
    let project = Project::new(&format!("FROM base\n{}{}", layer("a"), layer("b")));
    let built = project.build(&host).await.unwrap();
    let everything = limiter(&host.engine, 0);
    host.engine.limit_store(&everything).await.unwrap();
    assert_eq!(layers(state), 2, "the image exists");
    let spec = SandboxSpec { image: built.image.clone(), ..host.spec().await };
    let sandbox = host.engine.create(spec).await.unwrap();
    drop(built);
    host.engine.limit_store(&everything).await.unwrap();
    assert_eq!(layers(state), 2, "a sandbox runs");
    assert_eq!(out(&sandbox, "stat -c %s /a /b").await, "200000\n200000\n");
    let kept = sandbox.preserve().await.unwrap();
    host.engine.limit_store(&everything).await.unwrap();
    assert_eq!(layers(state), 2, "a preserved sandbox is based on them");
    fs::remove_dir_all(kept).unwrap();
    host.engine.limit_store(&everything).await.unwrap();
    assert_eq!(layers(state), 0);
}

#[tokio::test]
async fn snapshots_go_before_the_layers_below() {
    let host = Host::start().await;
    let state = host.engine.state_dir();
    let project = Project::new(&format!("FROM base\n{}", layer("a")));
    let built = project.build(&host).await.unwrap();
    let spec = SandboxSpec { image: built.image.clone(), ..host.spec().await };
    let mut sandbox = host.engine.create(spec).await.unwrap();
    out(&sandbox, "head -c 200000 /dev/urandom > /agent").await;
    sandbox.snapshot("key").await.unwrap();
    sandbox.destroy().await.unwrap();
    drop(built);
    let found = host.engine.snapshot("key").await.unwrap().unwrap();
    drop(found);
    let host_kib = host_kib(state);
    host.engine.limit_store(&limiter(&host.engine, host_kib + 300)).await.unwrap();
    assert!(host.engine.snapshot("key").await.unwrap().is_none());
    assert!(project.build(&host).await.unwrap().cached);
}

#[tokio::test]
async fn other_engines_keep_what_they_use() {
    let host = Host::start().await;
    let other = engine(host.engine.state_dir()).await;
    let (one, two) = (layer("a"), layer("b"));
    let (one, two) = (Project::new(&format!("FROM base\n{one}")), Project::new(&format!("FROM base\n{two}")));
    let built = one.build(&host).await.unwrap();
    drop(two.build(&host).await.unwrap());
    other.limit_store(&limiter(&other, 0)).await.unwrap();
    assert_eq!(
        layers(host.engine.state_dir()),
        2,
        "the engine has not recorded that it is done with one of them"
    );
    host.engine.limit_store(&limiter(&host.engine, u64::MAX >> 10)).await.unwrap();
    other.limit_store(&limiter(&other, 0)).await.unwrap();
    assert_eq!(layers(host.engine.state_dir()), 1);
    assert_eq!(look(&host, &built, "stat -c %s /a").await, "200000\n");
}

const STATE_DIR: &str = "ROLLOUT_SANDBOX_TEST_STORE_STATE_DIR";

/// Builds and removes layers until it is killed, in the process that the next test starts.
async fn churn_if_child() {
    let Some(state_dir) = std::env::var_os(STATE_DIR) else { return };
    let state_dir = PathBuf::from(state_dir);
    let host = Host { engine: engine(&state_dir).await, state: tempfile::tempdir().unwrap() };
    for number in 0.. {
        let project = Project::new(&format!("FROM base\n{}RUN echo {number} > /n\n", layer("a")));
        drop(project.build(&host).await.unwrap());
        println!("\nremoving {number}");
        host.engine.limit_store(&limiter(&host.engine, 0)).await.unwrap();
    }
}

#[tokio::test]
async fn a_kill_in_the_middle_of_a_removal_leaves_a_usable_store() {
    use std::io::BufRead as _;
    churn_if_child().await;
    for last in 1..6 {
        let state = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "store::a_kill_in_the_middle_of_a_removal_leaves_a_usable_store",
                "--exact",
                "--nocapture",
            ])
            .env(STATE_DIR, state.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let wanted = format!("removing {last}");
        assert!(lines.map_while(Result::ok).any(|line| line == wanted));
        child.kill().unwrap();
        child.wait().unwrap();
        let host = Host { engine: engine(state.path()).await, state };
        let project = Project::new(&format!("FROM base\n{}RUN echo {last} > /n\n", layer("a")));
        assert_eq!(project.look(&host, "stat -c %s /a; cat /n").await, format!("200000\n{last}\n"));
    }
}
