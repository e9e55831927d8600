//! The examples of benchmarks run as they are, with what their READMEs promise.

use std::{fs, net::TcpListener, path::Path, process::Command};

use rollout_testkit::{ModelServer, Script, timeless_line};
use serde_json::Value;

/// Runs an example from a copy, and returns what a person sees of it, which is also what its README shows, with its
/// evaluation.
#[track_caller]
fn run(example: &str) -> (String, Value) {
    let server = ModelServer::start(Script::examples());
    let root = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    assert!(Command::new("cp").arg("-r").arg(&examples).arg(root.path()).status().unwrap().success());
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_rollout"))
        .args(["eval", &format!("examples/{example}/config.json")])
        .current_dir(root.path())
        .env("ROLLOUT_STATE_DIR", root.path().join("state"))
        .env("MODEL_URL", server.url())
        .env("TOOLS_URL", format!("http://{free}"))
        .env_remove("MODEL_KEY")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "an example gives no cause for warnings");
    assert_eq!(server.refusals(), Vec::<String>::new());
    let shown = settled(&String::from_utf8(output.stdout).unwrap());
    let readme = fs::read_to_string(examples.join(example).join("README.md")).unwrap();
    let command = format!("$ cargo run --release -- eval examples/{example}/config.json\n");
    let (_, rest) = readme.split_once(&command).expect("the README has the command");
    let (promised, _) = rest.split_once("```").expect("what the command prints ends somewhere");
    assert_eq!(settled(promised), shown, "the README shows what the command prints");
    let evaluation = root.path().join("results").join(example).join("evaluation.json");
    (shown, serde_json::from_slice(&fs::read(evaluation).unwrap()).unwrap())
}

/// Questions in the order of their names, without what depends on the order in which they ended, and no time.
fn settled(text: &str) -> String {
    let mut questions = Vec::new();
    let mut lines = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with("warning: low disk space")) {
        if let Some((_, question)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
            questions.push(question.split(',').next().unwrap_or_default().to_owned());
            continue;
        }
        questions.sort_by(|a, b| a.split(' ').nth(1).cmp(&b.split(' ').nth(1)));
        lines.append(&mut questions);
        let line = match (line.split_once(" questions in "), line.find("_20")) {
            (Some((count, rest)), _) => {
                format!("{count} questions in [time]{}", &rest[rest.find(':').unwrap_or(0)..])
            }
            (None, Some(time)) if line.starts_with("summary ") => format!("{}_[time].json", &line[..time]),
            _ => timeless_line(line),
        };
        // The last column is as wide as the times are.
        lines.push(match line.strip_suffix(" time") {
            Some(columns) if line.starts_with("agent ") => format!("{}  time", columns.trim_end()),
            _ => line,
        });
    }
    lines.join("\n").trim_end().to_owned()
}

#[test]
fn in_the_example_benchmark_the_scripted_model_does_sums_in_two_languages() {
    let (shown, evaluation) = run("benchmark");
    insta::assert_snapshot!(shown, @"
    benchmark: 8 questions, 8 at a time
    results in results/benchmark
    ✓ en-1  score 1
    ✓ en-2  score 1
    ✓ en-3  score 1
    ○ en-4  score 0
    ✓ zh-1  score 1
    ✓ zh-2  score 1
    ✓ zh-3  score 1
    ○ zh-4  score 0

    agent         dataset  trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    gpt-4.1-mini  sums          8          8       0         0       6      75.0%         0.75     —  [time]

    agent         dataset  pass rate, 95%  mean reward ± se  time p50  time p90
    gpt-4.1-mini  sums         40.9–92.9%      0.75 ± 0.164  [time]  [time]

    unsolved
      1 question: answered: I do not know. (expected: Paris)
        rollout show results/benchmark/gpt-4.1-mini/sums/en-4__1
      1 question: answered: I do not know. (expected: 巴黎)
        rollout show results/benchmark/gpt-4.1-mini/sums/zh-4__1

    8 questions in [time]: 8 completed, 0 failed
    benchmark   sums
    questions   8: 8 answered, 0 failed
    score       0.75 on average, by exact_match
    results     results/benchmark/results.jsonl
    evaluation  results/benchmark/evaluation.json
    summary     results/benchmark/summary_sums_[time].json
    ");
    let ids: Vec<_> =
        evaluation["evaluations"].as_array().unwrap().iter().map(|one| &one["task_id"]).collect();
    assert_eq!(ids, ["en-1", "en-2", "en-3", "en-4", "zh-1", "zh-2", "zh-3", "zh-4"]);
}

#[test]
fn in_the_example_benchmark_tools_programs_documents_and_databases_are_asked() {
    let (shown, evaluation) = run("benchmark-tools");
    insta::assert_snapshot!(shown, @"
    benchmark-tools: 7 questions, 4 at a time
    results in results/benchmark-tools
    ✓ code-1  score 1
    ✓ code-2  score 1
    ✓ doc-1  score 1
    ✓ doc-2  score 1
    ○ none-1  score 0
    ✓ sql-1  score 1
    ✓ sql-2  score 1

    agent         dataset  trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    gpt-4.1-mini  library       7          7       0         0       6      85.7%        0.857     —  [time]

    agent         dataset  pass rate, 95%  mean reward ± se  time p50  time p90
    gpt-4.1-mini  library      48.7–97.4%     0.857 ± 0.143  [time]  [time]

    unsolved
      1 question: answered: I do not know. (expected: nobody knows)
        rollout show results/benchmark-tools/gpt-4.1-mini/library/none-1__1

    7 questions in [time]: 7 completed, 0 failed
    benchmark   library
    questions   7: 7 answered, 0 failed
    score       0.857 on average, by exact_match
    results     results/benchmark-tools/results.jsonl
    evaluation  results/benchmark-tools/evaluation.json
    summary     results/benchmark-tools/summary_library_[time].json
    ");
    assert_eq!(evaluation["perfect_matches"], 6);
}
