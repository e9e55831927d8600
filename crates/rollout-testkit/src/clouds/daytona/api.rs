//! The API of Daytona, and which part of it a request concerns.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use hyper::{Request, body::Incoming};
use serde_json::{Value, json};

use super::{KEY, ORGANIZATION, sandboxes, snapshots, state::DaytonaState, storage, toolbox};
use crate::{
    clouds::{
        faults::{CloudCall, CloudTrouble},
        server::{Answer, CutHere, json_answer, with_trouble},
    },
    kubernetes::query::Query,
};

/// A request.
pub(super) struct Call {
    pub(super) method: String,
    /// The parts of the path.
    pub(super) path: Vec<String>,
    pub(super) query: Query,
    pub(super) body: Value,
}

/// The status and the body of an answer.
pub(super) type Reply = (u16, Value);

/// Answers a request to the API or to a toolbox.
pub(super) async fn answer(state: &Arc<DaytonaState>, request: Request<Incoming>) -> Result<Answer, CutHere> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| CutHere)?.to_bytes();
    let call = Call {
        method: head.method.as_str().to_owned(),
        path: head.uri.path().split('/').skip(1).map(str::to_owned).collect(),
        query: Query::parse(head.uri.query().unwrap_or_default()),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    };
    if head.headers.get("authorization").is_none_or(|sent| *sent != format!("Bearer {KEY}")) {
        return Ok(reply(&failure(401, "Invalid credentials")));
    }
    if call.words() == ["logs", call.part(1)] {
        return Ok(snapshots::log(state, call.part(1)).await);
    }
    let trouble = call.kind().and_then(|kind| state.faults.meet(kind, state.live().len()));
    let pretend = || reply(&(200, json!({})));
    with_trouble(trouble, refuse, pretend, async { reply(&handle(state, &call).await) }).await
}

impl Call {
    fn words(&self) -> Vec<&str> {
        self.path.iter().map(String::as_str).collect()
    }

    pub(super) fn part(&self, index: usize) -> &str {
        self.path.get(index).map(String::as_str).unwrap_or_default()
    }

    /// What a request asks of a cloud. Requests to toolboxes count as questions for the state.
    fn kind(&self) -> Option<CloudCall> {
        Some(match (self.method.as_str(), self.words().as_slice()) {
            ("GET", ["api", "sandbox"]) => CloudCall::List,
            ("POST", ["api", "sandbox"]) => CloudCall::Create,
            ("GET", ["api", "sandbox", _]) | (_, ["toolbox", ..]) => CloudCall::State,
            ("DELETE", ["api", "sandbox", _]) => CloudCall::Delete,
            ("GET", ["api", "object-storage", "push-access"]) | ("POST", ["api", "snapshots"]) => {
                CloudCall::Image
            }
            _ => return None,
        })
    }
}

fn reply((status, body): &Reply) -> Answer {
    json_answer(*status, body)
}

/// An error as the API writes it.
pub(super) fn failure(status: u16, message: &str) -> Reply {
    (status, json!({"statusCode": status, "message": message, "source": "DAYTONA_API"}))
}

fn refuse(trouble: CloudTrouble) -> Answer {
    let (status, message) = match trouble {
        CloudTrouble::Busy(_) => (429, "ThrottlerException: Too Many Requests"),
        CloudTrouble::Unauthorized => (401, "Invalid credentials"),
        CloudTrouble::Refusal => (403, "Forbidden resource"),
        CloudTrouble::Quota => (400, "Total CPU limit exceeded. Maximum allowed: 10."),
        _ => (503, "Service Unavailable"),
    };
    let mut answer = reply(&failure(status, message));
    if let CloudTrouble::Busy(Some(seconds)) = trouble {
        // Daytona adds the name of the limit to the header.
        answer.headers_mut().insert("retry-after-sandbox-create", seconds.into());
    }
    answer
}

async fn handle(state: &Arc<DaytonaState>, call: &Call) -> Reply {
    match call.words().as_slice() {
        ["api", "object-storage", "push-access"] => (200, storage::access(&state.url, ORGANIZATION)),
        ["api", "snapshots", ..] => snapshots::handle(state, call),
        ["api", "sandbox", ..] => sandboxes::handle(state, call).await,
        ["toolbox", id, rest @ ..] => toolbox::handle(state, id, rest, call).await,
        _ => failure(404, "Cannot find this page"),
    }
}
