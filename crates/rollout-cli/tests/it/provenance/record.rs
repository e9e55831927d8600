//! What every result tells of where it comes from.

use std::{fs, path::Path, process::Command};

use rollout_testkit::{ModelReply, ModelServer, TestJob, TestTask, files_holding};
use serde_json::{Value, json};

use super::job;

const SECRET: &str = "sk-test-0123456789abcdef";

fn git(dir: &Path, arguments: &[&str]) -> String {
    let who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"];
    let done = Command::new("git").arg("-C").arg(dir).args(who).args(arguments).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Puts the job file under version control, and says at which commit it is.
fn commit(job: &TestJob) -> String {
    drop(job.command(&[]));
    fs::write(job.root().join(".gitignore"), "*\n!.gitignore\n!job.yaml\n!set\n!set/**\n").unwrap();
    git(job.root(), &["init", "--quiet"]);
    git(job.root(), &["add", "."]);
    git(job.root(), &["commit", "--quiet", "-m", "one"]);
    git(job.root(), &["rev-parse", "HEAD"])
}

fn journal(job: &TestJob) -> Vec<Value> {
    let text = fs::read_to_string(job.dir().join("journal.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_trial_records_its_whole_provenance_and_the_job_that_of_its_run() {
    let agent = json!({"name": "agent", "install": "true", "execute": "touch /app/done", "env": {"A": "1"}});
    let job = job().task(TestTask::new("task")).oracle().agent(agent);
    let commit = commit(&job);
    let finished = job.run().expect(0);
    let (trial, oracle) = (finished.trial("agent/set/task__1"), finished.trial("oracle/set/task__1"));
    let reported = &trial["provenance"];
    let header = &journal(&job)[0];
    assert_eq!(reported["rollout_version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(reported["config_hash"], header["config_hash"]);
    assert_eq!(reported["task_content_hash"], header["tasks"][0]["content_hash"]);
    assert_eq!(reported["image"], trial["environment"]["image"]);
    assert_eq!(
        (&reported["provider"], &reported["enforced_limits"]),
        (&json!("native"), &trial["environment"]["enforced"])
    );
    assert_eq!(reported["git"], json!({"commit": commit, "is_dirty": false, "remote_url": null}));
    assert_eq!(reported["command"].as_array().unwrap()[1..], [json!("run"), json!("job.yaml")]);
    assert_eq!(reported["seeds"], Value::Null);
    assert!(reported["agent_install_hash"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!(oracle["provenance"]["agent_install_hash"], Value::Null);

    let run = finished.result()["provenance"].clone();
    for key in ["rollout_version", "config_hash", "git", "command", "provider", "seeds"] {
        assert_eq!(run[key], reported[key], "{key}");
    }
    assert_eq!(journal(&job)[1]["provenance"], run);
    assert_eq!(Path::new(header["directory"].as_str().unwrap()), job.dir());
}

#[test]
fn the_journal_records_provenance_once_and_not_with_every_trial() {
    let job = job().task(TestTask::new("task")).oracle().set("n_attempts", json!(3));
    job.run().expect(0);
    let lines = journal(&job);
    let telling: Vec<&Value> = lines.iter().filter(|line| line.to_string().contains("provenance")).collect();
    assert_eq!(telling.len(), 1, "{telling:#?}");
    assert_eq!(telling[0]["entry"], "run_started");
    assert!(
        lines
            .iter()
            .filter(|line| line["entry"] == "trial")
            .all(|line| !line.to_string().contains("config_hash"))
    );
}

#[test]
fn changes_since_the_commit_are_recorded() {
    let job = job().task(TestTask::new("task")).oracle();
    let commit = commit(&job);
    fs::write(job.root().join("set/task/instruction.md"), "Something else.\n").unwrap();
    let reported = job.run().expect(0).trial("oracle/set/task__1")["provenance"]["git"].clone();
    assert_eq!(reported, json!({"commit": commit, "is_dirty": true, "remote_url": null}));
}

#[test]
fn secrets_of_the_command_line_and_of_the_remote_are_not_recorded() {
    let agent = json!({"name": "agent", "execute": "true", "env": {"API_KEY": "x"}});
    let job = job().task(TestTask::new("task")).agent(agent);
    commit(&job);
    git(
        job.root(),
        &["remote", "add", "origin", "https://someone:a-token-of-some-length@example.com/a/b.git"],
    );
    let set = format!("agents.0.env.API_KEY={SECRET}");
    let finished = job.rollout(&["run", "job.yaml", "--set", &set, "--output", "json"]).expect(0);
    let reported = finished.trial("agent/set/task__1")["provenance"].clone();
    assert_eq!(reported["command"][4], "agents.0.env.API_KEY=[redacted]");
    assert_eq!(reported["git"]["remote_url"], "https://example.com/a/b.git");
    for secret in [SECRET, "a-token-of-some-length"] {
        assert_eq!(files_holding(&job.dir(), secret), Vec::<String>::new());
        assert!(!finished.stdout().contains(secret) && !finished.stderr().contains(secret));
    }
}

#[test]
fn results_that_are_written_again_keep_the_provenance_of_the_run_that_made_them() {
    let job = job().task(TestTask::new("task")).oracle();
    let finished = job.run().expect(0);
    let before = finished.trial("oracle/set/task__1");
    fs::remove_file(job.dir().join("oracle/set/task__1/result.json")).unwrap();
    let resumed = job.rollout(&["resume", "jobs/job"]).expect(0);
    assert_eq!(resumed.trial("oracle/set/task__1"), before);
    assert_eq!(resumed.result()["provenance"]["command"][1], "resume", "the job tells of its last run");
}

#[test]
fn rollouts_of_a_model_record_their_seeds_in_metadata() {
    let server = ModelServer::always(ModelReply::text("1"));
    let model = json!({"name": "m", "base_url": server.url(), "api_key": SECRET, "sampling": {"seed": 7}});
    let interaction = json!({
        "dataset": [{"question": "0+1?", "answer": "1"}], "rubric": [{"match": "numeric"}],
    });
    let job = job()
        .agent(json!({"name": "gpt", "model": model}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    let finished = job.run().expect(0);
    let metadata: Value = finished.file("metadata.json").parse().unwrap();
    let reported = &metadata["provenance"];
    assert_eq!(reported["seeds"]["sampling"], json!({"gpt": 7}));
    assert_eq!((&reported["provider"], &reported["command"][1]), (&json!("none"), &json!("run")));
    assert_eq!(finished.result()["provenance"], *reported);
    assert_eq!(files_holding(&job.dir(), SECRET), Vec::<String>::new());
}
