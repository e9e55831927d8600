//! Commands in a sandbox, through the router of the machine that it runs on.

use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    task::JoinHandle,
    time::Duration,
};
use tonic::{Request, Status, transport::Channel};

use super::{
    client::{connect, server_stream, unary, uuid, value},
    messages::{
        Empty, PIPE, RouterAccess, TaskExecStartRequest, TaskExecStdinWriteRequest, TaskExecStdioReadRequest,
        TaskExecStdioReadResponse,
    },
};
use crate::guest::GuestStream;

/// How long a call may take.
const CALL: Duration = Duration::from_secs(60);

/// The bytes that wait in each direction.
const BUFFER: usize = 256 << 10;

/// The most bytes of a call.
const CHUNK: usize = 256 << 10;

/// The router of a sandbox.
#[derive(Clone)]
pub(super) struct Router {
    channel: Channel,
    task_id: String,
    jwt: SecretString,
}

impl Router {
    /// Connects to the router. `plain` permits a connection that is not encrypted.
    pub(super) async fn connect(access: RouterAccess, task_id: String, plain: bool) -> Result<Self, String> {
        if !(access.url.starts_with("https://") || plain && access.url.starts_with("http://")) {
            return Err(format!("the address of the sandbox's machine is not encrypted: {}", access.url));
        }
        let channel = connect(&access.url).await?;
        Ok(Self { channel, task_id, jwt: access.jwt.into() })
    }

    /// Starts a command whose standard streams are the connection.
    pub(super) async fn start(&self, command: Vec<String>) -> Result<GuestStream, Status> {
        let id = super::super::random_hex()
            .map_err(|error| Status::failed_precondition(format!("cannot create a command id: {error}")))?;
        let exec_id = uuid(&id);
        let start = TaskExecStartRequest {
            task_id: self.task_id.clone(),
            exec_id: exec_id.clone(),
            command_args: command,
            stdout_config: PIPE,
            workdir: Some("/".to_owned()),
        };
        let path = "/modal.task_command_router.TaskCommandRouter/TaskExecStart";
        let _: Empty = unary(&self.channel, path, self.request(start, Some(CALL))?).await?;
        let (reader, output) = duplex(BUFFER);
        let (writer, input) = duplex(BUFFER);
        let reading = tokio::spawn(self.clone().read(exec_id.clone(), output));
        // It ends with the writer.
        tokio::spawn(self.clone().write(exec_id, input));
        Ok(GuestStream {
            reader: Box::new(reader),
            writer: Box::new(writer),
            guard: Box::new(Reading(reading)),
        })
    }

    /// Carries the output of a command. The stream is opened here, because a server may send nothing at all before the
    /// first output.
    async fn read(self, exec_id: String, mut output: DuplexStream) {
        let read = async {
            let task_id = self.task_id.clone();
            let request = self.request(TaskExecStdioReadRequest { task_id, exec_id, offset: 0 }, None)?;
            let path = "/modal.task_command_router.TaskCommandRouter/TaskExecStdioRead";
            let mut parts = server_stream(&self.channel, path, request).await?;
            while let Some(TaskExecStdioReadResponse { data }) = parts.message().await? {
                if output.write_all(&data).await.is_err() {
                    break;
                }
            }
            Ok::<(), Status>(())
        };
        if let Err(status) = read.await {
            tracing::debug!(%status, "the output of a command was lost");
        }
    }

    /// Carries the input of a command, in calls that name its position.
    async fn write(self, exec_id: String, mut input: DuplexStream) {
        let mut buffer = vec![0; CHUNK];
        let mut offset = 0;
        loop {
            // An error means that the writer is gone.
            let count = input.read(&mut buffer).await.unwrap_or(0);
            let message = TaskExecStdinWriteRequest {
                task_id: self.task_id.clone(),
                exec_id: exec_id.clone(),
                offset,
                data: buffer[..count].to_vec(),
                eof: count == 0,
            };
            let path = "/modal.task_command_router.TaskCommandRouter/TaskExecStdinWrite";
            let written: Result<Empty, Status> = match self.request(message, Some(CALL)) {
                Ok(request) => unary(&self.channel, path, request).await,
                Err(status) => Err(status),
            };
            if let Err(status) = written {
                if count > 0 {
                    tracing::debug!(%status, "the input of a command was lost");
                }
                return;
            }
            if count == 0 {
                return;
            }
            offset += count as u64;
        }
    }

    fn request<Q>(&self, message: Q, limit: Option<Duration>) -> Result<Request<Q>, Status> {
        let mut request = Request::new(message);
        let bearer = value(&format!("Bearer {}", self.jwt.expose_secret()), true);
        let bearer = bearer.map_err(|error| Status::unauthenticated(error.to_string()))?;
        request.metadata_mut().insert("authorization", bearer);
        if let Some(limit) = limit {
            request.set_timeout(limit);
        }
        Ok(request)
    }
}

/// The task that reads. It ends with the connection.
struct Reading(JoinHandle<()>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.abort();
    }
}
