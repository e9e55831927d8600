//! The bodies of replies, which may stop in the middle.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use super::hold::{Hold, Wait};

/// A body that is written frame by frame.
pub(super) struct Body {
    frames: VecDeque<Bytes>,
    /// The length in its headers; `None` for a stream.
    length: Option<u64>,
    /// Whether it ends with a closed connection.
    cut: bool,
    /// Waits when this many frames are left.
    held: Option<(usize, Wait)>,
    /// Whether the written data had time to be sent before the connection is closed.
    flushed: bool,
}

impl Body {
    pub(super) fn whole(bytes: Bytes) -> Self {
        let length = Some(bytes.len() as u64);
        Self { frames: [bytes].into(), length, cut: false, held: None, flushed: false }
    }

    pub(super) fn stream(frames: Vec<Bytes>) -> Self {
        Self { frames: frames.into(), length: None, cut: false, held: None, flushed: false }
    }

    /// Closes the connection after this many frames.
    pub(super) fn cut(mut self, frames: usize) -> Self {
        self.frames.truncate(frames);
        Self { cut: true, ..self }
    }

    pub(super) fn cut_midway(self) -> Self {
        let halved = self.halved();
        let frames = halved.frames.len().div_ceil(2);
        halved.cut(frames)
    }

    pub(super) fn held_midway(self, hold: Hold) -> Self {
        let halved = self.halved();
        let left = halved.frames.len() / 2;
        Self { held: Some((left, hold.wait())), ..halved }
    }

    /// The same with at least two frames.
    fn halved(mut self) -> Self {
        if let [only] = self.frames.make_contiguous() {
            let second = only.split_off(only.len() / 2);
            self.frames.push_back(second);
        }
        self
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = CutHere;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutHere>>> {
        let left = self.frames.len();
        if let Some((at, hold)) = &mut self.held
            && left <= *at
        {
            ready!(hold.as_mut().poll(context));
            self.held = None;
        }
        if let Some(frame) = self.frames.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        if !self.cut {
            return Poll::Ready(None);
        }
        if !self.flushed {
            self.flushed = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(CutHere)))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && !self.cut && self.held.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map(SizeHint::with_exact).unwrap_or_default()
    }
}

/// Makes the server drop its connection.
#[derive(Debug)]
pub(super) struct CutHere;

impl fmt::Display for CutHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the script cuts the connection here")
    }
}

impl std::error::Error for CutHere {}
