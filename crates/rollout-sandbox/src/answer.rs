//! The engine's side of the protocol: sends requests and reads answers without blocking a thread.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt, Interest},
    net::{UnixStream, unix::pipe::Receiver},
    sync::Mutex,
};

use crate::wire;

/// A socket that always sends whole requests, even when the caller stops waiting.
#[derive(Clone)]
pub(crate) struct RequestSocket {
    socket: Arc<UnixStream>,
    turn: Arc<Mutex<()>>,
}

impl RequestSocket {
    /// Creates a socket pair. The second end goes to the process that serves the requests.
    pub(crate) fn pair() -> io::Result<(RequestSocket, OwnedFd)> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        Ok((RequestSocket::new(ours)?, theirs.into()))
    }

    pub(crate) fn new(socket: std::os::unix::net::UnixStream) -> io::Result<RequestSocket> {
        socket.set_nonblocking(true)?;
        Ok(RequestSocket { socket: Arc::new(UnixStream::from_std(socket)?), turn: Arc::default() })
    }

    pub(crate) async fn send<T: Serialize>(&self, request: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_whole(request, fds).await.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => gone(),
            _ => error,
        })
    }

    async fn send_whole<T: Serialize>(&self, request: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let frame = wire::encode(request)?;
        let turn = self.turn.clone().lock_owned().await;
        let send = || wire::send_with_fds(self.socket.as_fd(), &frame, fds);
        let sent = self.socket.async_io(Interest::WRITABLE, send).await?;
        if sent == frame.len() {
            return Ok(());
        }
        // A half-sent frame would corrupt every later one, so the rest is sent even if the caller is dropped.
        let socket = self.socket.clone();
        let rest = tokio::spawn(async move {
            let _turn = turn;
            let mut sent = sent;
            while sent < frame.len() {
                let send = || wire::send_with_fds(socket.as_fd(), &frame[sent..], &[]);
                sent += socket.async_io(Interest::WRITABLE, send).await?;
            }
            Ok(())
        });
        rest.await.map_err(io::Error::other)?
    }

    /// Closes the connection for every holder of the socket.
    pub(crate) fn shutdown(&self) {
        // The socket may be closed already, which is fine.
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
    }
}

/// The read end of a pipe that carries answers.
pub(crate) struct AnswerPipe {
    receiver: Receiver,
    buffer: Vec<u8>,
}

impl AnswerPipe {
    /// Creates a pipe. The returned descriptor is the write end, which is sent with the request.
    pub(crate) fn new() -> io::Result<(AnswerPipe, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok((AnswerPipe { receiver: Receiver::from_owned_fd(read)?, buffer: Vec::new() }, write))
    }

    /// Reads the next frame; `None` when all write ends are closed. Cancel-safe.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some((header, rest)) = self.buffer.split_first_chunk::<4>() {
                let length = wire::frame_length(*header)?;
                if rest.len() >= length {
                    let value = serde_json::from_slice(&rest[..length])?;
                    self.buffer.drain(..4 + length);
                    return Ok(Some(value));
                }
            }
            if self.receiver.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Reads the next frame; the end of the stream is an error.
    pub(crate) async fn expect<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        self.next().await?.ok_or_else(gone)
    }

    /// Reads exactly `length` raw bytes; the end of the stream is an error.
    pub(crate) async fn bytes(&mut self, length: u64) -> io::Result<Vec<u8>> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        while self.buffer.len() < length {
            if self.receiver.read_buf(&mut self.buffer).await? == 0 {
                return Err(gone());
            }
        }
        self.buffer.truncate(length);
        Ok(std::mem::take(&mut self.buffer))
    }

    /// Waits until all write ends are closed and ignores what still arrives.
    pub(crate) async fn closed(&mut self) -> io::Result<()> {
        loop {
            self.buffer.clear();
            if self.receiver.read_buf(&mut self.buffer).await? == 0 {
                return Ok(());
            }
        }
    }
}

/// The error for a closed connection. It is not `BrokenPipe`, which to a program means that its own output was
/// closed.
fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the sandbox is gone")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sandbox_that_is_gone_does_not_look_like_a_closed_output() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(theirs);
        let socket = RequestSocket::new(ours).unwrap();
        let sent = socket.send(&wire::Done, &[]).await.unwrap_err();
        assert_eq!(sent.kind(), io::ErrorKind::UnexpectedEof);
        let (mut answers, answer) = AnswerPipe::new().unwrap();
        drop(answer);
        let read = answers.expect::<wire::Done>().await.err().unwrap();
        assert_eq!(read.kind(), io::ErrorKind::UnexpectedEof);
    }
}
