//! What the gateway costs on this machine, against a scripted upstream in another process.
//!
//! `cargo bench -p rollout-gateway --bench gateway` prints one table. Upstream, gateway and clients are processes of
//! their own, so that CPU time and memory are those of the gateway alone. LiteLLM's proxy is measured beside it if the
//! variable `LITELLM` is the path of its program (`pip install 'litellm[proxy]'`).
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rollout_gateway::{Dialect, Gateway, GatewayConfig, ModelRoute, SessionSpec, Upstream};
use rollout_testkit::{Hold, ModelReply, ModelServer, Script};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet};

/// The calls of a measurement.
const CALLS: usize = 4000;
/// The calls of a measurement of a slow gateway.
const FEW_CALLS: usize = 400;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["upstream"] => upstream(),
        ["gateway", url] => gateway(url),
        _ => table(),
    }
}

/// A program that was started, and prints its address first.
struct Program {
    child: Child,
    stdin: ChildStdin,
    lines: Vec<String>,
}

impl Program {
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

    fn cpu(&self) -> Duration {
        cpu_of(self.child.id())
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

/// The CPU time of a process and its threads.
fn cpu_of(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
    // A tick is a hundredth of a second on Linux.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// Two upstreams: one answers at once, one stops in the middle of each stream until a line comes in.
fn upstream() {
    let text = "It is 4, and that is all there is to say about it.";
    let quick = ModelServer::start(Script::fixed_turns([ModelReply::text(text)]));
    let hold = Hold::new();
    let held = ModelServer::always(ModelReply::text(text).held_midway(&hold));
    println!("{}\n{}", quick.root(), held.root());
    let _ = std::io::stdin().read_line(&mut String::new());
    hold.open();
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn gateway(url: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("start a runtime");
    runtime.block_on(async {
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

fn table() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("start a runtime");
    let mut upstream = Program::own(&["upstream"], 2);
    let (quick, held) = (upstream.lines[0].clone(), upstream.lines[1].clone());
    println!(
        "{:<34} {:>8} {:>12} {:>14} {:>14} {:>8}",
        "", "per s", "CPU ms each", "first token ms", "added ms", "peak MB"
    );
    let direct = runtime.block_on(measure(&quick, "none", CALLS));
    row("directly, 64 streams", &direct, None, None, None);
    let own = Program::own(&["gateway", &quick], 2);
    runtime.block_on(measure(&own.lines[0], &own.lines[1], CALLS / 10));
    let before = own.cpu();
    let passed = runtime.block_on(measure(&own.lines[0], &own.lines[1], CALLS));
    let cpu = (own.cpu() - before).as_secs_f64() * 1e3 / CALLS as f64;
    row("gateway, 64 streams", &passed, Some(&direct), Some(cpu), Some(own.peak_mb()));
    let many = Program::own(&["gateway", &held], 2);
    let streams = runtime.block_on(open_streams(&many.lines[0], &many.lines[1], 1000));
    println!("{:<34} {:>67.0}", "gateway, 1000 streams at once", many.peak_mb());
    upstream.line();
    drop(streams);
    match std::env::var("LITELLM") {
        Ok(program) => {
            let proxy = litellm(&program, &quick, &runtime);
            let url = &proxy.lines[0];
            runtime.block_on(measure(url, "sk-any", FEW_CALLS / 4));
            let before = proxy.cpu();
            let passed = runtime.block_on(measure(url, "sk-any", FEW_CALLS));
            let cpu = (proxy.cpu() - before).as_secs_f64() * 1e3 / FEW_CALLS as f64;
            row("LiteLLM's proxy, 64 streams", &passed, Some(&direct), Some(cpu), Some(proxy.peak_mb()));
        }
        Err(_) => println!("LiteLLM's proxy is not measured: the variable LITELLM is not set"),
    }
}

fn row(name: &str, figures: &Figures, direct: Option<&Figures>, cpu: Option<f64>, peak: Option<f64>) {
    let shown = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
    println!(
        "{name:<34} {:>8.0} {:>12} {:>14.2} {:>14} {:>8}",
        figures.per_second,
        shown(cpu),
        figures.first_token_ms,
        shown(direct.map(|direct| figures.first_token_ms - direct.first_token_ms)),
        peak.map_or_else(String::new, |peak| format!("{peak:.0}")),
    );
}

struct Figures {
    per_second: f64,
    first_token_ms: f64,
}

fn question() -> Value {
    json!({"model": "fixed", "stream": true, "messages": [{"role": "user", "content": "What is 2+2?"}]})
}

/// Asks for streams, 64 at a time; the median of the time to the first token.
async fn measure(url: &str, token: &str, calls: usize) -> Figures {
    let http = reqwest::Client::new();
    let places = Arc::new(Semaphore::new(64));
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for _ in 0..calls {
        let place = Arc::clone(&places).acquire_owned().await.expect("it is never closed");
        let request = http.post(format!("{url}/v1/chat/completions")).bearer_auth(token).json(&question());
        tasks.spawn(async move {
            let asked = Instant::now();
            let mut response = request.send().await.expect("an answer");
            assert_eq!(response.status(), 200);
            response.chunk().await.expect("a stream").expect("a first piece");
            let first = asked.elapsed();
            while response.chunk().await.expect("a stream").is_some() {}
            drop(place);
            first
        });
    }
    let mut firsts = tasks.join_all().await;
    firsts.sort_unstable();
    Figures {
        per_second: calls as f64 / begun.elapsed().as_secs_f64(),
        first_token_ms: firsts[firsts.len() / 2].as_secs_f64() * 1e3,
    }
}

/// Opens streams that stop in the middle.
async fn open_streams(url: &str, token: &str, count: usize) -> Vec<reqwest::Response> {
    let http = reqwest::Client::new();
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let request = http.post(format!("{url}/v1/chat/completions")).bearer_auth(token).json(&question());
        tasks.spawn(async move {
            let mut response = request.send().await.expect("an answer");
            assert_eq!(response.status(), 200);
            response.chunk().await.expect("a stream").expect("a first piece");
            response
        });
    }
    tasks.join_all().await
}

/// Starts LiteLLM's proxy in front of the upstream, and waits until it answers.
fn litellm(program: &str, upstream: &str, runtime: &tokio::runtime::Runtime) -> Program {
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
    let mut child = Command::new(program)
        .args([
            "--config",
            &config.path().display().to_string(),
            "--port",
            &port.to_string(),
            "--host",
            "127.0.0.1",
        ])
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("LiteLLM starts");
    let stdin = child.stdin.take().expect("it is piped");
    let url = format!("http://127.0.0.1:{port}");
    runtime.block_on(async {
        let http = reqwest::Client::new();
        for _ in 0..600 {
            if http
                .get(format!("{url}/health/liveliness"))
                .send()
                .await
                .is_ok_and(|found| found.status() == 200)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("LiteLLM does not answer");
    });
    // The file is read at the start.
    drop(config);
    Program { child, stdin, lines: vec![url] }
}
