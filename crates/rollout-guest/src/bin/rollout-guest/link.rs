//! The parts of the guest that run in another container of the pod: they bring the program in, and connect the host.
//!
//! That container has its own process namespace and its own memory, so the processes of a task can neither stop nor
//! read nor replace what runs here.

use std::{
    fs,
    io::{self, Read as _, Write},
    net::Shutdown,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::PermissionsExt as _,
            net::{SocketAddr, UnixStream},
            process::CommandExt as _,
        },
    },
    path::Path,
    process::Command,
    time::Duration,
};

use rollout_guest::session::SESSION_WAITER;

use crate::users;

/// The pause between two attempts to reach the guest, whose container may start later.
const PAUSE: Duration = Duration::from_millis(200);

/// The bytes that are copied at a time.
const CHUNK: usize = 64 << 10;

/// The address of a guest. Containers of a pod share their network namespace, and with it abstract addresses; no
/// process can remove or replace one.
pub(crate) fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("rollout-guest/{name}"))
}

/// Copies this program to a path that the container of the task can read.
pub(crate) fn install(target: &Path) -> io::Result<()> {
    let unfinished = target.with_extension("new");
    fs::copy("/proc/self/exe", &unfinished)?;
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o555))?;
    fs::rename(&unfinished, target)
}

/// Waits until the guest ends.
pub(crate) fn wait(name: &str) -> io::Result<()> {
    let address = address(name)?;
    let mut guest = loop {
        match UnixStream::connect_addr(&address) {
            Ok(guest) => break guest,
            Err(_) => std::thread::sleep(PAUSE),
        }
    };
    guest.write_all(&SESSION_WAITER)?;
    // The guest sends nothing; the stream ends with it.
    let _ = guest.read(&mut [0]);
    Ok(())
}

/// Connects the standard streams to the guest, until one of the two sides closes.
pub(crate) fn connect(name: &str) -> io::Result<()> {
    let guest = UnixStream::connect_addr(&address(name)?)?;
    let mut to_guest = guest.try_clone()?;
    std::thread::Builder::new().name("input".to_owned()).spawn(move || {
        let _ = pump(&mut io::stdin().lock(), &mut to_guest);
        // The guest then closes the other direction, or has done so.
        let _ = to_guest.shutdown(Shutdown::Both);
        std::process::exit(0);
    })?;
    pump(&mut &guest, &mut io::stdout().lock())
}

/// Copies as bytes arrive, without waiting for more.
fn pump(from: &mut impl io::Read, to: &mut impl Write) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&chunk[..count])?;
        to.flush()?;
    }
}

/// Becomes a program of the container, as a user; for a terminal of a person.
pub(crate) fn run(user: &str, argv: &[&str]) -> io::Result<()> {
    let unknown = || io::Error::other(format!("the environment has no user {user}"));
    let identity = users::resolve(Some(user)).ok_or_else(unknown)?;
    let (program, arguments) = argv.split_first().ok_or_else(|| io::Error::other("the command is empty"))?;
    let mut command = Command::new(program);
    command.args(arguments).env("TERM", "xterm-256color");
    for (name, _) in std::env::vars_os().filter(crate::serve::is_clusters) {
        command.env_remove(name);
    }
    if !identity.is_root() {
        command.env("HOME", &identity.home);
        users::become_user(&identity)?;
    }
    Err(command.exec())
}
