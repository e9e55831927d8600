//! The examples run as they are, with the results that their comments and the README promise.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use serde_json::Value;

/// Runs an example from a copy, and returns the rewards of each agent in the order of the results.
#[track_caller]
fn rewards(job: &str) -> BTreeMap<String, Vec<(String, f64)>> {
    let dir = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    assert!(Command::new("cp").arg("-r").arg(examples).arg(dir.path()).status().unwrap().success());
    let output = Command::new(env!("CARGO_BIN_EXE_rollout"))
        .arg(format!("examples/{job}/job.yaml"))
        .current_dir(dir.path())
        .env("ROLLOUT_STATE_DIR", dir.path().join("state"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "an example gives no cause for warnings");
    let jobs: Vec<_> = fs::read_dir(dir.path().join("jobs")).unwrap().flatten().collect();
    assert_eq!(jobs.len(), 1);
    let result: Value =
        serde_json::from_slice(&fs::read(jobs[0].path().join("result.json")).unwrap()).unwrap();
    let mut rewards: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    for row in result["results"].as_array().unwrap() {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        let reward = row["reward"].as_f64().unwrap_or_else(|| panic!("{row}"));
        rewards.entry(text("agent_name")).or_default().push((text("task_name"), reward));
    }
    rewards
}

fn expected(rows: &[(&str, f64)]) -> Vec<(String, f64)> {
    rows.iter().map(|(task, reward)| ((*task).to_owned(), *reward)).collect()
}

#[test]
fn in_the_quickstart_the_oracle_solves_six_of_six_and_two_tricks_four() {
    let found = rewards("quickstart");
    let tasks = |fix: f64| {
        expected(&[
            ("count-errors", 1.0),
            ("count-errors", 1.0),
            ("fix-script", fix),
            ("fix-script", fix),
            ("hello-world", 1.0),
            ("hello-world", 1.0),
        ])
    };
    assert_eq!(found["oracle"], tasks(1.0));
    assert_eq!(found["two-tricks"], tasks(0.0));
    assert_eq!(found.len(), 2);
}

#[test]
fn the_single_task_rewards_its_solution_and_not_doing_nothing() {
    let found = rewards("single-task");
    assert_eq!(found["oracle"], expected(&[("fizzbuzz", 1.0)]));
    assert_eq!(found["nop"], expected(&[("fizzbuzz", 0.0)]));
}

#[test]
fn the_registry_job_runs_the_two_tasks_of_its_version() {
    assert_eq!(rewards("registry")["oracle"], expected(&[("count-errors", 1.0), ("hello-world", 1.0)]));
}
