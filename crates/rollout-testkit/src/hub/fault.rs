//! Injected faults of a hub.

use crate::Hold;

/// A fault of some requests.
#[derive(Debug, Clone)]
pub struct Fault {
    /// A part of the request line, such as `PUT` or `/commit/`.
    pub(super) on: String,
    pub(super) trouble: Trouble,
    /// The number of requests that it still affects.
    pub(super) left: usize,
}

/// The kind of a fault.
#[derive(Debug, Clone)]
pub enum Trouble {
    /// The request is rejected with this status, and with `Retry-After` in seconds if given.
    Status(u16, Option<u32>),
    /// The connection is closed after the first bytes of the body.
    CutRequest,
    /// The request is handled, and the connection is closed before the answer.
    CutAnswer,
    /// The connection is closed after this many bytes of the answer's body.
    CutBody(usize),
    /// The last byte of the answer's body is another one.
    WrongByte,
    /// The request is redirected to another address.
    Redirect(String),
    /// The request gets another answer.
    Answer(serde_json::Value),
    /// The request waits before it is handled.
    Hold(Hold),
}

impl Fault {
    /// The next request whose line contains this text fails.
    pub fn once(on: &str, trouble: Trouble) -> Self {
        Self::times(1, on, trouble)
    }

    /// This many requests whose lines contain this text fail.
    pub fn times(number: usize, on: &str, trouble: Trouble) -> Self {
        Self { on: on.to_owned(), trouble, left: number }
    }

    /// The fault of a request, if any.
    pub(super) fn meet(faults: &mut [Self], line: &str) -> Option<Trouble> {
        let fault = faults.iter_mut().find(|fault| fault.left > 0 && line.contains(&fault.on))?;
        fault.left -= 1;
        Some(fault.trouble.clone())
    }
}
