//! A provider that wraps another one and measures the time of every call.

use std::{
    future::Future,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use rollout::environment::{
    CopyMode, CopyOut, CopyReport, Environment, EnvironmentError, EnvironmentSpec, Exec, Exit, Facts,
    FileChange, FileRead, ImageRequest, PreparedImage, Provider,
};

/// A kind of call, with its durations.
type Calls = (&'static str, Vec<Duration>);

/// The durations of the calls so far, in the order in which each kind was first made.
#[derive(Debug, Clone, Default)]
pub struct Times(Arc<Mutex<Vec<Calls>>>);

impl Times {
    /// Every kind of call with its durations.
    pub fn take(&self) -> Vec<(&'static str, Vec<Duration>)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn of<T>(&self, call: &'static str, work: impl Future<Output = T>) -> T {
        let from = Instant::now();
        let done = work.await;
        let took = from.elapsed();
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match times.iter_mut().find(|(known, _)| *known == call) {
            Some((_, taken)) => taken.push(took),
            None => times.push((call, vec![took])),
        }
        done
    }
}

/// Forwards every call and measures its duration.
pub struct TimedProvider {
    inner: Arc<dyn Provider>,
    times: Times,
}

impl TimedProvider {
    /// Measures the calls of this provider.
    pub fn new(inner: Arc<dyn Provider>) -> (Self, Times) {
        let times = Times::default();
        (Self { inner, times: times.clone() }, times)
    }
}

struct TimedEnvironment {
    inner: Box<dyn Environment>,
    times: Times,
}

#[async_trait]
impl Provider for TimedProvider {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        self.times.of("prepare", self.inner.prepare(request)).await
    }

    async fn create(&self, spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        let inner = self.times.of("create", self.inner.create(spec)).await?;
        Ok(Box::new(TimedEnvironment { inner, times: self.times.clone() }))
    }

    async fn snapshot(&self, key: &str) -> Result<Option<PreparedImage>, EnvironmentError> {
        self.times.of("find snapshot", self.inner.snapshot(key)).await
    }

    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        self.times.of("reopen", self.inner.reopen(place)).await
    }

    async fn settle(&self) -> Vec<String> {
        self.inner.settle().await
    }
}

#[async_trait]
impl Environment for TimedEnvironment {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn facts(&self) -> Facts {
        self.inner.facts()
    }

    fn isolates_verifier(&self) -> bool {
        self.inner.isolates_verifier()
    }

    async fn copy_to(&self, source: &Path, target: &str, mode: CopyMode) -> Result<(), EnvironmentError> {
        self.times.of("copy_to", self.inner.copy_to(source, target, mode)).await
    }

    async fn write_file(&self, path: &str, content: &[u8]) -> Result<(), EnvironmentError> {
        self.times.of("write_file", self.inner.write_file(path, content)).await
    }

    async fn copy_from(&self, copy: CopyOut<'_>) -> Result<CopyReport, EnvironmentError> {
        self.times.of("copy_from", self.inner.copy_from(copy)).await
    }

    async fn read_file(&self, path: &str, max_bytes: u64) -> Result<FileRead, EnvironmentError> {
        self.times.of("read_file", self.inner.read_file(path, max_bytes)).await
    }

    async fn make_dirs(&self, paths: &[&str], empty: bool) -> Result<(), EnvironmentError> {
        self.times.of("make_dirs", self.inner.make_dirs(paths, empty)).await
    }

    async fn link(&self, target: &str, link: &str) -> Result<(), EnvironmentError> {
        self.times.of("link", self.inner.link(target, link)).await
    }

    async fn exec(&self, command: Exec<'_>) -> Result<Exit, EnvironmentError> {
        self.times.of("exec", self.inner.exec(command)).await
    }

    async fn exec_on_terminal(&self, argv: &[&str], terminal: OwnedFd) -> Result<Exit, EnvironmentError> {
        self.times.of("exec_on_terminal", self.inner.exec_on_terminal(argv, terminal)).await
    }

    async fn offer(&self, service: SocketAddr) -> Result<u16, EnvironmentError> {
        self.times.of("offer", self.inner.offer(service)).await
    }

    async fn snapshot(&self, key: &str) -> Result<(), EnvironmentError> {
        self.times.of("snapshot", self.inner.snapshot(key)).await
    }

    async fn survivors(&self) -> Result<Vec<String>, EnvironmentError> {
        self.times.of("survivors", self.inner.survivors()).await
    }

    async fn kill_all(&self) -> Result<(), EnvironmentError> {
        self.times.of("kill_all", self.inner.kill_all()).await
    }

    async fn hold(&self) -> Result<bool, EnvironmentError> {
        self.times.of("hold", self.inner.hold()).await
    }

    async fn watch(&self, tree: &str, files: &[&str]) -> Result<bool, EnvironmentError> {
        self.times.of("watch", self.inner.watch(tree, files)).await
    }

    async fn changes(&self) -> Result<Vec<FileChange>, EnvironmentError> {
        self.times.of("changes", self.inner.changes()).await
    }

    fn cost(&self) -> f64 {
        self.inner.cost()
    }

    async fn destroy(self: Box<Self>) -> Result<(), EnvironmentError> {
        let Self { inner, times } = *self;
        times.of("destroy", inner.destroy()).await
    }

    async fn preserve(self: Box<Self>) -> Result<String, EnvironmentError> {
        let Self { inner, times } = *self;
        times.of("preserve", inner.preserve()).await
    }
}
