//! Names of services in `/etc/hosts`, for engines whose networks do not resolve them.

use std::time::Duration;

use crate::trial::{calls::required, failure::Failure};
use rollout_core::event::Phase;
use rollout_env::{CommandRole, CommandUsers, Environment, EnvironmentError, Exec, log::LogWriter};

/// The timeout for writing the file.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Appends lines to `/etc/hosts`. The file is a mount, so it is written in place, by a shell. An image without one
/// stays without the names.
pub(super) async fn append(environment: &dyn Environment, lines: &str) -> Result<(), Failure> {
    let failed = |error: EnvironmentError| Failure::environment(Phase::Start, &error);
    let root = Some("0:0".to_owned());
    environment.set_users(CommandUsers { agent: root.clone(), verifier: root }).map_err(failed)?;
    let command = Exec {
        role: CommandRole::Verifier,
        argv: &["sh", "-c", "printf %s \"$1\" >> /etc/hosts", "sh", lines],
        env: &[],
        deadline: Some(TIMEOUT),
        stdout: LogWriter::discard(),
        stderr: LogWriter::discard(),
    };
    let written = environment.exec(command).await;
    environment.set_users(CommandUsers::default()).map_err(failed)?;
    match written {
        Err(EnvironmentError::Command(_)) => Ok(()),
        written => required(Phase::Start, async { written }).await.map(drop),
    }
}
