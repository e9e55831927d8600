//! Nested commands: what they share with others, what they cannot reach, and how they end.

use std::fs;

use rollout_sandbox::{CopyIn, CopyLimits, ExecError, ExitStatus, FileLookup, RunningSandbox, SandboxSpec};

use crate::common::{Host, copy_out, nested, out, start, start_nested};

const PRIVATE: [&str; 2] = ["/tests", "/logs/verifier"];

/// Forks and exits in an endless loop: a scan of /proc rarely finds it.
const HOP: &str = "exec python3 -c '
import os
open(\"/tmp/hopping\", \"w\")
while not os.fork() or os._exit(0):
    pass'";

async fn sandbox(host: &Host) -> RunningSandbox {
    host.engine.create(spec(host).await).await.unwrap()
}

async fn spec(host: &Host) -> SandboxSpec {
    SandboxSpec { private_dirs: PRIVATE.map(Into::into).to_vec(), ..host.spec().await }
}

/// The attempts of a nested process to reach the private directories.
const ATTACK: &str =
    "rm -rf /tests /logs; rmdir /tests /logs/verifier /logs; mv /logs /moved; mv /tests /moved-tests
    mkdir -p /tests /logs/verifier /trap; mv -T /trap /tests; ln -sfn /trap /tests; ln -sfn /trap /logs
    for dir in /tests /logs/verifier; do echo forged > $dir/file; done; true";

#[tokio::test]
async fn nested_commands_cannot_read_write_or_replace_private_directories() {
    let host = Host::start().await;
    let sandbox = sandbox(&host).await;
    for dir in PRIVATE {
        sandbox.write_file(&format!("{dir}/file"), b"secret\n", 0o755).await.unwrap();
    }
    assert_eq!(nested(&sandbox, "find /tests /logs -type f; echo ok > /tmp/shared").await, "");
    nested(&sandbox, ATTACK).await;
    for dir in PRIVATE {
        let file = sandbox.read_file(&format!("{dir}/file"), 100).await.unwrap();
        assert_eq!(file, FileLookup::File(b"secret\n".to_vec()));
    }
    assert_eq!(
        out(&sandbox, "cat /tests/file /logs/verifier/file /tmp/shared").await,
        "secret\nsecret\nok\n"
    );
    // Also while a nested process keeps trying.
    let _attack = start_nested(&sandbox, &format!("while :; do {ATTACK}; done 2>/dev/null")).await;
    let files = tempfile::tempdir().unwrap();
    fs::write(files.path().join("file"), "fresh\n").unwrap();
    for _ in 0..20 {
        sandbox.copy_in(files.path(), "/tests", CopyIn { replace: true }).await.unwrap();
        sandbox.make_dir("/logs/verifier", 0o777, true).await.unwrap();
        assert_eq!(
            out(&sandbox, "cat /tests/file; ls -A /tests /logs/verifier").await.lines().next(),
            Some("fresh")
        );
        assert_eq!(out(&sandbox, "ls -A /tests; ls -A /logs/verifier").await, "file\n");
    }
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn nested_commands_see_no_other_processes_and_are_seen_by_all() {
    let host = Host::start().await;
    let sandbox = sandbox(&host).await;
    let _secret = start(&sandbox, "SECRET=secret exec sleep 2001").await;
    let _service = start_nested(&sandbox, "exec sleep 2002").await;
    let look = "until grep -qsx sleep /proc/[0-9]*/comm; do :; done; cat /proc/[0-9]*/cmdline | tr '\\0' ' '";
    let seen = nested(&sandbox, look).await;
    assert!(seen.contains("sleep 2002") && !seen.contains("sleep 2001"), "{seen}");
    nested(&sandbox, "! grep -qsa secret /proc/[0-9]*/environ").await;
    let wait = "until pgrep -f 'sleep 2001' && pgrep -f 'sleep 2002'; do :; done";
    out(&sandbox, wait).await;
    nested(&sandbox, "! cat /proc/1/environ; kill -9 1; kill -9 -1; true").await;
    assert_eq!(out(&sandbox, "pgrep -c -fx 'sleep 2001'").await, "1\n");
    assert_eq!(sandbox.survivors().await.unwrap(), [], "those outside are no survivors");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn nested_commands_have_no_power_over_kernel_files() {
    let host = Host::start().await;
    let sandbox = sandbox(&host).await;
    for script in [
        "mount -t tmpfs none /mnt",
        "umount /proc",
        "umount /tests",
        "unshare -m true",
        "unshare -p true",
        "echo 1 > /proc/sys/kernel/panic",
        "echo b > /proc/sysrq-trigger && false",
        "cat /proc/kcore | head -c1 | grep -q .",
        "ls -A /proc/acpi | grep .",
    ] {
        nested(&sandbox, &format!("! ( {script} )")).await;
    }
    assert_eq!(nested(&sandbox, "ls -A /dev/shm").await, "");
    // A process of the outer namespace, or one seen from there, would have two pids.
    let seen_from_outside = "cat /proc/[0-9]*/status 2>/dev/null | grep ^NSpid: | awk 'NF != 2'";
    assert_eq!(nested(&sandbox, seen_from_outside).await, "");
    assert_eq!(nested(&sandbox, "grep -m1 NSpid /proc/self/status | wc -w").await, "2\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_link_of_the_image_in_the_place_of_a_private_directory_is_replaced() {
    let host = Host::start().await;
    let builder = host.sandbox().await;
    out(&builder, "mkdir /elsewhere; ln -s /elsewhere /tests; ln -s /elsewhere /logs").await;
    let layer = builder.commit(&host.state.path().join("layers/one")).await.unwrap();
    let mut spec = spec(&host).await;
    spec.image = spec.image.with_layer(&layer, "one");
    let sandbox = host.engine.create(spec).await.unwrap();
    sandbox.write_file("/tests/file", b"", 0o755).await.unwrap();
    assert_eq!(nested(&sandbox, "find /tests /logs /elsewhere -type f -o -type l").await, "");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn private_directories_are_copied_out_preserved_and_in_no_snapshot() {
    let host = Host::start().await;
    let mut sandbox = sandbox(&host).await;
    sandbox.write_file("/logs/verifier/reward.txt", b"1", 0o644).await.unwrap();
    nested(&sandbox, "mkdir -p /logs/agent; echo agent > /logs/agent/file").await;
    let limits = CopyLimits { bytes: 1000, entries: 10, file_bytes: 1000 };
    let copied = copy_out(&sandbox, "/logs", limits).await.unwrap();
    assert_eq!(copied.entries, ["agent/ 755", "agent/file 644", "verifier/ 755", "verifier/reward.txt 644"]);

    sandbox.snapshot("key").await.unwrap();
    let spec =
        SandboxSpec { image: host.engine.snapshot("key").await.unwrap().unwrap(), ..spec(&host).await };
    let other = host.engine.create(spec).await.unwrap();
    assert_eq!(out(&other, "find /logs /tests -type f").await, "/logs/agent/file\n");
    // A directory that contains a mount point keeps it when it is emptied.
    other.make_dir("/logs", 0o755, true).await.unwrap();
    assert_eq!(out(&other, "find /logs").await, "/logs\n/logs/verifier\n");
    other.destroy().await.unwrap();

    let dir = sandbox.preserve().await.unwrap();
    let sandbox = host.engine.reopen(&dir).await.unwrap();
    assert_eq!(out(&sandbox, "cat /logs/verifier/reward.txt").await, "1");
    assert_eq!(nested(&sandbox, "ls -A /logs/verifier").await, "");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn killing_all_leaves_no_process_that_keeps_starting_others() {
    let host = Host::start().await;
    let sandbox = sandbox(&host).await;
    let _bystander = start(&sandbox, "exec sleep 2003").await;
    for _ in 0..5 {
        for _ in 0..3 {
            start_nested(&sandbox, HOP).await;
        }
        out(&sandbox, "until test -e /tmp/hopping; do sleep 0.01; done; rm /tmp/hopping").await;
        sandbox.kill_all().await.unwrap();
        // Checked from outside, because inside a process could fork and exit between two checks.
        assert_eq!(out(&sandbox, "sleep 0.05; pgrep -c python3 || true").await, "0\n");
    }
    assert_eq!(out(&sandbox, "until pgrep -fx 'sleep 2003' > /dev/null; do :; done").await, "");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn killing_a_tree_ends_a_process_that_keeps_starting_others() {
    let host = Host::start().await;
    let sandbox = sandbox(&host).await;
    for _ in 0..5 {
        let process = start_nested(&sandbox, &format!("{HOP} & wait; exec sleep 2004")).await;
        out(&sandbox, "until test -e /tmp/hopping; do sleep 0.01; done; rm /tmp/hopping").await;
        process.kill_tree().await.unwrap();
        assert_eq!(out(&sandbox, "sleep 0.05; pgrep -c 'python3|sleep' || true").await, "0\n");
    }
    sandbox.destroy().await.unwrap();
}

/// The pid on the host of the one process with this command line.
fn pid_of(command: &str) -> u32 {
    let line = format!("{}\0", command.replace(' ', "\0")).into_bytes();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter(|entry| fs::read(entry.path().join("cmdline")).is_ok_and(|it| it == line));
    pids.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).next().unwrap()
}

fn parent(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_supervisor_killed_from_outside_is_reported_as_a_lost_sandbox() {
    let host = Host::start().await;
    for (round, outer) in [(0, false), (1, true), (2, false), (3, true)] {
        let sandbox = sandbox(&host).await;
        // The process id keeps concurrent tests apart.
        let (id, unique) = (std::process::id(), 3000 + round);
        let mut inside = start_nested(&sandbox, &format!("exec sleep {unique}.{id}")).await;
        let mut outside = start(&sandbox, &format!("exec sleep 1{unique}.{id}")).await;
        let wait =
            format!("until pgrep -fx 'sleep {unique}.{id}' && pgrep -fx 'sleep 1{unique}.{id}'; do :; done");
        out(&sandbox, &wait).await;
        let nested = parent(parent(pid_of(&format!("sleep {unique}.{id}"))));
        let whole = parent(nested);
        assert_eq!(parent(parent(pid_of(&format!("sleep 1{unique}.{id}")))), whole);
        kill(if outer { whole } else { nested });
        for process in [&mut inside, &mut outside] {
            let ended = process.wait().await;
            assert!(matches!(ended, Err(ExecError::Gone(_))), "{ended:?}");
        }
        assert!(sandbox.kill_all().await.is_err());
        sandbox.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn a_command_that_kills_itself_is_not_a_lost_sandbox() {
    let host = Host::start().await;
    let sandbox = sandbox(&host).await;
    let mut process = start_nested(&sandbox, "kill -9 $$").await;
    assert_eq!(process.wait().await.unwrap().status, ExitStatus::Signal(9));
    sandbox.destroy().await.unwrap();
}
