//! Sockets that listen inside a sandbox and are used outside.

use std::{
    io,
    net::TcpListener,
    os::{fd::AsFd, unix::net::UnixStream as StdStream},
};

use tokio::{io::Interest, net::UnixStream};

use crate::{
    sandbox::RunningSandbox,
    wire::{self, ListenAnswer, Request},
};

impl RunningSandbox {
    /// Listens on a port of the loopback interface inside, or with 0 on any free one. The socket belongs to the
    /// network of the sandbox, and the caller accepts connections from inside with it.
    ///
    /// If the sandbox has ended, the error is [`io::ErrorKind::UnexpectedEof`].
    pub async fn listen(&self, port: u16) -> io::Result<TcpListener> {
        let (ours, answer) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let ours = UnixStream::from_std(ours)?;
        self.control().send(&Request::Listen(port), &[answer.as_fd()]).await?;
        drop(answer);
        // The answer is short and sent by one call, so it arrives whole.
        let receive = || wire::receive::<ListenAnswer>(&ours);
        let (answer, mut fds) =
            ours.async_io(Interest::READABLE, receive).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        match (answer, fds.pop()) {
            (ListenAnswer::Listening, Some(socket)) => Ok(TcpListener::from(socket)),
            (ListenAnswer::Listening, None) => Err(io::ErrorKind::InvalidData.into()),
            (ListenAnswer::Failed(errno), _) => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}
