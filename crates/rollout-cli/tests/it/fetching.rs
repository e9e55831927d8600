//! Tasks from git servers and registries, run with and without a network.

use std::{fs, path::PathBuf};

use assert_cmd::Command;
use rollout_testkit::{FileServer, GitServer, TestRepo, TestTask, basic_authorization};
use serde_json::{Value, json};

use crate::datasets::Machine;

const NATIVE: [&str; 4] = ["-e", "native", "--set", "environment.provider_config.images={\"*\":\"host\"}"];

/// A machine, and a directory for servers with a repository and a registry of it.
struct Site {
    machine: Machine,
    server: GitServer,
    files: FileServer,
}

impl Site {
    fn new() -> Self {
        Self::with(GitServer::new)
    }

    fn with(serve: impl FnOnce(PathBuf) -> GitServer) -> Self {
        let machine = Machine::new();
        let root = machine.root.path().join("public");
        TestRepo::new(root.join("repo")).commit(&TestTask::new("task"));
        let server = serve(root.clone());
        let task = json!({"name": "task", "git_url": server.url("repo/.git"), "path": "tasks/task"});
        let registry = json!([{"name": "remote", "version": "1", "tasks": [task]}]);
        fs::write(root.join("registry.json"), registry.to_string()).unwrap();
        Self { machine, server, files: FileServer::new(root) }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.machine.command();
        command.env("ROLLOUT_REGISTRIES", self.files.url("registry.json")).args(arguments);
        command
    }

    /// Runs the oracle on a dataset.
    #[track_caller]
    fn run(&self, dataset: &str, job: &str, more: &[&str], code: i32) -> (String, String) {
        let name = format!("name={job}");
        let arguments = ["run", "-d", dataset, "-a", "oracle", "--set", &name];
        self.machine.finish(self.command(&arguments).args(NATIVE).args(more), code)
    }

    fn git_address(&self) -> String {
        format!("git+{}@main#tasks", self.server.url("repo/.git"))
    }

    /// The rewards of a job.
    fn rewards(&self, job: &str) -> Vec<Value> {
        let file = self.machine.root.path().join("jobs").join(job).join("result.json");
        let result: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        result["results"].as_array().unwrap().iter().map(|row| row["reward"].clone()).collect()
    }

    /// Ends the repository and the registry.
    fn remove_servers(&self) {
        fs::remove_dir_all(self.machine.root.path().join("public")).unwrap();
    }
}

#[test]
fn tasks_run_and_resume_offline_after_they_were_fetched_once() {
    let site = Site::new();
    let address = site.git_address();
    for dataset in ["remote", &address] {
        let (_, stderr) = site.run(dataset, "early", &["--offline"], 2);
        assert!(stderr.contains("is not in the cache, and network access is turned off"), "{stderr}");
    }
    assert!(site.server.requests().is_empty());
    site.machine.finish(&mut site.command(&["datasets", "download", "remote"]), 0);
    site.run(&address, "online", &[], 0);
    site.remove_servers();
    let asked = site.server.requests().len();
    for (dataset, job) in [("remote", "named"), (address.as_str(), "addressed")] {
        site.run(dataset, job, &["--offline"], 0);
        assert_eq!(site.rewards(job), [1.0]);
        let resume = ["resume", &format!("jobs/{job}"), "--attempts", "2", "--offline"];
        site.machine.finish(&mut site.command(&resume), 0);
        assert_eq!(site.rewards(job), [1.0, 1.0]);
    }
    assert_eq!(site.server.requests().len(), asked);
}

#[test]
fn a_changed_task_in_the_cache_is_not_run() {
    let site = Site::new();
    site.run("remote", "first", &[], 0);
    let find = |dir: PathBuf| {
        let mut pending = vec![dir];
        while let Some(dir) = pending.pop() {
            let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
            let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
            if let Some(found) = files.into_iter().find(|path| path.ends_with("tests/test.sh")) {
                return found;
            }
            pending.extend(dirs);
        }
        panic!("the cache has no test.sh");
    };
    let tests = find(site.machine.root.path().join("state/git"));
    fs::write(&tests, "echo 0.5 > /logs/verifier/reward.txt\n").unwrap();
    let (_, stderr) = site.run("remote", "offline", &["--offline"], 2);
    assert!(stderr.contains("tests/test.sh in the cache was changed after it was fetched"), "{stderr}");
    site.run("remote", "second", &[], 0);
    assert_eq!(site.rewards("second"), [1.0]);
}

#[test]
fn a_private_repository_is_read_with_a_token_or_the_users_credential_helper() {
    let site = Site::with(|root| GitServer::guarded(root, &basic_authorization("user", "secret-word")));
    let address = site.git_address();
    let (_, stderr) = site.run(&address, "refused", &[], 2);
    assert!(stderr.contains("git cannot read"), "{stderr}");
    let with_password = address.replace("http://", "http://user:secret-word@");
    let (_, stderr) = site.run(&with_password, "refused", &[], 2);
    assert!(stderr.contains("must not contain a password or a token, because it is recorded"), "{stderr}");
    assert!(!site.machine.root.path().join("jobs/refused").exists());
    let settings = site.machine.root.path().join(".gitconfig");
    let authorization = basic_authorization("user", "secret-word");
    fs::write(&settings, format!("[http]\n\textraHeader = \"Authorization: {authorization}\"\n")).unwrap();
    site.run(&address, "token", &[], 0);
    // The commit is looked up again, with the helper this time.
    let helper = "[credential]\n\thelper = \"!f() { echo username=user; echo password=secret-word; }; f\"\n";
    fs::write(&settings, helper).unwrap();
    fs::remove_dir_all(site.machine.root.path().join("state/git")).unwrap();
    site.run(&address, "helper", &[], 0);
    for job in ["token", "helper"] {
        assert_eq!(site.rewards(job), [1.0]);
        let journal = site.machine.root.path().join("jobs").join(job).join("journal.jsonl");
        let journal = fs::read_to_string(journal).unwrap();
        assert!(!journal.contains("secret-word") && !journal.contains(&authorization));
    }
}
