//! Connects to the guest of a pod, by a command in the pod's second container.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::AttachParams};
use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::watch,
};

use super::{
    access::{code, words},
    pod::{GUEST, LINK},
    state::PodView,
};
use crate::guest::{Dial, DialError, GuestStream};

/// The bytes that wait in each direction. The default of the client is a kibibyte.
const BUFFER: usize = 256 << 10;

/// Connects to the guest of a pod.
pub(super) struct PodDial {
    pub(super) pods: Api<Pod>,
    pub(super) name: String,
    pub(super) view: watch::Receiver<PodView>,
}

#[async_trait]
impl Dial for PodDial {
    async fn dial(&self) -> Result<GuestStream, DialError> {
        if let Some(end) = self.view.borrow().end() {
            return Err(DialError::Gone(end.to_string()));
        }
        let params = AttachParams::default()
            .container(LINK)
            .stdin(true)
            .stdout(true)
            .stderr(false)
            .max_stdin_buf_size(BUFFER)
            .max_stdout_buf_size(BUFFER);
        let command = [GUEST, "connect", &self.name];
        let mut process = self.pods.exec(&self.name, command, &params).await.map_err(|error| {
            let text = words(&error);
            if code(&error) == Some(404) { DialError::Gone(text) } else { DialError::Temporary(text) }
        })?;
        match (process.stdout(), process.stdin(), process.take_status()) {
            (Some(reader), Some(writer), Some(end)) => Ok(GuestStream {
                reader: Box::new(EndingReader { reader, end: Some(Box::pin(async { drop(end.await) })) }),
                writer: Box::new(writer),
                guard: Box::new(process),
            }),
            _ => Err(DialError::Temporary("the server opened no streams".to_owned())),
        }
    }
}

/// A reader that also ends when the process does: after a failed connection, the client's own reader waits forever.
struct EndingReader<R> {
    reader: R,
    /// `None` after the end.
    end: Option<BoxFuture<'static, ()>>,
}

impl<R: AsyncRead + Unpin> AsyncRead for EndingReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // The end is asked for first: what came before it is then read all the same.
        if let Some(end) = &mut self.end
            && end.as_mut().poll(cx).is_ready()
        {
            self.end = None;
        }
        match Pin::new(&mut self.reader).poll_read(cx, buf) {
            Poll::Pending if self.end.is_none() => Poll::Ready(Ok(())),
            read => read,
        }
    }
}
