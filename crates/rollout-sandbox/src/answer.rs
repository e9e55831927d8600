//! The engine's side of the wire: sending requests and reading answers without blocking a thread.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{UnixStream, unix::pipe::Receiver},
    sync::Mutex,
};

use crate::wire;

/// A socket on which requests go out whole, whoever stops waiting for them.
#[derive(Clone)]
pub(crate) struct RequestSocket(Arc<Mutex<UnixStream>>);

impl RequestSocket {
    pub(crate) fn new(socket: std::os::unix::net::UnixStream) -> io::Result<RequestSocket> {
        socket.set_nonblocking(true)?;
        Ok(RequestSocket(Arc::new(Mutex::new(UnixStream::from_std(socket)?))))
    }

    pub(crate) async fn send<T: Serialize>(&self, request: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut frame = wire::encode(request)?;
        let mut socket = self.0.clone().lock_owned().await;
        let sent =
            socket.async_io(Interest::WRITABLE, || wire::send_with_fds(socket.as_fd(), &frame, fds)).await?;
        if sent == frame.len() {
            return Ok(());
        }
        // A half-sent frame would spoil every later one, so the rest goes out even if the caller is dropped.
        let rest = tokio::spawn(async move {
            frame.drain(..sent);
            socket.write_all(&frame).await
        });
        rest.await.map_err(io::Error::other)?
    }
}

/// The read end of a pipe on which answers come.
pub(crate) struct AnswerPipe {
    receiver: Receiver,
    buffer: Vec<u8>,
}

impl AnswerPipe {
    /// Makes a pipe and returns the end that goes with the request, too.
    pub(crate) fn new() -> io::Result<(AnswerPipe, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok((AnswerPipe { receiver: Receiver::from_owned_fd(read)?, buffer: Vec::new() }, write))
    }

    /// Reads the next frame; `None` when nobody is left to write one. Loses nothing when dropped.
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

    /// Reads the next frame, which must come.
    pub(crate) async fn expect<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        self.next().await?.ok_or_else(gone)
    }

    /// Reads that many raw bytes, which must come.
    pub(crate) async fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < length {
            if self.receiver.read_buf(&mut self.buffer).await? == 0 {
                return Err(gone());
            }
        }
        self.buffer.truncate(length);
        Ok(std::mem::take(&mut self.buffer))
    }

    /// Waits until nobody is left to write, ignoring what still comes.
    pub(crate) async fn closed(&mut self) -> io::Result<()> {
        loop {
            self.buffer.clear();
            if self.receiver.read_buf(&mut self.buffer).await? == 0 {
                return Ok(());
            }
        }
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the sandbox is gone")
}
