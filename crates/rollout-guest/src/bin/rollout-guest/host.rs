//! Runs the guest as an ordinary process of root beside others, such as the agent of a cloud.
//!
//! Where it is permitted, the guest is the first process of a new PID namespace, with its own mounts and its own /proc.
//! Otherwise it is the subreaper of its descendants, and touches no other process. Either way, this process stays
//! outside. It accepts the connections of the host and passes them on, so in a namespace, processes of the task can
//! neither stop nor read it.
//!
//! The two processes share a control socket, whose end is the end of both.

use std::{
    env,
    ffi::{CStr, OsString},
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Command, Stdio, exit},
    thread,
    time::Duration,
};

use rollout_guest::KillScope;
use rustix::{
    mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount},
    process::{DumpableBehavior, getpid, set_child_subreaper, set_dumpable_behavior},
    thread::{UnshareFlags, set_name},
};

use crate::{handover, processes, relay::Relay, session};

/// Variables with this prefix are for the guest, and never reach a command.
const OWN_VARIABLES: &[u8] = b"ROLLOUT_GUEST_";

/// The secret that connections must send.
const TOKEN: &str = "ROLLOUT_GUEST_TOKEN";

/// After this number of seconds the guest ends, for clouds that do not end a sandbox by themselves.
const LIFETIME: &str = "ROLLOUT_GUEST_LIFETIME";

/// The exit code of a guest whose lifetime is over.
const LIFETIME_OVER: i32 = 75;

/// Set to `descendants`, no namespace is made. For tests.
const SCOPE: &str = "ROLLOUT_GUEST_SCOPE";

/// The longest secret.
const MAX_TOKEN: usize = 1024;

/// A mount point may have more mounts below the visible one.
const MAX_MOUNTS: usize = 16;

/// This program.
const PROGRAM: &str = "/proc/self/exe";

/// The name of the processes, instead of that of the link.
const NAME: &CStr = c"rollout-guest";

const NAMESPACE: u8 = b'n';
const DESCENDANTS: u8 = b'd';

/// Starts this program again without the variables of the guest, which /proc shows to other processes of root as long
/// as a program runs. The new one reads them from a pipe.
pub(crate) fn prepare(name: &str, grace: &str, port: Option<&str>) -> io::Result<()> {
    let token = env::var_os(TOKEN).unwrap_or_default();
    if port.is_some() && token.is_empty() {
        return Err(io::Error::other(format!("{TOKEN} is missing")));
    }
    if token.len() > MAX_TOKEN {
        return Err(io::Error::other(format!("{TOKEN} is too long")));
    }
    let forced = env::var_os(SCOPE).is_some_and(|scope| scope == "descendants");
    let lifetime = match env::var(LIFETIME) {
        Ok(seconds) => {
            seconds.parse().map_err(|_| io::Error::other(format!("{LIFETIME} is not a number")))?
        }
        Err(_) => 0,
    };
    let (settings, mut writer) = io::pipe()?;
    writer.write_all(&[if forced { DESCENDANTS } else { NAMESPACE }])?;
    writer.write_all(&u64::to_le_bytes(lifetime))?;
    writer.write_all(token.as_encoded_bytes())?;
    drop(writer);
    let mut command = Command::new(PROGRAM);
    command.arg0("rollout-guest").args(["prepared-host", name, grace]).args(port);
    command.env_clear().envs(env::vars_os().filter(|variable| !is_own(variable)));
    Err(command.stdin(OwnedFd::from(settings)).exec())
}

fn is_own((name, _): &(OsString, OsString)) -> bool {
    name.as_encoded_bytes().starts_with(OWN_VARIABLES)
}

/// Runs the guest to its end, and serves connections.
pub(crate) fn host(name: &str, grace: &str, port: Option<&str>) -> io::Result<()> {
    set_name(NAME)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let mut settings = Vec::new();
    io::stdin().take(MAX_TOKEN as u64 + 9).read_to_end(&mut settings)?;
    let (scope, rest) = settings.split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
    let (lifetime, token) = rest.split_first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
    end_after(u64::from_le_bytes(*lifetime));
    let port: Option<u16> = port.map(str::parse).transpose().map_err(io::Error::other)?;
    let listener = port.map(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))).transpose()?;
    let isolated = if *scope == NAMESPACE { in_namespace(name, grace).ok() } else { None };
    let (control, scope) = match isolated {
        Some(control) => (control, KillScope::Namespace),
        None => {
            // Should the guest be killed, its descendants become those of this process.
            set_child_subreaper(Some(getpid()))?;
            (launch("inside", name, grace)?, KillScope::Descendants)
        }
    };
    match listener {
        Some(listener) => Relay::new(listener, token.to_vec(), control)?.run(),
        None => wait_for_end(&control),
    }
    if scope == KillScope::Descendants {
        processes::kill_left_behind();
    }
    Ok(())
}

/// Ends this process after a number of seconds, unless it is 0. The guest ends with it.
fn end_after(seconds: u64) {
    if seconds > 0 {
        thread::spawn(move || {
            thread::sleep(Duration::from_secs(seconds));
            exit(LIFETIME_OVER);
        });
    }
}

/// Starts the guest as the first process of a namespace.
///
/// Only the thread enters the new namespaces. If the guest cannot start there, this process can start it otherwise.
fn in_namespace(name: &str, grace: &str) -> io::Result<UnixStream> {
    thread::scope(|scope| {
        let started = scope.spawn(|| {
            #[expect(deprecated, reason = "only a separate table of descriptors would be unsafe")]
            rustix::thread::unshare(UnshareFlags::NEWPID | UnshareFlags::NEWNS)?;
            launch("inside-namespace", name, grace)
        });
        started.join().unwrap_or_else(|_| Err(io::Error::other("the thread failed")))
    })
}

/// Starts the guest; returns the control socket once it serves.
fn launch(form: &str, name: &str, grace: &str) -> io::Result<UnixStream> {
    let (control, its) = UnixStream::pair()?;
    let mut command = Command::new(PROGRAM);
    command.arg0("rollout-guest").args([form, name, grace]);
    command.stdin(OwnedFd::from(its)).stdout(Stdio::null());
    let mut child = command.spawn()?;
    // Closes the other end of the socket here.
    drop(command);
    match handover::wait_until_ready(&control) {
        Ok(()) => Ok(control),
        Err(error) => {
            child.wait()?;
            Err(error)
        }
    }
}

fn wait_for_end(mut control: &UnixStream) {
    while let Err(error) = control.read(&mut [0]) {
        if error.kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// Serves as the guest that another process of this program has started.
pub(crate) fn inside(scope: KillScope, name: &str, grace: &str) -> io::Result<()> {
    set_name(NAME)?;
    if scope == KillScope::Namespace {
        mount_proc()?;
    }
    let control = UnixStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
    session::serve(scope, name, grace, Some(control))
}

/// Replaces /proc by that of the own namespace.
///
/// Mounts below would show processes outside to a process that can unmount, so they are removed. One that cannot be
/// removed cannot be uncovered either.
fn mount_proc() -> io::Result<()> {
    if !getpid().is_init() {
        return Err(io::Error::other("it is not the first process of a namespace"));
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    for _ in 0..MAX_MOUNTS {
        if unmount("/proc", UnmountFlags::DETACH).is_err() {
            break;
        }
    }
    Ok(mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?)
}
