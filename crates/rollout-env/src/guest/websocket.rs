//! Connections to a guest over a WebSocket.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex, split},
    sync::oneshot,
    time::{sleep, timeout},
};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        Error, Message,
        handshake::client::Request,
        protocol::{Role, WebSocketConfig},
    },
};

use super::{DialError, GuestStream};

/// The bytes that wait in each direction.
const BUFFER: usize = 256 << 10;

/// The bytes that are sent in one message.
const CHUNK: usize = 64 << 10;

/// The longest accepted message. A guest sends shorter ones.
const MAX_MESSAGE: usize = 1 << 20;

/// How long a server may take to answer the request.
const OPENING: Duration = Duration::from_secs(30);

/// How long the last messages of a connection may take.
const CLOSING: Duration = Duration::from_secs(5);

impl GuestStream {
    /// Sends the request of a WebSocket over a connection, and carries bytes in its binary messages.
    ///
    /// `rollout-guest host` accepts requests whose header `Authorization` is `Bearer` and its token.
    pub async fn websocket<S>(connection: S, request: Request) -> Result<Self, DialError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let opened = timeout(OPENING, client_async_with_config(request, connection, Some(config()))).await;
        let socket = match opened {
            Ok(Ok((socket, _))) => socket,
            // The response may be of a proxy before the guest, so its text is not used.
            Ok(Err(Error::Http(response))) => {
                let reason = format!("the WebSocket was refused with status {}", response.status().as_u16());
                return Err(DialError::Temporary(reason));
            }
            Ok(Err(error)) => return Err(DialError::Temporary(format!("no WebSocket: {error}"))),
            Err(_) => return Err(DialError::Temporary("no WebSocket: no answer in time".to_owned())),
        };
        Ok(Self::over(socket))
    }

    /// Carries bytes over a connection whose request for a WebSocket was sent and accepted.
    pub async fn upgraded<S>(connection: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self::over(WebSocketStream::from_raw_socket(connection, Role::Client, Some(config())).await)
    }

    fn over<S>(socket: WebSocketStream<S>) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (outer, inner) = duplex(BUFFER);
        let (guard, dropped) = oneshot::channel::<()>();
        tokio::spawn(carry(socket, inner, dropped));
        let (reader, writer) = split(outer);
        Self { reader: Box::new(reader), writer: Box::new(writer), guard: Box::new(guard) }
    }
}

fn config() -> WebSocketConfig {
    let mut config = WebSocketConfig::default();
    config.max_message_size = Some(MAX_MESSAGE);
    config.max_frame_size = Some(MAX_MESSAGE);
    config
}

/// Carries bytes until one of the two sides closes. What the client has written before is still sent.
async fn carry<S>(socket: WebSocketStream<S>, stream: DuplexStream, dropped: oneshot::Receiver<()>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (mut to_server, mut from_server) = socket.split();
    let (mut from_client, mut to_client) = split(stream);
    let receive = async {
        while let Some(Ok(message)) = from_server.next().await {
            match message {
                Message::Binary(bytes) => {
                    // A client that is gone may have written something that is not sent yet.
                    let _ = to_client.write_all(&bytes).await;
                }
                Message::Close(_) => return,
                _ => {}
            }
        }
    };
    let send = async {
        let mut chunk = vec![0; CHUNK];
        while let Ok(count) = from_client.read(&mut chunk).await
            && count > 0
        {
            let message = Message::Binary(chunk[..count].to_vec().into());
            if to_server.send(message).await.is_err() {
                return;
            }
        }
        let _ = to_server.send(Message::Close(None)).await;
    };
    let late = async {
        let _ = dropped.await;
        sleep(CLOSING).await;
    };
    tokio::select! {
        () = receive => {}
        () = send => {}
        () = late => {}
    }
}
