//! Datasets by name, from hubs and from git repositories: against a loopback hub, registry and git server.

use std::{fs, path::Path, sync::Mutex};

use rollout::{
    config::{DatasetConfig, RegistryLocation, RetryConfig, load_job_text},
    task::{Dataset, DatasetError, HubAccess, Pins, Resolved, Sources},
};
use rollout_testkit::{Fault, FileServer, HubServer, TestRepo, TestTask, Trouble};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A dataset, as a job file has it.
pub(crate) fn dataset(entry: Value) -> DatasetConfig {
    let model = json!({"name": "m", "model": {"name": "m", "base_url": "http://127.0.0.1/v1"}});
    let text = json!({"agents": [model], "datasets": [entry]}).to_string();
    let loaded = load_job_text("job.json".as_ref(), &text, &[], &|_| None);
    loaded.unwrap_or_else(|problems| panic!("{}", problems.render(false))).config.datasets.remove(0)
}

/// Questions from an address on a hub.
pub(crate) fn questions(address: &str, columns: Value) -> DatasetConfig {
    let interaction = json!({"dataset": address, "columns": columns, "rubric": [{"match": "exact"}]});
    dataset(json!({"name": "set", "interaction": interaction}))
}

pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) sources: Sources,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let retry = RetryConfig { initial_delay_ms: 1, ..RetryConfig::default() };
        let sources = Sources { retry, registries: Vec::new(), ..Sources::new(dir.path().join("cache")) };
        Self { dir, sources }
    }

    pub(crate) fn of(hub: &HubServer, token: Option<&str>) -> Self {
        let mut fixture = Self::new();
        fixture.sources.hub = HubAccess { endpoint: hub.url().to_owned(), token: token.map(Into::into) };
        fixture
    }

    pub(crate) fn registries(mut self, registries: &[RegistryLocation]) -> Self {
        self.sources.registries = registries.to_vec();
        self
    }

    pub(crate) async fn load(&self, config: &DatasetConfig) -> Result<Dataset, DatasetError> {
        self.load_with(config, &Resolved::default()).await
    }

    async fn load_with(&self, config: &DatasetConfig, resolved: &Resolved) -> Result<Dataset, DatasetError> {
        let only = std::slice::from_ref(config);
        Ok(self.sources.load(only, resolved, &|_| {}).await?.pop().unwrap())
    }

    /// The same without a network.
    pub(crate) async fn offline(&self, config: &DatasetConfig) -> Result<Dataset, DatasetError> {
        let sources = Sources { offline: true, ..self.sources.clone() };
        let only = std::slice::from_ref(config);
        Ok(sources.load(only, &Resolved::default(), &|_| {}).await?.pop().unwrap())
    }

    pub(crate) async fn refusal(&self, config: &DatasetConfig) -> String {
        refusal(self.load(config).await)
    }
}

/// The causes of an error, and its hint.
#[track_caller]
pub(crate) fn refusal(loaded: Result<Dataset, DatasetError>) -> String {
    let error = loaded.map(|_| "it was loaded").unwrap_err();
    let causes = std::iter::successors(std::error::Error::source(&error), |error| error.source());
    let mut text: Vec<String> = causes.map(ToString::to_string).collect();
    text.extend(error.hint());
    text.join("\n")
}

pub(crate) fn rows(dataset: &Dataset) -> Vec<Value> {
    let text = fs::read_to_string(dataset.rows.as_ref().expect("it has rows")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn names(dataset: &Dataset) -> Vec<&str> {
    dataset.tasks.iter().map(|entry| entry.name.as_str()).collect()
}

/// All files below a directory, as one text.
fn content(dir: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        text += &entry.path().display().to_string();
        match entry.file_type().unwrap().is_dir() {
            true => text += &content(&entry.path()),
            false => text += &String::from_utf8_lossy(&fs::read(entry.path()).unwrap()),
        }
    }
    text
}

/// A file of JSON lines that the hub keeps in its storage of large files.
pub(crate) fn large() -> Vec<u8> {
    (0..100)
        .map(|n| format!("{{\"q\": \"What is {n}?\", \"a\": \"{n}\"}}\n"))
        .collect::<String>()
        .into_bytes()
}

pub(crate) fn mapping() -> Value {
    json!({"question": "q", "answer": "a"})
}

#[tokio::test]
async fn rows_of_a_hub_are_chosen_by_split_and_mapped() {
    let hub = HubServer::start();
    let train = b"q,a\nWhat is 1?,1\n".as_slice();
    let test = b"q,a,answer\n\"What, is 2?\",2,other\nWhat is 3?,3,other\n".as_slice();
    let commit = hub.publish("team/sums", false, &[("data/train.csv", train), ("data/test.csv", test)]);
    let fixture = Fixture::of(&hub, None);
    let loaded = fixture.load(&questions("hf:team/sums", mapping())).await.unwrap();
    assert_eq!(
        rows(&loaded),
        [
            json!({"q": "What, is 2?", "a": "2", "question": "What, is 2?", "answer": "2"}),
            json!({"q": "What is 3?", "a": "3", "question": "What is 3?", "answer": "3"}),
        ]
    );
    let key = format!("{}/datasets/team/sums@main", hub.url());
    assert_eq!(loaded.resolved, Pins::from([(key, commit)]), "the commit is recorded");
    let train = fixture.load(&questions("hf:team/sums:train", mapping())).await.unwrap();
    assert_eq!(rows(&train).len(), 1);
}

#[tokio::test]
async fn unknown_columns_and_splits_are_reported() {
    let hub = HubServer::start();
    hub.publish("team/sums", false, &[("test.jsonl", b"{\"q\": \"?\"}\n")]);
    let fixture = Fixture::of(&hub, None);
    insta::assert_snapshot!(fixture.refusal(&questions("hf:team/sums", mapping())).await, @r"
    test.jsonl has rows that do not match `columns`:
      row 1: column `answer`: the row has no value for `a`; its columns are q
    ");
    let refusal = fixture.refusal(&questions("hf:team/sums:train", mapping())).await;
    assert_eq!(refusal, "hf:team/sums:train: it has no split `train`; it has test");
    let refusal = fixture.refusal(&questions("hf:team/absent", mapping())).await;
    assert!(refusal.contains("answered with status 404") && refusal.contains("HF_TOKEN"), "{refusal}");
}

#[tokio::test]
async fn a_cut_download_continues_where_it_stopped() {
    let cut = Fault::once("storage GET", Trouble::CutBody(1500));
    let hub = HubServer::start().fault(cut);
    hub.publish("team/sums", false, &[("test.jsonl", &large())]);
    let fixture = Fixture::of(&hub, None);
    let loaded = fixture.load(&questions("hf:team/sums", mapping())).await.unwrap();
    assert_eq!(rows(&loaded).len(), 100);
    let requests = hub.requests();
    let storage: Vec<_> = requests.iter().filter(|line| line.starts_with("storage")).collect();
    assert_eq!(storage.len(), 2, "{requests:#?}");
    assert!(storage[1].ends_with(" from byte 1500"), "{requests:#?}");
}

#[tokio::test]
async fn the_size_is_shown_before_a_big_download() {
    let hub = HubServer::start();
    let row = format!("{{\"q\": \"?\", \"a\": \"{}\"}}\n", "x".repeat(1_500_000));
    hub.publish("team/big", false, &[("test.jsonl", row.as_bytes())]);
    let fixture = Fixture::of(&hub, None);
    let shown = Mutex::new(Vec::new());
    let progress = |message: String| shown.lock().unwrap().push(message);
    let config = [questions("hf:team/big", mapping())];
    for _ in 0..2 {
        fixture.sources.load(&config, &Resolved::default(), &progress).await.unwrap();
    }
    let shown = shown.into_inner().unwrap();
    let downloads: Vec<_> = shown.iter().filter(|message| message.starts_with("downloading")).collect();
    assert_eq!(downloads, ["downloading hf:team/big: 1.5 MB in 1 file"]);
}

#[tokio::test]
async fn a_file_with_the_wrong_hash_is_refused_and_not_kept() {
    for (content, place) in [(large(), "storage GET"), (b"{\"q\": 1, \"a\": 2}".to_vec(), "/resolve/")] {
        let hub = HubServer::start().fault(Fault::once(place, Trouble::WrongByte));
        hub.publish("team/sums", false, &[("test.jsonl", &content)]);
        let fixture = Fixture::of(&hub, None);
        let config = questions("hf:team/sums", mapping());
        let refusal = fixture.refusal(&config).await;
        assert!(refusal.starts_with("test.jsonl from ") && refusal.contains("wrong content"), "{refusal}");
        assert!(fixture.load(&config).await.is_ok(), "the next try starts from the beginning");
    }
}

#[tokio::test]
async fn a_moved_branch_does_not_move_a_recorded_commit() {
    let hub = HubServer::start();
    let first = hub.publish("team/sums", false, &[("test.jsonl", b"{\"q\": \"old\", \"a\": \"1\"}")]);
    let fixture = Fixture::of(&hub, None);
    let config = questions("hf:team/sums", mapping());
    let before = fixture.load(&config).await.unwrap();
    hub.publish("team/sums", false, &[("test.jsonl", b"{\"q\": \"new\", \"a\": \"1\"}")]);
    let again = Fixture::of(&hub, None);
    let resumed = again.load_with(&config, &Resolved::from(before.resolved.clone())).await.unwrap();
    assert_eq!((rows(&resumed), &resumed.resolved), (rows(&before), &before.resolved));
    assert_eq!(rows(&fixture.load(&config).await.unwrap())[0]["q"], "new");
    let pinned = questions(&format!("hf:team/sums@{first}"), mapping());
    assert_eq!(rows(&again.load(&pinned).await.unwrap())[0]["q"], "old");
}

#[tokio::test]
async fn a_private_dataset_needs_the_token_which_goes_to_the_hub_only() {
    let hub = HubServer::start();
    hub.publish("team/secret", true, &[("test.jsonl", &large())]);
    let config = questions("hf:team/secret", mapping());
    let refusal = Fixture::of(&hub, None).refusal(&config).await;
    assert!(refusal.contains("status 404"), "{refusal}");
    let refusal = Fixture::of(&hub, Some("hf_wrong")).refusal(&config).await;
    assert!(refusal.contains("status 401") && !refusal.contains("hf_wrong"), "{refusal}");
    let fixture = Fixture::of(&hub, Some(HubServer::TOKEN));
    let loaded = fixture.load(&config).await.unwrap();
    assert_eq!(rows(&loaded).len(), 100);
    assert_eq!(hub.leaks(), 0, "the storage is another server");
    assert!(!content(fixture.dir.path()).contains(HubServer::TOKEN));
    assert!(!format!("{:?}", fixture.sources).contains(HubServer::TOKEN));
}

#[tokio::test]
async fn what_was_fetched_once_is_available_without_a_hub() {
    let hub = HubServer::start();
    hub.publish("team/sums", false, &[("test.jsonl", &large()), ("train.jsonl", &large()[1..])]);
    let fixture = Fixture::of(&hub, None);
    let config = questions("hf:team/sums", mapping());
    let refused = refusal(fixture.offline(&config).await);
    assert!(refused.contains("the revision `main`") && refused.contains("datasets download"), "{refused}");
    assert!(hub.requests().is_empty());
    let loaded = fixture.load(&config).await.unwrap();
    let asked = hub.requests().len();
    assert_eq!(rows(&fixture.offline(&config).await.unwrap()), rows(&loaded));
    let refused = refusal(fixture.offline(&questions("hf:team/sums:train", mapping())).await);
    assert!(refused.starts_with("train.jsonl of "), "{refused}");
    assert_eq!(hub.requests().len(), asked);
}

#[tokio::test]
async fn a_local_table_is_mapped_too() {
    let fixture = Fixture::new();
    let path = fixture.dir.path().join("sums.csv");
    fs::write(&path, "q,a\nWhat is 1?,1\n").unwrap();
    let loaded = fixture.load(&questions(path.to_str().unwrap(), mapping())).await.unwrap();
    assert_eq!(rows(&loaded)[0]["answer"], "1");
    let inline =
        json!({"dataset": [{"q": "?", "a": "2"}], "columns": mapping(), "rubric": [{"match": "exact"}]});
    let loaded = fixture.load(&dataset(json!({"name": "set", "interaction": inline}))).await.unwrap();
    assert_eq!(rows(&loaded)[0]["answer"], "2");
}

/// Writes a registry of datasets with one local task each, as `name@version`.
fn registry(dir: &Path, file: &str, datasets: &[&str]) -> RegistryLocation {
    let entry = |dataset: &&str| {
        let (name, version) = dataset.split_once('@').unwrap();
        let task = format!("{file}-{version}");
        TestTask::new(&task).write(&dir.join("tasks"));
        json!({"name": name, "version": version, "tasks": [{"name": task, "path": format!("tasks/{task}")}]})
    };
    let entries: Vec<_> = datasets.iter().map(entry).collect();
    fs::write(dir.join(file), json!(entries).to_string()).unwrap();
    RegistryLocation::Path(dir.join(file))
}

#[tokio::test]
async fn a_name_is_looked_up_in_all_registries_and_the_newest_version_counts() {
    let fixture = Fixture::new();
    let mine = registry(fixture.dir.path(), "mine", &["bench@1.9", "bench@2.0", "own@1"]);
    let public = registry(fixture.dir.path(), "public", &["bench@2.0", "bench@1.10", "other@head"]);
    let fixture = fixture.registries(&[mine, public]);
    for (entry, task) in [
        (json!({"name": "bench"}), "mine-2.0"),
        (json!({"name": "bench", "version": "1.10"}), "public-1.10"),
        (json!({"name": "bench", "version": 1.9, "rename": "old"}), "mine-1.9"),
        (json!({"name": "other"}), "public-head"),
    ] {
        let loaded = fixture.load(&dataset(entry)).await.unwrap();
        assert_eq!(names(&loaded), [task]);
    }
    let found = fixture.load(&dataset(json!({"name": "bench"}))).await.unwrap();
    let (what, origin) = found.resolved.first_key_value().unwrap();
    assert_eq!(what, "dataset bench");
    assert!(origin.starts_with("2.0, from ") && origin.ends_with("/mine"), "{origin}");
    let refusal = fixture.refusal(&dataset(json!({"name": "bnch", "version": "2.0"}))).await;
    assert!(refusal.starts_with("no known dataset is named `bnch@2.0`; similar ones: `bench`"), "{refusal}");
    let refusal = fixture.refusal(&dataset(json!({"name": "bench", "version": "3"}))).await;
    assert!(refusal.contains("bench@2.0"), "{refusal}");
}

#[tokio::test]
async fn a_registry_that_cannot_be_read_matters_only_if_it_is_needed() {
    let fixture = Fixture::new();
    let mine = registry(fixture.dir.path(), "mine", &["bench@1.0"]);
    let gone = RegistryLocation::Url("http://127.0.0.1:1/registry.json".to_owned());
    let fixture = fixture.registries(&[gone, mine]);
    assert_eq!(names(&fixture.load(&dataset(json!({"name": "bench"}))).await.unwrap()), ["mine-1.0"]);
    let refusal = fixture.refusal(&dataset(json!({"name": "absent"}))).await;
    assert!(
        refusal.contains("not searched: cannot download the registry: cannot download http://127.0.0.1:1/"),
        "{refusal}"
    );
}

#[tokio::test]
async fn tasks_of_a_downloaded_registry_are_available_offline() {
    let fixture = Fixture::new();
    let root = fixture.dir.path().join("public");
    let repo = TestRepo::new(root.join("repo"));
    repo.commit(&TestTask::new("task"));
    let server = FileServer::new(&root);
    let task = json!({"name": "task", "git_url": server.url("repo/.git"), "path": "tasks/task"});
    let text = json!([{"name": "bench", "version": "1", "tasks": [task]}]).to_string();
    fs::write(root.join("registry.json"), text).unwrap();
    let location = RegistryLocation::Url(server.url("registry.json"));
    let fixture = fixture.registries(&[location]);
    let config = dataset(json!({"name": "bench"}));
    let refused = refusal(fixture.offline(&config).await);
    assert!(refused.contains("registry.json is not in the cache"), "{refused}");
    let loaded = fixture.load(&config).await.unwrap();
    fs::remove_dir_all(&root).unwrap();
    let again = fixture.offline(&config).await.unwrap();
    let dir = |dataset: &Dataset| dataset.tasks[0].task.as_ref().unwrap().dir.clone();
    assert_eq!(dir(&again), dir(&loaded));
}

#[tokio::test]
async fn tasks_of_a_git_address_keep_their_commit_when_the_branch_moves() {
    let fixture = Fixture::new();
    let root = fixture.dir.path().join("public");
    let repo = TestRepo::new(root.join("repo"));
    let first = repo.commit(&TestTask::new("one"));
    let server = FileServer::new(&root);
    let address = format!("git+{}@main#tasks", server.url("repo/.git"));
    let config = dataset(json!({"path": address}));
    assert_eq!(config.name.as_str(), "tasks");
    let refused = refusal(fixture.offline(&config).await);
    assert!(refused.starts_with("`main` of http://127.0.0.1"), "{refused}");
    let before = fixture.load(&config).await.unwrap();
    assert_eq!(names(&before), ["one"]);
    assert_eq!(before.tasks[0].task.as_ref().unwrap().git_commit_id.as_deref(), Some(first.as_str()));
    repo.commit(&TestTask::new("two"));
    let resumed = fixture.load_with(&config, &Resolved::from(before.resolved.clone())).await.unwrap();
    assert_eq!((names(&resumed), &resumed.resolved), (vec!["one"], &before.resolved));
    assert_eq!(names(&fixture.load(&config).await.unwrap()), ["one", "two"]);
    let single = dataset(json!({"path": format!("git+{}@{first}#tasks/one", server.url("repo/.git"))}));
    let one = fixture.load(&single).await.unwrap();
    assert_eq!((names(&one), one.resolved.len()), (vec!["one"], 0));
    fs::remove_dir_all(&root).unwrap();
    assert_eq!(names(&fixture.offline(&config).await.unwrap()), ["one", "two"]);
    assert_eq!(names(&fixture.offline(&single).await.unwrap()), ["one"]);
    let refusal = fixture.refusal(&dataset(json!({"path": address.replace("@main", "@gone")}))).await;
    assert!(refusal.contains("git cannot read") || refusal.contains("no branch or tag"), "{refusal}");
}
