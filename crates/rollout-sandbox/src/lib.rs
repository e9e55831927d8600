//! An embedded container engine: namespaces, overlayfs and cgroups without a daemon.
//!
//! A [`SandboxEngine`] starts one small helper process, the zygote, which creates every [`RunningSandbox`] with
//! a single clone. A sandbox's first process is its supervisor: it starts commands, copies files and kills on
//! request, and ends with everything inside when the engine ends.

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
mod listen;
pub mod oci;
mod pattern;
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
mod tar_stream;
mod wire;

pub use engine::{PreservedLock, SandboxEngine};
pub use engine_core::EngineOptions;
pub use error::{CreateError, SandboxEngineError};
pub use files::{CopyError, CopyIn};
pub use helper::{HELPER_ARG, helper_main};
pub use image::{DockerfileHealthcheck, Image, ImageConfig, ImageError, Layer};
pub use limits::{Enforced, LimitBacking, SandboxLimits};
pub use process::{
    CommandExit, ExecError, ExitStatus, SandboxCommand, SandboxProcess, Stdio, Survivor, Terminal,
};
pub use rollout_guest::{CopyLimits, FileLookup};
pub use sandbox::{DestroyError, KeepError, RunningSandbox};
pub use snapshot::SnapshotError;
pub use spec::{Network, SandboxSpec};
pub use store::{StoreLimit, StoreLimiter, Stored, StoredKind, User, disk_use, remove_unused, stored};
pub use support::{Mode, Support, check_resources};
pub use sweep::{SweepReport, sweep};
