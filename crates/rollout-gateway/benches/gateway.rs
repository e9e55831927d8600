//! What the gateway costs on this machine, beside a direct connection and LiteLLM's proxy.
//!
//! `cargo bench -p rollout-gateway` prints one table. The scripted model server, the gateway, LiteLLM's proxy and the
//! clients are processes of their own, so that CPU time and memory are those of one program. `scripts/python-env`
//! installs LiteLLM's proxy the first time. The program fails if the gateway's CPU time or memory is above its target;
//! latencies depend on what else runs on the machine, and are only printed.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rollout_gateway::{Dialect, Gateway, GatewayConfig, ModelRoute, SessionSpec, Upstream};
use rollout_testkit::{Hold, ModelReply, ModelServer, Script};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::{runtime::Runtime, sync::Semaphore, task::JoinSet};

/// The streams at a time.
const STREAMS: usize = 64;
/// The calls of a measurement of throughput.
const CALLS: usize = 4000;
/// The same for LiteLLM's proxy, which takes longer.
const FEW_CALLS: usize = 400;
/// The rounds of a measurement of latency. The programs take turns, so that the machine's other work hits all of them.
const ROUNDS: usize = 3;
/// The calls of each stream in a round.
const CALLS_IN_ROUND: usize = 3;
/// How long the model thinks before its first token, when latency is measured.
const THINKING: Duration = Duration::from_secs(1);
/// The streams that are open at once when memory is measured.
const OPEN_STREAMS: usize = 1000;
/// The size of a long conversation: what an agent sends in its first turn.
const LONG_BYTES: usize = 50_000;
/// The most CPU time that the gateway may add to a call.
const CPU_TARGET_MS: f64 = 1.0;
/// The most memory of the gateway with all open streams.
const MEMORY_TARGET_MB: f64 = 200.0;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["upstream"] => upstream(),
        ["gateway", url] => gateway(url),
        _ => return table(),
    }
    ExitCode::SUCCESS
}

/// A program that was started, and what it printed.
struct Program {
    child: Child,
    stdin: ChildStdin,
    lines: Vec<String>,
}

impl Program {
    /// This program with other arguments. It prints so many lines when it is ready.
    fn own(arguments: &[&str], lines: usize) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let stdin = child.stdin.take().expect("it is piped");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let lines = (0..lines).map(|_| output.next().expect("a line").expect("it can be read")).collect();
        Self { child, stdin, lines }
    }

    /// The CPU time of all its threads.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks =
            |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
        // A tick is a hundredth of a second on Linux.
        Duration::from_millis((ticks(11) + ticks(12)) * 10)
    }

    fn peak_mb(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(f64::NAN) / 1024.0
    }

    fn line(&mut self) {
        writeln!(self.stdin).expect("the program reads its input");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three model servers: one answers at once, one thinks first, one stops in the middle of each stream until a line comes
/// in.
fn upstream() {
    let text = "It is 4, and that is all there is to say about it.";
    let quick = ModelServer::start(Script::fixed_turns([ModelReply::text(text)]));
    let slow = ModelServer::always(ModelReply::text(text).delay(THINKING));
    let hold = Hold::new();
    let held = ModelServer::always(ModelReply::text(text).held_midway(&hold));
    println!("{}\n{}\n{}", quick.root(), slow.root(), held.root());
    let _ = std::io::stdin().read_line(&mut String::new());
    hold.open();
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn gateway(url: &str) {
    runtime().block_on(async {
        let dir = tempfile::tempdir().expect("a directory");
        let gateway = Gateway::start(GatewayConfig::default()).await.expect("the gateway starts");
        let upstream = Upstream::new(url, Dialect::Chat).with_key("sk-real-key");
        let spec = SessionSpec::new(dir.path().join("calls.jsonl"), ModelRoute::all(upstream, "fixed"));
        let session = gateway.open(spec).expect("a session");
        println!("http://{}\n{}", gateway.address(), session.token());
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        let _ = ended.await;
    });
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("start a runtime")
}

/// A server to ask, and what for.
#[derive(Clone)]
struct Target {
    url: String,
    token: String,
    path: &'static str,
    body: Arc<Value>,
}

impl Target {
    fn new(url: &str, token: &str, path: &'static str, body: Value) -> Self {
        Self { url: url.to_owned(), token: token.to_owned(), path, body: Arc::new(body) }
    }

    fn chat(url: &str, token: &str, question: &str) -> Self {
        let body =
            json!({"model": "fixed", "stream": true, "messages": [{"role": "user", "content": question}]});
        Self::new(url, token, "/v1/chat/completions", body)
    }

    fn messages(url: &str, token: &str, question: &str) -> Self {
        let message = json!([{"role": "user", "content": question}]);
        let body = json!({"model": "fixed", "stream": true, "max_tokens": 100, "messages": message});
        Self::new(url, token, "/v1/messages", body)
    }

    /// Asks for a stream, and waits for its first piece.
    async fn ask(self, http: reqwest::Client) -> reqwest::Response {
        let request = http.post(format!("{}{}", self.url, self.path)).bearer_auth(self.token);
        let mut response = request.json(&*self.body).send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        response.chunk().await.expect("a stream").expect("a first piece");
        response
    }
}

/// Reads the rest of a stream.
async fn finish(mut response: reqwest::Response) {
    while response.chunk().await.expect("a stream").is_some() {}
}

/// Raises the limit of open files, which the other programs inherit.
fn allow_connections() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("a limit can be raised to its maximum");
}

fn table() -> ExitCode {
    allow_connections();
    let runtime = runtime();
    let mut upstream = Program::own(&["upstream"], 3);
    let [quick, slow, held] = [0, 1, 2].map(|at| upstream.lines[at].clone());
    println!("{}\n", machine());
    println!("{STREAMS} streams at a time, as fast as they go");
    println!("{:<44} {:>10} {:>16} {:>8}", "", "calls/s", "CPU ms per call", "peak MB");
    let long = "word ".repeat(LONG_BYTES / 5);
    let short = "What is 2+2?";
    for (name, question) in [("directly", short), ("directly, requests of 50 kB", &long)] {
        let per_second = runtime.block_on(throughput(&Target::chat(&quick, "none", question), CALLS));
        println!("{name:<44} {per_second:>10.0}");
    }
    let own = Program::own(&["gateway", &quick], 2);
    let [url, token] = [0, 1].map(|at| own.lines[at].as_str());
    let mut cpu: f64 = 0.0;
    for (name, target) in [
        ("gateway", Target::chat(url, token, short)),
        ("gateway, requests of 50 kB", Target::chat(url, token, &long)),
        ("gateway, Messages to Chat Completions", Target::messages(url, token, short)),
        ("gateway, the same with requests of 50 kB", Target::messages(url, token, &long)),
    ] {
        cpu = cpu.max(throughput_row(&runtime, name, &own, &target, CALLS));
    }
    let litellm = Litellm::install().and_then(|litellm| Ok((litellm.start(&quick, &runtime)?, litellm)));
    match &litellm {
        Ok((proxy, _)) => {
            for (name, question) in [("LiteLLM", short), ("LiteLLM, requests of 50 kB", &long)] {
                let target = Target::chat(&proxy.lines[0], &proxy.lines[1], question);
                throughput_row(&runtime, name, proxy, &target, FEW_CALLS);
            }
        }
        Err(reason) => println!("LiteLLM is not measured: {reason}"),
    }

    println!(
        "\n{STREAMS} streams at a time, spread over the second that the model thinks: ms to the first token"
    );
    println!("{:<44} {:>10} {:>10} {:>12} {:>12}", "", "median", "p99", "added median", "added p99");
    let passing = Program::own(&["gateway", &slow], 2);
    let mut targets = vec![
        ("directly", Target::chat(&slow, "none", short)),
        ("gateway", Target::chat(&passing.lines[0], &passing.lines[1], short)),
    ];
    let slow_proxy = litellm.as_ref().ok().and_then(|(_, litellm)| litellm.start(&slow, &runtime).ok());
    if let Some(proxy) = &slow_proxy {
        targets.push(("LiteLLM", Target::chat(&proxy.lines[0], &proxy.lines[1], short)));
    }
    latency_rows(&runtime, &targets);

    let many = Program::own(&["gateway", &held], 2);
    let target = Target::chat(&many.lines[0], &many.lines[1], short);
    let open = runtime.block_on(open_streams(&target));
    let memory = many.peak_mb();
    println!("\ngateway with {OPEN_STREAMS} open streams: peak {memory:.0} MB");
    upstream.line();
    runtime.block_on(async {
        for stream in open {
            finish(stream).await;
        }
    });
    let is_met = cpu < CPU_TARGET_MS && memory < MEMORY_TARGET_MB;
    println!(
        "targets of the gateway, less than {CPU_TARGET_MS} ms of CPU per call and {MEMORY_TARGET_MB} MB: {}",
        if is_met { "met" } else { "missed" }
    );
    if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name\t: ")).unwrap_or("unknown CPU");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = read("/proc/loadavg");
    format!(
        "{cores} cores of {model}, Linux {}, load {}",
        read("/proc/sys/kernel/osrelease").trim(),
        load.split(' ').next().unwrap_or_default()
    )
}

/// Measures and prints the throughput of a program; its CPU time in milliseconds per call.
fn throughput_row(runtime: &Runtime, name: &str, program: &Program, target: &Target, calls: usize) -> f64 {
    runtime.block_on(throughput(target, calls / 10));
    let before = program.cpu();
    let per_second = runtime.block_on(throughput(target, calls));
    let cpu = (program.cpu() - before).as_secs_f64() * 1e3 / calls as f64;
    println!("{name:<44} {per_second:>10.0} {cpu:>16.2} {:>8.0}", program.peak_mb());
    cpu
}

/// Asks for streams, so many at a time, as fast as they go; the calls per second.
async fn throughput(target: &Target, calls: usize) -> f64 {
    let http = reqwest::Client::new();
    let places = Arc::new(Semaphore::new(STREAMS));
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for _ in 0..calls {
        let place = Arc::clone(&places).acquire_owned().await.expect("it is never closed");
        let asked = target.clone().ask(http.clone());
        tasks.spawn(async move {
            finish(asked.await).await;
            drop(place);
        });
    }
    tasks.join_all().await;
    calls as f64 / begun.elapsed().as_secs_f64()
}

/// Measures the first tokens of several servers in turn, and prints them beside the first one.
fn latency_rows(runtime: &Runtime, targets: &[(&str, Target)]) {
    let mut found = vec![Vec::new(); targets.len()];
    for _ in 0..ROUNDS {
        for (firsts, (_, target)) in found.iter_mut().zip(targets) {
            firsts.extend(runtime.block_on(first_tokens(target)));
        }
    }
    let shown: Vec<[f64; 2]> = found
        .iter_mut()
        .map(|firsts| {
            firsts.sort_unstable();
            [firsts.len() / 2, firsts.len() * 99 / 100].map(|at| firsts[at].as_secs_f64() * 1e3)
        })
        .collect();
    for ((name, _), [median, p99]) in targets.iter().zip(&shown) {
        let [median_before, p99_before] = shown[0];
        print!("{name:<44} {median:>10.2} {p99:>10.2}");
        match *name {
            "directly" => println!(),
            _ => println!(" {:>12.2} {:>12.2}", median - median_before, p99 - p99_before),
        }
    }
}

/// The times to the first tokens of streams that begin one after the other.
async fn first_tokens(target: &Target) -> Vec<Duration> {
    let http = reqwest::Client::new();
    let mut tasks = JoinSet::new();
    for stream in 0..STREAMS {
        let (target, http) = (target.clone(), http.clone());
        tasks.spawn(async move {
            tokio::time::sleep(THINKING.mul_f64(stream as f64 / STREAMS as f64)).await;
            let mut firsts = Vec::new();
            for _ in 0..CALLS_IN_ROUND {
                let begun = Instant::now();
                let response = target.clone().ask(http.clone()).await;
                firsts.push(begun.elapsed());
                finish(response).await;
            }
            firsts
        });
    }
    tasks.join_all().await.concat()
}

/// Opens streams that stop in the middle.
async fn open_streams(target: &Target) -> Vec<reqwest::Response> {
    let http = reqwest::Client::new();
    let mut tasks = JoinSet::new();
    for _ in 0..OPEN_STREAMS {
        tasks.spawn(target.clone().ask(http.clone()));
    }
    tasks.join_all().await
}

/// LiteLLM's proxy, installed.
struct Litellm(PathBuf);

impl Litellm {
    fn install() -> Result<Self, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = Command::new(root.join("../../scripts/python-env"))
            .arg(root.join("benches/litellm.txt"))
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err("scripts/python-env failed".to_owned());
        }
        let python = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        Ok(Self(python.with_file_name("litellm")))
    }

    /// Starts the proxy in front of a server, and waits until it answers.
    fn start(&self, upstream: &str, runtime: &Runtime) -> Result<Program, String> {
        let port = {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            listener.local_addr().expect("it has an address").port()
        };
        let config = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a file");
        let text = format!(
            "model_list:\n  - model_name: fixed\n    litellm_params:\n      model: openai/fixed\n      \
             api_base: {upstream}/v1\n      api_key: sk-real-key\nlitellm_settings:\n  telemetry: false\n"
        );
        fs::write(config.path(), text).expect("the file can be written");
        // It refuses to start without a key, or with one that is easy to guess.
        let key = format!("sk-{:032x}{:032x}", fastrand::u128(..), fastrand::u128(..));
        let mut child = Command::new(&self.0)
            .arg("--config")
            .arg(config.path())
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .env("LITELLM_MASTER_KEY", &key)
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", self.0.display()))?;
        let stdin = child.stdin.take().expect("it is piped");
        let url = format!("http://127.0.0.1:{port}");
        let program = Program { child, stdin, lines: vec![url.clone(), key] };
        let is_ready = runtime.block_on(async {
            let http = reqwest::Client::new();
            for _ in 0..600 {
                let asked = http.get(format!("{url}/health/liveliness")).send().await;
                if asked.is_ok_and(|found| found.status() == 200) {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            false
        });
        // The configuration is read at the start.
        drop(config);
        if is_ready { Ok(program) } else { Err("it does not answer".to_owned()) }
    }
}
