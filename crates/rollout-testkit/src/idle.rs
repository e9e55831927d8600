//! Environments that do nothing, to measure the cost of everything else, environments that stop answering, and
//! environments with a price.

use std::{
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use rollout::environment::{
    CopyMode, CopyOut, CopyReport, Environment, EnvironmentError, EnvironmentSpec, Exec, Exit, Facts,
    FileRead, ImageRequest, Outcome, PreparedImage, Provider,
};

/// Creates environments in which every command succeeds at once and every reward is 1.
#[derive(Debug, Default)]
pub struct IdleProvider;

/// Creates environments that stop answering when a trial is to be verified.
#[derive(Debug, Default)]
pub struct SilentProvider;

/// Creates environments in which the same processes are always seen, and counts how often all processes are killed.
#[derive(Debug, Default)]
pub struct KillCounter {
    kills: Arc<AtomicU64>,
    seen: Vec<String>,
}

impl KillCounter {
    /// Shows these commands as running processes.
    pub fn seeing(commands: &[&str]) -> Self {
        Self { seen: commands.iter().map(|&command| command.to_owned()).collect(), ..Self::default() }
    }

    /// The number of kills in all its environments.
    pub fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }
}

/// Creates environments that each cost one dollar. The first commands of the agent lose their environments.
#[derive(Debug, Default)]
pub struct PricedProvider {
    losses: Arc<AtomicU64>,
}

impl PricedProvider {
    /// As many environments are lost.
    pub fn losing(environments: u64) -> Self {
        Self { losses: Arc::new(AtomicU64::new(environments)) }
    }
}

#[derive(Default)]
struct Idle {
    is_silent: bool,
    kills: Arc<AtomicU64>,
    seen: Vec<String>,
    cost: f64,
    /// How many commands are still to fail.
    losses: Arc<AtomicU64>,
}

#[async_trait]
impl Provider for PricedProvider {
    fn name(&self) -> &'static str {
        "priced"
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        IdleProvider.prepare(request).await
    }

    async fn create(&self, _spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        Ok(Box::new(Idle { cost: 1.0, losses: Arc::clone(&self.losses), ..Idle::default() }))
    }

    async fn snapshot(&self, key: &str) -> Result<Option<PreparedImage>, EnvironmentError> {
        IdleProvider.snapshot(key).await
    }

    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        IdleProvider.reopen(place).await
    }
}

#[async_trait]
impl Provider for KillCounter {
    fn name(&self) -> &'static str {
        "kill-counter"
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        IdleProvider.prepare(request).await
    }

    async fn create(&self, _spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        Ok(Box::new(Idle { kills: Arc::clone(&self.kills), seen: self.seen.clone(), ..Idle::default() }))
    }

    async fn snapshot(&self, key: &str) -> Result<Option<PreparedImage>, EnvironmentError> {
        IdleProvider.snapshot(key).await
    }

    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        IdleProvider.reopen(place).await
    }
}

#[async_trait]
impl Provider for SilentProvider {
    fn name(&self) -> &'static str {
        "silent"
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        IdleProvider.prepare(request).await
    }

    async fn create(&self, _spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        Ok(Box::new(Idle { is_silent: true, ..Idle::default() }))
    }

    async fn snapshot(&self, key: &str) -> Result<Option<PreparedImage>, EnvironmentError> {
        IdleProvider.snapshot(key).await
    }

    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        IdleProvider.reopen(place).await
    }
}

#[async_trait]
impl Provider for IdleProvider {
    fn name(&self) -> &'static str {
        "idle"
    }

    async fn prepare(&self, _request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        Ok(PreparedImage { reference: "idle".to_owned() })
    }

    async fn create(&self, _spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        Ok(Box::new(Idle::default()))
    }

    async fn snapshot(&self, _key: &str) -> Result<Option<PreparedImage>, EnvironmentError> {
        Ok(None)
    }

    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        Err(EnvironmentError::Start(format!("{place} was never preserved")))
    }
}

#[async_trait]
impl Environment for Idle {
    fn id(&self) -> &str {
        "idle"
    }

    fn facts(&self) -> Facts {
        Facts { network: "none".to_owned(), enforced: serde_json::Value::Null }
    }

    async fn copy_to(&self, _source: &Path, _target: &str, _mode: CopyMode) -> Result<(), EnvironmentError> {
        Ok(())
    }

    async fn write_file(&self, _path: &str, _content: &[u8]) -> Result<(), EnvironmentError> {
        Ok(())
    }

    async fn copy_from(&self, _copy: CopyOut<'_>) -> Result<CopyReport, EnvironmentError> {
        Ok(CopyReport::default())
    }

    async fn read_file(&self, path: &str, _max_bytes: u64) -> Result<FileRead, EnvironmentError> {
        Ok(match path {
            "/logs/verifier/reward.txt" => FileRead::Content(b"1\n".to_vec()),
            _ => FileRead::Missing,
        })
    }

    async fn make_dirs(&self, paths: &[&str], _empty: bool) -> Result<(), EnvironmentError> {
        if self.is_silent && paths == ["/logs/verifier"] {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn link(&self, _target: &str, _link: &str) -> Result<(), EnvironmentError> {
        Ok(())
    }

    async fn exec(&self, _command: Exec<'_>) -> Result<Exit, EnvironmentError> {
        let fewer = |left: u64| left.checked_sub(1);
        if self.losses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok() {
            return Err(EnvironmentError::Lost("the environment was lost".to_owned()));
        }
        Ok(Exit { outcome: Outcome::Code(0), oom_killed: false })
    }

    async fn exec_on_terminal(&self, _argv: &[&str], _terminal: OwnedFd) -> Result<Exit, EnvironmentError> {
        Ok(Exit { outcome: Outcome::Code(0), oom_killed: false })
    }

    async fn snapshot(&self, _key: &str) -> Result<(), EnvironmentError> {
        Ok(())
    }

    async fn survivors(&self) -> Result<Vec<String>, EnvironmentError> {
        Ok(self.seen.clone())
    }

    async fn kill_all(&self) -> Result<(), EnvironmentError> {
        self.kills.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn cost(&self) -> f64 {
        self.cost
    }

    async fn destroy(self: Box<Self>) -> Result<(), EnvironmentError> {
        Ok(())
    }

    async fn preserve(self: Box<Self>) -> Result<String, EnvironmentError> {
        Ok("idle".to_owned())
    }
}
