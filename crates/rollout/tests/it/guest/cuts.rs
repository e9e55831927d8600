//! Connections that are cut.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Cuts connections after some bytes: each after a different number.
pub(super) struct Cuts {
    /// The most bytes of a stream; 0 means that it is not cut.
    most: u64,
    seed: AtomicU64,
    /// While set, existing connections end.
    pub(super) is_down: Arc<AtomicBool>,
}

impl Cuts {
    pub(super) fn new(most: u64) -> Self {
        Self { most, seed: AtomicU64::new(1), is_down: Arc::default() }
    }

    /// A stream that is cut.
    pub(super) fn limit<S>(&self, inner: S) -> Limited<S> {
        Limited { inner, left: self.next(), is_down: Arc::clone(&self.is_down) }
    }

    fn next(&self) -> u64 {
        if self.most == 0 {
            return u64::MAX;
        }
        let next = |seed: u64| Some(seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695));
        let seed = self.seed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap();
        (seed >> 33) % self.most
    }
}

/// A stream that ends after some bytes.
pub(super) struct Limited<S> {
    inner: S,
    left: u64,
    is_down: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Limited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 || self.is_down.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let mut part = buf.take(most);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut part))?;
        let count = part.filled().len();
        // The inner buffer is the start of the unfilled part of the outer one.
        let bytes = part.filled().to_vec();
        buf.put_slice(&bytes);
        self.left -= count as u64;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Limited<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.left == 0 || self.is_down.load(Ordering::Relaxed) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buf.len());
        let count = ready!(Pin::new(&mut self.inner).poll_write(cx, &buf[..most]))?;
        self.left -= count as u64;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
