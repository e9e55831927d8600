//! What a sandbox cannot see, reach or do.

use crate::common::{Host, command, home_files, installs_a_package, out, run, sh};
use rollout_sandbox::{ExitStatus, Network};

#[tokio::test]
async fn the_hosts_secrets_homes_sockets_and_devices_are_invisible() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let secret = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let seen = out(&sandbox, "ls -A /root /home /var/tmp /run /srv /mnt /opt /tmp; ls /etc/shadow /etc/gshadow /etc/ssh /etc/sudoers 2>&1 || true").await;
    assert!(!seen.contains(&*secret.path().file_name().unwrap().to_string_lossy()), "{seen}");
    assert_eq!(seen.matches("No such file").count(), 4, "{seen}");
    insta::assert_snapshot!(out(&sandbox, "ls /dev").await, @r"
    fd
    full
    null
    ptmx
    pts
    random
    shm
    stderr
    stdin
    stdout
    tty
    urandom
    zero
    ");
    let mounts = out(&sandbox, "cat /proc/mounts").await;
    assert!(!mounts.contains("/dev/vd") && !mounts.contains(" ext4 "), "{mounts}");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn the_engines_environment_is_not_readable_from_inside() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let output = sh(&sandbox, "env; for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; done").await;
    assert!(!output.stdout.contains("CARGO"), "{}", output.stdout);
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn deleting_every_program_does_not_hurt_the_host() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let before = std::fs::read_dir("/usr/bin").unwrap().count();
    sh(&sandbox, "rm -rf /usr/bin /usr/sbin /etc /bin /lib64").await;
    assert_eq!(std::fs::read_dir("/usr/bin").unwrap().count(), before);
    let (command, _stdout, _stderr) = command(&["ls"]);
    assert!(sandbox.exec(command).await.is_err());
    sandbox.destroy().await.unwrap();
    let sandbox = host.sandbox().await;
    assert_eq!(out(&sandbox, "echo untouched").await, "untouched\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn packages_of_the_host_are_known_and_new_ones_stay_inside() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    installs_a_package(&sandbox).await;
    assert_eq!(out(&sandbox, "ls -A /root").await, home_files());
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn the_supervisor_cannot_be_inspected_or_killed() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let script = "kill -9 1; readlink /proc/1/fd/* /proc/1/exe /proc/1/root; cat /proc/1/environ /proc/1/maps
        head -c 1 /proc/1/mem; ls /proc/1/map_files; echo done";
    assert_eq!(sh(&sandbox, script).await.stdout, "done\n");
    assert_eq!(out(&sandbox, "echo alive").await, "alive\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn privileges_are_those_of_a_container_and_cannot_grow() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let status = out(
        &sandbox,
        "grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status",
    )
    .await;
    insta::assert_snapshot!(status, @r"
    CapInh:	0000000000000000
    CapPrm:	00000000a00425fb
    CapEff:	00000000a00425fb
    CapBnd:	00000000a00425fb
    CapAmb:	0000000000000000
    NoNewPrivs:	1
    Seccomp:	2
    ");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn calls_that_reach_beyond_the_sandbox_are_rejected() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    for script in [
        "mount -t tmpfs none /mnt",
        "umount /proc",
        "mount --bind /proc /mnt",
        "unshare -m true",
        "unshare -U true",
        "unshare -n true",
        "mknod /tmp/disk b 254 0",
        "mknod /tmp/mem c 1 1",
        "chroot /proc/1/root true",
        "echo 1 > /proc/sys/kernel/panic",
        "echo b > /proc/sysrq-trigger && false",
        "echo x > /sys/kernel/uevent_helper",
        "swapon /dev/null",
        "hostname other",
        "date -s '2001-01-01'",
        "dmesg",
        "cat /proc/kcore | head -c1 | grep -q .",
    ] {
        let output = sh(&sandbox, script).await;
        assert_ne!(output.exit.status, ExitStatus::Code(0), "{script}: {}", output.stdout);
    }
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_device_node_smuggled_in_does_not_open() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    if rustix::process::geteuid().is_root() {
        let upper = sandbox.root_dir().join("upper/root/device");
        let device = rustix::fs::makedev(1, 5);
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, &upper, kind, rustix::fs::Mode::RWXU, device).unwrap();
        assert_ne!(sh(&sandbox, "head -c 1 /device").await.exit.status, ExitStatus::Code(0));
    }
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn without_a_network_there_is_only_loopback() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    assert_eq!(out(&sandbox, "ls /sys/class/net").await, "lo\n");
    let script = "python3 -m http.server --bind 127.0.0.1 8123 >/dev/null 2>&1 & \
        for i in $(seq 12000); do (exec 3<>/dev/tcp/127.0.0.1/8123) 2>/dev/null && echo reached && break; sleep 0.05; done; kill %1";
    assert_eq!(out(&sandbox, script).await, "reached\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn the_hosts_network_has_the_hosts_interfaces_but_no_raw_sockets() {
    let host = Host::start().await;
    let mut spec = host.spec().await;
    spec.network = Network::Host;
    let sandbox = host.engine.create(spec).await.unwrap();
    let lines = |text: &str| text.lines().skip(2).count();
    let host_interfaces = lines(&std::fs::read_to_string("/proc/net/dev").unwrap());
    assert_eq!(lines(&out(&sandbox, "cat /proc/net/dev").await), host_interfaces);
    // The same calls succeed in a network of its own, where they reach nothing.
    let alone = host.sandbox().await;
    for family in ["AF_PACKET", "AF_INET", "AF_INET6"] {
        let raw = format!("python3 -c 'import socket; socket.socket(socket.{family}, socket.SOCK_RAW, 1)'");
        let refused = sh(&sandbox, &raw).await;
        assert_eq!(refused.exit.status, ExitStatus::Code(1), "{family}");
        assert!(refused.stderr.contains("Operation not permitted"), "{family}: {}", refused.stderr);
        out(&alone, &raw).await;
    }
    alone.destroy().await.unwrap();
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_user_of_the_image_runs_without_privileges() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let (mut command, stdout, stderr) = command(&[
        "/bin/bash",
        "-c",
        "id -un; id -gn; grep CapEff /proc/self/status; echo x > /dev/stdout; touch /root/x 2>&1",
    ]);
    command.user = Some("nobody".into());
    let output = run(&sandbox, (command, stdout, stderr)).await;
    insta::assert_snapshot!(output.stdout, @r"
    nobody
    nogroup
    CapEff:	0000000000000000
    x
    touch: cannot touch '/root/x': Permission denied
    ");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
#[cfg(target_arch = "x86_64")]
async fn the_filter_cannot_be_bypassed_by_other_call_numbers() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let call = async |number: u64| {
        let script = format!(
            "python3 -c 'import ctypes; c = ctypes.CDLL(None, use_errno=True); \
             print(c.syscall({number}, 0x10000000, 0, 0, 0, 0), ctypes.get_errno())'"
        );
        out(&sandbox, &script).await
    };
    let (clone, clone3, getpid, unshare) = (56, 435, 39, 272);
    assert_eq!(call(clone).await, "-1 1\n", "clone with CLONE_NEWUSER");
    assert_eq!(call(clone3).await, "-1 38\n", "clone3 is missing");
    assert_eq!(call(unshare).await, "-1 1\n");
    let no_such_family = "-1 97\n";
    let vsock = "python3 -c 'import ctypes; c = ctypes.CDLL(None, use_errno=True); \
                 print(c.socket(40, 1, 0), ctypes.get_errno())'";
    assert_eq!(out(&sandbox, vsock).await, no_such_family, "sockets to the hypervisor");
    assert_eq!(call(0x4000_0000 | getpid).await, "-1 1\n", "the x32 numbers");
    // The calls of 32-bit programs have other numbers, which no rule knows.
    let getpid32 = "import ctypes, mmap\n\
        memory = mmap.mmap(-1, 4096, prot=7)\n\
        memory.write(bytes.fromhex('b814000000cd80c3'))\n\
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()\n";
    let ended = run(&sandbox, command(&["python3", "-c", getpid32])).await;
    assert_eq!(ended.exit.status, ExitStatus::Signal(31), "{}", ended.stderr);
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn the_hosts_network_does_not_open_its_abstract_sockets() {
    use std::os::linux::net::SocketAddrExt;
    let host = Host::start().await;
    let name = format!("rollout-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let mut spec = host.spec().await;
    spec.network = Network::Host;
    let sandbox = host.engine.create(spec).await.unwrap();
    let connect =
        |name: &str| format!("import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + \"{name}\")");
    let reached = sh(&sandbox, &format!("python3 -c '{}'", connect(&name))).await;
    let noted = host.engine.support().notes.iter().any(|note| note.contains("abstract unix sockets"));
    assert_eq!(reached.exit.status == ExitStatus::Code(0), noted, "{}", reached.stderr);
    let own = format!(
        "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + \"own-{name}\"); s.listen(); {}'",
        connect(&format!("own-{name}"))
    );
    out(&sandbox, &own).await;
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn the_hosts_null_device_is_not_inside() {
    use std::os::unix::fs::MetadataExt;
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let null = std::fs::metadata("/dev/null").unwrap();
    // Some kernels lack some of these files.
    let masks = out(&sandbox, "ls -d /proc/{kcore,keys,timer_list,sysrq-trigger} 2>/dev/null || true").await;
    let masks = masks.replace('\n', " ");
    let seen = out(&sandbox, &format!("stat -L -c %d:%i /dev/stdin /dev/null {masks}")).await;
    let hosts = format!("{}:{}", null.dev(), null.ino());
    assert!(!seen.lines().any(|line| line == hosts), "{seen}");
    let script = format!("for mask in {masks}; do chmod 0 $mask || chown 1 $mask || echo x > $mask; done");
    assert_ne!(sh(&sandbox, &script).await.exit.status, ExitStatus::Code(0));
    assert_eq!(out(&sandbox, "cat; echo nothing to read").await, "nothing to read\n");
    assert_eq!(std::fs::metadata("/dev/null").unwrap().mode(), null.mode());
    sandbox.destroy().await.unwrap();
}
