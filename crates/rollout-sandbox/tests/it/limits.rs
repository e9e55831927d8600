//! Limits, if the machine has cgroups for them.

use std::path::Path;

use crate::{
    common::{Host, in_time, out, sh, start},
    machine::find,
};
use rollout_sandbox::{CreateError, Enforced, ExitStatus, LimitBacking, SandboxLimits};

#[tokio::test]
async fn a_fork_bomb_is_contained_and_can_be_killed() {
    let host = Host::start().await;
    let mut spec = host.spec().await;
    spec.limits.pids = Some(64);
    let sandbox = host.engine.create(spec).await.unwrap();
    if host.engine.support().pids == LimitBacking::None {
        assert!(!sandbox.enforced().pids);
        return;
    }
    let script = "exec python3 -c 'import os
while True:
    try: os.fork()
    except OSError: pass'";
    let mut bomb = start(&sandbox, script).await;
    let many = async {
        loop {
            let processes = sandbox.survivors().await.unwrap().len();
            if processes >= 50 {
                break processes;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let processes = in_time(many).await;
    assert!(processes <= 64, "{processes} processes");
    bomb.kill_tree().await.unwrap();
    bomb.wait().await.unwrap();
    assert_eq!(sandbox.survivors().await.unwrap(), []);
    assert_eq!(out(&sandbox, "echo alive").await, "alive\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_command_killed_for_its_memory_is_reported_as_such() {
    let host = Host::start().await;
    let mut spec = host.spec().await;
    spec.limits.memory_bytes = Some(64 << 20);
    let sandbox = host.engine.create(spec).await.unwrap();
    if host.engine.support().memory == LimitBacking::None {
        assert!(!sandbox.enforced().memory);
        return;
    }
    let small = sh(&sandbox, "true").await;
    assert!(!small.exit.oom_killed);
    let large = sh(&sandbox, "exec head -c 300000000 /dev/zero | tail -c 300000000 > /dev/null").await;
    assert!(large.exit.oom_killed, "{:?}", large.exit);
    let large = sh(&sandbox, "exec python3 -c 'bytearray(300 << 20)'").await;
    assert_eq!(large.exit.status, ExitStatus::Signal(9));
    assert!(large.exit.oom_killed);
    assert!(sandbox.oom_kills().await >= 2);
    assert!(!sh(&sandbox, "true").await.exit.oom_killed);
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn only_requested_limits_are_enforced() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    assert_eq!(*sandbox.enforced(), Enforced::default());
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn more_than_the_machine_has_is_rejected_with_both_numbers() {
    let host = Host::start().await;
    let mut spec = host.spec().await;
    spec.limits = SandboxLimits { cpus_millis: Some(9_000_000), ..SandboxLimits::default() };
    let Err(error) = host.engine.create(spec.clone()).await else { panic!("it was created") };
    assert!(error.to_string().contains("9000 CPUs"), "{error}");
    spec.limits = SandboxLimits { memory_bytes: Some(1 << 50), ..SandboxLimits::default() };
    let Err(error) = host.engine.create(spec).await else { panic!("it was created") };
    assert!(matches!(error, CreateError::Resources { .. }), "{error:?}");
    assert!(error.to_string().contains("1073741824 MiB of memory"), "{error}");
}

#[tokio::test]
async fn a_destroyed_sandbox_leaves_no_cgroup() {
    let host = Host::start().await;
    let mut spec = host.spec().await;
    spec.limits = SandboxLimits { cpus_millis: Some(500), memory_bytes: Some(64 << 20), pids: Some(20) };
    let sandbox = host.engine.create(spec).await.unwrap();
    let id = sandbox.id().to_owned();
    let has_cgroup = || find(Path::new("/sys/fs/cgroup"), &id).is_some();
    out(&sandbox, "true").await;
    let Enforced { cpus, memory, pids } = *sandbox.enforced();
    assert_eq!(has_cgroup(), cpus || memory || pids);
    sandbox.destroy().await.unwrap();
    assert!(!has_cgroup());
}
