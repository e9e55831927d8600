//! Copying files into an environment and out of it, with calls to the environment itself.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::{
    fs,
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    sync::LazyLock,
};

use rollout::{
    environment::{CopyMode, CopyOut, EnvironmentError, FileRead},
    record::redact::Redactor,
};

use super::{Inside, Suite};
use crate::TestTask;

/// A directory of the host to copy: files with several modes, links, an empty directory.
fn host_tree(inside: &Inside) -> PathBuf {
    let dir = inside.scratch().join("tree");
    fs::create_dir_all(dir.join("deep/empty")).unwrap();
    for (path, mode) in [("script", 0o755), ("data", 0o640), ("deep/secret", 0o400)] {
        fs::write(dir.join(path), format!("{path}\n")).unwrap();
        fs::set_permissions(dir.join(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    symlink("data", dir.join("link")).unwrap();
    symlink("/nowhere/at/all", dir.join("dangling")).unwrap();
    dir
}

const LIST: &str = "find . -mindepth 1 -printf '%y %P %m %l\\n' | sort";

pub fn a_directory_is_copied_with_its_modes_and_links(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let tree = host_tree(inside);
        inside.environment().copy_to(&tree, "/made/on/the/way", CopyMode::Merge).await.unwrap();
        let found = inside.bash(&format!("cd /made/on/the/way; {LIST}; stat -c %u:%g script deep")).await;
        assert_eq!(
            found,
            "d deep 755 \nd deep/empty 755 \nf data 640 \nf deep/secret 400 \nf script 755 \n\
             l dangling 777 /nowhere/at/all\nl link 777 data\n0:0\n0:0\n"
        );
        assert_eq!(inside.bash("cat /made/on/the/way/link").await, "data\n");
    });
}

pub fn a_merge_keeps_existing_files_and_a_replacement_does_not(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let environment = inside.environment();
        let tree = host_tree(inside);
        inside.bash("mkdir /target; echo old > /target/old; echo old > /target/data").await;
        environment.copy_to(&tree, "/target", CopyMode::Merge).await.unwrap();
        assert_eq!(inside.bash("cd /target; cat old data").await, "old\ndata\n");
        environment.copy_to(&tree, "/target", CopyMode::Replace).await.unwrap();
        assert_eq!(
            inside.bash("cd /target; ls; cat data").await,
            "dangling\ndata\ndeep\nlink\nscript\ndata\n"
        );
    });
}

pub fn a_copy_replaces_links_and_pipes_instead_of_going_through_them(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let environment = inside.environment();
        let tree = host_tree(inside);
        let traps = "mkdir /elsewhere /target; echo mine > /elsewhere/file
                     ln -s /elsewhere/file /target/data; mkfifo /target/script; ln -s /elsewhere /replaced
                     ln -s /elsewhere/file /single";
        inside.bash(traps).await;
        environment.copy_to(&tree, "/target", CopyMode::Merge).await.unwrap();
        environment.copy_to(&tree, "/replaced", CopyMode::Replace).await.unwrap();
        environment.copy_to(&tree.join("data"), "/single", CopyMode::Merge).await.unwrap();
        let found = inside.bash("cat /elsewhere/* /target/data /target/script /replaced/data /single").await;
        assert_eq!(found, "mine\ndata\nscript\ndata\ndata\n");
    });
}

pub fn a_single_file_is_copied_to_its_path(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let file = inside.scratch().join("file");
        // Larger than any buffer on the way.
        let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7 % 251) as u8).collect();
        fs::write(&file, &content).unwrap();
        inside.environment().copy_to(&file, "/new/place", CopyMode::Merge).await.unwrap();
        let read = inside.environment().read_file("/new/place", 1 << 30).await.unwrap();
        assert!(read == FileRead::Content(content), "other content came out");
    });
}

pub fn special_files_are_not_copied_in(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let tree = host_tree(inside);
        std::os::unix::net::UnixListener::bind(tree.join("a-socket")).unwrap();
        let copied = inside.environment().copy_to(&tree, "/target", CopyMode::Merge).await;
        let Err(EnvironmentError::Command(words)) = copied else { panic!("{copied:?}") };
        assert!(words.contains("a-socket"), "{words}");
    });
}

pub fn a_written_file_is_executable_and_replaces_an_existing_one(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        inside.bash("echo mine > /target; ln -s /target /script; mkfifo /pipe").await;
        for path in ["/script", "/pipe", "/new/dir/script"] {
            inside.environment().write_file(path, b"#!/bin/bash\necho hello\n").await.unwrap();
            assert_eq!(
                inside.bash(&format!("{path}; stat -c %F:%a {path}")).await,
                "hello\nregular file:755\n"
            );
        }
        assert_eq!(inside.bash("cat /target").await, "mine\n");
    });
}

pub fn reading_accepts_only_regular_files(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let make = "cd /app; echo content > file; : > empty; ln -s file link; mkdir dir; mkfifo pipe
                    ln -s /app /linked-dir; head -c 100 /dev/zero > hundred; chmod 000 file";
        inside.bash(make).await;
        for (path, expected) in [
            ("/app/file", FileRead::Content(b"content\n".to_vec())),
            ("/app/empty", FileRead::Content(Vec::new())),
            ("/linked-dir/file", FileRead::Content(b"content\n".to_vec())),
            ("/app/absent", FileRead::Missing),
            ("/absent/file", FileRead::Missing),
            ("/app/link", FileRead::NotRegular),
            ("/app/dir", FileRead::NotRegular),
            ("/app/pipe", FileRead::NotRegular),
            ("/dev/zero", FileRead::NotRegular),
            ("/app/hundred", FileRead::TooLarge(100)),
        ] {
            let read = inside.environment().read_file(path, 99).await.unwrap();
            assert_eq!(read, expected, "{path}");
        }
        let read = inside.environment().read_file("/app/hundred", 100).await.unwrap();
        assert_eq!(read, FileRead::Content(vec![0; 100]));
    });
}

pub fn directories_are_created_for_all_users_and_kept_unless_emptied(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let environment = inside.environment();
        environment.make_dirs(&["/one/two", "/one/three"], false).await.unwrap();
        assert_eq!(
            inside.bash("stat -c '%F %a' /one/two /one/three").await,
            "directory 777\ndirectory 777\n"
        );
        inside.bash("touch /one/two/file").await;
        environment.make_dirs(&["/one/two"], false).await.unwrap();
        assert_eq!(inside.bash("ls /one/two").await, "file\n");
        environment.make_dirs(&["/one/two"], true).await.unwrap();
        assert_eq!(inside.bash("ls -A /one/two; stat -c %a /one/two").await, "777\n");
    });
}

pub fn an_empty_directory_replaces_a_link_a_file_and_a_pipe(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        inside
            .bash("mkdir /elsewhere; touch /elsewhere/kept /file; ln -s /elsewhere /link; mkfifo /pipe")
            .await;
        inside.environment().make_dirs(&["/link", "/file", "/pipe"], true).await.unwrap();
        let found = inside.bash("stat -c %F /link /file /pipe; ls -A /link /elsewhere").await;
        assert_eq!(found, "directory\ndirectory\ndirectory\n/elsewhere:\nkept\n\n/link:\n");
    });
}

pub fn a_link_is_made_unless_something_is_there(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let environment = inside.environment();
        inside.bash("echo mine > /file; mkdir /dir").await;
        for link in ["/new", "/file", "/dir"] {
            environment.link("/target", link).await.unwrap();
        }
        assert_eq!(
            inside.bash("readlink /new; cat /file; stat -c %F /dir").await,
            "/target\nmine\ndirectory\n"
        );
    });
}

pub fn copied_files_keep_their_content_and_belong_to_the_caller(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let make = "mkdir -p /out/deep/empty; cd /out; echo a > a; printf '\\000\\377' > bytes; ln -s a link
                    cp /bin/true tool; chmod 4755 tool; chown 1:1 a; echo x > deep/x; chmod 000 deep/x";
        inside.bash(make).await;
        let target = inside.scratch().join("out");
        let report = inside.environment().copy_from(copy_out("/out", &target)).await.unwrap();
        assert_eq!(report.skipped, Vec::<String>::new());
        assert_eq!(fs::read(target.join("link")).unwrap(), b"a\n");
        assert_eq!(fs::read(target.join("bytes")).unwrap(), b"\0\xff");
        assert!(target.join("deep/empty").is_dir());
        let found = |path: &str| target.join(path).metadata().unwrap();
        assert_eq!(found("tool").mode() & 0o6000, 0);
        let mine = inside.scratch().metadata().unwrap().uid();
        assert_eq!([found("a").uid(), found("deep/x").uid()], [mine, mine]);
    });
}

pub fn existing_files_of_the_host_are_kept(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        inside
            .bash("mkdir -p /out/dir; cd /out; echo theirs > file; echo theirs > dir/x; echo new > dir/new")
            .await;
        let target = inside.scratch().join("out");
        fs::create_dir_all(target.join("dir")).unwrap();
        fs::write(target.join("file"), "ours").unwrap();
        let outside = inside.scratch().join("outside");
        fs::write(&outside, "outside").unwrap();
        symlink(&outside, target.join("dir/x")).unwrap();
        inside.environment().copy_from(copy_out("/out", &target)).await.unwrap();
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "ours");
        assert_eq!(fs::read_to_string(&outside).unwrap(), "outside", "a link of the host was followed");
        assert_eq!(fs::read_to_string(target.join("dir/new")).unwrap(), "new\n");
    });
}

pub fn files_that_cannot_be_copied_out_safely_are_skipped_and_reported(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let make =
            "mkdir -p /out; cd /out; ln -s /etc/passwd absolute; ln -s ../etc/passwd climbing; mkfifo pipe
                    mknod device c 1 3 2>/dev/null; echo fine > fine";
        inside.bash(make).await;
        let target = inside.scratch().join("out");
        let report = inside.environment().copy_from(copy_out("/out", &target)).await.unwrap();
        for name in ["absolute", "climbing", "pipe"] {
            assert!(report.skipped.iter().any(|skipped| skipped.starts_with(name)), "{name}: {report:?}");
        }
        let names = |dir: &Path| -> Vec<_> {
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        assert_eq!(names(&target), ["fine"]);
    });
}

pub fn a_file_that_is_too_long_comes_out_without_its_middle_and_holes_stay_holes(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        inside.bash("mkdir /out; cd /out; echo start > long; truncate -s 1T long; echo end >> long").await;
        let target = inside.scratch().join("out");
        let report = inside.environment().copy_from(copy_out("/out", &target)).await.unwrap();
        assert!(report.skipped[0].starts_with("long: it has 1099511627780 bytes; "), "{report:?}");
        let long = target.join("long").metadata().unwrap();
        assert!(long.blocks() * 512 < 4 << 20, "{long:?}");
        let mut file = fs::File::open(target.join("long")).unwrap();
        let mut start = [0; 6];
        file.read_exact(&mut start).unwrap();
        let mut end = [0; 4];
        file.seek(SeekFrom::End(-4)).unwrap();
        file.read_exact(&mut end).unwrap();
        assert_eq!((&start, &end), (b"start\n", b"end\n"));
    });
}

pub fn the_first_directory_is_copied_whatever_its_siblings(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let make = "mkdir -p /out/agent /out/verifier; echo 0 > /out/verifier/reward.txt
                    for n in 1 2 3 4 5; do truncate -s 300M /out/agent/$n; done";
        inside.bash(make).await;
        let target = inside.scratch().join("out");
        let copy = CopyOut { first: Some("verifier"), ..copy_out("/out", &target) };
        let report = inside.environment().copy_from(copy).await.unwrap();
        assert!(report.skipped.iter().any(|skipped| skipped.contains("more than")), "{report:?}");
        assert_eq!(fs::read_to_string(target.join("verifier/reward.txt")).unwrap(), "0\n");
    });
}

pub fn secrets_are_masked_before_they_are_written(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let make =
            "mkdir -p /out/dir-the-secret; cd /out; echo the-secret > dir-the-secret/a; ln -s the-secret link
                    for n in $(seq 20000); do printf 'the-secret '; done > many; touch the-secret.txt";
        inside.bash(make).await;
        let target = inside.scratch().join("out");
        let redactor = Redactor::new(["the-secret"]);
        let copy = CopyOut { redactor: &redactor, ..copy_out("/out", &target) };
        let report = inside.environment().copy_from(copy).await.unwrap();
        assert_eq!(report.skipped, ["3 entries that have secrets in their names or targets"]);
        assert_eq!(fs::read_to_string(target.join("many")).unwrap(), "[redacted] ".repeat(20_000));
        assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
    });
}

/// A copy without secrets to mask.
fn copy_out<'a>(source: &'a str, target: &'a Path) -> CopyOut<'a> {
    static NOTHING: LazyLock<Redactor> = LazyLock::new(Redactor::default);
    CopyOut { source, target, first: None, redactor: &NOTHING }
}

pub fn a_missing_directory_to_copy_from_is_an_error_of_its_path(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let copied = inside.environment().copy_from(copy_out("/absent", &inside.scratch().join("out"))).await;
        let Err(EnvironmentError::Command(words)) = copied else { panic!("{copied:?}") };
        assert!(words.contains("/absent"), "{words}");
    });
}
