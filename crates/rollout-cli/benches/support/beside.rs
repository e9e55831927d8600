//! The native environment beside a Docker engine: the same trials, environments and builds with both.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rollout::{
    config::load_job,
    environment::{
        CloudAccess, CommandRole, DockerAccess, EnvironmentSpec, Exec, HostPaths, ImageRequest,
        KubernetesAccess, Origin, PreparedImage, Provider, connect,
    },
    job::{Cancel, Job, Plan, Selection},
    record::log::LogWriter,
    task::{Resolved, Sources},
};
use rollout_testkit::TestTask;

const CONCURRENCY: usize = 8;

/// The layers of the second image.
const LAYERS: usize = 20;

/// A Docker engine is slow enough that fewer of its trials say as much.
const DOCKER_SHARE: usize = 20;

/// What is measured, in this order.
const ROWS: [&str; 6] = [
    "trials per second, no-op oracle, 8 at a time",
    "create an environment, p50 ms",
    "create one with 20 layers, p50 ms",
    "exec true, p50 ms",
    "destroy, p50 ms",
    "cached build of 20 layers, p50 ms",
];

/// Measures both and prints a table.
pub(crate) async fn compare(trials: usize) {
    let native = figures("{type: native, provider_config: {images: {\"*\": host}}}", trials, 100).await;
    let docker = match std::env::var_os("DOCKER_HOST") {
        Some(_) => {
            let trials = (trials / DOCKER_SHARE).next_multiple_of(CONCURRENCY);
            Some(figures("{type: docker}", trials, 20).await)
        }
        None => None,
    };
    println!();
    println!("{:<50} {:>10} {:>10} {:>8}", "", "native", "docker", "ratio");
    for (row, name) in ROWS.iter().enumerate() {
        let own = native[row];
        let (theirs, ratio) = match &docker {
            // A rate is better if it is larger, and a time if it is smaller.
            Some(docker) if row == 0 => (format!("{:.2}", docker[row]), format!("{:.1}", own / docker[row])),
            Some(docker) => (format!("{:.2}", docker[row]), format!("{:.1}", docker[row] / own)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        println!("{name:<50} {own:>10.2} {theirs:>10} {ratio:>8}");
    }
    if docker.is_none() {
        println!("DOCKER_HOST is not set, so no Docker engine was measured");
    }
}

/// The figures of an environment, in the order of the rows.
async fn figures(environment: &str, trials: usize, steps: usize) -> [f64; 6] {
    let root = tempfile::tempdir().expect("make a directory");
    let root = root.path();
    let image = std::env::var("ROLLOUT_BENCH_IMAGE").unwrap_or_else(|_| "test:latest".to_owned());
    TestTask::new("task")
        .config(&format!("[environment]\ndocker_image = {image:?}\n"))
        .solution("exit 0\n")
        .tests("echo 1 > /logs/verifier/reward.txt\n")
        .write(&root.join("set"));
    let context = layered(&root.join("context"), &image);

    // The first trial prepares the image.
    run(root, environment, "warm-up", CONCURRENCY).await;
    let rate = trials as f64 / run(root, environment, "trials", trials).await.as_secs_f64();

    let provider = provider(root, environment).await;
    let plain = prepare(&*provider, &context, Some(&image)).await;
    let (create, exec, destroy) = environments(&*provider, &plain, steps).await;
    let layered = prepare(&*provider, &context, None).await;
    let (create_layered, _, _) = environments(&*provider, &layered, steps).await;
    let mut builds = Vec::new();
    for _ in 0..steps {
        // A provider prepares an image once, so each build needs its own, as each job has.
        let provider = self::provider(root, environment).await;
        let from = Instant::now();
        prepare(&*provider, &context, None).await;
        builds.push(from.elapsed());
    }
    [rate, p50(create), p50(create_layered), p50(exec), p50(destroy), p50(builds)]
}

/// A Dockerfile with 20 layers, half of them of files.
fn layered(context: &Path, image: &str) -> PathBuf {
    fs::create_dir_all(context).expect("make a directory");
    let mut dockerfile = format!("FROM {image}\n");
    for number in 0..LAYERS / 2 {
        fs::write(context.join(format!("file-{number}")), "x".repeat(10_000)).expect("write a file");
        writeln!(dockerfile, "COPY file-{number} /srv/\nRUN echo {number} > /made-{number}")
            .expect("write text");
    }
    fs::write(context.join("Dockerfile"), dockerfile).expect("write a Dockerfile");
    context.to_owned()
}

async fn provider(root: &Path, environment: &str) -> Arc<dyn Provider> {
    let loaded = load_job(&job_file(root, environment, "steps", 1), &[], &|_| None).expect("load a job");
    connect(&loaded.config.environment, &place(root)).await.expect("connect to the provider")
}

async fn prepare(provider: &dyn Provider, context: &Path, docker_image: Option<&str>) -> PreparedImage {
    let log = context.with_extension("log");
    let request = ImageRequest {
        origin: Origin { job: "bench", trial: "bench" },
        context,
        docker_image,
        build: None,
        force_build: false,
        log: &log.join("build.txt"),
    };
    provider.prepare(request).await.expect("prepare an image")
}

/// The times of creating environments, of commands in them and of their removal, one at a time.
async fn environments(
    provider: &dyn Provider,
    image: &PreparedImage,
    count: usize,
) -> (Vec<Duration>, Vec<Duration>, Vec<Duration>) {
    let (mut create, mut exec, mut destroy) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..count {
        let name = format!("bench-{number}");
        let origin = Origin { job: "bench", trial: "bench" };
        let private = ["/tests", "/logs/verifier"];
        let spec = EnvironmentSpec { private_dirs: &private, ..EnvironmentSpec::new(origin, image, &name) };
        let from = Instant::now();
        let environment = provider.create(spec).await.expect("create an environment");
        create.push(from.elapsed());
        let command = Exec {
            role: CommandRole::Agent,
            argv: &["true"],
            env: &[],
            deadline: None,
            stdout: LogWriter::discard(),
            stderr: LogWriter::discard(),
        };
        let from = Instant::now();
        environment.exec(command).await.expect("run a command");
        exec.push(from.elapsed());
        let from = Instant::now();
        environment.destroy().await.expect("destroy an environment");
        destroy.push(from.elapsed());
    }
    provider.settle().await;
    (create, exec, destroy)
}

fn p50(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn job_file(root: &Path, environment: &str, name: &str, attempts: usize) -> PathBuf {
    let text = format!(
        "name: {name}\njobs_dir: {}\nn_attempts: {attempts}\nn_concurrent_trials: {CONCURRENCY}\n\
         environment: {environment}\nagents: [{{name: oracle}}]\ndatasets: [{{path: set}}]\n",
        root.join("jobs").display(),
    );
    let path = root.join("job.yaml");
    fs::write(&path, text).expect("write a job");
    path
}

fn place(root: &Path) -> HostPaths {
    HostPaths {
        state_dir: root.join("state"),
        helper: env!("CARGO_BIN_EXE_rollout").into(),
        docker: DockerAccess::from_variables(|name| std::env::var_os(name)),
        kubernetes: KubernetesAccess::default(),
        clouds: CloudAccess::default(),
    }
}

/// Runs a job of that many trials.
async fn run(root: &Path, environment: &str, name: &str, count: usize) -> Duration {
    let vars = |_: &str| None;
    let loaded = load_job(&job_file(root, environment, name, count), &[], &vars).expect("load a job");
    let provider = connect(&loaded.config.environment, &place(root)).await.expect("connect to the provider");
    let sources = Sources::new(root.join("cache"));
    let datasets =
        sources.load(&loaded.config.datasets, &Resolved::default(), &|_| ()).await.expect("load a dataset");
    let plan = Plan::new(loaded, Vec::new(), datasets, &Selection::default(), &vars).expect("plan a job");
    let job = Job::create(plan, provider).await.expect("create a job");
    let (events, mut heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move { while heard.recv().await.is_some() {} });
    let from = Instant::now();
    let result = job.run(events, Cancel::default()).await.expect("run a job");
    let took = from.elapsed();
    assert_eq!(result.totals.completed_trials as usize, count, "every trial completes");
    took
}
