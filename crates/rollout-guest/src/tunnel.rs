//! The steps and limits of a tunnel: connections from inside an environment to a service of the host.
//!
//! Only the inside opens connections. Each has a number, which is never used again, and two independent
//! directions. A sender may send [`WINDOW`] bytes of a connection. From then on it needs the credit that the
//! receiver returns when it has passed bytes on. So a receiver holds at most [`WINDOW`] bytes of a connection,
//! always has room for them, and never has to stop reading the stream that all connections, commands and files
//! share.

use crate::wire::{Malformed, Reader, Writer};

/// The most connections to one service at a time. Agents keep a few dozen open. Further connections wait in the
/// kernel's queue until one ends.
pub const MAX_CONNECTIONS: usize = 256;

/// The most bytes of a connection that are on the way in one direction, or wait for their receiver. With all
/// connections it limits the memory of each side to 32 MiB in each direction. It is twice the longest
/// [`TunnelStep::Data`], so that one can be sent while another is passed on.
pub const WINDOW: usize = 128 << 10;

/// A receiver returns credit in steps of this size, not for each read. It is small enough that a sender never
/// waits for the rest.
pub const CREDIT_STEP: usize = WINDOW / 4;

/// One step of a connection of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TunnelStep {
    /// A process inside has connected. Only sent by the guest.
    Open,
    /// The next bytes, at least one.
    Data(Vec<u8>),
    /// The sender has no more bytes. It still receives.
    End,
    /// The receiver has passed on this many bytes, so that as many more may be sent.
    Credit(u32),
    /// The sender gives up the connection: unless it has sent [`TunnelStep::End`], the other end is reset.
    ///
    /// The host sends it once for every connection, as its last step. Until then the guest counts the connection
    /// among [`MAX_CONNECTIONS`].
    Close,
}

pub(crate) fn write_step(to: &mut Writer, step: &TunnelStep) {
    match step {
        TunnelStep::Open => to.byte(1),
        TunnelStep::Data(bytes) => {
            to.byte(2);
            to.bytes(bytes);
        }
        TunnelStep::End => to.byte(3),
        TunnelStep::Credit(bytes) => {
            to.byte(4);
            to.int(*bytes);
        }
        TunnelStep::Close => to.byte(5),
    }
}

pub(crate) fn read_step(from: &mut Reader<'_>) -> Result<TunnelStep, Malformed> {
    Ok(match from.byte()? {
        1 => TunnelStep::Open,
        2 => TunnelStep::Data(from.data().ok().filter(|bytes| !bytes.is_empty()).ok_or(Malformed)?),
        3 => TunnelStep::End,
        4 => TunnelStep::Credit(from.int()?),
        5 => TunnelStep::Close,
        _ => return Err(Malformed),
    })
}
