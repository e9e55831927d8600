//! A Dockerfile with its files, and builds of it.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use rollout_sandbox::build::{BuildRequest, Built, FreshLayers, HostImages, ImageBuildError, LogSink, build};
use rollout_sandbox::{Network, SandboxEngine, SandboxLimits, SandboxSpec};

use crate::common::{Host, out};

/// A build context and a log.
pub(crate) struct Project {
    pub(crate) dir: Dir,
    pub(crate) network: Network,
}

/// A directory of this test, or of the test that started this process.
pub(crate) enum Dir {
    Own(tempfile::TempDir),
    Given(PathBuf),
}

impl Dir {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Dir::Own(dir) => dir.path(),
            Dir::Given(dir) => dir,
        }
    }
}

impl Project {
    pub(crate) fn new(dockerfile: &str) -> Project {
        let project = Project { dir: Dir::Own(tempfile::tempdir().unwrap()), network: Network::None };
        project.write("Dockerfile", dockerfile);
        project
    }

    /// The project in the directory of another process.
    pub(crate) fn open(dir: &Path) -> Project {
        Project { dir: Dir::Given(dir.to_owned()), network: Network::None }
    }

    pub(crate) fn context(&self) -> PathBuf {
        self.dir.path().join("environment")
    }

    pub(crate) fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.context().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) async fn build_with(
        &self,
        engine: &SandboxEngine,
        no_cache: Option<&FreshLayers>,
    ) -> Result<Built, ImageBuildError> {
        let request = BuildRequest {
            context: &self.context(),
            dockerfile: &self.context().join("Dockerfile"),
            no_cache,
            network: self.network,
            limits: SandboxLimits::default(),
            log: LogSink::append(&self.dir.path().join("log")).unwrap(),
        };
        build(
            engine,
            request,
            &HostImages::new(engine.clone(), vec!["base".to_owned(), "other:*".to_owned()]),
        )
        .await
    }

    pub(crate) async fn build(&self, host: &Host) -> Result<Built, ImageBuildError> {
        self.build_with(&host.engine, None).await
    }

    /// Builds the image and runs a script in it.
    pub(crate) async fn look(&self, host: &Host, script: &str) -> String {
        let built = self.build(host).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
        look(host, &built, script).await
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

/// Runs a script in a built image.
pub(crate) async fn look(host: &Host, built: &Built, script: &str) -> String {
    let spec = SandboxSpec { image: built.image.clone(), ..host.spec().await };
    let sandbox = host.engine.create(spec).await.unwrap();
    let seen = out(&sandbox, script).await;
    sandbox.destroy().await.unwrap();
    seen
}

/// An error with its causes, as a user reads it.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
