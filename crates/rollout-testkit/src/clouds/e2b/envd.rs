//! The agent inside sandboxes: Connect RPC with messages in JSON.

use std::sync::Arc;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, header::HeaderMap, http::request::Parts};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    E2bState, Sandbox,
    build::locked,
    process::{Event, Process},
};
use crate::clouds::{
    faults::{CloudCall, CloudTrouble},
    server::{Answer, CutHere, bytes_answer, json_answer, streamed_answer, with_trouble},
};

/// The type of messages in a stream.
const STREAM: &str = "application/connect+json";

/// The flag of the last message of a stream.
const END: u8 = 2;

/// Answers a request to a sandbox.
pub(super) async fn answer(state: &Arc<E2bState>, head: &Parts, body: Incoming) -> Result<Answer, CutHere> {
    let id = text_of(&head.headers, "e2b-sandbox-id");
    let Some(sandbox) = state.sandbox(&id) else {
        // The form of the proxy in front of sandboxes.
        let gone = json!({"sandboxId": id, "message": "The sandbox was not found", "code": 502});
        return Ok(json_answer(502, &gone));
    };
    if head.uri.path() == "/health" {
        return Ok(bytes_answer(204, "text/plain", ""));
    }
    if text_of(&head.headers, "x-access-token") != sandbox.token {
        return Ok(failed(401, "unauthenticated", "no access token provided"));
    }
    let body = body.collect().await.map_err(|_| CutHere)?.to_bytes();
    let method = head.uri.path().rsplit('/').next().unwrap_or_default();
    if method != "Start" {
        let message = serde_json::from_slice(&body).unwrap_or(Value::Null);
        return Ok(call(&sandbox, method, &message).await);
    }
    let Some(message) = body.get(5..).and_then(|text| serde_json::from_slice::<Value>(text).ok()) else {
        return Ok(failed(400, "invalid_argument", "the message is not one of a stream"));
    };
    // Streams to the guest have an input.
    let is_stream = message["stdin"] == true;
    let trouble = is_stream.then(|| state.faults.meet(CloudCall::Stream, 0)).flatten();
    let cut_after = match trouble {
        Some(CloudTrouble::CutStream(bytes)) => Some(bytes),
        _ => None,
    };
    let refuse = |_| failed(503, "unavailable", "the agent is busy");
    let pretend = || failed(503, "unavailable", "the agent is busy");
    with_trouble(trouble, refuse, pretend, start(&sandbox, &head.headers, &message, cut_after)).await
}

fn text_of(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// An error of a single call.
fn failed(status: u16, code: &str, message: &str) -> Answer {
    json_answer(status, &json!({"code": code, "message": message}))
}

/// Starts a process, and streams its messages.
async fn start(
    sandbox: &Arc<Sandbox>,
    headers: &HeaderMap,
    message: &Value,
    cut_after: Option<u64>,
) -> Answer {
    let config = &message["process"];
    let words = config["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let argv: Vec<String> = config["cmd"].as_str().into_iter().chain(words).map(str::to_owned).collect();
    let envs = config["envs"].as_object().into_iter().flatten();
    let env: Vec<(String, String)> =
        envs.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
    let cwd = config["cwd"].as_str().filter(|cwd| !cwd.is_empty());
    let user = user(headers);
    let with_stdin = message["stdin"].as_bool().unwrap_or(true);
    let started = sandbox.machine.exec(argv, &env, cwd, user.as_deref(), with_stdin).await;
    let piped = match started {
        Ok(piped) => piped,
        Err((_, text)) => return refused_stream("not_found", &text),
    };
    let tag = message["tag"].as_str().map(str::to_owned);
    let (pid, events) = Process::follow(sandbox, tag, config.clone(), piped);
    let first = json!({"event": {"start": {"pid": pid}}});
    streamed_answer(STREAM, messages(first, events, cut_after))
}

/// The user of `Authorization: Basic`, whose password is empty.
fn user(headers: &HeaderMap) -> Option<String> {
    let value = text_of(headers, "authorization");
    let decoded = BASE64_STANDARD.decode(value.strip_prefix("Basic ")?).ok()?;
    Some(String::from_utf8_lossy(&decoded).trim_end_matches(':').to_owned()).filter(|user| !user.is_empty())
}

/// A stream that ends with an error at once.
fn refused_stream(code: &str, message: &str) -> Answer {
    let end = frame(END, &json!({"error": {"code": code, "message": message}}));
    bytes_answer(200, STREAM, end)
}

fn messages(
    first: Value,
    events: mpsc::Receiver<Event>,
    cut_after: Option<u64>,
) -> impl futures_util::Stream<Item = Result<Bytes, CutHere>> + Send + 'static {
    let state = (Some(first), Some(events), cut_after);
    stream::unfold(state, |(first, events, mut left)| async move {
        if let Some(first) = first {
            return Some((Ok(frame(0, &first)), (None, events, left)));
        }
        let mut events = events?;
        let event = match events.recv().await {
            // The server ends, or the machine has.
            None | Some(Event::Lost) => return Some((Err(CutHere), (None, None, left))),
            Some(event) => event,
        };
        if let (Event::Output { bytes, .. }, Some(left)) = (&event, &mut left) {
            match left.checked_sub(bytes.len() as u64) {
                Some(rest) => *left = rest,
                None => return Some((Err(CutHere), (None, None, None))),
            }
        }
        let mut message = frame(0, &event.json()).to_vec();
        if let Event::End(_) = event {
            message.extend(frame(END, &json!({})));
            return Some((Ok(message.into()), (None, None, left)));
        }
        Some((Ok(message.into()), (None, Some(events), left)))
    })
}

/// A message of a stream: a byte of flags, four of length, and the text.
fn frame(flags: u8, message: &Value) -> Bytes {
    let text = message.to_string();
    let mut frame = vec![flags];
    frame.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend(text.into_bytes());
    frame.into()
}

/// A call with one answer.
async fn call(sandbox: &Sandbox, method: &str, message: &Value) -> Answer {
    if method == "List" {
        let processes: Vec<Value> =
            locked(&sandbox.processes).values().map(|process| process.json()).collect();
        return json_answer(200, &json!({"processes": processes}));
    }
    let selector = &message["process"];
    let found = locked(&sandbox.processes)
        .values()
        .find(|process| {
            selector["pid"].as_u64() == Some(process.pid.into())
                || (selector["tag"].is_string() && selector["tag"].as_str() == process.tag.as_deref())
        })
        .cloned();
    let Some(process) = found else {
        return failed(404, "not_found", "there is no such process");
    };
    match method {
        "SendInput" => {
            let input = message["input"]["stdin"].as_str().unwrap_or_default();
            let Ok(bytes) = BASE64_STANDARD.decode(input) else {
                return failed(400, "invalid_argument", "the input is not base64");
            };
            if !process.write(&bytes).await {
                return failed(500, "internal", "stdin is not enabled or was closed");
            }
        }
        "CloseStdin" => process.close_stdin().await,
        "SendSignal" => process.kill(),
        _ => return failed(404, "unimplemented", "there is no such method"),
    }
    json_answer(200, &json!({}))
}
