//! Processes in a sandbox, through E2B's agent inside: Connect RPC with messages in JSON.

use std::{io, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::{StreamExt as _, future::BoxFuture, stream, stream::BoxStream};
use reqwest::{Client, RequestBuilder, Response};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio_util::{io::StreamReader, sync::CancellationToken};

use crate::guest::GuestStream;

/// The port of the agent.
pub(super) const PORT: u16 = 49_983;

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The seconds between two signs of life in a stream.
const KEEPALIVE: &str = "50";

/// The bytes that one request carries at most. Base64 and JSON make it a third longer.
const INPUT: usize = 192 << 10;

/// The longest message that is accepted.
const MAX_MESSAGE: usize = 64 << 20;

/// The flag of the last message of a stream.
const END_OF_STREAM: u8 = 2;

/// The agent of a sandbox.
#[derive(Clone)]
pub(super) struct Envd {
    pub(super) client: Client,
    /// Without a slash at the end.
    pub(super) url: String,
    pub(super) sandbox: String,
    pub(super) token: Option<SecretString>,
}

/// A process of the list.
#[derive(Debug, Deserialize)]
struct Listed {
    #[serde(default)]
    tag: Option<String>,
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    processes: Vec<Listed>,
}

/// A message of a process.
#[derive(Deserialize)]
struct Message {
    event: ProcessEvent,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum ProcessEvent {
    Start {
        #[serde(default)]
        pid: u32,
    },
    Data {
        #[serde(default)]
        stdout: String,
    },
    End {},
    Keepalive {},
}

/// The messages of a process that runs.
pub(super) struct Events {
    body: BoxStream<'static, reqwest::Result<Bytes>>,
    buffer: BytesMut,
}

impl Envd {
    fn request(&self, method: &str) -> RequestBuilder {
        let url = format!("{}/process.Process/{method}", self.url);
        let root = BASE64_STANDARD.encode("root:");
        let request = self
            .client
            .post(url)
            .header("Connect-Protocol-Version", "1")
            .header("E2b-Sandbox-Id", &self.sandbox)
            .header("E2b-Sandbox-Port", PORT.to_string())
            .header("Authorization", format!("Basic {root}"));
        match &self.token {
            Some(token) => request.header("X-Access-Token", token.expose_secret()),
            None => request,
        }
    }

    async fn call<T: DeserializeOwned>(&self, method: &str, body: &Json) -> Result<T, String> {
        let answer = succeeded(self.request(method).json(body).timeout(ANSWER_TIMEOUT)).await?;
        let text = answer.bytes().await.map_err(|error| words(&error))?;
        serde_json::from_slice(&text).map_err(|error| format!("unexpected answer to {method}: {error}"))
    }

    /// Whether a process with a tag runs.
    pub(super) async fn has_process(&self, tag: &str) -> Result<bool, String> {
        let list: List = self.call("List", &json!({})).await?;
        Ok(list.processes.iter().any(|process| process.tag.as_deref() == Some(tag)))
    }

    /// Starts a process as root, and returns its number. It lives on when its messages are dropped.
    pub(super) async fn start(
        &self,
        command: &[String],
        tag: Option<&str>,
        with_input: bool,
    ) -> Result<(u32, Events), String> {
        let (program, arguments) = command.split_first().ok_or("the command is empty")?;
        let mut body = json!({
            "process": {"cmd": program, "args": arguments, "envs": {}, "cwd": "/"},
            "stdin": with_input,
        });
        if let Some(tag) = tag {
            body["tag"] = tag.into();
        }
        let request = self
            .request("Start")
            .header("Content-Type", "application/connect+json")
            .header("Keepalive-Ping-Interval", KEEPALIVE)
            .body(enveloped(&body));
        let mut events =
            Events { body: succeeded(request).await?.bytes_stream().boxed(), buffer: BytesMut::new() };
        match events.next().await.map_err(|error| error.to_string())? {
            Some(ProcessEvent::Start { pid }) => Ok((pid, events)),
            _ => Err(format!("{program} was not started")),
        }
    }

    /// A stream over the standard streams of a process. `met` is called when the first bytes arrive.
    pub(super) fn stream(self, pid: u32, events: Events, met: impl FnOnce() + Send + 'static) -> GuestStream {
        let cut = CancellationToken::new();
        let (writer, input) = tokio::io::duplex(INPUT);
        tokio::spawn(self.clone().send_input(pid, input, cut.clone()));
        let ended = cut.clone();
        let bytes = stream::unfold((events, Some(met)), |(mut events, mut met)| async move {
            loop {
                let data = match events.next().await {
                    Ok(Some(ProcessEvent::Data { stdout })) => BASE64_STANDARD.decode(stdout),
                    Ok(Some(ProcessEvent::Start { .. } | ProcessEvent::Keepalive {})) => continue,
                    Ok(Some(ProcessEvent::End {}) | None) => return None,
                    Err(error) => return Some((Err(error), (events, met))),
                };
                if let Some(met) = met.take() {
                    met();
                }
                let data = data.map(Bytes::from).map_err(io::Error::other);
                return Some((data, (events, met)));
            }
        });
        let bytes = bytes.take_until(async move { ended.cancelled().await });
        let closer = Closer { envd: Some(self), pid, cut };
        GuestStream {
            reader: Box::new(StreamReader::new(Box::pin(bytes))),
            writer: Box::new(writer),
            guard: Box::new(closer),
        }
    }

    /// Sends what is written, one request at a time. Nothing is sent twice: a lost answer cuts the stream.
    async fn send_input(self, pid: u32, mut input: DuplexStream, cut: CancellationToken) {
        let mut chunk = vec![0; INPUT];
        let _cut_at_end = cut.clone().drop_guard();
        loop {
            let count = tokio::select! {
                read = input.read(&mut chunk) => read.unwrap_or(0),
                () = cut.cancelled() => return,
            };
            if count == 0 {
                return;
            }
            let data = BASE64_STANDARD.encode(&chunk[..count]);
            let body = json!({"process": {"pid": pid}, "input": {"stdin": data}});
            if self.call::<Json>("SendInput", &body).await.is_err() {
                return;
            }
        }
    }

    async fn kill(&self, pid: u32) -> Result<(), String> {
        let body = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
        self.call::<Json>("SendSignal", &body).await.map(drop)
    }
}

/// Ends the process of a stream, which would outlive it.
struct Closer {
    envd: Option<Envd>,
    pid: u32,
    cut: CancellationToken,
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.cut.cancel();
        let (Some(envd), Ok(runtime)) = (self.envd.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        let pid = self.pid;
        let kill: BoxFuture<'static, ()> = Box::pin(async move {
            // It may have ended, with its sandbox or without.
            let _ = envd.kill(pid).await;
        });
        runtime.spawn(kill);
    }
}

impl Events {
    /// The next message; `None` at the end of the stream.
    async fn next(&mut self) -> io::Result<Option<ProcessEvent>> {
        loop {
            if let Some((flags, message)) = self.frame()? {
                if flags & END_OF_STREAM != 0 {
                    return end(&message);
                }
                let message: Message = serde_json::from_slice(&message)?;
                return Ok(Some(message.event));
            }
            match self.body.next().await {
                Some(part) => self.buffer.extend_from_slice(&part.map_err(io::Error::other)?),
                None if self.buffer.is_empty() => return Err(io::ErrorKind::ConnectionReset.into()),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    /// A whole frame of the buffer: a byte of flags, four of length, and the message.
    fn frame(&mut self) -> io::Result<Option<(u8, Bytes)>> {
        let Some(head) = self.buffer.first_chunk::<5>() else { return Ok(None) };
        let flags = head[0];
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > MAX_MESSAGE {
            return Err(io::Error::other("a message is too long"));
        }
        if self.buffer.len() < 5 + length {
            return Ok(None);
        }
        self.buffer.advance(5);
        Ok(Some((flags, self.buffer.split_to(length).freeze())))
    }
}

/// The end of a stream, which may name an error.
fn end(message: &[u8]) -> io::Result<Option<ProcessEvent>> {
    let message: Json = serde_json::from_slice(message).unwrap_or_default();
    match message.get("error") {
        Some(error) => {
            let text =
                error["message"].as_str().or(error["code"].as_str()).unwrap_or("an error without words");
            Err(io::Error::other(text.to_owned()))
        }
        None => Ok(None),
    }
}

/// A message of a stream.
fn enveloped(body: &Json) -> Vec<u8> {
    let text = body.to_string();
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let mut frame = vec![0];
    frame.extend(length.to_be_bytes());
    frame.extend(text.into_bytes());
    frame
}

async fn succeeded(request: RequestBuilder) -> Result<Response, String> {
    let answer = request.send().await.map_err(|error| words(&error))?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let text = answer.text().await.unwrap_or_default();
    let text: String = text.chars().take(300).collect();
    Err(format!("the sandbox answered {status}: {text}"))
}

fn words(error: &reqwest::Error) -> String {
    format!("the sandbox does not answer: {}", rollout_core::text::chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(parts: &[&[u8]]) -> Events {
        let parts: Vec<_> = parts.iter().map(|part| Ok(Bytes::copy_from_slice(part))).collect();
        Events { body: stream::iter(parts).boxed(), buffer: BytesMut::new() }
    }

    #[tokio::test]
    async fn messages_arrive_whole_however_they_are_cut() {
        let frame = enveloped(&json!({"event": {"data": {"stdout": "aGk="}}}));
        let (first, second) = frame.split_at(7);
        let mut events = events(&[first, second, &[2, 0, 0, 0, 2], b"{}"]);
        let Some(ProcessEvent::Data { stdout }) = events.next().await.unwrap() else { panic!("no data") };
        assert_eq!(stdout, "aGk=");
        assert!(events.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_stream_without_its_end_is_an_error() {
        assert!(events(&[]).next().await.is_err());
        assert!(events(&[&[0, 0, 0, 0, 9], b"{"]).next().await.is_err());
        let error = [&[2, 0, 0, 0, 31][..], br#"{"error":{"message":"no room"}}"#].concat();
        let error = events(&[&error]).next().await.err().unwrap();
        assert_eq!(error.to_string(), "no room");
        assert!(events(&[&[0, 255, 255, 255, 255]]).next().await.is_err());
    }
}
