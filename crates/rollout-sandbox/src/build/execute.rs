//! Runs the steps of a planned stage in a sandbox.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use super::context::{Context, CopyFailure, Selected, open_regular};
use super::error::ImageBuildError;
use super::job::{Job, JobError};
use super::log::Log;
use super::parse::Location;
use super::plan::{Action, Copy, Invocation, Run, Step};
use super::staging::Staging;
use super::transfer::{self, Placement};
use crate::blocking::blocking;
use crate::files::CopyIn;
use crate::process::Stdio;
use crate::sandbox::RunningSandbox;
use rollout_guest::remove::remove_tree;

/// The path of a `RUN <<EOF` script while it runs.
const SCRIPT: &str = "/.rollout-script";

/// A stage being built.
pub(crate) struct Execution<'a> {
    pub(crate) sandbox: &'a RunningSandbox,
    pub(crate) context: &'a Arc<Context>,
    /// An existing directory for files on their way into the sandbox.
    pub(crate) scratch: &'a Path,
    pub(crate) log: &'a mut Log,
    /// Whether files can have owners other than root.
    pub(crate) keep_owners: bool,
}

impl Execution<'_> {
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
            if transfer::is_dir(self.sandbox, path).await? {
                continue;
            }
            self.sandbox.make_dir(path, 0o755, false).await.map_err(target)?;
            if let Some(owner) = owner {
                let chown = Job::script(r#"exec chown -- "$1" "$2""#, &[owner, path]);
                transfer::must_succeed(self.sandbox, chown).await?;
            }
        }
        Ok(())
    }

    async fn run(&mut self, at: &Location, run: &Run) -> Result<(), ImageBuildError> {
        let files = |source| ImageBuildError::FilesFailed { at: at.clone(), source };
        self.make_dirs(&run.mounts, None).await.map_err(files)?;
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
            stdout: None,
        };
        let ended = job.run(self.sandbox, Some(self.log)).await.map_err(|error| match error {
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
        let (file, text) = (self.scratch.join("script"), text.to_owned());
        let to = file.clone();
        blocking(move || write_file(&to, text.as_bytes(), 0o755).map_err(CopyFailure::io(&to))).await?;
        self.copy_in(&file, SCRIPT).await
    }

    async fn copy(&self, copy: &Copy) -> Result<(), CopyFailure> {
        let (mut selected, archives) = self.select(copy).await?;
        for archive in archives {
            if !self.extract(&archive, copy).await? {
                selected.push(archive.selected);
            }
        }
        let count = selected.len() + copy.inline.len();
        let mut into_dir = copy.into_dir || selected.iter().any(|one| one.is_dir);
        if count == 0 {
            return Ok(());
        }
        if count > 1 && !into_dir {
            return Err(CopyFailure::SeveralIntoFile);
        }
        into_dir = into_dir || transfer::is_dir(self.sandbox, &copy.target).await?;
        let staging = self.scratch.join("staging");
        self.stage(copy, selected, &staging, into_dir).await?;
        match (&copy.chown, into_dir) {
            (None, true) => self.copy_in(&staging, &copy.target).await?,
            (None, false) => self.copy_in(&staging.join(ONE), &copy.target).await?,
            (Some(owner), into_dir) => {
                self.sandbox.make_dir(transfer::LANDING, 0o700, true).await.map_err(target)?;
                self.copy_in(&staging, transfer::LANDING).await?;
                let placement = match into_dir {
                    true => Placement::Into(&copy.target),
                    false => Placement::File { name: ONE, path: &copy.target },
                };
                transfer::place(self.sandbox, placement, Some(owner)).await?;
            }
        }
        blocking(move || remove_tree(&staging).map_err(CopyFailure::io(&staging))).await
    }

    /// Finds the files of a copy. Files that look like archives to unpack are returned separately.
    async fn select(&self, copy: &Copy) -> Result<(Vec<Selected>, Vec<Archive>), CopyFailure> {
        let (context, sources, extract) = (self.context.clone(), copy.sources.clone(), copy.extract);
        blocking(move || {
            let (mut plain, mut archives) = (Vec::new(), Vec::new());
            for source in &sources {
                for selected in context.select(source)? {
                    match extract.then(|| Archive::detect(&selected)).flatten() {
                        Some(archive) => archives.push(archive),
                        None => plain.push(selected),
                    }
                }
            }
            Ok((plain, archives))
        })
        .await
    }

    /// Creates the files to copy on the host: the content of a directory, or one file.
    async fn stage(
        &self,
        copy: &Copy,
        selected: Vec<Selected>,
        staging: &Path,
        into_dir: bool,
    ) -> Result<(), CopyFailure> {
        let (context, chmod, staging) = (self.context.clone(), copy.chmod, staging.to_owned());
        let inline: Vec<_> = copy.inline.iter().map(|file| (file.name.clone(), file.text.clone())).collect();
        blocking(move || {
            let mut staged = Staging::create(&staging).map_err(CopyFailure::io(&staging))?;
            for one in &selected {
                let to = match (one.is_dir, into_dir) {
                    (true, _) => Path::new(""),
                    (false, true) => Path::new(&one.name),
                    (false, false) => Path::new(ONE),
                };
                context.stage(one, &mut staged, to, chmod)?;
            }
            for (name, text) in inline {
                let to = Path::new(if into_dir { name.as_str() } else { ONE });
                let write = |mut file: File| {
                    file.write_all(text.as_bytes())?;
                    file.set_permissions(Permissions::from_mode(chmod.unwrap_or(0o644)))
                };
                staged.file(to).and_then(write).map_err(CopyFailure::io(&staging.join(to)))?;
            }
            // The mode of a copied directory must not become the mode of the target.
            staged.finish(chmod.unwrap_or(0o755)).map_err(CopyFailure::io(&staging))
        })
        .await
    }

    /// Unpacks an archive into the target; `false` if the file is not an archive.
    async fn extract(&self, archive: &Archive, copy: &Copy) -> Result<bool, CopyFailure> {
        let path = &archive.selected.path;
        let open = || open_regular(path).map(|file| Stdio::Fd(file.into())).map_err(CopyFailure::io(path));
        let mut probe = Job::script(r#"exec tar "-t$1" - >/dev/null"#, &[archive.flags]);
        probe.stdin = open()?;
        if !transfer::succeeds(self.sandbox, probe).await? {
            return Ok(false);
        }
        self.sandbox.make_dir(transfer::LANDING, 0o700, true).await.map_err(target)?;
        let owners = if self.keep_owners { "--same-owner" } else { "--no-same-owner" };
        let arguments = [archive.flags, owners, transfer::LANDING];
        let mut unpack = Job::script(r#"exec tar "-xp$1" - "$2" -C "$3""#, &arguments);
        unpack.stdin = open()?;
        transfer::must_succeed(self.sandbox, unpack).await?;
        transfer::place(self.sandbox, Placement::Into(&copy.target), copy.chown.as_deref()).await?;
        Ok(true)
    }

    async fn copy_in(&self, from: &Path, to: &str) -> Result<(), CopyFailure> {
        self.sandbox.copy_in(from, to, CopyIn::default()).await.map_err(target)
    }
}

/// The name of a single file while it is staged.
const ONE: &str = "file";

/// A file that looks like an archive, and the flags with which `tar` reads it from stdin.
struct Archive {
    selected: Selected,
    flags: &'static str,
}

impl Archive {
    fn detect(selected: &Selected) -> Option<Archive> {
        if selected.is_dir {
            return None;
        }
        let mut head = Vec::new();
        open_regular(&selected.path).ok()?.take(512).read_to_end(&mut head).ok()?;
        let flags = match head.as_slice() {
            [0x1f, 0x8b, ..] => "zf",
            [b'B', b'Z', b'h', ..] => "jf",
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => "Jf",
            head if head.get(257..262) == Some(b"ustar") => "f",
            _ => return None,
        };
        Some(Archive { selected: selected.clone(), flags })
    }
}

fn target(error: impl std::error::Error + Send + Sync + 'static) -> CopyFailure {
    CopyFailure::Target(Box::new(error))
}

fn write_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    fs::write(path, bytes)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}
