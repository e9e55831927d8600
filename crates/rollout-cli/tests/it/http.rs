//! A client of HTTP that reads answers as they come.

use std::{
    io::{self, BufRead as _, BufReader, Read, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

/// How long an answer may take before the test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(600);

/// An answer whose body is read as it comes. Dropping it hangs up.
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: BufReader<Body>,
}

/// Sends `GET` and reads the answer's head.
pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    send(address, &head("GET", path, &[]), b"")
}

/// Sends JSON and reads the answer's head.
pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    post_with(address, path, &[], body)
}

/// The same with further headers.
pub(crate) fn post_with(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let body = body.to_string();
    let length = body.len().to_string();
    let mut all = vec![("Content-Type", "application/json"), ("Content-Length", length.as_str())];
    all.extend(headers);
    send(address, &head("POST", path, &all), body.as_bytes())
}

/// The head of a request.
pub(crate) fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        head += "Host: localhost\r\n";
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head + "\r\n"
}

/// Sends a request as it is and reads the answer's head.
pub(crate) fn send(address: SocketAddr, head: &str, body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("set a timeout");
    stream.write_all(head.as_bytes()).expect("send the head");
    stream.write_all(body).expect("send the body");
    let mut reader = BufReader::new(stream);
    let first = line(&mut reader);
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let mut headers = Vec::new();
    loop {
        let line = line(&mut reader);
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let of = |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let left = match (of("transfer-encoding"), of("content-length")) {
        (Some("chunked"), _) => Left::Chunks(0),
        (_, length) => Left::Bytes(length.map_or(0, |length| length.parse().expect("a length"))),
    };
    Answer { status, body: BufReader::new(Body { reader, left }), headers }
}

fn line(reader: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).expect("read a line");
    line.trim_end().to_owned()
}

impl Answer {
    /// A header by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Waits for the next line; none at the end.
    pub(crate) fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.body.read_line(&mut line).expect("read a line of the body") {
            0 => None,
            _ => Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))),
        }
    }

    /// All lines that are left.
    pub(crate) fn lines(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// The body as one JSON value.
    pub(crate) fn json(mut self) -> Value {
        let mut body = String::new();
        self.body.read_to_string(&mut body).expect("read the body");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{body:?}: {error}"))
    }
}

struct Body {
    reader: BufReader<TcpStream>,
    left: Left,
}

enum Left {
    /// So many bytes of the body.
    Bytes(u64),
    /// So many bytes of a chunk, and then others.
    Chunks(u64),
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Left::Chunks(left @ 0) = &mut self.left {
            let mut size = line(&mut self.reader);
            if size.is_empty() {
                size = line(&mut self.reader);
            }
            *left = u64::from_str_radix(&size, 16).map_err(io::Error::other)?;
            if *left == 0 {
                self.left = Left::Bytes(0);
            }
        }
        let (Left::Bytes(left) | Left::Chunks(left)) = &mut self.left;
        let most = into.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        let read = self.reader.read(&mut into[..most])?;
        *left -= read as u64;
        Ok(read)
    }
}
