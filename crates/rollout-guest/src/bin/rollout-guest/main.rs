//! The first process of a container: serves the host's requests over its standard streams.
//!
//! When the streams close, this process exits, and the kernel kills everything else in the container, however
//! the host died. Processes in the container may be hostile, so nothing in it is trusted or waited for.
//! Everything that must work when processes have used up the container's limits runs in threads that are
//! started at the beginning.
#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod exec;
#[cfg(target_os = "linux")]
mod files;
#[cfg(target_os = "linux")]
mod kill;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod out;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod serve;
#[cfg(target_os = "linux")]
mod tunnel;
#[cfg(target_os = "linux")]
mod users;
#[cfg(target_os = "linux")]
mod watch;

#[cfg(target_os = "linux")]
fn main() {
    serve::serve()
}

#[cfg(not(target_os = "linux"))]
fn main() {}
