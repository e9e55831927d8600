//! The user's terminal as a raw channel to a terminal inside a container.

use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    termios::{self, OptionalActions},
};
use tokio::net::unix::pipe::{Receiver, Sender};

/// Makes the terminal raw, and opens it in both directions: lines, echo and signals are handled by the terminal inside
/// the container.
pub(crate) fn open(terminal: &OwnedFd) -> io::Result<(Receiver, Sender)> {
    let mut modes = termios::tcgetattr(terminal)?;
    modes.make_raw();
    termios::tcsetattr(terminal, OptionalActions::Now, &modes)?;
    let flags = fcntl_getfl(terminal)?;
    fcntl_setfl(terminal, flags | OFlags::NONBLOCK)?;
    let (reader, writer) = (terminal.try_clone()?, terminal.try_clone()?);
    Ok((Receiver::from_owned_fd_unchecked(reader)?, Sender::from_owned_fd_unchecked(writer)?))
}
