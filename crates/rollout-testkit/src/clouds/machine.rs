//! What all fakes share: images that the native engine builds, and machines that run in its sandboxes.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rollout_sandbox::{
    EngineOptions, Image, Network, RunningSandbox, SandboxEngine, SandboxLimits, SandboxSpec,
    build::{BaseImageError, BaseImages, BuildRequest, LogSink, build},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, join},
    net::TcpStream,
};

use crate::piped::{self, Piped, ProcessSettings, StartFailure};

/// Images whose names contain this do not exist. All others are the programs of the host.
const MISSING: &str = "absent";

/// The images and machines of a fake cloud.
pub(crate) struct CloudHost {
    engine: SandboxEngine,
    dir: PathBuf,
    images: Mutex<HashMap<String, Image>>,
}

/// The size and network of a machine. A limit of `None` is not enforced.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MachineLimits {
    pub(crate) cpus_millis: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) no_network: bool,
}

impl CloudHost {
    /// Starts the engine in a directory, with its images in another one if they are shared with other fakes. `helper` is an executable that calls
    /// [`helper_main`](rollout_sandbox::helper_main).
    ///
    /// # Panics
    ///
    /// If sandboxes cannot be used on this machine.
    pub(crate) async fn start(helper: PathBuf, dir: PathBuf, shared: Option<PathBuf>) -> Self {
        let state_dir = shared.unwrap_or_else(|| dir.join("state"));
        let options = EngineOptions { helper, state_dir };
        let engine = SandboxEngine::start(options).await.expect("start the sandboxes");
        Self { engine, dir, images: Mutex::default() }
    }

    /// The engine, for images of registries and archives.
    pub(crate) fn engine(&self) -> &SandboxEngine {
        &self.engine
    }

    /// A new directory, for the files of a build.
    pub(crate) fn scratch(&self) -> io::Result<tempfile::TempDir> {
        tempfile::Builder::new().prefix("build-").tempdir_in(&self.dir)
    }

    /// Builds the `Dockerfile` of a directory under a name, and returns the log. Base images are the names of earlier
    /// builds, or the programs of the host.
    pub(crate) async fn build(&self, name: &str, context: &Path) -> Result<String, BuildFailure> {
        let log = context.with_extension("log");
        let failed = |text: String| BuildFailure {
            log: std::fs::read_to_string(&log).unwrap_or_default(),
            message: text,
        };
        let request = BuildRequest {
            context,
            dockerfile: &context.join("Dockerfile"),
            no_cache: None,
            network: Network::Host,
            limits: SandboxLimits::default(),
            log: LogSink::append(&log).map_err(|error| failed(error.to_string()))?,
        };
        let built = build(&self.engine, request, self).await.map_err(|error| failed(words(&error)))?;
        self.add_image(name, built.image);
        Ok(std::fs::read_to_string(&log).unwrap_or_default())
    }

    /// Adds an image under a name.
    pub(crate) fn add_image(&self, name: &str, image: Image) {
        self.images.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), image);
    }

    /// Finds an image by its name.
    pub(crate) fn image(&self, name: &str) -> Option<Image> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Starts a machine from an image.
    pub(crate) async fn boot(
        &self,
        name: &str,
        image: Image,
        limits: MachineLimits,
    ) -> Result<CloudMachine, String> {
        let network = if limits.no_network { Network::None } else { Network::Host };
        let spec = SandboxSpec {
            name: name.to_owned(),
            image: image.clone(),
            network,
            limits: SandboxLimits {
                cpus_millis: limits.cpus_millis,
                memory_bytes: limits.memory_bytes,
                ..SandboxLimits::default()
            },
            private_dirs: Vec::new(),
            hosts: Vec::new(),
        };
        let sandbox = self.engine.create(spec).await.map_err(|error| words(&error))?;
        Ok(CloudMachine { sandbox: Arc::new(sandbox), image, network })
    }
}

impl BaseImages for CloudHost {
    async fn resolve(&self, reference: &str) -> Result<Image, BaseImageError> {
        if let Some(image) = self.image(reference) {
            return Ok(image);
        }
        if reference.contains(MISSING) {
            return Err(BaseImageError::Unmapped { reference: reference.to_owned() });
        }
        self.engine.host_image().await.map_err(BaseImageError::Host)
    }
}

/// A build that failed.
#[derive(Debug)]
pub(crate) struct BuildFailure {
    /// The output of the steps.
    pub(crate) log: String,
    pub(crate) message: String,
}

/// A machine that runs. It ends when the last copy is dropped.
#[derive(Clone)]
pub(crate) struct CloudMachine {
    sandbox: Arc<RunningSandbox>,
    image: Image,
    network: Network,
}

impl CloudMachine {
    /// Starts a process with the variables, the directory and the user of the image, unless others are given.
    pub(crate) async fn exec(
        &self,
        argv: Vec<String>,
        env: &[(String, String)],
        cwd: Option<&str>,
        user: Option<&str>,
        with_stdin: bool,
    ) -> Result<Piped, StartFailure> {
        let config = self.image.config();
        let mut variables: Vec<(String, String)> =
            config.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        variables.extend(env.iter().cloned());
        let settings = ProcessSettings {
            env: variables,
            cwd: cwd.map_or_else(|| config.workdir.clone(), str::to_owned),
            user: user.map_or_else(|| config.user.clone(), |user| Some(user.to_owned())),
        };
        piped::start(&self.sandbox, argv, settings, with_stdin).await
    }

    /// Connects to a port inside.
    pub(crate) async fn connect(&self, port: u16) -> io::Result<Box<dyn MachineStream>> {
        if self.network == Network::Host {
            return Ok(Box::new(TcpStream::connect(("127.0.0.1", port)).await?));
        }
        // The network of the machine can only be reached from inside.
        let relay = format!("exec 3<>/dev/tcp/127.0.0.1/{port} || exit; cat <&3 & cat >&3; kill $!");
        let argv = ["bash", "-c", &relay].map(str::to_owned).to_vec();
        let started = self.exec(argv, &[], Some("/"), Some("0"), true).await;
        let mut piped = started.map_err(|(_, message)| io::Error::other(message))?;
        let stdin = piped.stdin.take().ok_or_else(|| io::Error::other("the relay has no input"))?;
        Ok(Box::new(join(Relay { output: piped.stdout, _process: piped.process }, stdin)))
    }

    /// Kills all processes inside.
    pub(crate) async fn kill(&self) {
        // An error means that the sandbox is gone.
        let _ = self.sandbox.kill_all().await;
    }
}

/// A stream to a port of a machine.
pub(crate) trait MachineStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> MachineStream for T {}

/// The output of a relay, with its process.
struct Relay {
    output: tokio::net::unix::pipe::Receiver,
    _process: rollout_sandbox::SandboxProcess,
}

impl AsyncRead for Relay {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.output).poll_read(context, buffer)
    }
}

/// An error with its causes.
fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
