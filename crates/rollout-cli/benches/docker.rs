//! What a trial costs on a Docker engine, beside a bare container of the same engine in the same run.
//!
//! `cargo bench -p rollout-cli --bench docker` uses the engine of `DOCKER_HOST` and an image that is there
//! (`ROLLOUT_BENCH_IMAGE`, by default `test:latest`). Bare containers and trials take turns, so that both meet
//! the same noise.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bollard::{
    API_DEFAULT_VERSION, Docker,
    models::ContainerCreateBody,
    query_parameters::{CreateContainerOptions, RemoveContainerOptions},
};
use rollout::{
    config::load_job,
    environment::{CloudAccess, DockerAccess, HostPaths, KubernetesAccess, Provider, connect},
    job::{Cancel, Job, Plan, Selection},
    task::{Resolved, Sources},
};
use rollout_testkit::{TestTask, TimedProvider};

const CONCURRENCY: usize = 8;
const TRIALS: usize = 40;
const ROUNDS: usize = 3;

/// Times by the name of the call, in the order of the trial.
type Calls = BTreeMap<String, Vec<Duration>>;

#[tokio::main]
async fn main() {
    let image = std::env::var("ROLLOUT_BENCH_IMAGE").unwrap_or_else(|_| "test:latest".to_owned());
    let host = std::env::var("DOCKER_HOST").expect("DOCKER_HOST names the engine to measure");
    let api = Docker::connect_with_unix(&host, 120, API_DEFAULT_VERSION).expect("reach the engine");
    let api = api.negotiate_version().await.expect("speak with the engine");
    let root = tempfile::tempdir().expect("make a directory");
    TestTask::new("task")
        .config(&format!("[environment]\ndocker_image = {image:?}\n"))
        .solution("exit 0\n")
        .tests("echo 1 > /logs/verifier/reward.txt\n")
        .write(&root.path().join("set"));

    // The first trial prepares the image.
    trials(root.path(), "warm-up", 1, &mut Calls::new()).await;
    let (mut bare_calls, mut trial_calls) = (Calls::new(), Calls::new());
    let (mut bare_time, mut trial_time) = (Duration::ZERO, Duration::ZERO);
    for round in 0..ROUNDS {
        bare_time += bare(&api, &image, &mut bare_calls).await;
        trial_time += trials(root.path(), &format!("round-{round}"), TRIALS, &mut trial_calls).await;
    }
    let count = (ROUNDS * TRIALS) as f64;
    println!("no-op oracle task, prebuilt image, {CONCURRENCY} at a time, {count} of each");
    println!();
    calls("bare container", &bare_calls);
    calls("trial", &trial_calls);
    let (bare, trial) = (bare_time.as_secs_f64() / count, trial_time.as_secs_f64() / count);
    println!("bare create+start+remove   {:6.1} ms each   {:5.2} per second", bare * 1e3, 1.0 / bare);
    println!("whole trial                {:6.1} ms each   {:5.2} per second", trial * 1e3, 1.0 / trial);
    println!("trial / bare               {:6.2}", trial / bare);
}

fn calls(of: &str, calls: &Calls) {
    println!("{of:<18} {:>7} {:>10} {:>10} {:>7}", "calls", "p50 ms", "mean ms", "share");
    let all: f64 = calls.values().flatten().map(Duration::as_secs_f64).sum();
    for (call, times) in calls {
        let mut sorted: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let sum: f64 = sorted.iter().sum();
        let name = call.split_once(' ').map_or(call.as_str(), |(_, name)| name);
        let (p50, mean) = (sorted[sorted.len() / 2] * 1e3, sum / sorted.len() as f64 * 1e3);
        println!("  {name:<16} {:>7} {p50:>10.1} {mean:>10.1} {:>6.1}%", sorted.len(), sum / all * 100.0);
    }
    println!();
}

/// Makes, starts and removes containers by the engine's API and nothing else.
async fn bare(api: &Docker, image: &str, calls: &mut Calls) -> Duration {
    let from = Instant::now();
    let workers = (0..CONCURRENCY).map(|_| {
        let (api, image) = (api.clone(), image.to_owned());
        tokio::spawn(async move {
            let mut times = Vec::new();
            for _ in 0..TRIALS / CONCURRENCY {
                let body = ContainerCreateBody {
                    image: Some(image.clone()),
                    entrypoint: Some(vec!["sleep".to_owned(), "infinity".to_owned()]),
                    ..ContainerCreateBody::default()
                };
                let from = Instant::now();
                let made = api.create_container(None::<CreateContainerOptions>, body).await;
                let id = made.expect("create a container").id;
                let created = Instant::now();
                api.start_container(&id, None).await.expect("start a container");
                let started = Instant::now();
                let force = RemoveContainerOptions { force: true, ..RemoveContainerOptions::default() };
                api.remove_container(&id, Some(force)).await.expect("remove a container");
                times.push([created - from, started - created, started.elapsed()]);
            }
            times
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        for times in worker.await.expect("a worker does not panic") {
            for (call, time) in ["1 create", "2 start", "3 remove"].into_iter().zip(times) {
                calls.entry(call.to_owned()).or_default().push(time);
            }
        }
    }
    from.elapsed()
}

/// Runs a job of that many trials through the library, with the times of every call to its provider.
async fn trials(root: &Path, name: &str, count: usize, calls: &mut Calls) -> Duration {
    let job = format!(
        "name: {name}\njobs_dir: {}\nn_attempts: {count}\nn_concurrent_trials: {CONCURRENCY}\n\
         environment: {{type: docker}}\nagents: [{{name: oracle}}]\ndatasets: [{{path: set}}]\n",
        root.join("jobs").display(),
    );
    let path = root.join("job.yaml");
    std::fs::write(&path, job).expect("write a job");
    let vars = |_: &str| None;
    let loaded = load_job(&path, &[], &vars).expect("load a job");
    let place = HostPaths {
        state_dir: root.join("state"),
        helper: env!("CARGO_BIN_EXE_rollout").into(),
        docker: DockerAccess::from_variables(|name| std::env::var_os(name)),
        kubernetes: KubernetesAccess::default(),
        clouds: CloudAccess::default(),
    };
    let provider: Arc<dyn Provider> =
        connect(&loaded.config.environment, &place).await.expect("connect to the engine");
    let (provider, times) = TimedProvider::new(provider);
    let sources = Sources::new(root.join("cache"));
    let datasets =
        sources.load(&loaded.config.datasets, &Resolved::default(), &|_| ()).await.expect("load a dataset");
    let plan = Plan::new(loaded, Vec::new(), datasets, &Selection::default(), &vars).expect("plan a job");
    let job = Job::create(plan, Arc::new(provider)).await.expect("create a job");
    let (events, mut heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move { while heard.recv().await.is_some() {} });
    let from = Instant::now();
    let result = job.run(events, Cancel::default()).await.expect("run a job");
    let took = from.elapsed();
    assert_eq!(result.totals.completed_trials as usize, count, "every trial completes");
    for (number, (call, taken)) in times.take().into_iter().enumerate() {
        let known = calls.keys().find(|key| key.ends_with(&format!(" {call}"))).cloned();
        calls.entry(known.unwrap_or_else(|| format!("{number:02} {call}"))).or_default().extend(taken);
    }
    took
}
