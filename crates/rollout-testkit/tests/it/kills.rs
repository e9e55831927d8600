//! Processes of the agent that no listing shows.

use std::{fs, path::Path, sync::Arc};

use rollout::{
    config::load_job,
    job::{Cancel, Job, Plan, Selection},
    task::{Resolved, Sources},
};
use rollout_testkit::{KillCounter, TestTask};
use tokio::sync::mpsc;

async fn plan(root: &Path) -> Plan {
    let vars = |_: &str| None;
    let loaded = load_job(&root.join("job.yaml"), &[], &vars).unwrap();
    let sources = Sources::new(root.join("cache"));
    let datasets = sources.load(&loaded.config.datasets, &Resolved::default(), &|_| ()).await.unwrap();
    Plan::new(loaded, Vec::new(), datasets, &Selection::default(), &vars).unwrap()
}

/// The number of kills in a job of one trial, in an environment where no process is seen.
async fn kills(agent_processes: &str) -> u64 {
    let root = tempfile::tempdir().unwrap();
    TestTask::new("task").write(&root.path().join("set"));
    let job = format!(
        "name: job\njobs_dir: {}\nagents: [{{name: oracle}}]\ndatasets: [{{path: set}}]\n\
         verifier: {{agent_processes: {agent_processes}}}\n",
        root.path().join("jobs").display()
    );
    fs::write(root.path().join("job.yaml"), job).unwrap();
    let provider = Arc::new(KillCounter::default());
    let job = Job::create(plan(root.path()).await, provider.clone()).await.unwrap();
    let result = job.run(mpsc::unbounded_channel().0, Cancel::default()).await.unwrap();
    assert_eq!(result.totals.passed_trials, 1);
    provider.kills()
}

#[tokio::test]
async fn processes_of_the_agent_are_killed_before_the_tests_even_if_none_is_seen() {
    assert_eq!(kills("kill").await, 1);
    assert_eq!(kills("keep").await, 0);
}
