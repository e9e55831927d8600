//! What a model rollout costs on this machine, against a scripted server in another process.
//!
//! `cargo bench -p rollout-cli --bench model` prints one table. Every row is a process of its own, so that its peak of
//! memory is its own too. The server's share shows how far it is from being what is measured.
//!
//! With `-- --beside PATH`, the rows of the command alone are measured, alternately with this program and with the
//! `rollout` at the path, for instance that of an older version.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rollout::model::{
    Client, Examples, Interaction, Message, Model, RolloutInput, Rollouts, Rubric, RunOptions, SamplingArgs,
    SingleTurn, ToolUse, client::ClientConfig, tool,
};
use rollout_testkit::{ModelServer, Script};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const ROLLOUT: &str = env!("CARGO_BIN_EXE_rollout");

const REQUESTS: &str = "bare requests, to see the server alone";
const SINGLE: &str = "rollouts of one turn, saved";
const COMMAND: &str = "rollouts of one turn, by the command";
const TOOLS: &str = "rollouts of five tool turns, saved";

/// The rows of the command: how many rollouts at a time, and how many in all.
const COMMAND_ROWS: [(u32, u32); 4] = [(16, 20_000), (128, 20_000), (1_000, 20_000), (1_000, 1_000)];

/// How often each of two programs is measured.
const ROUNDS: usize = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", script] => serve(script),
        ["measure", what, concurrency, rollouts, url] => {
            let number = |text: &str| text.parse().expect("the table gives numbers");
            measure(what, number(concurrency), number(rollouts), url);
        }
        _ => match arguments.iter().position(|argument| *argument == "--beside") {
            Some(place) => beside(Path::new(arguments.get(place + 1).expect("--beside has a path"))),
            None => table(),
        },
    }
}

/// What one process measured of itself.
#[derive(Serialize, Deserialize)]
struct Figures {
    seconds: f64,
    cpu_seconds: f64,
    peak_kilobytes: u64,
}

fn table() {
    println!(
        "{:<40} {:>8} {:>9} {:>7} {:>11} {:>13} {:>7}",
        "", "count", "at a time", "per s", "CPU ms each", "server CPU ms", "peak MB"
    );
    let rows = [
        (REQUESTS, "fixed", 64, 200_000),
        (SINGLE, "fixed", 16, 20_000),
        (SINGLE, "fixed", 128, 20_000),
        (SINGLE, "fixed", 1_000, 20_000),
        // Nearly all of its memory is that of a thousand rollouts under way.
        (SINGLE, "fixed", 1_000, 1_000),
        (TOOLS, "fixed-tools", 16, 4_000),
        (TOOLS, "fixed-tools", 128, 4_000),
        (TOOLS, "fixed-tools", 1_000, 4_000),
    ];
    let of_command = COMMAND_ROWS.map(|(concurrency, count)| (COMMAND, "fixed", concurrency, count));
    for (what, script, concurrency, count) in rows.into_iter().chain(of_command) {
        let (mut server, url) = start(script);
        let before = cpu_time(server.id());
        let output = Command::new(std::env::current_exe().expect("know this program"))
            .args(["measure", what, &concurrency.to_string(), &count.to_string(), &url])
            .stderr(Stdio::inherit())
            .output()
            .expect("start a measurement");
        assert!(output.status.success(), "the measurement of {what} failed");
        let served = cpu_time(server.id()) - before;
        stop(&mut server);
        let figures: Figures = serde_json::from_slice(&output.stdout).expect("read a measurement");
        let each = |seconds: f64| seconds * 1e3 / f64::from(count);
        println!(
            "{what:<40} {count:>8} {concurrency:>9} {:>7.0} {:>11.3} {:>13.3} {:>7.1}",
            f64::from(count) / figures.seconds,
            each(figures.cpu_seconds),
            each(served.as_secs_f64()),
            figures.peak_kilobytes as f64 / 1024.0,
        );
    }
}

/// Compares the CPU time of the command with that of another program, in rounds that alternate: what else the machine
/// does meets both.
fn beside(other: &Path) {
    let other = other.canonicalize().expect("find the program of --beside");
    let programs = [Path::new(ROLLOUT), &other];
    println!("beside: {}\n", other.display());
    println!(
        "{:<40} {:>8} {:>9} {:>11} {:>11} {:>7}",
        "CPU ms each, median of three", "count", "at a time", "this", "beside", "ratio"
    );
    for (concurrency, count) in COMMAND_ROWS {
        let mut rounds = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            // The first place of a round changes.
            for place in [round % 2, (round + 1) % 2] {
                let (mut server, url) = start("fixed");
                let figures = command(programs[place], &url, concurrency, count);
                stop(&mut server);
                rounds[place].push(figures.cpu_seconds * 1e3 / f64::from(count));
            }
        }
        let [this, beside] = rounds.map(|mut rounds| {
            rounds.sort_by(f64::total_cmp);
            rounds[ROUNDS / 2]
        });
        println!(
            "{COMMAND:<40} {count:>8} {concurrency:>9} {this:>11.3} {beside:>11.3} {:>7.3}",
            this / beside
        );
    }
}

/// Starts this program again as a server, which ends with its input.
fn start(script: &str) -> (Child, String) {
    let mut server = Command::new(std::env::current_exe().expect("know this program"))
        .args(["serve", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start a server");
    let mut url = String::new();
    let stdout = server.stdout.take().expect("its output is a pipe");
    BufReader::new(stdout).read_line(&mut url).expect("read the server's address");
    (server, url.trim_end().to_owned())
}

fn stop(server: &mut Child) {
    drop(server.stdin.take());
    server.wait().expect("wait for the server");
}

fn serve(script: &str) {
    let server = ModelServer::start(Script::named(script).expect("the table names scripts"));
    println!("{}", server.url());
    std::io::stdin().read_to_end(&mut Vec::new()).expect("wait for the end");
}

fn measure(what: &str, concurrency: u32, count: u32, url: &str) {
    let figures = match what {
        COMMAND => command(Path::new(ROLLOUT), url, concurrency, count),
        REQUESTS => this_process(requests(url, concurrency, count)),
        SINGLE => this_process(evaluate(url, concurrency, count, SingleTurn)),
        TOOLS => this_process(evaluate(url, concurrency, count, adder())),
        _ => unreachable!("the table names measurements"),
    };
    println!("{}", serde_json::to_string(&figures).expect("write a measurement"));
}

fn this_process(work: impl Future<Output = ()>) -> Figures {
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    let before = cpu_time(std::process::id());
    let from = Instant::now();
    runtime.block_on(work);
    Figures {
        seconds: from.elapsed().as_secs_f64(),
        cpu_seconds: (cpu_time(std::process::id()) - before).as_secs_f64(),
        peak_kilobytes: peak_kilobytes(std::process::id()).unwrap_or(0),
    }
}

/// The command with a job of its own, from its start to its end.
fn command(program: &Path, url: &str, concurrency: u32, count: u32) -> Figures {
    let dir = tempfile::tempdir().expect("make a directory");
    let rows = "{\"question\":\"What is 2+2?\",\"answer\":\"4\"}\n".repeat(count as usize);
    fs::write(dir.path().join("sums.jsonl"), rows).expect("write a dataset");
    let job = json!({
        "name": "bench",
        "n_concurrent_trials": concurrency,
        "agents": [{"name": "scripted", "model": {"name": "scripted", "base_url": url}}],
        "datasets": [{"name": "sums", "interaction": {
            "dataset": "sums.jsonl",
            "rubric": [{"name": "correct", "match": "exact"}],
        }}],
    });
    fs::write(dir.path().join("job.yaml"), job.to_string()).expect("write a job");
    let from = Instant::now();
    let mut rollout = Command::new(program)
        .args(["run", "job.yaml", "--output", "json"])
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("start the command");
    // A process that has ended has no figures to ask, so the last ones before that are taken.
    let (mut cpu, mut peak) = (Duration::ZERO, 0);
    let status = loop {
        if let Some(kilobytes) = peak_kilobytes(rollout.id()) {
            (cpu, peak) = (cpu_time(rollout.id()), kilobytes);
        }
        if let Some(status) = rollout.try_wait().expect("wait for the command") {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(status.success(), "the command failed");
    Figures { seconds: from.elapsed().as_secs_f64(), cpu_seconds: cpu.as_secs_f64(), peak_kilobytes: peak }
}

/// Whole rollouts, each an example of its own, scored and saved.
async fn evaluate(url: &str, concurrency: u32, count: u32, interaction: impl Interaction + 'static) {
    let examples: Vec<RolloutInput> = (0..u64::from(count))
        .map(|number| RolloutInput {
            prompt: vec![Message::user("What is 2+2?").into()],
            example_id: number,
            task: "sum".to_owned(),
            answer: Some("4".to_owned()),
            info: None,
            extra: Map::new(),
        })
        .collect();
    let rubric = Rubric::new().reward("correct", 1.0, |scene| scene.parsed() == scene.answer);
    let rollouts = Rollouts::new(interaction, rubric).env_id("bench").dataset(examples);
    let model = Model {
        client: Client::new(ClientConfig::new(url)).expect("make a client"),
        name: "scripted".to_owned(),
        sampling: SamplingArgs::default(),
        max_seq_len: None,
    };
    let results = tempfile::tempdir().expect("make a directory");
    let options = RunOptions::new(model).max_concurrent(concurrency).save_to(results.path().join("run"));
    let outputs = rollouts.evaluate(Examples::all(), options).await.expect("evaluate the model");
    assert_eq!(outputs.outputs.len(), count as usize);
    assert_eq!(outputs.metadata.avg_error, 0.0, "no rollout fails");
}

#[derive(Deserialize, JsonSchema)]
struct Sum {
    a: i64,
    b: i64,
}

fn adder() -> ToolUse<'static> {
    let add = tool::function("add", "Adds two numbers.", |sum: Sum| async move { sum.a + sum.b });
    ToolUse::new([add]).expect("one tool has one name")
}

/// Requests as cheap as they can be, to see what the server can do.
async fn requests(url: &str, concurrency: u32, count: u32) {
    let host = url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let body = r#"{"model":"m","messages":[{"role":"user","content":"What is 2+2?"}],"temperature":0.7}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..concurrency {
        let (host, request) = (host.clone(), request.clone());
        clients.spawn(async move {
            let mut stream = tokio::net::TcpStream::connect(host).await.expect("reach the server");
            stream.set_nodelay(true).expect("send at once");
            let mut reply = [0; 4096];
            for _ in 0..count / concurrency {
                stream.write_all(request.as_bytes()).await.expect("send a request");
                let mut read = 0;
                // The reply is small and ends with the object's last brace; its headers have none.
                while read == 0 || !reply[..read].ends_with(b"}}}") {
                    read += stream.read(&mut reply[read..]).await.expect("read a reply");
                }
            }
        });
    }
    clients.join_all().await;
}

/// CPU time of a process, in user and system mode.
fn cpu_time(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("read a process's times");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    // The kernel reports in hundredths of a second on every architecture that Rollout runs on.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// The most memory that a process has held, as long as it runs.
fn peak_kilobytes(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().trim_end_matches(" kB").parse().ok()
}
