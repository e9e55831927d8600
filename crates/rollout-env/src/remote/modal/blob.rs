//! Uploads large files to the storage that Modal names.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use md5::{Digest as _, Md5};

use super::{
    super::backend::CloudError,
    client::{Call, Client},
    messages::{BlobCreateRequest, BlobCreateResponse},
};

/// Files of this size are uploaded separately.
pub(super) const LARGE: usize = 4 << 20;

/// Files of this size would need an upload in parts.
const TOO_LARGE: usize = 1 << 30;

/// How long an upload may take.
const UPLOAD: Duration = Duration::from_secs(1800);

/// Uploads a file, and returns its id.
pub(super) async fn upload(
    client: &Client,
    sha256: &[u8; 32],
    content: Vec<u8>,
) -> Result<String, CloudError> {
    if content.len() >= TOO_LARGE {
        let text = "the build context has a file of 1 GiB or more, which is not supported with Modal";
        return Err(CloudError::Build(text.to_owned()));
    }
    let md5 = STANDARD.encode(Md5::digest(&content));
    let request = BlobCreateRequest {
        content_md5: md5.clone(),
        content_sha256_base64: STANDARD.encode(sha256),
        content_length: content.len() as i64,
    };
    let call = Call::plain("/modal.client.ModalClient/BlobCreate");
    let answer: BlobCreateResponse = client.call(&call, request).await?;
    let places = places(answer);
    let mut problem = "Modal returned no upload address for a large file".to_owned();
    let http = reqwest::Client::new();
    for (url, blob_id) in places {
        let sent = http
            .put(&url)
            .timeout(UPLOAD)
            .header("Content-MD5", &md5)
            .header("Content-Type", "application/octet-stream")
            .body(content.clone())
            .send()
            .await;
        // The address is a secret: it allows everyone to write.
        match sent {
            Ok(answer) if answer.status().is_success() => return Ok(blob_id),
            Ok(answer) => problem = format!("the storage refuses a large file with {}", answer.status()),
            Err(error) => problem = format!("cannot upload a large file: {}", error.without_url()),
        }
    }
    Err(CloudError::Busy { text: problem, retry_after: None })
}

/// The addresses to try, in order, with the ids that the file gets there.
fn places(answer: BlobCreateResponse) -> Vec<(String, String)> {
    match answer.upload_urls {
        Some(urls) => urls.items.into_iter().zip(answer.blob_ids).collect(),
        None if answer.upload_url.is_empty() => Vec::new(),
        None => vec![(answer.upload_url, answer.blob_id)],
    }
}

#[cfg(test)]
mod tests {
    use super::{super::messages::UploadUrlList, *};

    #[test]
    fn the_places_of_an_answer_are_tried_in_order() {
        let urls = ["u1", "u2"].map(str::to_owned).to_vec();
        let answer = BlobCreateResponse {
            blob_ids: ["b1", "b2"].map(str::to_owned).to_vec(),
            upload_urls: Some(UploadUrlList { items: urls }),
            ..BlobCreateResponse::default()
        };
        let pair = |url: &str, id: &str| (url.to_owned(), id.to_owned());
        assert_eq!(places(answer), [pair("u1", "b1"), pair("u2", "b2")]);
        let answer =
            BlobCreateResponse { upload_url: "u".to_owned(), blob_id: "b".to_owned(), ..Default::default() };
        assert_eq!(places(answer), [pair("u", "b")]);
        assert!(places(BlobCreateResponse::default()).is_empty());
    }
}
