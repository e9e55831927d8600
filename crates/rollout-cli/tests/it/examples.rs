//! The examples run as they are, with the results that their comments and the README promise.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use rollout_testkit::{ModelServer, Script, timeless_line};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The name of the job in what the READMEs show.
const JOB: &str = "2026-01-15__10-30-00";

/// An example that has run.
struct Ran {
    stdout: String,
    dir: PathBuf,
    _root: TempDir,
}

/// Runs an example from a copy, with a model at this address.
#[track_caller]
fn run(job: &str, model: &str) -> Ran {
    let root = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    assert!(Command::new("cp").arg("-r").arg(examples).arg(root.path()).status().unwrap().success());
    let output = Command::new(env!("CARGO_BIN_EXE_rollout"))
        .arg(format!("examples/{job}/job.yaml"))
        .current_dir(root.path())
        .env("ROLLOUT_STATE_DIR", root.path().join("state"))
        .env("MODEL_URL", model)
        .env_remove("MODEL_KEY")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "an example gives no cause for warnings");
    let jobs: Vec<_> = fs::read_dir(root.path().join("jobs")).unwrap().flatten().collect();
    assert_eq!(jobs.len(), 1);
    Ran { stdout: String::from_utf8(output.stdout).unwrap(), dir: jobs[0].path(), _root: root }
}

impl Ran {
    fn json(&self, file: &str) -> Value {
        serde_json::from_slice(&fs::read(self.dir.join(file)).unwrap()).unwrap()
    }

    /// What a person sees of it, which is also what its README shows.
    #[track_caller]
    fn shown(&self, example: &str) -> String {
        let name = self.dir.file_name().unwrap().to_str().unwrap();
        let shown = settled(&self.stdout.replace(name, JOB));
        let readme =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../examples/{example}/README.md"));
        let readme = fs::read_to_string(readme).unwrap();
        let command = format!("$ cargo run --release -- examples/{example}/job.yaml\n");
        let (_, rest) = readme.split_once(&command).expect("the README has the command");
        let (promised, _) = rest.split_once("```").expect("what the command prints ends somewhere");
        assert_eq!(settled(promised), shown, "the README shows what the command prints");
        shown
    }
}

/// Trials in the order of their names, and no time that was taken.
fn settled(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut trials = Vec::new();
    // The free disk space has nothing to do with an example.
    for line in text.lines().filter(|line| !line.starts_with("warning: low disk space")) {
        let line = match line.strip_suffix(" time") {
            Some(columns) if line.starts_with("agent ") => format!("{}  time", columns.trim_end()),
            _ => timeless_line(line),
        };
        match line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
            Some((_, trial)) => trials.push(trial.to_owned()),
            None => {
                trials.sort_by(|a, b| a.split(' ').nth(1).cmp(&b.split(' ').nth(1)));
                lines.append(&mut trials);
                lines.push(match line.split_once(" trials in ") {
                    Some((count, rest)) => {
                        format!("{count} trials in [time]{}", &rest[rest.find(':').unwrap_or(0)..])
                    }
                    None => line,
                });
            }
        }
    }
    lines.join("\n").trim_end().to_owned()
}

/// Runs an example, and returns the rewards of each agent in the order of the results.
#[track_caller]
fn rewards(job: &str) -> BTreeMap<String, Vec<(String, f64)>> {
    let result = run(job, "").json("result.json");
    let mut rewards: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    for row in result["results"].as_array().unwrap() {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        let reward = row["reward"].as_f64().unwrap_or_else(|| panic!("{row}"));
        rewards.entry(text("agent_name")).or_default().push((text("task_name"), reward));
    }
    rewards
}

fn expected(rows: &[(&str, f64)]) -> Vec<(String, f64)> {
    rows.iter().map(|(task, reward)| ((*task).to_owned(), *reward)).collect()
}

#[test]
fn in_the_quickstart_the_oracle_solves_six_of_six_and_two_tricks_four() {
    let found = rewards("quickstart");
    let tasks = |fix: f64| {
        expected(&[
            ("count-errors", 1.0),
            ("count-errors", 1.0),
            ("fix-script", fix),
            ("fix-script", fix),
            ("hello-world", 1.0),
            ("hello-world", 1.0),
        ])
    };
    assert_eq!(found["oracle"], tasks(1.0));
    assert_eq!(found["two-tricks"], tasks(0.0));
    assert_eq!(found.len(), 2);
}

#[test]
fn the_single_task_rewards_its_solution_and_not_doing_nothing() {
    let found = rewards("single-task");
    assert_eq!(found["oracle"], expected(&[("fizzbuzz", 1.0)]));
    assert_eq!(found["nop"], expected(&[("fizzbuzz", 0.0)]));
}

#[test]
fn the_registry_job_runs_the_two_tasks_of_its_version() {
    assert_eq!(rewards("registry")["oracle"], expected(&[("count-errors", 1.0), ("hello-world", 1.0)]));
}

#[test]
fn in_the_example_math_the_scripted_model_solves_what_is_written_in_figures() {
    let server = ModelServer::start(Script::examples());
    let ran = run("math", &server.url());
    insta::assert_snapshot!(ran.shown("math"), @r"
    2026-01-15__10-30-00: 10 trials, 16 at a time
    results in jobs/2026-01-15__10-30-00
    ✓ model/math/0__1  reward 1  [time]
    ✓ model/math/0__2  reward 1  [time]
    ✓ model/math/1__1  reward 1  [time]
    ✓ model/math/1__2  reward 1  [time]
    ✓ model/math/2__1  reward 1  [time]
    ✓ model/math/2__2  reward 1  [time]
    ✓ model/math/3__1  reward 1  [time]
    ✓ model/math/3__2  reward 1  [time]
    ○ model/math/4__1  reward 0  [time]
    ○ model/math/4__2  reward 0  [time]

    agent  dataset  trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    model  math         10         10       0         0       8      80.0%          0.8     —  [time]

    agent  dataset  pass rate, 95%  mean reward ± se  k  pass@k  pass^k  time p50  time p90
    model  math         49.0–94.3%         0.8 ± 0.2  2   80.0%   80.0%  [time]  [time]

    unsolved
      2 trials: assistant: I do not know. (expected: \frac{1}{4})
        rollout show jobs/2026-01-15__10-30-00/model/math/4__1

    10 trials in [time]: 10 completed, 0 failed
    results  jobs/2026-01-15__10-30-00/result.json
    ");
    let metadata = ran.json("metadata.json");
    assert_eq!((&metadata["avg_reward"], &metadata["num_examples"]), (&json!(0.8), &json!(5)));
    assert_eq!(metadata["pass_at_k"], json!({"1": 0.8, "2": 0.8}));
    assert_eq!(server.served(), 10);
}

#[test]
fn in_the_example_judge_another_model_grades() {
    let server = ModelServer::start(Script::examples());
    let ran = run("judge", &server.url());
    insta::assert_snapshot!(ran.shown("judge"), @"
    2026-01-15__10-30-00: 3 trials, 16 at a time
    results in jobs/2026-01-15__10-30-00
    ✓ model/questions/0__1  reward 1  [time]
    ✓ model/questions/1__1  reward 1  [time]
    ○ model/questions/2__1  reward 0  [time]

    agent  dataset    trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    model  questions       3          3       0         0       2      66.7%        0.667     —  [time]

    agent  dataset    pass rate, 95%  mean reward ± se  time p50  time p90
    model  questions      20.8–93.9%     0.667 ± 0.333  [time]  [time]

    unsolved
      1 trial: assistant: I do not know. (expected: Air scatters short waves of light more than long ones.)
        rollout show jobs/2026-01-15__10-30-00/model/questions/2__1

    3 trials in [time]: 3 completed, 0 failed
    results  jobs/2026-01-15__10-30-00/result.json
    ");
    // Each question is one for the model and one for the judge.
    assert_eq!(server.served(), 6);
    assert_eq!(ran.json("metadata.json")["avg_metrics"]["judge"], ran.json("metadata.json")["avg_reward"]);
    let rows = fs::read_to_string(ran.dir.join("outputs.jsonl")).unwrap();
    assert!(rows.lines().all(|row| row.contains("judge_response")), "{rows}");
}

#[test]
fn in_the_example_python_functions_score_and_are_called() {
    let server = ModelServer::start(Script::examples());
    let ran = run("python", &server.url());
    insta::assert_snapshot!(ran.shown("python"), @"
    2026-01-15__10-30-00: 6 trials, 4 at a time
    results in jobs/2026-01-15__10-30-00
    ✓ model/shop/0__1  reward 1  [time]
    ✓ model/shop/0__2  reward 1  [time]
    ✓ model/shop/1__1  reward 1  [time]
    ✓ model/shop/1__2  reward 1  [time]
    ✓ model/shop/2__1  reward 0.8  [time]
    ✓ model/shop/2__2  reward 0.8  [time]

    agent  dataset  trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    model  shop          6          6       0         0       6     100.0%        0.933     —  [time]

    agent  dataset  pass rate, 95%  mean reward ± se  k  pass@k  pass^k  time p50  time p90
    model  shop        61.0–100.0%     0.933 ± 0.067  2  100.0%  100.0%  [time]  [time]

    6 trials in [time]: 6 completed, 0 failed
    results  jobs/2026-01-15__10-30-00/result.json
    ");
    let metadata = ran.json("metadata.json");
    let metrics = &metadata["avg_metrics"];
    assert_eq!(
        (&metrics["price_calls"], &metrics["agree"], &metrics["is_number"]),
        (&json!(1.0), &json!(1.0), &json!(1.0))
    );
}

#[test]
fn in_the_example_conversation_a_function_plays_the_user() {
    let server = ModelServer::start(Script::examples());
    let ran = run("conversation", &server.url());
    insta::assert_snapshot!(ran.shown("conversation"), @"
    2026-01-15__10-30-00: 3 trials, 4 at a time
    results in jobs/2026-01-15__10-30-00
    ✓ model/numbers/0__1  reward 1  [time]
    ✓ model/numbers/1__1  reward 1  [time]
    ○ model/numbers/2__1  reward 0  [time]

    agent  dataset  trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    model  numbers       3          3       0         0       2      66.7%        0.667     —  [time]

    agent  dataset  pass rate, 95%  mean reward ± se  time p50  time p90
    model  numbers      20.8–93.9%     0.667 ± 0.333  [time]  [time]

    unsolved
      1 trial: assistant: 99 (expected: 100)
        rollout show jobs/2026-01-15__10-30-00/model/numbers/2__1

    3 trials in [time]: 3 completed, 0 failed
    results  jobs/2026-01-15__10-30-00/result.json
    ");
    let rows = fs::read_to_string(ran.dir.join("outputs.jsonl")).unwrap();
    let rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let mut ends: Vec<_> =
        rows.iter().map(|row| format!("{}: {}", row["example_id"], row["stop_condition"])).collect();
    ends.sort();
    assert_eq!(
        ends,
        [r#"0: "has_final_env_response""#, r#"1: "has_final_env_response""#, r#"2: "max_turns_reached""#]
    );
}

#[test]
fn in_the_example_tools_the_model_counts_in_a_container() {
    let server = ModelServer::start(Script::examples());
    let ran = run("tools", &server.url());
    insta::assert_snapshot!(ran.shown("tools"), @"
    2026-01-15__10-30-00: 6 trials, 4 at a time, on native, network host
    results in jobs/2026-01-15__10-30-00
    ✓ model/log/0__1  reward 1  [time]
    ✓ model/log/0__2  reward 1  [time]
    ✓ model/log/1__1  reward 1  [time]
    ✓ model/log/1__2  reward 1  [time]
    ○ model/log/2__1  reward 0  [time]
    ○ model/log/2__2  reward 0  [time]

    agent  dataset  trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    model  log           6          6       0         0       4      66.7%        0.667     —  [time]

    agent  dataset  pass rate, 95%  mean reward ± se  k  pass@k  pass^k  time p50  time p90
    model  log          30.0–90.3%     0.667 ± 0.333  2   66.7%   66.7%  [time]  [time]

    unsolved
      2 trials: assistant: I do not know. (expected: 52)
        rollout show jobs/2026-01-15__10-30-00/model/log/2__1

    6 trials in [time]: 6 completed, 0 failed
    results  jobs/2026-01-15__10-30-00/result.json
    ");
    let metrics = &ran.json("metadata.json")["avg_metrics"];
    assert_eq!((&metrics["bash_calls"], &metrics["read_file_calls"]), (&json!(2.0 / 3.0), &json!(0.0)));
}

#[test]
fn in_the_example_model_agent_a_model_stands_between_the_oracle_and_nop() {
    let server = ModelServer::start(Script::examples());
    let ran = run("model-agent", &server.url());
    insta::assert_snapshot!(ran.shown("model-agent"), @r"
    2026-01-15__10-30-00: 9 trials, 4 at a time, on native, network host
    results in jobs/2026-01-15__10-30-00
    ✓ model/quickstart/count-errors__1  reward 1  [time]
    ○ model/quickstart/fix-script__1  reward 0  [time]
    ✓ model/quickstart/hello-world__1  reward 1  [time]
    ○ nop/quickstart/count-errors__1  reward 0  [time]
    ○ nop/quickstart/fix-script__1  reward 0  [time]
    ○ nop/quickstart/hello-world__1  reward 0  [time]
    ✓ oracle/quickstart/count-errors__1  reward 1  [time]
    ✓ oracle/quickstart/fix-script__1  reward 1  [time]
    ✓ oracle/quickstart/hello-world__1  reward 1  [time]

    agent   dataset     trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    oracle  quickstart       3          3       0         0       3     100.0%            1     —  [time]
    nop     quickstart       3          3       0         0       0       0.0%            0     —  [time]
    model   quickstart       3          3       0         0       2      66.7%        0.667     —  [time]
    all                      9          9       0         0       5      55.6%        0.556     —  [time]

    agent   dataset     pass rate, 95%  mean reward ± se  time p50  time p90
    oracle  quickstart     43.9–100.0%             1 ± 0  [time]  [time]
    nop     quickstart       0.0–56.1%             0 ± 0  [time]  [time]
    model   quickstart      20.8–93.9%     0.667 ± 0.333  [time]  [time]

    unsolved
      2 trials: wrong total for '1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n'
        rollout show jobs/2026-01-15__10-30-00/nop/quickstart/fix-script__1
      1 trial: /tests/test.sh: line 4: /app/answer.txt: No such file or directory
        rollout show jobs/2026-01-15__10-30-00/nop/quickstart/count-errors__1
      1 trial: cat: /app/hello.txt: No such file or directory
        rollout show jobs/2026-01-15__10-30-00/nop/quickstart/hello-world__1

    9 trials in [time]: 9 completed, 0 failed
    results  jobs/2026-01-15__10-30-00/result.json
    ");
    assert!(ran.dir.join("model/quickstart/hello-world__1/trajectory.json").exists());
}
