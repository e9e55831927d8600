//! Tasks from git repositories, through real repositories and the real git.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use rollout::{
    config::{DatasetConfig, DatasetSource, RegistryLocation, RetryConfig},
    name::DatasetName,
    task::{Dataset, DatasetError, Pins, Resolved, Sources, TaskProblem},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A repository, a cache, a registry file and a git that writes down how it was called.
struct Fixture {
    dir: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self { dir: TempDir::new().unwrap() };
        let repository = fixture.repository();
        fs::create_dir(&repository).unwrap();
        fixture.git(&["init", "--quiet", "--initial-branch=main"]);
        fixture.git(&["config", "uploadpack.allowFilter", "true"]);
        for name in ["one", "nested/two", "unwanted"] {
            write_task(&repository.join(name));
        }
        fs::write(repository.join("large.bin"), "not needed by any task").unwrap();
        fixture.commit();
        fixture.wrap_git(r#"exec git "$@""#);
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn repository(&self) -> PathBuf {
        self.path("repository")
    }

    fn url(&self) -> String {
        format!("file://{}", self.repository().display())
    }

    fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git")
            .args(["-c", "user.name=Test", "-c", "user.email=test@example.com"])
            .args(args)
            .current_dir(self.repository())
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Commits everything and returns the commit.
    fn commit(&self) -> String {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message=change"]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Replaces the git command by a script that logs its arguments first.
    fn wrap_git(&self, script: &str) {
        let text = format!("#!/bin/sh\necho \"$@\" >> '{}'\n{script}\n", self.path("calls").display());
        // A child writes the file: one that this process has open cannot be executed.
        let status = Command::new("sh")
            .args(["-c", r#"printf %s "$1" > "$2" && chmod +x "$2""#, "sh", &text])
            .arg(self.path("git"))
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// How often git was called with a word since the log was read last.
    fn calls(&self, word: &str) -> usize {
        let log = fs::read_to_string(self.path("calls")).unwrap_or_default();
        log.lines().filter(|line| line.split(' ').any(|found| found == word)).count()
    }

    fn sources(&self) -> Sources {
        Sources { git: self.path("git"), retry: quick_retry(), ..Sources::new(self.path("cache")) }
    }

    fn dataset(&self, tasks: Value) -> DatasetConfig {
        let file = self.path("registry.json");
        fs::write(&file, json!([{"name": "set", "version": "1", "tasks": tasks}]).to_string()).unwrap();
        DatasetConfig {
            name: DatasetName::new("set").unwrap(),
            source: DatasetSource::Registry {
                registry: RegistryLocation::Path(file),
                dataset: "set".to_owned(),
                version: None,
            },
            pass_threshold: 1.0,
            compat: None,
            filter: Default::default(),
        }
    }

    async fn load(&self, tasks: Value) -> Result<Dataset, DatasetError> {
        self.load_with(tasks, &Resolved::default()).await
    }

    async fn load_with(&self, tasks: Value, resolved: &Resolved) -> Result<Dataset, DatasetError> {
        let datasets = self.sources().load(&[self.dataset(tasks)], resolved, &|_| {}).await?;
        Ok(datasets.into_iter().next().unwrap())
    }

    /// Everything in the cache, by path without hashes.
    fn cached_files(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut pending = vec![self.path("cache")];
        while let Some(dir) = pending.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten() {
                let entry = entry.unwrap();
                if entry.file_name() == "repository" {
                    continue;
                }
                if entry.file_type().unwrap().is_dir() {
                    pending.push(entry.path());
                }
                found.push(entry.file_name().into_string().unwrap());
            }
        }
        found.sort();
        found
    }
}

fn quick_retry() -> RetryConfig {
    RetryConfig { initial_delay_ms: 1, ..RetryConfig::default() }
}

fn write_task(dir: &Path) {
    fs::create_dir_all(dir.join("tests")).unwrap();
    fs::write(dir.join("instruction.md"), "Do it.\n").unwrap();
    fs::write(dir.join("task.toml"), "version = \"1.0\"\n").unwrap();
    fs::write(dir.join("tests/test.sh"), "echo 1 > /logs/verifier/reward.txt\n").unwrap();
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(&format!("\n  {source}"));
        next = source.source();
    }
    text
}

#[tokio::test]
async fn tasks_are_fetched_by_commit_and_path_and_nothing_else_is() {
    let fixture = Fixture::new();
    let commit = fixture.git(&["rev-parse", "HEAD"]);
    fs::remove_dir_all(fixture.repository().join("one")).unwrap();
    fixture.commit();
    let dataset = fixture
        .load(json!([
            {"name": "second", "git_url": fixture.url(), "git_commit_id": commit, "path": "nested/two"},
            {"name": "first", "git_url": fixture.url(), "git_commit_id": commit, "path": "one"},
        ]))
        .await
        .unwrap();
    let names: Vec<_> = dataset.tasks.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["first", "second"]);
    for entry in &dataset.tasks {
        let task = entry.task.as_ref().unwrap();
        assert_eq!(task.git_commit_id.as_deref(), Some(commit.as_str()));
        assert!(task.dir.starts_with(fixture.path("cache")));
        assert_eq!(fs::read_to_string(task.dir.join("instruction.md")).unwrap(), "Do it.\n");
    }
    assert!(dataset.resolved.is_empty());
    let cached = fixture.cached_files();
    assert!(!cached.iter().any(|name| name == "large.bin" || name.starts_with("unwanted")), "{cached:?}");
    assert!(!cached.iter().any(|name| name.starts_with("tmp-")), "{cached:?}");
}

#[tokio::test]
async fn files_that_no_task_needs_are_never_transferred() {
    let fixture = Fixture::new();
    let commit = fixture.git(&["rev-parse", "HEAD"]);
    let blob = fixture.git(&["rev-parse", "HEAD:large.bin"]);
    let needed = fixture.git(&["rev-parse", "HEAD:one/instruction.md"]);
    fixture
        .load(json!([{"name": "one", "git_url": fixture.url(), "git_commit_id": commit, "path": "one"}]))
        .await
        .unwrap();
    let has = |object: &str| {
        let mut pending = vec![fixture.path("cache")];
        while let Some(dir) = pending.pop() {
            if dir.ends_with("repository") {
                let objects = Command::new("git")
                    .arg("--git-dir")
                    .arg(&dir)
                    .args(["cat-file", "--batch-check", "--batch-all-objects"])
                    .output()
                    .unwrap();
                return String::from_utf8(objects.stdout).unwrap().contains(object);
            }
            pending.extend(fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()));
        }
        panic!("the cache holds no repository");
    };
    assert!(has(&needed));
    assert!(!has(&blob));
}

#[tokio::test]
async fn cached_tasks_are_not_fetched_again_and_later_jobs_add_others() {
    let fixture = Fixture::new();
    let commit = fixture.git(&["rev-parse", "HEAD"]);
    let task = |path: &str| json!({"name": path.replace('/', "-"), "git_url": fixture.url(), "git_commit_id": commit, "path": path});
    fixture.load(json!([task("one")])).await.unwrap();
    assert_eq!(fixture.calls("--depth=1"), 1);
    let calls = fixture.calls("-c");
    let dataset = fixture.load(json!([task("one")])).await.unwrap();
    assert!(dataset.tasks[0].task.is_ok());
    assert_eq!(fixture.calls("-c"), calls, "a cached task needs no git");
    let dataset = fixture.load(json!([task("one"), task("nested/two")])).await.unwrap();
    assert!(dataset.tasks.iter().all(|entry| entry.task.is_ok()));
    assert_eq!(fixture.calls("--depth=1"), 1, "the commit is there; only its files are added");
}

#[tokio::test]
async fn loads_at_the_same_time_fetch_once() {
    let fixture = Arc::new(Fixture::new());
    let commit = fixture.git(&["rev-parse", "HEAD"]);
    let config = fixture
        .dataset(json!([{"name": "one", "git_url": fixture.url(), "git_commit_id": commit, "path": "one"}]));
    let loads: Vec<_> = (0..8)
        .map(|_| {
            let (fixture, config) = (fixture.clone(), config.clone());
            tokio::spawn(
                async move { fixture.sources().load(&[config], &Resolved::default(), &|_| {}).await },
            )
        })
        .collect();
    for load in loads {
        assert!(load.await.unwrap().unwrap()[0].tasks[0].task.is_ok());
    }
    assert_eq!(fixture.calls("--depth=1"), 1);
}

#[tokio::test]
async fn waiting_for_another_process_is_reported() {
    let fixture = Fixture::new();
    let commit = fixture.git(&["rev-parse", "HEAD"]);
    let task = |path: &str| json!([{"name": "task", "git_url": fixture.url(), "git_commit_id": commit, "path": path}]);
    fixture.load(task("one")).await.unwrap();
    let repository = fs::read_dir(fixture.path("cache/git")).unwrap().next().unwrap().unwrap().path();
    let lock = fs::File::open(repository.join("lock")).unwrap();
    lock.lock().unwrap();
    let (sender, mut messages) = tokio::sync::mpsc::unbounded_channel();
    let (sources, config) = (fixture.sources(), fixture.dataset(task("nested/two")));
    let load = tokio::spawn(async move {
        sources.load(&[config], &Resolved::default(), &move |message| sender.send(message).unwrap()).await
    });
    assert_eq!(
        messages.recv().await.unwrap(),
        format!("waiting for another process to fetch {}", fixture.url())
    );
    assert!(!load.is_finished());
    drop(lock);
    assert!(load.await.unwrap().unwrap()[0].tasks[0].task.is_ok());
}

#[tokio::test]
async fn a_git_that_is_too_old_is_rejected() {
    let fixture = Fixture::new();
    fixture.wrap_git("echo git version 2.20.1");
    let error = fixture.load(json!([{"name": "a", "git_url": fixture.url()}])).await.unwrap_err();
    insta::assert_snapshot!(chain(&error), @"
    cannot load dataset `set` (datasets[0] of the job)
      git is too old: git version 2.20.1; tasks from repositories need git 2.29 or newer
    ");
}

#[tokio::test]
async fn a_fetch_that_was_cut_off_leaves_nothing_that_counts() {
    let fixture = Fixture::new();
    let commit = fixture.git(&["rev-parse", "HEAD"]);
    let tasks = json!([{"name": "one", "git_url": fixture.url(), "git_commit_id": commit, "path": "one"}]);
    for step in ["fetch", "read-tree"] {
        // The step does its work and never returns, so the load is cut off with its result on disk.
        fixture.wrap_git(&format!(
            "case \" $* \" in *' {step} '*) git \"$@\"; touch '{}'; exec sleep 600;; esac\nexec git \"$@\"",
            fixture.path("reached").display()
        ));
        let (sources, config) = (fixture.sources(), fixture.dataset(tasks.clone()));
        let load = tokio::spawn(async move { sources.load(&[config], &Resolved::default(), &|_| {}).await });
        while !fixture.path("reached").exists() {
            assert!(!load.is_finished(), "the load ended before {step}");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        load.abort();
        assert!(load.await.unwrap_err().is_cancelled());
        fs::remove_file(fixture.path("reached")).unwrap();
        assert!(!fixture.cached_files().iter().any(|name| name.starts_with("one-")), "after {step}");
    }
    fixture.wrap_git(r#"exec git "$@""#);
    let dataset = fixture.load(tasks).await.unwrap();
    assert!(dataset.tasks[0].task.is_ok());
    assert!(!fixture.cached_files().iter().any(|name| name.starts_with("tmp-")));
}

#[tokio::test]
async fn tasks_without_a_commit_are_resolved_once_and_can_be_pinned() {
    let fixture = Fixture::new();
    let first = fixture.git(&["rev-parse", "HEAD"]);
    let tasks = json!([
        {"name": "a", "git_url": fixture.url(), "path": "one"},
        {"name": "b", "git_url": fixture.url(), "path": "nested/two"},
    ]);
    let dataset = fixture.load(tasks.clone()).await.unwrap();
    assert_eq!(fixture.calls("ls-remote"), 1);
    assert_eq!(dataset.resolved, Pins::from([(fixture.url(), first.clone())]));

    fs::write(fixture.repository().join("one/instruction.md"), "Do more.\n").unwrap();
    let second = fixture.commit();
    let resumed = fixture.load_with(tasks.clone(), &dataset.resolved.clone().into()).await.unwrap();
    let newest = fixture.load(tasks).await.unwrap();
    for (dataset, commit, text) in [(resumed, &first, "Do it.\n"), (newest, &second, "Do more.\n")] {
        assert_eq!(dataset.resolved.get(&fixture.url()), Some(commit));
        let task = dataset.tasks[0].task.as_ref().unwrap();
        assert_eq!(task.git_commit_id.as_ref(), Some(commit));
        assert_eq!(fs::read_to_string(task.dir.join("instruction.md")).unwrap(), text);
    }
}

#[tokio::test]
async fn a_directory_that_the_commit_lacks_is_the_problem_of_its_task_alone() {
    let fixture = Fixture::new();
    let commit = fixture.git(&["rev-parse", "HEAD"]);
    let task =
        |path: &str| json!({"name": path, "git_url": fixture.url(), "git_commit_id": commit, "path": path});
    let dataset = fixture.load(json!([task("absent"), task("large.bin"), task("one")])).await.unwrap();
    let [absent, file, one] = &dataset.tasks[..] else { panic!("three tasks are named") };
    assert_eq!(
        absent.task.as_ref().unwrap_err(),
        &TaskProblem::NotFound(format!(
            "{} has no directory `absent` at {commit}; check `path` in the registry",
            fixture.url()
        ))
    );
    assert!(matches!(file.task, Err(TaskProblem::NotFound(_))));
    assert!(one.task.is_ok());
}

#[tokio::test]
async fn one_task_may_lie_inside_of_another_or_be_the_whole_repository() {
    let fixture = Fixture::new();
    write_task(&fixture.repository());
    write_task(&fixture.repository().join("one/inner"));
    let commit = fixture.commit();
    let task = |name: &str, path: Option<&str>| json!({"name": name, "git_url": fixture.url(), "git_commit_id": commit, "path": path});
    let dataset = fixture
        .load(json!([task("all", None), task("inner", Some("one/inner")), task("one", Some("one"))]))
        .await
        .unwrap();
    for (entry, expected) in dataset.tasks.iter().zip(["large.bin", "instruction.md", "inner/instruction.md"])
    {
        let task = entry.task.as_ref().unwrap();
        assert!(task.dir.join(expected).is_file(), "{}", task.dir.display());
        assert!(!task.dir.join(".git").exists());
    }
}

#[cfg(unix)]
#[tokio::test]
async fn links_to_outside_of_the_checkout_are_rejected() {
    let fixture = Fixture::new();
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, fixture.repository().join(name)).unwrap();
    };
    link("/etc/passwd", "one/tests/absolute");
    link("../../unwanted/instruction.md", "one/tests/sibling");
    link("test.sh", "nested/two/tests/fine");
    link("/etc", "directory");
    let commit = fixture.commit();
    let task = |name: &str, path: &str| json!({"name": name, "git_url": fixture.url(), "git_commit_id": commit, "path": path});
    let dataset = fixture
        .load(json!([
            task("a", "one"),
            task("b", "nested/two"),
            task("c", "directory"),
            task("d", "directory/ssh"),
        ]))
        .await
        .unwrap();
    let [leads_out, fine, itself, behind] = &dataset.tasks[..] else { panic!("four tasks are named") };
    let Err(TaskProblem::Invalid(text)) = &leads_out.task else { panic!("{leads_out:?}") };
    assert!(text.contains("tests/absolute is a symbolic link to outside of the task"), "{text}");
    assert!(text.contains("tests/sibling is a symbolic link to outside of the task"), "{text}");
    assert!(fine.task.is_ok());
    assert!(matches!(itself.task, Err(TaskProblem::NotFound(_))));
    assert!(matches!(behind.task, Err(TaskProblem::NotFound(_))));
}

#[tokio::test]
async fn a_server_that_gives_out_only_branches_still_gives_the_commit() {
    let fixture = Fixture::new();
    let old = fixture.git(&["rev-parse", "HEAD"]);
    fs::remove_dir_all(fixture.repository().join("one")).unwrap();
    fixture.commit();
    fixture.git(&["config", "uploadpack.allowFilter", "false"]);
    fixture.wrap_git(r#"exec git -c protocol.version=0 "$@""#);
    let dataset = fixture
        .load(json!([{"name": "one", "git_url": fixture.url(), "git_commit_id": old, "path": "one"}]))
        .await
        .unwrap();
    assert!(dataset.tasks[0].task.is_ok());
    assert_eq!(fixture.calls("fetch"), 2);
}

#[tokio::test]
async fn a_plain_path_is_a_repository_too_and_its_submodules_are_left_alone() {
    let fixture = Fixture::new();
    let head = fixture.git(&["rev-parse", "HEAD"]);
    fixture.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{head},one/module")]);
    fixture.git(&["commit", "--quiet", "--message=module"]);
    let commit = fixture.git(&["rev-parse", "HEAD"]);
    let dataset = fixture
        .load(
            json!([{"name": "one", "git_url": fixture.repository(), "git_commit_id": commit, "path": "one"}]),
        )
        .await
        .unwrap();
    let task = dataset.tasks[0].task.as_ref().unwrap();
    assert!(!task.dir.join("module").exists());
}

#[tokio::test]
async fn a_commit_that_the_repository_lacks_is_the_problem_of_its_tasks_alone() {
    let fixture = Fixture::new();
    let (known, absent) = (fixture.git(&["rev-parse", "HEAD"]), "0123456789012345678901234567890123456789");
    let task = |name: &str, commit: &str| json!({"name": name, "git_url": fixture.url(), "git_commit_id": commit, "path": "one"});
    let problem = TaskProblem::NotFound(format!(
        "{} has no commit {absent}; check `git_commit_id` in the registry",
        fixture.url()
    ));
    // Also if no task of the dataset has another commit.
    for (tasks, found) in [
        (json!([task("a", absent), task("b", &known)]), [false, true]),
        (json!([task("a", absent), task("b", absent)]), [false, false]),
    ] {
        let dataset = fixture.load(tasks).await.unwrap();
        assert_eq!(dataset.tasks.len(), 2);
        for (entry, found) in dataset.tasks.iter().zip(found) {
            assert_eq!(entry.task.as_ref().err(), (!found).then_some(&problem), "{}", entry.name);
        }
    }
}

#[tokio::test]
async fn a_repository_that_cannot_be_fetched_stops_the_job() {
    let fixture = Fixture::new();
    let gone =
        fixture.load(json!([{"name": "a", "git_url": "file:///nowhere/repository"}])).await.unwrap_err();
    insta::assert_snapshot!(chain(&gone), @"
    cannot load dataset `set` (datasets[0] of the job)
      git cannot read file:///nowhere/repository: fatal: '/nowhere/repository' does not appear to be a git repository / fatal: Could not read from remote repository.; `git ls-remote file:///nowhere/repository` shows whether this machine can reach it
    ");
}
