//! Files that are watched, and processes that are held meanwhile.

use std::{fs, path::Path};

use rollout::environment::{FileChange, FileChangeKind as Kind};

use super::support::{Container, until};

/// A directory with a test, and one where a reward is expected.
async fn watched(container: &Container) -> [String; 2] {
    let (tests, verifier) = (container.path("tests"), container.path("verifier"));
    fs::create_dir_all(tests.join("data")).unwrap();
    fs::create_dir_all(&verifier).unwrap();
    fs::write(tests.join("test.sh"), "original").unwrap();
    fs::write(tests.join("data/answer"), "42").unwrap();
    let reward = container.inside("verifier/reward.txt");
    container.guest.watch(&container.inside("tests"), &[&reward]).await.unwrap();
    [container.inside("tests/test.sh"), reward]
}

/// What was done to which file, by its name alone.
async fn changes(container: &Container) -> Vec<(String, Kind)> {
    container.guest.kill_all().await.unwrap();
    let changes = container.guest.changes().await.unwrap();
    let named = |FileChange { path, kind, .. }: FileChange| {
        let name = Path::new(&path).strip_prefix(container.dir.path()).unwrap_or(Path::new(&path));
        (name.display().to_string(), kind)
    };
    changes.into_iter().map(named).collect()
}

async fn changes_of(script: &str) -> Vec<(String, Kind)> {
    let container = Container::start().await;
    let [test, reward] = watched(&container).await;
    container.bash(&format!("T={test} R={reward} D={}\n{script}", container.dir.path().display())).await;
    changes(&container).await
}

fn one(path: &str, kind: Kind) -> (String, Kind) {
    (path.to_owned(), kind)
}

#[tokio::test]
async fn reads_and_mode_changes_are_not_reported() {
    let script = "cat $T $D/tests/data/answer; chmod 700 $T; touch $D/verifier/log; ls -R $D";
    assert_eq!(changes_of(script).await, []);
}

#[tokio::test]
async fn names_that_are_added_to_the_tree_are_reported_once() {
    let script = "touch $D/new $D/tests/new $D/tests/data/x; mkdir $D/tests/more; touch $D/tests/more/y
        mv $D/new $D/tests/moved; rm $D/tests/new; touch $D/tests/new";
    let expected =
        ["tests/data/x", "tests/more", "tests/moved", "tests/new"].map(|path| one(path, Kind::Added));
    assert_eq!(changes_of(script).await, expected);
    // Their number is limited, because a process inside could add millions.
    let many = changes_of("for ((n = 0; n < 200; n++)); do touch $D/tests/$n; done").await;
    assert_eq!(many.len(), 100);
}

#[tokio::test]
async fn a_file_that_is_edited_and_restored_is_written() {
    let script = "echo forged > $T; printf original > $T";
    assert_eq!(changes_of(script).await, [one("tests/test.sh", Kind::Written)]);
}

#[tokio::test]
async fn a_file_that_is_written_by_another_name_is_written() {
    let script = "ln $T $D/other; printf original > $D/other; rm $D/other";
    assert_eq!(changes_of(script).await, [one("tests/test.sh", Kind::Written)]);
}

#[tokio::test]
async fn a_file_that_is_held_open_for_writing_is_written_when_its_holder_is_killed() {
    let script = "(exec 3>> $T; exec sleep 600) > /dev/null 2>&1 & until ls -l /proc/*/fd 2>&1 | grep -q $T; do :; done";
    assert_eq!(changes_of(script).await, [one("tests/test.sh", Kind::Written)]);
}

#[tokio::test]
async fn a_directory_that_is_moved_away_and_back_is_removed_and_replaced() {
    let script = "mv $D/tests $D/hidden; mv $D/hidden $D/tests";
    assert_eq!(changes_of(script).await, [one("tests", Kind::Replaced), one("tests", Kind::Removed)]);
    let script = "mv $D/tests/data $D/hidden; mv $D/hidden $D/tests/data";
    assert_eq!(
        changes_of(script).await,
        [one("tests/data", Kind::Replaced), one("tests/data", Kind::Removed)]
    );
}

#[tokio::test]
async fn a_reward_that_is_expected_is_created_and_written() {
    let container = Container::start().await;
    let [_, reward] = watched(&container).await;
    container.bash(&format!("echo 1 > {reward}")).await;
    container.guest.kill_all().await.unwrap();
    let changes = container.guest.changes().await.unwrap();
    // Whether it is also seen by the file itself depends on how soon that was watched.
    let changes: Vec<_> =
        changes.into_iter().filter(|change| change.kind != Kind::WrittenByAnyName).collect();
    let expected =
        [Kind::Created, Kind::Written].map(|kind| FileChange { path: reward.clone(), kind, count: 1 });
    assert_eq!(changes, expected);
}

#[tokio::test]
async fn a_reward_that_has_another_name_is_linked() {
    // The kernel lists what the guest watches, so that the second write comes when the guest watches the file.
    let script = "watches() { cat /proc/1/fdinfo/* 2> /dev/null | grep -c ^inotify; }
        before=$(watches); echo 1 > $D/other; ln $D/other $R
        until [ $(watches) -gt $before ]; do :; done; echo 1 > $D/other";
    let found = changes_of(script).await;
    let kinds: Vec<Kind> = found.into_iter().map(|(_, kind)| kind).collect();
    assert_eq!(kinds, [Kind::Created, Kind::WrittenByAnyName, Kind::Linked]);
}

#[tokio::test]
async fn nothing_is_watched_any_more_after_the_changes_were_asked_for() {
    let container = Container::start().await;
    let [test, _] = watched(&container).await;
    assert_eq!(changes(&container).await, []);
    container.bash(&format!("echo forged > {test}")).await;
    assert_eq!(changes(&container).await, []);
}

#[tokio::test]
async fn a_path_over_a_link_is_not_watched() {
    let container = Container::start().await;
    fs::create_dir_all(container.path("real/tests")).unwrap();
    std::os::unix::fs::symlink("real", container.path("link")).unwrap();
    let tree = container.inside("link/tests");
    let refused = container.guest.watch(&tree, &[]).await.unwrap_err().to_string();
    assert!(refused.ends_with("/link: it is not a directory"), "{refused}");
}

#[tokio::test]
async fn processes_that_are_held_go_on_with_the_watch() {
    let container = Container::start().await;
    container.bash("(while sleep 0.01; do date +%N > ticks; done) > /dev/null 2>&1 &").await;
    let ticks = || fs::read_to_string(container.path("ticks")).unwrap_or_default();
    until(async || !ticks().is_empty()).await;
    container.guest.hold().await.unwrap();
    let held = ticks();
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(ticks(), held);
    watched(&container).await;
    until(async || ticks() != held).await;
}
