//! Measures the engine: `cargo run --release -p rollout-sandbox --example bench [cycles] [concurrency]`.
//!
//! One cycle is the work of a short trial: create, two commands of bash, three small copies in, one copy
//! out, destroy. Prints the time of each step, cycles per second, and the CPU time per cycle of this process
//! and its children. Before that, builds an image of 20 layers, and prints the time of a build from the cache
//! and of single steps with the image.

use std::{
    fs::{self, File},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rollout_sandbox::build::{BuildRequest, Built, HostImages, LogSink, build};
use rollout_sandbox::{
    CopyIn, CopyLimits, EngineOptions, HELPER_ARG, Image, Network, RunningSandbox, SandboxCommand,
    SandboxEngine, SandboxLimits, SandboxSpec, Stdio, helper_main,
};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const STEPS: [&str; 6] = ["create", "exec bash", "copy in", "copy out", "destroy", "cycle"];

fn main() -> Result<()> {
    if std::env::args().nth(1).is_some_and(|argument| argument == HELPER_ARG) {
        helper_main();
    }
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(run())
}

async fn run() -> Result<()> {
    let number = |index, default| {
        std::env::args().nth(index).and_then(|argument| argument.parse().ok()).unwrap_or(default)
    };
    let (cycles, concurrency): (usize, usize) = (number(1, 1000), number(2, 8));
    let work = std::env::temp_dir().join(format!("rollout-bench-{}", std::process::id()));
    let source = work.join("source");
    fs::create_dir_all(&source)?;
    fs::write(source.join("test.sh"), "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n")?;
    let started = Instant::now();
    let engine = SandboxEngine::start(EngineOptions {
        helper: std::env::current_exe()?,
        state_dir: work.join("state"),
    })
    .await?;
    println!("engine start      {:8.2} ms", millis(started.elapsed()));
    let started = Instant::now();
    let image = engine.host_image().await?;
    println!("host image        {:8.2} ms", millis(started.elapsed()));
    single(&engine, &image, "one at a time").await?;
    let layered = cached_builds(&engine, &work).await?;
    single(&engine, &layered, "one at a time, 20 layers").await?;

    let (cpu, started) = (cpu_time()?, Instant::now());
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = Vec::new();
    for _ in 0..concurrency {
        let (engine, image, next, work) = (engine.clone(), image.clone(), next.clone(), work.clone());
        workers.push(tokio::spawn(async move {
            let mut times: [Vec<Duration>; STEPS.len()] = Default::default();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= cycles {
                    return Ok::<_, Box<dyn std::error::Error + Send + Sync>>(times);
                }
                cycle(&engine, &image, &work, &mut times).await?;
            }
        }));
    }
    let mut times: [Vec<Duration>; STEPS.len()] = Default::default();
    for worker in workers {
        for (all, more) in times.iter_mut().zip(worker.await??) {
            all.extend(more);
        }
    }
    let (elapsed, cpu) = (started.elapsed(), cpu_time()? - cpu);
    println!("{cycles} cycles at concurrency {concurrency}");
    for (step, times) in STEPS.iter().zip(&mut times) {
        report(step, times);
    }
    let count = f64::from(u32::try_from(cycles)?);
    println!("cycles per second {:8.1}", count / elapsed.as_secs_f64());
    println!("cpu per cycle     {:8.2} ms", millis(cpu) / count);
    drop(engine);
    fs::remove_dir_all(&source)?;
    // The zygote removes its own part of the directory at the same time.
    let _ = fs::remove_dir_all(&work);
    Ok(())
}

/// Measures single steps on an otherwise idle engine.
async fn single(engine: &SandboxEngine, image: &Image, title: &str) -> Result<()> {
    let (mut creates, mut execs, mut destroys) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..100 {
        let started = Instant::now();
        let sandbox = engine.create(spec(image)).await?;
        creates.push(started.elapsed());
        for _ in 0..3 {
            let started = Instant::now();
            exec(&sandbox, &["/bin/true"]).await?;
            execs.push(started.elapsed());
        }
        let started = Instant::now();
        sandbox.destroy().await?;
        destroys.push(started.elapsed());
    }
    println!("{title}");
    report("create", &mut creates);
    report("exec /bin/true", &mut execs);
    report("destroy", &mut destroys);
    Ok(())
}

/// Measures builds of an image of 20 layers: the first one, and those from the cache.
async fn cached_builds(engine: &SandboxEngine, work: &Path) -> Result<Image> {
    let context = work.join("context");
    fs::create_dir_all(&context)?;
    let mut dockerfile = "FROM base\nENV A=1\nWORKDIR /srv/app\n".to_owned();
    for number in 0..10 {
        fs::write(context.join(format!("file-{number}")), "x".repeat(10_000))?;
        dockerfile += &format!("COPY file-{number} .\nRUN echo {number} > made-{number}\n");
    }
    fs::write(context.join("Dockerfile"), dockerfile)?;
    let images = HostImages::new(engine.clone(), vec!["base".to_owned()]);
    let once = async || -> Result<Built> {
        let request = BuildRequest {
            context: &context,
            dockerfile: &context.join("Dockerfile"),
            no_cache: None,
            network: Network::None,
            limits: SandboxLimits::default(),
            log: LogSink::append(&work.join("log"))?,
        };
        Ok(build(engine, request, &images).await?)
    };
    let started = Instant::now();
    let built = once().await?;
    println!("first build       {:8.2} ms", millis(started.elapsed()));
    let mut times = Vec::new();
    for _ in 0..100 {
        let started = Instant::now();
        assert!(once().await?.cached);
        times.push(started.elapsed());
    }
    report("cached build", &mut times);
    Ok(built.image)
}

async fn cycle(
    engine: &SandboxEngine,
    image: &Image,
    work: &Path,
    times: &mut [Vec<Duration>; STEPS.len()],
) -> Result<()> {
    let begun = Instant::now();
    let mut last = begun;
    let mut lap = |step: usize| {
        let now = Instant::now();
        times[step].push(now - last);
        last = now;
    };
    let sandbox = engine.create(spec(image)).await?;
    lap(0);
    for target in ["/oracle", "/tests", "/agent"] {
        sandbox.copy_in(&work.join("source"), target, CopyIn::default()).await?;
        lap(2);
    }
    exec(&sandbox, &["/bin/bash", "-c", "mkdir -p /logs/verifier"]).await?;
    lap(1);
    exec(&sandbox, &["/bin/bash", "/tests/test.sh"]).await?;
    lap(1);
    let limits = CopyLimits { bytes: 1 << 20, entries: 100, file_bytes: 1 << 20 };
    let (mut stream, sent) = std::io::pipe()?;
    let received = tokio::task::spawn_blocking(move || std::io::copy(&mut stream, &mut std::io::sink()));
    sandbox.copy_out("/logs", None, limits, sent.into()).await?;
    received.await??;
    lap(3);
    sandbox.destroy().await?;
    lap(4);
    times[5].push(begun.elapsed());
    Ok(())
}

fn spec(image: &Image) -> SandboxSpec {
    SandboxSpec {
        name: "bench".into(),
        image: image.clone(),
        network: Network::Host,
        limits: SandboxLimits::default(),
        private_dirs: Vec::new(),
        hosts: Vec::new(),
    }
}

async fn exec(sandbox: &RunningSandbox, argv: &[&str]) -> Result<()> {
    let null = || File::options().write(true).open("/dev/null");
    let command = SandboxCommand {
        argv: argv.iter().map(|argument| (*argument).to_owned()).collect(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        cwd: "/".into(),
        user: None,
        stdin: Stdio::Null,
        stdout: null()?.into(),
        stderr: null()?.into(),
        tty: false,
        nested: false,
    };
    sandbox.exec(command).await?.wait().await?;
    Ok(())
}

fn report(step: &str, times: &mut [Duration]) {
    times.sort();
    let at = |percent: usize| millis(times[(times.len() - 1) * percent / 100]);
    println!("{step:17} p50 {:8.2} ms   p99 {:8.2} ms", at(50), at(99));
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The CPU time of this process, the zygote and every sandbox that has ended.
fn cpu_time() -> Result<Duration> {
    let mut ticks = 0;
    for process in fs::read_dir("/proc")? {
        let Ok(stat) = fs::read_to_string(process?.path().join("stat")) else { continue };
        let Some((head, tail)) = stat.rsplit_once(')') else { continue };
        let pid = head.split_whitespace().next().and_then(|pid| pid.parse::<u32>().ok());
        let fields: Vec<u64> = tail.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
        let (own, parent) = (std::process::id(), u64::from(std::process::id()));
        if pid == Some(own) || fields.get(1) == Some(&parent) {
            ticks += fields.iter().skip(11).take(4).sum::<u64>();
        }
    }
    Ok(Duration::from_millis(ticks * 10))
}
