//! `rollout datasets`, and datasets by name on the command line: against a loopback hub and registry.

use std::{fs, path::Path};

use assert_cmd::Command;
use rollout_testkit::{HubServer, ModelReply, ModelServer, TestEngine, TestRepo, TestTask};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory with a registry of one dataset, `bench`, in two versions.
pub(crate) struct Machine {
    pub(crate) root: TempDir,
    pub(crate) hub: HubServer,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let root = TempDir::new().unwrap();
        let entry = |version: &str, task: &str| {
            TestTask::new(task).write(&root.path().join("tasks"));
            let tasks = json!([{"name": task, "path": format!("tasks/{task}")}]);
            json!({"name": "bench", "version": version, "description": "Small tasks", "tasks": tasks})
        };
        let registry = json!([entry("1.0", "old"), entry("1.10", "new")]);
        fs::write(root.path().join("registry.json"), registry.to_string()).unwrap();
        Self { root, hub: HubServer::start() }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollout"));
        command
            .current_dir(self.root.path())
            .env("ROLLOUT_STATE_DIR", self.root.path().join("state"))
            .env("HOME", self.root.path())
            .env("ROLLOUT_REGISTRIES", "registry.json")
            .env("HF_ENDPOINT", self.hub.url())
            .env_remove("XDG_CACHE_HOME")
            .env_remove("HF_HOME")
            .env_remove("HF_TOKEN")
            .env_remove("OPENAI_API_KEY")
            .env_remove("OPENAI_BASE_URL");
        command
    }

    /// Runs a command, and returns its output with the directory and the hub replaced.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str], code: i32) -> (String, String) {
        self.finish(self.command().args(arguments), code)
    }

    #[track_caller]
    pub(crate) fn finish(&self, command: &mut Command, code: i32) -> (String, String) {
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).replace(self.root.path().to_str().unwrap(), "[dir]");
            text.replace(self.hub.url(), "[hub]")
        };
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{stdout}\n{stderr}");
        (stdout, stderr)
    }

    /// The rows of the only job.
    fn rows(&self, job: &str) -> Vec<Value> {
        let file = self.root.path().join("jobs").join(job).join("outputs.jsonl");
        let text = fs::read_to_string(file).expect("the job has rows");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn lines(rows: &[Value]) -> Vec<u8> {
    rows.iter().map(|row| format!("{row}\n")).collect::<String>().into_bytes()
}

fn gsm8k() -> Vec<u8> {
    lines(&[
        json!({"question": "What is 2+3?", "answer": "Two and three.\n#### 5"}),
        json!({"question": "What is 40+2?", "answer": "Forty and two.\n#### 42"}),
    ])
}

#[test]
fn the_list_has_ready_definitions_and_the_newest_versions_with_their_origin() {
    let machine = Machine::new();
    let (stdout, _) = machine.run(&["datasets", "list"], 0);
    insta::assert_snapshot!(stdout, @r"
    dataset       version                        size  origin
    aime-2024     -                      30 questions  rollout
    aime-2025     -                      30 questions  rollout
    gpqa-diamond  -                     198 questions  rollout
    gsm8k         -                    1319 questions  rollout
    hotpotqa      -                    7405 questions  rollout
    humaneval     -                     164 questions  rollout
    math-500      -                     500 questions  rollout
    mmlu-pro      -                   12032 questions  rollout
    simpleqa      -                    4326 questions  rollout
    bench         1.10 (newest of 2)           1 task  registry.json
    ");
    let (stdout, _) = machine.run(&["datasets", "list", "b*", "--output", "json"], 0);
    let found: Value = serde_json::from_str(&stdout).unwrap();
    let expected = json!({
        "name": "bench", "version": "1.10", "versions": 2, "kind": "tasks", "size": 1,
        "origin": "registry.json", "description": "Small tasks",
    });
    assert_eq!(found, json!({"datasets": [expected], "unread": []}));
}

#[test]
fn a_dataset_is_shown_with_what_is_known_of_it() {
    let machine = Machine::new();
    machine.hub.publish("openai/gsm8k", false, &[("main/test-00000-of-00001.jsonl", &gsm8k())]);
    let (stdout, _) = machine.run(&["datasets", "show", "gsm8k"], 0);
    for part in
        ["grade school", "MIT", "arXiv:2110.14168", "never", "main/test-00000-of-00001.jsonl", "to download"]
    {
        assert!(stdout.contains(part), "{part} in {stdout}");
    }
    let (stdout, _) = machine.run(&["datasets", "show", "bench@1.0"], 0);
    insta::assert_snapshot!(stdout, @r"
    bench@1.0
    version      1.0
    versions     1.10, 1.0
    description  Small tasks
    tasks        1
    origin       registry.json
    run          rollout run -d bench@1.0 -a AGENT -m MODEL
    ");
    let (_, stderr) = machine.run(&["datasets", "show", "bensh"], 2);
    assert!(stderr.contains("there is no dataset") && stderr.contains("did you mean bench?"), "{stderr}");
}

#[test]
fn tasks_run_by_name_and_version() {
    let machine = Machine::new();
    let native = ["-e", "native", "--set", "environment.provider_config.images={\"*\":\"host\"}"];
    let run = |dataset: &str, job: &str| {
        let name = format!("name={job}");
        let arguments = ["run", "-d", dataset, "-a", "oracle", "--set", &name];
        machine.run(&[&arguments[..], &native].concat(), 0)
    };
    let (_, stderr) = run("bench", "newest");
    assert!(stderr.contains("dataset bench: 1.10, from registry.json"), "{stderr}");
    assert!(machine.root.path().join("jobs/newest/oracle/bench/new__1").is_dir());
    run("bench@1.0", "older");
    assert!(machine.root.path().join("jobs/older/oracle/bench/old__1").is_dir());
}

#[test]
fn questions_run_offline_after_they_were_fetched_once() {
    let machine = Machine::new();
    machine.hub.publish("openai/gsm8k", false, &[("main/test-00000-of-00001.jsonl", &gsm8k())]);
    let model = ModelServer::arithmetic();
    let url = model.url();
    let run = |job: &str| {
        let name = format!("name={job}");
        let mut command = machine.command();
        command.args(["run", "-d", "gsm8k", "-m", "m", "--base-url", &url, "--offline", "--set", &name]);
        command
    };
    let (_, stderr) = machine.finish(&mut run("early"), 2);
    assert!(stderr.contains("[hub]/datasets/openai/gsm8k is not in the cache"), "{stderr}");
    assert!(stderr.contains("rollout datasets download"), "{stderr}");
    assert!(machine.hub.requests().is_empty());
    let (stdout, _) = machine.run(&["datasets", "download", "gsm8k", "-o", "questions.jsonl"], 0);
    insta::assert_snapshot!(stdout, @"gsm8k: 2 questions, in questions.jsonl");
    let saved = fs::read_to_string(machine.root.path().join("questions.jsonl")).unwrap();
    assert_eq!(saved.lines().next().unwrap(), r#"{"id":"0","question":"What is 2+3?","answer":"5"}"#);
    let asked = machine.hub.requests().len();
    machine.finish(&mut run("later"), 0);
    assert!(machine.rows("later").iter().all(|row| row["reward"] == 1.0));
    machine.hub.publish("openai/gsm8k", false, &[("main/test-00000-of-00001.jsonl", b"{}")]);
    machine.run(&["resume", "jobs/later", "--rerun", "unsolved", "--offline"], 0);
    assert_eq!(machine.hub.requests().len(), asked);
}

#[test]
fn a_resumed_job_uses_the_recorded_commit_of_the_hub() {
    let machine = Machine::new();
    machine.hub.publish("openai/gsm8k", false, &[("main/test-00000-of-00001.jsonl", &gsm8k())]);
    let model = ModelServer::arithmetic();
    let url = model.url();
    machine.run(&["run", "-d", "gsm8k", "-m", "m", "--base-url", &url, "--set", "name=job"], 0);
    let other = lines(&[json!({"question": "What is 1+1?", "answer": "#### 2"})]);
    machine.hub.publish("openai/gsm8k", false, &[("main/test-00000-of-00001.jsonl", &other)]);
    machine.run(&["resume", "jobs/job", "--attempts", "2"], 0);
    let rows = machine.rows("job");
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row["reward"] == 1.0), "{rows:#?}");
}

#[test]
fn a_token_reaches_the_hub_and_no_file() {
    let machine = Machine::new();
    machine.hub.publish("team/secret", true, &[("test.jsonl", &gsm8k())]);
    machine.run(&["datasets", "download", "hf:team/secret"], 2);
    let token = machine.root.path().join(".cache/huggingface/token");
    fs::create_dir_all(token.parent().unwrap()).unwrap();
    fs::write(&token, HubServer::TOKEN).unwrap();
    let (stdout, stderr) = machine.run(&["datasets", "download", "hf:team/secret"], 0);
    assert!(!(stdout + &stderr).contains(HubServer::TOKEN));
    fs::remove_file(&token).unwrap();
    assert!(!content(machine.root.path()).contains(HubServer::TOKEN));
}

fn content(dir: &Path) -> String {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let text = |path: std::path::PathBuf| match path.is_dir() {
        true => content(&path),
        false => String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned(),
    };
    entries.map(text).collect()
}

/// Runs a built-in benchmark on rows in the schema of its dataset, and returns the rewards. The model replies with the
/// entry whose first text is in its prompt.
#[track_caller]
fn rewards(
    definition: &str,
    repo: &str,
    file: &str,
    rows: &[u8],
    replies: &'static [(&str, &str)],
) -> Vec<f64> {
    let machine = Machine::new();
    machine.hub.publish(repo, false, &[(file, rows)]);
    let model = ModelServer::scripted(move |request| {
        let text = request.last_text();
        let reply = replies.iter().find(|(part, _)| text.contains(part));
        ModelReply::text(reply.unwrap_or_else(|| panic!("no reply to {text}")).1)
    });
    let url = model.url();
    let mut command = machine.command();
    command
        .env("OPENAI_BASE_URL", &url)
        .args(["run", "-d", definition, "-m", "m", "--base-url", &url, "--set", "name=job"])
        .args(["-e", "native", "--set", "environment.provider_config.images={\"*\":\"host\"}"]);
    machine.finish(&mut command, 0);
    let mut rows = machine.rows("job");
    rows.sort_by_key(|row| row["example_id"].as_u64());
    rows.iter().map(|row| row["reward"].as_f64().unwrap()).collect()
}

#[test]
fn gsm8k_compares_the_last_number() {
    let replies = &[("2+3", "2 plus 3 makes 5.\nAnswer: 5"), ("40+2", "Answer: 41")];
    assert_eq!(
        rewards("gsm8k", "openai/gsm8k", "main/test-00000-of-00001.jsonl", &gsm8k(), replies),
        [1.0, 0.0]
    );
}

#[test]
fn math_500_compares_the_box() {
    let rows = lines(&[
        json!({"problem": "Half of one?", "solution": "…", "answer": "\\frac{1}{2}", "subject": "Algebra", "level": 1, "unique_id": "a"}),
        json!({"problem": "Two and two?", "solution": "…", "answer": "4", "subject": "Algebra", "level": 1, "unique_id": "b"}),
    ]);
    let replies = &[("Half", r"<think>\boxed{9}</think> It is \boxed{0.5}."), ("Two", "It is 4.")];
    assert_eq!(rewards("math-500", "HuggingFaceH4/MATH-500", "test.jsonl", &rows, replies), [1.0, 0.0]);
}

#[test]
fn aime_compares_whole_numbers() {
    let rows = lines(&[
        json!({"problem": "First?", "answer": "070", "id": "0"}),
        json!({"problem": "Second?", "answer": "588", "id": "1"}),
    ]);
    let replies = &[("First", r"\boxed{70}"), ("Second", r"\boxed{587}")];
    assert_eq!(rewards("aime-2025", "math-ai/aime25", "test.jsonl", &rows, replies), [1.0, 0.0]);
    let rows = lines(&[
        json!({"id": 60, "problem": "First?", "solution": "…", "answer": "204", "url": "…", "year": "2024"}),
        json!({"id": 61, "problem": "Second?", "solution": "…", "answer": "025", "url": "…", "year": "2024"}),
    ]);
    let replies = &[("First", r"\boxed{204}"), ("Second", r"\boxed{25}")];
    assert_eq!(
        rewards("aime-2024", "HuggingFaceH4/aime_2024", "data/train-00000-of-00001.jsonl", &rows, replies),
        [1.0, 1.0]
    );
}

#[test]
fn mmlu_pro_shows_the_choices_and_compares_the_letter() {
    let row = |question: &str, answer: &str| {
        json!({
            "question_id": 1, "question": question, "options": ["red", "green", "blue"], "answer": answer,
            "answer_index": 1, "cot_content": "", "category": "other", "src": "test",
        })
    };
    let rows = lines(&[row("Grass?", "B"), row("Sky?", "C")]);
    let replies = &[
        ("Grass?\n\nA. red\nB. green\nC. blue", "Grass is green.\nAnswer: B"),
        ("Sky?", "Maybe A or B.\nAnswer: B"),
    ];
    let file = "data/test-00000-of-00001.jsonl";
    assert_eq!(rewards("mmlu-pro", "TIGER-Lab/MMLU-Pro", file, &rows, replies), [1.0, 0.0]);
}

#[test]
fn gpqa_shuffles_the_choices_in_a_fixed_way() {
    let machine = Machine::new();
    let rows = "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3,Subdomain\n\
                Which is a planet?,Mars,Sun,Moon,Halley,Physics\nWhich is a gas?,Neon,Iron,Salt,Wax,Chemistry\n";
    machine.hub.publish(
        "Idavidrein/gpqa",
        false,
        &[("gpqa_diamond.csv", rows.as_bytes()), ("gpqa_main.csv", b"a\n1\n")],
    );
    let model = ModelServer::scripted(|request| {
        let text = request.last_text();
        let right = if text.contains("planet") { ". Mars" } else { ". Iron" };
        let line = text.lines().find(|line| line.ends_with(right)).expect("the choice is shown");
        ModelReply::text(format!("Answer: {}", &line[..1]))
    });
    let url = model.url();
    machine.run(&["run", "-d", "gpqa-diamond", "-m", "m", "--base-url", &url, "--set", "name=job"], 0);
    let mut rows = machine.rows("job");
    rows.sort_by_key(|row| row["example_id"].as_u64());
    let rewards: Vec<_> = rows.iter().map(|row| row["reward"].as_f64().unwrap()).collect();
    assert_eq!(rewards, [1.0, 0.0]);
}

#[test]
fn simpleqa_is_judged_by_a_model() {
    let rows =
        b"metadata,problem,answer\n{},What is the capital of France?,Paris\n{},Who wrote Faust?,Goethe\n";
    let replies = &[
        ("Response: The capital is Paris", "yes"),
        ("Response: I do not know", "no"),
        ("capital", "The capital is Paris"),
        ("Faust", "I do not know"),
    ];
    assert_eq!(
        rewards("simpleqa", "basicv8vc/SimpleQA", "simple_qa_test_set.csv", rows, replies),
        [1.0, 0.0]
    );
}

#[test]
fn hotpotqa_shows_the_paragraphs_and_gives_f1() {
    let row = |question: &str, answer: &str| {
        json!({
            "id": "1", "question": question, "answer": answer, "type": "bridge", "level": "hard",
            "supporting_facts": {"title": ["Rome"], "sent_id": [0]},
            "context": {"title": ["Rome", "Paris"], "sentences": [["Rome is old.", " Very old."], ["Paris is large."]]},
        })
    };
    let rows = lines(&[row("Which city is old?", "Rome"), row("Which river is near?", "Tiber river")]);
    let replies = &[
        ("Rome\nRome is old. Very old.\n\nParis\nParis is large.\n\nQuestion: Which city", "Rome."),
        ("river", "Tiber"),
    ];
    let found = rewards(
        "hotpotqa",
        "hotpotqa/hotpot_qa",
        "distractor/validation-00000-of-00001.jsonl",
        &rows,
        replies,
    );
    assert_eq!(found[0], 1.0);
    assert!((found[1] - 2.0 / 3.0).abs() < 1e-9, "{found:?}");
}

#[test]
fn humaneval_runs_the_tests_in_a_container() {
    let row = |name: &str| {
        json!({
            "task_id": format!("HumanEval/{name}"), "entry_point": name, "canonical_solution": "    return a + b\n",
            "prompt": format!("import math\n\ndef {name}(a, b):\n    \"\"\"The sum.\"\"\"\n"),
            "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert math.pi > 3\n",
        })
    };
    let names = ["add", "plus", "loop", "forge", "equal", "peek", "leave", "kill"];
    let rows = lines(&names.map(row));
    let replies = &[
        ("def add", "Sure:\n```python\ndef add(a, b):\n    return a + b\n```\nThis adds."),
        ("def plus", "```python\ndef plus(a, b):\n    return a - b\n```"),
        ("def loop", "```python\nimport sys\nsys.exit(0)\n```"),
        // Answers that try to pass without a sum.
        ("def forge", "```python\nimport os\nos.write(1, b'passed\\n')\nos._exit(0)\n```"),
        (
            "def equal",
            "```python\nclass All(int):\n    def __eq__(self, other): return True\ndef equal(a, b):\n    return All()\n```",
        ),
        (
            "def peek",
            "```python\nimport os\nparent = f'/proc/{os.getppid()}'\nfound = b''\n\
             for path in ['/tmp/judge.py', parent + '/mem', parent + '/fd/1', parent + '/environ']:\n    try:\n        \
             found += open(path, 'rb').read(1 << 20)\n    except OSError:\n        pass\n\
             def peek(a, b):\n    return 5 if found else 0\n```",
        ),
        ("def leave", "```python\nimport sys\ndef leave(a, b):\n    sys.exit(0)\n```"),
        (
            "def kill",
            "```python\nimport os\ndef kill(a, b):\n    os.kill(os.getppid(), 15)\n    return 5\n```",
        ),
    ];
    let file = "openai_humaneval/test-00000-of-00001.jsonl";
    assert_eq!(
        rewards("humaneval", "openai/openai_humaneval", file, &rows, replies),
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    );
}

#[test]
fn tasks_are_checked_and_validated_by_name() {
    let machine = Machine::new();
    let (stdout, _) = machine.run(&["validate", "bench@1.0"], 0);
    assert!(stdout.contains("bench@1.0 (1 task): no problems"), "{stdout}");
    let (_, stderr) = machine.run(&["validate", "absent"], 2);
    assert!(stderr.contains("absent"), "{stderr}");
    let mut check = machine.command();
    check.env("DOCKER_HOST", TestEngine::shared().host());
    let (stdout, _) = machine.finish(check.args(["check", "bench", "--attempts", "1"]), 0);
    assert!(stdout.contains("1 task: all passed the check"), "{stdout}");
    assert!(!stdout.contains("was not searched"), "{stdout}");
    let (_, stderr) = machine.run(&["check", "absent"], 2);
    assert!(stderr.contains("absent"), "{stderr}");
}

#[test]
fn tasks_of_a_repository_are_searched_for_leaks_and_versions() {
    let machine = Machine::new();
    let repo = TestRepo::new(machine.root.path().join("repo"));
    let commit = repo.commit(
        &TestTask::new("leaky")
            .dockerfile("FROM test\nCOPY seen.sh /app/\nWORKDIR /app\n")
            .file("environment/seen.sh", "touch /app/done\n"),
    );
    let registry = json!([{"name": "remote", "tasks": [
        {"name": "leaky", "git_url": repo.url(), "git_commit_id": commit, "path": "tasks/leaky"},
    ]}]);
    fs::write(machine.root.path().join("registry.json"), registry.to_string()).unwrap();
    let set = format!("git+{}#tasks", repo.url());
    for dataset in ["remote", set.as_str()] {
        let mut check = machine.command();
        check.env("DOCKER_HOST", TestEngine::shared().host());
        let arguments = ["check", dataset, "--attempts", "1", "--output", "json"];
        let (stdout, _) = machine.finish(check.args(arguments), 1);
        let report: Value = serde_json::from_str(&stdout).unwrap();
        let task = &report["tasks"][0];
        assert_eq!(task["leaks"][0]["file"], "solution/solve.sh", "{dataset}: {task:#}");
        assert!(task["unpinned"].to_string().contains("test"), "{dataset}: {task:#}");
        assert!(task["size_bytes"].as_u64().unwrap() > 0, "{dataset}: {task:#}");
        assert!(task["image_bytes"].as_u64().unwrap() > 0, "{dataset}: {task:#}");
    }
}

#[test]
fn a_benchmark_asks_the_rows_of_a_dataset_on_a_hub() {
    let machine = Machine::new();
    let rows = lines(&[
        json!({"question": "What is 2+2?", "answer": "4"}),
        json!({"question": "What is 3+4?", "answer": "8"}),
    ]);
    machine.hub.publish("me/sums", false, &[("data/test-00000-of-00001.jsonl", &rows)]);
    let server = ModelServer::arithmetic();
    let config = json!({
        "data_path": "hf:me/sums:test", "output_dir": "out", "base_url": server.url(), "model_name": "m",
    });
    fs::write(machine.root.path().join("config.json"), config.to_string()).unwrap();
    let (stdout, _) = machine.run(&["validate", "config.json"], 0);
    assert!(stdout.contains("(2 questions)"), "{stdout}");
    machine.run(&["eval", "config.json"], 0);
    let results = fs::read_to_string(machine.root.path().join("out/results.jsonl")).unwrap();
    assert_eq!(results.lines().count(), 2, "{results}");
    // An interrupted run continues with the same rows, also if the hub has others by then.
    machine.hub.publish("me/sums", false, &[("data/test-00000-of-00001.jsonl", b"{}\n")]);
    machine.run(&["resume", "out"], 0);
    let saved = fs::read_to_string(machine.root.path().join("out/config.json")).unwrap();
    assert!(saved.contains("\"benchmark_name\"") && saved.contains("sums"), "{saved}");
}
