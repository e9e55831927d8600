//! What an error of Modal's API means.

use std::time::Duration;

use prost::Message as _;
use rollout_core::text::chain;
use secrecy::{ExposeSecret as _, SecretString};
use tonic::{Code, Status};

use super::{
    super::backend::CloudError,
    messages::{RpcRetryPolicy, RpcStatus},
};

/// The longest hint that is believed.
const LONGEST_HINT: Duration = Duration::from_secs(3600);

/// The shortest pause that a hint means.
const SHORTEST_HINT: Duration = Duration::from_millis(100);

/// What an error means. `secret` is taken out of its text.
pub(super) fn failure(path: &str, status: &Status, secret: &SecretString) -> CloudError {
    let call = path.rsplit('/').next().unwrap_or(path);
    let message = match std::error::Error::source(status) {
        // The client's own errors have a general message, and the reason as their cause.
        Some(cause) => format!("{}: {}", status.message(), chain(&cause)),
        None => status.message().to_owned(),
    };
    let text = format!("{call} failed with {}: {message}", name(status.code()));
    let text = text.replace(secret.expose_secret(), "***");
    if let Some(hint) = retry_after(status.details()) {
        return CloudError::Busy { text, retry_after: Some(hint) };
    }
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => CloudError::Unauthorized(text),
        Code::NotFound => CloudError::Missing(text),
        Code::ResourceExhausted if is_rate(status.message()) => CloudError::Busy { text, retry_after: None },
        Code::ResourceExhausted => CloudError::Quota(text),
        // Names are made for one creation: an earlier attempt has succeeded.
        Code::AlreadyExists => CloudError::Unanswered(text),
        // The server may have done it before the error.
        Code::Cancelled | Code::DeadlineExceeded | Code::Internal | Code::Unavailable | Code::Unknown => {
            CloudError::Unanswered(text)
        }
        _ => CloudError::Refused(text),
    }
}

/// Whether a message is about a rate, which falls by itself, and not about a quota.
fn is_rate(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["rate", "/s", "per second", "too many requests", "throttl"].iter().any(|word| message.contains(word))
}

/// How long the server asks to wait.
fn retry_after(details: &[u8]) -> Option<Duration> {
    let status = RpcStatus::decode(details).ok()?;
    let policy = status.details.iter().find(|any| any.type_url.ends_with("modal.client.RPCRetryPolicy"))?;
    let seconds = RpcRetryPolicy::decode(policy.value.as_slice()).ok()?.retry_after_secs;
    let hint = Duration::try_from_secs_f32(seconds).unwrap_or_default();
    Some(hint.clamp(SHORTEST_HINT, LONGEST_HINT))
}

/// The name of a code in the documentation of gRPC.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::{super::messages::Any, *};

    fn of(status: &Status) -> CloudError {
        failure("/modal.client.ModalClient/SandboxCreateV2", status, &SecretString::from("as-secret"))
    }

    #[test]
    fn codes_mean_what_the_client_of_modal_makes_of_them() {
        for (code, message, expected) in [
            (Code::Unauthenticated, "", "Unauthorized"),
            (Code::NotFound, "", "Missing"),
            (Code::ResourceExhausted, "rate limit of 5/s", "Busy"),
            (Code::ResourceExhausted, "the workspace has 100 sandboxes", "Quota"),
            (Code::Unavailable, "", "Unanswered"),
            (Code::Internal, "", "Unanswered"),
            (Code::AlreadyExists, "", "Unanswered"),
            (Code::InvalidArgument, "", "Refused"),
            (Code::FailedPrecondition, "", "Refused"),
        ] {
            let error = format!("{:?}", of(&Status::new(code, message)));
            assert!(error.starts_with(expected), "{code:?} is {error}");
        }
    }

    #[test]
    fn a_hint_to_wait_is_followed_whatever_the_code() {
        let policy = RpcRetryPolicy { retry_after_secs: 2.5 }.encode_to_vec();
        let any = Any { type_url: "type.modal.com/modal.client.RPCRetryPolicy".to_owned(), value: policy };
        let details = RpcStatus { details: vec![any] }.encode_to_vec();
        let status = Status::with_details(Code::ResourceExhausted, "slow down", details.into());
        let CloudError::Busy { retry_after, text } = of(&status) else { panic!("not busy") };
        assert_eq!(retry_after, Some(Duration::from_millis(2500)));
        assert_eq!(text, "SandboxCreateV2 failed with RESOURCE_EXHAUSTED: slow down");
    }

    #[test]
    fn the_secret_is_in_no_text() {
        let error = of(&Status::invalid_argument("the secret as-secret is odd"));
        assert!(!error.to_string().contains("as-secret"), "{error}");
    }
}
