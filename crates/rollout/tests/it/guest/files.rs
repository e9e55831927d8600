//! Files, both ways.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt, symlink},
    path::Path,
};

use rollout::environment::{CopyMode, EnvironmentError, FileRead, Outcome};

use super::support::{Container, copy_out};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn command(result: Result<impl std::fmt::Debug, EnvironmentError>, container: &Container) -> String {
    match result {
        Err(EnvironmentError::Command(reason)) => {
            reason.replace(&container.dir.path().display().to_string(), "[dir]")
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_tree_is_copied_in_and_out_unchanged() {
    let container = Container::start().await;
    let source = container.path("source");
    fs::create_dir_all(source.join("sub/empty")).unwrap();
    fs::write(source.join("sub/run.sh"), vec![7; 300_000]).unwrap();
    fs::set_permissions(source.join("sub/run.sh"), PermissionsExt::from_mode(0o750)).unwrap();
    fs::set_permissions(source.join("sub"), PermissionsExt::from_mode(0o711)).unwrap();
    fs::write(source.join("none"), "").unwrap();
    symlink("../none", source.join("sub/link")).unwrap();
    symlink("/nowhere", source.join("absolute")).unwrap();
    let inside = container.inside("made/for/it");
    container.guest.copy_to(&source, &inside, CopyMode::Merge).await.unwrap();
    let copy = Path::new(&inside);
    assert_eq!(fs::read(copy.join("sub/run.sh")).unwrap(), vec![7; 300_000]);
    assert_eq!((mode(&copy.join("sub/run.sh")), mode(&copy.join("sub"))), (0o750, 0o711));
    assert_eq!(fs::read_link(copy.join("absolute")).unwrap(), Path::new("/nowhere"));
    let times = |path: &Path| fs::metadata(path).unwrap().mtime_nsec();
    assert_eq!(times(&copy.join("none")), times(&source.join("none")));

    let out = container.path("out");
    let report = container.guest.copy_from(copy_out(&inside, &out)).await.unwrap();
    assert_eq!(report.skipped, ["absolute: it is a link that leads out of the copied directory"]);
    assert_eq!(fs::read(out.join("sub/run.sh")).unwrap(), vec![7; 300_000]);
    assert_eq!(fs::read_link(out.join("sub/link")).unwrap(), Path::new("../none"));
    assert!(out.join("sub/empty").is_dir());
}

#[tokio::test]
async fn a_copy_adds_to_what_is_there_or_takes_its_place() {
    let container = Container::start().await;
    let source = container.path("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("new"), "new").unwrap();
    let target = container.path("target");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("old"), "old").unwrap();
    symlink("old", target.join("new")).unwrap();
    let inside = container.inside("target");
    container.guest.copy_to(&source, &inside, CopyMode::Merge).await.unwrap();
    assert_eq!(fs::read(target.join("old")).unwrap(), b"old");
    assert_eq!(fs::read(target.join("new")).unwrap(), b"new");
    container.guest.copy_to(&source, &inside, CopyMode::Replace).await.unwrap();
    assert!(!target.join("old").exists());
}

#[tokio::test]
async fn one_file_is_copied_in_and_replaces_anything() {
    let container = Container::start().await;
    let source = container.path("source");
    fs::write(&source, "content").unwrap();
    let target = container.path("target");
    fs::create_dir_all(target.join("full/of/things")).unwrap();
    container.guest.copy_to(&source, &container.inside("target"), CopyMode::Replace).await.unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"content");
    let link = container.path("link");
    symlink("target", &link).unwrap();
    container.guest.write_file(&container.inside("link"), b"script").await.unwrap();
    assert_eq!((fs::read(&link).unwrap(), mode(&link)), (b"script".to_vec(), 0o755));
    assert_eq!(fs::read(&target).unwrap(), b"content");
}

#[tokio::test]
async fn a_planted_fifo_blocks_nothing() {
    let container = Container::start().await;
    container.bash("mkfifo fifo; mkdir logs; mkfifo logs/fifo; mknod logs/null c 1 3; echo x > logs/x").await;
    container.guest.write_file(&container.inside("fifo"), b"script").await.unwrap();
    assert!(fs::metadata(container.path("fifo")).unwrap().is_file());
    let report =
        container.guest.copy_from(copy_out(&container.inside("logs"), &container.path("out"))).await.unwrap();
    let mut skipped = report.skipped;
    skipped.sort();
    assert_eq!(skipped, ["fifo: it is a FIFO", "null: it is a device"]);
    let read = container.guest.read_file(&container.inside("logs/fifo"), 10).await.unwrap();
    assert_eq!(read, FileRead::NotRegular);
}

#[tokio::test]
async fn a_device_or_fifo_of_the_host_is_not_copied_in() {
    let container = Container::start().await;
    container.bash("mkdir -p source/sub; mkfifo source/sub/fifo").await;
    let sent =
        container.guest.copy_to(&container.path("source"), &container.inside("t"), CopyMode::Merge).await;
    insta::assert_snapshot!(command(sent, &container), @"[dir]/source/sub/fifo is not a file, directory or link, and cannot be copied into an environment");
    let fifo = container.path("source/sub/fifo");
    assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
    let sent = container.guest.copy_to(&fifo, &container.inside("t"), CopyMode::Merge).await;
    insta::assert_snapshot!(command(sent, &container), @"[dir]/source/sub/fifo is not a file, directory or link, and cannot be copied into an environment");
    assert_eq!(container.bash("echo alive").await.text(), "alive\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_can_be_made_from_any_thread() {
    let container = std::sync::Arc::new(Container::start().await);
    let calls = (0..8).map(|number| {
        let container = std::sync::Arc::clone(&container);
        tokio::spawn(async move {
            let name = format!("file-{number}");
            let inside = container.inside(&name);
            container.guest.write_file(&inside, &vec![number; 1_000_000]).await.unwrap();
            let copy = container.inside(&format!("copy-{number}"));
            container.guest.copy_to(&container.path(&name), &copy, CopyMode::Replace).await.unwrap();
            let out = container.path(&format!("out-{number}"));
            container.guest.copy_from(copy_out(&copy, &out)).await.unwrap();
            fs::read(out.join(format!("copy-{number}"))).unwrap() == vec![number; 1_000_000]
        })
    });
    for call in calls.collect::<Vec<_>>() {
        assert!(call.await.unwrap());
    }
}

#[tokio::test]
async fn files_of_the_host_are_kept() {
    let container = Container::start().await;
    container.bash("mkdir logs; echo theirs > logs/a; echo theirs > logs/b; mkfifo logs/c").await;
    let out = container.path("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("a"), "ours").unwrap();
    fs::write(out.join("c"), "ours").unwrap();
    let report = container.guest.copy_from(copy_out(&container.inside("logs"), &out)).await.unwrap();
    assert_eq!(report.skipped, Vec::<String>::new());
    assert_eq!(fs::read(out.join("a")).unwrap(), b"ours");
    assert_eq!(fs::read(out.join("b")).unwrap(), b"theirs\n");
}

#[tokio::test]
async fn one_file_comes_out_under_its_name() {
    let container = Container::start().await;
    container.bash("echo text > file").await;
    container.guest.copy_from(copy_out(&container.inside("file"), &container.path("out"))).await.unwrap();
    assert_eq!(fs::read(container.path("out/file")).unwrap(), b"text\n");
}

#[tokio::test]
async fn a_file_that_is_too_large_and_one_that_grows_are_bounded() {
    let container = Container::start().await;
    let script = "mkdir logs; truncate -s 300M logs/large; (while true; do echo more; done > logs/grows) & \
                  while [ ! -s logs/grows ]; do sleep 0.01; done; rm -f /dev/null/x";
    container.bash(script).await;
    let report =
        container.guest.copy_from(copy_out(&container.inside("logs"), &container.path("out"))).await.unwrap();
    assert_eq!(
        report.skipped,
        ["large: it has 314572800 bytes; only 268435456 bytes of its start and end are kept"]
    );
    assert!(container.path("out/grows").exists());
    container.guest.kill_all().await.unwrap();
}

#[tokio::test]
async fn a_tree_without_end_is_bounded() {
    let container = Container::start().await;
    let script = "mkdir logs; cd logs; for i in $(seq 300); do mkdir d; cd d 2> /dev/null || break; done";
    assert_eq!(container.bash(script).await.exit.outcome, Outcome::Code(0));
    let report =
        container.guest.copy_from(copy_out(&container.inside("logs"), &container.path("out"))).await.unwrap();
    assert_eq!(report.skipped.len(), 1);
    assert!(report.skipped[0].ends_with("d: it is nested too deeply"), "{:?}", report.skipped);
    container.guest.make_dirs(&[&container.inside("logs")], true).await.unwrap();
    assert_eq!(fs::read_dir(container.path("logs")).unwrap().count(), 0);
}

#[tokio::test]
async fn files_are_read_whole_or_not_at_all() {
    let container = Container::start().await;
    let guest = &container.guest;
    fs::write(container.path("file"), vec![1; 100_000]).unwrap();
    symlink("file", container.path("link")).unwrap();
    let read = async |name: &str, max| guest.read_file(&container.inside(name), max).await.unwrap();
    assert_eq!(read("file", 100_000).await, FileRead::Content(vec![1; 100_000]));
    assert_eq!(read("file", 99_999).await, FileRead::TooLarge(100_000));
    assert_eq!(read("none", 10).await, FileRead::Missing);
    assert_eq!(read("no/such/directory", 10).await, FileRead::Missing);
    assert_eq!(read("link", 10).await, FileRead::NotRegular);
    assert_eq!(read("", 10).await, FileRead::NotRegular);
}

#[tokio::test]
async fn directories_are_made_for_everybody_and_emptied() {
    let container = Container::start().await;
    let guest = &container.guest;
    let inside = container.inside("a/b");
    guest.make_dirs(&[&inside, &container.inside("c")], false).await.unwrap();
    assert_eq!((mode(&container.path("a/b")), mode(&container.path("a"))), (0o777, 0o755));
    fs::write(container.path("a/b/file"), "").unwrap();
    guest.make_dirs(&[&inside], false).await.unwrap();
    assert!(container.path("a/b/file").exists());
    guest.make_dirs(&[&inside], true).await.unwrap();
    assert!(!container.path("a/b/file").exists());
    // A link to elsewhere is taken away, and not what it leads to.
    fs::remove_dir(container.path("a/b")).unwrap();
    fs::write(container.path("c/kept"), "").unwrap();
    symlink("../c", container.path("a/b")).unwrap();
    guest.make_dirs(&[&inside], true).await.unwrap();
    assert!(fs::symlink_metadata(container.path("a/b")).unwrap().is_dir());
    assert!(container.path("c/kept").exists());
}

#[tokio::test]
async fn a_mount_point_is_emptied_in_its_place() {
    let container = Container::start().await;
    let script = "mkdir logs; mount -t tmpfs none logs; mkdir -p logs/a/b; touch logs/a/b/c logs/d";
    assert_eq!(container.bash(script).await.exit.outcome, Outcome::Code(0));
    container.guest.make_dirs(&[&container.inside("logs")], true).await.unwrap();
    assert_eq!(container.bash("ls -A logs; mountpoint -q logs && stat -c %a logs").await.text(), "777\n");
}

#[tokio::test]
async fn links_replace_links_only() {
    let container = Container::start().await;
    let guest = &container.guest;
    guest.link("/one", &container.inside("dir/link")).await.unwrap();
    guest.link("/two", &container.inside("dir/link")).await.unwrap();
    assert_eq!(fs::read_link(container.path("dir/link")).unwrap(), Path::new("/two"));
    fs::write(container.path("file"), "kept").unwrap();
    guest.link("/two", &container.inside("file")).await.unwrap();
    assert_eq!(fs::read(container.path("file")).unwrap(), b"kept");
}

#[tokio::test]
async fn failures_name_the_path_and_the_cause() {
    let container = Container::start().await;
    let guest = &container.guest;
    let script = "mkdir ro; mount -t tmpfs -o ro none ro; echo > file; mkdir full; mount -t tmpfs -o size=4k none full";
    assert_eq!(container.bash(script).await.exit.outcome, Outcome::Code(0));
    let mut reasons = String::new();
    let mut note = |reason: String| {
        reasons.push_str(&reason);
        reasons.push('\n');
    };
    note(command(guest.write_file(&container.inside("ro/script"), b"").await, &container));
    note(command(guest.write_file(&container.inside("ro/sub/script"), b"").await, &container));
    note(command(guest.make_dirs(&[&container.inside("ro/sub")], true).await, &container));
    note(command(guest.write_file(&container.inside("file/script"), b"").await, &container));
    note(command(guest.write_file(&container.inside("full/script"), &[1; 200_000]).await, &container));
    note(command(guest.write_file("/proc/sys/kernel/hostname", b"x").await, &container));
    note(command(guest.write_file("/", b"x").await, &container));
    note(command(
        guest.copy_from(copy_out(&container.inside("none"), &container.path("out"))).await,
        &container,
    ));
    insta::assert_snapshot!(reasons, @"
    replacing [dir]/ro/script in the environment failed: Read-only file system (os error 30)
    creating the parents of [dir]/ro/sub/script in the environment failed: Read-only file system (os error 30)
    emptying [dir]/ro/sub in the environment failed: Read-only file system (os error 30)
    opening [dir]/file/script in the environment failed: Not a directory (os error 20)
    writing [dir]/full/script in the environment failed: No space left on device (os error 28)
    /proc/sys/kernel/hostname is in a kernel file system, which is not part of the environment
    changing / in the environment failed: Device or resource busy (os error 16)
    opening [dir]/none in the environment failed: No such file or directory (os error 2)
    ");
    assert_eq!(container.bash("echo alive").await.text(), "alive\n");
}

#[tokio::test]
async fn a_missing_source_of_the_host_is_the_hosts_trouble() {
    let container = Container::start().await;
    let sent = container.guest.copy_to(&container.path("none"), "/x", CopyMode::Merge).await;
    assert!(matches!(sent, Err(EnvironmentError::Lost(reason)) if reason.contains("No such file")));
}

#[tokio::test]
async fn a_tree_that_changes_all_the_time_is_copied_without_harm() {
    let container = Container::start().await;
    let script = "mkdir logs; (cd logs; while true; do mkdir d; echo x > d/f; ln -s /etc d/l; rm -rf d; \
                  ln -s /etc d; rm -f d; mkfifo d; rm -f d; done > /dev/null 2>&1) &";
    container.bash(script).await;
    for round in 0..30 {
        let out = container.path(&format!("out-{round}"));
        container.guest.copy_from(copy_out(&container.inside("logs"), &out)).await.unwrap();
        assert!(!out.join("d/passwd").exists());
    }
    container.guest.kill_all().await.unwrap();
}
