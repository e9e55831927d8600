//! The first process of a container: its protocol with the host, and the code that it shares with the first
//! process of a sandbox.
//!
//! The host uses [`GuestRequest`] and [`GuestReply`]. The two first processes share the other modules.
#![forbid(unsafe_code)]

pub mod command;
#[cfg(target_os = "linux")]
pub mod files;
#[cfg(target_os = "linux")]
pub mod identity;
#[cfg(target_os = "linux")]
pub mod memory;
mod names;
#[cfg(target_os = "linux")]
pub mod process;
mod protocol;
#[cfg(target_os = "linux")]
pub mod remove;
mod scope;
pub mod session;
mod tunnel;
mod wire;

pub use names::{is_name, stays_inside};
pub use protocol::{
    CopyLimits, Ending, FileChangeKind, FileLookup, GuestReply, GuestRequest, Item, MAX_DEPTH, MAX_REPLY,
    MAX_REQUEST, OUTPUT_WINDOW, Stream, VERSION, decode_reply, decode_request, encode_reply, encode_request,
};
pub use scope::KillScope;
pub use tunnel::{CREDIT_STEP, MAX_CONNECTIONS, TunnelStep, WINDOW};
pub use wire::{MAX_DATA, Malformed, frame_length, read_frame};
