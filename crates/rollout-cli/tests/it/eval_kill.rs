//! A benchmark with tools that is killed again and again: each question has one row, and all comes to the same.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Stdio},
};

use rollout_testkit::{Hold, ModelReply, ModelRequest, ModelServer, TestJob, finished_trials, without_times};
use serde_json::{Value, json};

/// Replies of the model for one question: three calls, and the answer.
const TURNS: usize = 4;

/// Questions that are over in a run before it is killed, in percent of what the server's replies in it are enough for.
const KILLED_AT: [usize; 5] = [1, 10, 25, 40, 55];

const WORKERS: usize = 4;

/// A tool server over two documents, which ends with the test.
struct Tools {
    child: Child,
    url: String,
}

impl Tools {
    fn start(home: &TestJob) -> Self {
        let documents = home.root().join("documents");
        fs::create_dir(&documents).unwrap();
        fs::write(documents.join("plan.md"), "# Plan\n\nThe deadline is in March.\n").unwrap();
        fs::write(documents.join("计划.md"), "# 计划\n\n截止日期是三月。\n").unwrap();
        let config = json!({"resources": {"code": false, "rag": false, "sql": false, "web": false}});
        fs::write(home.root().join("tools.json"), config.to_string()).unwrap();
        let arguments = ["tools", "serve", "--port", "0", "--config", "tools.json", "--until-stdin-closes"];
        let mut command = home.command(&arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (_, url) = line.trim_end().rsplit_once(" at ").expect("it says where it serves");
        Self { url: url.to_owned(), child }
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Some answers are right, some half, some not at all; one of ten questions fails.
fn reply(request: &ModelRequest) -> ModelReply {
    let question = request.messages().iter().find(|message| message["role"] == "user").unwrap();
    let number: usize = question["content"].as_str().unwrap().parse().unwrap();
    let words = ["deadline", "截止日期", "计划"];
    match request.turns() {
        1 if number % 10 == 9 => ModelReply::error(400, "this is too odd a question"),
        turn if turn < TURNS - 1 => {
            let call = json!({"key_words": [words[(number + turn) % words.len()]]});
            ModelReply::tool_call("doc-search", &call).call_id(&format!("call_{turn}"))
        }
        _ => ModelReply::text(match number % 5 {
            0 => format!("Final answer: number {number} of the list"),
            1 => format!("I think so.\nFinal answer: {number}"),
            2 => format!("The answer is number {number} of another list, {}", "or so, ".repeat(number % 7)),
            3 => "I do not know.".to_owned(),
            _ => format!("the 列表 of {number}"),
        }),
    }
}

fn benchmark(model: &ModelServer, tools: &Tools, questions: usize) -> TestJob {
    let line = |number: usize| {
        let id = if number.is_multiple_of(2) { format!("问题 {number}") } else { format!("q/{number}") };
        json!({"id": id, "question": number.to_string(), "answer": format!("number {number} of the list")})
    };
    let lines: String = (0..questions).map(|number| format!("{}\n", line(number))).collect();
    let config = json!({
        "data_path": "questions.jsonl", "output_dir": "results", "base_url": model.url(), "model_name": "m",
        "max_retries": 0, "available_tools": ["doc:search"], "resource_types": ["doc"],
        "resource_init_configs": {"doc": {"content": {"seed_path": "documents"}}},
        "sandbox_server_url": tools.url, "evaluation_metric": "f1_score", "benchmark_name": "kill",
        "parallel": true, "max_workers": WORKERS,
    });
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .file("questions.jsonl", &lines)
        .file("config.json", &config.to_string())
}

fn results(job: &TestJob, file: &str) -> PathBuf {
    job.root().join("results").join(file)
}

fn rows(job: &TestJob) -> Vec<Value> {
    let text = fs::read_to_string(results(job, "results.jsonl")).unwrap();
    let mut rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    rows.sort_by_key(|row| row["example_id"].as_u64());
    rows.into_iter().map(without_times).collect()
}

fn document(job: &TestJob, file: &str) -> Value {
    without_times(serde_json::from_slice(&fs::read(results(job, file)).unwrap()).unwrap())
}

/// The only summary that there is.
fn summary(job: &TestJob) -> Value {
    let names = fs::read_dir(results(job, "")).unwrap().flatten().map(|entry| entry.file_name());
    let names: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
    let summaries: Vec<_> = names.iter().filter(|name| name.starts_with("summary_kill_")).collect();
    assert_eq!(summaries.len(), 1, "{names:?}");
    document(job, summaries[0])
}

#[test]
fn a_benchmark_killed_five_times_has_each_answer_once_and_the_same_summary() {
    let questions = if std::env::var_os("ROLLOUT_TEST_FULL").is_some() { 5000 } else { 120 };
    // All replies before the last run together leave some questions for it.
    let replies = questions * TURNS / 6;
    let hold = Hold::new();
    let held = hold.clone();
    let model = ModelServer::scripted(move |request| reply(request).held(&held));
    let home = TestJob::new(env!("CARGO_BIN_EXE_rollout"));
    let tools = Tools::start(&home);

    let killed = benchmark(&model, &tools, questions);
    let resume = ["resume", "results", "--output", "json"];
    let kills = KILLED_AT.map(|percent| (replies / TURNS * percent / 100).max(1));
    let eval = ["eval", "config.json", "--output", "json"];
    let reported = killed.kill_at(&eval, &resume, kills, || hold.pass(replies));
    assert!(reported < questions, "the last run has nothing to do");
    hold.open();
    let end = killed.rollout(&resume).expect(1);
    assert!(finished_trials(&end.events()) > 0);

    let whole = benchmark(&model, &tools, questions);
    whole.rollout(&eval).expect(1);

    let rows = rows(&killed);
    assert_eq!(rows.len(), questions);
    assert!(rows == self::rows(&whole), "the rows differ");
    assert_eq!(summary(&killed), summary(&whole));
    assert_eq!(document(&killed, "result.json"), document(&whole, "result.json"));
    let evaluation = |job: &TestJob| fs::read_to_string(results(job, "evaluation.json")).unwrap();
    assert!(evaluation(&killed) == evaluation(&whole), "evaluation.json differs");

    let summary = summary(&whole);
    let failed = questions / 10;
    assert_eq!((&summary["total_tasks"], &summary["failed_tasks"]), (&json!(questions), &json!(failed)));
    let score = summary["average_score"].as_f64().unwrap();
    assert!(score > 0.2 && score < 0.9, "{summary:#}");
    let calls = rows.iter().map(|row| row["trajectory"]["tool_calls"].as_array().unwrap());
    assert!(calls.clone().flatten().all(|call| call["success"] == true), "a tool failed");
    assert_eq!(calls.map(Vec::len).sum::<usize>(), (questions - failed) * (TURNS - 1) + failed);
}
