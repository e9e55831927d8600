//! Copying files in and out of a sandbox, also hostile ones.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

use crate::common::{Host, copy_out, out, sh};
use rollout_sandbox::{CopyError, CopyIn, CopyLimits, FileLookup, RunningSandbox};

const LIMITS: CopyLimits = CopyLimits { bytes: 1 << 20, entries: 1000, file_bytes: 1 << 19 };

async fn content(sandbox: &RunningSandbox, path: &str) -> String {
    match sandbox.read_file(path, 1 << 20).await.unwrap() {
        FileLookup::File(bytes) => String::from_utf8(bytes).unwrap(),
        other => panic!("{path}: {other:?}"),
    }
}

#[tokio::test]
async fn a_tree_lands_in_the_target_with_modes_and_links() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let source = tempfile::tempdir().unwrap();
    fs::create_dir_all(source.path().join("a/b")).unwrap();
    fs::write(source.path().join("a/b/run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(source.path().join("a/b/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("b/run.sh", source.path().join("a/link")).unwrap();
    sandbox.copy_in(source.path(), "/deep/new/place", CopyIn::default()).await.unwrap();
    assert_eq!(
        out(&sandbox, "/deep/new/place/a/link; readlink /deep/new/place/a/link").await,
        "ran\nb/run.sh\n"
    );
    assert_eq!(out(&sandbox, "stat -c '%U %a' /deep/new/place/a/b/run.sh").await, "root 755\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_file_replaces_a_link_instead_of_writing_through_it() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let source = tempfile::NamedTempFile::new().unwrap();
    fs::write(source.path(), "new").unwrap();
    out(&sandbox, "mkdir /t; echo old > /t/victim; ln -s victim /t/file").await;
    sandbox.copy_in(source.path(), "/t/file", CopyIn::default()).await.unwrap();
    assert_eq!(content(&sandbox, "/t/victim").await, "old\n");
    assert_eq!(content(&sandbox, "/t/file").await, "new");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn replacing_removes_what_was_there() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let source = tempfile::tempdir().unwrap();
    fs::write(source.path().join("new"), "").unwrap();
    out(&sandbox, "mkdir -p /tests/old/deep; ln -s /etc /tests/link").await;
    sandbox.copy_in(source.path(), "/tests", CopyIn { replace: true }).await.unwrap();
    assert_eq!(out(&sandbox, "ls -A /tests; test -d /etc").await, "new\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_link_as_the_source_is_rejected() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let dir = tempfile::tempdir().unwrap();
    symlink("/root", dir.path().join("link")).unwrap();
    let error = sandbox.copy_in(&dir.path().join("link"), "/x", CopyIn::default()).await.unwrap_err();
    assert!(matches!(error, CopyError::Host { .. }), "{error:?}");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn the_host_cannot_be_reached_by_links_to_open_descriptors() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let source = tempfile::tempdir().unwrap();
    fs::create_dir(source.path().join("dir")).unwrap();
    fs::write(source.path().join("dir/file"), "mine").unwrap();
    out(&sandbox, "mkdir /t /logs; for fd in $(seq 0 40); do ln -s /proc/self/fd/$fd /t/$fd; done; ln -s /proc/self/fd /logs/fd").await;
    for fd in 0..=40 {
        let target = format!("/t/{fd}/dir");
        assert!(sandbox.copy_in(source.path(), &target, CopyIn::default()).await.is_err(), "{target}");
        assert!(sandbox.make_dir(&target, 0o755, true).await.is_err(), "{target}");
    }
    assert_eq!(fs::read_to_string(source.path().join("dir/file")).unwrap(), "mine");
    assert_eq!(fs::read_dir(source.path()).unwrap().count(), 1);
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_link_to_kernel_files_is_rejected() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    out(&sandbox, "ln -s /proc/1 /logs; ln -s /sys/kernel /kernel").await;
    for source in ["/logs", "/kernel", "/proc", "/proc/1/environ"] {
        let error = copy_out(&sandbox, source, LIMITS).await.unwrap_err();
        assert!(matches!(error, CopyError::Forbidden { .. }), "{source}: {error:?}");
    }
    let error = sandbox.read_file("/logs/environ", 100).await.unwrap_err();
    assert!(matches!(error, CopyError::Forbidden { .. }), "{error:?}");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn copying_out_skips_and_reports_links_that_leave_the_directory() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let script = "mkdir -p /logs/sub; cd /logs; echo fine > sub/file; chmod 4755 sub/file; mkfifo pipe
        ln -s /etc/passwd absolute; ln -s ../../x climbing; ln -s sub/../.. tricky; ln -s sub/file inside
        printf x > $(printf 'bad\\377name')";
    out(&sandbox, script).await;
    let copied = copy_out(&sandbox, "/logs", LIMITS).await.unwrap();
    insta::assert_snapshot!(copied.skipped.join("\n"), @r"
    absolute: it is a link that leads out of the copied directory
    climbing: it is a link that leads out of the copied directory
    pipe: it is a FIFO
    tricky: it is a link that leads out of the copied directory
    ");
    assert_eq!(copied.entries, ["bad\u{fffd}name 644", "inside -> sub/file", "sub/ 755", "sub/file 755"]);
    assert_eq!(copied.bytes.len(), 6);
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn copying_out_stops_at_its_limits() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    out(&sandbox, "mkdir /many; cd /many; for i in $(seq 50); do echo $i > $i; done").await;
    let copied = copy_out(&sandbox, "/many", CopyLimits { entries: 10, ..LIMITS }).await.unwrap();
    assert_eq!((copied.entries.len(), copied.skipped.len()), (10, 1));
    out(&sandbox, "mkdir /big; cd /big; for i in $(seq 5); do head -c 1000 /dev/zero > $i; done").await;
    let copied = copy_out(&sandbox, "/big", CopyLimits { bytes: 2500, ..LIMITS }).await.unwrap();
    assert_eq!((copied.bytes.len(), copied.skipped.len()), (2000, 3));
    out(&sandbox, "mkdir /links; cd /links; for i in $(seq 1200); do ln -s / $i; done").await;
    let copied = copy_out(&sandbox, "/links", CopyLimits { entries: 2000, ..LIMITS }).await.unwrap();
    assert_eq!(copied.skipped.len(), 1001);
    assert!(copied.skipped.contains(&": and 200 more entries were left out".to_owned()));
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_very_deep_tree_is_cut_off_and_can_still_be_removed() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    out(&sandbox, "mkdir /logs; cd /logs; for i in $(seq 300); do mkdir d; cd d; done").await;
    let limits = CopyLimits { entries: 10_000, ..LIMITS };
    let copied = copy_out(&sandbox, "/logs", limits).await.unwrap();
    assert!(copied.skipped[0].ends_with(": it is nested too deeply"), "{:?}", copied.skipped);
    sandbox.make_dir("/logs", 0o755, true).await.unwrap();
    assert_eq!(out(&sandbox, "ls -A /logs").await, "");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn reading_accepts_only_regular_files() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    out(&sandbox, "cd /tmp; echo 1 > file; mkfifo pipe; mkdir dir; ln -s file link; truncate -s 5000 big")
        .await;
    let read = async |path: &str| sandbox.read_file(path, 1000).await.unwrap();
    assert_eq!(read("/tmp/file").await, FileLookup::File(b"1\n".to_vec()));
    assert_eq!(read("/tmp/nothing").await, FileLookup::Missing);
    assert_eq!(read("/tmp/nothing/deeper").await, FileLookup::Missing);
    assert_eq!(read("/tmp/file/deeper").await, FileLookup::Missing);
    for path in ["/tmp/pipe", "/tmp/dir", "/tmp/link", "/dev/zero"] {
        assert_eq!(read(path).await, FileLookup::NotRegular, "{path}");
    }
    assert_eq!(read("/tmp/big").await, FileLookup::TooLarge(5000));
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn an_emptied_directory_is_new_whatever_was_there() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    out(&sandbox, "mkdir -p /logs /real; touch /real/file; ln -s /real /logs/verifier").await;
    sandbox.make_dir("/logs/verifier", 0o777, true).await.unwrap();
    assert_eq!(out(&sandbox, "stat -c '%F %a' /logs/verifier; ls /real").await, "directory 777\nfile\n");
    out(&sandbox, "mkdir -p /logs/verifier/a/b; touch /logs/verifier/a/b/c; chmod -R 0 /logs/verifier").await;
    sandbox.make_dir("/logs/verifier", 0o755, true).await.unwrap();
    assert_eq!(out(&sandbox, "ls -A /logs/verifier").await, "");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_link_is_replaced_but_a_directory_is_not() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    out(&sandbox, "mkdir /solution; touch /solution/mine; ln -s /nowhere /tests").await;
    sandbox.symlink("/oracle", "/solution").await.unwrap();
    sandbox.symlink("/etc", "/tests").await.unwrap();
    assert_eq!(out(&sandbox, "ls /solution; readlink /tests").await, "mine\n/etc\n");
    sandbox.remove("/solution").await.unwrap();
    sandbox.remove("/tests").await.unwrap();
    assert_eq!(sh(&sandbox, "ls -d /solution /tests").await.stdout, "");
    assert_eq!(out(&sandbox, "test -e /etc/passwd && echo there").await, "there\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_file_too_large_for_memory_streams_through() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let dir = tempfile::tempdir().unwrap();
    let size: u64 = 64 << 20;
    fs::File::create(dir.path().join("big")).unwrap().set_len(size).unwrap();
    sandbox.copy_in(&dir.path().join("big"), "/big", CopyIn::default()).await.unwrap();
    let limits = CopyLimits { bytes: size, entries: 1, file_bytes: size };
    let copied = copy_out(&sandbox, "/big", limits).await.unwrap();
    assert_eq!(copied.bytes.len() as u64, size);
    sandbox.destroy().await.unwrap();
}
