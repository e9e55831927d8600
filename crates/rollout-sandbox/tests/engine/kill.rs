//! Ending what commands started: however deep, detached or re-parented.

use crate::common::{Host, out, sh, start};
use rollout_sandbox::{ExitStatus, Sandbox};

/// Waits until exactly these commands run: a fork takes a moment to become what it executes.
async fn survivors(sandbox: &Sandbox, expected: &[&str]) {
    let mut commands = Vec::new();
    for _ in 0..500 {
        commands = sandbox.survivors().await.unwrap().into_iter().map(|it| it.command).collect();
        commands.sort();
        if commands == expected {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(commands, expected);
}

async fn nothing_runs(sandbox: &Sandbox) {
    assert_eq!(sandbox.survivors().await.unwrap(), []);
}

/// Waits until the script has said that it is ready by making a file.
async fn ready(sandbox: &Sandbox, path: &str) {
    out(sandbox, &format!("until test -e {path}; do sleep 0.01; done")).await;
}

#[tokio::test]
async fn killing_a_tree_ends_detached_grandchildren() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let script =
        "(setsid sh -c 'sleep 1001 & sleep 1002 & touch /ready; wait' &) ; trap '' TERM HUP; sleep 1003";
    let mut process = start(&sandbox, script).await;
    ready(&sandbox, "/ready").await;
    process.kill_tree().await.unwrap();
    assert_eq!(process.wait().await.status, ExitStatus::Signal(9));
    nothing_runs(&sandbox).await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_service_outlives_its_command_and_is_found() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let mut process = start(&sandbox, "sleep 1001 & setsid sleep 1002 & exit 3").await;
    assert_eq!(process.wait().await.status, ExitStatus::Code(3));
    survivors(&sandbox, &["sleep 1001", "sleep 1002"]).await;
    process.kill_tree().await.unwrap();
    nothing_runs(&sandbox).await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn killing_a_tree_leaves_other_commands_alone() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let one = start(&sandbox, "touch /one; exec sleep 1001").await;
    let _two = start(&sandbox, "touch /two; exec sleep 1002").await;
    ready(&sandbox, "/one").await;
    ready(&sandbox, "/two").await;
    one.kill_tree().await.unwrap();
    survivors(&sandbox, &["sleep 1002"]).await;
    sandbox.kill_all().await.unwrap();
    nothing_runs(&sandbox).await;
    assert_eq!(out(&sandbox, "echo still usable").await, "still usable\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_wait_ends_when_everything_is_killed_from_inside() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let mut bystander = start(&sandbox, "touch /ready; sleep 1001").await;
    ready(&sandbox, "/ready").await;
    let killer = sh(&sandbox, "kill -9 -1").await;
    assert_eq!(bystander.wait().await.status, ExitStatus::Signal(9));
    // kill spares its caller, whose own end is then an ordinary one.
    assert_eq!(killer.exit.status, ExitStatus::Code(0));
    assert_eq!(out(&sandbox, "echo still usable").await, "still usable\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn what_a_command_left_dies_even_if_its_shepherd_was_killed() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let mut process = start(&sandbox, "setsid sleep 1001 & kill -9 $PPID; exit 5").await;
    assert_eq!(process.wait().await.status, ExitStatus::Code(5));
    survivors(&sandbox, &["sleep 1001"]).await;
    process.kill_tree().await.unwrap();
    nothing_runs(&sandbox).await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_wait_that_was_dropped_can_be_begun_again() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let mut process = start(&sandbox, "until test -e /go; do sleep 0.01; done; exit 4").await;
    let cancelled = tokio::time::timeout(std::time::Duration::from_millis(5), process.wait()).await;
    assert!(cancelled.is_err());
    out(&sandbox, "touch /go").await;
    assert_eq!(process.wait().await.status, ExitStatus::Code(4));
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_process_whose_first_thread_ended_is_found_and_killed() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let script = "exec python3 -c '
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(1001,)).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == \"x86_64\" else 93, 0)'";
    let mut process = start(&sandbox, script).await;
    // With its first thread a process loses its command line, and only the name is left.
    survivors(&sandbox, &["python3"]).await;
    process.kill_tree().await.unwrap();
    assert_eq!(process.wait().await.status, ExitStatus::Signal(9));
    nothing_runs(&sandbox).await;
    sandbox.destroy().await.unwrap();
}
