//! Commands in a sandbox: the router of a machine.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
};

use futures_util::{Stream, stream};
use rollout_sandbox::{ExitStatus, SandboxProcess};
use tokio::{
    io::AsyncWriteExt as _,
    net::unix::pipe,
    sync::{Mutex, watch},
};
use tonic::{Status, Streaming};

use super::{
    messages::{
        Data, Empty, ExecEnd, ExecRequest, ExecStart, ExecStatus, SecretSource, StdinPart, StdinStatus,
        StdinStream, StdinWrite,
    },
    output::Output,
    state::{ModalState, Sandbox},
};

/// A command.
pub(super) struct Exec {
    stdin: Mutex<Stdin>,
    stdout: Arc<Output>,
    stderr: Arc<Output>,
    end: watch::Receiver<Option<ExecStatus>>,
    /// The bytes of output after which the stream is cut.
    cut: std::sync::Mutex<Option<u64>>,
}

struct Stdin {
    pipe: Option<pipe::Sender>,
    written: u64,
}

/// The variables that a request has.
pub(super) fn variables(env: HashMap<String, String>, sources: Vec<SecretSource>) -> Vec<(String, String)> {
    let of_sources = sources.into_iter().filter_map(|source| source.env).flat_map(|env| env.contents);
    env.into_iter().chain(of_sources).collect()
}

/// Starts a command. `cut` is the fault of its output.
pub(super) async fn start(sandbox: &Sandbox, request: ExecStart, cut: Option<u64>) -> Result<Empty, Status> {
    let machine = sandbox.machine().ok_or_else(|| Status::not_found("the task has ended"))?;
    // The same id is the same command.
    if sandbox.exec(&request.exec_id).is_some() {
        return Ok(Empty {});
    }
    let env = variables(request.env, request.secret_sources);
    let started = machine.exec(request.command, &env, request.workdir.as_deref(), None, true).await;
    let piped = started.map_err(|(_, message)| Status::invalid_argument(message))?;
    let (stdout, stderr) = (Arc::new(Output::default()), Arc::new(Output::default()));
    let (ended, end) = watch::channel(None);
    for (output, pipe) in [(Arc::clone(&stdout), piped.stdout), (Arc::clone(&stderr), piped.stderr)] {
        tokio::spawn(async move { output.fill(pipe).await });
    }
    tokio::spawn(wait(piped.process, ended));
    let exec = Exec {
        stdin: Mutex::new(Stdin { pipe: piped.stdin, written: 0 }),
        stdout,
        stderr,
        end,
        cut: std::sync::Mutex::new(cut),
    };
    sandbox.add_exec(request.exec_id, Arc::new(exec));
    Ok(Empty {})
}

async fn wait(mut process: SandboxProcess, ended: watch::Sender<Option<ExecStatus>>) {
    let status = match process.wait().await.map(|exit| exit.status) {
        Ok(ExitStatus::Code(code)) => ExecStatus::Code(code),
        Ok(ExitStatus::Signal(signal)) => ExecStatus::Signal(signal),
        // The machine ended.
        Err(_) => ExecStatus::Signal(9),
    };
    ended.send_replace(Some(status));
}

impl Exec {
    /// Writes input at a position. What was written before is skipped.
    async fn write(&self, offset: u64, data: &[u8], eof: bool) -> Result<(), Status> {
        let mut stdin = self.stdin.lock().await;
        let Some(skipped) = stdin.written.checked_sub(offset) else {
            return Err(Status::out_of_range(format!("the input has {} bytes", stdin.written)));
        };
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        if let Some(new) = data.get(skipped..).filter(|new| !new.is_empty()) {
            let pipe =
                stdin.pipe.as_mut().ok_or_else(|| Status::failed_precondition("the input is closed"))?;
            pipe.write_all(new)
                .await
                .map_err(|_| Status::failed_precondition("the command reads no input"))?;
            stdin.written += new.len() as u64;
        }
        if eof {
            stdin.pipe = None;
        }
        Ok(())
    }

    fn output(&self, file: i32) -> Arc<Output> {
        Arc::clone(if file == 1 { &self.stderr } else { &self.stdout })
    }
}

impl ModalState {
    fn exec(&self, task_id: &str, exec_id: &str) -> Result<Arc<Exec>, Status> {
        let sandbox = self.sandbox_of_task(task_id)?;
        sandbox.exec(exec_id).ok_or_else(|| Status::not_found(format!("there is no command {exec_id}")))
    }

    pub(super) async fn exec_write(&self, request: StdinWrite) -> Result<Empty, Status> {
        let exec = self.exec(&request.task_id, &request.exec_id)?;
        exec.write(request.offset, &request.data, request.eof).await?;
        Ok(Empty {})
    }

    pub(super) async fn exec_write_stream(&self, mut parts: Streaming<StdinStream>) -> Result<Empty, Status> {
        let first = parts.message().await?.and_then(|first| first.part);
        let Some(StdinPart::Start(start)) = first else {
            return Err(Status::invalid_argument("the first part names the command"));
        };
        let exec = self.exec(&start.task_id, &start.exec_id)?;
        let mut offset = start.offset;
        while let Some(part) = parts.message().await? {
            match part.part {
                Some(StdinPart::Data(data)) => {
                    exec.write(offset, &data, false).await?;
                    offset += data.len() as u64;
                }
                Some(StdinPart::End(Empty {})) => exec.write(offset, &[], true).await?,
                Some(StdinPart::Start(_)) | None => {
                    return Err(Status::invalid_argument("a part without input"));
                }
            }
        }
        Ok(Empty {})
    }

    pub(super) async fn exec_stdin_status(&self, request: ExecRequest) -> Result<StdinStatus, Status> {
        let exec = self.exec(&request.task_id, &request.exec_id)?;
        let stdin = exec.stdin.lock().await;
        Ok(StdinStatus { written: stdin.written, closed: stdin.pipe.is_none() })
    }

    pub(super) async fn exec_read(
        &self,
        request: ExecRequest,
    ) -> Result<impl Stream<Item = Result<Data, Status>> + Send + 'static, Status> {
        let exec = self.exec(&request.task_id, &request.exec_id)?;
        let output = exec.output(request.file);
        let cut = exec.cut.lock().unwrap_or_else(PoisonError::into_inner).take();
        let lost = || Status::unavailable("the test cuts the stream here");
        // The position, and the bytes that are left before the cut; `None` when the stream has ended.
        let state = Some((request.offset, cut));
        Ok(stream::unfold(state, move |state| {
            let output = Arc::clone(&output);
            async move {
                let (from, left) = state?;
                if left == Some(0) {
                    return Some((Err(lost()), None));
                }
                let mut data = output.read(from).await?;
                if let Some(left) = left {
                    data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                }
                let count = data.len() as u64;
                Some((Ok(Data { data }), Some((from + count, left.map(|left| left - count)))))
            }
        }))
    }

    pub(super) async fn exec_wait(&self, request: ExecRequest) -> Result<ExecEnd, Status> {
        let mut end = self.exec(&request.task_id, &request.exec_id)?.end.clone();
        let status =
            end.wait_for(Option::is_some).await.map_err(|_| Status::internal("the command is lost"))?;
        Ok(ExecEnd { status: *status })
    }

    pub(super) async fn exec_poll(&self, request: ExecRequest) -> Result<ExecEnd, Status> {
        let exec = self.exec(&request.task_id, &request.exec_id)?;
        let status = *exec.end.borrow();
        Ok(ExecEnd { status })
    }
}
