//! Ends: deadlines, kills, orphans, and the end of the stream.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    time::Duration,
};

use rollout::environment::{CommandRole, Exec, Outcome, guest::PROGRAM};
use rollout_testkit::long_enough_async;

use super::support::{Container, until};

const SOON: Duration = Duration::from_millis(500);

/// Something that no terminal, group or parent leads to any more.
const DAEMON: &str = "(setsid bash -c '(setsid sleep 4242 > /dev/null 2>&1 &)' > /dev/null 2>&1 &)";

#[tokio::test]
async fn a_deadline_kills_detached_grandchildren() {
    let container = Container::start().await;
    let runs = "until grep -qxz 424[2] /proc/[0-9]*/cmdline 2> /dev/null; do :; done";
    long_enough_async(SOON, async |deadline| {
        let ran =
            container.bash_within(&format!("{DAEMON}; {runs}; echo before; sleep 5252"), deadline).await;
        assert_eq!(ran.exit.outcome, Outcome::TimedOut);
        assert_eq!(container.guest.survivors().await.unwrap(), Vec::<String>::new());
        // Otherwise not all of its processes had time to start.
        (ran.text() == "before\n").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_deadline_spares_what_ran_before() {
    let container = Container::start().await;
    container.bash("setsid sleep 1111 > /dev/null 2>&1 &").await;
    until(async || container.guest.survivors().await.unwrap() == ["sleep 1111"]).await;
    // Start times are distinguished by hundredths of a second.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let ran = container.bash_within("sleep 4242 & sleep 4242", SOON).await;
    assert_eq!(ran.exit.outcome, Outcome::TimedOut);
    assert_eq!(container.guest.survivors().await.unwrap(), ["sleep 1111"]);
}

#[tokio::test]
async fn a_command_that_catches_every_signal_ends_at_its_deadline() {
    let container = Container::start().await;
    let script = "trap '' TERM INT HUP QUIT; while true; do sleep 0.01; done";
    assert_eq!(container.bash_within(script, SOON).await.exit.outcome, Outcome::TimedOut);
    assert_eq!(container.guest.survivors().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_command_that_ends_in_time_is_not_reported_as_timed_out() {
    let container = Container::start().await;
    let ran = container.bash_within("exit 3", Duration::from_secs(60)).await;
    assert_eq!(ran.exit.outcome, Outcome::Code(3));
}

#[tokio::test]
async fn a_deadline_ends_a_fork_bomb() {
    // The limit counts all processes of the user on this machine, so it is one of the test's own.
    let container = Container::start_as(Some("54321")).await;
    let script = "ulimit -u 300; bomb() { bomb | bomb & }; bomb 2> /dev/null; sleep 4242";
    let ran = container.bash_within(script, SOON).await;
    assert_eq!(ran.exit.outcome, Outcome::TimedOut);
    assert_eq!(container.guest.survivors().await.unwrap(), Vec::<String>::new());
    assert_eq!(container.bash("echo alive").await.text(), "alive\n");
}

#[tokio::test]
async fn kill_all_ends_a_fork_bomb_and_leaves_no_zombies() {
    let container = Container::start_as(Some("54322")).await;
    container.bash("ulimit -u 300; bomb() { bomb | bomb & }; bomb > /dev/null 2>&1").await;
    container.guest.kill_all().await.unwrap();
    assert_eq!(container.guest.survivors().await.unwrap(), Vec::<String>::new());
    until(async || container.bash("grep -l '^State:.Z' /proc/[0-9]*/status").await.text().is_empty()).await;
}

#[tokio::test]
async fn a_process_that_keeps_starting_another_and_ending_is_seen_and_killed() {
    let container = Container::start().await;
    let hopper = "perl -e 'setpgrp; while (1) { my $child = fork; exit if $child }' > /dev/null 2>&1 &";
    for _ in 0..10 {
        container.bash(hopper).await;
        // The older one may still be ending.
        assert!(!container.guest.survivors().await.unwrap().is_empty());
        container.guest.kill_all().await.unwrap();
        assert_eq!(container.guest.survivors().await.unwrap(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn orphans_are_reaped() {
    let container = Container::start().await;
    container.bash("for i in $(seq 200); do (true & exec sleep 0.0$((i % 9))) & done").await;
    until(async || container.bash("ls -d /proc/[0-9]* | wc -l").await.text().trim() == "4").await;
}

#[tokio::test]
async fn a_command_whose_future_is_dropped_is_killed_with_all_it_started() {
    let container = Container::start().await;
    let logs = tempfile::tempdir().unwrap();
    let [stdout, stderr] = container.logs(logs.path());
    let script = format!("{DAEMON}; touch started; sleep 4242");
    let argv = ["bash", "-c", &script];
    let exec = container.guest.exec(Exec {
        role: CommandRole::Agent,
        argv: &argv,
        env: &[],
        deadline: None,
        stdout,
        stderr,
    });
    tokio::select! {
        exit = exec => panic!("ended by itself: {exit:?}"),
        () = until(async || container.path("started").exists()) => {}
    }
    until(async || container.guest.survivors().await.unwrap().is_empty()).await;
}

#[tokio::test]
async fn the_guest_survives_whatever_is_sent_to_every_process() {
    let container = Container::start().await;
    // The guest starts each command while the one before may still be sending.
    for _ in 0..10 {
        container.bash("for signal in TERM INT HUP USR1 SEGV STOP KILL; do kill -$signal 1; done").await;
        let ran = container.bash("kill -9 -1").await;
        assert!(matches!(ran.exit.outcome, Outcome::Code(_) | Outcome::Signal(_)));
    }
    assert_eq!(container.bash("echo alive").await.text(), "alive\n");
}

#[tokio::test]
async fn a_command_that_others_stop_while_it_starts_is_let_go_on() {
    let container = Container::start().await;
    container.bash("setsid bash -c 'while true; do kill -STOP -1; done' > /dev/null 2>&1 &").await;
    for _ in 0..5 {
        // It may be stopped or let go, but what it does never holds up the guest.
        container.bash_within("true", SOON).await;
    }
    container.guest.kill_all().await.unwrap();
    assert_eq!(container.bash("echo alive").await.text(), "alive\n");
}

#[tokio::test]
async fn the_end_of_the_stream_ends_everything() {
    let mut container = Container::start().await;
    container.bash(&format!("{DAEMON}; sleep 4242 > /dev/null 2>&1 & touch started")).await;
    drop(container.guest);
    // The one that waits ends with the guest, whose end is that of its namespace.
    container.child.wait().await.unwrap();
}

#[tokio::test]
async fn a_guest_that_stays_outlives_its_stream() {
    let mut container = Container::start().await;
    let script = "(while [ ! -e go ]; do sleep 0.01; done; echo an unread line; touch gone) & echo early";
    container.bash(script).await;
    container.guest.stay().await.unwrap();
    container.guest.finish().await;
    fs::write(container.dir.path().join("go"), "").unwrap();
    let gone = container.dir.path().join("gone");
    until(async || gone.exists()).await;
    assert!(container.child.try_wait().unwrap().is_none());
    container.child.kill().await.unwrap();
}

#[test]
fn a_guest_that_is_not_the_first_process_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("guest");
    fs::write(&program, PROGRAM).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let output = Command::new(&program).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.stdout, b"");
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message, "the guest cannot start: it is not the first process of a container\n");
}
