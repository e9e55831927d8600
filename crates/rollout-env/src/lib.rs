//! Environments of trials: the two traits that every provider implements, and the providers of this build.
//!
//! A [`Provider`] prepares an image from the definition of a task's environment, and starts an [`Environment`]
//! from an image. Providers classify failures as an [`EnvironmentError`]; the trial decides what they mean for
//! its result.
//!
//! [`connect`] finds the provider of a job. A new kind of provider only needs to start a container and to
//! connect its standard input and output: [`guest`] does the rest.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod blocking;
pub mod compose;
mod config;
mod connect;
#[cfg(feature = "docker")]
pub mod docker;
mod dockerfile;
mod environment;
#[cfg(feature = "docker")]
pub mod guest;
#[cfg(any(feature = "kubernetes", feature = "remote"))]
mod guest_environment;
mod host;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod log;
#[cfg(feature = "native")]
mod native;
#[cfg(any(feature = "docker", feature = "native"))]
mod preparations;
#[cfg(feature = "docker")]
mod raw_terminal;
#[cfg(any(feature = "docker", feature = "native"))]
mod receive;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(any(feature = "docker", feature = "native"))]
mod service;
mod trouble;
#[cfg(any(feature = "kubernetes", feature = "remote"))]
mod work_thread;

pub use config::{
    DEFAULT_STORAGE, EnvironmentConfig, EnvironmentKeys, EnvironmentKind, KeepImages, PreservePolicy,
};
pub use connect::{ConnectError, check, connect};
pub use dockerfile::check_dockerfile;
pub use environment::{
    CommandRole, CommandUsers, CopyMode, CopyOut, CopyReport, Demand, Environment, EnvironmentError,
    EnvironmentOffer, EnvironmentSpec, EnvironmentTemplate, Exec, Exit, Facts, FileChange, FileChangeKind,
    FileRead, GroupRequest, ImageHealthcheck, ImageProblem, ImageRequest, ImageStartup, Origin, Outcome,
    PreparedImage, Provider, ResourceLimits, ServiceGroup, StartReport,
};
pub use host::{CloudAccess, DockerAccess, HostPaths, KubernetesAccess};
