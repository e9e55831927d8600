//! A job of very many trials, in an environment that does nothing.

use std::{fs, path::Path, sync::Arc};

use rollout::{
    config::load_job,
    event::Event,
    job::{Cancel, Job, Plan, Rerun, Resumable, Selection},
    result::JobResult,
    task::{Resolved, Sources},
};
use rollout_testkit::{IdleProvider, TestTask};
use tokio::sync::mpsc;

const TASKS: u32 = 500;

/// 100,000 trials where time allows, and enough to show the shape where it does not.
fn attempts() -> u32 {
    if std::env::var_os("ROLLOUT_TEST_FULL").is_some() { 200 } else { 10 }
}

async fn plan(root: &Path) -> Plan {
    let vars = |_: &str| None;
    let loaded = load_job(&root.join("job.yaml"), &[], &vars).unwrap();
    let sources = Sources::new(root.join("cache"));
    let datasets = sources.load(&loaded.config.datasets, &Resolved::default(), &|_| ()).await.unwrap();
    Plan::new(loaded, Vec::new(), datasets, &Selection::default(), &vars).unwrap()
}

async fn run(job: Job) -> (JobResult, u64) {
    let (events, mut heard) = mpsc::unbounded_channel();
    let counter = tokio::spawn(async move {
        let mut finished = 0;
        while let Some(event) = heard.recv().await {
            finished += u64::from(matches!(event, Event::TrialFinished { .. }));
        }
        finished
    });
    let result = job.run(events, Cancel::default()).await.unwrap();
    (result, counter.await.unwrap())
}

fn peak_memory_mb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_very_many_trials_runs_and_resumes_in_little_memory() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..TASKS {
        TestTask::new(&format!("task-{number:04}")).write(&root.path().join("set"));
    }
    let job = format!(
        "name: job\njobs_dir: {}\nn_attempts: {}\nn_concurrent_trials: 8\nagents: [{{name: oracle}}]\ndatasets: [{{path: set}}]\n",
        root.path().join("jobs").display(),
        attempts()
    );
    fs::write(root.path().join("job.yaml"), job).unwrap();
    let trials = u64::from(TASKS * attempts());

    let first = Job::create(plan(root.path()).await, Arc::new(IdleProvider)).await.unwrap();
    let dir = first.directory().to_owned();
    let (result, finished) = run(first).await;
    assert_eq!(finished, trials);
    assert_eq!(result.totals.completed_trials, trials);
    assert_eq!(result.totals.mean_reward(), 1.0);

    // Cut the journal in the middle, as a crash would.
    let journal = dir.join("journal.jsonl");
    let length = fs::metadata(&journal).unwrap().len();
    fs::OpenOptions::new().write(true).open(&journal).unwrap().set_len(length - length / 10).unwrap();
    let resumable = Resumable::open(&dir).unwrap();
    let again =
        resumable.resume(plan(root.path()).await, Arc::new(IdleProvider), &[Rerun::Missing]).await.unwrap();
    let missing = again.remaining() as u64;
    assert!(missing > 0 && missing < trials / 5, "{missing} of {trials} trials are missing");
    let (resumed, finished) = run(again).await;
    assert_eq!(finished, missing);
    assert_eq!(resumed.totals.completed_trials, trials);

    let rows: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.join("result.json")).unwrap()).unwrap();
    assert_eq!(rows["results"].as_array().unwrap().len() as u64, trials);
    assert!(peak_memory_mb() < 200, "{} MB at the peak", peak_memory_mb());
}
