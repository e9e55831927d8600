//! The calls of the fake, with the checks and faults that come before them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use prost::Message as _;
use tokio::net::TcpListener;
use tonic::{Code, Status, body::Body};

use super::{
    build::BUILDER,
    exec,
    grpc::{client_stream, refused, server_stream, unary},
    messages::{
        Any, AppGetOrCreate, Empty, EnvironmentAnswer, EnvironmentMetadata, ExecStart, RetryPolicy,
        RouterAccess, RpcStatus, SandboxCreated, SandboxListAnswer, SandboxTerminated, SandboxWait,
        SandboxWaited, TERMINATED, TagsAnswer, TagsSet, TaskIdAnswer, Text,
    },
    state::{ModalState, Sandbox, lock},
};
use crate::clouds::{
    faults::{CloudCall, CloudTrouble},
    server::CutHere,
};

/// The credentials.
pub(super) const TOKEN_ID: &str = "ak-fake0000000000000000000";
pub(super) const TOKEN_SECRET: &str = "as-fake1111111111111111111";

/// Serves until it is dropped.
pub(super) async fn serve(listener: TcpListener, state: Arc<ModalState>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        // Small messages of streams are sent at once.
        let _ = stream.set_nodelay(true);
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&state), request));
            // HTTP/2 for gRPC, and HTTP/1.1 for uploads. An error means that the client disconnected.
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// Answers a request. An error resets its stream.
async fn answer(state: Arc<ModalState>, request: Request<Incoming>) -> Result<Response<Body>, CutHere> {
    let path = request.uri().path().to_owned();
    if let Some(id) = path.strip_prefix("/blobs/") {
        return Ok(upload(&state, id, request).await);
    }
    if let Err(status) = check(&state, &path, &request) {
        return Ok(refused(status));
    }
    let call = kind(&path);
    let trouble = call.and_then(|call| state.faults.meet(call, state.live_count()));
    match trouble {
        Some(CloudTrouble::Slow(time)) => tokio::time::sleep(time).await,
        Some(CloudTrouble::LoseRequest) => return Err(CutHere),
        Some(CloudTrouble::LoseAnswer) => {
            drop(handle(&state, &path, request, None).await);
            return Err(CutHere);
        }
        Some(CloudTrouble::Ignore) => {
            return Ok(unary(request, async |_: Empty| Ok(Empty {})).await);
        }
        Some(CloudTrouble::CutStream(after)) => {
            return Ok(handle(&state, &path, request, Some(after)).await);
        }
        Some(trouble) => return Ok(refused(failure(trouble))),
        None => {}
    }
    Ok(handle(&state, &path, request, None).await)
}

/// The kind of a call, as far as it can fail.
fn kind(path: &str) -> Option<CloudCall> {
    Some(match path.rsplit('/').next()? {
        "ImageGetOrCreate" => CloudCall::Image,
        "SandboxCreateV2" => CloudCall::Create,
        "SandboxWaitV2" => CloudCall::State,
        "SandboxListV2" | "AuthTokenGet" => CloudCall::List,
        "TaskExecStart" => CloudCall::Stream,
        "SandboxTerminateV2" => CloudCall::Delete,
        _ => return None,
    })
}

/// The error of a fault.
fn failure(trouble: CloudTrouble) -> Status {
    match trouble {
        CloudTrouble::Busy(None) => Status::resource_exhausted("Rate limit of 5/s exceeded"),
        CloudTrouble::Busy(Some(seconds)) => {
            let policy = RetryPolicy { retry_after_secs: seconds as f32 }.encode_to_vec();
            let any =
                Any { type_url: "type.modal.com/modal.client.RPCRetryPolicy".to_owned(), value: policy };
            let (code, message) = (Code::ResourceExhausted, "slow down");
            let details = RpcStatus { code: code.into(), message: message.to_owned(), details: vec![any] };
            Status::with_details(code, message, Bytes::from(details.encode_to_vec()))
        }
        CloudTrouble::Unauthorized => Status::unauthenticated("Token ID or secret is malformed"),
        CloudTrouble::Refusal => Status::failed_precondition("the workspace does not allow this"),
        CloudTrouble::Quota => Status::resource_exhausted("the workspace has its maximum of sandboxes"),
        _ => Status::unavailable("the server has a fault"),
    }
}

/// Checks what each request must have.
fn check(state: &ModalState, path: &str, request: &Request<Incoming>) -> Result<(), Status> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let call = path.rsplit('/').next().unwrap_or_default();
    if path.starts_with("/modal.task_command_router.TaskCommandRouter/") {
        let jwt = header("authorization").strip_prefix("Bearer ").unwrap_or_default();
        return match state.is_router_token(jwt) {
            true => Ok(()),
            false => Err(Status::unauthenticated("the token of the router is invalid")),
        };
    }
    if header("x-modal-token-id") != TOKEN_ID || header("x-modal-token-secret") != TOKEN_SECRET {
        return Err(Status::unauthenticated("Token missing or invalid"));
    }
    let client = ["x-modal-client-type", "x-modal-client-version", "x-modal-python-version"];
    if client.iter().any(|name| header(name).is_empty()) {
        return Err(Status::failed_precondition("the version of the client is not supported"));
    }
    let is_about_sandboxes = call.starts_with("Sandbox");
    if is_about_sandboxes && header("x-modal-auth-token") != state.token {
        return Err(Status::unauthenticated("x-modal-auth-token is missing or invalid"));
    }
    if is_about_sandboxes && header("x-idempotency-key").len() != 36 {
        return Err(Status::invalid_argument("x-idempotency-key is missing"));
    }
    Ok(())
}

/// Stores an uploaded file.
async fn upload(state: &ModalState, id: &str, request: Request<Incoming>) -> Response<Body> {
    let md5 =
        request.headers().get("content-md5").and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
    let content = request.into_body().collect().await.map(|body| body.to_bytes().to_vec());
    let is_stored = content.is_ok_and(|content| state.upload(id, &md5, content));
    let mut answer = Response::new(Body::new(Full::<Bytes>::default()));
    if !is_stored {
        *answer.status_mut() = hyper::StatusCode::FORBIDDEN;
    }
    answer
}

/// Checks the token of a sandbox, if a client has one.
fn sandbox(state: &ModalState, id: &str, token: &str) -> Result<Arc<Sandbox>, Status> {
    let sandbox = state.sandbox(id)?;
    if !token.is_empty() && token != sandbox.token {
        return Err(Status::unauthenticated("x-modal-sandbox-token is invalid"));
    }
    Ok(sandbox)
}

/// Handles a call. `cut` is the fault of a command's output.
async fn handle(
    state: &Arc<ModalState>,
    path: &str,
    request: Request<Incoming>,
    cut: Option<u64>,
) -> Response<Body> {
    let token = request.headers().get("x-modal-sandbox-token").and_then(|value| value.to_str().ok());
    let token = token.unwrap_or_default().to_owned();
    let of = |id: &str| sandbox(state, id, &token);
    match path.rsplit('/').next().unwrap_or_default() {
        "ClientHello" => unary(request, async |_: Empty| Ok(Empty {})).await,
        "AuthTokenGet" => unary(request, async |_: Empty| Ok(Text { text: state.token.clone() })).await,
        "AppGetOrCreate" => unary(request, async |app| find_app(state, app)).await,
        "EnvironmentGetOrCreate" => {
            unary(request, async |name: Text| {
                let settings = Some(Text { text: BUILDER.to_owned() });
                let metadata = EnvironmentMetadata { name: name.text, settings };
                Ok(EnvironmentAnswer { id: "en-1".to_owned(), metadata: Some(metadata) })
            })
            .await
        }
        "SecretGetOrCreate" => unary(request, async |secret| state.secret(&secret)).await,
        "MountBatchedCheckExistence" => unary(request, async |hashes| Ok(state.missing(hashes))).await,
        "MountPutFile" => unary(request, async |file| state.put_file(file)).await,
        "MountGetOrCreate" => unary(request, async |mount| state.mount(mount)).await,
        "BlobCreate" => unary(request, async |blob| state.create_blob(blob)).await,
        "ImageGetOrCreate" => unary(request, async |image| state.image(image)).await,
        "ImageJoinStreaming" => server_stream(request, |join| state.join(join)).await,
        "SandboxCreateV2" => {
            unary(request, async |create| {
                let created: SandboxCreated = state.create(create).await?;
                Ok(created)
            })
            .await
        }
        "SandboxWaitV2" => {
            unary(request, async |wait: SandboxWait| {
                let sandbox = of(&wait.sandbox_id)?;
                let time = Duration::try_from_secs_f32(wait.timeout).unwrap_or_default();
                let result = sandbox.wait(time).await;
                Ok(SandboxWaited { result, metadata: Some(sandbox.metadata()) })
            })
            .await
        }
        "SandboxTerminateV2" => {
            unary(request, async |id: Text| {
                let sandbox = of(&id.text)?;
                let existing_result = sandbox.result();
                sandbox.end(TERMINATED, "", 137).await;
                Ok(SandboxTerminated { existing_result })
            })
            .await
        }
        "SandboxListV2" => {
            unary(request, async |list| {
                let page: SandboxListAnswer = state.page(&list);
                Ok(page)
            })
            .await
        }
        "SandboxTagsGetV2" => {
            unary(request, async |id: Text| Ok(TagsAnswer { tags: lock(&of(&id.text)?.tags).clone() })).await
        }
        "SandboxTagsSetV2" => {
            unary(request, async |set: TagsSet| {
                *lock(&of(&set.sandbox_id)?.tags) = set.tags;
                Ok(Empty {})
            })
            .await
        }
        "SandboxGetTaskIdV2" => {
            unary(request, async |id: Text| {
                let sandbox = of(&id.text)?;
                Ok(TaskIdAnswer { task_id: Some(sandbox.task_id.clone()), task_result: sandbox.result() })
            })
            .await
        }
        "SandboxGetCommandRouterAccess" => {
            unary(request, async |id: Text| {
                let sandbox = of(&id.text)?;
                if sandbox.result().is_some() {
                    return Err(Status::failed_precondition("the Sandbox has ended"));
                }
                let access: RouterAccess = sandbox.access(&state.url);
                Ok(access)
            })
            .await
        }
        "TaskExecStart" => {
            unary(request, async |start: ExecStart| {
                let sandbox = state.sandbox_of_task(&start.task_id)?;
                exec::start(&sandbox, start, cut).await
            })
            .await
        }
        "TaskExecStdinWrite" => unary(request, |write| state.exec_write(write)).await,
        "TaskExecStdinWriteStream" => client_stream(request, |parts| state.exec_write_stream(parts)).await,
        "TaskExecStdinStatus" => unary(request, |exec| state.exec_stdin_status(exec)).await,
        "TaskExecStdioRead" => server_stream(request, |read| state.exec_read(read)).await,
        "TaskExecWait" => unary(request, |exec| state.exec_wait(exec)).await,
        "TaskExecPoll" => unary(request, |exec| state.exec_poll(exec)).await,
        call => refused(Status::unimplemented(format!("the fake has no {call}"))),
    }
}

fn find_app(state: &ModalState, app: AppGetOrCreate) -> Result<Text, Status> {
    let id = state.id("ap");
    let mut known = state.known();
    let key = (app.environment, app.name);
    if let Some(id) = known.apps.get(&key) {
        return Ok(Text { text: id.clone() });
    }
    if app.creation != 1 {
        return Err(Status::not_found(format!("App '{}' not found", key.1)));
    }
    known.apps.insert(key, id.clone());
    Ok(Text { text: id })
}
