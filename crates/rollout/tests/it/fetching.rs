//! Downloads that break, and caches that were changed: of repositories, registries and hubs.

use std::{
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use rollout::config::{DatasetConfig, RegistryLocation};
use rollout_testkit::{FileServer, GitServer, HubServer, PackFault, TestRepo, TestTask, basic_authorization};
use serde_json::json;

use crate::datasets::{Fixture, dataset, large, mapping, names, questions, refusal, rows};

/// A git server with one task, and the dataset of it.
fn served(fixture: &Fixture) -> (GitServer, DatasetConfig) {
    let root = fixture.dir.path().join("public");
    TestRepo::new(root.join("repo")).commit(&TestTask::new("task"));
    let server = GitServer::new(&root);
    let config = dataset(json!({"path": format!("git+{}@main#tasks", server.url("repo/.git"))}));
    (server, config)
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { pending.push(path) } else { found.push(path) }
        }
    }
    found
}

/// The only file of the cache with this name.
fn cached(fixture: &Fixture, is_wanted: impl Fn(&Path) -> bool) -> PathBuf {
    let mut found = files(&fixture.sources.cache_dir);
    found.retain(|path| is_wanted(path));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Replaces the first byte, so that the size stays.
fn damage(path: &Path) {
    let mut content = fs::read(path).unwrap();
    content[0] ^= 1;
    fs::write(path, content).unwrap();
    // Two changes in a moment can have the same time.
    fs::File::options().append(true).open(path).unwrap().set_modified(UNIX_EPOCH).unwrap();
}

#[tokio::test]
async fn a_cut_download_of_a_repository_is_tried_again() {
    let fixture = Fixture::new();
    let (server, config) = served(&fixture);
    server.spoil(PackFault::Cut, 1);
    assert_eq!(names(&fixture.load(&config).await.unwrap()), ["task"]);
    assert!(server.requests().iter().any(|line| line == "POST /repo/.git/git-upload-pack"));
}

#[tokio::test]
async fn a_repository_that_arrives_cut_or_corrupt_is_refused_and_not_kept() {
    // A cut download is tried three times.
    for (fault, answers, reason) in
        [(PackFault::Cut, 3, "unexpected disconnect"), (PackFault::WrongByte, 1, "index-pack")]
    {
        let fixture = Fixture::new();
        let (server, config) = served(&fixture);
        server.spoil(fault, answers);
        let refused = fixture.refusal(&config).await;
        assert!(refused.contains("git cannot fetch from") && refused.contains(reason), "{refused}");
        let kept = files(&fixture.sources.cache_dir.join("git"));
        let is_objects = |path: &PathBuf| path.iter().any(|part| part == "repository" || part == "objects");
        assert!(!kept.iter().any(is_objects), "{kept:?}");
        assert_eq!(names(&fixture.load(&config).await.unwrap()), ["task"], "after {fault:?}");
    }
}

#[tokio::test]
async fn a_changed_file_of_a_fetched_task_is_replaced_and_refused_without_a_network() {
    let changes: [&dyn Fn(&Path); 3] =
        [&damage, &|path| fs::remove_file(path).unwrap(), &|path| fs::write(path, "").unwrap()];
    for change in changes {
        let fixture = Fixture::new();
        let (_server, config) = served(&fixture);
        let loaded = fixture.load(&config).await.unwrap();
        let file = loaded.tasks[0].task.as_ref().unwrap().dir.join("instruction.md");
        let expected = fs::read(&file).unwrap();
        change(&file);
        let refused = refusal(fixture.offline(&config).await);
        assert!(refused.contains(&format!("{} in the cache was changed", file.display())), "{refused}");
        assert!(refused.contains("with a network"), "{refused}");
        fixture.load(&config).await.unwrap();
        assert_eq!(fs::read(&file).unwrap(), expected);
        fixture.offline(&config).await.unwrap();
    }
}

#[tokio::test]
async fn a_fetched_task_with_other_times_is_used() {
    let fixture = Fixture::new();
    let (server, config) = served(&fixture);
    let loaded = fixture.load(&config).await.unwrap();
    for file in files(&loaded.tasks[0].task.as_ref().unwrap().dir) {
        fs::File::options().append(true).open(file).unwrap().set_modified(UNIX_EPOCH).unwrap();
    }
    let packs = || server.requests().iter().filter(|line| line.starts_with("POST")).count();
    let before = packs();
    fixture.offline(&config).await.unwrap();
    assert_eq!(packs(), before);
}

#[tokio::test]
async fn a_damaged_file_of_a_hub_is_downloaded_again_and_refused_without_a_network() {
    let changes: [&dyn Fn(&Path); 2] = [&damage, &|path| fs::write(path, "").unwrap()];
    for change in changes {
        let hub = HubServer::start();
        hub.publish("team/sums", false, &[("test.jsonl", &large())]);
        let fixture = Fixture::of(&hub, None);
        let config = questions("hf:team/sums", mapping());
        let loaded = fixture.load(&config).await.unwrap();
        let is_content =
            |path: &Path| path.parent().unwrap().ends_with("hub/files") && path.extension().is_none();
        let file = cached(&fixture, is_content);
        change(&file);
        let refused = refusal(fixture.offline(&config).await);
        let damaged = format!("the cached file {} is damaged", file.display());
        assert!(refused.contains(&damaged) && refused.contains("with a network"), "{refused}");
        assert_eq!(rows(&fixture.load(&config).await.unwrap()), rows(&loaded));
        assert_eq!(fs::read(&file).unwrap(), large());
        fixture.offline(&config).await.unwrap();
    }
}

#[tokio::test]
async fn changed_rows_are_converted_again() {
    let hub = HubServer::start();
    hub.publish("team/sums", false, &[("test.jsonl", &large())]);
    let fixture = Fixture::of(&hub, None);
    let config = questions("hf:team/sums", mapping());
    let loaded = fixture.load(&config).await.unwrap();
    let converted = cached(&fixture, |path| {
        path.parent().unwrap().ends_with("rows") && path.extension().unwrap() == "jsonl"
    });
    let expected = rows(&loaded);
    fs::write(&converted, "{\"question\": \"cut off").unwrap();
    assert_eq!(rows(&fixture.offline(&config).await.unwrap()), expected);
}

/// A registry file with one task beside it, which is on a git server.
fn published(fixture: &Fixture) -> PathBuf {
    let (server, _) = served(fixture);
    let task = json!({"name": "task", "git_url": server.url("repo/.git"), "path": "tasks/task"});
    let text = json!([{"name": "bench", "version": "1", "tasks": [task]}]).to_string();
    let root = fixture.dir.path().join("public");
    fs::write(root.join("registry.json"), text).unwrap();
    root
}

#[tokio::test]
async fn a_cut_registry_is_tried_again_and_else_refused_and_not_kept() {
    let fixture = Fixture::new();
    let root = published(&fixture);
    let config = dataset(json!({"name": "bench"}));
    let at = |server: &FileServer| [RegistryLocation::Url(server.url("registry.json"))];
    let fixture = fixture.registries(&at(&FileServer::cutting(&root, 100)));
    let refused = fixture.refusal(&config).await;
    assert!(refused.contains("cannot download the registry"), "{refused}");
    assert!(files(&fixture.sources.cache_dir.join("registries")).is_empty());
    let fixture = fixture.registries(&at(&FileServer::cutting(&root, 1)));
    assert_eq!(names(&fixture.load(&config).await.unwrap()), ["task"]);
}

#[tokio::test]
async fn a_damaged_registry_in_the_cache_is_named_and_downloaded_again() {
    let fixture = Fixture::new();
    let server = FileServer::new(published(&fixture));
    let fixture = fixture.registries(&[RegistryLocation::Url(server.url("registry.json"))]);
    let config = dataset(json!({"name": "bench"}));
    fixture.load(&config).await.unwrap();
    let kept = cached(&fixture, |path| path.parent().unwrap().ends_with("registries"));
    fs::write(&kept, "[{").unwrap();
    let refused = refusal(fixture.offline(&config).await);
    assert!(refused.contains(&*kept.to_string_lossy()) && refused.contains("is not JSON"), "{refused}");
    fixture.load(&config).await.unwrap();
    fixture.offline(&config).await.unwrap();
}

#[tokio::test]
async fn a_registry_behind_a_token_needs_the_token_which_is_not_kept() {
    let fixture = Fixture::new();
    let root = published(&fixture);
    let authorization: &'static str = basic_authorization("user", "secret-word").leak();
    let server = FileServer::guarded(&root, authorization);
    let config = dataset(json!({"name": "bench"}));
    let url = server.url("registry.json");
    let fixture = fixture.registries(&[RegistryLocation::Url(url.clone())]);
    let refused = fixture.refusal(&config).await;
    assert!(refused.contains("status 401"), "{refused}");
    let with_token = |password: &str| url.replace("http://", &format!("http://user:{password}@"));
    let fixture = fixture.registries(&[RegistryLocation::Url(with_token("wrong-word"))]);
    let refused = fixture.refusal(&config).await;
    assert!(refused.contains("status 401") && !refused.contains("wrong-word"), "{refused}");
    let fixture = fixture.registries(&[RegistryLocation::Url(with_token("secret-word"))]);
    let loaded = fixture.load(&config).await.unwrap();
    assert!(!format!("{:?}", loaded.resolved).contains("secret-word"));
    for file in files(&fixture.sources.cache_dir) {
        let text = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
        assert!(!text.contains("secret-word") && !file.to_string_lossy().contains("secret-word"), "{file:?}");
    }
    fixture.offline(&config).await.unwrap();
}
