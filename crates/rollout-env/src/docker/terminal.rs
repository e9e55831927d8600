//! Runs a command on the user's terminal, through the engine's exec API.

use std::{io, os::fd::OwnedFd, time::Duration};

use bollard::{
    Docker as Api,
    container::LogOutput,
    errors::Error,
    exec::{ResizeExecOptions, StartExecOptions, StartExecResults},
    models::ExecConfig,
};
use futures_util::StreamExt as _;
use rustix::termios;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::failure;
use crate::{
    environment::{EnvironmentError, Exit, Outcome},
    raw_terminal,
};

/// The interval of checks for a new terminal size: its signal goes to other processes.
const RESIZE_POLL: Duration = Duration::from_millis(250);

/// The interval of attempts to set the size until the command runs.
const FIRST_POLL: Duration = Duration::from_millis(20);

/// Runs a command to its end, with `terminal` as its terminal.
pub(super) async fn exec(
    api: &Api,
    container: &str,
    user: Option<&str>,
    argv: &[&str],
    terminal: OwnedFd,
) -> Result<Exit, EnvironmentError> {
    let lost =
        |error: Error| EnvironmentError::Lost(format!("cannot open a terminal: {}", failure::words(&error)));
    let lost_io = |error: io::Error| EnvironmentError::Lost(format!("the terminal is lost: {error}"));
    let size = termios::tcgetwinsize(&terminal).ok().filter(|size| size.ws_row > 0);
    let config = ExecConfig {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(true),
        // Older engines ignore it.
        console_size: size.map(|size| vec![size.ws_row.into(), size.ws_col.into()]),
        env: Some(vec!["TERM=xterm-256color".to_owned()]),
        cmd: Some(argv.iter().map(|word| (*word).to_owned()).collect()),
        user: Some(user.unwrap_or("0:0").to_owned()),
        ..ExecConfig::default()
    };
    let created = api.create_exec(container, config).await.map_err(lost)?;
    let start = StartExecOptions { detach: false, tty: true, output_capacity: None };
    let started = api.start_exec(&created.id, Some(start)).await.map_err(lost)?;
    let StartExecResults::Attached { mut output, mut input } = started else {
        return Err(EnvironmentError::Lost("the engine does not provide a terminal".to_owned()));
    };
    let (mut keyboard, mut screen) = raw_terminal::open(&terminal).map_err(lost_io)?;
    let from_container = async {
        while let Some(item) = output.next().await {
            let (LogOutput::Console { message }
            | LogOutput::StdOut { message }
            | LogOutput::StdErr { message }
            | LogOutput::StdIn { message }) = item.map_err(io::Error::other)?;
            screen.write_all(&message).await?;
        }
        Ok::<(), io::Error>(())
    };
    let to_container = async {
        let mut chunk = vec![0; 4096];
        loop {
            let count = keyboard.read(&mut chunk).await?;
            if count == 0 {
                return Ok::<(), io::Error>(());
            }
            input.write_all(&chunk[..count]).await?;
            input.flush().await?;
        }
    };
    let follow_size = async {
        let mut sent_size = None;
        loop {
            let size = termios::tcgetwinsize(&terminal).map(|size| (size.ws_row, size.ws_col)).ok();
            if size != sent_size
                && let Some((height, width)) = size.filter(|size| *size != (0, 0))
            {
                // The engine rejects this until the command runs; the next round tries again.
                let resized = api.resize_exec(&created.id, ResizeExecOptions { height, width }).await;
                sent_size = resized.is_ok().then_some((height, width));
            }
            tokio::time::sleep(if sent_size.is_some() { RESIZE_POLL } else { FIRST_POLL }).await;
        }
    };
    let ended = tokio::select! {
        ended = from_container => ended,
        ended = async {
            let sent = to_container.await;
            // A closed terminal of the user does not end the command.
            match sent {
                Ok(()) => std::future::pending().await,
                Err(error) => Err(error),
            }
        } => ended,
        () = follow_size => Ok(()),
    };
    ended.map_err(lost_io)?;
    let exit = api.inspect_exec(&created.id).await.map_err(lost)?;
    let code = exit.exit_code.and_then(|code| i32::try_from(code).ok()).unwrap_or(0);
    Ok(Exit { outcome: Outcome::Code(code), oom_killed: false })
}
