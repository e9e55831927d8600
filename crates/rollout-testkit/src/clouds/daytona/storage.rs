//! The storage of the fake, in the protocol of Amazon S3: uploads, in one part or several, with checked signatures.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{Request, body::Incoming, http::request::Parts};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::state::DaytonaState;
use crate::{
    clouds::server::{Answer, CutHere, bytes_answer},
    kubernetes::query::Query,
};

const ACCESS_KEY: &str = "ASIAFAKE";
const SECRET: &str = "the-secret-of-the-storage";
const SESSION: &str = "the-session-of-the-storage";
const BUCKET: &str = "daytona-volume-builds";

/// The answer to a request for permission to upload.
pub(super) fn access(url: &str, organization: &str) -> Value {
    json!({
        "accessKey": ACCESS_KEY,
        "secret": SECRET,
        "sessionToken": SESSION,
        "storageUrl": format!("{url}/storage"),
        "organizationId": organization,
        "bucket": BUCKET,
        "region": "us-east-2",
    })
}

/// The path of a build context.
pub(super) fn path(organization: &str, hash: &str) -> String {
    format!("/storage/{BUCKET}/{organization}/{hash}/context.tar")
}

/// Answers a request.
pub(super) async fn answer(state: &DaytonaState, request: Request<Incoming>) -> Result<Answer, CutHere> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| CutHere)?.to_bytes();
    if let Err(reason) = check(&head, &body) {
        return Ok(xml(
            403,
            &format!("<Error><Code>SignatureDoesNotMatch</Code><Message>{reason}</Message></Error>"),
        ));
    }
    let path = head.uri.path().to_owned();
    let query = Query::parse(head.uri.query().unwrap_or_default());
    let mut objects = state.objects();
    Ok(match (head.method.as_str(), query.get("uploads"), query.get("uploadId"), query.get("partNumber")) {
        ("HEAD", ..) => match objects.get(&path) {
            Some(object) => {
                let mut answer = xml(200, "");
                let headers = answer.headers_mut();
                headers.insert("content-length", object.len().into());
                headers.insert("etag", "\"tag\"".parse().map_err(|_| CutHere)?);
                let date = "Wed, 18 Nov 2026 00:00:00 GMT";
                headers.insert("last-modified", date.parse().map_err(|_| CutHere)?);
                answer
            }
            None => xml(404, ""),
        },
        ("POST", Some(_), ..) => xml(
            200,
            "<InitiateMultipartUploadResult><UploadId>upload</UploadId></InitiateMultipartUploadResult>",
        ),
        ("PUT", _, upload, part) => {
            let name = match (upload, part.and_then(|part| part.parse::<u32>().ok())) {
                (Some(_), Some(part)) => format!("{path}?{part:05}"),
                _ => path,
            };
            objects.insert(name, body);
            tagged()
        }
        ("POST", _, Some(_), _) => {
            let mut parts: Vec<String> =
                objects.keys().filter(|name| name.starts_with(&format!("{path}?"))).cloned().collect();
            parts.sort();
            let whole: Vec<u8> = parts.iter().filter_map(|part| objects.remove(part)).flatten().collect();
            objects.insert(path, whole.into());
            xml(200, "<CompleteMultipartUploadResult><ETag>tag</ETag></CompleteMultipartUploadResult>")
        }
        _ => xml(405, ""),
    })
}

fn xml(status: u16, text: &str) -> Answer {
    bytes_answer(status, "application/xml", text.to_owned())
}

fn tagged() -> Answer {
    let mut answer = xml(200, "");
    answer.headers_mut().insert("etag", hyper::header::HeaderValue::from_static("\"tag\""));
    answer
}

/// Checks the signature of a request, version 4.
fn check(head: &Parts, body: &Bytes) -> Result<(), String> {
    let header = |name: &str| {
        head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim).unwrap_or_default()
    };
    let content = header("x-amz-content-sha256");
    if content != "UNSIGNED-PAYLOAD" && content != hex(&Sha256::digest(body)) {
        return Err("the hash of the content differs".to_owned());
    }
    if header("x-amz-security-token") != SESSION {
        return Err("the session is unknown".to_owned());
    }
    let sent = header("authorization").strip_prefix("AWS4-HMAC-SHA256 ").ok_or("another method")?;
    let field = |name: &str| {
        sent.split(',')
            .find_map(|field| field.trim().strip_prefix(name)?.strip_prefix('='))
            .unwrap_or_default()
    };
    let (key, scope) = field("Credential").split_once('/').ok_or("no credential")?;
    if key != ACCESS_KEY {
        return Err("the key is unknown".to_owned());
    }
    let names = field("SignedHeaders");
    let lines: String = names.split(';').map(|name| format!("{name}:{}\n", header(name))).collect();
    let mut query: Vec<String> = head.uri.query().unwrap_or_default().split('&').map(str::to_owned).collect();
    query.sort();
    let query: Vec<String> = query
        .into_iter()
        .filter(|pair| !pair.is_empty())
        .map(|pair| if pair.contains('=') { pair } else { format!("{pair}=") })
        .collect();
    let request =
        format!("{}\n{}\n{}\n{lines}\n{names}\n{content}", head.method, head.uri.path(), query.join("&"));
    let text = format!(
        "AWS4-HMAC-SHA256\n{}\n{scope}\n{}",
        header("x-amz-date"),
        hex(&Sha256::digest(request.as_bytes()))
    );
    let secret = format!("AWS4{SECRET}").into_bytes();
    let signing = scope.split('/').fold(secret, |key, part| hmac(&key, part.as_bytes()));
    match field("Signature") == hex(&hmac(&signing, text.as_bytes())) {
        true => Ok(()),
        false => Err("the signature differs".to_owned()),
    }
}

/// HMAC with SHA-256, for keys of at most a block.
fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let pad = |byte: u8| -> Vec<u8> { (0..64).map(|at| key.get(at).copied().unwrap_or(0) ^ byte).collect() };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
