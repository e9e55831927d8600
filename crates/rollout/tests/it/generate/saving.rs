//! What is on the disk after a run.

use std::{
    collections::HashMap,
    fs,
    sync::{Arc, Mutex},
};

use rollout::{
    config::{JobConfig, LoadedJob},
    event::Event,
    job::{Cancel, ExampleSet, Job, NoProvider, Plan, Rerun, Resumable, Selection},
    model::{Error, ErrorKind, Examples, Rollouts, RunOptions},
    name::DatasetName,
};
use serde_json::{Value, json as value};

use super::support::{
    Scripted, Shared, UNTIDY, Untidy, examples, journaled, json, lines, model, named, right, right_but_first,
    rollouts, rubric,
};

#[tokio::test]
async fn rows_and_averages_are_saved_where_the_caller_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results/experiment_1");
    let options = RunOptions::new(model()).max_concurrent(1).save_to(&path);
    let results =
        rollouts(&right_but_first(), 2).evaluate(Examples::all().rollouts(2), options).await.unwrap();
    let rows = lines(&path.join("outputs.jsonl"));
    assert_eq!(rows, results.outputs.iter().map(|row| value!(row)).collect::<Vec<_>>());
    let metadata = json(&path.join("metadata.json"));
    assert_eq!(metadata["avg_reward"], 0.5);
    assert_eq!(metadata["time_ms"].as_f64(), metadata["time"].as_f64().map(|seconds| seconds * 1e3));
    let keys: Vec<_> = metadata.as_object().unwrap().keys().map(String::as_str).collect();
    insta::assert_snapshot!(keys.join(" "), @"env_id env_args model base_url num_examples rollouts_per_example sampling_args shuffle time_ms time avg_reward avg_metrics avg_error pass_at_k pass_all_k pass_threshold usage cost version_info state_columns tools provenance");
    assert_eq!(results.metadata.path_to_save, Some(path));
}

#[tokio::test]
async fn a_row_has_the_keys_of_the_document_its_metrics_at_the_top_and_the_columns_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let options = RunOptions::new(model()).save_to(dir.path()).state_columns(["trajectory_id", "no_such"]);
    rollouts(&right(), 1).evaluate(Examples::all(), options).await.unwrap();
    let row = lines(&dir.path().join("outputs.jsonl")).remove(0);
    let keys: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
    insta::assert_snapshot!(keys.join(" "), @"example_id attempt task prompt completion answer reward error timing is_completed is_truncated stop_condition metrics tool_defs token_usage right length num_turns trajectory_id no_such");
    assert_eq!(row["trajectory_id"].as_str().unwrap().len(), 32);
    assert_eq!(row["no_such"], Value::Null);
    assert_eq!(row["right"], row["metrics"]["right"]);
}

#[tokio::test]
async fn an_error_is_an_object_with_its_chain_also_at_the_top() {
    let dir = tempfile::tempdir().unwrap();
    let scripted = Scripted::new(|_, _| Err(Error::new(ErrorKind::Model, "ill")));
    let options = RunOptions::new(model()).save_to(dir.path());
    rollouts(&scripted, 1).evaluate(Examples::all(), options).await.unwrap();
    let row = lines(&dir.path().join("outputs.jsonl")).remove(0);
    assert_eq!(
        row["error"],
        value!({
            "error": "ModelError",
            "message": "ill",
            "error_chain_repr": "ModelError(\"ill\")",
            "error_chain_str": "ModelError",
        })
    );
    assert_eq!(
        (&row["error_chain"], &row["long_error_chain"]),
        (&row["error"]["error_chain_repr"], &value!("ModelError"))
    );
}

#[tokio::test]
async fn a_failed_cleanup_is_a_note_in_the_journal_and_the_rollout_stands() {
    let dir = tempfile::tempdir().unwrap();
    let kinds = Rollouts::new(Untidy(Shared(right())), rubric()).dataset(examples(1));
    let options = RunOptions::new(model()).save_to(dir.path());
    kinds.evaluate(Examples::all(), options).await.unwrap();
    let [trial] = <[Value; 1]>::try_from(journaled(dir.path())).unwrap();
    assert_eq!(trial["notes"], value!([UNTIDY]));
    assert_eq!(
        (&trial["error"], &trial["reward"], &trial["tries"]),
        (&Value::Null, &value!(1.0), &value!(1))
    );
    let row = lines(&dir.path().join("outputs.jsonl")).remove(0);
    assert_eq!((&row["error"], &row["reward"]), (&Value::Null, &value!(1.0)));
}

#[tokio::test]
async fn columns_with_live_objects_are_rejected_before_anything_runs() {
    let scripted = right();
    let options = RunOptions::new(model()).state_columns(["client"]);
    let error = rollouts(&scripted, 1).evaluate(Examples::all(), options).await.unwrap_err();
    insta::assert_snapshot!(error, @r#"the state column "client" is a live object and cannot be saved; store its data in a field of the state"#);
    assert_eq!(scripted.calls(), 0);
}

fn loaded(jobs: &std::path::Path) -> LoadedJob {
    let text =
        "agents: [{name: a, execute: x}, {name: b, execute: x}]\ndatasets: [{path: .}]\nn_attempts: 2\n";
    let vars = |_: &str| None;
    let loaded = rollout::config::load_job_text("job.yaml".as_ref(), text, &[], &vars).unwrap();
    let config = JobConfig { jobs_dir: jobs.to_owned(), ..loaded.config };
    LoadedJob { config, ..loaded }
}

#[tokio::test]
async fn in_a_job_each_model_has_its_rows_of_each_dataset_in_a_directory_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let set = |name: &str| {
        ExampleSet::new(
            DatasetName::new(name).unwrap(),
            Arc::new(rollouts(&right(), 0)),
            super::support::examples(3),
        )
        .unwrap()
    };
    let vars = |_: &str| None;
    let sets = [set("one"), set("two")];
    let plan = Plan::new(loaded(dir.path()), Vec::new(), sets, &Selection::default(), &vars).unwrap();
    let models: HashMap<_, _> =
        plan.agents().map(|agent| (agent.clone(), Arc::new(named(agent.as_str())))).collect();
    let job = Job::create(plan.with_models(models), Arc::new(NoProvider)).await.unwrap();
    let path = job.directory().to_owned();
    let (events, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let result = job.run(events, Cancel::default()).await.unwrap();
    assert_eq!((result.totals.total_trials, result.totals.passed_trials), (24, 24));
    assert_eq!(result.totals.total_cost, 6.0);
    for (agent, dataset) in [("a", "one"), ("a", "two"), ("b", "one"), ("b", "two")] {
        let dir = path.join(agent).join(dataset);
        assert_eq!(lines(&dir.join("outputs.jsonl")).len(), 6);
        let metadata = json(&dir.join("metadata.json"));
        assert_eq!((&metadata["model"], &metadata["num_examples"]), (&value!(agent), &value!(3)));
        assert_eq!(fs::read_dir(dir).unwrap().count(), 2);
    }
    let mut finished = 0;
    while let Ok(event) = heard.try_recv() {
        finished += usize::from(matches!(event, Event::TrialFinished { .. }));
    }
    assert_eq!(finished, 24);
    let rows = json(&path.join("result.json"))["results"].as_array().unwrap().len();
    assert_eq!(rows, 24);
}

#[tokio::test]
async fn an_agent_that_is_not_a_model_fails_the_examples_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let set = {
        ExampleSet::new(
            DatasetName::new("one").unwrap(),
            Arc::new(rollouts(&right(), 0)),
            super::support::examples(1),
        )
        .unwrap()
    };
    let vars = |_: &str| None;
    let plan = Plan::new(loaded(dir.path()), Vec::new(), [set], &Selection::default(), &vars).unwrap();
    let job = Job::create(plan, Arc::new(NoProvider)).await.unwrap();
    let (events, _) = tokio::sync::mpsc::unbounded_channel();
    let result = job.run(events, Cancel::default()).await.unwrap();
    assert_eq!(result.totals.failed_trials, 4);
}

#[tokio::test]
async fn errored_rollouts_can_be_done_again_and_only_their_new_rows_stay() {
    let dir = tempfile::tempdir().unwrap();
    let scripted = Scripted::new(|state, call| match (state.input.example_id, call) {
        (1, 0 | 1) => Err(Error::new(ErrorKind::Infra, "away")),
        (id, _) => Ok(id.to_string()),
    });
    let plan = || {
        let set = {
            ExampleSet::new(
                DatasetName::new("one").unwrap(),
                Arc::new(rollouts(&scripted, 0)),
                super::support::examples(3),
            )
            .unwrap()
        };
        let mut loaded = loaded(dir.path());
        loaded.config.agents.truncate(1);
        loaded.config.retry.max_attempts = std::num::NonZeroU32::MIN;
        let plan = Plan::new(loaded, Vec::new(), [set], &Selection::default(), &|_| None).unwrap();
        let models = plan.agents().map(|agent| (agent.clone(), Arc::new(model()))).collect();
        plan.with_models(models)
    };
    let job = Job::create(plan(), Arc::new(NoProvider)).await.unwrap();
    let path = job.directory().to_owned();
    let run = async |job: Job| {
        let (events, _) = tokio::sync::mpsc::unbounded_channel();
        job.run(events, Cancel::default()).await.unwrap()
    };
    assert_eq!(run(job).await.totals.passed_trials, 4);
    let resumable = Resumable::open(&path).unwrap();
    let again = resumable.resume(plan(), Arc::new(NoProvider), &[Rerun::Error]).await.unwrap();
    assert_eq!(again.remaining(), 2);
    assert_eq!(run(again).await.totals.passed_trials, 6);
    // One model and one dataset have no directory of their own.
    let rows = lines(&path.join("outputs.jsonl"));
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|row| row["reward"] == 1.0));
    assert_eq!(json(&path.join("metadata.json"))["avg_reward"], 1.0);
}

#[tokio::test]
async fn rows_and_settings_are_on_disk_while_the_run_continues() {
    let dir = tempfile::tempdir().unwrap();
    let (path, heard) = (dir.path().to_owned(), Arc::new(Mutex::new(Vec::new())));
    let reported = Arc::clone(&heard);
    let options =
        RunOptions::new(model()).max_concurrent(1).save_to(dir.path()).on_progress(async move |all, _, _| {
            // More may be saved than was reported.
            let rows = fs::read_to_string(path.join("outputs.jsonl")).unwrap();
            let saved = rows.matches('\n').count() >= all.len();
            let metadata = json(&path.join("metadata.json"));
            reported.lock().unwrap().push((all.len(), saved, metadata["num_examples"].clone()));
        });
    rollouts(&right(), 3).evaluate(Examples::all().rollouts(2), options).await.unwrap();
    assert_eq!(*heard.lock().unwrap(), [2, 4, 6].map(|rows| (rows, true, value!(3))));
    let metadata = json(&dir.path().join("metadata.json"));
    assert!(metadata.get("path_to_save").is_none() && metadata.get("date").is_none());
}
