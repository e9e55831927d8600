//! A stream that survives lost connections: what was sent and not acknowledged is sent again.
//!
//! A session is one stream of bytes in each direction. It is carried by connections, one after another, each of
//! which may be cut at any byte. The host starts a connection with a [`SessionHello`], the guest answers with a
//! [`SessionWelcome`], and both contain the number of bytes that their sender has received in the session. So each
//! side continues with the first byte that the other does not have.
//!
//! After that, both sides send records: data, acknowledgements, pings, and the end of the session. A side keeps at
//! most [`SESSION_WINDOW`] bytes that are not acknowledged, and then takes no more from its sender.
//!
//! This module does no input and output. [`SessionState`] is the state of either side.

use std::collections::VecDeque;

use crate::wire::Malformed;

/// The most bytes that one side keeps until they are acknowledged.
pub const SESSION_WINDOW: usize = 1 << 20;

/// The bytes of a [`SessionHello`].
pub const SESSION_HELLO: usize = 4 + 4 + 16 + 8;

/// The bytes of a [`SessionWelcome`].
pub const SESSION_WELCOME: usize = 4 + 4 + 8;

/// What a connection sends that only waits for the end of the guest.
pub const SESSION_WAITER: [u8; 4] = *b"RGSw";

const VERSION: u32 = 1;
const HELLO: [u8; 4] = *b"RGSh";
const WELCOME: [u8; 4] = *b"RGSg";

/// The most data of one record.
const MAX_RECORD: usize = 32 << 10;

/// About the most bytes that are encoded at a time.
const MAX_OUTPUT: usize = 128 << 10;

const DATA: u8 = 1;
const ACK: u8 = 2;
const PING: u8 = 3;
const END: u8 = 4;

/// The first message of the host on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionHello {
    /// A secret of the session. The guest accepts the first one, and after that only the same.
    pub token: [u8; 16],
    /// The number of bytes that the host has received.
    pub received: u64,
}

impl SessionHello {
    /// Encodes the message.
    pub fn encode(&self) -> [u8; SESSION_HELLO] {
        let mut bytes = [0; SESSION_HELLO];
        bytes[..4].copy_from_slice(&HELLO);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.token);
        bytes[24..].copy_from_slice(&self.received.to_le_bytes());
        bytes
    }

    /// Decodes the message.
    pub fn decode(bytes: &[u8; SESSION_HELLO]) -> Result<Self, Malformed> {
        let rest = versioned(bytes, HELLO)?;
        let (token, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        Ok(Self { token: *token, received: long(rest)? })
    }
}

/// The answer of the guest to a [`SessionHello`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionWelcome {
    /// The number of bytes that the guest has received.
    pub received: u64,
}

impl SessionWelcome {
    /// Encodes the message.
    pub fn encode(&self) -> [u8; SESSION_WELCOME] {
        let mut bytes = [0; SESSION_WELCOME];
        bytes[..4].copy_from_slice(&WELCOME);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..].copy_from_slice(&self.received.to_le_bytes());
        bytes
    }

    /// Decodes the message.
    pub fn decode(bytes: &[u8; SESSION_WELCOME]) -> Result<Self, Malformed> {
        Ok(Self { received: long(versioned(bytes, WELCOME)?)? })
    }
}

fn versioned(bytes: &[u8], magic: [u8; 4]) -> Result<&[u8], Malformed> {
    let (start, rest) = bytes.split_first_chunk::<4>().ok_or(Malformed)?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(Malformed)?;
    if *start != magic || u32::from_le_bytes(*version) != VERSION { Err(Malformed) } else { Ok(rest) }
}

fn long(bytes: &[u8]) -> Result<u64, Malformed> {
    Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| Malformed)?))
}

/// One side of a session.
#[derive(Debug, Default)]
pub struct SessionState {
    /// Bytes that the other side has not acknowledged.
    unacknowledged: VecDeque<u8>,
    /// The position of the first of them in the stream.
    acknowledged: u64,
    /// The position of the next byte to send on this connection.
    next: u64,
    /// The number of bytes that were received.
    received: u64,
    /// The number of received bytes that the other side was informed about.
    reported: u64,
    /// The start of a record that has not arrived completely, without data.
    partial: Vec<u8>,
    /// The bytes of the current record's data that have not arrived.
    data_left: usize,
    answer: bool,
    ping: bool,
    end: SessionEnd,
}

/// How far the end of the session got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum SessionEnd {
    #[default]
    Open,
    /// To send, after all data.
    Requested,
    Sent,
    /// The other side has sent it.
    Received,
}

impl SessionState {
    /// How many more bytes can be sent.
    pub fn room(&self) -> usize {
        SESSION_WINDOW.saturating_sub(self.unacknowledged.len())
    }

    /// Adds bytes to the stream. There must be [room](Self::room) for them.
    pub fn send(&mut self, bytes: &[u8]) {
        self.unacknowledged.extend(bytes);
    }

    /// The number of bytes that were received, for the start of a connection.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The number of bytes that have certainly arrived, in both directions.
    pub fn progress(&self) -> u64 {
        self.received + self.acknowledged
    }

    /// Starts a connection: the other side has received this many bytes.
    pub fn resume(&mut self, other_received: u64) -> Result<(), Malformed> {
        self.acknowledge(other_received, self.acknowledged + self.unacknowledged.len() as u64)?;
        self.next = other_received;
        self.reported = self.received;
        self.partial.clear();
        self.data_left = 0;
        self.answer = false;
        if self.end == SessionEnd::Sent {
            self.end = SessionEnd::Requested;
        }
        Ok(())
    }

    /// Requests an answer from the other side, which shows that the connection works.
    pub fn ping(&mut self) {
        self.ping = true;
    }

    /// Ends the session after everything that was sent.
    pub fn end(&mut self) {
        if self.end == SessionEnd::Open {
            self.end = SessionEnd::Requested;
        }
    }

    /// Whether the other side has ended the session.
    pub fn has_ended(&self) -> bool {
        self.end == SessionEnd::Received
    }

    /// Whether the end was encoded for the connection.
    pub fn has_sent_end(&self) -> bool {
        self.end == SessionEnd::Sent
    }

    /// Encodes what is to be sent on the connection now, if anything.
    pub fn encode(&mut self, to: &mut Vec<u8>) {
        if self.answer || self.reported != self.received {
            self.answer = false;
            self.reported = self.received;
            to.push(ACK);
            to.extend(self.received.to_le_bytes());
        }
        if std::mem::take(&mut self.ping) {
            to.push(PING);
        }
        while to.len() < MAX_OUTPUT {
            let start = usize::try_from(self.next - self.acknowledged).unwrap_or(usize::MAX);
            let length = self.unacknowledged.len().saturating_sub(start).min(MAX_RECORD);
            if length == 0 {
                break;
            }
            to.push(DATA);
            to.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
            to.extend(self.unacknowledged.range(start..start + length));
            self.next += length as u64;
        }
        let all = self.acknowledged + self.unacknowledged.len() as u64;
        if self.end == SessionEnd::Requested && self.next == all {
            self.end = SessionEnd::Sent;
            to.push(END);
        }
    }

    /// Decodes bytes of the connection, and appends what is new in the stream.
    ///
    /// After an error, the connection cannot be used any more.
    pub fn decode(&mut self, bytes: &[u8], to: &mut Vec<u8>) -> Result<(), Malformed> {
        self.partial.extend(bytes);
        let partial = std::mem::take(&mut self.partial);
        let mut rest = partial.as_slice();
        loop {
            // Data counts as it arrives, so that a connection that is cut within a record was of use.
            let (data, after) = rest.split_at(self.data_left.min(rest.len()));
            to.extend(data);
            self.received += data.len() as u64;
            self.data_left -= data.len();
            rest = after;
            let Some((kind, after)) = rest.split_first() else { break };
            match *kind {
                DATA => {
                    let Some((length, after)) = after.split_first_chunk() else { break };
                    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Malformed)?;
                    if length > MAX_RECORD {
                        return Err(Malformed);
                    }
                    self.data_left = length;
                    rest = after;
                }
                ACK => {
                    let Some((position, after)) = after.split_first_chunk() else { break };
                    self.acknowledge(u64::from_le_bytes(*position), self.next)?;
                    rest = after;
                }
                PING => {
                    self.answer = true;
                    rest = after;
                }
                END => {
                    self.end = SessionEnd::Received;
                    rest = after;
                }
                _ => return Err(Malformed),
            }
        }
        self.partial = rest.to_vec();
        Ok(())
    }

    /// Forgets what the other side has.
    fn acknowledge(&mut self, position: u64, sent: u64) -> Result<(), Malformed> {
        if position > sent {
            return Err(Malformed);
        }
        let count = position.checked_sub(self.acknowledged).ok_or(Malformed)?;
        self.unacknowledged.drain(..usize::try_from(count).map_err(|_| Malformed)?);
        self.acknowledged = position;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
