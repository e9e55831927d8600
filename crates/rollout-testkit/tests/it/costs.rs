//! The cost of environments: all of a trial's count, also those that its result does not describe.

use std::{fs, path::Path, sync::Arc};

use rollout::{
    config::load_job,
    environment::Provider,
    job::{Cancel, Job, Plan, Rerun, Resumable, Selection},
    record::journal::RegradeRecord,
    result::JobResult,
    task::{Resolved, Sources},
};
use rollout_testkit::{PricedProvider, TestTask};
use serde_json::Value;
use tokio::sync::mpsc;

/// Runs a job of one trial with an agent, in environments that cost a dollar. Returns its result, and that of the trial.
async fn run(root: &Path, config: &str, settings: &str, provider: Arc<dyn Provider>) -> (JobResult, Value) {
    TestTask::new("task").config(config).write(&root.join("set"));
    let job = format!(
        "name: job\njobs_dir: {}\nagents: [{{name: oracle}}]\ndatasets: [{{path: set}}]\n\
         retry: {{initial_delay_ms: 1}}\n{settings}",
        root.join("jobs").display()
    );
    fs::write(root.join("job.yaml"), job).unwrap();
    run_plan(plan(root).await, provider).await
}

/// Plans the job in job.yaml.
async fn plan(root: &Path) -> Plan {
    let vars = |_: &str| None;
    let loaded = load_job(&root.join("job.yaml"), &[], &vars).unwrap();
    let sources = Sources::new(root.join("cache"));
    let datasets = sources.load(&loaded.config.datasets, &Resolved::default(), &|_| ()).await.unwrap();
    Plan::new(loaded, Vec::new(), datasets, &Selection::default(), &vars).unwrap()
}

async fn run_plan(plan: Plan, provider: Arc<dyn Provider>) -> (JobResult, Value) {
    let job = Job::create(plan, provider).await.unwrap();
    let trial = job.directory().join("oracle/set/task__1/result.json");
    let result = job.run(mpsc::unbounded_channel().0, Cancel::default()).await.unwrap();
    (result, serde_json::from_slice(&fs::read(trial).unwrap()).unwrap())
}

#[tokio::test]
async fn the_environments_of_failed_tries_count() {
    let root = tempfile::tempdir().unwrap();
    let (job, trial) = run(root.path(), "", "", Arc::new(PricedProvider::losing(2))).await;
    assert_eq!((&trial["tries"], &trial["reward"]), (&3.into(), &1.0.into()), "{trial:#}");
    assert_eq!((&trial["environment_cost"], &trial["cost"]), (&3.0.into(), &3.0.into()), "{trial:#}");
    assert_eq!(job.totals.environment_cost, 3.0);
}

#[tokio::test]
async fn a_job_stops_before_its_environments_exceed_the_budget_and_continues_with_a_larger_one() {
    let root = tempfile::tempdir().unwrap();
    let provider: Arc<dyn Provider> = Arc::new(PricedProvider::default());
    let settings = "n_attempts: 5\nn_concurrent_trials: 2\nbudget: {usd: 2.5}\n";
    let (stopped, _) = run(root.path(), "", settings, Arc::clone(&provider)).await;
    assert_eq!((stopped.totals.completed_trials, stopped.totals.environment_cost), (2, 2.0));
    let file = root.path().join("job.yaml");
    fs::write(&file, fs::read_to_string(&file).unwrap().replace("2.5", "50")).unwrap();
    let resumable = Resumable::open(&root.path().join("jobs/job")).unwrap();
    let again = resumable.resume(plan(root.path()).await, provider, &[Rerun::Missing]).await.unwrap();
    let whole = again.run(mpsc::unbounded_channel().0, Cancel::default()).await.unwrap();
    assert_eq!((whole.totals.completed_trials, whole.totals.environment_cost), (5, 5.0));
}

#[tokio::test]
async fn the_separate_environment_of_the_tests_counts() {
    let root = tempfile::tempdir().unwrap();
    let config = "[verifier]\nenvironment_mode = \"separate\"\n";
    let (_, trial) = run(root.path(), config, "", Arc::new(PricedProvider::default())).await;
    assert_eq!((&trial["reward"], &trial["environment_cost"]), (&1.0.into(), &2.0.into()), "{trial:#}");
}

#[tokio::test]
async fn the_environments_of_a_regrade_are_added_to_the_cost_of_the_trial() {
    let root = tempfile::tempdir().unwrap();
    let config = "[verifier]\nenvironment_mode = \"separate\"\n";
    let provider: Arc<dyn Provider> = Arc::new(PricedProvider::default());
    run(root.path(), config, "", Arc::clone(&provider)).await;
    let finished = Resumable::open(&root.path().join("jobs/job")).unwrap();
    let record =
        RegradeRecord { job: finished.directory().to_owned(), tests: None, ignores_processes: false };
    let file = fs::read_to_string(root.path().join("job.yaml")).unwrap();
    fs::write(root.path().join("job.yaml"), file.replace("name: job\n", "name: regrade\n")).unwrap();
    let plan = plan(root.path()).await.regrading(record, finished.header()).unwrap();
    let (job, trial) = run_plan(plan, provider).await;
    assert_eq!((&trial["regraded"]["on"], &trial["reward"]), (&"artifacts".into(), &1.0.into()), "{trial:#}");
    assert_eq!((&trial["environment_cost"], &trial["cost"]), (&3.0.into(), &3.0.into()), "{trial:#}");
    assert_eq!(job.totals.environment_cost, 3.0);
}
