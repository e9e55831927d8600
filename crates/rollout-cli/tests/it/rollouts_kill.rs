//! A run of models that is killed again and again: each rollout has one row, and all comes to the same.

use std::{collections::BTreeSet, fs};

use rollout_testkit::{Hold, ModelReply, ModelServer, TestJob, finished_trials, without_times};
use serde_json::{Value, json};

/// Rollouts of each example.
const ATTEMPTS: usize = 4;

/// Rollouts that are over in a run before it is killed, in percent of the replies that the server gives in it.
const KILLED_AT: [usize; 5] = [1, 15, 30, 45, 60];

/// Three of five examples are answered rightly, by different words of different lengths.
fn job(server: &ModelServer, examples: usize) -> TestJob {
    let examples: Vec<_> =
        (0..examples).map(|n| json!({"question": format!("{n}"), "answer": n.to_string()})).collect();
    let model = json!({
        "name": "m", "base_url": server.url(), "max_retries": 0,
        "prices": {"input": 0.7, "output": 1.3},
    });
    // Sums of these weights depend on their order in the last bit.
    let rubric = json!([
        {"name": "said", "match": "contains", "weight": 0.7},
        {"name": "number", "match": "numeric", "weight": 0.1},
        {"name": "word", "match": "exact", "weight": 0.2},
    ]);
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "gpt", "model": model}))
        .set("datasets", json!([{"name": "words", "interaction": {"dataset": examples, "rubric": rubric}}]))
        .set("n_attempts", json!(ATTEMPTS))
        .set("n_concurrent_trials", json!(16))
}

fn answer(question: &str) -> String {
    let number: usize = question.parse().unwrap();
    match number % 5 {
        0 => format!("It is {number}."),
        1 => number.to_string(),
        2 => format!("{number}.0"),
        3 => "I do not know.".to_owned(),
        _ => format!("Not {}, {}", number + 1, "by no means ".repeat(number % 7)),
    }
}

fn lines(job: &TestJob, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(job.dir().join(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn document(job: &TestJob, file: &str) -> Value {
    without_times(serde_json::from_slice(&fs::read(job.dir().join(file)).unwrap()).unwrap())
}

#[test]
fn a_run_killed_five_times_has_each_row_once_and_comes_to_the_same_to_the_last_bit() {
    let rollouts = if std::env::var_os("ROLLOUT_TEST_FULL").is_some() { 2000 } else { 300 };
    // All replies before the last run together leave some rollouts for it.
    let replies = rollouts / 6;
    let hold = Hold::new();
    let held = hold.clone();
    let server =
        ModelServer::scripted(move |request| ModelReply::text(answer(&request.last_text())).held(&held));
    let killed = job(&server, rollouts / ATTEMPTS);
    let resume = ["resume", "jobs/job", "--output", "json"];
    let kills = KILLED_AT.map(|percent| (replies * percent / 100).max(1));
    let run = ["run", "job.yaml", "--output", "json"];
    let reported = killed.kill_at(&run, &resume, kills, || hold.pass(replies));
    assert!(reported < rollouts, "the last run has nothing to do");
    hold.open();
    let end = killed.rollout(&resume).expect(0);
    assert!(finished_trials(&end.events()) > 0);

    let place = |row: &Value| (row["example_id"].as_u64().unwrap(), row["attempt"].as_u64().unwrap());
    let mut rows = lines(&killed, "outputs.jsonl");
    assert_eq!(rows.len(), rollouts);
    assert_eq!(rows.iter().map(place).collect::<BTreeSet<_>>().len(), rollouts);
    let journal = lines(&killed, "journal.jsonl");
    let done: Vec<_> = journal.iter().filter_map(|entry| entry["index"].as_u64()).collect();
    assert_eq!(done.len(), rollouts);
    assert_eq!(done.iter().collect::<BTreeSet<_>>().len(), rollouts);

    let whole = job(&server, rollouts / ATTEMPTS);
    whole.run().expect(0);
    for file in ["metadata.json", "result.json"] {
        assert_eq!(document(&killed, file), document(&whole, file), "{file}");
    }
    let metadata = document(&whole, "metadata.json");
    assert!(metadata["pass_at_k"]["4"].as_f64().unwrap() < 1.0, "{metadata:#}");
    assert!(metadata["avg_metrics"]["said"].as_f64().unwrap() > 0.0, "{metadata:#}");
    let mut expected = lines(&whole, "outputs.jsonl");
    rows.sort_by_key(place);
    expected.sort_by_key(place);
    let rows = rows.into_iter().map(without_times);
    assert!(rows.eq(expected.into_iter().map(without_times)), "the rows differ");
}

/// A job for training, of which every tenth request fails if it is disturbed. The place of a rollout in its group makes
/// the difference between its members, because all of them are asked the same.
fn training_job(server: &ModelServer, examples: usize) -> TestJob {
    let examples: Vec<_> =
        (0..examples).map(|n| json!({"question": format!("{n}"), "answer": n.to_string()})).collect();
    let model = json!({"name": "m", "base_url": server.url(), "max_retries": 0, "token_ids": true});
    let interaction = json!({
        "dataset": examples,
        "rubric": [
            {"name": "said", "match": "contains", "weight": 0.7},
            {"name": "place", "command": ["echo", "[0.1, 0.2, 0.4, 0.8]"], "group": true},
        ],
        "state_columns": ["trajectory", "advantage"],
    });
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "gpt", "model": model}))
        .set("datasets", json!([{"name": "words", "interaction": interaction}]))
        .set("n_attempts", json!(ATTEMPTS))
        .set("n_concurrent_trials", json!(16))
        .set("retry", json!({"max_attempts": 1}))
}

/// Example, attempt, reward, advantage and metrics of each rollout, in their order.
fn scores(job: &TestJob) -> Vec<Value> {
    let mut rows = lines(job, "outputs.jsonl");
    rows.sort_by_key(|row| (row["example_id"].as_u64(), row["attempt"].as_u64()));
    let keys = ["example_id", "attempt", "reward", "advantage", "metrics", "error"];
    let turn = |row: &Value| row["trajectory"][0]["advantage"].clone();
    rows.iter().map(|row| json!([keys.map(|key| row[key].clone()), turn(row)])).collect()
}

/// The training samples of a job, but for the random names of its rollouts.
fn samples(job: &TestJob) -> Vec<Value> {
    job.rollout(&["export", "rl", "jobs/job", "-o", "samples"]).expect(0);
    let text = fs::read_to_string(job.root().join("samples/samples.jsonl")).unwrap();
    let nameless = |line: &str| {
        let mut sample: Value = serde_json::from_str(line).unwrap();
        sample["trajectory_id"].take();
        sample
    };
    text.lines().map(nameless).collect()
}

#[test]
fn failing_requests_and_kills_change_no_reward_advantage_or_sample() {
    let rollouts = if std::env::var_os("ROLLOUT_TEST_FULL").is_some() { 2000 } else { 200 };
    let replies = rollouts / 6;
    let hold = Hold::new();
    let held = hold.clone();
    let failing = ModelServer::scripted(move |request| match request.number % 10 {
        3 => ModelReply::error(500, "out of memory").held(&held),
        _ => ModelReply::text(answer(&request.last_text())).held(&held),
    });
    let killed = training_job(&failing, rollouts / ATTEMPTS);
    let resume = ["resume", "jobs/job", "--output", "json"];
    let kills = KILLED_AT.map(|percent| (replies * percent / 100).max(1));
    killed.kill_at(&["run", "job.yaml", "--output", "json"], &resume, kills, || hold.pass(replies));
    hold.open();
    // Some fail in each run, and fewer are left for the next.
    let first = killed.rollout(&resume).expect(1);
    assert!(first.result()["failed_trials"].as_u64().unwrap() > 0);
    let again = ["resume", "jobs/job", "--rerun", "error", "--output", "json"];
    let mut failed = first.result()["failed_trials"].clone();
    for _ in 0..20 {
        if failed == 0 {
            break;
        }
        failed = killed.rollout(&again).result()["failed_trials"].clone();
    }
    assert_eq!(failed, 0);

    let well = ModelServer::scripted(|request| ModelReply::text(answer(&request.last_text())));
    let whole = training_job(&well, rollouts / ATTEMPTS);
    whole.run().expect(0);
    let (disturbed, undisturbed) = (scores(&killed), scores(&whole));
    assert_eq!(disturbed.len(), rollouts);
    assert_eq!(disturbed, undisturbed);
    let (disturbed, undisturbed) = (samples(&killed), samples(&whole));
    assert_eq!(undisturbed.len(), rollouts);
    assert!(undisturbed.iter().all(|sample| sample["advantage"].as_f64() != Some(0.0)));
    assert!(disturbed == undisturbed, "the samples differ");
}
