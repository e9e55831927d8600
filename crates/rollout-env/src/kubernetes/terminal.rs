//! Runs a command on the user's terminal, in the container of a pod.

use std::{io, os::fd::OwnedFd, time::Duration};

use futures_util::SinkExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{AttachParams, TerminalSize},
};
use rustix::termios;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{access::words, pod::MAIN};
use crate::{
    environment::{EnvironmentError, Exit, Outcome},
    guest, raw_terminal,
};

/// The interval of checks for a new terminal size: its signal goes to other processes.
const RESIZE_POLL: Duration = Duration::from_millis(250);

/// Runs a command to its end as a user, with `terminal` as its terminal.
pub(super) async fn exec(
    pods: &Api<Pod>,
    pod: &str,
    user: Option<&str>,
    argv: &[&str],
    terminal: OwnedFd,
) -> Result<Exit, EnvironmentError> {
    let lost_io = |error: io::Error| EnvironmentError::Lost(format!("the terminal is lost: {error}"));
    let params = AttachParams::default().container(MAIN).stdin(true).stdout(true).stderr(false).tty(true);
    // The API has no setting for the user, so the guest changes it.
    let mut command = vec![guest::PROGRAM_PATH, "run", user.unwrap_or_default()];
    command.extend(argv);
    let mut process = pods
        .exec(pod, command, &params)
        .await
        .map_err(|error| EnvironmentError::Lost(format!("cannot open a terminal: {}", words(&error))))?;
    let streams = (process.stdout(), process.stdin(), process.terminal_size(), process.take_status());
    let (Some(mut output), Some(mut input), Some(mut size), Some(status)) = streams else {
        return Err(EnvironmentError::Lost("the cluster does not provide a terminal".to_owned()));
    };
    let (mut keyboard, mut screen) = raw_terminal::open(&terminal).map_err(lost_io)?;
    let from_pod = async {
        let mut chunk = vec![0; 4096];
        loop {
            let count = output.read(&mut chunk).await?;
            if count == 0 {
                return Ok::<(), io::Error>(());
            }
            screen.write_all(&chunk[..count]).await?;
        }
    };
    let to_pod = async {
        let mut chunk = vec![0; 4096];
        loop {
            let count = keyboard.read(&mut chunk).await?;
            if count == 0 {
                // A closed terminal of the user does not end the command.
                return std::future::pending::<Result<(), io::Error>>().await;
            }
            input.write_all(&chunk[..count]).await?;
        }
    };
    let follow_size = async {
        let mut sent = None;
        loop {
            let now = termios::tcgetwinsize(&terminal).map(|size| (size.ws_col, size.ws_row)).ok();
            if now != sent
                && let Some((width, height)) = now.filter(|size| *size != (0, 0))
                && size.send(TerminalSize { width, height }).await.is_ok()
            {
                sent = now;
            }
            tokio::time::sleep(RESIZE_POLL).await;
        }
    };
    let ended = tokio::select! {
        ended = from_pod => ended,
        ended = to_pod => ended,
        () = follow_size => Ok(()),
    };
    ended.map_err(lost_io)?;
    let status = status.await;
    let causes =
        status.and_then(|status| status.details).and_then(|details| details.causes).unwrap_or_default();
    let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message.as_deref()?.parse().ok()).unwrap_or(0);
    Ok(Exit { outcome: Outcome::Code(code), oom_killed: false })
}
