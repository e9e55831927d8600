//! The first process of a container: serves the host's requests over its standard streams.
//!
//! When the streams close, this process exits, and the kernel kills everything else in the container, however
//! the host died. Processes in the container may be hostile, so nothing in it is trusted or waited for.
//! Everything that must work when processes have used up the container's limits runs in threads that are
//! started at the beginning.
//!
//! With `session`, the requests come over connections that may be lost and resumed. Another container of the same
//! pod runs `wait`, and the host runs `connect` there for each connection. See `session.rs`.
//!
//! With `host`, the guest is an ordinary process beside others, such as the agent of a cloud. See `host.rs`.
#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod descendants;
#[cfg(target_os = "linux")]
mod describe;
#[cfg(target_os = "linux")]
mod exec;
#[cfg(target_os = "linux")]
mod files;
#[cfg(target_os = "linux")]
mod handover;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod kill;
#[cfg(target_os = "linux")]
mod link;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod out;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod relay;
#[cfg(target_os = "linux")]
mod serve;
#[cfg(target_os = "linux")]
mod session;
#[cfg(target_os = "linux")]
mod tunnel;
#[cfg(target_os = "linux")]
mod users;
#[cfg(target_os = "linux")]
mod watch;
#[cfg(target_os = "linux")]
mod websocket;

#[cfg(target_os = "linux")]
use rollout_guest::KillScope;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        [] => serve::serve(KillScope::Namespace, serve::Streams::standard),
        ["session", name, grace] => session::serve(KillScope::Namespace, name, grace, None),
        ["host", name, grace] => host::prepare(name, grace, None),
        ["host", name, grace, port] => host::prepare(name, grace, Some(port)),
        ["prepared-host", name, grace] => host::host(name, grace, None),
        ["prepared-host", name, grace, port] => host::host(name, grace, Some(port)),
        ["inside-namespace", name, grace] => host::inside(KillScope::Namespace, name, grace),
        ["inside", name, grace] => host::inside(KillScope::Descendants, name, grace),
        ["describe", path] => describe::write(path.as_ref()),
        ["describe", path, directory, user] => describe::write_of(path.as_ref(), directory, user),
        ["install", target] => link::install(target.as_ref()),
        ["wait", name] => link::wait(name),
        ["connect", name] => link::connect(name),
        ["run", user, argv @ ..] => link::run(user, argv),
        _ => Err(std::io::Error::other("unknown arguments")),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the guest cannot start: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {}
