//! Known ways out of containers, each attempted as root and as an ordinary user of a sandbox.

use std::fs;

use rollout_sandbox::{ExitStatus, RunningSandbox};

use crate::common::{Host, Output, command, out, run};

/// Defines `call(number, arguments…)`, which exits with 0 only if a system call succeeds.
const CALL: &str = "import ctypes, os, sys\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    def call(*arguments):\n\
    \x20   sys.exit(0 if libc.syscall(*arguments) >= 0 else 1)\n";

/// Shell commands that must fail.
const COMMANDS: [&str; 35] = [
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
    "f=$(find /sys -name release_agent 2>/dev/null | head -n 1); [ -n \"$f\" ] && echo /tmp/exploit > \"$f\"",
    "f=$(find /sys -name cgroup.procs 2>/dev/null | head -n 1); [ -n \"$f\" ] && echo 1 > \"$f\"",
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
const CALLS: [(&str, &str); 30] = [
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

async fn as_user(sandbox: &RunningSandbox, user: &str, argv: &[&str]) -> Output {
    let (mut command, stdout, stderr) = command(argv);
    command.user = Some(user.to_owned());
    run(sandbox, (command, stdout, stderr)).await
}

#[tokio::test]
async fn known_ways_out_fail_for_root_and_for_an_ordinary_user() {
    let settings = ["kernel/core_pattern", "kernel/modprobe", "kernel/hostname"];
    let read = || settings.map(|name| fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default());
    let before = read();
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let mut ways_out = Vec::new();
    for user in ["root", "nobody"] {
        for script in COMMANDS {
            let output = as_user(&sandbox, user, &["/bin/bash", "-c", script]).await;
            if output.exit.status == ExitStatus::Code(0) {
                ways_out.push(format!("{user}: {script}: {}", output.stdout));
            }
        }
        #[cfg(target_arch = "x86_64")]
        for (name, script) in CALLS {
            let output = as_user(&sandbox, user, &["python3", "-c", &format!("{CALL}{script}\n")]).await;
            if output.exit.status != ExitStatus::Code(1) {
                ways_out.push(format!("{user}: {name}: {:?} {}", output.exit.status, output.stderr));
            }
        }
    }
    assert!(ways_out.is_empty(), "{}", ways_out.join("\n"));
    assert_eq!(read(), before);
    assert_eq!(out(&sandbox, "echo alive").await, "alive\n");
    sandbox.destroy().await.unwrap();
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
