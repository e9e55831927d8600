//! The two traits that every provider implements, and the data that passes through them.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use rollout_core::{
    quantity::{Bytes, Cpus},
    redact::Redactor,
};
pub use rollout_guest::FileChangeKind;

use crate::{log::LogWriter, trouble};

/// Makes environments of one kind.
#[async_trait]
pub trait Provider: Send + Sync {
    /// The word for it in job files and records.
    fn name(&self) -> &'static str;

    /// Its name with the choices that were made for the job, for people.
    fn description(&self) -> String {
        self.name().to_owned()
    }

    /// What a reader should know once about this provider on this machine, such as limits that it
    /// cannot enforce.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Finds what will keep an image from being made, as far as that can be known without making it. Blocks.
    fn check_image(&self, context: &Path, docker_image: Option<&str>) -> Result<(), ImageProblem> {
        let _ = (context, docker_image);
        Ok(())
    }

    /// Builds or fetches the task's image, once per content however many trials ask at a time.
    ///
    /// Dropping the future stops the work unless somebody else waits for the same image.
    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError>;

    /// Starts an environment.
    async fn create(&self, spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError>;

    /// Finds the image that [`Environment::snapshot`] made under a key.
    async fn snapshot(&self, key: &str) -> Result<Option<PreparedImage>, EnvironmentError>;

    /// Opens an environment that [`Environment::preserve`] left, by the place it named.
    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError>;

    /// Waits until everything is gone that it removes in the background, so that a job does not end before.
    async fn settle(&self) {}
}

/// What to say where an image is to be built and there is no Dockerfile.
pub(crate) fn no_dockerfile(path: &Path, docker_image: Option<&str>) -> String {
    let path = path.display();
    match docker_image {
        Some(image) => {
            format!(
                "there is no {path}, which `force_build` needs: write one, or remove `force_build` to use {image}"
            )
        }
        None => format!(
            "there is no {path}: write one, or name an image as environment.docker_image in task.toml"
        ),
    }
}

/// Why an image cannot be made, known before anybody tried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageProblem {
    /// The provider does not know an image of this name.
    #[error("{0}")]
    Unknown(String),
    /// The Dockerfile cannot be built.
    #[error("{0}")]
    Dockerfile(String),
}

/// Who asks for an image or an environment, for the labels of what is made.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The job's name.
    pub job: &'a str,
    /// The trial, as events name it.
    pub trial: &'a str,
}

/// What a provider needs to know to make an image.
#[derive(Debug, Clone, Copy)]
pub struct ImageRequest<'a> {
    /// Who asks.
    pub origin: Origin<'a>,
    /// Where the Dockerfile lies, with what it copies. Requests with the same context share one build.
    pub context: &'a Path,
    /// A prebuilt image, used instead of the Dockerfile.
    pub docker_image: Option<&'a str>,
    /// Builds from the Dockerfile without cache, also where the task names an image.
    pub force_build: bool,
    /// Where the build log goes, if something is built. Its directory may have to be made.
    pub log: &'a Path,
}

/// What the environments of one task are made from.
#[derive(Debug, Clone)]
pub struct EnvironmentTemplate {
    /// Names the task.
    pub name: String,
    /// Where its Dockerfile lies, with what that copies.
    pub context: PathBuf,
    /// A prebuilt image, used instead of the Dockerfile.
    pub docker_image: Option<String>,
    /// The longest time for making the image.
    pub build_timeout: Duration,
    /// CPUs wanted.
    pub cpus: Cpus,
    /// Memory wanted.
    pub memory: Bytes,
    /// Storage wanted.
    pub storage: Bytes,
}

/// An image that can be started.
#[derive(Debug, Clone)]
pub struct PreparedImage {
    /// Names the image for [`Provider::create`] and for the record: by content where possible.
    pub reference: String,
}

/// What a provider needs to know to start an environment.
#[derive(Debug, Clone, Copy)]
pub struct EnvironmentSpec<'a> {
    /// Who asks.
    pub origin: Origin<'a>,
    /// The image to start.
    pub image: &'a PreparedImage,
    /// A readable name, unique among the running environments of this process.
    pub name: &'a str,
    /// CPUs wanted.
    pub cpus: Cpus,
    /// Memory wanted.
    pub memory: Bytes,
    /// Storage wanted.
    pub storage: Bytes,
    /// Names of other hosts, each with its address, that resolve inside.
    pub hosts: &'a [(String, String)],
    /// Directories of which the verifier's commands and the file operations have their own, empty at first, that the
    /// agent's processes cannot reach, where the provider can do that.
    pub private_dirs: &'a [&'a str],
}

/// A running container.
///
/// Paths inside are absolute and resolved inside, so no link in there leads to the host.
#[async_trait]
pub trait Environment: Send + Sync {
    /// The provider's identifier, for people and for `attach`.
    fn id(&self) -> &str;

    /// The network it has, and the limits that really hold.
    fn facts(&self) -> Facts;

    /// Whether the agent's processes can reach neither the private directories nor the verifier's processes.
    fn isolates_verifier(&self) -> bool {
        false
    }

    /// Where other environments of its provider reach it over the network; `None` where they cannot.
    async fn address(&self) -> Result<Option<String>, EnvironmentError> {
        Ok(None)
    }

    /// Copies a host file, or the content of a host directory, to a path inside.
    async fn copy_to(&self, source: &Path, target: &str, mode: CopyMode) -> Result<(), EnvironmentError>;

    /// Writes an executable file inside, making its directory.
    async fn write_file(&self, path: &str, content: &[u8]) -> Result<(), EnvironmentError>;

    /// Copies the content of a directory inside into a host directory.
    ///
    /// What exists on the host already is kept. What cannot be copied safely is left out and named, and of a file that
    /// is too long the middle is. Secrets are masked before anything is written.
    async fn copy_from(&self, copy: CopyOut<'_>) -> Result<CopyReport, EnvironmentError>;

    /// Reads a regular file inside, without following a link at its end.
    async fn read_file(&self, path: &str, max_bytes: u64) -> Result<FileRead, EnvironmentError>;

    /// Makes sure that these directories exist. With `empty`, whatever was there before is gone.
    async fn make_dirs(&self, paths: &[&str], empty: bool) -> Result<(), EnvironmentError>;

    /// Makes a link inside, unless a file or directory is there already.
    async fn link(&self, target: &str, link: &str) -> Result<(), EnvironmentError>;

    /// Runs a command to its end or its deadline, at which every process it started is killed. So they are when the
    /// future is dropped.
    ///
    /// Output streams into the writers; processes that outlive the command keep writing there.
    async fn exec(&self, command: Exec<'_>) -> Result<Exit, EnvironmentError>;

    /// Runs a command on a terminal, for a person. The descriptor is the terminal's inner side.
    async fn exec_on_terminal(&self, argv: &[&str], terminal: OwnedFd) -> Result<Exit, EnvironmentError>;

    /// Keeps the files as they are now as an image, for [`Provider::snapshot`] to find by the key. Where there
    /// is one already, that one stays.
    async fn snapshot(&self, key: &str) -> Result<(), EnvironmentError>;

    /// The commands of the processes running inside; where the verifier is isolated, of the agent's processes.
    async fn survivors(&self) -> Result<Vec<String>, EnvironmentError>;

    /// Ends every process inside, or where the verifier is isolated the agent's, also those that keep starting others.
    async fn kill_all(&self) -> Result<(), EnvironmentError>;

    /// Stops every process inside until [`watch`](Self::watch), so that files can be put in place unseen.
    ///
    /// `false` where the provider cannot do that.
    async fn hold(&self) -> Result<bool, EnvironmentError> {
        Ok(false)
    }

    /// Watches the files that are in a directory now, and others that may appear, and lets processes that were
    /// [held](Self::hold) go on.
    ///
    /// `false` where the provider cannot do that: then tests are compared with their originals, and nothing is known
    /// about who wrote a reward.
    async fn watch(&self, tree: &str, files: &[&str]) -> Result<bool, EnvironmentError> {
        let _ = (tree, files);
        Ok(false)
    }

    /// What was done to the files that are [watched](Self::watch), whoever did it. Ends the watch.
    async fn changes(&self) -> Result<Vec<FileChange>, EnvironmentError> {
        Ok(Vec::new())
    }

    /// What it has cost so far, in US dollars.
    fn cost(&self) -> f64;

    /// Stops it and removes everything it used.
    async fn destroy(self: Box<Self>) -> Result<(), EnvironmentError>;

    /// Leaves it for a person to look at, and says where it is.
    async fn preserve(self: Box<Self>) -> Result<String, EnvironmentError>;
}

/// What a result records about an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The network it has.
    pub network: String,
    /// The limits that really hold.
    pub enforced: serde_json::Value,
}

/// Whether a copy adds to what is there or takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyMode {
    /// Adds to it.
    Merge,
    /// Removes what is there first.
    Replace,
}

/// A copy out of an environment.
#[derive(Debug, Clone, Copy)]
pub struct CopyOut<'a> {
    /// The directory inside.
    pub source: &'a str,
    /// The directory of the host.
    pub target: &'a Path,
    /// A directory right below `source` that is copied before the rest, with limits of its own, so that nothing
    /// beside it can use them up.
    pub first: Option<&'a str>,
    /// Masks secrets, in names too.
    pub redactor: &'a Redactor,
}

/// What a copy out of an environment left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CopyReport {
    /// Paths that stayed inside, each with the reason.
    pub skipped: Vec<String>,
}

/// What was found where a file was to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileRead {
    /// A regular file, whole.
    Content(Vec<u8>),
    /// Nothing.
    Missing,
    /// A link, directory, pipe or device.
    NotRegular,
    /// A regular file of more bytes than asked for.
    TooLarge(u64),
}

/// What was done to a file that is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// The file.
    pub path: String,
    /// What was done to it,
    pub kind: FileChangeKind,
    /// and how often.
    pub count: u32,
}

/// A command to run inside an environment.
pub struct Exec<'a> {
    /// Whose command it is.
    pub role: CommandRole,
    /// The program and its arguments.
    pub argv: &'a [&'a str],
    /// Variables beside those of the image.
    pub env: &'a [(String, String)],
    /// Ends the command and all it started. None: no deadline.
    pub deadline: Option<Duration>,
    /// Where its standard output goes.
    pub stdout: LogWriter,
    /// Where its standard error goes.
    pub stderr: LogWriter,
}

/// Whose command it is: a provider that nests keeps the agent's processes away from the verifier's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandRole {
    /// The agent's, or that of a tool it uses.
    Agent,
    /// The verifier's.
    Verifier,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// By itself, by a signal, or by its deadline.
    pub outcome: Outcome,
    /// Whether the memory limit killed a process of the environment meanwhile.
    pub oom_killed: bool,
}

/// By what a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// Its deadline passed.
    TimedOut,
}

/// What can go wrong with an environment, by what it means for a trial.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EnvironmentError {
    /// The image cannot be built: trying again gives the same.
    #[error("{0}")]
    Build(String),
    /// The build failed on the network.
    #[error("{0}")]
    BuildNetwork(String),
    /// The image cannot be fetched.
    #[error("{0}")]
    Pull(String),
    /// The image is not to be had at all: trying again gives the same.
    #[error("{0}")]
    NoImage(String),
    /// The environment does not start.
    #[error("{0}")]
    Start(String),
    /// The environment cannot start with these settings: trying again gives the same.
    #[error("{0}")]
    Refused(String),
    /// The machine cannot give what was asked for.
    #[error("{0}")]
    Resources(String),
    /// The disk that holds the environment is full. Space is freed when other environments end.
    #[error("{0}")]
    DiskFull(String),
    /// A command could not be started inside: a program, directory or user is missing there.
    #[error("{0}")]
    Command(String),
    /// A transfer or call to a running environment failed, or the environment went away.
    #[error("{0}")]
    Lost(String),
    /// What ran inside ended the environment, by using up its memory for example. Trying again would give it another
    /// chance.
    #[error("{0}")]
    Ended(String),
    /// It cannot be stopped or removed.
    #[error("{0}")]
    Teardown(String),
}

impl EnvironmentError {
    /// A build that failed with this at the end of its output: [`BuildNetwork`](Self::BuildNetwork) if a command
    /// in there says that the network failed it, else [`Build`](Self::Build).
    pub fn of_build(output: String) -> Self {
        if trouble::is_network_trouble(&output) { Self::BuildNetwork(output) } else { Self::Build(output) }
    }
}
