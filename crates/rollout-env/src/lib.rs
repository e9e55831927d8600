//! Where trials run: the two traits that every provider implements, and the providers of this build.
//!
//! A [`Provider`] turns the definition of a task's environment into an image, and an image into a running
//! [`Environment`]; the environment looks after itself from then on. Providers classify what goes wrong as an
//! [`EnvironmentError`]; the trial decides what that means for its result.
//!
//! [`connect`] finds the provider that a job asks for. A provider of another kind needs to start a container and to
//! connect its standard input and output: [`guest`] does the rest.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod blocking;
mod config;
mod connect;
#[cfg(feature = "docker")]
pub mod docker;
mod dockerfile;
mod environment;
#[cfg(feature = "docker")]
pub mod guest;
mod host;
pub mod log;
#[cfg(feature = "native")]
mod native;
#[cfg(any(feature = "docker", feature = "native"))]
mod preparations;
#[cfg(any(feature = "docker", feature = "native"))]
mod receive;
mod trouble;

pub use config::{EnvironmentConfig, EnvironmentKeys, EnvironmentKind, PreservePolicy};
pub use connect::{ConnectError, check, connect};
pub use dockerfile::check_dockerfile;
pub use environment::{
    CommandRole, CopyMode, CopyOut, CopyReport, Environment, EnvironmentError, EnvironmentSpec,
    EnvironmentTemplate, Exec, Exit, Facts, FileChange, FileChangeKind, FileRead, ImageProblem, ImageRequest,
    Origin, Outcome, PreparedImage, Provider,
};
pub use host::{DockerAccess, HostPaths};
