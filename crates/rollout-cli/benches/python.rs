//! What a call of a Python function costs Rollout itself.
//!
//! `cargo bench -p rollout-cli --bench python` prints one table. CPU is that of this process; Python's is beside it.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use std::{fs, sync::Arc, time::Instant};

use futures_util::{StreamExt as _, stream};
use rollout::model::{
    Client, Message, Model, PythonFunction, PythonWorker, RolloutInput, SamplingArgs, State,
    client::ClientConfig,
    parser::Plain,
    rubric::{PythonReward, Scene},
};

const FUNCTIONS: &str = "
def exact(response, answer):
    return response == answer

def everything(**rollout):
    return len(rollout['completion'])
";

/// What a call may cost.
const MOST_MILLISECONDS: f64 = 0.2;

#[tokio::main]
async fn main() {
    let dir = tempfile::tempdir().expect("make a directory");
    fs::write(dir.path().join("functions.py"), FUNCTIONS).expect("write the functions");
    println!(
        "{:<34} {:>7} {:>9} {:>7} {:>11} {:>13}",
        "", "calls", "at a time", "per s", "CPU ms each", "Python CPU ms"
    );
    for (what, function, messages) in
        [("an answer of a short rollout", "exact", 2), ("all of a rollout of 20 messages", "everything", 20)]
    {
        for concurrency in [1, 16] {
            measure(dir.path(), what, function, messages, concurrency).await;
        }
    }
}

async fn measure(dir: &std::path::Path, what: &str, function: &str, messages: usize, concurrency: usize) {
    const CALLS: usize = 5_000;
    let worker = PythonWorker::new("python3", dir);
    let function = PythonFunction { file: "functions.py".into(), function: function.to_owned() };
    let reward = PythonReward::new(&worker, function);
    reward.check().await.expect("Python calls the function");
    let state = rollout(messages);
    let (before, children, start) = (cpu_seconds("self"), children_seconds(), Instant::now());
    let calls = stream::iter(0..CALLS).map(|_| async {
        let scene = Scene::new(&state, &Plain);
        reward.score(&scene).await.expect("the function scores");
    });
    calls.buffer_unordered(concurrency).collect::<()>().await;
    let seconds = start.elapsed().as_secs_f64();
    let each = |cpu: f64| cpu * 1e3 / CALLS as f64;
    let ours = each(cpu_seconds("self") - before);
    let theirs = each(children_seconds() - children);
    println!(
        "{what:<34} {CALLS:>7} {concurrency:>9} {:>7.0} {ours:>11.3} {theirs:>13.3}",
        CALLS as f64 / seconds
    );
    assert!(ours < MOST_MILLISECONDS, "a call costs {ours} ms, more than {MOST_MILLISECONDS}");
}

fn rollout(messages: usize) -> State {
    let model = Model {
        client: Client::new(ClientConfig::new("http://127.0.0.1:9/v1")).expect("make a client"),
        name: "none".to_owned(),
        sampling: SamplingArgs::new(),
        max_seq_len: None,
    };
    let input = RolloutInput {
        prompt: vec![Arc::new(Message::user("What is 2+2?"))],
        answer: Some("4".to_owned()),
        ..RolloutInput::default()
    };
    let mut state = State::new(input, Arc::new(model), Arc::new([]));
    let text = "The sum of two and two is four, as everyone who can count knows. ".repeat(8);
    let mut said: Vec<_> = (1..messages).map(|_| Arc::new(Message::assistant(text.as_str()))).collect();
    said.push(Arc::new(Message::assistant("4")));
    state.completion = Some(said);
    state
}

/// The CPU time of a process.
fn cpu_seconds(process: &str) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let (_, fields) = stat.rsplit_once(") ").unwrap_or_default();
    // The kernel reports in hundredths of a second on every architecture that Rollout runs on.
    let ticks: f64 = fields.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// The CPU time of the processes that this one started and that still run.
fn children_seconds() -> f64 {
    let children = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let others = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let mut ids: Vec<String> = others
        .chain([children])
        .flat_map(|ids| ids.split(' ').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids.iter().filter(|id| !id.is_empty()).map(|id| cpu_seconds(id)).sum()
}
