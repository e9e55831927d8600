//! The preview addresses of the fake: a WebSocket is passed on to a port of a sandbox.

use hyper::{Request, body::Incoming, header::HeaderValue};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, split};

use super::{KEY, state::DaytonaState};
use crate::clouds::{
    faults::{CloudCall, CloudTrouble},
    machine::CloudMachine,
    server::{Answer, CutHere, bytes_answer},
};

/// The header with the secret of a sandbox. The service inside does not see it.
const TOKEN: &str = "x-daytona-preview-token";

/// The longest head of an answer.
const MAX_HEAD: usize = 16 << 10;

/// Answers a request to `{port}-{id}/…`.
pub(super) async fn answer(
    state: &DaytonaState,
    path: &str,
    mut request: Request<Incoming>,
) -> Result<Answer, CutHere> {
    let budget = match state.faults.meet(CloudCall::Stream, state.live().len()) {
        None => u64::MAX,
        Some(CloudTrouble::CutStream(bytes)) => bytes,
        Some(CloudTrouble::Slow(time)) => {
            tokio::time::sleep(time).await;
            u64::MAX
        }
        Some(CloudTrouble::LoseRequest | CloudTrouble::LoseAnswer | CloudTrouble::Ignore) => {
            return Err(CutHere);
        }
        Some(_) => return Ok(plain(503, "unavailable")),
    };
    let (machine, port) = match target(state, path, &request) {
        Ok(target) => target,
        Err((status, text)) => return Ok(plain(status, text)),
    };
    let unreachable = || plain(502, "the sandbox does not accept connections at this port");
    let Ok(mut service) = machine.connect(port).await else { return Ok(unreachable()) };
    if service.write_all(head(&request).as_bytes()).await.is_err() {
        return Ok(unreachable());
    }
    let Some((status, headers, rest)) = read_head(&mut service).await else { return Ok(unreachable()) };
    let mut answer = plain(status, "");
    answer.headers_mut().clear();
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) =
            (name.parse::<hyper::header::HeaderName>(), HeaderValue::from_str(&value))
        {
            answer.headers_mut().insert(name, value);
        }
    }
    if status == 101 {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            // The client may disconnect before the connection is handed over.
            let Ok(client) = upgrade.await else { return };
            carry(TokioIo::new(client), service, rest, budget).await;
        });
    }
    Ok(answer)
}

/// The machine and the port of an address, if the request may use it; otherwise the status and the text of the refusal.
fn target(
    state: &DaytonaState,
    path: &str,
    request: &Request<Incoming>,
) -> Result<(CloudMachine, u16), (u16, &'static str)> {
    let name = path.split('/').next().unwrap_or_default();
    let (port, id) = name.split_once('-').ok_or((400, "invalid host format"))?;
    let port: u16 = port.parse().map_err(|_| (400, "invalid port: must be numeric"))?;
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    // The proxy tries the header of a key first, which must never reach a sandbox.
    if header("authorization").is_some_and(|sent| sent.contains(KEY)) {
        return Err((400, "a test found the key of the account in a request to a sandbox"));
    }
    let (_, sandbox) = state.sandbox(id).ok_or((400, "failed to get runner info"))?;
    if header(TOKEN) != Some(&sandbox.token) {
        return Err((401, "authentication failed"));
    }
    let machine = sandbox.machine.ok_or((400, "no IP address found. Is the Sandbox started?"))?;
    Ok((machine, port))
}

fn plain(status: u16, text: &'static str) -> Answer {
    bytes_answer(status, "text/plain", text)
}

/// The request as the service sees it.
fn head(request: &Request<Incoming>) -> String {
    let mut head = format!("{} / HTTP/1.1\r\n", request.method());
    for (name, value) in request.headers().iter().filter(|(name, _)| *name != TOKEN) {
        head.push_str(&format!("{name}: {}\r\n", String::from_utf8_lossy(value.as_bytes())));
    }
    head.push_str("\r\n");
    head
}

/// Reads the status and the headers of an answer, and what follows them.
async fn read_head(service: &mut (impl AsyncRead + Unpin)) -> Option<(u16, Vec<(String, String)>, Vec<u8>)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if bytes.len() > MAX_HEAD || service.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let rest = bytes.split_off(end + 4);
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = text.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    Some((status, headers.collect(), rest))
}

/// Carries bytes until a side closes, or the service has sent `budget` bytes.
async fn carry(
    client: impl AsyncRead + AsyncWrite + Unpin,
    service: impl AsyncRead + AsyncWrite + Unpin,
    rest: Vec<u8>,
    budget: u64,
) {
    let (mut from_client, mut to_client) = split(client);
    let (from_service, mut to_service) = split(service);
    let down = async {
        let mut limited = rest.as_slice().chain(from_service).take(budget);
        // An error means that the client is gone.
        let _ = copy(&mut limited, &mut to_client).await;
        let _ = to_client.flush().await;
    };
    let up = async {
        // An error means that the sandbox is gone.
        let _ = copy(&mut from_client, &mut to_service).await;
    };
    tokio::select! {
        () = down => {}
        () = up => {}
    }
}
