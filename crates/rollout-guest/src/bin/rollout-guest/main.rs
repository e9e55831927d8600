//! The first process of a container: carries out what the host asks for over its standard streams.
//!
//! When they end, so does this process, and the kernel ends everything else in the container with it, however
//! the host died. Whatever is in the container may be hostile, so nothing in it is trusted or waited for.
//! Everything that is needed when processes have used up the container's limit runs in threads that were
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
mod users;
#[cfg(target_os = "linux")]
mod watch;

#[cfg(target_os = "linux")]
fn main() {
    serve::serve()
}

#[cfg(not(target_os = "linux"))]
fn main() {}
