//! Local datasets: which directories are tasks, what is wrong with them, and what they hash to.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use rollout::{
    config::{DatasetConfig, DatasetSource},
    name::{DatasetName, TaskName},
    task::{
        Dataset, DatasetError, GitCommits, Resolved, Sources, Task, TaskProblem, load_dataset_dir, load_task,
    },
};
use tempfile::TempDir;

struct Tasks {
    dir: TempDir,
}

impl Tasks {
    fn new(names: &[&str]) -> Self {
        let tasks = Self { dir: TempDir::new().unwrap() };
        for name in names {
            let dir = tasks.path(name);
            for part in ["environment", "solution", "tests"] {
                fs::create_dir_all(dir.join(part)).unwrap();
            }
            fs::write(dir.join("instruction.md"), "Do it.\n").unwrap();
            fs::write(dir.join("task.toml"), "version = \"1.0\"\n").unwrap();
            fs::write(dir.join("environment/Dockerfile"), "FROM scratch\n").unwrap();
            fs::write(dir.join("solution/solve.sh"), "true\n").unwrap();
            fs::write(dir.join("tests/test.sh"), "true\n").unwrap();
        }
        tasks
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, name: &str) {
        let path = self.path(name);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    async fn load(&self, name: &str) -> Result<Dataset, DatasetError> {
        let config = DatasetConfig {
            name: DatasetName::new("set").unwrap(),
            source: DatasetSource::Path(self.path(name)),
            pass_threshold: 1.0,
            compat: None,
            filter: Default::default(),
        };
        let sources = Sources::new(self.path("cache"));
        Ok(sources.load(&[config], &Resolved::default(), &|_| {}).await?.pop().unwrap())
    }

    /// A text with the temporary directory replaced.
    fn plain(&self, text: impl ToString) -> String {
        let real = fs::canonicalize(self.dir.path()).unwrap();
        text.to_string()
            .replace(real.to_str().unwrap(), "[dir]")
            .replace(self.dir.path().to_str().unwrap(), "[dir]")
    }

    fn problem(&self, name: &str) -> String {
        match load_task(&self.path(name), TaskName::new(name).unwrap()) {
            Err(TaskProblem::Invalid(text)) => self.plain(text),
            other => panic!("{other:?}"),
        }
    }

    fn hash(&self, name: &str) -> String {
        load_one(&self.path(name)).content_hash().unwrap()
    }
}

fn load_one(dir: &Path) -> Task {
    load_task(dir, TaskName::new("task").unwrap()).unwrap().0
}

fn names(dataset: &Dataset) -> Vec<&str> {
    dataset.tasks.iter().map(|entry| entry.name.as_str()).collect()
}

fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n  ")
}

#[tokio::test]
async fn a_dataset_is_its_task_directories_by_name() {
    let tasks = Tasks::new(&["set/b", "set/a", "set/.hidden"]);
    tasks.write("set/README.md", "About these tasks.");
    tasks.write("set/docs/guide.md", "How to write tasks.");
    tasks.write("set/.git/config", "");
    let dataset = tasks.load("set").await.unwrap();
    assert_eq!(names(&dataset), ["a", "b"]);
    let task = dataset.tasks[0].task.as_ref().unwrap();
    assert!(task.dir.is_absolute() && task.has_solution && task.has_config);
    let warnings: Vec<_> = dataset.warnings.iter().map(|warning| tasks.plain(warning)).collect();
    assert_eq!(
        warnings,
        ["[dir]/set contains directories without any file of a task, which are ignored: docs"]
    );
}

#[tokio::test]
async fn a_single_task_is_a_dataset_of_one() {
    let tasks = Tasks::new(&["set/only"]);
    let dataset = tasks.load("set/only").await.unwrap();
    assert_eq!(names(&dataset), ["only"]);
    tasks.remove("set/only/task.toml");
    let dataset = tasks.load("set/only/.").await.unwrap();
    assert_eq!(names(&dataset), ["only"]);
    assert_eq!(dataset.warnings, ["tasks without a task.toml use all defaults: only"]);
    assert_eq!(dataset.tasks[0].task.as_ref().unwrap().config.agent_timeout_sec, None);
}

#[tokio::test]
async fn a_linked_task_belongs_to_the_dataset() {
    let tasks = Tasks::new(&["elsewhere/task", "set/a"]);
    symlink(tasks.path("elsewhere/task"), tasks.path("set/linked")).unwrap();
    let dataset = tasks.load("set").await.unwrap();
    assert_eq!(names(&dataset), ["a", "linked"]);
    assert!(dataset.tasks[1].task.is_ok());
}

#[tokio::test]
async fn an_invalid_task_leaves_the_others_alone() {
    let tasks = Tasks::new(&["set/good", "set/bad"]);
    tasks.remove("set/bad/instruction.md");
    fs::create_dir(tasks.path("set/empty")).unwrap();
    let dataset = tasks.load("set").await.unwrap();
    let valid: Vec<_> = dataset.tasks.iter().map(|entry| (entry.name.as_str(), entry.task.is_ok())).collect();
    assert_eq!(valid, [("bad", false), ("empty", false), ("good", true)]);
}

#[tokio::test]
async fn a_dataset_without_tasks_is_rejected_with_its_path() {
    let tasks = Tasks::new(&["set/tasks/a"]);
    fs::create_dir(tasks.path("nothing")).unwrap();
    tasks.write("file", "");
    for (name, expected) in [
        (
            "set",
            "[dir]/set contains no task: a task is a directory with instruction.md and tests/test.sh; did you mean [dir]/set/tasks?",
        ),
        (
            "nothing",
            "[dir]/nothing contains no task: a task is a directory with instruction.md and tests/test.sh",
        ),
        ("absent", "the directory [dir]/absent does not exist; relative paths start at the job file"),
        ("file", "the directory [dir]/file does not exist; relative paths start at the job file"),
    ] {
        let error = tasks.load(name).await.unwrap_err();
        let text = format!("cannot load dataset `set` (datasets[0] of the job)\n  {expected}");
        assert_eq!(tasks.plain(chain(&error)), text);
    }
}

#[tokio::test]
async fn a_task_named_like_a_file_of_the_job_is_rejected() {
    let tasks = Tasks::new(&["set/result.json"]);
    let error = tasks.load("set").await.unwrap_err();
    insta::assert_snapshot!(tasks.plain(chain(&error)), @"
    cannot load dataset `set` (datasets[0] of the job)
      invalid name of the task in [dir]/set/result.json; rename the directory
      this name is reserved for a file in the job directory
    ");
}

#[test]
fn every_problem_of_a_task_is_reported_at_once() {
    let tasks = Tasks::new(&["task"]);
    tasks.write("task/instruction.md", " \n");
    tasks.remove("task/tests/test.sh");
    tasks.write("task/task.toml", "[agent]\ntimeout_sec = \"soon\"\n");
    tasks.remove("task/environment");
    tasks.write("task/environment", "not a directory");
    insta::assert_snapshot!(tasks.problem("task"), @r#"
    [dir]/task is not a complete task:
    - instruction.md is empty
    - tests/test.sh is missing
    - environment must be a directory
    error: `agent.timeout_sec` must be a number, not a string
     --> [dir]/task/task.toml:2:15
      |
    2 | timeout_sec = "soon"
      |               ^^^^^^
    "#);
}

#[test]
fn a_broken_task_toml_is_shown_with_its_line() {
    let tasks = Tasks::new(&["task"]);
    tasks.write("task/task.toml", "version = \"1.0\"\n[agent\n");
    insta::assert_snapshot!(tasks.problem("task"), @"
    error: invalid TOML: unclosed table, expected `]`
     --> [dir]/task/task.toml:2:7
      |
    2 | [agent
      |       ^
    ");
}

#[test]
fn a_task_without_a_solution_is_complete() {
    let tasks = Tasks::new(&["task"]);
    tasks.remove("task/solution/solve.sh");
    assert!(!load_one(&tasks.path("task")).has_solution);
    tasks.remove("task/solution");
    tasks.remove("task/environment");
    assert!(!load_one(&tasks.path("task")).has_solution);
}

#[test]
fn links_may_stay_inside_of_a_task_and_never_leave_it() {
    let tasks = Tasks::new(&["task", "other"]);
    let link = |target: &str, name: &str| symlink(target, tasks.path("task").join(name)).unwrap();
    link("test.sh", "tests/alias");
    link("../environment", "tests/environment");
    link("not-made-yet", "tests/dangling");
    load_one(&tasks.path("task"));
    link("/etc/passwd", "tests/absolute");
    link("/nowhere", "tests/absolute-dangling");
    link("../../other/instruction.md", "solution/sibling");
    link("../../nowhere", "environment/dangling");
    link("loop", "environment/loop");
    tasks.remove("task/instruction.md");
    link("../other/instruction.md", "instruction.md");
    insta::assert_snapshot!(sorted(&tasks.problem("task")), @"
    - environment/dangling is a symbolic link to outside of the task
    - instruction.md is a symbolic link to outside of the task
    - solution/sibling is a symbolic link to outside of the task
    - tests/absolute is a symbolic link to outside of the task
    - tests/absolute-dangling is a symbolic link to outside of the task
    [dir]/task is not a complete task:
    ");
}

#[test]
fn a_link_cannot_stand_for_a_directory_of_a_task() {
    let tasks = Tasks::new(&["task", "other"]);
    tasks.remove("task/tests");
    symlink(tasks.path("other/tests"), tasks.path("task/tests")).unwrap();
    insta::assert_snapshot!(tasks.problem("task"), @"
    [dir]/task is not a complete task:
    - tests must be a directory
    ");
}

#[test]
fn pipes_and_sockets_in_a_task_are_rejected_without_being_opened() {
    let tasks = Tasks::new(&["task"]);
    let pipe = |name: &str| {
        assert!(Command::new("mkfifo").arg(tasks.path(name)).status().unwrap().success());
    };
    pipe("task/tests/pipe");
    tasks.remove("task/instruction.md");
    pipe("task/instruction.md");
    tasks.remove("task/task.toml");
    pipe("task/task.toml");
    insta::assert_snapshot!(tasks.problem("task"), @"
    [dir]/task is not a complete task:
    - task.toml must be a regular file
    - tests/pipe is neither a file nor a directory
    - instruction.md must be a regular file
    ");
}

#[test]
fn many_problems_are_cut_short_and_names_cannot_move_the_cursor() {
    let tasks = Tasks::new(&["task"]);
    for number in 0..30 {
        symlink("/etc", tasks.path(&format!("task/tests/\u{1b}[2J{number:02}"))).unwrap();
    }
    let text = tasks.problem("task");
    assert!(text.ends_with("- and 10 more"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(text.contains(r"\u{1b}[2J"), "{text}");
}

#[test]
fn a_content_hash_changes_with_anything_that_is_in_the_task() {
    let tasks = Tasks::new(&["task", "same"]);
    let first = tasks.hash("task");
    assert!(first.starts_with("sha256:") && first.len() == 71, "{first}");
    assert_eq!(tasks.hash("same"), first);
    let mut seen = vec![first];
    let mut changed = |what: &str| {
        let hash = tasks.hash("task");
        assert!(!seen.contains(&hash), "{what}");
        seen.push(hash);
    };
    tasks.write("task/tests/test.sh", "exit 1\n");
    changed("content");
    fs::set_permissions(tasks.path("task/tests/test.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    changed("executable bit");
    fs::rename(tasks.path("task/environment/Dockerfile"), tasks.path("task/environment/Containerfile"))
        .unwrap();
    changed("name");
    symlink("test.sh", tasks.path("task/tests/link")).unwrap();
    changed("link");
    tasks.remove("task/tests/link");
    symlink("../instruction.md", tasks.path("task/tests/link")).unwrap();
    changed("target of a link");
    fs::create_dir(tasks.path("task/environment/empty")).unwrap();
    changed("empty directory");
    let before = tasks.hash("task");
    fs::create_dir(tasks.path("task/.git")).unwrap();
    tasks.write("task/.git/index", "rewritten by git");
    assert_eq!(tasks.hash("task"), before, "git's own files are not the task");
}

#[test]
fn local_tasks_carry_the_commit_of_their_repository() {
    let tasks = Tasks::new(&["repository/set/a", "repository/set/b", "plain/c", "fresh/d"]);
    let git = |dir: &str, args: &[&str]| {
        let output = Command::new("git")
            .args(["-c", "user.name=Test", "-c", "user.email=test@example.com"])
            .args(args)
            .current_dir(tasks.path(dir))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    git("repository", &["init", "--quiet"]);
    git("repository", &["add", "set"]);
    git("repository", &["commit", "--quiet", "--message=first"]);
    git("fresh", &["init", "--quiet"]);
    let commit = git("repository", &["rev-parse", "HEAD"]);
    let mut commits = GitCommits::default();
    let loaded = load_dataset_dir(&tasks.path("repository/set"), &mut commits).unwrap();
    for entry in &loaded.tasks {
        assert_eq!(entry.task.as_ref().unwrap().git_commit_id.as_ref(), Some(&commit));
    }
    // The repository was asked once: a newer commit is not seen by the same instance.
    git("repository", &["commit", "--quiet", "--allow-empty", "--message=second"]);
    assert_eq!(commits.of(&tasks.path("repository/set/a")), Some(commit));
    assert_eq!(commits.of(&tasks.path("plain/c")), None);
    assert_eq!(commits.of(&tasks.path("fresh/d")), None, "a repository without commits");

    // What differs from the commit is not said to be it; what does not differ is.
    let second = git("repository", &["rev-parse", "HEAD"]);
    let of = |task: &str| GitCommits::default().of(&tasks.path(task)).unwrap();
    let dirty = format!("{second}-dirty");
    tasks.write("repository/set/a/notes.md", "new");
    assert_eq!((of("repository/set/a"), of("repository/set/b")), (dirty.clone(), second));
    tasks.write("repository/set/b/instruction.md", "other");
    assert_eq!(of("repository/set/b"), dirty);
    tasks.write("repository/.gitignore", "*.pyc\n/ignored/\n");
    git("repository", &["add", "."]);
    git("repository", &["commit", "--quiet", "--message=third"]);
    tasks.write("repository/set/a/tests/cached.pyc", "ignored");
    tasks.write("repository/ignored/e/instruction.md", "never committed");
    let third = git("repository", &["rev-parse", "HEAD"]);
    assert_eq!(of("repository/set/a"), third);
    assert_eq!(of("repository/ignored/e"), format!("{third}-dirty"));
}

#[tokio::test]
async fn thousands_of_tasks_load_in_order_each_with_its_own_outcome() {
    // Links to the files of one task, because making files takes far longer than reading them.
    let tasks = Tasks::new(&["template"]);
    for number in 0..3500 {
        let dir = tasks.path(&format!("set/task-{number:04}"));
        fs::create_dir_all(dir.join("tests")).unwrap();
        for file in ["instruction.md", "tests/test.sh"] {
            if file == "tests/test.sh" || number % 100 != 0 {
                fs::hard_link(tasks.path("template").join(file), dir.join(file)).unwrap();
            }
        }
    }
    let dataset = tasks.load("set").await.unwrap();
    assert_eq!(dataset.tasks.len(), 3500);
    for (number, entry) in dataset.tasks.iter().enumerate() {
        assert_eq!(entry.name.as_str(), format!("task-{number:04}"));
        assert_eq!(entry.task.is_ok(), number % 100 != 0, "{}", entry.name);
    }
}

/// Directory entries come in any order.
fn sorted(text: &str) -> String {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn a_task_with_a_pointer_of_git_lfs_instead_of_a_file_is_invalid() {
    let tasks = Tasks::new(&["task"]);
    let pointer =
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 7340032\n", "0".repeat(64));
    tasks.write("task/environment/data/model.bin", &pointer);
    let problem = tasks.problem("task");
    assert!(problem.contains("environment/data/model.bin is only a pointer of Git LFS"), "{problem}");
    assert!(problem.contains("git lfs pull"), "{problem}");
    tasks.write("task/environment/data/model.bin", "version https://git-lfs.github.com/spec/v1\n");
    assert!(load_task(&tasks.path("task"), TaskName::new("task").unwrap()).is_ok());
}
