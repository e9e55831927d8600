//! Where tasks come from: registries by path and by URL, and git repositories.

use std::fs;

use rollout_testkit::{FileServer, Finished, TestJob, TestRepo, TestTask};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout")).oracle()
}

/// A registry with one dataset, `set`.
fn registry(tasks: &Value) -> String {
    json!([{"name": "set", "version": "1.0", "description": "for a test", "tasks": tasks}]).to_string()
}

/// The job with the dataset `set` of the registry beside it.
fn with_registry(job: TestJob, tasks: &Value) -> TestJob {
    job.file("registry.json", &registry(tasks))
        .set("datasets", json!([{"registry": {"path": "registry.json"}, "name": "set"}]))
}

/// The commit of the only trial, as both results have it.
#[track_caller]
fn commit_of(finished: &Finished) -> String {
    let commit = finished.result()["results"][0]["task_git_commit_id"].clone();
    assert_eq!(finished.trial("oracle/set/task__1")["task_git_commit_id"], commit);
    commit.as_str().unwrap_or_else(|| panic!("{commit} is no commit")).to_owned()
}

#[test]
fn a_registry_by_url_gives_tasks_from_git() {
    let job = job();
    let commit = TestRepo::new(job.root().join("public/repo")).commit(&TestTask::new("task"));
    let server = FileServer::new(job.root().join("public"));
    let git_url = server.url("repo/.git");
    let job = job
        .file(
            "public/registry.json",
            &registry(&json!([{"name": "task", "git_url": git_url, "path": "tasks/task"}])),
        )
        .set("datasets", json!([{"registry": {"url": server.url("registry.json")}, "name": "set"}]));
    let finished = job.run().expect(0);
    assert_eq!(finished.trial("oracle/set/task__1")["reward"], 1.0);
    assert_eq!(commit_of(&finished), commit);
}

#[test]
fn a_registry_url_that_gives_nothing_is_refused_before_anything_runs() {
    let job = job();
    let server = FileServer::new(job.root());
    for url in [server.url("absent.json"), "http://127.0.0.1:1/registry.json".to_owned()] {
        let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
            .oracle()
            .set("datasets", json!([{"registry": {"url": url}, "name": "set"}]));
        let refused = job.run().expect(2);
        assert!(refused.stderr().contains(&url), "{}", refused.stderr());
        assert!(!job.root().join("jobs").exists());
    }
}

#[test]
fn a_registry_from_the_network_cannot_reach_into_this_machine() {
    let job = job();
    let repo = TestRepo::new(job.root().join("repo"));
    repo.commit(&TestTask::new("task"));
    let server = FileServer::new(job.root());
    let tasks =
        json!([{"name": "a", "git_url": repo.url(), "path": "tasks/task"}, {"name": "b", "path": "set/b"}]);
    let job = job
        .file("registry.json", &registry(&tasks))
        .set("datasets", json!([{"registry": {"url": server.url("registry.json")}, "name": "set"}]));
    let refused = job.run().expect(2);
    assert!(refused.stderr().contains("tasks[0].git_url"), "{}", refused.stderr());
    assert!(refused.stderr().contains("tasks[1].git_url"), "{}", refused.stderr());
}

#[test]
fn a_version_is_chosen_by_name_and_else_the_newest_one_is_taken() {
    let entry = |version: &str, task: &str| json!({"name": "set", "version": version, "tasks": [{"name": task, "path": format!("set/{task}")}]});
    let job = job()
        .task(TestTask::new("old"))
        .task(TestTask::new("new"))
        .file("registry.json", &json!([entry("1.0", "old"), entry("2.0", "new")]).to_string());
    let dataset =
        |version: Value| json!([{"registry": {"path": "registry.json"}, "name": "set", "version": version}]);
    let job = job.set("datasets", dataset(Value::Null));
    let first = job.run().expect(0);
    assert_eq!(first.result()["results"][0]["task_name"], "new");

    let job = job.set("name", json!("second")).set("datasets", dataset(json!("1.0")));
    assert!(job.run().expect(0).stdout().contains("oracle"));
    assert!(job.root().join("jobs/second/oracle/set/old__1").is_dir());

    let job = job.set("name", json!("third")).set("datasets", dataset(json!("3.0")));
    let refused = job.run().expect(2);
    assert!(refused.stderr().contains("`2.0`") && refused.stderr().contains("`1.0`"), "{}", refused.stderr());
    assert!(!job.root().join("jobs/third").exists());
}

#[test]
fn a_dataset_that_the_registry_does_not_have_is_refused_with_those_it_has() {
    let job =
        with_registry(job().task(TestTask::new("task")), &json!([{"name": "task", "path": "set/task"}]))
            .set("datasets", json!([{"registry": {"path": "registry.json"}, "name": "sett"}]));
    let refused = job.run().expect(2);
    assert!(refused.stderr().contains("no dataset `sett`; it has `set`"), "{}", refused.stderr());
}

#[test]
fn a_task_is_taken_at_the_commit_that_the_registry_names() {
    let job = job();
    let repo = TestRepo::new(job.root().join("repo"));
    let solved = repo.commit(&TestTask::new("task"));
    let broken = repo.commit(&TestTask::new("task").solution("exit 1\n"));
    assert_ne!(solved, broken);
    let tasks =
        json!([{"name": "task", "git_url": repo.url(), "git_commit_id": solved, "path": "tasks/task"}]);
    let finished = with_registry(job, &tasks).run().expect(0);
    assert_eq!(commit_of(&finished), solved);
}

#[test]
fn a_registry_whose_commits_are_all_unknown_does_not_stop_other_datasets() {
    let job = job();
    let repo = TestRepo::new(job.root().join("repo"));
    repo.commit(&TestTask::new("task"));
    let unknown = "0123456789012345678901234567890123456789";
    let task = |name: &str| json!({"name": name, "git_url": repo.url(), "git_commit_id": unknown, "path": "tasks/task"});
    let job = with_registry(job, &json!([task("a"), task("b")]));
    TestTask::new("good").write(&job.root().join("local"));
    let registry = json!({"registry": {"path": "registry.json"}, "name": "set"});
    let job = job.set("datasets", json!([registry, {"path": "local"}]));
    let strict = job.rollout(&["run", "job.yaml", "--strict"]).expect(2);
    assert!(strict.stderr().contains("rejected by --strict"), "{}", strict.stderr());
    let finished = job.run().expect(1);
    assert_eq!(finished.trial("oracle/local/good__1")["reward"], 1.0);
    for name in ["a", "b"] {
        let error = finished.trial(&format!("oracle/set/{name}__1"))["error"].take();
        assert_eq!(error["type"], "task_not_found", "{error}");
        assert!(error["message"].as_str().unwrap().contains(&format!("has no commit {unknown}")), "{error}");
    }
}

#[test]
fn resume_keeps_the_commit_that_was_resolved_when_the_job_was_planned() {
    let job = job();
    let repo = TestRepo::new(job.root().join("repo"));
    let first = repo.commit(&TestTask::new("task").solution("exit 1\n"));
    let job = with_registry(job, &json!([{"name": "task", "git_url": repo.url(), "path": "tasks/task"}]));
    assert_eq!(commit_of(&job.run().expect(1)), first);

    let second = repo.commit(&TestTask::new("task"));
    let resumed = job.rollout(&["resume", "jobs/job", "--rerun", "error"]).expect(1);
    assert_eq!(commit_of(&resumed), first, "the branch moved, the job did not");

    job.rollout(&["run", "job.yaml", "--set", "name=later"]).expect(0);
    let later = fs::read_to_string(job.root().join("jobs/later/result.json")).unwrap();
    assert_eq!(later.parse::<Value>().unwrap()["results"][0]["task_git_commit_id"], json!(second));
}

#[test]
fn a_repository_is_fetched_once_for_each_commit() {
    let job = job();
    let repo = TestRepo::new(job.root().join("repo"));
    let commit = repo.commit(&TestTask::new("task"));
    let tasks =
        json!([{"name": "task", "git_url": repo.url(), "git_commit_id": commit, "path": "tasks/task"}]);
    let job = with_registry(job, &tasks);
    job.run().expect(0);
    fs::rename(repo.dir(), job.root().join("gone")).unwrap();
    job.rollout(&["run", "job.yaml", "--set", "name=again"]).expect(0);
}

#[test]
fn jobs_at_the_same_time_fetch_into_one_cache() {
    let job = job();
    let repo = TestRepo::new(job.root().join("repo"));
    repo.commit(&TestTask::new("task"));
    let job = with_registry(job, &json!([{"name": "task", "git_url": repo.url(), "path": "tasks/task"}]));
    let started: Vec<_> = (0..4)
        .map(|n| job.command(&["run", "job.yaml", "--set", &format!("name=job-{n}")]).spawn().unwrap())
        .collect();
    for mut child in started {
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn hostile_addresses_and_paths_are_refused_all_at_once() {
    let job = job();
    let url = TestRepo::new(job.root().join("repo")).url();
    let job = with_registry(
        job,
        &json!([
            {"name": "a", "git_url": "--upload-pack=touch owned", "path": "tasks/task"},
            {"name": "b", "git_url": "ext::sh -c touch% owned", "path": "tasks/task"},
            {"name": "c", "git_url": url, "path": "../outside"},
            {"name": "d", "git_url": url, "path": "/etc"},
            {"name": "e", "git_url": url, "git_commit_id": "--output=owned", "path": "tasks/task"},
            {"name": "f", "path": "../outside"},
            {"name": "../g", "path": "set/g"},
            {"name": "h", "path": "set/h"},
            {"name": "h", "path": "set/h"},
        ]),
    );
    let refused = job.run().expect(2);
    for place in [
        "tasks[0].git_url",
        "tasks[1].git_url",
        "tasks[2].path",
        "tasks[3].path",
        "tasks[4].git_commit_id",
        "tasks[5].path",
        "tasks[6].name",
        "tasks[8].name",
    ] {
        assert!(refused.stderr().contains(place), "{place} is not in {}", refused.stderr());
    }
    assert!(!job.root().join("owned").exists() && !job.root().join("jobs").exists());
}

#[test]
fn links_out_of_a_checkout_are_never_followed() {
    let job = job();
    let repo = TestRepo::new(job.root().join("repo"));
    fs::write(job.root().join("secret.md"), "a secret of the host\n").unwrap();
    let secret = job.root().join("secret.md");
    fs::create_dir_all(repo.dir().join("tasks/task")).unwrap();
    std::os::unix::fs::symlink(&secret, repo.dir().join("tasks/task/instruction.md")).unwrap();
    std::os::unix::fs::symlink(job.root(), repo.dir().join("tasks/away")).unwrap();
    repo.commit(&TestTask::new("task").without("instruction.md"));
    let at = |name: &str, path: &str| json!({"name": name, "git_url": repo.url(), "path": path});
    let tasks = json!([at("task", "tasks/task"), at("away", "tasks/away/set/task")]);
    let finished = with_registry(job.task(TestTask::new("task")), &tasks).run().expect(1);
    for task in ["task", "away"] {
        let result = finished.trial(&format!("oracle/set/{task}__1"));
        let kind = result["error"]["type"].as_str().unwrap();
        assert!(["task_invalid", "task_not_found"].contains(&kind), "{result:#}");
        assert!(!result.to_string().contains("a secret of the host"));
    }
}

#[test]
fn a_path_that_the_repository_does_not_have_is_task_not_found_and_the_others_run() {
    let job = job();
    let repo = TestRepo::new(job.root().join("repo"));
    repo.commit(&TestTask::new("task"));
    let at = |name: &str, path: &str| json!({"name": name, "git_url": repo.url(), "path": path});
    let tasks = json!([at("task", "tasks/task"), at("absent", "tasks/absent")]);
    let finished = with_registry(job, &tasks).run().expect(1);
    assert_eq!(finished.trial("oracle/set/task__1")["reward"], 1.0);
    assert_eq!(finished.trial("oracle/set/absent__1")["error"]["type"], "task_not_found");
}

#[test]
fn tasks_of_a_local_repository_have_its_commit_too() {
    let job = job();
    let commit = TestRepo::new(job.root().join("repo")).commit(&TestTask::new("task"));
    let finished = job.set("datasets", json!([{"path": "repo/tasks", "name": "set"}])).run().expect(0);
    assert_eq!(commit_of(&finished), commit);
}

#[test]
fn a_dataset_can_be_a_single_task() {
    let job = job().task(TestTask::new("task")).set("datasets", json!([{"path": "set/task"}]));
    let row = job.run().expect(0).result()["results"][0].clone();
    assert_eq!((&row["task_name"], &row["reward"]), (&json!("task"), &json!(1.0)));
}

#[test]
fn a_registry_and_a_repository_that_are_busy_for_a_moment_are_asked_again() {
    let job = job();
    TestRepo::new(job.root().join("public/repo")).commit(&TestTask::new("task"));
    let server = FileServer::busy(job.root().join("public"), 1);
    let repository = FileServer::busy(job.root().join("public"), 1);
    let tasks = json!([{"name": "task", "git_url": repository.url("repo/.git"), "path": "tasks/task"}]);
    let job = job
        .file("public/registry.json", &registry(&tasks))
        .set("datasets", json!([{"registry": {"url": server.url("registry.json")}, "name": "set"}]));
    let finished = job.run().expect(0);
    assert_eq!(finished.stderr().matches("starting try 2 of 3").count(), 2, "{}", finished.stderr());
    let server = FileServer::busy(job.root().join("public"), 1);
    let job = job
        .set("name", json!("once"))
        .set("retry", json!({"max_attempts": 1}))
        .set("datasets", json!([{"registry": {"url": server.url("registry.json")}, "name": "set"}]));
    let refused = job.run().expect(2);
    assert!(refused.stderr().contains("503"), "{}", refused.stderr());
}

#[test]
fn a_commit_that_the_repository_lacks_fails_its_task_alone() {
    let job = job();
    let repo = TestRepo::new(job.root().join("repo"));
    let commit = repo.commit(&TestTask::new("task"));
    let task = |name: &str, commit: &str| json!({"name": name, "git_url": repo.url(), "git_commit_id": commit, "path": "tasks/task"});
    let job = with_registry(job, &json!([task("task", &commit), task("unknown", &"0".repeat(40))]));
    let finished = job.run().expect(1);
    assert_eq!(finished.trial("oracle/set/task__1")["reward"], 1.0);
    let error = finished.trial("oracle/set/unknown__1")["error"].clone();
    assert_eq!(error["type"], "task_not_found");
    assert!(error["message"].as_str().unwrap().contains("check `git_commit_id`"), "{error}");
}

#[test]
fn a_password_of_a_repository_reaches_its_server_and_no_command_line() {
    let job = job();
    TestRepo::new(job.root().join("public/repo")).commit(&TestTask::new("task"));
    // The user `user` with the password `secret-word`.
    let server = FileServer::guarded(job.root().join("public"), "Basic dXNlcjpzZWNyZXQtd29yZA==");
    let git_url = server.url("repo/.git").replace("http://", "http://user:secret-word@");
    let job = with_registry(job, &json!([{"name": "task", "git_url": git_url, "path": "tasks/task"}])).file(
        "bin/git",
        "#!/bin/sh\nprintf '%s\\n' \"$*\" >> \"$HOME/calls\"\nPATH=$OLD_PATH exec git \"$@\"\n",
    );
    let chmod = std::process::Command::new("chmod").arg("+x").arg(job.root().join("bin/git")).status();
    assert!(chmod.unwrap().success());
    let path = std::env::var("PATH").unwrap();
    let with_log = format!("{}:{path}", job.root().join("bin").display());
    let job = job.env("OLD_PATH", &path).env("PATH", &with_log);
    job.run().expect(0);
    let calls = fs::read_to_string(job.root().join("calls")).unwrap();
    assert!(calls.contains("fetch") && !calls.contains("secret-word"), "{calls}");
    assert!(!fs::read_to_string(job.dir().join("journal.jsonl")).unwrap().contains("secret-word"));
}

#[test]
fn one_dataset_of_two_registries_runs_in_separate_directories() {
    let task = |path: &str| registry(&json!([{"name": "task", "path": path}]));
    let at = |path: &str| json!({"registry": {"path": path}, "name": "set", "version": "1.0"});
    let job = job();
    TestTask::new("task").write(&job.root().join("solved"));
    TestTask::new("task").solution("true\n").write(&job.root().join("unsolved"));
    let job = job
        .file("one.json", &task("solved/task"))
        .file("two.json", &task("unsolved/task"))
        .set("datasets", json!([at("one.json"), at("two.json")]));
    let finished = job.run().expect(0);
    for (dataset, reward) in [("set@one", 1.0), ("set@two", 0.0)] {
        let result = finished.trial(&format!("oracle/{dataset}/task__1"));
        assert_eq!((&result["dataset_name"], &result["reward"]), (&json!(dataset), &json!(reward)));
    }
    assert_eq!(finished.result()["completed_trials"], 2);
}
