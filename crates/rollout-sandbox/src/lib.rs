//! An embedded container engine: namespaces, overlayfs and cgroups without a daemon.
//!
//! An [`Engine`] starts one small helper process, the zygote, which makes every [`Sandbox`] with a
//! single clone. A sandbox's first process is its supervisor: it starts commands, copies files and
//! kills on request, and ends, with everything inside, when the engine does.

mod answer;
mod blocking;
pub mod build;
mod cgroup;
mod engine;
mod engine_core;
mod error;
mod files;
mod helper;
mod host_image;
mod image;
mod limits;
mod private;
mod process;
mod sandbox;
mod shared;
mod snapshot;
mod spec;
mod store;
mod support;
mod sweep;
mod sys;
mod wire;

pub use engine::Engine;
pub use engine_core::EngineOptions;
pub use error::{CreateError, EngineError};
pub use files::{CopyError, CopyIn, FileRead};
pub use helper::{HELPER_ARG, helper_main};
pub use image::{Image, ImageConfig, ImageError, Layer};
pub use limits::{Enforced, LimitBacking, Limits};
pub use process::{Command, ExecError, Exit, ExitStatus, Process, Stdio, Survivor, Terminal};
pub use sandbox::{DestroyError, KeepError, Sandbox};
pub use snapshot::SnapshotError;
pub use spec::{Network, SandboxSpec};
pub use store::{Stored, StoredKind, User, remove_unused, stored};
pub use support::{Mode, Support};
pub use sweep::{SweepReport, sweep};
pub use wire::{CopyLimits, CopyReport, Skipped};
