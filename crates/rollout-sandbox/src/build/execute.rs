//! Runs the steps of a layer in a sandbox.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::context::{Context, CopyFailure, Selected, open_regular};
use super::download::download;
use super::error::ImageBuildError;
use super::job::{Job, JobError};
use super::log::StageLog;
use super::parse::Location;
use super::plan::{Action, Copy, Invocation, Run, Step};
use super::transfer::{self, Piece};
use crate::blocking::blocking;
use crate::process::Stdio;
use crate::sandbox::RunningSandbox;
use crate::spec::Network;
use crate::tar_stream::{decompressed, is_header, read_start};
use crate::wire::EntryOwners;

/// The path of a `RUN <<EOF` script while it runs.
const SCRIPT: &str = "/.rollout-script";

/// A layer being built.
pub(crate) struct Execution<'a, 'l> {
    pub(crate) sandbox: &'a RunningSandbox,
    pub(crate) context: &'a Arc<Context>,
    /// An existing directory for files on their way into the sandbox.
    pub(crate) scratch: &'a Path,
    pub(crate) network: Network,
    pub(crate) log: &'a mut StageLog<'l>,
    /// Whether files can have owners other than root.
    pub(crate) keep_owners: bool,
}

impl Execution<'_, '_> {
    /// Runs one step; a `COPY --from` takes its files from `other`.
    pub(crate) async fn step(
        &mut self,
        step: &Step,
        other: Option<&RunningSandbox>,
    ) -> Result<(), ImageBuildError> {
        let at = &step.at;
        let done = match &step.action {
            Action::Nothing => Ok(()),
            Action::Run(run) => return self.run(at, run).await,
            Action::MakeDirs { paths, owner } => self.make_dirs(paths, owner.as_deref()).await,
            Action::Copy(copy) => match other {
                Some(other) => transfer::between(other, self.sandbox, copy, self.keep_owners).await,
                None => self.copy(copy).await,
            },
        };
        done.map_err(|source| ImageBuildError::FilesFailed { at: at.clone(), source })
    }

    async fn make_dirs(&self, paths: &[String], owner: Option<&str>) -> Result<(), CopyFailure> {
        for path in paths {
            let made = self.sandbox.make_dirs(path, owner).await;
            made.map_err(|error| transfer::owner_error(error, self.keep_owners))?;
        }
        Ok(())
    }

    async fn run(&mut self, at: &Location, run: &Run) -> Result<(), ImageBuildError> {
        let files = |source| ImageBuildError::FilesFailed { at: at.clone(), source };
        let argv = match &run.command {
            Invocation::Argv(argv) => argv.clone(),
            Invocation::Script(text) => {
                self.put_script(text).await.map_err(files)?;
                vec![SCRIPT.to_owned()]
            }
        };
        let job = Job {
            argv,
            env: run.env.clone(),
            cwd: run.cwd.clone(),
            user: run.user.clone(),
            stdin: Stdio::Null,
        };
        let ended = job.run(self.sandbox, self.log).await.map_err(|error| match error {
            JobError::Exec(source) => ImageBuildError::NotStarted { at: at.clone(), source },
            JobError::Output(source) => ImageBuildError::Log(source),
        })?;
        if !ended.success() {
            let output = ended.tail.text();
            return Err(ImageBuildError::RunFailed { at: at.clone(), exit: ended.exit, output });
        }
        if matches!(run.command, Invocation::Script(_)) {
            self.sandbox.remove(SCRIPT).await.map_err(|error| files(target(error)))?;
        }
        Ok(())
    }

    async fn put_script(&self, text: &str) -> Result<(), CopyFailure> {
        self.sandbox.write_file(SCRIPT, text.as_bytes(), 0o755).await.map_err(target)
    }

    async fn copy(&self, copy: &Copy) -> Result<(), CopyFailure> {
        let (selected, archives) = self.select(copy).await?;
        for archive in archives {
            let owners = if self.keep_owners { EntryOwners::Archive } else { EntryOwners::Root };
            // As in Docker, the owner is that of new directories; the files keep theirs.
            let request = crate::wire::UnpackRequest { owners, ..transfer::request(copy, true, owners) };
            let file = open_regular(&archive).map_err(CopyFailure::io(&archive))?;
            let content = decompressed(file).map_err(CopyFailure::io(&archive))?;
            transfer::archive(content, self.sandbox, request).await?;
        }
        let count = selected.len() + copy.inline.len() + copy.urls.len();
        let into_dir = copy.into_dir || selected.iter().any(|one| one.is_dir);
        if count == 0 {
            return Ok(());
        }
        if count > 1 && !into_dir {
            return Err(CopyFailure::SeveralIntoFile);
        }
        let mut pieces = Vec::new();
        for one in selected {
            let path = if one.is_dir { PathBuf::new() } else { PathBuf::from(&one.name) };
            pieces.push(Piece::Selected(one, path));
        }
        for file in &copy.inline {
            pieces.push(Piece::Text { name: file.name.clone(), text: file.text.clone() });
        }
        for (number, url) in copy.urls.iter().enumerate() {
            let path = self.scratch.join(format!("download-{number}"));
            pieces.push(download(url, copy.checksum.as_deref(), self.network, &path).await?);
        }
        let request = transfer::request(copy, into_dir, EntryOwners::Root);
        transfer::pieces(self.context, pieces, self.sandbox, request, self.keep_owners).await
    }

    /// Finds the files of a copy. Archives to unpack are returned separately.
    async fn select(&self, copy: &Copy) -> Result<(Vec<Selected>, Vec<PathBuf>), CopyFailure> {
        let (context, sources, extract) = (self.context.clone(), copy.sources.clone(), copy.extract);
        blocking(move || {
            let (mut plain, mut archives) = (Vec::new(), Vec::new());
            for source in &sources {
                for selected in context.select(source)? {
                    match extract && !selected.is_dir && is_archive(&selected.path) {
                        true => archives.push(selected.path),
                        false => plain.push(selected),
                    }
                }
            }
            Ok((plain, archives))
        })
        .await
    }
}

/// Whether a file is a tar archive, also a compressed one.
fn is_archive(path: &Path) -> bool {
    let start = open_regular(path).and_then(decompressed).and_then(|mut file| read_start(&mut file, 512));
    start.is_ok_and(|start| is_header(&start))
}

fn target(error: impl std::error::Error + Send + Sync + 'static) -> CopyFailure {
    CopyFailure::Target(Box::new(error))
}
