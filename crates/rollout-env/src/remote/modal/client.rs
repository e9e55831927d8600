//! Calls of Modal's API: gRPC with the credentials of the user.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost::Message;
use rollout_core::{lenient_base64, text::chain};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::{Mutex, OnceCell};
use tonic::{
    Request, Status, Streaming,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    metadata::{Ascii, MetadataMap, MetadataValue},
    transport::{Channel, ClientTlsConfig, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{
    super::backend::CloudError,
    access::Access,
    failure::failure,
    messages::{AuthTokenGetResponse, Empty},
};

/// How long a connection may take to open.
const CONNECT: Duration = Duration::from_secs(10);

/// How often an idle connection is checked, and how long an answer to that may take.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// How long a call may take.
const CALL: Duration = Duration::from_secs(60);

/// The largest message of the server.
const MAX_MESSAGE: usize = 100 << 20;

/// The bytes that may be on the way. The default of 64 KiB would limit the rate over long distances.
const WINDOW: u32 = 4 << 20;

/// The kind and version of client whose messages are sent. Modal knows no kind for others.
const CLIENT_TYPE: &str = "1";
const CLIENT_VERSION: &str = "1.6.4";
const PYTHON_VERSION: &str = "3.12.0";

/// The lifetime of a token that does not have one.
const TOKEN_LIFETIME: Duration = Duration::from_secs(300);

/// A client of the API.
pub(super) struct Client {
    access: Arc<Access>,
    channel: OnceCell<Channel>,
    token: Mutex<Option<AuthToken>>,
}

/// A token for calls about sandboxes.
struct AuthToken {
    value: SecretString,
    /// A new one is fetched then: halfway to its end.
    refresh_at: SystemTime,
}

/// A call.
pub(super) struct Call<'a> {
    path: &'static str,
    /// Whether it needs a token besides the credentials.
    signed: bool,
    /// The token of a sandbox, which its creation returned.
    sandbox_token: Option<&'a SecretString>,
    /// The same for all attempts of one call.
    key: Option<String>,
}

impl Call<'static> {
    /// A call with the credentials alone.
    pub(super) fn plain(path: &'static str) -> Self {
        Self { path, signed: false, sandbox_token: None, key: None }
    }
}

impl<'a> Call<'a> {
    /// A call about sandboxes.
    pub(super) fn signed(path: &'static str, sandbox_token: Option<&'a SecretString>) -> Self {
        Self { path, signed: true, sandbox_token, key: None }
    }

    /// Names the call, so that the server recognizes another attempt.
    pub(super) fn keyed(self, key: &str) -> Self {
        Self { key: Some(uuid(key)), ..self }
    }
}

impl Client {
    pub(super) fn new(access: Arc<Access>) -> Self {
        Self { access, channel: OnceCell::new(), token: Mutex::default() }
    }

    /// Whether connections are not encrypted. Only for servers on loopback.
    pub(super) fn is_plain(&self) -> bool {
        self.access.servers.iter().all(|url| url.starts_with("http://"))
    }

    /// Makes one attempt at a call.
    pub(super) async fn call<Q, A>(&self, call: &Call<'_>, message: Q) -> Result<A, CloudError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let channel = self.channel().await?;
        let key = match &call.key {
            Some(key) => key.clone(),
            None => uuid(
                &super::super::random_hex()
                    .map_err(|error| CloudError::Refused(format!("cannot create a call id: {error}")))?,
            ),
        };
        let mut is_repeated = false;
        loop {
            let mut request = Request::new(message.clone());
            self.identify(request.metadata_mut());
            request.metadata_mut().insert("x-idempotency-key", value(&key, false)?);
            request.metadata_mut().insert("x-retry-attempt", MetadataValue::from_static("0"));
            request.set_timeout(CALL);
            if call.signed {
                let token = self.token(channel).await.map_err(not_sent)?;
                request.metadata_mut().insert("x-modal-auth-token", value(token.expose_secret(), true)?);
            }
            if let Some(token) = call.sandbox_token {
                request.metadata_mut().insert("x-modal-sandbox-token", value(token.expose_secret(), true)?);
            }
            match unary(channel, call.path, request).await {
                Ok(answer) => return Ok(answer),
                // The token may have been withdrawn before its end.
                Err(status)
                    if call.signed && !is_repeated && status.code() == tonic::Code::Unauthenticated =>
                {
                    *self.token.lock().await = None;
                    is_repeated = true;
                }
                Err(status) => return Err(self.failure(call.path, &status)),
            }
        }
    }

    /// Opens a stream of answers.
    pub(super) async fn stream<Q, A>(
        &self,
        path: &'static str,
        message: Q,
    ) -> Result<Streaming<A>, CloudError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let channel = self.channel().await?;
        let mut request = Request::new(message);
        self.identify(request.metadata_mut());
        server_stream(channel, path, request).await.map_err(|status| self.failure(path, &status))
    }

    /// What an error of the server means. The text never has the user's secret.
    pub(super) fn failure(&self, path: &str, status: &Status) -> CloudError {
        failure(path, status, &self.access.token_secret)
    }

    /// Checks that the server accepts the credentials.
    pub(super) async fn check(&self) -> Result<(), CloudError> {
        let channel = self.channel().await?;
        *self.token.lock().await = None;
        self.token(channel).await.map(drop)
    }

    /// The connection. The first server that can be reached is used until the end.
    async fn channel(&self) -> Result<&Channel, CloudError> {
        let connect = async {
            let mut reason = "no server is named".to_owned();
            for url in &self.access.servers {
                match connect(url).await {
                    Ok(channel) => return Ok(channel),
                    Err(error) => reason = error,
                }
            }
            // Nothing was sent.
            Err(CloudError::Busy { text: reason, retry_after: None })
        };
        self.channel.get_or_try_init(|| connect).await
    }

    /// The token for calls about sandboxes.
    async fn token(&self, channel: &Channel) -> Result<SecretString, CloudError> {
        let mut kept = self.token.lock().await;
        if let Some(token) = kept.as_ref().filter(|token| SystemTime::now() < token.refresh_at) {
            return Ok(token.value.clone());
        }
        let path = "/modal.client.ModalClient/AuthTokenGet";
        let mut request = Request::new(Empty {});
        self.identify(request.metadata_mut());
        request.set_timeout(CALL);
        let answer: Result<AuthTokenGetResponse, Status> = unary(channel, path, request).await;
        let token = answer.map_err(|status| self.failure(path, &status))?.token;
        let now = SystemTime::now();
        let left = expiry(&token).and_then(|end| end.duration_since(now).ok()).unwrap_or(TOKEN_LIFETIME);
        let value = SecretString::from(token);
        *kept = Some(AuthToken { value: value.clone(), refresh_at: now + left / 2 });
        Ok(value)
    }

    /// Adds the credentials.
    fn identify(&self, metadata: &mut MetadataMap) {
        for (name, text) in [
            ("x-modal-client-type", CLIENT_TYPE),
            ("x-modal-client-version", CLIENT_VERSION),
            ("x-modal-python-version", PYTHON_VERSION),
        ] {
            metadata.insert(name, MetadataValue::from_static(text));
        }
        for (name, text, is_secret) in [
            ("x-modal-token-id", self.access.token_id.as_str(), false),
            ("x-modal-token-secret", self.access.token_secret.expose_secret(), true),
        ] {
            // Without a valid value the server refuses the call, and says that there are no credentials.
            if let Ok(value) = value(text, is_secret) {
                metadata.insert(name, value);
            }
        }
    }
}

/// The error of a call that was not sent, because another had no answer.
fn not_sent(error: CloudError) -> CloudError {
    match error {
        CloudError::Unanswered(text) => CloudError::Busy { text, retry_after: None },
        error => error,
    }
}

/// A value of metadata.
pub(super) fn value(text: &str, is_secret: bool) -> Result<MetadataValue<Ascii>, CloudError> {
    let invalid = || {
        CloudError::Unauthorized(
            "a key contains characters that are not allowed in an HTTP header".to_owned(),
        )
    };
    let mut value = MetadataValue::try_from(text).map_err(|_| invalid())?;
    value.set_sensitive(is_secret);
    Ok(value)
}

/// Opens a connection.
pub(super) async fn connect(url: &str) -> Result<Channel, String> {
    let open = async {
        let mut endpoint = Endpoint::from_shared(url.to_owned())?
            .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))?
            .connect_timeout(CONNECT)
            .http2_keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .tcp_nodelay(true);
        if url.starts_with("https://") {
            endpoint = endpoint.tls_config(ClientTlsConfig::new().with_native_roots())?;
        }
        endpoint.connect().await
    };
    open.await.map_err(|error: tonic::transport::Error| format!("cannot connect to {url}: {}", chain(&error)))
}

/// Makes a call.
pub(super) async fn unary<Q, A>(
    channel: &Channel,
    path: &'static str,
    request: Request<Q>,
) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = ready(channel).await?;
    let path = PathAndQuery::from_static(path);
    Ok(grpc.unary(request, path, ProstCodec::<Q, A>::default()).await?.into_inner())
}

/// Opens a stream of answers.
pub(super) async fn server_stream<Q, A>(
    channel: &Channel,
    path: &'static str,
    request: Request<Q>,
) -> Result<Streaming<A>, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = ready(channel).await?;
    let path = PathAndQuery::from_static(path);
    Ok(grpc.server_streaming(request, path, ProstCodec::<Q, A>::default()).await?.into_inner())
}

async fn ready(channel: &Channel) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
    grpc.ready().await.map_err(|error| Status::unavailable(chain(&error)))?;
    Ok(grpc)
}

/// Formats 32 hexadecimal digits as a UUID.
pub(super) fn uuid(hex: &str) -> String {
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

/// When a token ends, as far as it says so. The signature is the server's business.
fn expiry(jwt: &str) -> Option<SystemTime> {
    let payload = lenient_base64::decode(jwt.split('.').nth(1)?)?;
    let payload: serde_json::Value = serde_json::from_slice(&payload).ok()?;
    let seconds = payload.get("exp")?.as_f64().filter(|seconds| (0.0..1e11).contains(seconds))?;
    Some(UNIX_EPOCH + Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_token_is_read() {
        // {"exp": 1800000000}
        let end = expiry("e30.eyJleHAiOiAxODAwMDAwMDAwfQ.x").unwrap();
        assert_eq!(end.duration_since(UNIX_EPOCH).unwrap().as_secs(), 1_800_000_000);
        for odd in ["", "a.b.c", "e30.e30.x", "e30.eyJleHAiOiAtMX0.x"] {
            assert_eq!(expiry(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_key_becomes_a_uuid() {
        assert_eq!(uuid("00112233445566778899aabbccddeeff"), "00112233-4455-6677-8899-aabbccddeeff");
    }
}
