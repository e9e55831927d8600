//! Commands: what they get, what they say, and how they fail.

use std::{collections::BTreeMap, fs, time::Duration};

use rollout::{
    environment::{CommandRole, EnvironmentError, Exec, Exit, Outcome},
    record::log::MAX_LOG_BYTES,
};

use super::support::{Container, until};

#[tokio::test]
async fn a_command_returns_its_output_and_its_exit_code() {
    let container = Container::start().await;
    let ran = container.bash("echo out; echo err >&2; exit 7").await;
    assert_eq!(ran.exit, Exit { outcome: Outcome::Code(7), oom_killed: false });
    assert_eq!((ran.text(), &ran.stderr[..]), ("out\n", &b"err\n"[..]));
    container.stop().await;
}

#[tokio::test]
async fn a_signal_is_distinguished_from_an_exit_code() {
    let container = Container::start().await;
    assert_eq!(container.bash("kill -TERM $$").await.exit.outcome, Outcome::Signal(15));
    assert_eq!(container.bash("exit 143").await.exit.outcome, Outcome::Code(143));
}

#[tokio::test]
async fn a_command_gets_the_images_variables_and_directory_and_nothing_to_read() {
    let container = Container::start().await;
    let script = r#"cat; pwd; echo "$IMAGE_VARIABLE|$OWN|$HOME"; umask"#;
    let ran = container.try_exec(&["bash", "-c", script], &[("OWN", "a b")], None).await.unwrap();
    let dir = container.dir.path().display();
    assert_eq!(ran.text(), format!("{dir}\nfrom the image|a b|/root\n0022\n"));
    let ran = container.try_exec(&["bash", "-c", "echo $HOME"], &[("HOME", "/else")], None).await.unwrap();
    assert_eq!(ran.text(), "/else\n");
}

#[tokio::test]
async fn a_command_runs_as_its_user_and_keeps_no_right_of_the_guest() {
    let container = Container::start_as(Some("nobody")).await;
    let script = "id -u; id -g; echo $HOME; grep -E '^(Uid|Gid|Cap(Prm|Eff|Amb)):' /proc/self/status; \
                  echo reopened > /dev/stdout";
    let ran = container.bash(script).await;
    let home = fs::read_to_string("/etc/passwd").unwrap();
    let home = home.lines().find(|line| line.starts_with("nobody:")).unwrap().split(':').nth(5).unwrap();
    let expected = format!(
        "65534\n65534\n{home}\nUid:\t65534\t65534\t65534\t65534\nGid:\t65534\t65534\t65534\t65534\n\
         CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapAmb:\t0000000000000000\nreopened\n"
    );
    assert_eq!(ran.text(), expected);
}

#[tokio::test]
async fn a_command_of_the_super_user_without_further_rights_cannot_touch_the_guest() {
    let container = Container::start().await;
    // As in a container of an engine.
    let script = "exec setpriv --bounding-set -sys_resource,-sys_ptrace,-sys_admin bash -c ' \
        prlimit --pid 1 --nofile=0; prlimit --pid $(ls /proc/1/task | tail -n 1) --nofile=0; \
        cat /proc/1/fd/0; echo nonsense > /proc/1/fd/1; cat /proc/1/mem'";
    let ran = container.bash(script).await;
    let errors = String::from_utf8(ran.stderr.clone()).unwrap();
    assert_eq!((ran.text(), errors.lines().count()), ("", 5), "{errors}");
    assert!(errors.lines().all(|line| line.contains("ermi")), "{errors}");
    container.guest.make_dirs(&[&container.inside("a")], true).await.unwrap();
}

#[tokio::test]
async fn users_are_given_by_number_and_with_groups() {
    for (user, ids) in [("4242", "4242 0 0"), ("nobody:7", "65534 7 7"), ("4242:12", "4242 12 12")] {
        let container = Container::start_as(Some(user)).await;
        assert_eq!(container.bash("echo $(id -u) $(id -g) $(id -G)").await.text().trim(), ids);
    }
}

#[tokio::test]
async fn what_is_missing_is_named_with_what_to_do() {
    let container = Container::start().await;
    let dir = container.inside("");
    let plain = container.path("plain");
    fs::write(&plain, "no program").unwrap();
    let script = container.path("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut reasons = BTreeMap::new();
    let mut note = |what, result| match result {
        Err(EnvironmentError::Command(reason)) => {
            reasons.insert(what, reason.replace(&dir, "[dir]/"));
        }
        other => panic!("{what}: {other:?}"),
    };
    let empty = [("PATH", "/nowhere")];
    note("1 no bash", container.try_exec(&["bash", "-c", "true"], &empty, None).await);
    note("2 no program", container.try_exec(&["no-such-program"], &[], None).await);
    note("3 not executable", container.try_exec(&[plain.to_str().unwrap()], &[], None).await);
    note("4 no interpreter", container.try_exec(&[script.to_str().unwrap()], &[], None).await);
    note("5 a zero byte", container.try_exec(&["echo", "a\0b"], &[], None).await);
    let long = "x".repeat(1 << 20);
    note("6 too long", container.try_exec(&["echo", &long], &[], None).await);
    note("7 nothing", container.try_exec(&[], &[], None).await);
    let text: String = reasons.iter().map(|(what, reason)| format!("{what}: {reason}\n")).collect();
    insta::assert_snapshot!(text, @"
    1 no bash: the environment has no bash, which runs the scripts; install it in the Dockerfile
    2 no program: no-such-program: no such program in the environment; install it in the Dockerfile
    3 not executable: [dir]/plain cannot be executed: Permission denied (os error 13); check its mode and its format
    4 no interpreter: [dir]/script cannot be executed: its interpreter is missing in the environment; install it in the Dockerfile
    5 a zero byte: echo cannot be started: nul byte found in provided data
    6 too long: echo cannot be started: Argument list too long (os error 7)
    7 nothing: the command is empty
    ");
}

#[tokio::test]
async fn an_unknown_user_and_a_removed_directory_are_named() {
    let container = Container::start_as(Some("ghost")).await;
    let Err(EnvironmentError::Command(reason)) = container.try_exec(&["true"], &[], None).await else {
        panic!("there is no such user")
    };
    insta::assert_snapshot!(reason, @"the environment has no user ghost; add it in the Dockerfile, or name another user");
    let container = Container::start().await;
    let path = container.dir.path().display().to_string();
    fs::remove_dir_all(container.dir.path()).unwrap();
    let Err(EnvironmentError::Command(reason)) = container.try_exec(&["true"], &[], None).await else {
        panic!("the directory is gone")
    };
    insta::assert_snapshot!(reason.replace(&path, "[dir]"), @"cannot start in the image's working directory [dir]: No such file or directory (os error 2); create it in the Dockerfile, and do not remove it later");
}

#[tokio::test]
async fn output_may_be_any_bytes() {
    let container = Container::start().await;
    let ran = container.bash(r"printf '\xff\x00\xfe'; printf '\x80' >&2").await;
    assert_eq!((&ran.stdout[..], &ran.stderr[..]), (&b"\xff\x00\xfe"[..], &b"\x80"[..]));
}

#[tokio::test]
async fn two_hundred_megabytes_pass_in_little_memory() {
    let container = Container::start().await;
    let ran = container.bash("head -c 209715200 /dev/zero; grep VmHWM /proc/1/status >&2").await;
    let kept = usize::try_from(MAX_LOG_BYTES).unwrap();
    assert_eq!(ran.exit.outcome, Outcome::Code(0));
    assert!(ran.stdout.len() >= kept);
    let guest: u64 =
        String::from_utf8(ran.stderr).unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(guest < 16 << 10, "the guest took {guest} kB");
}

#[tokio::test]
async fn all_that_a_command_wrote_is_there_when_it_has_ended() {
    let container = Container::start().await;
    for _ in 0..20 {
        // The last bytes are in the pipe when the command ends, and another process keeps the pipe.
        let ran = container.bash("sleep 1000 & head -c 60000 /dev/zero").await;
        assert_eq!(ran.stdout.len(), 60_000);
    }
}

#[tokio::test]
async fn survivors_keep_writing_into_the_log() {
    let container = Container::start().await;
    let logs = tempfile::tempdir().unwrap();
    let [stdout, stderr] = container.logs(logs.path());
    let script = "(while [ ! -e go ]; do sleep 0.01; done; echo late; sleep 1000) & echo early";
    let argv = ["bash", "-c", script];
    let exec = Exec {
        role: CommandRole::Agent,
        argv: &argv,
        env: &[],
        deadline: Some(Duration::from_secs(60)),
        stdout,
        stderr,
    };
    assert_eq!(container.guest.exec(exec).await.unwrap().outcome, Outcome::Code(0));
    let log = || fs::read_to_string(logs.path().join("stdout.txt")).unwrap();
    assert_eq!(log(), "early\n");
    fs::write(container.path("go"), "").unwrap();
    until(async || log() == "early\nlate\n").await;
}

#[tokio::test]
async fn commands_run_beside_each_other() {
    let container = Container::start().await;
    let waits = container.bash("while [ ! -e go ]; do sleep 0.01; done; echo waited");
    let goes = container.bash("touch go; echo went");
    let (waited, went) = tokio::join!(waits, goes);
    assert_eq!((waited.text(), went.text()), ("waited\n", "went\n"));
}
