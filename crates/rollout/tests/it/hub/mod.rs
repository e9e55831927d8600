//! Pushes to a hub on loopback, with all that can go wrong on the way.

mod faults;
mod generate;

use std::{fs, path::Path};

use rollout::hub::{Hub, HubError, Push, Pushed};
use rollout_testkit::HubServer;
use tempfile::TempDir;

const REPO: &str = "tester/results";

fn hub(server: &HubServer) -> Hub {
    Hub::new(server.url(), HubServer::TOKEN).unwrap()
}

async fn push(server: &HubServer, repo: &str, dir: &Path) -> Result<Pushed, HubError> {
    let push = Push::directory(repo.parse().unwrap(), dir).await?;
    hub(server).push(&push, &mut |_| {}).await
}

/// A small file, an empty one, and two large ones of the same content.
fn files() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("trials.csv"), "a,b\n").unwrap();
    fs::write(dir.path().join("sub/empty"), "").unwrap();
    let large: Vec<u8> = (0..2500u32).map(|number| (number % 251) as u8).collect();
    fs::write(dir.path().join("sub/ü.bin"), &large).unwrap();
    fs::write(dir.path().join("same.bin"), &large).unwrap();
    dir
}

#[track_caller]
fn check(server: &HubServer, repo: &str, dir: &Path) {
    let there = server.files(repo);
    for name in ["trials.csv", "sub/empty", "sub/ü.bin", "same.bin"] {
        assert_eq!(there[name], fs::read(dir.join(name)).unwrap(), "{name}");
    }
    assert!(there.contains_key("README.md"));
    assert_eq!(server.leaks(), 0, "the token is for the hub alone");
}

fn requests(server: &HubServer, part: &str) -> usize {
    server.requests().iter().filter(|line| line.contains(part)).count()
}

#[tokio::test]
async fn all_files_arrive_and_unchanged_ones_are_sent_once() {
    let (server, dir) = (HubServer::start(), files());
    let pushed = push(&server, REPO, dir.path()).await.unwrap();
    check(&server, REPO, dir.path());
    assert_eq!(pushed.url, format!("{}/datasets/tester/results", server.url()));
    assert_eq!((pushed.changed, pushed.unchanged), (4, 0));
    assert_eq!(requests(&server, "storage PUT"), 1);
    assert_eq!(server.commits(REPO), ["initial commit", "Add results of Rollout"]);
    assert_eq!(server.is_private(REPO), Some(false));
}

#[tokio::test]
async fn a_second_push_of_the_same_files_changes_nothing() {
    let (server, dir) = (HubServer::start(), files());
    push(&server, REPO, dir.path()).await.unwrap();
    let pushed = push(&server, REPO, dir.path()).await.unwrap();
    assert_eq!((pushed.changed, pushed.unchanged, pushed.commit), (0, 4, None));
    assert_eq!(server.commits(REPO).len(), 2);
    fs::write(dir.path().join("trials.csv"), "a,c\n").unwrap();
    let pushed = push(&server, REPO, dir.path()).await.unwrap();
    assert_eq!((pushed.changed, pushed.unchanged), (1, 3));
    check(&server, REPO, dir.path());
}

#[tokio::test]
async fn large_files_are_sent_in_parts_where_the_hub_wants_that() {
    let (server, dir) = (HubServer::start().parts_of(1000), files());
    push(&server, REPO, dir.path()).await.unwrap();
    check(&server, REPO, dir.path());
    assert_eq!(requests(&server, "storage PUT"), 3);
}

#[tokio::test]
async fn an_existing_card_is_kept() {
    let (server, dir) = (HubServer::start(), files());
    fs::write(dir.path().join("README.md"), "mine").unwrap();
    push(&server, REPO, dir.path()).await.unwrap();
    fs::remove_file(dir.path().join("README.md")).unwrap();
    fs::write(dir.path().join("trials.csv"), "other").unwrap();
    push(&server, REPO, dir.path()).await.unwrap();
    assert_eq!(server.files(REPO)["README.md"], "mine");
}

#[tokio::test]
async fn a_name_without_owner_belongs_to_the_owner_of_the_token() {
    let (server, dir) = (HubServer::start(), files());
    assert_eq!(hub(&server).whoami().await.unwrap(), "tester");
    push(&server, "results", dir.path()).await.unwrap();
    check(&server, REPO, dir.path());
    push(&server, "team/results", dir.path()).await.unwrap();
    check(&server, "team/results", dir.path());
    let error = push(&server, "stranger/results", dir.path()).await.unwrap_err();
    insta::assert_snapshot!(error, @"the token belongs to `tester`, who cannot write to datasets of `stranger`");
}

#[tokio::test]
async fn private_results_are_never_pushed_to_a_public_dataset() {
    let (server, dir) = (HubServer::start(), files());
    let private = Push::directory("results".parse().unwrap(), dir.path()).await.unwrap().private(true);
    hub(&server).push(&private, &mut |_| {}).await.unwrap();
    assert_eq!(server.is_private(REPO), Some(true));

    let public = Push::directory("open".parse().unwrap(), dir.path()).await.unwrap();
    hub(&server).push(&public, &mut |_| {}).await.unwrap();
    let before = server.commits("tester/open").len();
    let error = hub(&server).push(&public.private(true), &mut |_| {}).await.unwrap_err();
    assert!(matches!(error, HubError::Public(_)), "{error}");
    assert_eq!(server.commits("tester/open").len(), before);
}

#[tokio::test]
async fn many_files_make_several_commits() {
    let (server, dir) = (HubServer::start(), tempfile::tempdir().unwrap());
    for number in 0..2_050 {
        fs::write(dir.path().join(format!("{number:04}.json")), "{}").unwrap();
    }
    let pushed = push(&server, REPO, dir.path()).await.unwrap();
    assert_eq!(pushed.changed, 2_050);
    assert_eq!((server.commits(REPO).len(), server.files(REPO).len()), (3, 2_052));
}
