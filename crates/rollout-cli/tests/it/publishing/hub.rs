//! `--push-to-hub`, against a hub on loopback, and read back with the official client.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rollout_testkit::{Fault, Hold, HubServer, ModelReply, ModelServer, Python, TestJob, Trouble};
use serde_json::{Value, json};

/// Reads a dataset with the package that people use: all files, and the card.
const READ: &str = r#"
import json, os, sys, tempfile
reported = json.load(sys.stdin)
os.environ.update(HF_ENDPOINT=reported["url"], HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_PROGRESS_BARS="1",
                  HF_HUB_DISABLE_TELEMETRY="1", HF_HOME=tempfile.mkdtemp())
from huggingface_hub import DatasetCard, snapshot_download
there = snapshot_download(reported["repo"], repo_type="dataset", token=reported["token"])
files = {}
for at, _, names in os.walk(there):
    for name in names:
        path = os.path.join(at, name)
        files[os.path.relpath(path, there)] = open(path, encoding="utf-8").read()
card = DatasetCard(files["README.md"])
print(json.dumps({"files": files, "configs": card.data.to_dict().get("configs")}))
"#;

fn read_back(server: &HubServer, repo: &str) -> Value {
    let reported = json!({"url": server.url(), "repo": repo, "token": HubServer::TOKEN});
    serde_json::from_str(&Python::new().run(READ, &reported.to_string())).unwrap()
}

/// A finished job with two rollouts of a model, whose environment leads to the hub.
fn job(server: &HubServer) -> TestJob {
    let model = ModelServer::always(ModelReply::text("2").tokens(&[1], &[(2, -0.5)]));
    let rows = json!([{"question": "What is 1+1?", "answer": "2"}]);
    let interaction =
        json!({"dataset": rows, "rubric": [{"match": "numeric"}], "state_columns": ["trajectory"]});
    let agent = json!({"name": "policy", "base_url": model.url(), "max_retries": 0, "token_ids": true});
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "policy", "model": agent}))
        .set("n_attempts", json!(2))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]))
        .env("HF_ENDPOINT", server.url())
        .env("HF_TOKEN", HubServer::TOKEN);
    job.run().expect(0);
    job
}

fn export(job: &TestJob, format: &str, out: &str, more: &[&str]) -> rollout_testkit::Finished {
    job.rollout(
        &[&["export", format, "jobs/job", "-o", out, "--push-to-hub", "tester/results"], more].concat(),
    )
}

#[test]
fn an_export_is_pushed_and_read_back_by_the_official_client() {
    let server = HubServer::start();
    let job = job(&server);
    let pushed = export(&job, "eee", "out", &["--hub-private"]).expect(0);
    let reported = pushed.stdout();
    let last = reported.lines().last().unwrap();
    assert_eq!(last, format!("pushed 2 files: {}/datasets/tester/results", server.url()));
    assert_eq!(server.is_private("tester/results"), Some(true));

    let found = read_back(&server, "tester/results");
    assert_eq!(found["configs"], json!([{"config_name": "samples", "data_files": "**/*_samples.jsonl"}]));
    let files = found["files"].as_object().unwrap();
    assert_eq!(files.len(), 2 + 2, "and the card, and what every dataset has");
    for (name, content) in files.iter().filter(|(name, _)| name.starts_with("data/")) {
        assert_eq!(content.as_str().unwrap(), fs::read_to_string(job.root().join("out").join(name)).unwrap());
    }
    assert_eq!(server.leaks(), 0);
}

#[test]
fn every_format_can_be_pushed_to_the_same_dataset() {
    let server = HubServer::start();
    let job = job(&server);
    let formats = ["csv", "parquet", "eval-log", "eee", "inspect", "atif", "verifiers", "sft", "rl"];
    for format in formats {
        export(&job, format, &format!("out-{format}"), &[]).expect(0);
    }
    let files = server.files("tester/results");
    for format in formats {
        let out = job.root().join(format!("out-{format}"));
        let made = walk(&out);
        assert!(!made.is_empty(), "{format}");
        for path in made {
            let name = path.strip_prefix(&out).unwrap().to_str().unwrap();
            assert_eq!(files[name], fs::read(&path).unwrap(), "{format}: {name}");
        }
    }
    let again = export(&job, "csv", "again", &[]).expect(0);
    assert!(again.stdout().contains("pushed 0 files, 2 files unchanged: "), "{}", again.stdout());
}

/// All files below a directory.
fn walk(dir: &Path) -> Vec<PathBuf> {
    let below = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        if path.is_dir() { walk(&path) } else { vec![path] }
    };
    fs::read_dir(dir).unwrap().flat_map(below).collect()
}

#[test]
fn what_cannot_be_pushed_is_reported_before_anything_is_created() {
    let server = HubServer::start();
    let job = job(&server);
    let mut without = job.command(&["export", "csv", "jobs/job", "-o", "out", "--push-to-hub", "a/b"]);
    let output = without.env_remove("HF_TOKEN").output().unwrap();
    insta::assert_snapshot!(String::from_utf8(output.stderr).unwrap(), @"
    error: the token for the hub is missing or invalid
    hint: set HF_TOKEN to a token with write access, created in the settings of the hub
    ");
    let refused =
        job.rollout(&["export", "csv", "jobs/job", "-o", "out", "--push-to-hub", "a/../b"]).expect(2);
    assert!(refused.stderr().contains("`a/../b` is not a valid dataset name"), "{}", refused.stderr());
    fs::create_dir(job.root().join("mine")).unwrap();
    fs::write(job.root().join("mine/secret"), "").unwrap();
    insta::assert_snapshot!(export(&job, "csv", "mine", &[]).expect(2).stderr(), @"
    error: mine is not empty, and everything in it would be pushed
    hint: choose another directory; files that are already on the hub are not sent again
    ");
    assert!(!job.root().join("out").exists());
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn a_push_that_fails_leaves_the_files_and_shows_no_token() {
    let server = HubServer::start().fault(Fault::once("/commit/", Trouble::Status(422, None)));
    let job = job(&server);
    let failed = export(&job, "csv", "out", &[]).expect(2);
    insta::assert_snapshot!(failed.stderr(), @"error: cannot commit to tester/results: the hub answered with 422 Unprocessable Entity: the test refuses this");
    assert!(job.root().join("out/trials.csv").exists());
    assert!(!failed.stderr().contains(HubServer::TOKEN));
}

#[test]
fn a_push_that_was_killed_is_repeated_and_ends_where_it_would_have_ended() {
    let hold = Hold::new();
    let server = HubServer::start().fault(Fault::once("/commit/", Trouble::Hold(hold.clone())));
    let job = job(&server);
    let arguments = ["export", "eee", "jobs/job", "-o", "out", "--push-to-hub", "tester/results"];
    let mut running = job.start_with(&arguments);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(hold.waiting(1));
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    hold.open();
    assert!(!server.files("tester/results").contains_key("README.md"), "nothing was committed");
    let sent =
        |server: &HubServer| server.requests().iter().filter(|line| line.contains("storage PUT")).count();
    let before = sent(&server);
    assert_eq!(before, 2);
    export(&job, "eee", "again", &[]).expect(0);
    assert_eq!(sent(&server), before, "what has arrived is not sent again");
    let files = server.files("tester/results");
    let names: Vec<_> = files.keys().filter(|name| name.starts_with("data/")).collect();
    assert_eq!(names.len(), 2);
    for name in names {
        assert_eq!(files[name], fs::read(job.root().join("out").join(name)).unwrap());
    }
}
