//! Environments that stop answering.

use std::{fs, path::Path, sync::Arc};

use rollout::{
    config::load_job,
    job::{Cancel, Job, Plan, Selection},
    task::{Resolved, Sources},
};
use rollout_testkit::{SilentProvider, TestTask};
use tokio::sync::mpsc;

async fn plan(root: &Path) -> Plan {
    let vars = |_: &str| None;
    let loaded = load_job(&root.join("job.yaml"), &[], &vars).unwrap();
    let sources = Sources::new(root.join("cache"));
    let datasets = sources.load(&loaded.config.datasets, &Resolved::default(), &|_| ()).await.unwrap();
    Plan::new(loaded, Vec::new(), datasets, &Selection::default(), &vars).unwrap()
}

// The clock jumps to the next timeout whenever nothing else is to be done.
#[tokio::test(start_paused = true)]
async fn an_environment_that_is_silent_before_the_tests_does_not_hold_up_the_job() {
    let root = tempfile::tempdir().unwrap();
    TestTask::new("task").write(&root.path().join("set"));
    let jobs = root.path().join("jobs");
    let job = format!(
        "name: job\njobs_dir: {}\nagents: [{{name: oracle}}]\ndatasets: [{{path: set}}]\nretry: {{max_attempts: 1}}\n",
        jobs.display()
    );
    fs::write(root.path().join("job.yaml"), job).unwrap();
    let job = Job::create(plan(root.path()).await, Arc::new(SilentProvider)).await.unwrap();
    let dir = job.directory().to_owned();
    job.run(mpsc::unbounded_channel().0, Cancel::default()).await.unwrap();
    let result = fs::read(dir.join("result.json")).unwrap();
    let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
    assert_eq!(result["results"][0]["error"], "internal_error", "{result:#}");
}
