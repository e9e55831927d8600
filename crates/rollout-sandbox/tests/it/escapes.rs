//! Known ways out of containers, each attempted as root and as an ordinary user of a sandbox.

use std::{fs, path::Path};

use rollout_sandbox::{CopyIn, CopyLimits, ExitStatus, LimitBacking, Network, RunningSandbox};
use serde_json::json;

use crate::{
    common::{Host, Output, command, copy_out, out, run, start},
    machine::find,
    user::run_as_ordinary_user,
};

/// Runs the attempts of its two arguments, and prints those that succeed. A call is an attempt that exits with 1 if it
/// fails as it should.
const DRIVER: &str = r#"
import ctypes, json, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    os._exit(0 if libc.syscall(*arguments) >= 0 else 1)
commands, calls = map(json.loads, sys.argv[1:])
for script in commands:
    quiet = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.DEVNULL)
    if subprocess.run(["bash", "-c", script], **quiet).returncode == 0:
        print(script)
for name, script in calls:
    child = os.fork()
    if child == 0:
        try:
            exec(script)
        except SystemExit as exit:
            os._exit(exit.code)
        os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 1:
        print(name, code)
"#;

/// Shell commands that must fail.
const COMMANDS: [&str; 34] = [
    // Mounts.
    "mount -t proc proc /mnt",
    "mount -t sysfs sysfs /mnt",
    "mount -t tmpfs tmpfs /proc",
    "mount --bind / /mnt",
    "mount -o remount,rw /proc/sys",
    "mount -o remount,rw /sys",
    "umount -l /proc/sys",
    "umount -l /proc/kcore",
    "mount -t cgroup -o memory cgroup /mnt",
    "mount -t cgroup2 cgroup2 /mnt",
    "mount -t overlay -o lowerdir=/,upperdir=/tmp/u,workdir=/tmp/w overlay /mnt",
    "mount -t debugfs debugfs /mnt",
    "unshare --user --map-root-user --mount true",
    "unshare --mount --pid --fork true",
    "nsenter --target 1 --mount true",
    // Settings of the kernel, which run programs of the host.
    "echo '|/tmp/exploit' > /proc/sys/kernel/core_pattern",
    "echo /tmp/exploit > /proc/sys/kernel/modprobe",
    "echo /tmp/exploit > /sys/kernel/uevent_helper",
    "echo 1 > /proc/sys/vm/drop_caches",
    "echo ':x:M::x::/tmp/exploit:' > /proc/sys/fs/binfmt_misc/register",
    "echo h > /proc/sysrq-trigger && test -s /proc/sysrq-trigger",
    // A cgroup file system, whose release_agent is a program of the host.
    "grep -E ' - cgroup2? ' /proc/self/mountinfo",
    // Devices and the memory of the machine.
    "mknod /tmp/memory c 1 1",
    "mknod /tmp/disk b 8 0",
    "mknod /tmp/messages c 1 11",
    "head -c 1 /dev/mem",
    "head -c 1 /dev/kmsg",
    "head -c 1 /proc/kcore | grep -q .",
    "ls /dev | grep -E '^(sd|vd|nvme|dm-|loop|kvm|fuse)'",
    // The first process, which belongs to the engine.
    "ls /proc/1/root/",
    "ls /proc/1/cwd/",
    "ls -l /proc/1/fd/0",
    "head -c 1 /proc/1/environ | grep -q .",
    ": < /proc/1/mem",
];

/// Calls of the kernel that must fail, by their numbers.
#[cfg(target_arch = "x86_64")]
const CALLS: [(&str, &str); 33] = [
    ("ptrace of the first process", "call(101, 16, 1, 0, 0)"),
    (
        "its memory",
        "to = (ctypes.c_ulong * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)\n\
         from_ = (ctypes.c_ulong * 2)(0x400000, 8)\n\
         libc.syscall(310, 1, to, 1, from_, 1, 0)\n\
         sys.exit(1 if ctypes.get_errno() == 1 else 0)",
    ),
    ("its descriptors", "call(438, libc.syscall(434, 1, 0), 0, 0)"),
    ("open_tree", "call(428, -100, b'/', 1)"),
    (
        "open_tree_attr",
        "libc.syscall(467, -100, b'/', 1, 0, 0); sys.exit(1 if ctypes.get_errno() == 1 else 0)",
    ),
    ("move_mount", "call(429, -100, b'/tmp', -100, b'/mnt', 0)"),
    ("fsopen", "call(430, b'tmpfs', 0)"),
    ("fsopen of cgroups", "call(430, b'cgroup2', 0)"),
    ("mount of cgroups, version 1", "call(165, b'none', b'/mnt', b'cgroup', 0, b'memory')"),
    ("mount of cgroups, version 2", "call(165, b'none', b'/mnt', b'cgroup2', 0, 0)"),
    ("fspick", "call(433, -100, b'/', 0)"),
    ("mount_setattr", "call(442, -100, b'/proc/sys', 0, 0, 0)"),
    ("pivot_root", "call(155, b'/tmp', b'/tmp')"),
    ("setns", "call(308, 0, 0)"),
    ("clone with a new user namespace", "call(56, 0x10000011, 0, 0, 0, 0)"),
    ("add_key", "call(248, b'user', b'name', b'secret', 6, -3)"),
    ("request_key", "call(249, b'user', b'name', 0, -3)"),
    ("keyctl", "call(250, 0, -3, 1)"),
    ("bpf", "call(321, 0, 0, 0)"),
    ("perf_event_open", "call(298, 0, 0, -1, -1, 0)"),
    ("userfaultfd", "call(323, 0)"),
    ("io_uring_setup", "call(425, 8, 0)"),
    ("open_by_handle_at", "call(304, -100, 0, 0)"),
    ("init_module", "call(175, 0, 0, b'')"),
    ("kexec_load", "call(246, 0, 0, 0, 0)"),
    ("reboot", "call(169, 0xfee1dead, 672274793, 0x0, 0)"),
    ("kcmp", "call(312, os.getpid(), os.getpid(), 0, 0, 0)"),
    ("move_pages", "call(279, 0, 0, 0, 0, 0, 0)"),
    ("set_mempolicy", "call(238, 0, 0, 0)"),
    ("sysfs", "call(139, 3)"),
    ("a call newer than the filter", "libc.syscall(470); sys.exit(1 if ctypes.get_errno() == 38 else 0)"),
    ("a socket to the hypervisor", "call(41, 40, 1, 0)"),
    ("input for the terminal", "call(16, 0, 0x5412, b'x')"),
];

#[cfg(not(target_arch = "x86_64"))]
const CALLS: [(&str, &str); 0] = [];

/// The commands of a sandbox that attempt to escape.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Without a network.
    Alone,
    /// On the host's network.
    HostNetwork,
    /// Those of agents, which have a view of their own.
    Nested,
}

async fn as_user(sandbox: &RunningSandbox, user: &str, argv: &[&str]) -> Output {
    let (mut command, stdout, stderr) = command(argv);
    command.user = Some(user.to_owned());
    run(sandbox, (command, stdout, stderr)).await
}

/// Attempts everything in a new sandbox, and returns what succeeded.
async fn ways_out(host: &Host, place: Place, user: &str) -> String {
    let mut spec = host.spec().await;
    match place {
        Place::Alone => {}
        Place::HostNetwork => spec.network = Network::Host,
        Place::Nested => spec.private_dirs = vec!["/tests".into(), "/logs/verifier".into()],
    }
    let sandbox = host.engine.create(spec).await.unwrap();
    // Two attempts that succeed show that successes are noticed.
    let commands: Vec<&str> = COMMANDS.into_iter().chain(["true"]).collect();
    let calls: Vec<(&str, &str)> = CALLS.into_iter().chain([("nothing", "sys.exit(0)")]).collect();
    let [commands, calls] = [json!(commands).to_string(), json!(calls).to_string()];
    let (mut command, stdout, stderr) = command(&["python3", "-c", DRIVER, &commands, &calls]);
    command.user = Some(user.to_owned());
    command.nested = matches!(place, Place::Nested);
    let output = run(&sandbox, (command, stdout, stderr)).await;
    assert_eq!(output.exit.status, ExitStatus::Code(0), "{}", output.stderr);
    assert_eq!(out(&sandbox, "echo alive").await, "alive\n");
    sandbox.destroy().await.unwrap();
    output.stdout
}

async fn expect_no_way_out(users: &[&str]) {
    let settings = ["kernel/core_pattern", "kernel/modprobe", "kernel/hostname"];
    let read = || settings.map(|name| fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default());
    let before = read();
    let host = Host::start().await;
    for user in users {
        for place in [Place::Alone, Place::HostNetwork, Place::Nested] {
            let found = ways_out(&host, place, user).await;
            assert_eq!(found, "true\nnothing 0\n", "{user}, {place:?}");
        }
    }
    assert_eq!(read(), before);
}

#[tokio::test]
async fn known_ways_out_fail_for_root_and_for_an_ordinary_user() {
    // Without root on this machine, a sandbox has only the user root.
    let both = ["root", "nobody"];
    let is_root = rustix::process::geteuid().is_root();
    expect_no_way_out(if is_root { &both } else { &both[..1] }).await;
}

#[tokio::test]
async fn known_ways_out_fail_if_an_ordinary_user_runs_the_engine() {
    if rustix::process::geteuid().is_root() {
        return run_as_ordinary_user("escapes::known_ways_out_fail_for_root_and_for_an_ordinary_user");
    }
    expect_no_way_out(&["root"]).await;
}

#[tokio::test]
async fn the_cgroup_of_a_sandbox_is_not_inside() {
    let host = Host::start().await;
    let mut spec = host.spec().await;
    spec.limits.pids = Some(500);
    let sandbox = host.engine.create(spec).await.unwrap();
    if host.engine.support().pids == LimitBacking::None {
        return sandbox.destroy().await.unwrap();
    }
    let dir = find(Path::new("/sys/fs/cgroup"), sandbox.id()).expect("the sandbox has a cgroup");
    for dir in [dir.as_path(), dir.parent().unwrap()] {
        let shown = dir.display();
        for script in [
            format!("ls {shown}"),
            format!("echo $$ > {shown}/cgroup.procs"),
            format!("echo max > {shown}/pids.max"),
            format!("echo 1 > {shown}/notify_on_release"),
            format!("mkdir {shown}/other"),
        ] {
            let output = as_user(&sandbox, "root", &["/bin/bash", "-c", &script]).await;
            assert_ne!(output.exit.status, ExitStatus::Code(0), "{script}: {}", output.stdout);
        }
    }
    sandbox.destroy().await.unwrap();
}

/// Exchanges a directory and a link to another place as fast as possible.
const SWAP: &str = "exec python3 -c '
import ctypes
libc = ctypes.CDLL(None)
open(\"/race/began\", \"w\")
while True:
    libc.renameat2(-100, b\"/race/dir\", -100, b\"/race/link\", 2)'";

#[tokio::test]
async fn a_directory_that_becomes_a_link_during_a_copy_does_not_lead_out() {
    let host = Host::start().await;
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret of the host").unwrap();
    let source = tempfile::tempdir().unwrap();
    fs::create_dir(source.path().join("sub")).unwrap();
    for name in ["one", "sub/two"] {
        fs::write(source.path().join(name), "of the copy").unwrap();
    }
    let limits = CopyLimits { bytes: 1 << 20, entries: 1000, file_bytes: 1 << 20 };
    let place = outside.path().display().to_string();
    for target in [place.as_str(), "/proc/self/fd"] {
        let sandbox = host.sandbox().await;
        let prepare = format!("mkdir -p /race/dir; ln -s {target} /race/link");
        out(&sandbox, &prepare).await;
        let swapping = start(&sandbox, SWAP).await;
        out(&sandbox, "until test -e /race/began; do sleep 0.01; done").await;
        for round in 0..100 {
            // Each of them may fail, because what it works on disappears.
            let replace = round % 2 == 0;
            let _ = sandbox.copy_in(source.path(), "/race/dir", CopyIn { replace }).await;
            let _ = sandbox.write_file("/race/dir/secret", b"forged", 0o644).await;
            let _ = sandbox.make_dir("/race/dir/new", 0o777, true).await;
            let copied = copy_out(&sandbox, "/race/dir", limits).await.unwrap_or_default();
            assert!(!String::from_utf8_lossy(&copied.bytes).contains("of the host"), "{copied:?}");
        }
        swapping.kill_tree().await.unwrap();
        let left: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["secret"]);
        assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "secret of the host");
        sandbox.destroy().await.unwrap();
    }
}

#[tokio::test]
async fn a_set_user_id_program_gains_nothing() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    out(&sandbox, "cp /usr/bin/id /tmp/id && chmod 6755 /tmp/id && test -u /tmp/id").await;
    let output = as_user(&sandbox, "nobody", &["/tmp/id", "-u"]).await;
    assert_eq!(output.stdout, "65534\n");
    let output = as_user(&sandbox, "nobody", &["/tmp/id", "-g"]).await;
    assert_ne!(output.stdout, "0\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_command_inherits_no_descriptors_and_dumps_no_memory() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    for user in ["root", "nobody"] {
        let script = "import os, resource\n\
            print([fd for fd in range(3, 200) if os.path.exists(f'/proc/self/fd/{fd}')])\n\
            print(resource.getrlimit(resource.RLIMIT_CORE)[1])\n";
        let output = as_user(&sandbox, user, &["python3", "-c", script]).await;
        assert_eq!(output.stdout, "[]\n0\n", "{user}: {}", output.stderr);
    }
    sandbox.destroy().await.unwrap();
}
