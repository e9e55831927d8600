//! Starts the guest in a sandbox through the toolbox, and connects to it through a preview address.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex as SyncMutex, PoisonError},
    time::Duration,
};

use reqwest::{
    Client, Method, StatusCode,
    header::{
        AUTHORIZATION, CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
        SEC_WEBSOCKET_VERSION, UPGRADE,
    },
    redirect::Policy,
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::timeout};
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};

use super::{
    super::{CloudError, SandboxPlan},
    api::{Api, SandboxAnswer},
};
use crate::guest::{DialError, GuestStream};

/// The ports that are tried. The preview of Daytona serves those from 3000 to 9999 in all its releases.
const PORTS: std::ops::Range<u16> = 3000..10_000;

/// How often another port is tried, if the guest cannot start.
const STARTS: usize = 4;

/// How long a WebSocket may take to open.
const OPENING: Duration = Duration::from_secs(30);

/// How the guest of each sandbox is reached.
#[derive(Default)]
pub(super) struct Links(SyncMutex<HashMap<String, Arc<Mutex<Link>>>>);

impl Links {
    fn of(&self, id: &str) -> Arc<Mutex<Link>> {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(links.entry(id.to_owned()).or_default())
    }

    /// Forgets a sandbox that is deleted.
    pub(super) fn forget(&self, id: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

/// How a guest is reached.
#[derive(Default)]
struct Link {
    /// The address of the toolbox.
    toolbox: String,
    /// How often another port was tried.
    start: usize,
    /// The command that runs the guest, if it was started.
    command: Option<String>,
    preview: Option<Preview>,
    /// Whether the guest has answered.
    was_reached: bool,
}

/// The address of a port of a sandbox.
#[derive(Deserialize)]
struct Preview {
    url: String,
    #[serde(default)]
    token: String,
}

/// A command of a session.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CommandAnswer {
    id: String,
    #[serde(default)]
    exit_code: Option<i64>,
}

#[derive(Deserialize)]
struct SessionAnswer {
    #[serde(default)]
    commands: Option<Vec<CommandAnswer>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    cmd_id: String,
}

/// Opens connections to guests.
pub(super) struct Dialer {
    /// WebSockets need HTTP/1.1 and have no time limit.
    client: Client,
    links: Arc<Links>,
}

impl Dialer {
    pub(super) fn new(links: Arc<Links>) -> Self {
        let client = Client::builder().http1_only().redirect(Policy::none()).connect_timeout(OPENING).build();
        // Only invalid settings of the TLS library are an error, and there are none.
        Self { client: client.unwrap_or_default(), links }
    }

    pub(super) fn links(&self) -> &Links {
        &self.links
    }

    /// Opens a connection. The first one starts the guest.
    pub(super) async fn dial(
        &self,
        api: &Api,
        id: &str,
        plan: &SandboxPlan,
    ) -> Result<GuestStream, DialError> {
        let link = self.links.of(id);
        let mut link = link.lock().await;
        if link.command.is_none() {
            let started = start(api, id, plan, &mut link).await;
            if let Err(error) = started {
                return Err(self.reason(api, id, error).await);
            }
        }
        if link.preview.is_none() {
            let path = format!("/sandbox/{id}/ports/{}/preview-url", port(plan.key(), link.start));
            match api.get(&path).await {
                Ok(preview) => link.preview = Some(preview),
                Err(error) => return Err(self.reason(api, id, error).await),
            }
        }
        let refusal = match &link.preview {
            Some(preview) => match self.open(preview, &plan.token).await {
                Ok(stream) => {
                    link.was_reached = true;
                    return Ok(stream);
                }
                Err(refusal) => refusal,
            },
            None => return Err(DialError::Temporary("there is no preview address".to_owned())),
        };
        if refusal.is_of_the_address {
            link.preview = None;
        }
        match guest_end(api, id, plan, &link).await {
            Ok(None) => Err(DialError::Temporary(refusal.text)),
            Ok(Some(code)) if !link.was_reached && link.start + 1 < STARTS => {
                // Most likely another process uses the port.
                (link.start, link.command, link.preview) = (link.start + 1, None, None);
                Err(DialError::Temporary(format!("the guest ended with code {code} at its start")))
            }
            Ok(Some(code)) => Err(DialError::Gone(format!("the guest ended with code {code}"))),
            Err(error) => Err(self.reason(api, id, error).await),
        }
    }

    /// What an error of the API or the toolbox means for a connection.
    async fn reason(&self, api: &Api, id: &str, error: CloudError) -> DialError {
        let CloudError::Missing(text) = &error else { return DialError::Temporary(error.to_string()) };
        // The toolbox may be missing for a moment; a sandbox is not.
        match api.get::<SandboxAnswer>(&format!("/sandbox/{id}")).await {
            Err(CloudError::Missing(text)) => DialError::Gone(text),
            Ok(sandbox) if sandbox.state.as_deref() != Some("started") => {
                let state = sandbox.state.unwrap_or_default();
                DialError::Gone(format!("the sandbox {id} is {state}"))
            }
            Ok(_) | Err(_) => DialError::Temporary(text.clone()),
        }
    }

    /// Opens a WebSocket to the guest.
    async fn open(&self, preview: &Preview, token: &SecretString) -> Result<GuestStream, Refusal> {
        let key = generate_key();
        let mut request = self
            .client
            .get(&preview.url)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key)
            .header("x-daytona-skip-preview-warning", "true")
            // In lower case, the proxy does not take it for a key of Daytona, and passes it on to the guest.
            .header(AUTHORIZATION, secret(&format!("bearer {}", token.expose_secret())));
        if !preview.token.is_empty() {
            request = request.header("x-daytona-preview-token", secret(&preview.token));
        }
        let temporary = |text: String| Refusal { text, is_of_the_address: false };
        let response = match timeout(OPENING, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(temporary(format!("no WebSocket: {}", error.without_url()))),
            Err(_) => return Err(temporary("no WebSocket: no answer in time".to_owned())),
        };
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            return Err(Refusal {
                text: format!("the WebSocket was refused with status {}", status.as_u16()),
                is_of_the_address: status.is_redirection() || status.is_client_error(),
            });
        }
        let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT);
        if accepted.is_none_or(|accepted| accepted.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes())
        {
            return Err(temporary("the server answered another WebSocket".to_owned()));
        }
        match response.upgrade().await {
            Ok(connection) => Ok(GuestStream::upgraded(connection).await),
            Err(error) => Err(temporary(format!("no WebSocket: {}", error.without_url()))),
        }
    }
}

/// Why there is no WebSocket.
struct Refusal {
    text: String,
    /// Another address, or another token, may help.
    is_of_the_address: bool,
}

/// A header that no log shows. A value that is no header is left out; the server then refuses the request.
fn secret(text: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

/// The port of a guest: different for each sandbox and each start.
fn port(key: &str, start: usize) -> u16 {
    let digits = key.get(start * 4..start * 4 + 4).unwrap_or("0");
    PORTS.start + u16::from_str_radix(digits, 16).unwrap_or_default() % (PORTS.end - PORTS.start)
}

/// The name of the session in which the guest runs. There is one for each start.
fn session(plan: &SandboxPlan, start: usize) -> String {
    format!("rollout-{}-{start}", plan.key())
}

/// Starts the guest in a session of its own, unless an attempt whose answer was lost has done so.
async fn start(api: &Api, id: &str, plan: &SandboxPlan, link: &mut Link) -> Result<(), CloudError> {
    if link.toolbox.is_empty() {
        let sandbox: SandboxAnswer = api.get(&format!("/sandbox/{id}")).await?;
        let url = sandbox.toolbox_proxy_url.unwrap_or_default();
        link.toolbox = format!("{}/{id}", url.trim_end_matches('/'));
    }
    let sessions = format!("{}/process/session", link.toolbox);
    let session = session(plan, link.start);
    let request = api.request_to(Method::POST, &sessions).json(&json!({"sessionId": session}));
    if api.create::<Value>(request, "POST /process/session of the toolbox").await?.is_none() {
        let request = api.request_to(Method::GET, &format!("{sessions}/{session}"));
        let found: SessionAnswer = api.read(request, "GET /process/session of the toolbox").await?;
        if let Some(command) = found.commands.unwrap_or_default().pop() {
            link.command = Some(command.id);
            return Ok(());
        }
    }
    let command = plan.guest_command(Some(port(plan.key(), link.start))).join(" ");
    let command = format!("ROLLOUT_GUEST_TOKEN={} {command}", plan.token.expose_secret());
    let request = api
        .request_to(Method::POST, &format!("{sessions}/{session}/exec"))
        .json(&json!({"command": command, "runAsync": true}));
    let started: Started = api.read(request, "POST /process/session/exec of the toolbox").await?;
    link.command = Some(started.cmd_id);
    Ok(())
}

/// The exit code of the guest; `None` while it runs.
async fn guest_end(api: &Api, id: &str, plan: &SandboxPlan, link: &Link) -> Result<Option<i64>, CloudError> {
    let Some(command) = &link.command else { return Ok(None) };
    let session = session(plan, link.start);
    let url = format!("{}/process/session/{session}/command/{command}", link.toolbox);
    let request = api.request_to(Method::GET, &url);
    let what = format!("GET the state of the guest of {id} from the toolbox");
    let answer: CommandAnswer = api.read(request, &what).await?;
    Ok(answer.exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_by_sandbox_and_start() {
        let key = "00000001ffff12345678";
        let ports: Vec<u16> = (0..STARTS).map(|start| port(key, start)).collect();
        assert_eq!(ports[..2], [3000, 3001]);
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
    }
}
