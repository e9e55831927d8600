//! Kinds of errors that a program defines: what rows have of them, and what they count as.

use rollout::model::{Error, ErrorKind, Examples, Rollouts, RunOptions, samples::SampleReader};
use serde_json::json;

use super::support::{Scripted, Shared, examples, json as file, lines, model, rubric};

const JAMMED: ErrorKind = ErrorKind::infrastructure("JammedError");
const CHEATED: ErrorKind = ErrorKind::model_fault("CheatedError");

/// The first rollout is right, the second one cheats, the third one cannot be run.
fn kinds() -> Rollouts {
    let scripted = Scripted::new(|_, call| match call {
        0 => Ok("0".to_owned()),
        1 => Err(Error::new(CHEATED, "it read the answer")),
        _ => Err(Error::new(JAMMED, "the printer is jammed")),
    });
    Rollouts::new(Shared(scripted), rubric()).dataset(examples(1)).env_id("say")
}

fn options(dir: &std::path::Path) -> RunOptions {
    let options = RunOptions::new(model()).max_concurrent(1).save_to(dir);
    options.state_columns(["advantage", "trajectory"])
}

#[tokio::test]
async fn rows_have_the_name_of_the_kind_and_whether_it_is_the_models_fault() {
    let dir = tempfile::tempdir().unwrap();
    kinds().evaluate(Examples::all().rollouts(3), options(dir.path())).await.unwrap();
    let rows = lines(&dir.path().join("outputs.jsonl"));
    insta::assert_json_snapshot!(rows.iter().map(|row| &row["error"]).collect::<Vec<_>>(), @r#"
    [
      null,
      {
        "error": "CheatedError",
        "message": "it read the answer",
        "error_chain_repr": "CheatedError(\"it read the answer\")",
        "error_chain_str": "CheatedError",
        "is_infrastructure": false
      },
      {
        "error": "JammedError",
        "message": "the printer is jammed",
        "error_chain_repr": "JammedError(\"the printer is jammed\")",
        "error_chain_str": "JammedError",
        "is_infrastructure": true
      }
    ]
    "#);
    assert_eq!(rows[2]["stop_condition"], "has_error");
}

#[tokio::test]
async fn the_models_fault_counts_and_a_fault_of_the_infrastructure_is_excluded_by_cause() {
    let dir = tempfile::tempdir().unwrap();
    kinds().evaluate(Examples::all().rollouts(3), options(dir.path())).await.unwrap();
    let rows = lines(&dir.path().join("outputs.jsonl"));
    let advantages: Vec<_> = rows.iter().map(|row| row["advantage"].clone()).collect();
    assert_eq!(advantages, [json!(0.5), json!(-0.5), json!(null)]);
    let result = file(&dir.path().join("result.json"));
    let errors: Vec<_> = result["results"].as_array().unwrap().iter().map(|row| &row["error"]).collect();
    assert_eq!(errors, [&json!(null), &json!("agent_execution_failed"), &json!("interaction_failed")]);
    let file = std::fs::File::open(dir.path().join("outputs.jsonl")).unwrap();
    let mut samples = SampleReader::new(std::io::BufReader::new(file));
    // The model gave no tokens, so there is nothing to learn from; what is left out is counted nevertheless.
    while samples.next().is_some() {}
    assert_eq!(samples.left_out().iter().collect::<Vec<_>>(), [(&"JammedError".to_owned(), &1)]);
}

#[tokio::test]
async fn kinds_are_known_again_when_the_rest_of_a_group_is_run() {
    let dir = tempfile::tempdir().unwrap();
    kinds().evaluate(Examples::all().rollouts(4), options(dir.path())).await.unwrap();
    // The last row is lost. The script begins anew, so the rollout that is run again is right.
    let path = dir.path().join("outputs.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.split_inclusive('\n').take(3).collect::<String>()).unwrap();
    let results = kinds().evaluate(Examples::all().rollouts(4), options(dir.path())).await.unwrap();
    let rows = &results.outputs;
    let advantages: Vec<_> = rows
        .iter()
        .map(|row| row.columns["advantage"].as_f64().map(|number| (number * 3.0).round()))
        .collect();
    assert_eq!(advantages, [Some(1.0), Some(-2.0), None, Some(1.0)]);
    let errors: Vec<_> = rows.iter().flat_map(|row| &row.error).map(|error| error.error.as_str()).collect();
    assert_eq!(errors, ["CheatedError", "JammedError"]);
}
