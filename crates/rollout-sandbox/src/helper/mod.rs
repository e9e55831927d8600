//! The helper process: the zygote, the supervisors that it forks, and their work inside a sandbox.

mod exec;
mod files;
mod mounts;
mod privileges;
mod relocations;
mod seccomp;
mod supervisor;
mod zygote;

/// The first argument that turns an executable into the helper process.
pub const HELPER_ARG: &str = "__sandbox";

/// Runs the helper process; never returns.
///
/// An executable used as [`EngineOptions::helper`](crate::EngineOptions) must call this before it starts any
/// thread, when its first argument is [`HELPER_ARG`].
pub fn helper_main() -> ! {
    match zygote::run() {
        Ok(()) => crate::sys::exit_now(0),
        Err(_) => crate::sys::exit_now(1),
    }
}
