//! Images built from Dockerfiles on the real engine.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_sandbox::build::{Built, FreshLayers, ImageBuildError};
use rollout_sandbox::{EngineOptions, SandboxEngine};

use crate::common::Host;
use crate::project::{Project, chain, look};

async fn failure(host: &Host, dockerfile: &str) -> String {
    let project = Project::new(dockerfile);
    chain(&project.build(host).await.expect_err("the build must fail"))
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn files_written_by_run_are_in_the_image_and_not_on_the_host() {
    let host = Host::start().await;
    let project =
        Project::new("FROM base\nARG N=7\nENV A=a\nWORKDIR /srv/app\nRUN echo $A-$N > made && pwd\n");
    assert_eq!(project.look(&host, "cat /srv/app/made").await, "a-7\n");
    assert!(!Path::new("/srv/app").exists());
    insta::assert_snapshot!(project.log(), @r"
    Step 1/4 : ARG N=7
    Step 2/4 : ENV A=a
    Step 3/4 : WORKDIR /srv/app
    Step 4/4 : RUN echo $A-$N > made && pwd
    /srv/app
    ");
}

#[tokio::test]
async fn the_configuration_is_kept_with_the_image() {
    let host = Host::start().await;
    let project = Project::new(
        "FROM base\nENV A=1\nWORKDIR /w\nUSER nobody\nLABEL k=v\nSHELL [\"/bin/bash\", \"-c\"]\n",
    );
    let built = project.build(&host).await.unwrap();
    let config = built.image.config();
    assert!(config.env.contains(&("A".to_owned(), "1".to_owned())));
    assert!(config.env.iter().any(|(name, _)| name == "PATH"));
    assert_eq!((config.workdir.as_str(), config.user.as_deref()), ("/w", Some("nobody")));
    assert_eq!(config.shell, ["/bin/bash", "-c"]);
    assert_eq!(config.labels["k"], "v");
}

#[tokio::test]
async fn users_own_the_files_they_create_and_those_copied_with_chown() {
    let host = Host::start().await;
    let project = Project::new(
        "FROM base\nWORKDIR /kept\nUSER nobody\nWORKDIR /mine\nRUN id -un > who; touch /mine/own\n\
         COPY f /by-root\nCOPY --chown=nobody:nogroup --chmod=640 f d /given/\nCOPY --chown=65534 f /one\n",
    );
    project.write("f", "f");
    project.write("d/sub/g", "g");
    let seen = project
        .look(&host, "cat /mine/who; stat -c '%U %a %n' /kept /mine /mine/own /by-root /given /given/f /given/sub/g /one")
        .await;
    insta::assert_snapshot!(seen, @"
    nobody
    root 755 /kept
    nobody 755 /mine
    nobody 644 /mine/own
    root 644 /by-root
    nobody 755 /given
    nobody 640 /given/f
    nobody 640 /given/sub/g
    nobody 644 /one
    ");
}

#[tokio::test]
async fn copy_puts_files_where_docker_puts_them() {
    let host = Host::start().await;
    let project = Project::new("");
    project.write("a.txt", "a");
    project.write("b.txt", "b");
    project.write("tree/x", "x");
    project.write("tree/sub/y", "y");
    fs::set_permissions(project.write("run.sh", "#!/bin/sh\n"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("x", project.context().join("tree/link")).unwrap();
    let all = "find . -mindepth 1 -printf '%p %y %m\\n' | sort; ";
    let mut table = String::new();
    for instructions in [
        "COPY a.txt /t/new",
        "COPY a.txt /t/",
        "RUN mkdir -p /t/there\nCOPY a.txt /t/there",
        "WORKDIR /t\nCOPY a.txt b.txt ./",
        "WORKDIR /t\nCOPY *.txt sub/",
        "COPY tree /t",
        "COPY tree /t/into/",
        "COPY tree a.txt /t/",
        "RUN mkdir -p /t/sub && echo old > /t/sub/old && echo old > /t/x && chmod 700 /t\nCOPY tree /t",
        "COPY run.sh /t/run",
        "COPY --chmod=600 tree /t",
        "COPY <<one <<two /t/\n1\none\n2\ntwo\nCOPY <<EOF /t/three\n3\nEOF",
    ] {
        project.write("Dockerfile", &format!("FROM base\n{instructions}\n"));
        let seen = project.look(&host, &format!("stat -c '%a' /t; cd /t; {all}")).await;
        table.push_str(&format!("{instructions}\n{seen}\n"));
    }
    insta::assert_snapshot!(table, @"
    COPY a.txt /t/new
    755
    ./new f 644

    COPY a.txt /t/
    755
    ./a.txt f 644

    RUN mkdir -p /t/there
    COPY a.txt /t/there
    755
    ./there d 755
    ./there/a.txt f 644

    WORKDIR /t
    COPY a.txt b.txt ./
    755
    ./a.txt f 644
    ./b.txt f 644

    WORKDIR /t
    COPY *.txt sub/
    755
    ./sub d 755
    ./sub/a.txt f 644
    ./sub/b.txt f 644

    COPY tree /t
    755
    ./link l 777
    ./sub d 755
    ./sub/y f 644
    ./x f 644

    COPY tree /t/into/
    755
    ./into d 755
    ./into/link l 777
    ./into/sub d 755
    ./into/sub/y f 644
    ./into/x f 644

    COPY tree a.txt /t/
    755
    ./a.txt f 644
    ./link l 777
    ./sub d 755
    ./sub/y f 644
    ./x f 644

    RUN mkdir -p /t/sub && echo old > /t/sub/old && echo old > /t/x && chmod 700 /t
    COPY tree /t
    700
    ./link l 777
    ./sub d 755
    ./sub/old f 644
    ./sub/y f 644
    ./x f 644

    COPY run.sh /t/run
    755
    ./run f 755

    COPY --chmod=600 tree /t
    755
    ./link l 777
    ./sub d 600
    ./sub/y f 600
    ./x f 600

    COPY <<one <<two /t/
    1
    one
    2
    two
    COPY <<EOF /t/three
    3
    EOF
    755
    ./one f 644
    ./three f 644
    ./two f 644
    ");
}

#[tokio::test]
async fn add_unpacks_archives_and_copies_everything_else() {
    let host = Host::start().await;
    let project = Project::new(
        "FROM base\nADD in.tar.gz in.tar /t/\nADD not.gz plain /c/\nADD --chown=nobody in.tar /o\n",
    );
    project.write("in/deep/file", "packed");
    project.write("plain", "p");
    let tar = |args: &[&str]| {
        let status =
            std::process::Command::new("tar").current_dir(project.context()).args(args).status().unwrap();
        assert!(status.success());
    };
    tar(&["-czf", "in.tar.gz", "in"]);
    tar(&["-cf", "in.tar", "plain"]);
    fs::write(project.context().join("not.gz"), b"\x1f\x8bnot really").unwrap();
    assert_eq!(
        project.look(&host, "cat /t/in/deep/file /t/plain; ls /t /c; stat -c %U /o /o/plain").await,
        "packedp/c:\nnot.gz\nplain\n\n/t:\nin\nplain\nnobody\nroot\n"
    );
}

#[tokio::test]
async fn all_forms_of_run_work() {
    let host = Host::start().await;
    let project = Project::new(
        "FROM base\nRUN [\"touch\", \"/exec form\"]\nRUN <<EOF\necho one > /script\necho two >> /script\nEOF\n\
         RUN <<EOF\n#!/usr/bin/env bash\nx=(a b); echo ${#x[@]} > /shebang\nEOF\n\
         RUN cat <<EOF > /here && echo after >> /here\n  $HOME\nEOF\n\
         SHELL [\"/bin/bash\", \"-ec\"]\nRUN y=(a b c); \\\n  # why\n  echo ${#y[@]} > /bash\n\
         RUN --mount=type=cache,target=/var/cache/x test -d /var/cache/x\n",
    );
    let seen =
        project.look(&host, "cat /script /shebang /here /bash; ls -A / | grep -E 'exec|rollout'").await;
    insta::assert_snapshot!(seen, @"
    one
    two
    2
      /root
    after
    3
    exec form
    ");
}

#[tokio::test]
async fn a_failing_run_names_its_line_and_shows_its_last_output() {
    let host = Host::start().await;
    let error = failure(&host, "FROM base\n\nRUN echo hello; \\\n    seq 100; echo oh >&2; exit 3\n").await;
    insta::assert_snapshot!(error, @"
    Dockerfile line 3 `RUN echo hello; …`: the command exited with code 3; it printed last:
    82
    83
    84
    85
    86
    87
    88
    89
    90
    91
    92
    93
    94
    95
    96
    97
    98
    99
    100
    oh
    ");
    insta::assert_snapshot!(failure(&host, "FROM base\nRUN [\"no-such-program\"]\n").await, @r#"Dockerfile line 2 `RUN ["no-such-program"]`: the command could not be started: no-such-program: no such program in the environment"#);
    insta::assert_snapshot!(failure(&host, "FROM base\nUSER nosuch\nRUN true\n").await, @"Dockerfile line 3 `RUN true`: the command could not be started: the environment has no user nosuch");
}

#[tokio::test]
async fn an_image_without_a_mapping_is_rejected() {
    let host = Host::start().await;
    insta::assert_snapshot!(failure(&host, "FROM python:3.13-slim\nRUN true\n").await, @"Dockerfile line 1 `FROM python:3.13-slim`: cannot find the image python:3.13-slim: no image is configured for `python:3.13-slim`");
    let missing = Project::new("");
    fs::remove_file(missing.context().join("Dockerfile")).unwrap();
    assert!(matches!(missing.build(&host).await, Err(ImageBuildError::MissingDockerfile { .. })));
}

#[tokio::test]
async fn sources_outside_of_the_context_are_rejected() {
    let host = Host::start().await;
    for source in ["../secret", "/../secret", "link", "dir/secret"] {
        let project = Project::new(&format!("FROM base\nCOPY {source} /x\n"));
        fs::write(project.dir.path().join("secret"), "s").unwrap();
        symlink("/etc/passwd", project.context().join("link")).unwrap();
        symlink("..", project.context().join("dir")).unwrap();
        let error = chain(&project.build(&host).await.unwrap_err());
        assert!(error.contains("leads out of the directory of the Dockerfile"), "{source}: {error}");
    }
}

#[tokio::test]
async fn ignored_files_stay_out_of_the_image() {
    let host = Host::start().await;
    let project = Project::new("FROM base\nCOPY . /t/\n");
    project.write(".dockerignore", "*.log\nDockerfile\n!keep.log\nsecret/\n");
    for path in ["a.log", "keep.log", "secret/key", "src/main"] {
        project.write(path, "");
    }
    assert_eq!(project.look(&host, "ls -A /t").await, ".dockerignore\nkeep.log\nsrc\n");
}

#[tokio::test]
async fn builds_without_the_cache_use_what_they_have_built_themselves() {
    let host = Host::start().await;
    let dockerfile =
        "FROM base\nRUN cat /proc/sys/kernel/random/uuid > /id\nCOPY f /f\nRUN grep -q ready /f\n";
    let id = async |built: &Built| look(&host, built, "cat /id").await;
    let project = Project::new(dockerfile);
    project.write("f", "ready");
    let cached = id(&project.build(&host).await.unwrap()).await;
    let fresh = FreshLayers::default();
    project.write("f", "not yet");
    assert!(project.build_with(&host.engine, Some(&fresh)).await.is_err());
    // The retry continues where the first build failed.
    project.write("f", "ready");
    let retried = project.build_with(&host.engine, Some(&fresh)).await.unwrap();
    assert!(project.log().contains("Using the layer that was built before"), "{}", project.log());
    let retried = id(&retried).await;
    assert_ne!(retried, cached);
    // Another directory with the same content builds nothing.
    let other = Project::new(dockerfile);
    other.write("f", "ready");
    let shared = other.build_with(&host.engine, Some(&fresh)).await.unwrap();
    assert!(shared.cached);
    assert_eq!(id(&shared).await, retried);
}

#[tokio::test]
async fn the_same_content_is_built_once_and_changed_content_again() {
    let host = Host::start().await;
    let project = Project::new("FROM base\nCOPY f /f\nRUN cat /proc/sys/kernel/random/uuid > /id\n");
    project.write("f", "1");
    let first = project.build(&host).await.unwrap();
    project.write("unused", "not copied, so not part of the key");
    let second = project.build(&host).await.unwrap();
    assert_eq!((first.cached, second.cached), (false, true));
    assert_eq!(first.image.identity(), second.image.identity());
    let id = look(&host, &first, "cat /id").await;
    assert_eq!(look(&host, &second, "cat /id").await, id);

    let anew = project.build_with(&host.engine, Some(&FreshLayers::default())).await.unwrap();
    assert!(!anew.cached);
    assert_ne!(anew.image.identity(), first.image.identity(), "the files are others");
    assert_ne!(look(&host, &anew, "cat /id").await, id);
    assert_eq!(look(&host, &first, "cat /id").await, id, "an image in use keeps its files");
    let replaced = look(&host, &project.build(&host).await.unwrap(), "cat /id").await;
    assert_eq!(replaced, look(&host, &anew, "cat /id").await);

    project.write("f", "2");
    let changed = project.build(&host).await.unwrap();
    assert!(!changed.cached);
    assert_ne!(changed.image.identity(), first.image.identity());
}

#[tokio::test]
async fn builds_of_the_same_content_at_the_same_time_run_once() {
    let host = Host::start().await;
    host.engine.host_image().await.unwrap();
    let other_engine = crate::common::engine(host.engine.state_dir()).await;
    let project = Project::new("FROM base\nRUN echo ran; cat /proc/sys/kernel/random/uuid > /id\n");
    let (a, b, c) =
        tokio::join!(project.build(&host), project.build(&host), project.build_with(&other_engine, None));
    let built = [a.unwrap(), b.unwrap(), c.unwrap()];
    assert_eq!(built.iter().filter(|built| !built.cached).count(), 1);
    assert_eq!(project.log().matches("\nran\n").count(), 1);
    let id = look(&host, &built[0], "cat /id").await;
    assert_eq!(look(&host, &built[1], "cat /id").await, id);
    assert_eq!(look(&host, &built[2], "cat /id").await, id);
}

#[tokio::test]
async fn a_cancelled_build_leaves_nothing_and_can_be_repeated() {
    let host = Host::start().await;
    let project = Project::new("FROM base\nRUN echo started; sleep 1000\n");
    let started = async |times: usize| {
        while project.log().matches("\nstarted").count() < times {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = project.build(&host) => panic!("the build cannot end by itself"),
        () = started(1) => {}
    }
    let layers = host.engine.state_dir().join("layers");
    let key = layers.join(&entries(&layers)[0]);
    while entries(&key) != ["lock"] {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::select! {
        _ = project.build(&host) => panic!("what was cancelled is not taken for finished"),
        () = started(2) => {}
    }
}

#[tokio::test]
async fn background_processes_of_run_do_not_delay_the_build() {
    let host = Host::start().await;
    let project = Project::new(
        "FROM base\nRUN (while :; do echo noise; done) & setsid sleep 1000 & true\nRUN pgrep sleep && exit 1 || true\n",
    );
    project.build(&host).await.unwrap();
}

#[tokio::test]
async fn a_flood_of_output_ends_in_a_log_of_bounded_size() {
    let host = Host::start().await;
    let project = Project::new("FROM base\nRUN head -c 100000000 /dev/zero; echo; echo end; exit 1\n");
    let error = project.build(&host).await.unwrap_err();
    let ImageBuildError::RunFailed { output, .. } = &error else { panic!("{error:?}") };
    assert!(output.ends_with("\nend") && output.len() <= 4096, "{} bytes", output.len());
    assert!(fs::metadata(project.dir.path().join("log")).unwrap().len() < (64 << 20) + 200);
}

#[tokio::test]
async fn stages_share_files_and_only_needed_ones_are_built() {
    let host = Host::start().await;
    let project = Project::new(
        "FROM base AS one\nRUN mkdir -p /o/d && echo f > /o/f && echo g > /o/d/g && ln -s /abs /o/d/link && chown nobody /o/f\n\
         FROM base AS unneeded\nRUN exit 1\n\
         FROM one AS two\nENV FROM_TWO=1\nRUN echo two > /two\n\
         FROM other:1\nCOPY --from=one /o /all\nCOPY --from=0 o/f /renamed\nCOPY --from=two --chmod=700 /tw* /o/f /dir/\n\
         COPY --from=base /etc/hostname /etc-hostname\nCOPY --from=one --chown=nobody /o/d/g /given\n",
    );
    let seen = project
        .look(&host, "cd /; find all renamed dir given etc-hostname -printf '%p %y %m %u %l\\n' | sort; cat /renamed /dir/two; ls -A / | grep -c rollout; true")
        .await;
    insta::assert_snapshot!(seen, @"
    all d 755 root 
    all/d d 755 root 
    all/d/g f 644 root 
    all/d/link l 777 root /abs
    all/f f 644 nobody 
    dir d 755 root 
    dir/f f 700 nobody 
    dir/two f 700 root 
    etc-hostname f 644 root 
    given f 644 nobody 
    renamed f 644 nobody 
    f
    two
    0
    ");
}

#[tokio::test]
async fn a_dockerfile_that_links_out_of_its_directory_is_not_read() {
    let host = Host::start().await;
    let project = Project::new("");
    let dockerfile = project.context().join("Dockerfile");
    fs::remove_file(&dockerfile).unwrap();
    symlink("/etc/passwd", &dockerfile).unwrap();
    let error = chain(&project.build(&host).await.unwrap_err());
    assert!(error.ends_with("it is a link to a file outside its directory"), "{error}");
    assert!(!error.contains("root:"), "{error}");
}

const AS_NOBODY: &str = "ROLLOUT_BUILD_TEST_DIR";

/// Reruns the named test as the user `nobody`, with copies of the programs that this user may read.
fn again_as_ordinary_user(test: &str) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    for (from, name) in [
        (std::env::current_exe().unwrap(), "test"),
        (PathBuf::from(env!("CARGO_BIN_EXE_rollout-sandbox-helper")), "helper"),
    ] {
        fs::copy(from, dir.path().join(name)).unwrap();
        fs::set_permissions(dir.path().join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let output = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(dir.path().join("test"))
        .args([&format!("build::{test}"), "--exact", "--nocapture"])
        .env(AS_NOBODY, dir.path())
        .env("TMPDIR", dir.path())
        .current_dir("/")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    // A wrong name would run no test, and succeed.
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}

#[tokio::test]
async fn an_ordinary_user_can_build_what_needs_no_other_user() {
    if rustix::process::geteuid().is_root() {
        return again_as_ordinary_user("an_ordinary_user_can_build_what_needs_no_other_user");
    }
    let state = tempfile::tempdir().unwrap();
    let helper = match std::env::var_os(AS_NOBODY) {
        Some(dir) => Path::new(&dir).join("helper"),
        None => env!("CARGO_BIN_EXE_rollout-sandbox-helper").into(),
    };
    let options = EngineOptions { helper, state_dir: state.path().to_owned() };
    let host = Host { engine: SandboxEngine::start(options).await.unwrap(), state };
    let project = Project::new(
        "FROM base AS one\nWORKDIR /w\nCOPY --chmod=700 d d\nRUN cat d/f > made && rm -r /var/spool\n\
         FROM base\nADD a.tar /a/\nCOPY --from=one --chown=root /w /w\n",
    );
    project.write("d/f", "f");
    let mut tar = std::process::Command::new("tar");
    assert!(tar.current_dir(project.context()).args(["-cf", "a.tar", "d"]).status().unwrap().success());
    assert_eq!(project.look(&host, "cat /w/made /a/d/f; stat -c ' %a %U' /w/d/f").await, "ff 700 root\n");

    let other = Project::new("FROM base\nUSER nobody\nRUN true\n");
    let error = chain(&other.build(&host).await.unwrap_err());
    assert!(error.contains("run rollout as root to use other users"), "{error}");
}

#[tokio::test]
async fn a_here_document_writes_no_file_on_the_host() {
    let host = Host::start().await;
    let outside = tempfile::tempdir().unwrap();
    let absolute = outside.path().join("victim").display().to_string();
    let climbing = format!("{}{absolute}", "../".repeat(20));
    for name in [absolute, climbing] {
        let error = failure(&host, &format!("FROM base\nCOPY <<\"{name}\" /t/\nowned\n{name}\n")).await;
        assert!(error.starts_with("Dockerfile line 2 "), "{error}");
        assert!(error.contains("cannot be the file name of a here-document"), "{error}");
    }
    assert_eq!(entries(outside.path()), [""; 0]);
}

#[tokio::test]
async fn a_link_of_one_source_does_not_lead_the_next_out() {
    let host = Host::start().await;
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("kept"), "kept").unwrap();
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o701)).unwrap();
    let project = Project::new("FROM base\nCOPY d1 d2 f /t/\nCOPY d1 <<f /u/\ntext\nf\n");
    project.write("d2/x/kept", "from d2");
    project.write("f", "from f");
    fs::create_dir(project.context().join("d1")).unwrap();
    symlink(outside.path(), project.context().join("d1/x")).unwrap();
    symlink(outside.path().join("kept"), project.context().join("d1/f")).unwrap();
    let seen =
        project.look(&host, "cd /t && [ ! -L x ] && [ ! -L f ] && cat x/kept f /u/f && [ -L /u/x ]").await;
    assert_eq!(seen, "from d2from ftext\n");
    assert_eq!(entries(outside.path()), ["kept"]);
    assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "kept");
    assert_eq!(outside.path().metadata().unwrap().permissions().mode() & 0o7777, 0o701);
}
