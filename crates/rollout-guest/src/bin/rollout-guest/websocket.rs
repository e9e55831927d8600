//! The WebSocket protocol of RFC 6455, as far as a server needs it that carries a stream of bytes in binary messages.
//!
//! This module does no input and output.

use rollout_guest::Malformed;
use sha1::{Digest as _, Sha1};

/// The most bytes of a request before its upgrade.
pub(crate) const MAX_HEAD: usize = 8 << 10;

/// The most data of a control frame.
const MAX_CONTROL: usize = 125;

/// What the protocol appends to the key of a client before it is hashed.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// What the start of a connection asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The request is not complete.
    Incomplete,
    /// The request is valid. `length` bytes were the request; frames follow.
    Accepted { response: Vec<u8>, length: usize },
    /// The request is refused with this response.
    Refused(&'static [u8]),
}

const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
const UNAUTHORIZED: &[u8] = b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Reads the request at the start of a connection, which must have the token.
pub(crate) fn open(input: &[u8], token: &[u8]) -> Opening {
    let Some(end) = input.windows(4).position(|window| window == b"\r\n\r\n") else {
        return if input.len() < MAX_HEAD { Opening::Incomplete } else { Opening::Refused(BAD_REQUEST) };
    };
    let Some(request) = Request::parse(&input[..end]) else { return Opening::Refused(BAD_REQUEST) };
    // The token comes first, so that other clients do not learn what else is expected.
    if !request.authorization.is_some_and(|sent| is_authorized(sent, token)) {
        return Opening::Refused(UNAUTHORIZED);
    }
    match request.key.filter(|_| request.upgrades && request.connection_upgrades && request.is_version_13) {
        Some(key) => Opening::Accepted { response: accept(key), length: end + 4 },
        None => Opening::Refused(BAD_REQUEST),
    }
}

/// The parts of a request that matter.
#[derive(Default)]
struct Request<'a> {
    authorization: Option<&'a [u8]>,
    key: Option<&'a [u8]>,
    upgrades: bool,
    connection_upgrades: bool,
    is_version_13: bool,
}

impl<'a> Request<'a> {
    /// `None` for what is no GET request, or has a header twice that may occur once.
    fn parse(head: &'a [u8]) -> Option<Self> {
        let mut lines =
            head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let first = lines.next()?;
        if !first.starts_with(b"GET /") || !first.ends_with(b" HTTP/1.1") {
            return None;
        }
        let mut request = Self::default();
        for line in lines {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
            if is("authorization") {
                if request.authorization.replace(value).is_some() {
                    return None;
                }
            } else if is("sec-websocket-key") {
                if request.key.replace(value).is_some() {
                    return None;
                }
            } else if is("upgrade") {
                request.upgrades |= has_word(value, "websocket");
            } else if is("connection") {
                request.connection_upgrades |= has_word(value, "upgrade");
            } else if is("sec-websocket-version") {
                request.is_version_13 = value == b"13";
            }
        }
        Some(request)
    }
}

/// Whether a list separated by commas has a word.
fn has_word(list: &[u8], word: &str) -> bool {
    list.split(|byte| *byte == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
}

/// Whether the value of the header has the token.
fn is_authorized(sent: &[u8], token: &[u8]) -> bool {
    const SCHEME: usize = "Bearer ".len();
    match sent.split_at_checked(SCHEME) {
        Some((scheme, sent)) => scheme.eq_ignore_ascii_case(b"Bearer ") && is_same(sent.trim_ascii(), token),
        None => false,
    }
}

/// Compares secrets in a time that depends only on their lengths. An empty one is never the same.
fn is_same(sent: &[u8], token: &[u8]) -> bool {
    if token.is_empty() || sent.len() != token.len() {
        return false;
    }
    let difference = sent.iter().zip(token).fold(0, |found, (a, b)| std::hint::black_box(found | (a ^ b)));
    difference == 0
}

fn accept(key: &[u8]) -> Vec<u8> {
    let hash = Sha1::new().chain_update(key).chain_update(KEY_SUFFIX).finalize();
    let mut response =
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
            .to_vec();
    response.extend(base64(&hash));
    response.extend(b"\r\n\r\n");
    response
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::new();
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            text.push(if digit <= group.len() { DIGITS[value as usize] } else { b'=' });
        }
    }
    text
}

/// A frame that is not data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// To be answered with a [pong](pong) of the same data.
    Ping(Vec<u8>),
    /// The answer to a ping.
    Pong,
    /// The client closes the connection.
    Close,
}

/// Decodes the frames of a client.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    /// The start of a frame that has not arrived completely.
    head: Vec<u8>,
    /// The frame whose data arrives.
    frame: Option<Frame>,
}

#[derive(Debug)]
struct Frame {
    kind: u8,
    mask: [u8; 4],
    /// The bytes that have arrived.
    position: u64,
    length: u64,
    /// The data of a control frame.
    control: Vec<u8>,
}

impl FrameReader {
    /// Decodes bytes of the client: appends data as it arrives, and the other frames.
    pub(crate) fn decode(
        &mut self,
        mut bytes: &[u8],
        data: &mut Vec<u8>,
        controls: &mut Vec<Control>,
    ) -> Result<(), Malformed> {
        loop {
            if let Some(frame) = &mut self.frame {
                let left = usize::try_from(frame.length - frame.position).unwrap_or(usize::MAX);
                let (part, rest) = bytes.split_at(left.min(bytes.len()));
                bytes = rest;
                let target = if is_data(frame.kind) { &mut *data } else { &mut frame.control };
                let start = (frame.position % 4) as usize;
                let mask = frame.mask.iter().cycle().skip(start);
                target.extend(part.iter().zip(mask).map(|(byte, mask)| byte ^ mask));
                frame.position += part.len() as u64;
                if frame.position < frame.length {
                    return Ok(());
                }
                let Frame { kind, control, .. } = self.frame.take().ok_or(Malformed)?;
                match kind {
                    CLOSE => controls.push(Control::Close),
                    PING => controls.push(Control::Ping(control)),
                    PONG => controls.push(Control::Pong),
                    _ => {}
                }
            }
            let Some((first, rest)) = bytes.split_first() else { return Ok(()) };
            self.head.push(*first);
            bytes = rest;
            self.frame = frame(&self.head)?;
            if self.frame.is_some() {
                self.head.clear();
            }
        }
    }
}

fn is_data(kind: u8) -> bool {
    matches!(kind, CONTINUATION | BINARY)
}

/// The frame that starts with these bytes, if they are complete.
///
/// The limits of messages do not matter to a stream, so a continuation is accepted anywhere.
fn frame(head: &[u8]) -> Result<Option<Frame>, Malformed> {
    let [first, second, rest @ ..] = head else { return Ok(None) };
    let (kind, short) = (first & 0x0f, second & !MASKED);
    let is_control = matches!(kind, CLOSE | PING | PONG);
    let fits = usize::from(short) <= MAX_CONTROL && first & FIN != 0;
    if first & RESERVED != 0 || second & MASKED == 0 || !(is_data(kind) || is_control && fits) {
        return Err(Malformed);
    }
    let (length, rest) = match short {
        126 => match rest.split_first_chunk() {
            Some((length, rest)) => (u64::from(u16::from_be_bytes(*length)), rest),
            None => return Ok(None),
        },
        127 => match rest.split_first_chunk() {
            Some((length, rest)) => (u64::from_be_bytes(*length), rest),
            None => return Ok(None),
        },
        length => (u64::from(length), rest),
    };
    let Ok(mask) = rest.try_into() else { return Ok(None) };
    Ok(Some(Frame { kind, mask, position: 0, length, control: Vec::new() }))
}

/// Appends a binary message.
pub(crate) fn binary(data: &[u8], to: &mut Vec<u8>) {
    write_frame(BINARY, data, to);
}

/// Appends a ping.
pub(crate) fn ping(to: &mut Vec<u8>) {
    write_frame(PING, b"", to);
}

/// Appends the answer to a ping.
pub(crate) fn pong(data: &[u8], to: &mut Vec<u8>) {
    write_frame(PONG, data, to);
}

/// Appends the end of the connection.
pub(crate) fn close(to: &mut Vec<u8>) {
    const NORMAL: u16 = 1000;
    write_frame(CLOSE, &NORMAL.to_be_bytes(), to);
}

fn write_frame(kind: u8, data: &[u8], to: &mut Vec<u8>) {
    to.push(FIN | kind);
    match (u8::try_from(data.len()), u16::try_from(data.len())) {
        (Ok(length), _) if usize::from(length) <= MAX_CONTROL => to.push(length),
        (_, Ok(length)) => {
            to.push(126);
            to.extend(length.to_be_bytes());
        }
        _ => {
            to.push(127);
            to.extend((data.len() as u64).to_be_bytes());
        }
    }
    to.extend(data);
}

#[cfg(test)]
mod tests;
