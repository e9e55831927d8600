//! The throughput and the CPU time of connections from inside an environment to a service of the host.
//!
//! `cargo bench -p rollout-cli --bench tunnel` measures the native environment and, if `DOCKER_HOST` is set, the
//! docker environment with an image that is there (`ROLLOUT_BENCH_IMAGE`, by default `test:latest`). The first
//! rows are connections without a tunnel, on the host's network. CPU time is that of this process, which is the
//! service as well, of the guest, and of the engine's processes.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use rollout::{
    config::{Bytes, Cpus, load_job},
    environment::{
        CloudAccess, CommandRole, DockerAccess, Environment, EnvironmentSpec, Exec, HostPaths, ImageRequest,
        KubernetesAccess, Origin, Outcome, connect,
    },
    record::log::LogWriter,
};
use rollout_testkit::TestTask;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// The megabytes of one measurement, over all its connections.
const MEGABYTES: usize = 512;

/// The processes of a Docker engine that carry the guest's stream.
const ENGINE: [&str; 3] = ["dockerd", "containerd", "containerd-shim"];

#[tokio::main]
async fn main() {
    let service = serve().await;
    println!(
        "{:<18} {:>9} {:>12} {:>8} {:>14} {:>14} {:>14}",
        "", "direction", "connections", "MB/s", "here ms/MB", "guest ms/MB", "engine ms/MB"
    );
    measure("host network", "native", "{images: {bench: host}, network: host}", "bench", service, false)
        .await;
    measure("native tunnel", "native", "{images: {bench: host}, network: none}", "bench", service, true)
        .await;
    if std::env::var_os("DOCKER_HOST").is_some() {
        let image = std::env::var("ROLLOUT_BENCH_IMAGE").unwrap_or_else(|_| "test:latest".to_owned());
        measure("docker tunnel", "docker", "{network: none}", &image, service, true).await;
    }
}

/// Starts a service that is asked for bytes (`d`), or sent bytes (`u`), of a number of megabytes in a line.
async fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let address = listener.local_addr().expect("know the address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move { answer(stream).await.expect("serve a connection") });
        }
    });
    address
}

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let direction = stream.read_u8().await?;
    let mut count = usize::from(stream.read_u8().await?);
    count <<= 20;
    let mut bytes = vec![0; 256 << 10];
    if direction == b'd' {
        for _ in 0..count / bytes.len() {
            stream.write_all(&bytes).await?;
        }
        return stream.shutdown().await;
    }
    while count > 0 {
        count -= stream.read(&mut bytes).await?;
    }
    stream.write_all(b"x").await
}

async fn measure(what: &str, kind: &str, config: &str, image: &str, service: SocketAddr, tunnel: bool) {
    let root = tempfile::tempdir().expect("make a directory");
    let environment = environment(root.path(), kind, config, image).await;
    let port = match tunnel {
        true => environment.offer(service).await.expect("offer the service"),
        false => service.port(),
    };
    for connections in [1, 8] {
        let count = MEGABYTES / connections / 4;
        for (direction, work) in [
            ("in", format!("printf 'd\\x{count:x}' >&3; head -c {count}M <&3 > /dev/null")),
            ("out", format!("printf 'u\\x{count:x}' >&3; head -c {count}M /dev/zero >&3; read -r -N 1 <&3")),
        ] {
            // Each connection carries at most 128 megabytes at a time, because the count is one byte.
            let script = format!(
                "for n in {{1..{connections}}}; do (for m in {{1..4}}; do exec 3<>/dev/tcp/127.0.0.1/{port}; {work}; done) & done; wait"
            );
            let (before, from) = (cpu(), Instant::now());
            run(&*environment, &script).await;
            let (took, after) = (from.elapsed().as_secs_f64(), cpu());
            let megabytes = MEGABYTES as f64;
            let [own, guest, engine] =
                [0, 1, 2].map(|which| (after[which] - before[which]).as_secs_f64() * 1e3 / megabytes);
            println!(
                "{what:<18} {direction:>9} {connections:>12} {:>8.0} {own:>14.2} {guest:>14.2} {engine:>14.2}",
                megabytes / took
            );
        }
    }
    environment.destroy().await.expect("destroy the environment");
}

async fn environment(root: &Path, kind: &str, config: &str, image: &str) -> Box<dyn Environment> {
    TestTask::new("task").write(&root.join("set"));
    let path = root.join("job.yaml");
    let job = format!(
        "name: bench\nenvironment: {{type: {kind}, provider_config: {config}}}\nagents: [{{name: oracle}}]\ndatasets: [{{path: set}}]\n"
    );
    fs::write(&path, job).expect("write a job");
    let loaded = load_job(&path, &[], &|_: &str| None).expect("load a job");
    let place = HostPaths {
        state_dir: root.join("state"),
        helper: env!("CARGO_BIN_EXE_rollout").into(),
        docker: DockerAccess::from_variables(|name| std::env::var_os(name)),
        kubernetes: KubernetesAccess::default(),
        clouds: CloudAccess::default(),
    };
    let provider = connect(&loaded.config.environment, &place).await.expect("connect to the provider");
    let origin = Origin { job: "bench", trial: "bench" };
    let request = ImageRequest {
        origin,
        context: root,
        docker_image: Some(image),
        build: None,
        force_build: false,
        log: &root.join("log"),
    };
    let image = provider.prepare(request).await.expect("prepare the image");
    let spec = EnvironmentSpec {
        cpus: Some(Cpus { millis: 2000 }),
        memory: Some(Bytes(1 << 30)),
        storage: Some(Bytes(1 << 30)),
        ..EnvironmentSpec::new(origin, &image, "bench")
    };
    provider.create(spec).await.expect("create an environment")
}

async fn run(environment: &dyn Environment, script: &str) {
    let command = Exec {
        role: CommandRole::Agent,
        argv: &["bash", "-c", script],
        env: &[],
        deadline: None,
        stdout: LogWriter::discard(),
        stderr: LogWriter::discard(),
    };
    let exit = environment.exec(command).await.expect("run a script");
    assert_eq!(exit.outcome, Outcome::Code(0));
}

/// The CPU time so far of this process, of guests, and of the engine.
fn cpu() -> [Duration; 3] {
    let mut times = [Duration::ZERO; 3];
    for entry in fs::read_dir("/proc").expect("list processes").flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((head, tail)) = stat.rsplit_once(')') else { continue };
        let Some((pid, name)) = head.split_once(" (") else { continue };
        let which = match name {
            _ if pid == std::process::id().to_string() => 0,
            "guest" => 1,
            name if ENGINE.contains(&name) => 2,
            _ => continue,
        };
        let fields = tail.split_whitespace().skip(11).take(2);
        let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
        // The kernel reports in hundredths of a second on every architecture that Rollout runs on.
        times[which] += Duration::from_millis(ticks * 10);
    }
    times
}
