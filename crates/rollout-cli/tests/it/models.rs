//! Jobs in which models attempt examples, by the real command against a scripted server.

use std::fs;

use rollout_testkit::{Hold, ModelReply, ModelServer, TestJob, TestTask};
use serde_json::{Value, json};

/// A job with one model, and one interaction named `sums`.
fn job(server: &ModelServer, interaction: Value) -> TestJob {
    let model = json!({
        "name": "m", "base_url": server.url(), "api_key": "${SUMS_KEY}", "max_retries": 0,
    });
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .env("SUMS_KEY", "sk-of-the-sums")
        .agent(json!({"name": "gpt", "model": model}))
        // No engine answers here: a job without containers asks for none.
        .set("environment", json!({"type": "docker", "provider_config": {"host": "tcp://127.0.0.1:1"}}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]))
}

fn sums(count: u32) -> Vec<Value> {
    (0..count)
        .map(|n| json!({"question": format!("What is {n}+1?"), "answer": (n + 1).to_string()}))
        .collect()
}

fn rows(job: &TestJob) -> Vec<Value> {
    let text = fs::read_to_string(job.dir().join("outputs.jsonl")).expect("the job has outputs");
    text.lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
}

#[test]
fn a_model_attempts_every_example_as_often_as_the_job_says() {
    let server = ModelServer::arithmetic().key("sk-of-the-sums");
    let job = job(&server, json!({"dataset": sums(3), "rubric": [{"match": "numeric"}]}))
        .set("n_attempts", json!(2));
    let finished = job.run().expect(0);
    assert_eq!(server.served(), 6);
    let result = finished.result();
    assert_eq!((&result["total_trials"], &result["completed_trials"]), (&json!(6), &json!(6)));
    let rows = rows(&job);
    assert_eq!(rows.len(), 6);
    for row in &rows {
        assert_eq!((&row["reward"], &row["metrics"]["numeric"]), (&json!(1.0), &json!(1.0)), "{row}");
        assert_eq!((&row["task"], &row["is_completed"]), (&json!("sums"), &json!(true)));
    }
    let metadata: Value =
        serde_json::from_slice(&fs::read(job.dir().join("metadata.json")).unwrap()).unwrap();
    assert_eq!((&metadata["env_id"], &metadata["model"]), (&json!("sums"), &json!("m")));
    assert_eq!((&metadata["num_examples"], &metadata["rollouts_per_example"]), (&json!(3), &json!(2)));
    assert_eq!(metadata["pass_at_k"]["1"], 1.0);
}

#[test]
fn the_key_of_a_model_is_in_no_file() {
    let server = ModelServer::scripted(|request| {
        ModelReply::text(format!("the key is sk-of-the-sums, {}", request.last_text()))
    });
    let job = job(&server, json!({"dataset": sums(1), "rubric": [{"match": "exact"}]}));
    let finished = job.run().expect(0);
    let mut shown = finished.stdout() + &finished.stderr();
    for entry in fs::read_dir(job.dir()).unwrap() {
        shown += &String::from_utf8_lossy(&fs::read(entry.unwrap().path()).unwrap());
    }
    assert!(!shown.contains("sk-of-the-sums"), "{shown}");
    assert!(shown.contains("${SUMS_KEY}"));
}

#[test]
fn an_interaction_file_contains_its_examples_and_tools() {
    let add = "import json, sys; a = json.load(sys.stdin); print(a['a'] + a['b'])";
    let server = ModelServer::turns([
        ModelReply::tool_call("add", &json!({"a": 20, "b": 22})),
        ModelReply::text("<answer>42</answer>"),
    ]);
    let interaction = "
dataset: data.jsonl
system_prompt: Use the tools.
tools:
  - command: [python3, add.py]
    name: add
    description: Adds two numbers.
    parameters: {type: object, properties: {a: {type: number}, b: {type: number}}}
parser: {xml: [answer]}
rubric:
  - match: exact
  - {name: checked, weight: 0.5, command: [python3, score.py]}
";
    let score =
        "import json, sys; s = json.load(sys.stdin); print(0.5 if s['response'] == s['answer'] else 0)";
    let job = job(&server, json!(null))
        .set("datasets", json!([{"interaction": "sets/adding.yaml"}]))
        .file("sets/adding.yaml", interaction)
        .file("sets/data.jsonl", "{\"question\": \"20+22?\", \"answer\": 42}\n")
        .file("sets/add.py", add)
        .file("sets/score.py", score);
    job.run().expect(0);
    let row = rows(&job).remove(0);
    assert_eq!(row["reward"], 1.25, "{row:#}");
    let requests = server.requests();
    let last = requests.last().unwrap().last_text();
    assert_eq!(last, "42");
    assert_eq!(row["stop_condition"], "no_tools_called");
}

#[test]
fn python_functions_score_and_are_tools_with_arguments_that_the_model_does_not_see() {
    let server = ModelServer::turns([
        ModelReply::tool_call("find", &json!({"word": "cats", "database": "of the model"})),
        ModelReply::text("7"),
    ]);
    let functions = "
import os

def lookup(word: str, database: str, session: str):
    '''Looks a word up.'''
    assert len(session) == 32
    return f'{word} in {database} of {os.getpid()}'

def exact(response, answer, source):
    return response == answer and source == 'book'

def best(responses):
    return [float(response == max(responses)) for response in responses]
";
    let interaction = "
dataset: [{question: How many cats?, answer: '7', source: book, info: {databases: {animals: zoo}}}]
tools:
  - python: functions.py:lookup
    name: find
    hidden: {database: info.databases.animals, session: trajectory_id}
rubric:
  - {python: functions.py:exact, weight: 2}
  - {python: functions.py:best, group: true, weight: 0.5}
";
    let job = job(&server, json!(null))
        .set("datasets", json!([{"interaction": "sets/cats.yaml"}]))
        .file("sets/cats.yaml", interaction)
        .file("sets/functions.py", functions);
    job.run().expect(0);
    let row = rows(&job).remove(0);
    assert_eq!(row["reward"], 2.5, "{row:#}");
    assert_eq!((&row["metrics"]["exact"], &row["metrics"]["best"]), (&json!(1.0), &json!(1.0)));
    assert_eq!(row["tool_defs"][0]["name"], "find");
    assert_eq!(row["tool_defs"][0]["description"], "Looks a word up.");
    assert_eq!(row["tool_defs"][0]["parameters"]["properties"], json!({"word": {"type": "string"}}));
    let shown = server.requests().last().unwrap().last_text();
    assert!(shown.starts_with("cats in zoo of "), "{shown}");
}

#[test]
fn a_missing_python_function_is_reported_before_anything_runs() {
    let server = ModelServer::arithmetic();
    let rubric = json!([{"python": "rewards.py:exakt"}]);
    let job = job(&server, json!({"dataset": sums(1), "rubric": rubric}))
        .file("rewards.py", "def exact(response, answer): return response == answer\n");
    let finished = job.run().expect(2);
    let text = finished.stderr();
    assert!(text.contains("cannot call `rewards.py:exakt`: there is no function `exakt` in "), "{text}");
    assert_eq!(server.served(), 0);
}

#[test]
fn a_judge_scores_with_a_model_of_its_own() {
    let server = ModelServer::arithmetic();
    let judge = ModelServer::always(ModelReply::text("yes"));
    let rubric = json!([{"judge": {"model": {"name": "j", "base_url": judge.url()}}, "weight": 2}]);
    let job = job(&server, json!({"dataset": sums(2), "rubric": rubric}));
    job.run().expect(0);
    assert_eq!(judge.served(), 2);
    assert!(rows(&job).iter().all(|row| row["reward"] == 2.0));
}

#[test]
fn a_judge_whose_key_is_refused_stops_the_job_and_records_no_zeros() {
    let server = ModelServer::arithmetic();
    let judge = ModelServer::arithmetic().key("sk-of-the-judge");
    let rubric = json!([{"judge": {"model": {"name": "j", "base_url": judge.url()}}}]);
    let job = job(&server, json!({"dataset": sums(3), "rubric": rubric}));
    let finished = job.run().expect(1);
    let text = finished.stderr();
    assert!(text.contains("rejected the API key of a model of the rubric"), "{text}");
    assert!(!job.dir().join("outputs.jsonl").exists());
}

#[test]
fn a_dead_judge_is_a_failure_of_the_infrastructure_and_stops_the_job() {
    let server = ModelServer::arithmetic();
    let judge = json!({"name": "j", "base_url": "http://127.0.0.1:9/v1", "max_retries": 0});
    let job = job(&server, json!({"dataset": sums(12), "rubric": [{"judge": {"model": judge}}]}))
        .set("n_concurrent_trials", json!(1));
    let finished = job.rollout(&["run", "job.yaml"]).expect(1);
    assert_eq!(finished.result()["stopped"]["error"]["type"], "model_failed");
    let rows = rows(&job);
    assert_eq!(rows.len(), 5, "a job stops if its first five trials fail in the same way");
    assert!(
        rows.iter().all(|row| row["reward"] == 0.0 && row["error"]["error"] == "ModelError"),
        "{rows:#?}"
    );
    let text = finished.stderr() + &finished.stdout();
    assert!(text.contains("5 trials: model_failed: "), "{text}");
    assert!(text.contains("`judge` of the rubric failed"), "{text}");
}

#[test]
fn a_judge_that_fails_for_a_while_is_an_exit_status_of_1_and_its_rollouts_can_be_run_again() {
    let server = ModelServer::arithmetic();
    let yes = || ModelReply::text("yes");
    let judge = ModelServer::sequence([ModelReply::error(500, "out of order"), yes(), yes(), yes()]);
    let model = json!({"name": "j", "base_url": judge.url(), "max_retries": 0});
    let job = job(&server, json!({"dataset": sums(3), "rubric": [{"judge": {"model": model}}]}))
        .set("n_concurrent_trials", json!(1));
    let finished = job.rollout(&["run", "job.yaml"]).expect(1);
    let text = finished.stderr() + &finished.stdout();
    assert!(text.contains("1 trial: model_failed: ") && text.contains("out of order"), "{text}");
    job.rollout(&["resume", "jobs/job", "--rerun", "error"]).expect(0);
    assert!(rows(&job).iter().all(|row| row["reward"] == 1.0 && row["error"].is_null()));
}

#[test]
fn a_container_of_the_rubric_that_cannot_start_is_a_failure_of_the_infrastructure() {
    let server = ModelServer::arithmetic();
    let interaction = json!({
        "dataset": sums(2),
        "environment": {"docker_image": "127.0.0.1:9/no/image:1"},
        "rubric": [{"sandbox": {"file": "/tmp/check", "content": "{response}", "command": ["cat", "/tmp/check"]}}],
    });
    let job = job(&server, interaction).set("environment", json!({"type": "native"}));
    let finished = job.rollout(&["run", "job.yaml"]).expect(1);
    let text = finished.stderr() + &finished.stdout();
    assert!(text.contains("2 trials: environment_start_failed: "), "{text}");
    let rows = rows(&job);
    assert!(
        rows.iter().all(|row| row["reward"] == 0.0 && row["error"]["error"] == "SandboxError"),
        "{rows:#?}"
    );
}

#[test]
fn a_python_function_that_ends_its_process_scores_0_like_one_that_raises() {
    let functions = "
import os
def score(answer):
    if answer == '1':
        os._exit(3)
    raise ValueError('no')
";
    let server = ModelServer::arithmetic();
    let job = job(&server, json!({"dataset": sums(2), "rubric": [{"python": "rewards.py:score"}]}))
        .file("rewards.py", functions);
    job.rollout(&["run", "job.yaml"]).expect(0);
    let rows = rows(&job);
    assert!(
        rows.iter().all(|row| (&row["reward"], &row["error"]) == (&json!(0.0), &Value::Null)),
        "{rows:#?}"
    );
}

#[test]
fn a_function_that_fails_is_reported_once_and_noted_in_every_result() {
    let server = ModelServer::arithmetic();
    let rubric = json!([{"name": "checked", "command": ["sh", "-c", "echo no scorer here >&2; exit 3"]}]);
    let job = job(&server, json!({"dataset": sums(2), "rubric": rubric}));
    let finished = job.run().expect(0);
    let text = finished.stderr() + &finished.stdout();
    assert_eq!(text.matches("`checked` of the rubric failed").count(), 1, "{text}");
    assert!(text.contains("no scorer here"), "{text}");
    let journal = fs::read_to_string(job.dir().join("journal.jsonl")).unwrap();
    assert_eq!(journal.matches("`checked` of the rubric failed").count(), 2, "{journal}");
}

#[test]
fn columns_that_no_row_can_have_are_refused_before_anything_runs() {
    let server = ModelServer::arithmetic();
    let rubric = json!([{"match": "numeric"}]);
    let job = job(&server, json!({"dataset": sums(1), "rubric": rubric, "state_columns": ["resources"]}));
    let text = job.run().expect(2).stderr();
    assert!(text.contains("resources"), "{text}");
    assert_eq!(server.served(), 0);
}

#[test]
fn a_tool_whose_command_is_missing_is_an_error_of_the_rollout() {
    let server = ModelServer::turns([ModelReply::tool_call("add", &json!({})), ModelReply::text("3")]);
    let tool = json!({"command": ["/nonexistent/add"], "name": "add", "description": "Adds."});
    let interaction = json!({"dataset": sums(1), "rubric": [{"match": "numeric"}], "tools": [tool]});
    let job = job(&server, interaction).set("retry", json!({"max_attempts": 1}));
    job.run().expect(1);
    let row = rows(&job).remove(0);
    assert_eq!((&row["stop_condition"], &row["error"]["error"]), (&json!("has_error"), &json!("InfraError")));
}

#[test]
fn examples_are_shuffled_and_counted_off_as_the_interaction_says() {
    let order = |seed: u64| {
        let server = ModelServer::arithmetic();
        let interaction = json!({"dataset": sums(20), "shuffle": true, "shuffle_seed": seed, "num_examples": 5, "rubric": [{"match": "numeric"}]});
        let job = job(&server, interaction).set("n_concurrent_trials", json!(1));
        job.run().expect(0);
        rows(&job).iter().map(|row| row["example_id"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let first = order(1);
    assert_eq!(first.len(), 5);
    assert_eq!(first, order(1));
    assert_ne!(first, order(2));
}

#[test]
fn a_refused_key_stops_the_job_and_the_error_names_its_model() {
    let server = ModelServer::arithmetic().key("another");
    let job = job(&server, json!({"dataset": sums(3), "rubric": [{"match": "numeric"}]}));
    let finished = job.run();
    assert_eq!(finished.code(), 1);
    let stderr = finished.stderr();
    assert!(stderr.contains("the server rejected the API key of model m"), "{stderr}");
    assert!(stderr.contains("api_key"), "{stderr}");
}

#[test]
fn a_job_that_was_cut_short_is_carried_on() {
    let hold = Hold::new();
    hold.pass(3);
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("1").held(&held));
    let job = job(&server, json!({"dataset": sums(8), "rubric": [{"match": "numeric"}]}))
        .set("n_concurrent_trials", json!(1));
    let mut running = job.start();
    running.until("three rollouts", |events| {
        events.iter().filter(|event| event["event"] == "trial_finished").count() == 3
    });
    running.signal("-KILL");
    running.finish();
    hold.open();
    let resumed = job.rollout(&["resume", job.dir().to_str().unwrap()]).expect(0);
    assert_eq!(resumed.result()["completed_trials"], 8);
    let mut ids: Vec<_> = rows(&job).iter().map(|row| row["example_id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..8).collect::<Vec<_>>());
    // Three before, one that was cut off, and five that were left.
    assert!(matches!(server.served(), 8 | 9), "{}", server.served());
}

#[test]
fn a_dry_run_shows_the_plan_and_sends_no_request() {
    let server = ModelServer::arithmetic();
    let job = job(&server, json!({"dataset": sums(2), "rubric": [{"match": "numeric"}]}));
    let finished = job.rollout(&["run", "job.yaml", "--dry-run"]).expect(0);
    insta::assert_snapshot!(finished.stdout(), @"
    job: 2 trials = 1 agent × 2 tasks × 1 attempt, 4 at a time

    agents    gpt
    datasets  sums (2 tasks)
    provider  none: no trial needs an environment
    results   jobs/job

    first trials
    gpt/sums/0__1
    gpt/sums/1__1

    nothing was run
    ");
    assert_eq!(server.served(), 0);
}

#[test]
fn invalid_examples_are_reported_with_their_lines() {
    let server = ModelServer::arithmetic();
    let job = job(&server, json!({"dataset": "data.jsonl", "rubric": [{"match": "numeric"}]}))
        .file("data.jsonl", "{\"question\": \"1+1?\"}\n{\"answer\": 2}\nnot json\n");
    let finished = job.rollout(&["validate", "job.yaml"]).expect(2);
    insta::assert_snapshot!(finished.stderr(), @"
    error: cannot load dataset `sums`
    cause: invalid examples in data.jsonl
    cause: the dataset has 1 invalid row:
      row 3: not JSON: expected ident at column 2
    ");
    let finished = job.run().expect(2);
    insta::assert_snapshot!(finished.stderr(), @"
    error: cannot load dataset `sums`
    cause: invalid examples in data.jsonl
    cause: the dataset has 1 invalid row:
      row 3: not JSON: expected ident at column 2
    ");
    assert!(!job.dir().exists());
}

#[test]
fn a_job_with_an_interaction_is_valid_without_an_engine() {
    let server = ModelServer::arithmetic();
    let job = job(&server, json!({"dataset": sums(2), "rubric": [{"match": "numeric"}]}));
    let finished = job.rollout(&["validate", "job.yaml"]).expect(0);
    insta::assert_snapshot!(finished.stdout(), @"✓ job.yaml (1 agent, 1 dataset, 2 tasks): no problems");
}

#[test]
fn tools_of_a_container_work_in_one_of_the_rollouts_own() {
    let server = ModelServer::turns([
        ModelReply::tool_call(
            "bash",
            &json!({"command": "cat /tmp/mark 2>/dev/null; echo seen > /tmp/mark; echo hello"}),
        ),
        ModelReply::text("done"),
    ]);
    let interaction = json!({
        "dataset": sums(2),
        "tools": [{"container": ["bash"]}],
        "environment": {"docker_image": "any", "memory": "1G"},
        "rubric": [{"match": "exact"}],
    });
    let job = job(&server, interaction)
        .set("environment", json!({"type": "native", "provider_config": {"images": {"*": "host"}}}));
    job.run().expect(0);
    for row in rows(&job) {
        let reported = row["completion"][1]["content"].as_str().unwrap();
        assert!(reported.contains("hello") && !reported.contains("seen"), "{row:#}");
        for seconds in ["sandbox_ready_wait_time", "sandbox_command_execution_time"] {
            assert!(row["metrics"][seconds].as_f64().unwrap() > 0.0, "{row:#}");
        }
    }
    assert!(job.environments().is_empty());
}

#[test]
fn agents_with_scripts_and_models_share_a_job() {
    let server = ModelServer::arithmetic();
    let job = job(&server, json!(null))
        .task(TestTask::new("task"))
        .oracle()
        .set("environment", json!({"type": "native", "provider_config": {"images": {"*": "host"}}}))
        .set(
            "datasets",
            json!([
                {"path": "set"},
                {"name": "sums", "interaction": {"dataset": sums(1), "rubric": [{"match": "numeric"}]}},
            ]),
        );
    let result = job.rollout(&["run", "job.yaml"]).result();
    let of = |agent: &str, dataset: &str| {
        let rows = result["results"].as_array().unwrap().iter();
        let row =
            rows.clone().find(|row| row["agent_name"] == agent && row["dataset_name"] == dataset).unwrap();
        (row["reward"].clone(), row["error"].clone())
    };
    assert_eq!(of("gpt", "sums"), (json!(1.0), json!(null)));
    assert_eq!(of("oracle", "set"), (json!(1.0), json!(null)));
    assert_eq!(of("oracle", "sums"), (json!(null), json!("task_invalid")));
}
