//! Opens a WebSocket to the guest of a machine, through Fly's proxy.

use std::time::Duration;

use reqwest::{Client, StatusCode, header};
use rollout_core::text::chain;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};

use crate::guest::GuestStream;

/// The header with which the proxy reaches one machine, and no other.
const INSTANCE: &str = "fly-force-instance-id";

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(15);

/// How long the answer may take.
const OPENING: Duration = Duration::from_secs(30);

/// A client for WebSockets, which need HTTP/1.1.
pub(super) fn client() -> Client {
    let client = Client::builder()
        .http1_only()
        .connect_timeout(CONNECT)
        .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))
        .build();
    client.unwrap_or_default()
}

/// Opens a WebSocket to a machine. An error is a reason.
pub(super) async fn open(
    client: &Client,
    url: &str,
    machine: &str,
    token: &SecretString,
) -> Result<GuestStream, String> {
    let key = generate_key();
    let request = client
        .get(url)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, &key)
        .header(INSTANCE, machine)
        .bearer_auth(token.expose_secret());
    let answer = match timeout(OPENING, request.send()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(chain(&error)),
        Err(_) => return Err("no answer in time".to_owned()),
    };
    // The answer may be of the proxy before the guest, so its text is not used.
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(format!("the WebSocket was refused with status {}", answer.status().as_u16()));
    }
    let accepted = answer.headers().get(header::SEC_WEBSOCKET_ACCEPT);
    if accepted.is_none_or(|accepted| accepted.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes()) {
        return Err("the answer is not a WebSocket handshake".to_owned());
    }
    let connection = answer.upgrade().await.map_err(|error| chain(&error))?;
    Ok(GuestStream::upgraded(connection).await)
}
