//! Killing the processes that commands started, also deep, detached or re-parented ones.

use crate::common::{Host, command, copy_out, in_time, out, sh, start};
use rollout_sandbox::{CopyError, CopyLimits, ExitStatus, FileLookup, RunningSandbox};

/// Waits until exactly these commands run: a forked process needs a moment to execute its program.
async fn survivors(sandbox: &RunningSandbox, expected: &[&str]) {
    let mut commands = Vec::new();
    for _ in 0..60_000 {
        commands = sandbox.survivors().await.unwrap().into_iter().map(|it| it.command).collect();
        commands.sort();
        if commands == expected {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(commands, expected);
}

async fn nothing_runs(sandbox: &RunningSandbox) {
    assert_eq!(sandbox.survivors().await.unwrap(), []);
}

/// Stops every reachable process except its own, as fast as possible.
const STOP_EVERYTHING: &str = "exec python3 -c '
import os, signal
own = {os.getpid(), os.getppid()}
open(\"/ready\", \"w\")
while True:
    for pid in {int(name) for name in os.listdir(\"/proc\") if name.isdigit()} - own:
        try: os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError: pass'";

/// Waits until the script has created a file to show that it is ready.
async fn ready(sandbox: &RunningSandbox, path: &str) {
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
    assert_eq!(process.wait().await.unwrap().status, ExitStatus::Signal(9));
    nothing_runs(&sandbox).await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_service_outlives_its_command_and_is_found() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let mut process = start(&sandbox, "sleep 1001 & setsid sleep 1002 & exit 3").await;
    assert_eq!(process.wait().await.unwrap().status, ExitStatus::Code(3));
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
    assert_eq!(bystander.wait().await.unwrap().status, ExitStatus::Signal(9));
    // kill does not signal its caller, which then exits normally.
    assert_eq!(killer.exit.status, ExitStatus::Code(0));
    assert_eq!(out(&sandbox, "echo still usable").await, "still usable\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn processes_left_by_a_command_are_killed_even_without_its_shepherd() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let mut process = start(&sandbox, "setsid sleep 1001 & kill -9 $PPID; exit 5").await;
    assert_eq!(process.wait().await.unwrap().status, ExitStatus::Code(5));
    survivors(&sandbox, &["sleep 1001"]).await;
    process.kill_tree().await.unwrap();
    nothing_runs(&sandbox).await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_dropped_wait_can_be_repeated() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let mut process = start(&sandbox, "until test -e /go; do sleep 0.01; done; exit 4").await;
    let cancelled = tokio::time::timeout(std::time::Duration::from_millis(5), process.wait()).await;
    assert!(cancelled.is_err());
    out(&sandbox, "touch /go").await;
    assert_eq!(process.wait().await.unwrap().status, ExitStatus::Code(4));
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
    // Without its first thread a process has no command line, only a name.
    survivors(&sandbox, &["[python3]"]).await;
    process.kill_tree().await.unwrap();
    assert_eq!(process.wait().await.unwrap().status, ExitStatus::Signal(9));
    nothing_runs(&sandbox).await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_command_that_stops_its_shepherd_is_still_waited_for() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let mut process = start(&sandbox, "kill -STOP $PPID; exit 3").await;
    assert_eq!(in_time(process.wait()).await.unwrap().status, ExitStatus::Code(3));
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_command_that_keeps_its_shepherd_stopped_is_killed_and_waited_for() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let mut process = start(&sandbox, "touch /ready; while :; do kill -STOP $PPID; done").await;
    ready(&sandbox, "/ready").await;
    in_time(process.kill_tree()).await.unwrap();
    assert_eq!(in_time(process.wait()).await.unwrap().status, ExitStatus::Signal(9));
    nothing_runs(&sandbox).await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn killing_a_tree_twice_kills_nothing_else() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let mut one = start(&sandbox, "sleep 1001").await;
    let _two = start(&sandbox, "exec sleep 1002").await;
    one.kill_tree().await.unwrap();
    one.kill_tree().await.unwrap();
    assert_eq!(in_time(one.wait()).await.unwrap().status, ExitStatus::Signal(9));
    survivors(&sandbox, &["sleep 1002"]).await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_command_that_stops_everything_blocks_no_caller() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let mut stopper = start(&sandbox, STOP_EVERYTHING).await;
    while sandbox.read_file("/ready", 1).await.unwrap() == FileLookup::Missing {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let limits = CopyLimits { bytes: 64 << 20, entries: 100, file_bytes: 64 << 20 };
    for _ in 0..10 {
        let (command, _stdout, _stderr) = command(&["true"]);
        let mut process = in_time(sandbox.exec(command)).await.unwrap();
        // Only the command itself may stay stopped, until its deadline.
        in_time(process.kill_tree()).await.unwrap();
        in_time(process.wait()).await.unwrap();
        // Large enough for a separate worker process, which the stopper may get killed.
        let _ = in_time(copy_out(&sandbox, "/usr/bin", limits)).await;
    }
    stopper.kill_tree().await.unwrap();
    assert_eq!(in_time(stopper.wait()).await.unwrap().status, ExitStatus::Signal(9));
    nothing_runs(&sandbox).await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_copy_whose_worker_was_killed_is_not_a_lost_sandbox() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let killer = start(&sandbox, &STOP_EVERYTHING.replace("SIGSTOP", "SIGKILL")).await;
    while sandbox.read_file("/ready", 1).await.unwrap() == FileLookup::Missing {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let limits = CopyLimits { bytes: 1 << 30, entries: 10_000, file_bytes: 1 << 30 };
    let error = loop {
        if let Err(error) = in_time(copy_out(&sandbox, "/usr/bin", limits)).await {
            break error;
        }
    };
    assert!(matches!(error, CopyError::Interrupted), "{error:?}");
    killer.kill_tree().await.unwrap();
    assert_eq!(out(&sandbox, "echo still usable").await, "still usable\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_survivor_is_reported_with_its_long_command_line() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let filler = "x".repeat(2000);
    let _process = start(&sandbox, &format!("sleep 1001; : {filler} end")).await;
    let all = sandbox.survivors().await.unwrap();
    assert!(all.iter().any(|survivor| survivor.command.contains(&format!("{filler} end"))), "{all:?}");
    sandbox.destroy().await.unwrap();
}
