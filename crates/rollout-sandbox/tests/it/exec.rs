//! Commands: how they start, what they inherit, how they end.

use crate::common::{Host, command, out, run, sh};
use rollout_sandbox::{ExecError, ExitStatus, Stdio, Terminal};

#[tokio::test]
async fn a_command_runs_as_root_in_its_own_root_directory() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    insta::assert_snapshot!(out(&sandbox, "id -un; hostname; pwd; echo $HOME; ls /home /root").await, @r"
    root
    test
    /
    /root
    /home:

    /root:
    ");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn exit_codes_and_signals_are_distinguished() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    assert_eq!(sh(&sandbox, "exit 7").await.exit.status, ExitStatus::Code(7));
    assert_eq!(sh(&sandbox, "kill -TERM $$").await.exit.status, ExitStatus::Signal(15));
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_command_that_cannot_start_is_an_error_and_not_an_exit() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let failure = async |change: fn(&mut rollout_sandbox::SandboxCommand)| {
        let (mut command, _stdout, _stderr) = command(&["true"]);
        change(&mut command);
        match sandbox.exec(command).await {
            Ok(_) => panic!("the command started"),
            Err(error) => error,
        }
    };
    let missing = failure(|command| command.argv = vec!["no-such-program".into()]).await;
    assert!(matches!(missing, ExecError::NotFound { .. }), "{missing:?}");
    let file = failure(|command| command.argv = vec!["/etc/passwd".into()]).await;
    assert!(matches!(file, ExecError::NotExecutable { .. }), "{file:?}");
    let directory = failure(|command| command.cwd = "/no/such/directory".into()).await;
    assert!(matches!(directory, ExecError::BadDirectory { .. }), "{directory:?}");
    let user = failure(|command| command.user = Some("no-such-user".into())).await;
    assert!(matches!(user, ExecError::UnknownUser { .. }), "{user:?}");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_destroyed_sandbox_leaves_no_directory() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let dir = sandbox.root_dir().to_owned();
    out(&sandbox, "mkdir -p /a/b/c; echo x > /a/b/c/d; chmod 0 /a/b; rm /usr/bin/true").await;
    assert!(dir.exists());
    sandbox.destroy().await.unwrap();
    assert!(!dir.exists());
    assert!(std::path::Path::new("/usr/bin/true").exists());
}

#[tokio::test]
async fn an_interactive_command_has_its_own_terminal() {
    use std::io::{BufRead, BufReader, Write};
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let terminal = Terminal::open().unwrap();
    let clone = || terminal.command_end.try_clone().unwrap();
    let (mut command, _, _) =
        command(&["/bin/bash", "-c", "stty -echo; tty; read line < /dev/tty; echo got $line; exit 6"]);
    (command.stdin, command.stdout, command.stderr, command.tty) =
        (Stdio::Fd(clone()), clone(), clone(), true);
    let mut process = sandbox.exec(command).await.unwrap();
    let mut person = std::fs::File::from(terminal.person_end.try_clone().unwrap());
    person.write_all(b"hello\n").unwrap();
    let reading = tokio::task::spawn_blocking(move || {
        BufReader::new(person).lines().map_while(Result::ok).find(|line| line.contains("got"))
    });
    assert_eq!(process.wait().await.unwrap().status, ExitStatus::Code(6));
    drop(terminal);
    assert_eq!(reading.await.unwrap().unwrap().trim_end(), "got hello");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn the_environment_is_exactly_what_was_given() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let (mut command, stdout, stderr) = command(&["/usr/bin/env"]);
    command.env = vec![("A".into(), "1".into()), ("B".into(), "x y=z".into())];
    insta::assert_snapshot!(run(&sandbox, (command, stdout, stderr)).await.stdout, @r"
    A=1
    B=x y=z
    HOME=/root
    ");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_large_script_and_environment_are_passed_completely() {
    let host = Host::start().await;
    let sandbox = host.sandbox().await;
    let (mut command, stdout, stderr) = command(&["/bin/sh", "-c", "echo ${#LARGE} $#", "sh"]);
    command.env.push(("LARGE".into(), "x".repeat(100_000)));
    command.argv.extend((0..9).map(|_| "y".repeat(100_000)));
    assert_eq!(run(&sandbox, (command, stdout, stderr)).await.stdout, "100000 9\n");
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn concurrent_sandboxes_do_not_affect_each_other() {
    let host = Host::start().await;
    let tasks = (0..16).map(|number| {
        let engine = host.engine.clone();
        tokio::spawn(async move {
            let image = engine.host_image().await.unwrap();
            let (network, limits) =
                (rollout_sandbox::Network::None, rollout_sandbox::SandboxLimits::default());
            let spec = rollout_sandbox::SandboxSpec {
                name: format!("Task_{number}"),
                image,
                network,
                limits,
                private_dirs: Vec::new(),
                hosts: Vec::new(),
            };
            let sandbox = engine.create(spec).await.unwrap();
            let script =
                format!("hostname; echo {number} > /tmp/mine; ls /tmp; ps ax 2>/dev/null | grep -c hostname");
            let seen = sh(&sandbox, &script).await.stdout;
            assert!(seen.starts_with(&format!("task-{number}\nmine\n")), "{seen}");
            sandbox.destroy().await.unwrap();
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}
