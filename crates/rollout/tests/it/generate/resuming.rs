//! Going on where a run stopped.

use std::{
    fs,
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex},
};

use rollout::{
    job::Cancel,
    model::{Examples, GenerateMetadata, GenerateOutputs, Rollouts, Rubric, RunOptions},
};
use serde_json::json as value;

use super::support::{Scripted, Shared, examples, json, lines, model, named, right, rollouts};

/// A reward that depends on the example only, so that runs can be compared.
fn uneven() -> Arc<Scripted> {
    Scripted::new(|state, _| {
        let id = state.input.example_id;
        Ok(if id % 3 == 0 { "no".repeat(id as usize) } else { id.to_string() })
    })
}

async fn run(scripted: &Arc<Scripted>, count: u64, sample: Examples, dir: &Path) -> GenerateOutputs {
    let options = RunOptions::new(model()).max_concurrent(4).save_to(dir);
    rollouts(scripted, count).evaluate(sample, options).await.unwrap()
}

fn numbers(metadata: &GenerateMetadata) -> String {
    let GenerateMetadata { avg_reward, avg_metrics, avg_error, pass_at_k, pass_all_k, usage, cost, .. } =
        metadata;
    format!("{avg_reward:?} {avg_metrics:?} {avg_error:?} {pass_at_k:?} {pass_all_k:?} {usage:?} {cost:?}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_continues_without_repeating_anything() {
    let dir = tempfile::tempdir().unwrap();
    let cancel = Cancel::default();
    let stop = cancel.clone();
    let first = Scripted::new(move |state, _| {
        if state.input.example_id == 20 {
            stop.graceful.cancel();
        }
        Ok("1".to_owned())
    });
    let options = RunOptions::new(model()).max_concurrent(4).save_to(dir.path()).cancel(cancel);
    let partial = rollouts(&first, 40).evaluate(Examples::all().rollouts(2), options).await.unwrap();
    assert!(partial.cancelled && partial.outputs.len() < 80 && !partial.outputs.is_empty());

    let second = right();
    let reported = Arc::new(Mutex::new(None));
    let heard = Arc::clone(&reported);
    let options = RunOptions::new(model())
        .save_to(dir.path())
        .on_start(move |all, left| *heard.lock().unwrap() = Some((all, left)));
    let whole = rollouts(&second, 40).evaluate(Examples::all().rollouts(2), options).await.unwrap();
    assert_eq!(second.calls(), 80 - partial.outputs.len());
    assert_eq!(*reported.lock().unwrap(), Some((80, second.calls())));
    let mut rows: Vec<_> = lines(&dir.path().join("outputs.jsonl"))
        .iter()
        .map(|row| (row["example_id"].as_u64().unwrap(), row["attempt"].as_u64().unwrap()))
        .collect();
    rows.sort_unstable();
    assert_eq!(rows, (0..40).flat_map(|id| [(id, 1), (id, 2)]).collect::<Vec<_>>());
    assert_eq!(whole.outputs.len(), 80);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_cut_at_any_place_gives_the_same_averages_to_the_last_bit() {
    let dir = tempfile::tempdir().unwrap();
    let whole = run(&uneven(), 8, Examples::all().rollouts(2), &dir.path().join("whole")).await;
    let saved = dir.path().join("whole");
    let outputs = fs::read(saved.join("outputs.jsonl")).unwrap();
    let journal = fs::read(saved.join("journal.jsonl")).unwrap();
    for (rows, entries) in
        [(outputs.len() / 3, journal.len()), (outputs.len(), journal.len() / 2), (0, journal.len() * 2 / 3)]
    {
        let torn = dir.path().join(format!("torn-{rows}-{entries}"));
        fs::create_dir(&torn).unwrap();
        for name in ["config.json", "metadata.json"] {
            fs::copy(saved.join(name), torn.join(name)).unwrap();
        }
        fs::write(torn.join("outputs.jsonl"), &outputs[..rows]).unwrap();
        fs::write(torn.join("journal.jsonl"), &journal[..entries]).unwrap();
        let done = outputs[..rows].iter().filter(|byte| **byte == b'\n').count();
        let scripted = uneven();
        let again = run(&scripted, 8, Examples::all().rollouts(2), &torn).await;
        assert_eq!(scripted.calls(), 16 - done, "rows cut at {rows}, journal at {entries}");
        assert_eq!(numbers(&again.metadata), numbers(&whole.metadata));
        assert_eq!(lines(&torn.join("outputs.jsonl")).len(), 16);
        assert_eq!(again.outputs.len(), 16);
    }
}

#[tokio::test]
async fn a_finished_run_is_only_reported_again() {
    let dir = tempfile::tempdir().unwrap();
    let first = run(&uneven(), 6, Examples::all().rollouts(2), dir.path()).await;
    let scripted = uneven();
    let again = run(&scripted, 6, Examples::all().rollouts(2), dir.path()).await;
    assert_eq!(scripted.calls(), 0);
    assert_eq!(again.outputs, first.outputs);
    assert_eq!(numbers(&again.metadata), numbers(&first.metadata));
}

#[tokio::test]
async fn more_examples_may_come_with_a_later_run() {
    let dir = tempfile::tempdir().unwrap();
    run(&right(), 10, Examples::first(4), dir.path()).await;
    let scripted = right();
    let more = run(&scripted, 10, Examples::first(7), dir.path()).await;
    assert_eq!((scripted.calls(), more.outputs.len()), (3, 7));
    let none = right();
    let again = run(&none, 10, Examples::first(7), dir.path()).await;
    assert_eq!((none.calls(), again.outputs.len()), (0, 7));
}

#[tokio::test]
async fn another_configuration_is_rejected_with_both_values() {
    let dir = tempfile::tempdir().unwrap();
    run(&right(), 4, Examples::first(3).rollouts(2), dir.path()).await;
    let kinds = rollouts(&right(), 4);
    let here = |model| RunOptions::new(model).save_to(dir.path());
    let same = Examples::first(3).rollouts(2);
    let errors = [
        kinds.clone().env_id("other").evaluate(same, here(model())).await,
        kinds.evaluate(same, here(named("other"))).await,
        kinds.evaluate(Examples::first(3).rollouts(3), here(model())).await,
        kinds.evaluate(Examples::first(2).rollouts(2), here(model())).await,
        kinds.evaluate(same.shuffle(1), here(model())).await,
    ];
    let reported: Vec<_> = errors.into_iter().map(|result| result.unwrap_err().to_string()).collect();
    insta::assert_snapshot!(reported.join("\n"), @r#"
    the configuration has changed since the job was started:
      env_id: was "say", is "other"
    the configuration has changed since the job was started:
      model: was "org/scripted-1", is "other"
    the configuration has changed since the job was started:
      rollouts_per_example: was 2, is 3
    the configuration has changed since the job was started:
      num_examples: was 3, is 2
    the configuration has changed since the job was started:
      shuffle: was false, is true
    "#);
    assert_eq!(lines(&dir.path().join("outputs.jsonl")).len(), 6);
    let shuffled = dir.path().join("shuffled");
    run(&right(), 4, Examples::all().shuffle(1), &shuffled).await;
    let here = RunOptions::new(model()).save_to(&shuffled);
    let error = rollouts(&right(), 4).evaluate(Examples::all().shuffle(2), here).await.unwrap_err();
    assert!(error.to_string().ends_with("shuffle_seed: was 1, is 2"), "{error}");
}

#[tokio::test]
async fn other_examples_with_the_same_numbers_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    run(&right(), 2, Examples::all(), dir.path()).await;
    let mut inputs = super::support::examples(2);
    inputs[1].answer = Some("other".to_owned());
    let error = rollouts(&right(), 0)
        .dataset(inputs)
        .evaluate(Examples::all(), RunOptions::new(model()).save_to(dir.path()))
        .await
        .unwrap_err();
    insta::assert_snapshot!(error, @r"
    the tasks have changed since the job was started:
      example 1 of say has changed
    ");
}

/// Rows and averages as other programs of this kind write them.
fn foreign(dir: &Path, name: &str, rows: &[serde_json::Value]) {
    let metadata =
        value!({"env_id": "say", "model": "org/scripted-1", "num_examples": 3, "rollouts_per_example": 2});
    fs::write(dir.join("metadata.json"), metadata.to_string()).unwrap();
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(dir.join(name), text).unwrap();
}

#[tokio::test]
async fn results_of_other_programs_are_continued() {
    let dir = tempfile::tempdir().unwrap();
    let row = |id: u64, reward: f64| value!({"example_id": id, "reward": reward, "error": null, "prompt": [], "completion": "x"});
    // The third row of example 0 is one too many.
    foreign(
        dir.path(),
        "results.jsonl",
        &[row(0, 1.0), row(0, 0.0), row(0, 1.0), row(2, 1.0), value!({"reward": 1.0}), value!([1])],
    );
    let mut file = fs::OpenOptions::new().append(true).open(dir.path().join("results.jsonl")).unwrap();
    file.write_all(b"not json\n{\"example_id\": 1, \"rew").unwrap();
    let scripted = right();
    let results = run(&scripted, 3, Examples::all().rollouts(2), dir.path()).await;
    assert_eq!(scripted.calls(), 3);
    let found: Vec<_> = results.outputs.iter().map(|row| (row.example_id, row.attempt, row.reward)).collect();
    assert_eq!(
        found,
        [
            (0, Some(1), 1.0),
            (0, Some(2), 0.0),
            (1, Some(1), 1.0),
            (1, Some(2), 1.0),
            (2, Some(1), 1.0),
            (2, Some(2), 1.0)
        ]
    );
    assert!(!dir.path().join("outputs.jsonl").exists());
    assert_eq!(json(&dir.path().join("metadata.json"))["avg_reward"], 5.0 / 6.0);
    let none = right();
    assert_eq!(run(&none, 3, Examples::all().rollouts(2), dir.path()).await.outputs.len(), 6);
    assert_eq!(none.calls(), 0);
}

#[tokio::test]
async fn rows_of_other_programs_count_in_the_advantages_of_the_rest_of_their_group() {
    let dir = tempfile::tempdir().unwrap();
    let row = value!({
        "example_id": 0, "reward": 0.0, "error": null, "prompt": [{"role": "user", "content": "say 0"}],
        "completion": [{"role": "assistant", "content": "wrong"}],
    });
    foreign(dir.path(), "results.jsonl", std::slice::from_ref(&row));
    let options = RunOptions::new(model()).save_to(dir.path()).state_columns(["advantage"]);
    rollouts(&right(), 3).evaluate(Examples::all().rollouts(2), options).await.unwrap();
    let rows = lines(&dir.path().join("results.jsonl"));
    assert_eq!((rows.len(), &rows[0]), (6, &row), "the row of the other program stays as it is");
    let mut advantages: Vec<_> = rows[1..]
        .iter()
        .map(|row| (row["example_id"].as_u64().unwrap(), row["advantage"].as_f64().unwrap()))
        .collect();
    advantages.sort_by_key(|(example, _)| *example);
    assert_eq!(advantages, [(0, 0.5), (1, 0.0), (1, 0.0), (2, 0.0), (2, 0.0)]);
}

#[tokio::test]
async fn errors_of_other_programs_count_in_every_form_and_under_every_name_of_the_file() {
    for name in ["outputs.jsonl", "results.jsonl"] {
        let dir = tempfile::tempdir().unwrap();
        let object = value!({"error": "ToolError", "error_chain_repr": "ToolError('no')", "error_chain_str": "ToolError"});
        let row = |id: u64, error| value!({"example_id": id, "reward": 0.0, "error": error, "avg": 1});
        let rows = [row(0, value!("no")), row(0, object), row(1, value!(null))];
        foreign(dir.path(), name, &rows);
        let scripted = right();
        let results = run(&scripted, 3, Examples::all().rollouts(2), dir.path()).await;
        assert_eq!((scripted.calls(), results.outputs.len()), (3, 6), "{name}");
        assert_eq!((results.metadata.avg_error, results.metadata.avg_reward), (2.0 / 6.0, 0.5), "{name}");
        let errors: Vec<_> =
            results.outputs.iter().flat_map(|row| &row.error).map(|error| &*error.error).collect();
        assert_eq!(errors, ["no", "ToolError"], "{name}");
        assert_eq!(lines(&dir.path().join(name)).len(), 6, "{name}");
    }
}

#[tokio::test]
async fn metadata_without_rows_is_the_start_of_a_run() {
    let dir = tempfile::tempdir().unwrap();
    foreign(dir.path(), "outputs.jsonl", &[]);
    fs::remove_file(dir.path().join("outputs.jsonl")).unwrap();
    let scripted = right();
    let results = run(&scripted, 3, Examples::all().rollouts(2), dir.path()).await;
    assert_eq!((scripted.calls(), results.outputs.len()), (6, 6));
    assert_eq!(json(&dir.path().join("metadata.json"))["avg_reward"], 1.0);
}

#[tokio::test]
async fn rows_of_examples_that_are_not_of_the_run_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let row = |id: u64| value!({"example_id": id, "reward": 0.0, "error": null});
    foreign(dir.path(), "outputs.jsonl", &[row(99), row(1)]);
    let scripted = right();
    let results = run(&scripted, 3, Examples::all().rollouts(2), dir.path()).await;
    assert_eq!((scripted.calls(), results.outputs.len()), (5, 6));
    assert_eq!(results.metadata.avg_reward, 5.0 / 6.0);
}

#[tokio::test]
async fn rows_without_metadata_are_rejected() {
    for name in ["outputs.jsonl", "results.jsonl"] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(name), "{\"example_id\": 0}\n").unwrap();
        let error = rollouts(&right(), 1)
            .evaluate(Examples::all(), RunOptions::new(model()).save_to(dir.path()))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("no metadata.json"), "{error}");
    }
}

/// The rewards, advantages and shares of the best of each rollout of example 0, as saved.
fn scores(dir: &Path) -> Vec<(u64, f64, Option<f64>, f64)> {
    let mut rows = lines(&dir.join("outputs.jsonl"));
    rows.sort_by_key(|row| row["attempt"].as_u64());
    let number = |row: &serde_json::Value, key: &str| row[key].as_f64();
    rows.iter()
        .map(|row| {
            let attempt = row["attempt"].as_u64().unwrap();
            assert_eq!(row["trajectory"][0]["advantage"].as_f64(), number(row, "advantage"));
            (attempt, number(row, "reward").unwrap(), number(row, "advantage"), number(row, "share").unwrap())
        })
        .collect()
}

#[tokio::test]
async fn a_group_that_gets_more_members_is_scored_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    // Each rollout says the number of its call, and is asked for the share that it has of the greatest one.
    let scripted = Scripted::new(|_, call| Ok((call + 1).to_string()));
    let asked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&asked);
    let rubric = Rubric::new()
        .reward("number", 1.0, move |scene| {
            *count.lock().unwrap() += 1;
            scene.parsed().parse::<f64>()
        })
        .group_reward("share", 0.0, |scenes| {
            let numbers: Vec<f64> = scenes.iter().map(|scene| scene.parsed().parse().unwrap()).collect();
            let greatest = numbers.iter().copied().fold(0.0, f64::max);
            numbers.iter().map(|number| number / greatest).collect::<Vec<_>>()
        });
    let rollouts = Rollouts::new(Shared(Arc::clone(&scripted)), rubric).dataset(examples(1)).env_id("sums");
    let run = async |members| {
        let options = RunOptions::new(model())
            .max_concurrent(1)
            .save_to(dir.path())
            .state_columns(["trajectory", "advantage"]);
        rollouts.evaluate(Examples::all().rollouts(members), options).await.unwrap()
    };
    run(4).await;
    assert_eq!(
        scores(dir.path()),
        [
            (1, 1.0, Some(-1.5), 0.25),
            (2, 2.0, Some(-0.5), 0.5),
            (3, 3.0, Some(0.5), 0.75),
            (4, 4.0, Some(1.5), 1.0)
        ]
    );
    // Two of the four are lost, as after a cancel.
    let path = dir.path().join("outputs.jsonl");
    let kept: Vec<_> =
        fs::read_to_string(&path).unwrap().lines().take(2).map(|line| format!("{line}\n")).collect();
    fs::write(&path, kept.concat()).unwrap();
    let whole = run(4).await;
    assert_eq!(scripted.calls(), 6);
    let expected = [
        (1, 1.0, Some(-2.5), 1.0 / 6.0),
        (2, 2.0, Some(-1.5), 2.0 / 6.0),
        (3, 5.0, Some(1.5), 5.0 / 6.0),
        (4, 6.0, Some(2.5), 1.0),
    ];
    assert_eq!(scores(dir.path()), expected);
    let returned: Vec<_> = whole.outputs.iter().map(|row| row.columns["advantage"].as_f64()).collect();
    assert_eq!(returned, expected.map(|(_, _, advantage, _)| advantage));
    assert_eq!(whole.metadata.avg_reward, 3.5);
    // A function of a single rollout is not asked again.
    assert_eq!(*asked.lock().unwrap(), 6);
}
