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
    let told = killed.kill_at(&run, &resume, kills, || hold.pass(replies));
    assert!(told < rollouts, "the last run has nothing to do");
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
