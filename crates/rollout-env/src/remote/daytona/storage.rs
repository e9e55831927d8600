//! Uploads build contexts to the storage of Daytona, which speaks the protocol of Amazon S3.

use std::path::Path;

use jiff::Timestamp;
use reqwest::{Body, Method, Url};
use rollout_core::text::hex;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};
use tokio_util::io::ReaderStream;

use super::{super::CloudError, api::Api};

/// The hash of no content.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// How long an upload may take.
const UPLOAD: std::time::Duration = std::time::Duration::from_secs(1800);

/// Permission to upload, for a short time.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PushAccess {
    access_key: String,
    #[serde(deserialize_with = "secret")]
    secret: SecretString,
    #[serde(deserialize_with = "secret")]
    session_token: SecretString,
    storage_url: String,
    organization_id: String,
    bucket: String,
    #[serde(default = "usual_region")]
    region: String,
}

fn secret<'de, D: Deserializer<'de>>(value: D) -> Result<SecretString, D::Error> {
    String::deserialize(value).map(SecretString::from)
}

fn usual_region() -> String {
    "us-east-1".to_owned()
}

/// A file with its hash.
pub(super) struct Archive<'a> {
    pub(super) path: &'a Path,
    pub(super) size: u64,
    pub(super) sha256: String,
}

/// The headers of a request, by name.
type Headers = Vec<(&'static str, String)>;

impl PushAccess {
    /// Asks for permission.
    pub(super) async fn get(api: &Api) -> Result<Self, CloudError> {
        api.get("/object-storage/push-access").await
    }

    /// Whether a context is stored already.
    pub(super) async fn has(&self, api: &Api, hash: &str) -> Result<bool, CloudError> {
        let (url, headers) = self.signed("HEAD", hash, EMPTY)?;
        let mut request = api.plain(Method::HEAD, url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        match api.send(request, "the search for a build context").await {
            Ok(_) => Ok(true),
            Err(CloudError::Missing(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Stores a context.
    pub(super) async fn put(&self, api: &Api, hash: &str, archive: &Archive<'_>) -> Result<(), CloudError> {
        let (url, headers) = self.signed("PUT", hash, &archive.sha256)?;
        let file = tokio::fs::File::open(archive.path).await;
        let file =
            file.map_err(|error| CloudError::Refused(format!("cannot read a build context: {error}")))?;
        let mut request = api.plain(Method::PUT, url).timeout(UPLOAD);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request
            .header("content-length", archive.size)
            .header("content-type", "application/x-tar")
            .body(Body::wrap_stream(ReaderStream::new(file)));
        api.send(request, "the upload of a build context").await.map(drop)
    }

    /// The address of a context, and the headers of a request to it.
    fn signed(&self, method: &str, hash: &str, content: &str) -> Result<(Url, Headers), CloudError> {
        let invalid =
            |why: String| CloudError::Refused(format!("the storage of Daytona has no address: {why}"));
        let path = format!("{}/{}/{hash}/context.tar", self.bucket, self.organization_id);
        let url = format!("{}/{}", self.storage_url.trim_end_matches('/'), encoded(&path));
        let url = Url::parse(&url).map_err(|error| invalid(error.to_string()))?;
        let host = url.host_str().ok_or_else(|| invalid("no host".to_owned()))?;
        let host = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let time = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let token = self.session_token.expose_secret();
        let authorization = self.authorization(method, url.path(), &host, content, &time, token);
        let mut headers = vec![
            ("authorization", authorization),
            ("x-amz-content-sha256", content.to_owned()),
            ("x-amz-date", time),
        ];
        if !token.is_empty() {
            headers.push(("x-amz-security-token", token.to_owned()));
        }
        Ok((url, headers))
    }

    /// The signature of a request, version 4.
    fn authorization(
        &self,
        method: &str,
        path: &str,
        host: &str,
        content: &str,
        time: &str,
        token: &str,
    ) -> String {
        let day = time.split('T').next().unwrap_or_default();
        let mut names = "host;x-amz-content-sha256;x-amz-date".to_owned();
        let mut lines = format!("host:{host}\nx-amz-content-sha256:{content}\nx-amz-date:{time}\n");
        if !token.is_empty() {
            names.push_str(";x-amz-security-token");
            lines.push_str(&format!("x-amz-security-token:{token}\n"));
        }
        let request = format!("{method}\n{path}\n\n{lines}\n{names}\n{content}");
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&Sha256::digest(request)));
        let first = format!("AWS4{}", self.secret.expose_secret());
        let key = [day, &self.region, "s3", "aws4_request"]
            .iter()
            .fold(first.into_bytes(), |key, part| hmac(&key, part.as_bytes()).to_vec());
        let signature = hex(&hmac(&key, text.as_bytes()));
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.access_key
        )
    }
}

/// HMAC of RFC 2104 with SHA-256.
fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    const BLOCK: usize = 64;
    let mut padded = [0; BLOCK];
    if key.len() > BLOCK {
        padded[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        padded[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(padded.map(|byte| byte ^ 0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(padded.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

/// A path as S3 signs it.
fn encoded(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(byte.into())
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hmac_is_that_of_rfc_4231() {
        let of = |key: &[u8], text: &[u8]| hex(&hmac(key, text));
        assert_eq!(
            of(b"Jefe", b"what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            of(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn secrets_are_not_sent_and_change_the_signature() {
        let access = |secret: &str| PushAccess {
            access_key: "id".to_owned(),
            secret: secret.to_owned().into(),
            session_token: "session".to_owned().into(),
            storage_url: "http://127.0.0.1:9000/".to_owned(),
            organization_id: "org".to_owned(),
            bucket: "a bucket".to_owned(),
            region: "eu".to_owned(),
        };
        let (url, headers) = access("first").signed("PUT", "hash", EMPTY).unwrap();
        assert_eq!(url.as_str(), "http://127.0.0.1:9000/a%20bucket/org/hash/context.tar");
        assert!(!format!("{headers:?}").contains("first"));
        let sign = |secret| access(secret).authorization("GET", "/", "h", EMPTY, "20260101T000000Z", "");
        assert_ne!(sign("first"), sign("second"));
        assert!(sign("first").contains("Credential=id/20260101/eu/s3/aws4_request"));
    }
}
