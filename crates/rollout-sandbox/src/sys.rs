//! System calls without a safe wrapper: process creation and the supervisor's raw descriptors.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

/// Which side of a fork the caller is on.
pub(crate) enum Fork {
    Parent(i32),
    Child,
}

/// Forks the calling process into new namespaces (`CLONE_NEW*` bits, or 0 for a plain fork).
///
/// Only the single-threaded helper process may call this: a fork of a threaded process could inherit a lock
/// that no thread can release.
pub(crate) fn fork_into(namespaces: i32) -> io::Result<Fork> {
    let flags = namespaces | libc::SIGCHLD;
    // SAFETY: without CLONE_VM the child has its own copy of the address space and, with a null
    // stack, continues on the copied one. The helper is single-threaded, so the copy is consistent.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(i32::try_from(pid).expect("a pid fits in 32 bits"))),
    }
}

/// Forks the calling process, with the same restriction as [`fork_into`].
pub(crate) fn fork() -> io::Result<Fork> {
    fork_into(0)
}

/// Exits the calling process at once, without running destructors copied from its parent.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Closes every file descriptor of the process except those listed and the standard three.
pub(crate) fn close_all_except(keep: &[RawFd]) {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    keep.sort_unstable();
    let mut next = 3;
    for fd in keep {
        if fd > next {
            close_range(next, fd - 1);
        }
        next = next.max(fd + 1);
    }
    close_range(next, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: the callers are freshly forked children which never touch the closed descriptors'
    // owners again: they either exec or end by `exit_now`.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// Takes ownership of the process's standard input as an ordinary descriptor.
pub(crate) fn take_stdin() -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC makes a new descriptor or fails.
    let fd = unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes `fd` the process's descriptor number `target`, inherited over exec.
pub(crate) fn dup_onto(fd: &impl AsRawFd, target: RawFd) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    // SAFETY: both calls only change the descriptor table; dup2 on itself would keep CLOEXEC.
    let done =
        unsafe { if fd == target { libc::fcntl(fd, libc::F_SETFD, 0) } else { libc::dup2(fd, target) } };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Blocks SIGCHLD for the process and returns a descriptor that becomes readable when one arrives.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before any use, and the process is single-threaded.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        if libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Resets the signals of the helper, whose parent may ignore some. Only SIGPIPE stays ignored, so that writing to a
/// closed pipe is an error.
///
/// Done once, because 64 calls for each command are noticeable in short trials.
pub(crate) fn reset_signals() {
    for signal in (1..=64).filter(|signal| *signal != libc::SIGPIPE) {
        reset_signal(signal);
    }
}

/// Gives a command the signal state a new process expects: nothing blocked, nothing ignored. The helper has reset its
/// own signals before.
pub(crate) fn reset_command_signals() {
    reset_signal(libc::SIGPIPE);
    // SAFETY: the set is initialised before use.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}

fn reset_signal(signal: i32) {
    // SAFETY: SIG_DFL is a valid disposition for every signal, and the two that refuse it are left as they are.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Sends a signal to one process, or with -1 to every process the caller may signal except itself.
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill has no memory preconditions.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A child's wait status as the kernel encodes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct RawStatus(pub(crate) i32);

impl RawStatus {
    pub(crate) fn is_signal(self) -> bool {
        libc::WIFSIGNALED(self.0)
    }

    pub(crate) fn signal(self) -> Option<i32> {
        libc::WIFSIGNALED(self.0).then(|| libc::WTERMSIG(self.0))
    }

    pub(crate) fn code(self) -> i32 {
        libc::WEXITSTATUS(self.0)
    }
}

/// Reaps one ended child, or any with -1; `None` if there are children but none has ended.
pub(crate) fn reap(pid: i32, wait: bool) -> io::Result<Option<(i32, RawStatus)>> {
    loop {
        let mut status = 0;
        // SAFETY: status outlives the call.
        let pid = unsafe { libc::waitpid(pid, &mut status, if wait { 0 } else { libc::WNOHANG }) };
        match pid {
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            0 => return Ok(None),
            pid => return Ok(Some((pid, RawStatus(status)))),
        }
    }
}

/// Waits until any child has ended, without reaping it.
pub(crate) fn wait_for_any() -> io::Result<(i32, RawStatus)> {
    loop {
        // SAFETY: info is plain data that the call fills when it succeeds, with the fields of a child's end.
        let (done, pid, code, status) = unsafe {
            let mut info = std::mem::zeroed::<libc::siginfo_t>();
            let done = libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOWAIT);
            (done, info.si_pid(), info.si_code, info.si_status())
        };
        if done == 0 {
            let status = if code == libc::CLD_EXITED { (status & 0xff) << 8 } else { status & 0x7f };
            return Ok((pid, RawStatus(status)));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether `pid` is a child of the caller, ended or not.
pub(crate) fn is_child(pid: i32) -> bool {
    let Ok(id) = libc::id_t::try_from(pid) else { return false };
    // SAFETY: info is plain data that the call may fill; WNOWAIT leaves the child as it is.
    unsafe {
        let mut info = std::mem::zeroed::<libc::siginfo_t>();
        libc::waitid(libc::P_PID, id, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) == 0
    }
}

/// Whether the child `pid` was stopped since the last call.
pub(crate) fn was_stopped(pid: i32) -> bool {
    let Ok(id) = libc::id_t::try_from(pid) else { return false };
    // SAFETY: info is plain data, zeroed, that the call may fill with the fields of a child's change.
    unsafe {
        let mut info = std::mem::zeroed::<libc::siginfo_t>();
        libc::waitid(libc::P_PID, id, &mut info, libc::WSTOPPED | libc::WNOHANG) == 0 && info.si_pid() != 0
    }
}

/// A child that must keep running, although commands may stop it.
#[derive(Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) pid: i32,
    stops: u32,
}

impl Kept {
    /// More stops than this are treated as an attempt to keep the child from running.
    const MAX_STOPS: u32 = 100;

    pub(crate) fn new(pid: i32) -> Kept {
        Kept { pid, stops: 0 }
    }

    /// Continues the child if it was stopped. Kills it after too many stops, because a child that is stopped as
    /// fast as it is continued makes no progress.
    pub(crate) fn keep_running(&mut self) {
        if was_stopped(self.pid) {
            self.stops += 1;
            // A child that has ended ignores the signal; its pid is not reused before it is reaped.
            let _ = kill(self.pid, if self.stops > Kept::MAX_STOPS { libc::SIGKILL } else { libc::SIGCONT });
        }
    }
}

/// Disables devices and set-user-ID programs in a mount.
///
/// Processes inside cannot create devices or gain privileges anyway, so a kernel without this call is no risk.
pub(crate) fn forbid_devices(mount: &OwnedFd) {
    // A failure is no risk.
    let _ = restrict(mount, 0);
}

/// The same, and forbids writing.
pub(crate) fn forbid_writing(mount: &OwnedFd) -> io::Result<()> {
    restrict(mount, libc::MOUNT_ATTR_RDONLY)
}

fn restrict(mount: &OwnedFd, more: u64) -> io::Result<()> {
    /// The argument of the call, in the kernel's layout.
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    let set = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | more;
    let attributes = Attributes { set, clear: 0, propagation: 0, user_namespace: 0 };
    // SAFETY: the attributes outlive the call and their size is given; the empty path is nul-terminated.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &attributes,
            size_of::<Attributes>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Brings up the loopback interface of the current network namespace.
pub(crate) fn loopback_up() -> io::Result<()> {
    // SAFETY: the socket's descriptor is checked and owned before use; the request is a fully
    // initialised ifreq whose name is nul-terminated because it starts zeroed and "lo" is short.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request = std::mem::zeroed::<libc::ifreq>();
        for (slot, byte) in request.ifr_name.iter_mut().zip(b"lo") {
            *slot = libc::c_char::from_ne_bytes([*byte]);
        }
        request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING)
            .expect("the interface flags are small constants");
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The Landlock ABI version that can restrict abstract sockets.
const LANDLOCK_WITH_SCOPES: libc::c_long = 6;

/// Whether [`hide_outer_abstract_sockets`] works on this kernel.
pub(crate) fn can_hide_abstract_sockets() -> bool {
    const VERSION: u32 = 1;
    let nothing = std::ptr::null::<u64>();
    // SAFETY: with this flag the call takes no attributes and only returns a number.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, VERSION) >= LANDLOCK_WITH_SCOPES }
}

/// Prevents the calling process and its descendants from connecting to abstract sockets of other processes.
///
/// Such sockets belong to the network namespace, so on the host's network they would be reachable.
pub(crate) fn hide_outer_abstract_sockets() -> io::Result<()> {
    /// Accesses to files and to the network, which are not restricted here, and the scopes, which are.
    #[repr(C)]
    struct Attributes {
        files: u64,
        network: u64,
        scopes: u64,
    }
    const ABSTRACT_SOCKETS: u64 = 1;
    let attributes = Attributes { files: 0, network: 0, scopes: ABSTRACT_SOCKETS };
    // SAFETY: the attributes outlive the call and their size is given; the new descriptor has no other owner.
    let ruleset = unsafe {
        let fd = libc::syscall(libc::SYS_landlock_create_ruleset, &attributes, size_of::<Attributes>(), 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(RawFd::try_from(fd).expect("descriptors are small"))
    };
    // SAFETY: the descriptor is a ruleset, and the call touches no memory.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
