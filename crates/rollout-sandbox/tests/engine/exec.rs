//! Commands: how they start, what they see of their caller, how they end.

use crate::common::{Host, command, out, sh};
use rollout_sandbox::{ExecError, ExitStatus};

#[tokio::test]
async fn a_command_runs_as_root_in_a_root_of_its_own() {
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
async fn exit_codes_and_signals_are_told_apart() {
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
    let failure = async |change: fn(&mut rollout_sandbox::Command)| {
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
