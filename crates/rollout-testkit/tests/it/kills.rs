//! Processes and environments that remain: processes that no listing shows, processes in environments that cannot be
//! watched, and environments that are still being removed.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use rollout::{
    config::load_job,
    environment::{Environment, EnvironmentError, EnvironmentSpec, ImageRequest, PreparedImage, Provider},
    job::{Cancel, Job, Plan, Selection},
    task::{Resolved, Sources},
};
use rollout_testkit::{IdleProvider, KillCounter, TestTask};
use tokio::sync::mpsc;

async fn plan(root: &Path) -> Plan {
    let vars = |_: &str| None;
    let loaded = load_job(&root.join("job.yaml"), &[], &vars).unwrap();
    let sources = Sources::new(root.join("cache"));
    let datasets = sources.load(&loaded.config.datasets, &Resolved::default(), &|_| ()).await.unwrap();
    Plan::new(loaded, Vec::new(), datasets, &Selection::default(), &vars).unwrap()
}

/// A job of one trial in this directory.
async fn job(root: &Path, agent_processes: &str, provider: Arc<dyn Provider>) -> Job {
    TestTask::new("task").write(&root.join("set"));
    let job = format!(
        "name: job\njobs_dir: {}\nagents: [{{name: oracle}}]\ndatasets: [{{path: set}}]\n\
         verifier: {{agent_processes: {agent_processes}}}\n",
        root.join("jobs").display()
    );
    fs::write(root.join("job.yaml"), job).unwrap();
    Job::create(plan(root).await, provider).await.unwrap()
}

/// The number of kills in a job of one trial, in an environment where these processes are seen.
async fn kills(agent_processes: &str, seen: &[&str]) -> u64 {
    let root = tempfile::tempdir().unwrap();
    let provider = Arc::new(KillCounter::seeing(seen));
    let job = job(root.path(), agent_processes, provider.clone()).await;
    let result = job.run(mpsc::unbounded_channel().0, Cancel::default()).await.unwrap();
    assert_eq!(result.totals.passed_trials, 1);
    provider.kills()
}

#[tokio::test]
async fn processes_of_the_agent_are_killed_before_the_tests_even_if_none_is_seen() {
    assert_eq!(kills("kill", &[]).await, 1);
    assert_eq!(kills("keep", &[]).await, 0);
}

#[tokio::test]
async fn processes_of_the_agent_are_killed_before_the_tests_if_the_provider_cannot_watch_files() {
    assert_eq!(kills("keep", &["server --port 80"]).await, 1);
}

/// Whether a job waited for its environments to be removed.
#[derive(Default)]
struct Waited(AtomicBool);

#[async_trait]
impl Provider for Waited {
    fn name(&self) -> &'static str {
        "waited"
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        IdleProvider.prepare(request).await
    }

    async fn create(&self, spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        IdleProvider.create(spec).await
    }

    async fn snapshot(&self, key: &str) -> Result<Option<PreparedImage>, EnvironmentError> {
        IdleProvider.snapshot(key).await
    }

    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        IdleProvider.reopen(place).await
    }

    async fn settle(&self) -> Vec<String> {
        self.0.store(true, Ordering::Relaxed);
        Vec::new()
    }
}

#[tokio::test]
async fn a_job_that_fails_waits_until_its_environments_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let provider = Arc::new(Waited::default());
    let job = job(root.path(), "keep", provider.clone()).await;
    fs::remove_dir_all(job.directory()).unwrap();
    let ended = job.run(mpsc::unbounded_channel().0, Cancel::default()).await;
    assert!(ended.is_err(), "{ended:?}");
    assert!(provider.0.load(Ordering::Relaxed));
}
