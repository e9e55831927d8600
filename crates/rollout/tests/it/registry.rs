//! Registry files, from disk and over HTTP.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex},
};

use rollout::{
    config::{Compat, DatasetConfig, DatasetSource, RegistryLocation},
    name::DatasetName,
    task::{Dataset, DatasetError, Resolved, Sources, TaskProblem},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

struct Fixture {
    dir: TempDir,
}

impl Fixture {
    fn new(registry: &Value) -> Self {
        Self::with_text(&registry.to_string())
    }

    fn with_text(registry: &str) -> Self {
        let fixture = Self { dir: TempDir::new().unwrap() };
        for name in ["tasks/one", "tasks/two"] {
            let dir = fixture.dir.path().join(name);
            fs::create_dir_all(dir.join("tests")).unwrap();
            fs::write(dir.join("instruction.md"), "Do it.\n").unwrap();
            fs::write(dir.join("task.toml"), "version = \"1.0\"\n").unwrap();
            fs::write(dir.join("tests/test.sh"), "true\n").unwrap();
        }
        fs::write(fixture.file(), registry).unwrap();
        fixture
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("registry.json")
    }

    async fn load(&self, dataset: &str, version: Option<&str>) -> Result<Dataset, DatasetError> {
        load(&self.dir, RegistryLocation::Path(self.file()), dataset, version).await
    }

    /// Why a dataset cannot be loaded, with the temporary directory replaced.
    async fn refusal(&self, dataset: &str, version: Option<&str>) -> String {
        let error = self.load(dataset, version).await.unwrap_err();
        chain(&error).replace(self.dir.path().to_str().unwrap(), "[dir]")
    }
}

async fn load(
    dir: &TempDir,
    registry: RegistryLocation,
    dataset: &str,
    version: Option<&str>,
) -> Result<Dataset, DatasetError> {
    let config = DatasetConfig {
        name: DatasetName::new("set").unwrap(),
        source: DatasetSource::Registry {
            registry,
            dataset: dataset.to_owned(),
            version: version.map(str::to_owned),
        },
        pass_threshold: 1.0,
        compat: None,
        filter: Default::default(),
    };
    let sources = Sources::new(dir.path().join("cache"));
    Ok(sources.load(&[config], &Resolved::default(), &|_| {}).await?.pop().unwrap())
}

/// Everything under the first line, which names the dataset.
fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

fn names(dataset: &Dataset) -> Vec<&str> {
    dataset.tasks.iter().map(|entry| entry.name.as_str()).collect()
}

fn versions() -> Value {
    json!([
        {"name": "hello", "version": "1.0", "tasks": [{"name": "old", "path": "tasks/one"}]},
        {"name": "hello", "version": 2.5, "tasks": [{"name": "new", "path": "tasks/two"}]},
        {"name": "single", "version": "head", "tasks": [
            {"name": "b", "path": "./tasks/two/"},
            {"name": "a", "path": "tasks/one", "extra": true},
            {"name": "c", "path": "tasks/three"},
        ]},
    ])
}

#[tokio::test]
async fn an_entry_names_the_rules_for_its_tasks() {
    let tasks = json!([{"name": "a", "path": "tasks/one"}]);
    let fixture = Fixture::new(&json!([
        {"name": "plain", "tasks": tasks},
        {"name": "made", "compat": "harbor", "tasks": tasks},
        {"name": "other", "compat": "hrbor", "tasks": tasks},
        {"name": "number", "compat": 2, "tasks": tasks},
    ]));
    assert_eq!(fixture.load("plain", None).await.unwrap().compat, None);
    let made = fixture.load("made", None).await.unwrap();
    assert_eq!(made.compat, Some(Compat::Harbor));
    assert_eq!(made.resolved["compat of dataset set"], "harbor", "a resume does not read the registry");
    insta::assert_snapshot!(fixture.refusal("other", None).await, @"
    invalid registry [dir]/registry.json:
    - [2].compat: unknown rules `hrbor`; known: `harbor`
    ");
    insta::assert_snapshot!(fixture.refusal("number", None).await, @"
    invalid registry [dir]/registry.json:
    - [3].compat: must be a string
    ");
}

#[tokio::test]
async fn tasks_without_a_repository_are_next_to_the_registry() {
    let fixture = Fixture::new(&versions());
    let dataset = fixture.load("single", None).await.unwrap();
    assert_eq!(names(&dataset), ["a", "b", "c"]);
    assert!(dataset.tasks[0].task.as_ref().unwrap().dir.ends_with("tasks/one"));
    assert!(dataset.tasks[1].task.as_ref().unwrap().dir.ends_with("tasks/two"));
    assert!(matches!(dataset.tasks[2].task, Err(TaskProblem::NotFound(_))));
    assert!(dataset.warnings.is_empty());
    let directory = RegistryLocation::Path(fixture.dir.path().to_owned());
    let dataset = load(&fixture.dir, directory, "single", Some("head")).await.unwrap();
    assert_eq!(dataset.tasks.len(), 3, "a directory stands for the registry.json in it");
}

#[tokio::test]
async fn the_newest_version_is_used_unless_one_is_given() {
    let fixture = Fixture::new(&json!({"datasets": versions()}));
    assert_eq!(names(&fixture.load("hello", None).await.unwrap()), ["new"]);
    assert_eq!(names(&fixture.load("hello", Some("1.0")).await.unwrap()), ["old"]);
}

#[tokio::test]
async fn an_unknown_dataset_or_version_is_rejected_with_the_known_ones() {
    let fixture = Fixture::new(&versions());
    insta::assert_snapshot!(fixture.refusal("helo", None).await, @"the registry [dir]/registry.json has no dataset `helo`; it has `hello`, `single`");
    insta::assert_snapshot!(fixture.refusal("hello", Some("2.0")).await, @"the registry [dir]/registry.json has no version `2.0` of `hello`; it has `2.5`, `1.0`");
    let fixture = Fixture::new(&json!([]));
    insta::assert_snapshot!(fixture.refusal("hello", None).await, @"the registry [dir]/registry.json has no dataset `hello`; it is empty");
}

#[tokio::test]
async fn every_problem_of_a_dataset_is_reported_with_its_position() {
    let fixture = Fixture::new(&json!([
        {"name": "broken elsewhere", "tasks": 7},
        {"name": "bad", "tasks": [
            {"path": "tasks/one"},
            {"name": "../up", "path": "tasks/one"},
            {"name": "a", "git_url": "--upload-pack=id", "path": "x"},
            {"name": "b", "git_url": "ext::sh", "path": "x"},
            {"name": "c", "git_url": "https://example.com/r", "git_commit_id": "main"},
            {"name": "d", "git_url": "https://example.com/r", "git_commit_id": "69671fb"},
            {"name": "e", "path": "../../etc"},
            {"name": "f", "path": "/etc"},
            {"name": "g"},
            {"name": "h", "path": 7},
            "i",
            {"name": "j", "path": "tasks/one"},
            {"name": "j", "path": "tasks/two"},
        ]},
        {"name": "none", "tasks": []},
    ]));
    insta::assert_snapshot!(fixture.refusal("bad", None).await, @"
    invalid registry [dir]/registry.json:
    - [1].tasks[0].name: is missing
    - [1].tasks[1].name: a name becomes a directory, so it cannot be a path
    - [1].tasks[2].git_url: no part of a git URL can start with `-`
    - [1].tasks[3].git_url: unsupported git URL `ext::`; use https, http, ssh, git, or file with an absolute path
    - [1].tasks[4].git_commit_id: a commit id must be 40 or 64 hexadecimal digits; branches and tags are not allowed, because they move
    - [1].tasks[5].git_commit_id: a commit id must be complete, with 40 or 64 digits; `git rev-parse <id>` prints it
    - [1].tasks[6].path: a path cannot contain `..`
    - [1].tasks[7].path: a path cannot be absolute
    - [1].tasks[8].path: is missing; a task without `git_url` needs it
    - [1].tasks[9].path: must be a string
    - [1].tasks[10]: must be an object with `name`, `git_url`, `git_commit_id` and `path`
    - [1].tasks[12].name: duplicate task `j`; rename one
    ");
    insta::assert_snapshot!(fixture.refusal("none", None).await, @"
    invalid registry [dir]/registry.json:
    - [2].tasks: is empty
    ");
}

#[tokio::test]
async fn a_file_that_is_not_a_registry_is_rejected() {
    insta::assert_snapshot!(Fixture::with_text("[\n  {\"name\": }\n]").refusal("x", None).await, @"
    the registry [dir]/registry.json is not JSON
    expected value at line 2 column 12
    ");
    insta::assert_snapshot!(Fixture::with_text("\"text\"").refusal("x", None).await, @"
    invalid registry [dir]/registry.json:
    - it must be a list of datasets, or an object with `datasets`
    ");
    let fixture = Fixture::with_text("[]");
    fs::remove_file(fixture.file()).unwrap();
    insta::assert_snapshot!(fixture.refusal("x", None).await, @"
    cannot read the registry [dir]/registry.json
    No such file or directory (os error 2)
    ");
    let file = fs::File::create(fixture.file()).unwrap();
    file.set_len(33 * 1024 * 1024).unwrap();
    insta::assert_snapshot!(fixture.refusal("x", None).await, @"the registry [dir]/registry.json is larger than 32 MiB");
}

/// Serves answers by path and remembers the paths.
async fn serve(
    answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (answer, seen) = (answer.clone(), seen.clone());
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    // Clients also open connections that they then do not use.
                    let Ok(byte) = stream.read_u8().await else { return };
                    request.push(byte);
                }
                let request = String::from_utf8(request).unwrap();
                let path = request.split(' ').nth(1).unwrap().to_owned();
                let bytes = answer(&path);
                seen.lock().unwrap().push(path);
                // A client that has seen enough closes the connection.
                let _ = stream.write_all(&bytes).await;
            });
        }
    });
    (base, requests)
}

fn ok(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn missing() -> Vec<u8> {
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()
}

async fn refusal_of_url(base: &str, url: &str) -> String {
    let dir = TempDir::new().unwrap();
    let error = load(&dir, RegistryLocation::Url(url.to_owned()), "set", None).await.unwrap_err();
    chain(&error).replace(base.trim_start_matches("http://"), "[host]")
}

#[tokio::test]
async fn a_registry_is_downloaded_once_per_load_and_a_plain_file_server_can_hold_the_tasks() {
    let fixture = Fixture::with_text("");
    let git = |dir: &str, args: &[&str]| {
        let output = Command::new("git")
            .args(["-c", "user.name=Test", "-c", "user.email=test@example.com"])
            .args(args)
            .current_dir(fixture.dir.path().join(dir))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    git("tasks", &["init", "--quiet"]);
    git("tasks", &["add", "--all"]);
    git("tasks", &["commit", "--quiet", "--message=tasks"]);
    git("tasks", &["update-server-info"]);
    let commit = git("tasks", &["rev-parse", "HEAD"]);

    let root = fixture.dir.path().to_owned();
    let (base, requests) = serve(move |path| match path {
        "/registry" => {
            b"HTTP/1.1 302 Found\r\nLocation: /registry.json?token=1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                .to_vec()
        }
        _ => {
            let file = path.split('?').next().unwrap().trim_start_matches('/');
            fs::read(root.join(file)).map_or_else(|_| missing(), |bytes| ok(&bytes))
        }
    })
    .await;
    let url = format!("{base}/tasks/.git");
    let registry = json!([
        {"name": "first", "tasks": [{"name": "a", "git_url": url, "git_commit_id": commit, "path": "one"}]},
        {"name": "second", "tasks": [{"name": "b", "git_url": url, "path": "two"}]},
    ]);
    fs::write(fixture.file(), registry.to_string()).unwrap();
    let config = |dataset: &str| DatasetConfig {
        name: DatasetName::new(dataset).unwrap(),
        source: DatasetSource::Registry {
            registry: RegistryLocation::Url(format!("{base}/registry")),
            dataset: dataset.to_owned(),
            version: None,
        },
        pass_threshold: 1.0,
        compat: None,
        filter: Default::default(),
    };
    let sources = Sources::new(fixture.dir.path().join("cache"));
    let datasets =
        sources.load(&[config("first"), config("second")], &Resolved::default(), &|_| {}).await.unwrap();
    for dataset in &datasets {
        let task = dataset.tasks[0].task.as_ref().unwrap();
        assert_eq!(task.git_commit_id.as_ref(), Some(&commit));
    }
    let requests = requests.lock().unwrap();
    assert_eq!(requests.iter().filter(|path| path.starts_with("/registry")).count(), 2, "{requests:?}");
}

#[tokio::test]
async fn a_server_that_misbehaves_is_named_without_secrets() {
    let (base, requests) = serve(|path| match path {
        "/missing?token=secret" => missing(),
        "/large" => b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\n".to_vec(),
        "/endless" => {
            let mut bytes = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec();
            bytes.resize(33 * 1024 * 1024, b' ');
            bytes
        }
        "/loop" => b"HTTP/1.1 302 Found\r\nLocation: /loop\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
        "/local" => b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
        _ => ok(b"<html>"),
    })
    .await;
    let with_credentials = base.replace("http://", "http://user:password@");
    insta::assert_snapshot!(refusal_of_url(&base, &format!("{with_credentials}/missing?token=secret")).await, @"
    cannot download the registry
    http://[host]/missing answered with status 404 Not Found
    ");
    insta::assert_snapshot!(refusal_of_url(&base, &format!("{base}/large")).await, @"
    cannot download the registry
    http://[host]/large is larger than 32 MiB
    ");
    insta::assert_snapshot!(refusal_of_url(&base, &format!("{base}/endless")).await, @"
    cannot download the registry
    http://[host]/endless is larger than 32 MiB
    ");
    insta::assert_snapshot!(refusal_of_url(&base, &format!("{base}/page")).await, @"
    the registry http://[host]/page is not JSON
    expected value at line 1 column 1
    ");
    insta::assert_snapshot!(refusal_of_url(&base, "file:///etc/passwd").await, @"
    cannot download the registry
    only http and https URLs are supported; use `path` for a file on this machine
    ");
    insta::assert_snapshot!(refusal_of_url(&base, &format!("{base}/loop")).await, @"
    cannot download the registry
    cannot download http://[host]/loop; check the URL and the network
    error following redirect
    too many redirects
    ");
    assert_eq!(requests.lock().unwrap().iter().filter(|path| *path == "/loop").count(), 6);
    insta::assert_snapshot!(refusal_of_url(&base, &format!("{base}/local")).await, @"
    cannot download the registry
    http://[host]/local answered with status 302 Found
    ");
}

#[tokio::test]
async fn a_downloaded_registry_with_local_tasks_is_rejected() {
    let (base, _) = serve(|_| {
        let tasks = json!([
            {"name": "a", "git_url": "file:///home/me/private"},
            {"name": "b", "git_url": "/home/me/private"},
            {"name": "c", "path": "tasks/c"},
        ]);
        ok(json!([{"name": "set", "tasks": tasks}]).to_string().as_bytes())
    })
    .await;
    insta::assert_snapshot!(refusal_of_url(&base, &base).await, @"
    invalid registry http://[host]/:
    - [0].tasks[0].git_url: a downloaded registry cannot name a repository on this machine
    - [0].tasks[1].git_url: a downloaded registry cannot name a repository on this machine
    - [0].tasks[2].git_url: is missing; a downloaded registry needs it
    ");
}
