//! What goes wrong at a hub.

use crate::Hold;

/// A trouble of some requests.
#[derive(Debug, Clone)]
pub struct Fault {
    /// A part of the request's line, such as `PUT` or `/commit/`.
    pub(super) on: String,
    pub(super) trouble: Trouble,
    /// How many requests it still meets.
    pub(super) left: usize,
}

/// How a request goes wrong.
#[derive(Debug, Clone)]
pub enum Trouble {
    /// It is refused with this status, and with `Retry-After` in seconds if any.
    Status(u16, Option<u32>),
    /// The connection is cut when the first bytes of the body have come.
    CutRequest,
    /// The work is done, and the connection cut before the answer.
    CutAnswer,
    /// It is led to another address.
    Redirect(String),
    /// It is answered with something else.
    Answer(serde_json::Value),
    /// It waits before anything is done.
    Hold(Hold),
}

impl Fault {
    /// The next request whose line holds this goes wrong.
    pub fn once(on: &str, trouble: Trouble) -> Self {
        Self::times(1, on, trouble)
    }

    /// So many requests go wrong whose lines hold this.
    pub fn times(number: usize, on: &str, trouble: Trouble) -> Self {
        Self { on: on.to_owned(), trouble, left: number }
    }

    /// What goes wrong with a request, if anything.
    pub(super) fn meet(faults: &mut [Self], line: &str) -> Option<Trouble> {
        let fault = faults.iter_mut().find(|fault| fault.left > 0 && line.contains(&fault.on))?;
        fault.left -= 1;
        Some(fault.trouble.clone())
    }
}
