//! Guests beside other processes: in a namespace of their own, and as the parent of orphans without one.

use std::{
    os::unix::fs::PermissionsExt,
    process::Stdio,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use rollout::environment::{
    CopyMode, FileRead, Outcome,
    guest::{Dial, DialError, Guest, GuestSession, GuestStream, KillScope, PROGRAM},
};
use tokio::process::{Child, Command};

use super::{
    session::reach,
    support::{Container, copy_out, until},
};

/// A name that no other test has.
pub(super) fn name() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("host-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Starts the program of a guest as an ordinary process.
pub(super) fn spawn_host(scope: KillScope, arguments: &[&str]) -> (Child, tempfile::TempDir) {
    spawn_host_with(scope, arguments, &[])
}

/// The same with more variables.
fn spawn_host_with(
    scope: KillScope,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> (Child, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let program = dir.path().join("guest-program");
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new(&program);
    if scope == KillScope::Descendants {
        command.env("ROLLOUT_GUEST_SCOPE", "descendants");
    }
    command.arg("host").args(arguments).current_dir(dir.path()).stdin(Stdio::null());
    command.env("IMAGE_VARIABLE", "from the image").env("ROLLOUT_GUEST_TOKEN", "the-token");
    command.envs(variables.iter().copied());
    (command.kill_on_drop(true).spawn().unwrap(), dir)
}

/// Connects to the address of a session.
struct Local(String);

#[async_trait]
impl Dial for Local {
    async fn dial(&self) -> Result<GuestStream, DialError> {
        let stream = reach(&self.0).await.map_err(|error| DialError::Temporary(error.to_string()))?;
        let (reader, writer) = stream.into_split();
        Ok(GuestStream { reader: Box::new(reader), writer: Box::new(writer), guard: Box::new(()) })
    }
}

/// A guest beside other processes, with a connection.
async fn start(scope: KillScope) -> (Container, GuestSession) {
    let name = name();
    let (child, dir) = spawn_host(scope, &[&name, "120"]);
    until(async || reach(&name).await.is_ok()).await;
    let (session, reader, writer) = GuestSession::open(Local(name), Duration::from_secs(600)).unwrap();
    let guest = Guest::connect(reader, writer, None).await.unwrap();
    assert_eq!(guest.kill_scope(), scope);
    (Container { guest, child, dir }, session)
}

const BOTH: [KillScope; 2] = [KillScope::Namespace, KillScope::Descendants];

/// A process outside of any guest, which must stay.
struct Bystander(Child);

impl Bystander {
    fn start() -> Self {
        Self(Command::new("sleep").arg("4242").kill_on_drop(true).spawn().unwrap())
    }

    fn is_running(&mut self) -> bool {
        let pid = self.0.id().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        self.0.try_wait().unwrap().is_none() && !stat.contains(") T ")
    }
}

#[tokio::test]
async fn commands_and_files_work() {
    for scope in BOTH {
        let (container, _session) = start(scope).await;
        let ran = container.bash("echo out; echo err >&2; pwd; exit 3").await;
        let expected = format!("out\n{}\n", container.dir.path().canonicalize().unwrap().display());
        assert_eq!(
            (ran.exit.outcome, ran.text(), ran.stderr.as_slice()),
            (Outcome::Code(3), &*expected, &b"err\n"[..])
        );
        let source = container.path("source");
        std::fs::create_dir(&source).unwrap();
        std::fs::write(source.join("file"), "content").unwrap();
        container.guest.copy_to(&source, &container.inside("inside"), CopyMode::Replace).await.unwrap();
        let read = container.guest.read_file(&container.inside("inside/file"), 100).await.unwrap();
        assert_eq!(read, FileRead::Content(b"content".to_vec()));
        let target = container.path("target");
        std::fs::create_dir(&target).unwrap();
        container.guest.copy_from(copy_out(&container.inside("inside"), &target)).await.unwrap();
        assert_eq!(std::fs::read(target.join("file")).unwrap(), b"content");
        container.stop().await;
    }
}

#[tokio::test]
async fn kills_reach_detached_and_forking_processes_and_no_others() {
    let mut bystander = Bystander::start();
    for scope in BOTH {
        let (container, _session) = start(scope).await;
        container.bash("setsid bash -c '(setsid sleep 1111 &) ; sleep 2222' > /dev/null 2>&1 &").await;
        // The two are started in either order, and by a shell that ends.
        until(async || {
            let mut survivors = container.guest.survivors().await.unwrap();
            survivors.sort();
            survivors == ["sleep 1111", "sleep 2222"]
        })
        .await;
        container.guest.kill_all().await.unwrap();
        assert_eq!(container.guest.survivors().await.unwrap(), Vec::<String>::new());
        // A walk over /proc may miss the process, but not the lines that it writes.
        let hops = || std::fs::metadata(container.path("hops")).map_or(0, |hops| hops.len());
        for hopper in [
            "perl -e 'setpgrp; while (1) { my $child = fork; exit if $child }' > /dev/null 2>&1 &",
            "perl -MPOSIX -e 'while (1) { my $child = fork; exit if $child; setsid; open F, q(>>hops); print F 1; close F }' > /dev/null 2>&1 &",
            "perl -e 'for (1 .. 200) { unless (fork) { while (1) { my $c = fork; exit if $c; sleep 1 } } }' > /dev/null 2>&1 &",
        ] {
            container.bash(hopper).await;
            assert!(!container.guest.survivors().await.unwrap().is_empty(), "{scope:?} {hopper}");
            container.guest.kill_all().await.unwrap();
            let last = hops();
            let left = container.guest.survivors().await.unwrap();
            assert_eq!(left, Vec::<String>::new(), "{scope:?} {hopper}");
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(hops(), last, "{scope:?} {hopper}");
        }
        assert_eq!(container.bash("echo alive").await.text(), "alive\n");
        container.stop().await;
        assert!(bystander.is_running());
    }
}

#[tokio::test]
async fn a_deadline_kills_a_command_with_its_orphans_and_spares_earlier_ones() {
    for scope in BOTH {
        let (container, _session) = start(scope).await;
        container.bash("setsid sleep 1111 > /dev/null 2>&1 &").await;
        until(async || container.guest.survivors().await.unwrap() == ["sleep 1111"]).await;
        // Start times are distinguished by hundredths of a second.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let script =
            "(setsid bash -c '(setsid sleep 4242 > /dev/null 2>&1 &)' > /dev/null 2>&1 &); sleep 4242";
        let ran = container.bash_within(script, Duration::from_millis(500)).await;
        assert_eq!(ran.exit.outcome, Outcome::TimedOut);
        assert_eq!(container.guest.survivors().await.unwrap(), ["sleep 1111"]);
        container.stop().await;
    }
}

#[tokio::test]
async fn only_processes_of_the_guest_are_held_while_files_are_watched() {
    let mut bystander = Bystander::start();
    for scope in BOTH {
        let (container, _session) = start(scope).await;
        let (tests, count) = (container.inside("tests"), container.path("count"));
        std::fs::create_dir(container.path("tests")).unwrap();
        std::fs::write(container.path("tests/test.sh"), "before").unwrap();
        container
            .bash("setsid bash -c 'while :; do echo >> count; sleep 0.01; done' > /dev/null 2>&1 &")
            .await;
        until(async || count.exists()).await;
        container.guest.hold().await.unwrap();
        let size = || std::fs::metadata(&count).unwrap().len();
        let held = size();
        assert!(bystander.is_running());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(size(), held);
        container.guest.watch(&tests, &[]).await.unwrap();
        until(async || size() > held).await;
        container.bash("echo after > tests/test.sh").await;
        assert!(!container.guest.changes().await.unwrap().is_empty());
        container.stop().await;
    }
}

#[tokio::test]
async fn the_end_of_the_session_ends_everything() {
    for scope in BOTH {
        let (container, session) = start(scope).await;
        container.bash("setsid sh -c 'while :; do echo >> count; sleep 0.01; done' > /dev/null 2>&1 &").await;
        until(async || container.path("count").exists()).await;
        let Container { guest, mut child, dir } = container;
        drop(guest);
        assert!(child.wait().await.unwrap().success());
        drop(session);
        let size = || std::fs::metadata(dir.path().join("count")).unwrap().len();
        let last = size();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(size(), last, "a process outlived the guest");
    }
}

#[tokio::test]
async fn a_guest_without_a_connection_ends_after_the_grace_period() {
    for scope in BOTH {
        let (mut child, _dir) = spawn_host(scope, &[&name(), "1"]);
        assert!(child.wait().await.unwrap().success());
    }
}

#[tokio::test]
async fn a_guest_whose_outer_process_is_killed_ends_with_everything_inside() {
    for scope in BOTH {
        let (container, _session) = start(scope).await;
        container.bash("setsid sh -c 'while :; do echo >> count; sleep 0.01; done' > /dev/null 2>&1 &").await;
        let count = container.path("count");
        until(async || count.exists()).await;
        let Container { guest: _guest, mut child, dir: _dir } = container;
        child.kill().await.unwrap();
        let size = || std::fs::metadata(&count).unwrap().len();
        until(async || {
            let before = size();
            tokio::time::sleep(Duration::from_millis(200)).await;
            size() == before
        })
        .await;
    }
}

#[tokio::test]
async fn orphans_of_a_killed_guest_are_killed_too() {
    let (container, _session) = start(KillScope::Descendants).await;
    let script =
        "setsid sh -c 'while :; do echo >> count; sleep 0.01; done' > /dev/null 2>&1 & kill -9 $PPID";
    let logs = tempfile::tempdir().unwrap();
    let [stdout, stderr] = container.logs(logs.path());
    let argv = ["bash", "-c", script];
    let exec = rollout::environment::Exec {
        role: rollout::environment::CommandRole::Agent,
        argv: &argv,
        env: &[],
        deadline: None,
        stdout,
        stderr,
    };
    let Container { guest, mut child, dir } = container;
    tokio::select! {
        _ = guest.exec(exec) => {}
        _ = child.wait() => {}
    }
    assert!(child.wait().await.unwrap().success());
    let size = || std::fs::metadata(dir.path().join("count")).map_or(0, |count| count.len());
    let last = size();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(size(), last, "a process outlived the guest");
}

#[tokio::test]
async fn variables_of_the_guest_reach_no_command_and_no_proc() {
    for scope in BOTH {
        let (container, _session) = start(scope).await;
        let ran = container
            .bash("echo $IMAGE_VARIABLE ${ROLLOUT_GUEST_TOKEN-none} ${ROLLOUT_GUEST_SCOPE-none}")
            .await;
        assert_eq!(ran.text(), "from the image none none\n");
        let host = container.child.id().unwrap();
        let environ = std::fs::read_to_string(format!("/proc/{host}/environ")).unwrap();
        assert!(environ.contains("IMAGE_VARIABLE") && !environ.contains("the-token"), "{environ}");
        container.stop().await;
    }
}

#[tokio::test]
async fn processes_in_a_namespace_see_only_their_own() {
    let (container, _session) = start(KillScope::Namespace).await;
    let processes = "echo $(cat /proc/[0-9]*/comm)";
    assert_eq!(container.bash(processes).await.text(), "rollout-guest bash cat\n");
    // Neither an uncovered mount nor a new one shows more.
    let mounted = format!("umount /proc; mount -t proc proc /proc; {processes}; umount /proc; ls /proc");
    assert_eq!(container.bash(&mounted).await.text(), "rollout-guest bash cat\n");
    container.stop().await;
}

#[tokio::test]
async fn a_port_needs_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("guest");
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let output = Command::new(&program).args(["host", &name(), "1", "1"]).output().await.unwrap();
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "the guest cannot start: ROLLOUT_GUEST_TOKEN is missing\n"
    );
}

#[tokio::test]
async fn a_guest_ends_when_its_lifetime_is_over() {
    for scope in BOTH {
        let name = name();
        let (mut child, _dir) = spawn_host_with(scope, &[&name, "120"], &[("ROLLOUT_GUEST_LIFETIME", "1")]);
        assert_eq!(child.wait().await.unwrap().code(), Some(75));
        // The guest itself ends with it.
        until(async || reach(&name).await.is_err()).await;
    }
}

#[tokio::test]
async fn a_lifetime_that_is_no_number_is_an_error() {
    let (mut child, _dir) =
        spawn_host_with(KillScope::Namespace, &[&name(), "120"], &[("ROLLOUT_GUEST_LIFETIME", "soon")]);
    assert_eq!(child.wait().await.unwrap().code(), Some(1));
}
