//! Harbor itself beside Rollout: the same tasks, the same engine, the same rewards.
//!
//! `recorded.json` has what Harbor gives for each task: the rewards of its oracle and of its agent that does nothing,
//! or null where it ends without a reward. The quick form compares Rollout with the record, and the full form runs
//! Harbor too. `UPDATE_FIXTURES=1` writes the record from what Harbor gives, and `UPDATE_FIXTURES=a,b` only that of the
//! tasks a and b.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use rollout_testkit::{TestEngine, TestTask};
use serde_json::{Value, json};

use super::{compose, docker, more, rows, steps};

const AGENTS: [&str; 2] = ["oracle", "nop"];

/// Tasks that only Rollout runs, with the reason.
const OURS: [(&str, &str); 5] = [
    ("canary", "it is about where Rollout puts the instruction"),
    ("image-only", "Harbor builds an image that does not exist"),
    ("no-network", "Harbor needs an image that only a registry has, and without it ends the whole job"),
    ("no-internet", "the same"),
    ("compose-no-network", "the same"),
];

/// The scores of a trial by name; none without a reward.
type Scores = Option<BTreeMap<String, f64>>;

/// Scores by task and agent.
type Rewards = BTreeMap<String, BTreeMap<String, Scores>>;

/// Every task of this directory that needs nothing but an engine, and that Harbor runs too.
fn corpus() -> Vec<TestTask> {
    let rewarded = [rows::rows(), rows::images_that_start(), compose::rows()];
    let tasks = rewarded.into_iter().flatten().map(|(task, _)| task);
    let steps = steps::rows().into_iter().map(|(task, _, _)| task);
    let is_shared = |task: &TestTask| OURS.iter().all(|(name, _)| *name != task.name());
    let others = [more::tasks(), rows::others(), steps::others(), compose::others()].into_iter().flatten();
    tasks.chain(steps).chain(others).filter(is_shared).collect()
}

fn record() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/harbor/recorded.json")
}

fn recorded() -> Rewards {
    serde_json::from_slice(&fs::read(record()).unwrap()).unwrap()
}

/// The image of tests that one task names.
fn make_judge(engine: &TestEngine) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("Dockerfile"), more::JUDGE_DOCKERFILE).unwrap();
    engine.docker(&["build", "--tag", more::JUDGE, dir.path().to_str().unwrap()]);
}

/// The scores of a result, as Harbor has them.
fn scores(result: &Value) -> Scores {
    let reward = result["reward"].as_f64()?;
    let named = result["rewards"].as_object().into_iter().flatten();
    let mut named: BTreeMap<String, f64> =
        named.filter_map(|(name, score)| Some((name.clone(), score.as_f64()?))).collect();
    let mean = named.values().sum::<f64>() / named.len() as f64;
    // Rollout gives the mean of scores where none of them is named `reward`.
    if named.is_empty() || mean != reward {
        named.insert("reward".to_owned(), reward);
    }
    Some(named)
}

/// Differences between two lists of rewards, one line each.
fn differences(expected: &Rewards, found: &Rewards) -> String {
    let names: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let mut lines = Vec::new();
    for name in names {
        for agent in AGENTS {
            let of = |rewards: &Rewards| rewards.get(name)?.get(agent).cloned();
            let (expected, found) = (of(expected), of(found));
            if expected != found {
                lines.push(format!("{name}, {agent}: expected {expected:?}, found {found:?}"));
            }
        }
    }
    lines.join("\n")
}

#[test]
fn every_task_has_the_rewards_of_harbor() {
    let engine = TestEngine::shared();
    make_judge(&engine);
    let job = docker()
        .set("environment/provider_config", json!({}))
        .set("n_concurrent_trials", json!(8))
        .oracle()
        .agent(json!({"name": "nop"}));
    let tasks = corpus();
    let job = tasks.iter().fold(job, |job, task| job.task(task.clone()));
    let finished = job.run().expect(1);
    let mut found = Rewards::new();
    for task in &tasks {
        let of = |agent: &str| {
            let result = finished.trial(&format!("{agent}/set/{}__1", task.name()));
            (agent.to_owned(), scores(&result))
        };
        found.insert(task.name().to_owned(), AGENTS.map(of).into());
    }
    let differences = differences(&recorded(), &found);
    assert!(differences.is_empty(), "{differences}");
    job.expect_nothing_left();
}

/// Runs Harbor with an agent, and adds its rewards.
fn run_harbor(engine: &TestEngine, root: &Path, agent: &str, rewards: &mut Rewards) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/harbor");
    let jobs = root.join("harbor");
    let output = Command::new(&script)
        .args(["run", "--path", "set", "--agent", agent, "--jobs-dir", "harbor", "--job-name", agent])
        .args(["--n-concurrent", "8", "--quiet", "--yes"])
        .current_dir(root)
        .env("DOCKER_HOST", engine.host())
        .output()
        .expect("a script of the repository starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    for trial in fs::read_dir(jobs.join(agent)).unwrap() {
        let Ok(text) = fs::read_to_string(trial.unwrap().path().join("result.json")) else { continue };
        let result: Value = serde_json::from_str(&text).unwrap();
        let path = result["task_id"]["path"].as_str().expect("a task of a directory has a path");
        let name = Path::new(path).file_name().unwrap().to_str().unwrap().to_owned();
        let found: Scores = serde_json::from_value(result["verifier_result"]["rewards"].clone()).unwrap();
        let found = found.filter(|scores| !scores.is_empty());
        rewards.entry(name).or_default().insert(agent.to_owned(), found);
    }
}

#[test]
#[ignore = "part of ./test --full"]
fn harbor_gives_the_recorded_rewards() {
    let engine = TestEngine::shared();
    make_judge(&engine);
    // In /tmp, because Harbor sees no other directory of this machine.
    let root = tempfile::tempdir_in("/tmp").unwrap();
    let update = std::env::var("UPDATE_FIXTURES").ok();
    let chosen: Vec<&str> =
        update.iter().filter(|names| *names != "1").flat_map(|names| names.split(',')).collect();
    let is_chosen = |task: &&TestTask| chosen.is_empty() || chosen.contains(&task.name());
    corpus().iter().filter(is_chosen).for_each(|task| task.write(&root.path().join("set")));
    let mut found = if chosen.is_empty() { Rewards::new() } else { recorded() };
    for agent in AGENTS {
        run_harbor(&engine, root.path(), agent, &mut found);
    }
    if update.is_some() {
        fs::write(record(), serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
        return;
    }
    let differences = differences(&recorded(), &found);
    assert!(differences.is_empty(), "{differences}");
}
