//! Benchmarks by the command, against a scripted server.

use std::{fs, net::TcpListener, path::PathBuf};

use rollout_testkit::{Finished, Hold, ModelReply, ModelServer, TestJob, files_holding};
use serde_json::{Value, json};

/// A benchmark with these questions. Its results are where those of a job are.
pub(crate) fn benchmark(server: &ModelServer, questions: &[Value], config: Value) -> TestJob {
    let mut all = json!({
        "data_path": "questions.jsonl", "output_dir": "jobs/job", "base_url": server.url(),
        "model_name": "m", "max_retries": 0,
    });
    all.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    let lines: String = questions.iter().map(|question| format!("{question}\n")).collect();
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .file("questions.jsonl", &lines)
        .file("config.json", &all.to_string())
}

fn sums() -> Vec<Value> {
    vec![
        json!({"id": "q1", "question": "What is 2+2?", "answer": "4"}),
        json!({"id": "q2", "question": "What is 3+4?", "answer": "8"}),
        json!({"id": "问题", "question": "What is 1+1?"}),
    ]
}

/// What a person reads, without times.
fn shown(finished: &Finished) -> String {
    let mut text = finished.stdout();
    let start = "summary_questions_";
    if let Some(place) = text.find(start) {
        let stop = text[place..].find(".json").unwrap() + place;
        text.replace_range(place + start.len()..stop, "<time>");
    }
    let time = |word: &str| {
        let number = word.trim_end_matches(':').strip_suffix('s')?;
        number.parse::<f64>().ok().map(|_| word.replace(number, "…"))
    };
    let line = |line: &str| {
        let words = line.split(' ').map(|word| time(word).unwrap_or_else(|| word.to_owned()));
        words.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn files(job: &TestJob) -> Vec<String> {
    let entries = fs::read_dir(job.dir()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_run_shows_the_running_score_and_where_everything_is() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server, &sums(), json!({}));
    let finished = job.rollout(&["eval", "config.json"]).expect(0);
    insta::assert_snapshot!(shown(&finished), @"
    job: 3 questions, 1 at a time
    results in jobs/job
    [1/3] ✓ q1  score 1, 1 on average  …s
    [2/3] ○ q2  score 0, 0.5 on average  …s
    [3/3] ✓ 问题  answered  …s

    agent  dataset    trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    m      questions       3          3       0         0       1      50.0%          0.5     —  …s

    agent  dataset    pass rate, 95%  mean reward ± se  time p50  time p90
    m      questions       9.5–90.5%         0.5 ± 0.5      …s      …s

    unsolved
      1 question: answered: 7 (expected: 8)
        rollout show jobs/job/m/questions/q2__1

    3 questions in …s: 3 completed, 0 failed
    benchmark   questions
    questions   3: 3 answered, 0 failed
    score       0.5 on average, by exact_match
    results     jobs/job/results.jsonl
    evaluation  jobs/job/evaluation.json
    summary     jobs/job/summary_questions_<time>.json
    ");
}

#[test]
fn a_failed_question_is_an_exit_status_of_1_and_is_named() {
    let server = ModelServer::scripted(|request| match request.last_text().contains("3+4") {
        true => ModelReply::error(400, "not this one"),
        false => ModelReply::text("4"),
    });
    let job = benchmark(&server, &sums(), json!({}));
    let finished = job.rollout(&["eval", "config.json", "--max-tasks", "2"]).expect(1);
    let shown = shown(&finished);
    assert!(shown.contains("1 question: model_failed: "), "{shown}");
    assert!(shown.contains("rollout show jobs/job/") && shown.contains("/q2__1"), "{shown}");
    assert!(shown.contains("questions   2: 1 answered, 1 failed"), "{shown}");
    assert!(shown.contains("rerun       rollout resume jobs/job --rerun error"), "{shown}");
}

#[test]
fn a_run_whose_first_five_questions_fail_in_the_same_way_stops() {
    let server = ModelServer::always(ModelReply::error(503, "no worker is available"));
    let questions: Vec<_> = (0..40)
        .map(|n| json!({"id": format!("q{n}"), "question": format!("What is {n}+1?"), "answer": "1"}))
        .collect();
    let job = benchmark(&server, &questions, json!({}));
    let finished = job.rollout(&["eval", "config.json"]).expect(1);
    let asked: Vec<_> = server.requests().iter().map(|request| request.last_text()).collect();
    assert_eq!(asked, (0..5).map(|n| format!("What is {n}+1?")).collect::<Vec<_>>());
    let shown = shown(&finished);
    let stopped = "stopped: 5 questions in a row failed with the same cause, so 35 questions were not run";
    assert!(shown.contains(stopped), "{shown}");
    let cause = shown.lines().find(|line| line.contains("5 questions: model_failed: ")).unwrap_or(&shown);
    assert!(cause.contains("503") && cause.contains("no worker is available"), "{shown}");
    assert!(shown.contains("rollout resume jobs/job --rerun error"), "{shown}");
    assert!(!files(&job).iter().any(|name| name.starts_with("evaluation") || name.starts_with("summary")));
}

#[test]
fn what_failed_or_is_wrong_is_asked_again_and_what_has_no_right_answer_is_not() {
    let broken = std::sync::atomic::AtomicBool::new(true);
    let server = ModelServer::scripted(move |request| match request.last_text().contains("2+2") {
        true if broken.swap(false, std::sync::atomic::Ordering::Relaxed) => ModelReply::error(400, "not now"),
        _ => ModelReply::text("4"),
    });
    let job = benchmark(&server, &sums(), json!({}));
    job.rollout(&["eval", "config.json"]).expect(1);
    assert_eq!(server.served(), 3);
    let again = job.rollout(&["resume", "jobs/job", "--rerun", "error", "--output", "json"]).expect(0);
    assert_eq!((server.served(), &again.events()[0]["resumed_trials"]), (4, &json!(2)));
    let again = job.rollout(&["resume", "jobs/job", "--rerun", "unsolved", "--output", "json"]).expect(0);
    assert_eq!((server.served(), &again.events()[0]["resumed_trials"]), (5, &json!(2)));
    assert_eq!(again.file("results.jsonl").lines().count(), 3);
}

#[test]
fn where_nothing_was_evaluated_there_is_no_score() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server, &[json!({"id": "q", "question": "What is 1+1?"})], json!({}));
    let finished = job.rollout(&["eval", "config.json"]).expect(0);
    let shown = shown(&finished);
    assert!(shown.contains("score       —, no answer was evaluated"), "{shown}");
    assert!(
        shown.contains(
            "m      questions       1          1       0         0       —          —            —"
        ),
        "{shown}"
    );
}

#[test]
fn a_judge_that_fails_is_an_exit_status_of_1_and_is_reported() {
    let server = ModelServer::arithmetic();
    let judge = ModelServer::always(ModelReply::error(400, "no"));
    let config = json!({
        "evaluation_metric": "llm_judgement", "evaluator_base_url": judge.url(), "evaluator_max_retries": 0,
    });
    let job = benchmark(&server, &sums(), config);
    let finished = job.rollout(&["eval", "config.json"]).expect(1);
    let shown = shown(&finished);
    assert!(
        shown.contains("failed for 2 answers, scored as 0; `rollout score jobs/job --config FILE`"),
        "{shown}"
    );
    job.rollout(&["resume", "jobs/job"]).expect(1);
}

#[test]
fn a_dead_judge_stops_a_benchmark_early_and_answers_are_kept() {
    let server = ModelServer::arithmetic();
    let questions: Vec<_> =
        (0..12).map(|n| json!({"id": n.to_string(), "question": "What is 2+2?", "answer": "4"})).collect();
    let config = json!({
        "evaluation_metric": "llm_judgement", "evaluator_base_url": "http://127.0.0.1:9/v1",
        "evaluator_max_retries": 0,
    });
    let job = benchmark(&server, &questions, config);
    let finished = job.rollout(&["eval", "config.json"]).expect(1);
    assert_eq!(server.served(), 5);
    let text = finished.stdout() + &finished.stderr();
    assert!(text.contains("5 questions in a row failed with the same cause"), "{text}");
    let rows = fs::read_to_string(job.dir().join("results.jsonl")).unwrap();
    let is_kept = |row: &str| serde_json::from_str::<Value>(row).unwrap()["predicted_answer"] == "4";
    assert!(rows.lines().all(is_kept), "{rows}");
}

#[test]
fn a_password_in_an_address_is_in_no_output() {
    const PASSWORD: &str = "hunter22hunter";
    let server = ModelServer::arithmetic();
    let url = format!("http://u:{PASSWORD}@127.0.0.1:9/");
    let job =
        benchmark(&server, &sums(), json!({"sandbox_server_url": url, "available_tools": ["web:search"]}));
    let finished = job.rollout(&["eval", "config.json"]).expect(2);
    assert!(finished.stderr().contains("http://127.0.0.1:9 does not answer"), "{}", finished.stderr());
    assert!(!finished.stderr().contains(PASSWORD), "{}", finished.stderr());
    let elsewhere = format!("https://u:{PASSWORD}@127.example.org/v1");
    let finished = job.rollout(&["ask", "Well?", "--base-url", &elsewhere]).expect(2);
    assert!(finished.stderr().contains("no API key for the model's server"), "{}", finished.stderr());
    assert!(!finished.stderr().contains(PASSWORD), "{}", finished.stderr());
}

#[test]
fn every_problem_of_a_configuration_is_reported_at_once_and_nothing_runs() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server, &sums(), json!({"max_turns": 0, "evaluation_metric": "exact"}));
    let finished = job.rollout(&["eval", "config.json"]).expect(2);
    let said = finished.stderr();
    assert!(said.contains("max_turns") && said.contains("evaluation_metric"), "{said}");
    assert!(said.contains("config.json has 2 problems"), "{said}");
    assert!(!job.dir().exists());

    let no_metric = job.rollout(&["eval", "config.json", "--set", "max_turns=1", "--metric", "f1"]).expect(2);
    assert!(no_metric.stderr().contains("f1_score"), "{}", no_metric.stderr());
    let repaired =
        ["eval", "config.json", "--set", "max_turns=1", "--metric", "f1_score", "--task-ids", "q1,q9"];
    let no_question = job.rollout(&repaired).expect(2);
    assert!(no_question.stderr().contains("unknown question id: \"q9\""), "{}", no_question.stderr());
}

#[test]
fn a_program_follows_the_events_to_the_summary() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server, &sums(), json!({"parallel": true, "max_workers": 4}));
    let finished = job.rollout(&["eval", "config.json", "--model", "m2", "--output", "json"]).expect(0);
    let events = finished.events();
    let (first, last) = (&events[0], &events[events.len() - 1]);
    assert_eq!((&first["event"], &first["kind"]), (&json!("job_started"), &json!("benchmark")));
    assert_eq!((&first["concurrency"], &first["total_trials"]), (&json!(4), &json!(3)));
    assert_eq!(last["event"], "benchmark_finished");
    assert_eq!(last["summary"]["average_score"], 0.5);
    assert_eq!(last["summary"]["results_file"], "jobs/job/results.jsonl");
    let file = job.root().join(last["summary"]["summary_file"].as_str().unwrap());
    let mut written: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    written["summary_file"] = last["summary"]["summary_file"].clone();
    assert_eq!(written, last["summary"]);
    assert_eq!(server.requests()[0].model(), "m2");
}

#[test]
fn a_run_that_is_cut_short_is_resumed_and_comes_to_the_same() {
    let questions: Vec<_> = (0..12)
        .map(|n| json!({"id": format!("q{n}"), "question": format!("What is {n}+1?"), "answer": "3 5 7"}))
        .collect();
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |request| {
        let text = request.last_text();
        let number: u64 = text.trim_start_matches("What is ").trim_end_matches("+1?").parse().unwrap();
        ModelReply::text((number + 1).to_string()).held(&held)
    });
    let config = json!({"parallel": true, "max_workers": 3, "evaluation_metric": "f1_score"});
    let job = benchmark(&server, &questions, config.clone());
    let mut running = job.start_with(&["eval", "config.json", "--output", "json"]);
    hold.pass(5);
    running.until("five answers", |events| {
        events.iter().filter(|event| event["event"] == "trial_finished").count() == 5
    });
    running.signal("-INT");
    running.finish().expect(130);
    assert!(!job.dir().join("evaluation.json").exists());
    assert!(!files(&job).iter().any(|name| name.starts_with("summary")));

    hold.open();
    let before = server.served();
    let resumed = job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(0);
    assert_eq!(resumed.events()[0]["resumed_trials"], 5);
    assert_eq!(server.served() - before, 7, "what was answered is not asked again");

    let whole = benchmark(&server, &questions, config);
    let finished = whole.rollout(&["eval", "config.json", "--output", "json"]).expect(0);
    let comparable = |finished: &Finished| {
        let mut summary = finished.events().pop().unwrap()["summary"].take();
        for varying in ["total_time_seconds", "timestamp", "summary_file", "provenance"] {
            summary[varying] = Value::Null;
        }
        summary
    };
    assert_eq!(comparable(&resumed), comparable(&finished));
    assert_eq!(resumed.file("evaluation.json"), finished.file("evaluation.json"));
    assert_eq!(resumed.result()["results"], finished.result()["results"]);
    assert_eq!(resumed.file("results.jsonl").lines().count(), 12);
}

#[test]
fn a_benchmark_is_resumed_from_its_own_copy_where_the_configuration_is_gone_and_not_with_another() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server, &sums(), json!({}));
    job.rollout(&["eval", "config.json"]).expect(0);
    let refused = job.file("config.json", &json!({"base_url": server.url(), "data_path": "questions.jsonl", "output_dir": "jobs/job", "model_name": "other"}).to_string());
    let finished = refused.rollout(&["resume", "jobs/job"]).expect(2);
    assert!(finished.stderr().contains("model_name: was \"m\", is \"other\""), "{}", finished.stderr());
    let renamed = ["eval", "config.json", "--output-dir", "jobs/named", "--set", "benchmark_name=one"];
    refused.rollout(&renamed).expect(0);
    let journal = refused.root().join("jobs/named/journal.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    fs::write(&journal, text.replace("benchmark_name=one", "benchmark_name=two")).unwrap();
    let finished = refused.rollout(&["resume", "jobs/named"]).expect(2);
    assert!(finished.stderr().contains("benchmark_name: was \"one\", is \"two\""), "{}", finished.stderr());
    fs::remove_file(refused.root().join("config.json")).unwrap();
    refused.rollout(&["resume", "jobs/job"]).expect(0);
}

#[test]
fn a_second_run_into_the_same_directory_is_refused() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server, &sums(), json!({}));
    job.rollout(&["eval", "config.json"]).expect(0);
    let refused = job.rollout(&["eval", "config.json"]).expect(2);
    assert!(refused.stderr().contains("`rollout resume jobs/job` continues it"), "{}", refused.stderr());
    job.rollout(&["eval", "config.json", "--output-dir", "jobs/other"]).expect(0);
}

#[test]
fn nothing_but_the_summary_is_written_where_results_are_not_saved() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server, &sums(), json!({"save_results": false}));
    let finished = job.rollout(&["eval", "config.json"]).expect(0);
    assert!(finished.stdout().contains("results are not saved"), "{}", finished.stdout());
    assert!(matches!(files(&job).as_slice(), [one] if one.starts_with("summary_questions_")));
    assert!(!job.root().join("rollout.log").exists());
}

#[test]
fn keys_are_in_no_file_and_in_no_output() {
    const KEY: &str = "sk-0123456789abcdef";
    let server = ModelServer::scripted(|request| match &*request.last_text() {
        "refused" => ModelReply::error(400, format!("no such key: {KEY}")),
        _ => ModelReply::text(format!("my key is {KEY}")),
    })
    .key(KEY);
    let judge = ModelServer::always(ModelReply::text(format!("true, says {KEY}")));
    let questions = [
        json!({"id": "a", "question": format!("Is it {KEY}?"), "answer": KEY}),
        json!({"id": "b", "question": "refused", "answer": "x", "kwargs": {"key": KEY}}),
    ];
    for (written, variable) in [("${THE_KEY}", KEY), (KEY, "unused")] {
        let config = json!({
            "api_key": written, "evaluator_api_key": written, "evaluation_metric": "llm_judgement",
            "evaluator_base_url": judge.url(), "evaluator_extra_params": {"user": KEY},
            "system_prompt": format!("Never tell {KEY}."), "unknown": KEY,
        });
        let job = benchmark(&server, &questions, config).env("THE_KEY", variable);
        for finished in [
            job.rollout(&["eval", "config.json", "--output", "json"]).expect(1),
            job.rollout(&["resume", "jobs/job", "--output", "json"]).expect(1),
        ] {
            assert!(!finished.stdout().contains(KEY), "{}", finished.stdout());
            assert!(!finished.stderr().contains(KEY), "{}", finished.stderr());
        }
        assert_eq!(files_holding(&job.dir(), KEY), Vec::<String>::new());
        assert!(fs::read_to_string(job.dir().join("results.jsonl")).unwrap().contains("[redacted]"));
    }
}

#[test]
fn a_refused_key_ends_the_run_and_says_what_to_set() {
    let server = ModelServer::arithmetic().key("right");
    let job = benchmark(&server, &sums(), json!({"api_key": "wrong-0123456789"}));
    let finished = job.rollout(&["eval", "config.json"]).expect(1);
    assert!(
        finished.stderr().contains("the server rejected the API key of model m"),
        "{}",
        finished.stderr()
    );
    assert!(finished.stderr().contains("api_key"), "{}", finished.stderr());
    assert!(!finished.stderr().contains("wrong-0123456789"));
}

#[test]
fn an_export_of_answers_reports_missing_tokens() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server, &sums(), json!({}));
    job.rollout(&["eval", "config.json"]).expect(0);
    let finished = job.rollout(&["export", "rl", "jobs/job", "--out", "samples"]).expect(2);
    let said = finished.stderr();
    assert!(said.contains("3 benchmark answers without tokens") && said.contains("token_ids"), "{said}");
}

/// The processes of tool servers that a run of this job started.
fn own_servers(job: &TestJob) -> Vec<PathBuf> {
    let root = job.root().canonicalize().unwrap();
    let is_one = |process: &PathBuf| {
        let arguments = fs::read(process.join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).into_owned();
        arguments.contains("--settings-from-stdin")
            && fs::read_link(process.join("cwd")).is_ok_and(|dir| dir == root)
    };
    fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(is_one).collect()
}

#[test]
fn a_tool_server_is_started_for_the_run_and_gone_after_it() {
    // Whatever else answers at the usual address is not taken for it.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let server = ModelServer::turns([
        ModelReply::tool_call("code-shell", &json!({"command": "echo $((6*7)) > n; cat n"})),
        ModelReply::tool_call("code-shell", &json!({"command": "cat n; rm n"})),
        ModelReply::text("Final answer: 42"),
    ]);
    let questions: Vec<_> = (0..4).map(|n| json!({"id": n, "question": "6*7?", "answer": "42"})).collect();
    let job = benchmark(
        &server,
        &questions,
        json!({
            "available_tools": ["code:shell"], "resource_types": ["code"], "sandbox_auto_start": true,
            "sandbox_server_url": format!("http://127.0.0.1:{port}"), "parallel": true, "max_workers": 4,
        }),
    );
    let finished = job.rollout(&["eval", "config.json"]).expect(0);
    let rows = finished.file("results.jsonl");
    for row in rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        assert_eq!(row["score"], 1.0);
        assert_eq!(row["tool_names"], json!(["code-shell"]));
        let results: Vec<_> = row["trajectory"]["tool_calls"]
            .as_array()
            .unwrap()
            .iter()
            .map(|call| (call["tool_name"].clone(), call["success"].clone()))
            .collect();
        assert_eq!(results, vec![(json!("code:shell"), json!(true)); 2], "{row:#}");
        let said = row["trajectory"]["messages"][5]["content"].as_str().unwrap();
        assert!(said.contains("42"), "files are kept between the calls of a question: {said}");
    }
    assert_eq!(own_servers(&job), Vec::<PathBuf>::new(), "the tool server is gone");
    other.set_nonblocking(true).unwrap();
    assert!(other.accept().is_err(), "nothing was asked at the usual address");
}

#[test]
fn a_tool_server_of_a_run_reads_what_the_configuration_and_the_questions_name() {
    let server = ModelServer::turns([
        ModelReply::tool_call("doc-read", &json!({})),
        ModelReply::text("Final answer: 42"),
    ]);
    let question = |id: &str, path: &str| json!({"id": id, "question": "6*7?", "answer": "42", "kwargs": {"seed_path": path}});
    let config = json!({
        "data_path": "questions.jsonl", "output_dir": "jobs/job", "base_url": server.url(), "model_name": "m",
        "available_tools": ["doc:read"], "sandbox_auto_start": true,
    });
    // The working directory is another than that of the files.
    let files = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(files.path().join(name), text).unwrap();
    fs::create_dir(files.path().join("notes")).unwrap();
    write("notes/a.txt", "forty-two");
    write("notes/b.txt", "forty-two");
    write("config.json", &config.to_string());
    write(
        "questions.jsonl",
        &format!("{}\n{}\n", question("one", "notes/a.txt"), question("two", "notes/b.txt")),
    );
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"));
    let path = files.path().join("config.json");
    let rows = job.rollout(&["eval", path.to_str().unwrap()]).expect(0).file("results.jsonl");
    for row in rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let call = &row["trajectory"]["tool_calls"][0];
        assert_eq!(call["success"], true, "{call}");
        assert!(call["result"].to_string().contains("forty-two"), "{call}");
    }

    // What questions name elsewhere on the machine is refused before anything is asked.
    let elsewhere = tempfile::tempdir().unwrap();
    let secret = elsewhere.path().join("secret.txt");
    fs::write(&secret, "not for models").unwrap();
    write("questions.jsonl", &question("far", secret.to_str().unwrap()).to_string());
    let refused = job.rollout(&["eval", path.to_str().unwrap(), "--output-dir", "jobs/far"]).expect(2);
    let said = refused.stderr();
    assert!(said.contains("is not below a folder that this server may read"), "{said}");
    assert!(!job.root().join("jobs/far").exists());
    // The configuration may name it.
    let mut config = config;
    config["resource_types"] = json!(["doc"]);
    config["resource_init_configs"] = json!({"doc": {"content": {"seed_path": elsewhere.path()}}});
    write("config.json", &config.to_string());
    let rows = job.rollout(&["eval", path.to_str().unwrap(), "--output-dir", "jobs/far"]).expect(0);
    assert!(rows.stdout().contains("1 answered, 0 failed"), "{}", rows.stdout());
}

#[test]
fn a_model_behind_a_variable_is_known_by_its_name() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server, &sums(), json!({"model_name": "${MODEL}"})).env("MODEL", "small");
    job.rollout(&["eval", "config.json"]).expect(0);
    job.rollout(&["export", "eval-log", "jobs/job", "-o", "out"]).expect(0);
    let record = fs::read(job.root().join("out/small/questions/experiment_record.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(
        (&record["agent"]["llm_model"], &record["agent"]["config"]["model_name"]),
        (&json!("small"), &json!("small"))
    );
    let config: Value =
        serde_json::from_str(&fs::read_to_string(job.dir().join("config.json")).unwrap()).unwrap();
    assert_eq!(config["model_name"], "${MODEL}");
    job.rollout(&["resume", "jobs/job"]).expect(0);
}

#[test]
fn tools_that_cannot_work_are_refused_before_the_first_question() {
    let server = ModelServer::arithmetic();
    let config =
        json!({"available_tools": ["web:search"], "resource_types": ["web"], "sandbox_auto_start": true});
    let job = benchmark(&server, &sums(), config);
    let refused = job.rollout(&["eval", "config.json"]).expect(2);
    assert!(refused.stderr().contains("no search service is configured"), "{}", refused.stderr());
    assert_eq!(server.served(), 0);

    let config = json!({
        "available_tools": ["doc:*"], "resource_types": ["doc"], "sandbox_auto_start": true,
        "resource_init_configs": {"doc": {"content": {"seed_pth": "notes"}}, "docs": {}},
    });
    let job = benchmark(&server, &sums(), config);
    let run = job.rollout(&["eval", "config.json"]).expect(0);
    let (shown, warned) = (run.stdout(), run.stderr());
    assert!(shown.contains("sessions have no setting `seed_pth`; did you mean `seed_path`?"), "{shown}");
    assert!(
        warned.contains(
            "`docs` in `resource_init_configs` has no effect, because it is not in `resource_types`"
        ),
        "{warned}"
    );
}

#[test]
fn a_run_whose_tool_server_dies_stops_and_is_resumed_with_another() {
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("42").held(&held));
    let questions: Vec<_> = (0..4).map(|n| json!({"id": n, "question": "6*7?", "answer": "42"})).collect();
    let config = json!({
        "available_tools": ["sql:*"], "resource_types": ["sql"], "sandbox_auto_start": true,
    });
    let job = benchmark(&server, &questions, config);
    let mut running = job.start_with(&["eval", "config.json", "--output", "json"]);
    hold.pass(1);
    running.until("an answer and the next question", |events| {
        events.iter().filter(|event| event["event"] == "trial_started").count() == 2
    });
    let [process] = &own_servers(&job)[..] else { panic!("a run has one tool server") };
    let status = std::process::Command::new("kill").arg("-9").arg(process.file_name().unwrap()).status();
    assert!(status.unwrap().success());
    let finished = running.finish().expect(1);
    let said = finished.stderr();
    assert!(said.contains("the tool server exited during the run (signal: 9"), "{said}");
    assert!(said.contains("`rollout resume jobs/job` continues the run"), "{said}");
    assert_eq!(finished.file("results.jsonl").lines().count(), 1);

    hold.open();
    job.rollout(&["resume", "jobs/job"]).expect(0);
    // Everything is answered, so that nothing is started to write what it came to.
    fs::remove_file(job.dir().join("evaluation.json")).unwrap();
    job.rollout(&["resume", "jobs/job"]).expect(0);
    assert!(job.dir().join("evaluation.json").exists());
}
