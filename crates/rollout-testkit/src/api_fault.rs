//! Injected faults of requests to a fake API server.

use crate::Hold;

/// A fault of some requests.
#[derive(Debug, Clone)]
pub struct ApiFault {
    /// A part of the request, such as `create pods` or `delete pods trial-3`.
    on: String,
    trouble: ApiTrouble,
    /// The number of requests that it still affects.
    left: usize,
}

/// The kind of a fault of requests.
#[derive(Debug, Clone)]
pub enum ApiTrouble {
    /// The request is rejected with this status, and with `Retry-After` in seconds if given.
    Status(u16, Option<u32>),
    /// The request is handled, and answered with this status all the same: a proxy whose time was over before the answer.
    StatusAfter(u16),
    /// The connection is closed before the request is handled.
    LoseRequest,
    /// The request is handled, and the connection is closed before the answer.
    LoseAnswer,
    /// The request is answered as if it succeeded, but is not handled: a lost deletion.
    Ignore,
    /// The request waits before it is handled.
    Hold(Hold),
}

impl ApiFault {
    /// The next request fails whose verb, kind and name contain this text, such as `create pods`.
    pub fn once(on: &str, trouble: ApiTrouble) -> Self {
        Self::times(1, on, trouble)
    }

    /// This many requests fail.
    pub fn times(number: usize, on: &str, trouble: ApiTrouble) -> Self {
        Self { on: on.to_owned(), trouble, left: number }
    }

    /// The fault of a request, if any.
    pub(crate) fn meet(faults: &mut [Self], line: &str) -> Option<ApiTrouble> {
        let fault = faults.iter_mut().find(|fault| fault.left > 0 && line.contains(&fault.on))?;
        fault.left -= 1;
        Some(fault.trouble.clone())
    }
}
